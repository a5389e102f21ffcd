"""A partition's lock, to which a change can be given without waiting for it.

Rule: the thread that holds the lock may wait for a disk, for a minute or longer; the thread that changes roles looks
after all partitions, and must not wait. So a change that finds the lock taken is queued, and the holder carries it out
before it releases the lock. Until then the holder can rely on the role, and no later holder acts on the old one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import PylogError, RequestTimedOutError
from broker_runtime.contract.events import event
from broker_runtime.contract.waiting import Deadline, Signal

_LAST_BUSY_S: Final = 0.05  # for a caller whose time is over, or that checks next whether it is

_logger = logging.getLogger(__name__)


class _Within:
    """`RoleLock.within`. A class, because it is entered for each append and a generator costs twice as much."""

    __slots__ = ("_lock", "_timeout_s")

    def __init__(self, lock: RoleLock, timeout_s: float) -> None:
        self._lock = lock
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise RequestTimedOutError(f"the partition was busy for {self._timeout_s:g} s; its disk may stand still")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class RoleLock:
    """As `threading.Lock`, with `carry_out`."""

    __slots__ = ("_lock", "_queued")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queued: deque[Callable[[], None]] = deque()

    def carry_out(self, change: Callable[[], None]) -> None:
        """Calls ``change`` with the lock held: now, raising what it raises, or on the holder's thread before that
        releases the lock.

        Changes are carried out in the order in which they came. Never waits. A `PylogError` of a queued one is logged.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._finish()
                change()
            finally:
                self.release()
            return
        self._queued.append(change)
        if self._lock.acquire(blocking=False):  # the holder may have released it before it could see the change
            self.release()

    def within(self, timeout_s: float) -> _Within:
        """For ``with``: the lock. Raises `RequestTimedOutError` if another thread has it for longer (-1: waits)."""
        return _Within(self, timeout_s)

    def is_met_now(self, check: Callable[[], float]) -> bool:
        """Whether `wait_until` would return at once, for a fraction of what preparing for a wait costs: calls ``check``
        if no other thread has the lock. Raises what that raises, but for `RequestTimedOutError`."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return check() <= 0
        except RequestTimedOutError:
            return False
        finally:
            self.release()

    def wait_until(
        self,
        check: Callable[[], float],
        require_role: Callable[[], object],
        deadline: Deadline,
        waiter: Signal,
        *,
        late: Callable[[], str],
    ) -> None:
        """Returns when ``check()``, called with the lock held, returns 0; any other value is how many seconds to wait
        for a change at most before the next check. The lock is never waited for beyond the next ``require_role()``,
        which needs none.

        Raises what these two raise, and `RequestTimedOutError` with ``late()`` at the ``deadline``. A
        `RequestTimedOutError` of ``check``, where another thread has the log, makes it check again.
        """
        while True:
            require_role()
            is_last = deadline.expired
            wait_s, busy = 0.0, None
            try:
                with self.within(_LAST_BUSY_S):
                    wait_s = check()
            except RequestTimedOutError as error:
                require_role()
                busy = error
            if busy is None and wait_s <= 0:
                return
            if is_last:
                raise RequestTimedOutError(late()) from busy
            if busy is None:
                waiter.wait(deadline.remaining_s(wait_s))

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """Carries out the queued changes, and releases the lock."""
        while True:
            try:
                self._finish()
            finally:
                self._lock.release()
            if not self._queued or not self._lock.acquire(blocking=False):
                return

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _finish(self) -> None:
        while self._queued:
            try:
                self._queued.popleft()()
            except PylogError as error:
                event(_logger, "change role", level=logging.WARNING, error=error)
