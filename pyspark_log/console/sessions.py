"""Login sessions, and limits on attempts to log in.

    cookie      256 random bits; a new one at each login, so that nobody can be given one beforehand
    CSRF token  HMAC of the cookie's value under a key of this process: nothing has to be kept for it
    session     a cookie's value and the user's connection; ends when it is idle too long, with its token, and at logout

Rule: everything is bounded. When there are too many sessions of one user, or in all, the one that has been idle longest
ends: a user who logs in again and again does not log out others. Pure: the clock is given, nothing blocks. Thread-safe.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from broker_runtime.contract.waiting import CLOCK, Clock

LONGEST_S: Final = 8 * 3_600.0
"""How long a session may last; also the lifetime of its token."""
IDLE_S: Final = 1_800.0
"""How long a session lasts without a request of the user; pages that refresh themselves do not count."""
_MOST_SESSIONS: Final = 200
_MOST_OF_USER: Final = 10
_MOST_NOTICES: Final = 1_000
_MOST_TRIERS: Final = 2_000
_ATTEMPTS: Final = 5
_ATTEMPTS_OF_ADDRESS: Final = 20
_ATTEMPTS_WITHIN_S: Final = 60.0
_MOST_ATTEMPTS_AT_ONCE: Final = 4
_ID_BYTES: Final = 32
_ID_CHARS: Final = 43


class Closable(Protocol):
    """A session's resource."""

    def close(self) -> None:
        """Ends it. May be called again."""


_C = TypeVar("_C", bound=Closable)
_T = TypeVar("_T")


@dataclass(slots=True)
class Session(Generic[_C]):
    """A user who is logged in."""

    user: str
    connection: _C
    began_s: float
    used_s: float


class Sessions(Generic[_C]):
    """All sessions, by the value of their cookie."""

    def __init__(self, *, most: int = _MOST_SESSIONS, clock: Clock = CLOCK) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(_ID_BYTES)
        self._sessions: OrderedDict[str, Session[_C]] = OrderedDict()  # the longest idle first
        self._notices: OrderedDict[str, str] = OrderedDict()

    def begin(self, user: str, connection: _C) -> str:
        """A new session; returns its cookie's value."""
        cookie = new_cookie()
        now_s = self._clock.now_s()
        with self._lock:
            ended = self._ended(now_s)
            own = [name for name, each in self._sessions.items() if each.user == user]
            ended += [self._sessions.pop(name) for name in own[: max(0, len(own) + 1 - _MOST_OF_USER)]]
            self._sessions[cookie] = Session(user, connection, now_s, now_s)
            while len(self._sessions) > self._most:
                ended.append(self._sessions.popitem(last=False)[1])
        _close(ended)
        return cookie

    def find(self, cookie: str, *, by_hand: bool = True) -> Session[_C] | None:
        """The session, if there is one. ``by_hand``: a request of the user, which restarts the idle timeout."""
        now_s = self._clock.now_s()
        with self._lock:
            ended = self._ended(now_s)
            found = self._sessions.get(cookie)
            if found is not None and by_hand:
                found.used_s = now_s
                self._sessions.move_to_end(cookie)
        _close(ended)
        return found

    def end(self, cookie: str) -> None:
        """Logs out. Nothing happens if there is no such session."""
        with self._lock:
            found = self._sessions.pop(cookie, None)
            self._notices.pop(cookie, None)
        _close([] if found is None else [found])

    def close(self) -> None:
        """Ends all of them."""
        with self._lock:
            ended = list(self._sessions.values())
            self._sessions.clear()
        _close(ended)

    def __len__(self) -> int:
        return len(self._sessions)

    # --- what belongs to a cookie, with a session or without ----------------------------------------------------

    def csrf_token(self, cookie: str) -> str:
        """The CSRF token that forms of this browser carry."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def is_csrf_token(self, cookie: str, given: str) -> bool:
        """Whether ``given`` is the CSRF token of this cookie."""
        return hmac.compare_digest(self.csrf_token(cookie).encode(), given.encode())

    def leave_notice(self, cookie: str, text: str) -> None:
        """Leaves a notice for the browser's next page, which shows it once."""
        with self._lock:
            self._notices[cookie] = text
            while len(self._notices) > _MOST_NOTICES:
                self._notices.popitem(last=False)

    def take_notice(self, cookie: str) -> str | None:
        """The notice that was left, if any, and forgets it."""
        with self._lock:
            return self._notices.pop(cookie, None)

    def _ended(self, now_s: float) -> list[Session[_C]]:
        over = [
            cookie
            for cookie, each in self._sessions.items()
            if now_s - each.began_s > LONGEST_S or now_s - each.used_s > IDLE_S
        ]
        return [self._sessions.pop(cookie) for cookie in over]


def new_cookie() -> str:
    """A value that nobody can guess."""
    return secrets.token_urlsafe(_ID_BYTES)


def is_cookie(value: str) -> bool:
    """Whether the value may be one of `new_cookie`."""
    return len(value) == _ID_CHARS and value.isascii() and value.replace("-", "a").replace("_", "a").isalnum()


@dataclass(slots=True)
class Attempts:
    """Limits attempts to log in: how many run at once, and how many fail in a minute from one address and for one user
    from one address. So nobody can lock out a user who logs in from another address."""

    clock: Clock = CLOCK
    _failures: OrderedDict[tuple[str, ...], deque[float]] = field(default_factory=OrderedDict)
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_s(self, user: str, address: str) -> float:
        """Seconds until the next attempt is allowed; 0: now."""
        now_s = self.clock.now_s()
        with self._lock:
            return max(self._wait_s(name, most, now_s) for name, most in _names(user, address))

    def run(self, attempt: Callable[[], _T], user: str, address: str, *, is_failure: type[Exception]) -> _T | None:
        """The attempt's result; None: too many are under way. An ``is_failure`` that it raises counts."""
        with self._lock:
            if self._running >= _MOST_ATTEMPTS_AT_ONCE:
                return None
            self._running += 1
        try:
            return attempt()
        except is_failure:
            now_s = self.clock.now_s()
            with self._lock:
                for name, most in _names(user, address):
                    self._failures.setdefault(name, deque(maxlen=most)).append(now_s)
                    self._failures.move_to_end(name)
                while len(self._failures) > _MOST_TRIERS:
                    self._failures.popitem(last=False)
            raise
        finally:
            with self._lock:
                self._running -= 1

    def _wait_s(self, name: tuple[str, ...], most: int, now_s: float) -> float:
        failed = self._failures.get(name)
        if failed is None or len(failed) < most:
            return 0.0
        return max(0.0, failed[0] + _ATTEMPTS_WITHIN_S - now_s)


def _names(user: str, address: str) -> list[tuple[tuple[str, ...], int]]:
    return [((user, address), _ATTEMPTS), ((address,), _ATTEMPTS_OF_ADDRESS)]


def _close(ended: list[Session[_C]]) -> None:
    for each in ended:
        each.connection.close()
