"""A query's progress as the committed offsets of its group in ZooKeeper.

Spark tells a source what is done when it asks for more: all before ``start`` of `latestOffset(start, …)` has been
processed. That offset is handed over here and published by a thread, so that a micro-batch never waits for
ZooKeeper. Only the newest offset is kept: after a time without brokers the newest is what counts. A failed commit is
tried again until it succeeds or a newer offset takes its place.

The first offset of a query run is written as it is, because the user chose it (a checkpoint, `startingOffsets`); later
ones only move the group forward, so that a request that arrives late cannot take it back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from broker_runtime.contract.errors import PylogError
from pyspark_log.spark.offsets import SourceOffset

CommitOffsets = Callable[[SourceOffset, bool], None]
"""Commits the offsets; the flag says "only forward". Blocks for a bounded time. Raises `PylogError`."""

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_IDLE_WAIT_S = 60.0

_log = logging.getLogger("pyspark_log.spark")


class ProgressPublisher:
    """See the module. Thread-safe; `flush` and `close` may be called from a signal's handler."""

    def __init__(self, commit: CommitOffsets) -> None:
        self._commit = commit
        # Reentrant: a signal's handler runs in the thread that may hold it.
        self._changed = threading.Condition(threading.RLock())
        self._pending: SourceOffset | None = None
        self._published: SourceOffset | None = None
        self._is_first = True
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def publish(self, offset: SourceOffset) -> None:
        """Hands over the newest offset. Never blocks. An offset that is already published costs nothing."""
        with self._changed:
            if self._is_closed or not offset or offset == (self._pending or self._published):
                return
            self._pending = dict(offset)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pylog-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything handed over is in ZooKeeper; False if it is not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending is None, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """`flush`, then the thread ends. False if something was not published."""
        done = self.flush(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return done

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending is not None or self._is_closed, _IDLE_WAIT_S)
                if self._is_closed:
                    return
                if self._pending is None:
                    continue
                offset = self._pending
            try:
                self._commit(offset, not self._is_first)
            except PylogError as error:
                _log.warning("retry publish_progress in_s=%.1f error=%s", wait_s, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
                continue
            wait_s = _FIRST_WAIT_S
            with self._changed:
                self._is_first = False
                self._published = offset
                if self._pending == offset:
                    self._pending = None
                self._changed.notify_all()
