"""A query's progress as the committed offsets of its group in ZooKeeper.

Spark tells a source what is done when it asks for more: everything before ``start`` of `latestOffset(start, …)` has
been processed. That offset is handed over here, and a thread publishes it, so that a micro-batch never waits for
ZooKeeper. Only the newest offset is kept: after a time without brokers the newest is what counts. A commit that failed
is tried again until it succeeds or a newer offset takes its place.

The first offset of a query run is committed as it is, because the user chose it (a checkpoint, `startingOffsets`).
Later ones only move the group forward, so that a request that arrives late cannot take it back.

An offset is handed over with the ids of the topics that it is about, as far as the query knows them: it never counts
for a topic that was recreated under the same name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.waiting import Backoff, Deadline, Worker
from pyspark_log.spark.offsets import SourceOffset

CommitOffsets = Callable[[SourceOffset, bool, Mapping[str, bytes]], None]
"""Commits the offsets; the flag says "only forward". The topics' ids by name, without those that are not known. Blocks
for a bounded time. Raises `PylogError`."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_IDLE_PAUSE_S = 60.0

_logger = logging.getLogger(__name__)


class ProgressPublisher:
    """See the module. Thread-safe; `flush` may be called from a signal's handler."""

    def __init__(self, commit: CommitOffsets) -> None:
        self._commit = commit
        # Reentrant: a signal's handler runs in the thread that may hold it.
        self._changed = threading.Condition(threading.RLock())
        self._pending: SourceOffset | None = None
        self._topic_ids: dict[str, bytes] = {}  # of what is pending
        self._published: SourceOffset | None = None
        self._is_first = True
        self._is_started = False
        self._has_failed = False  # by a defect: nothing is published any more
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, limit_s=_LONGEST_PAUSE_S)
        self._worker = Worker("pylog-progress", self._step, on_defect=self._fail)

    def publish(self, offset: SourceOffset, topic_ids: Mapping[str, bytes]) -> None:
        """Hands over the newest offset, and the ids of its topics that are known. Never blocks. An offset that is
        already published costs nothing."""
        with self._changed:
            if self._worker.is_stopping or self._has_failed:
                return
            if not offset or offset == (self._pending or self._published):
                return
            self._pending, self._topic_ids = dict(offset), dict(topic_ids)
            if not self._is_started:
                self._is_started = self._worker.may_start()  # False: the next offset tries again
        self._worker.wake()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything handed over is in ZooKeeper; False if it is not in time, or never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is None or self._has_failed, timeout_s)
            return self._pending is None

    def close(self, timeout_s: float) -> bool:
        """`flush`, then the thread ends; both are bounded together. False if something was not published."""
        deadline = Deadline(timeout_s)
        done = self.flush(deadline.remaining_s())
        self._worker.stop()
        self._worker.join(deadline.remaining_s())
        return done

    def _fail(self, error: BaseException) -> None:
        """The query goes on without: its own progress is in its checkpoint."""
        event(_logger, "stop publishing progress", error=error, level=logging.ERROR)
        with self._changed:
            self._has_failed = True
            self._changed.notify_all()

    def _step(self) -> float:
        """Commits the newest offset, if there is one that is not committed. Returns the pause in seconds."""
        with self._changed:
            offset, topic_ids = self._pending, self._topic_ids
        if offset is None:
            return _IDLE_PAUSE_S
        try:
            self._commit(offset, not self._is_first, topic_ids)
        except PylogError as error:
            pause_s = self._backoff.next_s()
            event(_logger, "publish progress", pause_s=pause_s, error=error, level=logging.WARNING)
            self._worker.rest(pause_s)  # however many offsets come meanwhile
            return 0.0
        self._backoff.reset()
        with self._changed:
            self._is_first = False
            self._published = offset
            if self._pending == offset:
                self._pending = None
            self._changed.notify_all()
        return 0.0
