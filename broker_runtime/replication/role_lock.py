"""A partition's lock, to which a change can be given without waiting for it.

Rule: who holds the lock may wait for a disk, a minute or longer; who changes roles looks after all partitions, and must
not. So a change that finds the lock taken is left with it, and its holder carries it out before it lets go. The holder
keeps what it relies on until then, and no later holder acts on the role that was.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_runtime.contract.errors import PylogError, RequestTimedOutError
from broker_runtime.contract.events import event

_logger = logging.getLogger(__name__)


class RoleLock:
    """As `threading.Lock`, with `carry_out`."""

    __slots__ = ("_left", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: deque[Callable[[], None]] = deque()

    def carry_out(self, change: Callable[[], None]) -> None:
        """Calls ``change`` with the lock held: now, with what it raises, or by the lock's holder when that lets go.

        Changes are carried out in the order in which they came. Never waits. A `PylogError` of one that was left is
        logged.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._finish()
                change()
            finally:
                self.release()
            return
        self._left.append(change)
        if self._lock.acquire(blocking=False):  # the holder may have let go before it could see the change
            self.release()

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """For ``with``: the lock. Raises `RequestTimedOutError` where somebody else has it for longer (-1: waits)."""
        if not self._lock.acquire(timeout=timeout_s):
            raise RequestTimedOutError(f"the partition was busy for {timeout_s:g} s; its disk may stand still")
        try:
            yield
        finally:
            self.release()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """Carries out what was left, and lets go."""
        while True:
            try:
                self._finish()
            finally:
                self._lock.release()
            if not self._left or not self._lock.acquire(blocking=False):
                return

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _finish(self) -> None:
        while self._left:
            try:
                self._left.popleft()()
            except PylogError as error:
                event(_logger, "change role", level=logging.WARNING, error=error)
