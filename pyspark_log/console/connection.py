"""One user's way to the cluster: an `Admin`, and consumers and producers with the same settings.

    nobody is asked       all users share one connection
    a user and password   exchanged for a token at once; the token proves the user from then on, the password is gone

Rule: a password is a local variable. The brokers decide what a user may do: nothing here does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker_runtime.contract.errors import RequestTimedOutError
from broker_runtime.contract.security import SecurityProtocol
from broker_runtime.contract.settings import find_setting, settings_of
from broker_runtime.contract.waiting import CLOCK, Clock
from pyspark_log.console.lag_history import LagHistory
from pyspark_log.console.sessions import LONGEST_S

if TYPE_CHECKING:
    from pyspark_log import Admin, Consumer, Producer

_T = TypeVar("_T")

REQUEST_TIMEOUT_MS: Final = 5_000
"""Of one request, unless the settings say less: a page that says that nobody answers is better than none."""
_ASKING_LIMIT_S: Final = 15.0
_TIMES_AS_LONG: Final = 4.0
_LONGEST_KEPT_S: Final = 30.0
_REQUEST_TIMEOUT: Final = "request.timeout.ms"
_OF_CALLERS: Final = frozenset({"sasl.username", "sasl.password", "sasl.mechanism", "token", "token.file"})


class Memory:
    """Answers that took long, for a while: so that a page that renews itself, in however many tabs, does not keep a
    large cluster busy. An answer that came at once is asked for again at once.

    Thread-safe: who asks for what somebody is asking for already waits for that answer, a bounded time.
    """

    def __init__(self, *, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}
        self._kept: dict[str, tuple[Any, float]] = {}

    def ask(self, name: str, question: Callable[[], _T]) -> _T:
        """The answer. Raises what ``question`` raises, which is not kept. ``name``: one of a few; it tells answers
        apart."""
        with self._lock:
            asking = self._asking.setdefault(name, threading.Lock())
        if not asking.acquire(timeout=_ASKING_LIMIT_S):
            raise RequestTimedOutError(f"the cluster has not told the {name} within {_ASKING_LIMIT_S:g} s")
        try:
            began_s = self._clock.now_s()
            kept = self._kept.get(name)
            if kept is not None and began_s < kept[1]:
                answer: _T = kept[0]
                return answer
            answer = question()
            ended_s = self._clock.now_s()
            self._kept[name] = (answer, ended_s + min(_LONGEST_KEPT_S, _TIMES_AS_LONG * (ended_s - began_s)))
            return answer
        finally:
            asking.release()


@dataclass(slots=True)
class Connection:
    """What pages ask with. ``user``: who; "": nobody was asked."""

    admin: Admin
    settings: Mapping[str, Any] = field(repr=False)
    user: str = ""
    lag: LagHistory = field(default_factory=LagHistory)
    memory: Memory = field(default_factory=Memory)

    def consumer(self, **own: Any) -> Consumer:
        """A new consumer without a group, which the caller closes."""
        from pyspark_log import Consumer

        return Consumer(config={**_known("consumer", self.settings), **own})

    def producer(self, **own: Any) -> Producer:
        """A new producer, which the caller closes."""
        from pyspark_log import Producer

        return Producer(config={**_known("producer", self.settings), **own})

    def close(self) -> None:
        """Ends all connections. May be called again."""
        self.admin.close()


@dataclass(frozen=True, slots=True)
class Entrance:
    """How to connect. ``settings``: of a client, by dotted name, as the console was given them."""

    settings: Mapping[str, Any] = field(repr=False)

    @property
    def brokers(self) -> str:
        """Which brokers are asked first, as a person reads it."""
        addresses = str(self.settings.get("bootstrap.servers", "")).split(",")
        return ", ".join(addresses[:3]) + (" …" if len(addresses) > 3 else "")

    @property
    def has_login(self) -> bool:
        """Whether users say who they are. If not, all of them are who the console is."""
        given = find_setting("admin", "security.protocol").parse(self.settings.get("security.protocol", "PLAINTEXT"))
        return SecurityProtocol(given).uses_sasl

    def shared(self) -> Connection:
        """The connection of a console without login. Connects to nothing yet."""
        return _connected(self._bounded(self.settings), "")

    def log_in(self, user: str, password: str) -> Connection:
        """A connection with a token of that user's. Raises `SaslAuthenticationError`, and as asking a broker does."""
        from pyspark_log import Admin

        shared = {name: value for name, value in self._bounded(self.settings).items() if name not in _OF_CALLERS}
        with Admin(config={**shared, "sasl.username": user, "sasl.password": password}) as admin:
            token = admin.create_token(LONGEST_S)
        return _connected({**shared, "token": token}, user)

    def _bounded(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        given = find_setting("admin", _REQUEST_TIMEOUT).parse(settings.get(_REQUEST_TIMEOUT, REQUEST_TIMEOUT_MS))
        assert isinstance(given, int)
        return {**settings, _REQUEST_TIMEOUT: min(given, REQUEST_TIMEOUT_MS)}


def _connected(settings: dict[str, Any], user: str) -> Connection:
    from pyspark_log import Admin

    return Connection(admin=Admin(config=_known("admin", settings)), settings=settings, user=user)


def _known(scope: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    known = settings_of(scope)
    return {name: value for name, value in settings.items() if name in known}
