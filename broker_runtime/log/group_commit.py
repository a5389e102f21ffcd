"""One fsync for all waiting threads: group commit.

The first thread that waits runs an fsync for everything appended so far. The others wait for it, and one of them runs
the next.

Rules: one fsync at a time, never under the log's lock. A failed fsync is never retried: it may have dropped the dirty
pages, and the next one would report success (fsync errors, Linux ≥ 4.13). From then on every wait fails. A waiting
thread runs at most one fsync itself. Its wait ends when the log is truncated below the offset it waits for, which will
never be durable. A thread whose turn it is to fsync, and that does not get the log's lock in time, leaves the fsync to
the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_runtime.contract.errors import PylogError, RequestTimedOutError
from broker_runtime.contract.waiting import Deadline


class _Wait:
    """A thread that waits until everything below ``upto`` is durable."""

    __slots__ = ("is_cut", "upto")

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self.is_cut = False


class GroupCommit:
    """The durable end of one log. Thread-safe."""

    def __init__(self, sync: Callable[[float, Callable[[], bool]], int], durable_end_offset: int) -> None:
        """``sync(timeout_s, is_over)`` makes everything appended so far durable and returns its end. It raises
        `RequestTimedOutError`, having done nothing, if it cannot begin within ``timeout_s`` or before ``is_over()``.
        Any other `PylogError` is final."""
        self._sync = sync
        self._condition = threading.Condition()
        # Invariant: everything below is on the device; falls only in `truncated` and `begin_at`.
        self._durable_end_offset = durable_end_offset
        self._is_syncing = False
        self._waits: set[_Wait] = set()
        self._failure: PylogError | None = None

    @property
    def durable_end_offset(self) -> int:
        """Everything below is on the device."""
        return self._durable_end_offset

    def wait_durable(self, upto: int, timeout_s: float, *, is_over: Callable[[], bool] | None = None) -> int:
        """Blocks until everything below ``upto``, which was appended before, is durable. Returns the durable end.

        That is below ``upto`` if the log was truncated below it, or if ``is_over()``: the caller is no longer
        interested (called now, after each `wake`, and while another thread has the log; it must not block). Raises
        `RequestTimedOutError` after waiting ``timeout_s`` for another thread's fsync or use of the log (the fsync of
        this thread cannot be interrupted), and the error of a failed fsync, of whichever thread.
        """
        deadline = Deadline(timeout_s)
        wait = _Wait(upto)
        with self._condition:
            self._waits.add(wait)
        try:
            return self._wait(wait, deadline, timeout_s, is_over if is_over is not None else _never)
        finally:
            with self._condition:
                self._waits.discard(wait)

    def wake(self) -> None:
        """All waiting threads check their ``is_over``."""
        with self._condition:
            self._condition.notify_all()

    @contextmanager
    def held_back(self, timeout_s: float) -> Iterator[None]:
        """No fsync runs inside. Raises `RequestTimedOutError` if the current one takes longer than ``timeout_s``."""
        with self._condition:
            if not self._condition.wait_for(lambda: not self._is_syncing, timeout_s):
                raise RequestTimedOutError(f"an fsync did not end within {timeout_s:.3f} s")
            self._is_syncing = True
        try:
            yield
        finally:
            with self._condition:
                self._is_syncing = False
                self._condition.notify_all()

    def truncated(self, end_offset: int) -> None:
        """The log now ends at ``end_offset``. Call inside `held_back`."""
        with self._condition:
            self._durable_end_offset = min(self._durable_end_offset, end_offset)
            self._end_waits_above(end_offset)

    def begin_at(self, offset: int) -> None:
        """The log is now empty and begins at ``offset``, durably. Call inside `held_back`, or with the log's lock if
        there is nothing to fsync."""
        with self._condition:
            self._durable_end_offset = offset
            self._end_waits_above(offset)

    def fail(self, failure: PylogError) -> None:
        """Every current and future wait raises ``failure``."""
        with self._condition:
            if self._failure is None:
                self._failure = failure
            self._condition.notify_all()

    def _wait(self, wait: _Wait, deadline: Deadline, timeout_s: float, is_over: Callable[[], bool]) -> int:
        has_synced = False
        while True:
            with self._condition:
                while not self._is_answered(wait) and not is_over() and self._is_syncing:
                    if deadline.expired:
                        raise RequestTimedOutError(f"offset {wait.upto} was not on the device within {timeout_s:.3f} s")
                    self._condition.wait(deadline.remaining_s())
                if self._failure is not None:
                    raise type(self._failure)(self._failure.message)
                # After an fsync of everything the log still ends below: it was truncated before the wait began.
                if self._is_answered(wait) or has_synced or is_over():
                    return self._durable_end_offset
                self._is_syncing = has_synced = True
            try:
                end = self._sync(deadline.remaining_s(), is_over)
                with self._condition:
                    self._durable_end_offset = max(self._durable_end_offset, end)
            except RequestTimedOutError:
                with self._condition:
                    if not self._is_answered(wait) and not is_over():
                        raise
            finally:
                with self._condition:
                    self._is_syncing = False
                    self._condition.notify_all()

    def _is_answered(self, wait: _Wait) -> bool:
        """Call with the condition held."""
        return self._failure is not None or wait.is_cut or self._durable_end_offset >= wait.upto

    def _end_waits_above(self, end_offset: int) -> None:
        """Call with the condition held."""
        for wait in self._waits:
            wait.is_cut = wait.is_cut or wait.upto > end_offset
        self._condition.notify_all()


def _never() -> bool:
    return False
