"""One fsync for all who wait: group commit.

The first who waits fsyncs for everybody appended so far; the others wait for it, and one of them does the next.

Rule: one fsync at a time, never under the log's lock. A failed one is never retried: it may have dropped the dirty
pages, and the next would report success (fsync errors, Linux ≥ 4.13). From then on every wait fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_runtime.contract.errors import PylogError, RequestTimedOutError


class GroupCommit:
    """The durable end of one log. Thread-safe."""

    def __init__(self, sync: Callable[[], int], durable_end_offset: int) -> None:
        """``sync()`` makes all appended so far durable and returns its end; raises `PylogError` for good."""
        self._sync = sync
        self._condition = threading.Condition()
        # Invariant: all below is on the device; never falls but by `truncated`.
        self._durable_end_offset = durable_end_offset
        self._is_syncing = False
        self._failure: PylogError | None = None

    @property
    def durable_end_offset(self) -> int:
        """Everything below is on the device."""
        return self._durable_end_offset

    def wait_durable(self, upto: int, timeout_s: float) -> int:
        """Blocks until everything below ``upto``, which was appended before, is durable. Returns the durable end.

        Raises `RequestTimedOutError` after ``timeout_s`` of waiting for somebody else's fsync (one's own cannot be
        interrupted), and the failure of an fsync, one's own or another's.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._condition:
                while self._is_syncing and self._failure is None and self._durable_end_offset < upto:
                    if not self._condition.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                        raise RequestTimedOutError(f"offset {upto} was not on the device within {timeout_s:.3f} s")
                if self._failure is not None:
                    raise type(self._failure)(self._failure.message)
                if self._durable_end_offset >= upto:
                    return self._durable_end_offset
                self._is_syncing = True
            try:
                end = self._sync()
                with self._condition:
                    self._durable_end_offset = max(self._durable_end_offset, end)
            finally:
                with self._condition:
                    self._is_syncing = False
                    self._condition.notify_all()

    @contextmanager
    def held_back(self, timeout_s: float) -> Iterator[None]:
        """No fsync runs inside. Raises `RequestTimedOutError` where one lasts longer than ``timeout_s``."""
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
        """The log ends at ``end_offset`` now. Call inside `held_back`."""
        with self._condition:
            self._durable_end_offset = min(self._durable_end_offset, end_offset)

    def begin_at(self, offset: int) -> None:
        """The log is empty and begins at ``offset`` now, durably. Call inside `held_back`, or with the log's lock where
        there is nothing to fsync."""
        with self._condition:
            self._durable_end_offset = offset

    def fail(self, failure: PylogError) -> None:
        """Every wait, present and future, raises ``failure``."""
        with self._condition:
            if self._failure is None:
                self._failure = failure
            self._condition.notify_all()
