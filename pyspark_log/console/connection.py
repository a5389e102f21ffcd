"""One user's way to the cluster: an `Admin`, and consumers and producers with the same settings.

    without a login    all users share one connection
    with a login       the password is exchanged for a token at once; the session keeps the token, not the password

Rule: a password is only ever a local variable. Brokers alone decide what a user may do.
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
"""The limit of one request, unless the settings have a lower one: an error page is better than a page that hangs."""
_ASKING_LIMIT_S: Final = 15.0
_TIMES_AS_LONG: Final = 4.0
_LONGEST_KEPT_S: Final = 30.0
_REQUEST_TIMEOUT: Final = "request.timeout.ms"
_OF_CALLERS: Final = frozenset({"sasl.username", "sasl.password", "sasl.mechanism", "token", "token.file"})


class AnswerCache:
    """Caches answers in proportion to how long they took, so that pages that refresh themselves, in however many tabs,
    do not keep a large cluster busy. An answer that came at once is hardly cached.

    Thread-safe: a second caller with the same question waits, a bounded time, for the answer to the first.
    """

    def __init__(self, *, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}
        self._kept: dict[str, tuple[Any, float]] = {}

    def ask(self, name: str, question: Callable[[], _T]) -> _T:
        """The answer, cached under ``name``. Raises what ``question`` raises; errors are not cached."""
        with self._lock:
            asking = self._asking.setdefault(name, threading.Lock())
        if not asking.acquire(timeout=_ASKING_LIMIT_S):
            raise RequestTimedOutError(f"the cluster has not answered within {_ASKING_LIMIT_S:g} s")
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
    """A user's clients. ``user``: "" without a login."""

    admin: Admin
    settings: Mapping[str, Any] = field(repr=False)
    user: str = ""
    lag: LagHistory = field(default_factory=LagHistory)
    answers: AnswerCache = field(default_factory=AnswerCache)

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
    """Makes connections. ``settings``: of a client, by dotted name, as the console was given them."""

    settings: Mapping[str, Any] = field(repr=False)

    @property
    def brokers(self) -> str:
        """The bootstrap servers, for display: at most three."""
        addresses = str(self.settings.get("bootstrap.servers", "")).split(",")
        return ", ".join(addresses[:3]) + (" …" if len(addresses) > 3 else "")

    @property
    def has_login(self) -> bool:
        """Whether users have to log in. If not, all of them share the console's identity."""
        given = find_setting("admin", "security.protocol").parse(self.settings.get("security.protocol", "PLAINTEXT"))
        return SecurityProtocol(given).uses_sasl

    def shared(self) -> Connection:
        """The connection that all users share. Connects lazily."""
        return _connected(self._bounded(self.settings), "")

    def log_in(self, user: str, password: str) -> Connection:
        """A connection with a token of the user. Raises `SaslAuthenticationError`, and as requests to brokers do."""
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
