"""``spark.readStream.format("pylog")``: what Spark asks of a source, translated to `QueryOffsets`.

Spark makes one reader in the source's own process, which lives as long as the query runs and answers all questions
about offsets, and another one that is pickled to the executors and only reads. So the state is made when the first
question comes, never in the constructor, and it is never pickled.

With ``pylog.group.id`` the query is the one member of that group while it lives (`query_member`), and no question is
answered before it is known that no other query has the group.

Spark does not stop a source: it ends its process with SIGTERM. A handler then publishes the progress that is not
published yet and leaves the group (bounded; Spark waits at least 4 s), and the process ends as it would have.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from broker_runtime.contract.predicate import Predicate
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline
from pyspark_log.spark.log_view import QUERY_PATIENCE_S, BrokerLogView
from pyspark_log.spark.offsets import SourceOffset, offset_from_json, offset_to_json
from pyspark_log.spark.options import SourceOptions
from pyspark_log.spark.plain_errors import plain_errors
from pyspark_log.spark.progress import ProgressPublisher
from pyspark_log.spark.query_member import QueryMember
from pyspark_log.spark.query_offsets import QueryOffsets
from pyspark_log.spark.range_reading import read_ranges
from pyspark_log.spark.row_schema import RowLayout
from pyspark_log.spark.task_secrets import TaskPartition, task_token, with_token, without_password

_STOP_LIMIT_S = 3.0
_LEAVE_LIMIT_S = 0.8  # of these, kept for leaving the group
_LAST_OFFSET_LIMIT_S = 30.0

_IDLE_CALLS = 50
_POLLING_GAP_S = 0.03
_IDLE_PAUSE_S = 0.03


class _Query:
    """The state of a query in the source's process."""

    def __init__(self, options: SourceOptions, where: Predicate | None) -> None:
        options.stream_start()
        self.view = BrokerLogView(options, patience_s=QUERY_PATIENCE_S)
        self.offsets = QueryOffsets(options, self.view, where=where)
        self.pace = IdlePace()
        self.group = None if options.group_id is None else _Group(options.group_id, options, self.view)

    def admit(self) -> None:
        """Returns when no other member has the group. Raises `GroupInUseError`."""
        if self.group is not None:
            self.group.member.admit()

    def publish(self, done: SourceOffset) -> None:
        if self.group is not None:
            self.group.publisher.publish(done, self.offsets.topic_ids_at(done))

    def flush(self, timeout_s: float) -> None:
        if self.group is not None:
            self.group.publisher.flush(timeout_s)

    def close(self) -> None:
        if self.group is not None:
            self.group.end(_STOP_LIMIT_S)
            self.group.publisher.close(0.0)
        self.view.close()


class _Group:
    """What a query with a group does besides reading."""

    def __init__(self, group_id: str, options: SourceOptions, view: BrokerLogView) -> None:
        self._view = view
        self.member = QueryMember(
            group_id,
            view,
            lambda: view.topics,
            client_id=options.settings().client_id,
            client_host=socket.gethostname(),
        )
        self.publisher = ProgressPublisher(self._commit)
        self.member.start()

    def end(self, timeout_s: float) -> None:
        """Publishes the progress that is not published yet, and leaves the group; both are bounded together."""
        deadline = Deadline(timeout_s)
        self.member.stop_heartbeats()
        self.publisher.flush(timeout_s - _LEAVE_LIMIT_S)
        self.member.leave(deadline.remaining_s())

    def _commit(self, offset: SourceOffset, only_forward: bool, topic_ids: Mapping[str, bytes]) -> None:
        self._view.commit(offset, only_forward, self.member.signature(), topic_ids)


class PylogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Spark calls it from one thread."""

    def __init__(self, options: SourceOptions, layout: RowLayout) -> None:
        self._options = options
        self._layout = layout
        self._query: _Query | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_query": None, "_options": without_password(self._options)}

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts; the same answer however often Spark asks."""
        query = self._running()
        query.admit()
        return offset_to_json(query.offsets.initial())

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends where the log ends at the first `latestOffset`."""
        self._running().offsets.bound()

    @plain_errors()
    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger` and `minOffsetsPerTrigger`, if given. Spark has no class for both together, so the
        latter counts wherever Spark does not ask for all there is."""
        self._running()
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    @plain_errors()
    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes. Everything before ``start`` is done, so it is published."""
        query = self._running()
        query.admit()
        done = offset_from_json(start)
        query.publish(done)
        query.pace.before()
        end = query.offsets.latest(
            done,
            limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            None if isinstance(limit, ReadAllAvailable) else self._options.min_offsets_per_trigger,
        )
        query.pace.after(is_news=end != done)
        if query.offsets.is_bounded and end == done:  # the last call of an availableNow run
            query.flush(_LAST_OFFSET_LIMIT_S)
        return offset_to_json(end)

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The log's end as last seen, for the query's progress."""
        reported = self._running().offsets.reported
        return None if not reported else offset_to_json(reported)

    @plain_errors()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """One input partition per range or group of small ranges; its value is a tuple of `PlannedRange`."""
        query = self._running()
        query.admit()
        groups = query.offsets.plan(offset_from_json(start), offset_from_json(end))
        token = task_token(self._options)
        return [TaskPartition(group, token) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of an input partition, on an executor."""
        with plain_errors():
            options = with_token(self._options, getattr(partition, "token", None))
            yield from read_ranges(partition.value or (), options, self._layout)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Does nothing: Spark calls it a micro-batch late, and for the last one never. `latestOffset` publishes."""

    def stop(self) -> None:
        """Publishes what is left, leaves the group and closes the connections. (Spark's runner calls it when its socket
        ends: when the driver is gone, or when SIGTERM is about to arrive.)"""
        if self._query is not None:
            self._query.close()
            self._query = None  # last: `_terminate` may come in between, and has to wait for what is under way

    def _running(self) -> _Query:
        if self._query is None:
            self._query = _Query(self._options, self._layout.where)
            if self._query.group is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._terminate)
        return self._query

    def _terminate(self, signal_number: int, frame: FrameType | None) -> None:
        signal.signal(signal_number, signal.SIG_IGN)  # Spark sends it twice
        if self._query is not None and self._query.group is not None:
            self._query.group.end(_STOP_LIMIT_S)
        signal.signal(signal_number, signal.SIG_DFL)
        os.kill(os.getpid(), signal_number)


class IdlePace:
    """How often an idle query asks the brokers. For one thread, which calls it before each question and after it.

    Spark asks a source every 11 ms whether there is something new. Each answer costs a request (0.3 ms of a core on
    either side, measured), because it must be newer than the question. So once `_IDLE_CALLS` questions in a row brought
    nothing new, each waits a little before it goes to the brokers: a quarter of the requests, for a record that is seen
    15 ms later on average. Questions that are further apart than `_POLLING_GAP_S` are not Spark's idle loop (another
    source of the query is busy, or the trigger has an interval) and never wait.
    """

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._idle_calls = 0
        self._answered_at_s = clock.now_s()

    def before(self) -> None:
        """Waits where the query is idle."""
        if self._idle_calls >= _IDLE_CALLS and self._clock.now_s() - self._answered_at_s < _POLLING_GAP_S:
            self._clock.sleep(_IDLE_PAUSE_S)

    def after(self, *, is_news: bool) -> None:
        """What the answer was."""
        self._idle_calls = 0 if is_news else self._idle_calls + 1
        self._answered_at_s = self._clock.now_s()
