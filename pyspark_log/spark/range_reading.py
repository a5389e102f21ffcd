"""An input partition's ranges as record batches, in a task on an executor.

Rule: no row becomes a Python object; a batch's columns are the frames' own memory wherever a frame is large enough to
be a batch. Connections are made in the worker, kept for the tasks that follow in it, and never cross a fork.

Records that are gone are a `DataLossError`, or with ``failOnDataLoss=false`` a warning, and reading continues with what
exists. They count as gone only if `SecondLooks` find them gone, too: the broker that is asked may know less than the
one that the range was planned with. A range whose start was "earliest" loses nothing when retention moves the start.

Sizes: each batch costs Spark 0.1 to 0.2 ms of processor time, whatever its size. Joining 10,000 rows of 100 bytes
costs 2 ms, most of it for fresh memory (measured: a quarter of a read's time, when frames of 7,500 rows were joined in
pairs), but 35,000 rows of 8 bytes, 280 KiB, cost 0.02 ms. So frames of few rows (`_SMALL_ROWS`) or few bytes
(`_SMALL_BYTES`: one or two columns of many) are joined, until they are `_ENOUGH_ROWS` and `_WORTHWHILE_BYTES`, or
`_MANY_ROWS`, or, where values are large, `_ENOUGH_BYTES`. Others are passed on as they are, and those larger than
`_MOST_ROWS` in slices, which bound what Spark holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import pyarrow as pa

from broker_runtime.contract.errors import (
    DataLossError,
    InconsistentTopicIdError,
    OffsetOutOfRangeError,
    PylogError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading.range_reader import read_range
from pyspark_log.client.reading.rows import RowAssembler
from pyspark_log.spark.log_view import QUERY_PATIENCE_S, BrokerLogView
from pyspark_log.spark.options import SourceOptions
from pyspark_log.spark.query_offsets import LogSnapshot, PlannedRange, SecondLooks, report_loss
from pyspark_log.spark.row_schema import RowLayout
from pyspark_log.spark.worker_cluster import worker_cluster
from pyspark_log.spark.worker_memory import keep_imports

_SMALL_ROWS = 2_048
_SMALL_BYTES = 128 << 10
_ENOUGH_ROWS = 8_192
_WORTHWHILE_BYTES = 256 << 10
_MANY_ROWS = 32_768
_ENOUGH_BYTES = 8 << 20
_MOST_ROWS = 65_536

_LOOKS_GONE = (UnknownTopicOrPartitionError, InconsistentTopicIdError, OffsetOutOfRangeError, DataLossError)


def read_ranges(ranges: Iterable[PlannedRange], options: SourceOptions, layout: RowLayout) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges, one range after the other, as batches of exactly the layout's Arrow schema.

    Blocks while a broker is away, at most ``request.timeout.ms`` without progress. Raises `DataLossError`, and whatever
    reading a range raises.
    """
    return _of_good_size(_rows(list(ranges), options, layout))


def _rows(ranges: list[PlannedRange], options: SourceOptions, layout: RowLayout) -> Iterator[pa.RecordBatch]:
    keep_imports()
    cluster = worker_cluster(options)
    view = BrokerLogView(options, patience_s=QUERY_PATIENCE_S, cluster=cluster)
    now = _snapshot_with(view, [each.range.partition for each in ranges if each.range.is_bound_late])
    for planned in ranges:
        yield from _RangeRows(cluster, view, planned, options, layout).batches(now)


def _snapshot_with(view: BrokerLogView, partitions: Collection[TopicPartition]) -> LogSnapshot | None:
    """The log now, for ranges of these partitions that are bound late; None: there are none."""
    if not partitions:
        return None
    now, looks = view.snapshot(), SecondLooks()
    while not now.latest.keys() >= set(partitions) and looks.again():
        now = view.snapshot()
    return now


class _RangeRows:
    """One range's rows."""

    def __init__(
        self, cluster: Cluster, view: BrokerLogView, planned: PlannedRange, options: SourceOptions, layout: RowLayout
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._planned = planned
        self._layout = layout
        self._schema = layout.arrow_schema()
        self._lose: Callable[[str], None] = lambda loss: report_loss(loss, fail=options.fail_on_data_loss)
        self._topic_id = planned.topic_id
        self._position = planned.range.start
        self._end = planned.range.end
        self._second_looks = SecondLooks()
        self._is_cache_doubtful = False  # whether records may look gone because the cached topic is out of date

    def batches(self, now: LogSnapshot | None) -> Iterator[pa.RecordBatch]:
        """``now``: the log as this task found it, for ranges that are bound late."""
        one = self._planned.range
        if now is not None and one.is_bound_late:
            if one.partition not in now.latest:
                self._lose(f"Partition {one.partition} was deleted")
                return
            self._bind(now)
        while self._position < self._end:
            before = self._position
            try:
                yield from self._read()
            except _LOOKS_GONE as error:
                if self._looks_again(before):
                    continue
                if isinstance(error, (UnknownTopicOrPartitionError, InconsistentTopicIdError)):
                    self._lose(
                        f"Offsets {self._position} to {self._end} of partition {one.partition} cannot be read: {error}"
                    )
                    return
                self._skip_what_is_gone(error)
            else:
                return

    def _looks_again(self, before: int) -> bool:
        """Whether to try again; False when there were enough tries since the position was last beyond ``before``."""
        if self._position > before:
            self._second_looks = SecondLooks()
        if not self._second_looks.again():
            return False
        self._is_cache_doubtful = True
        return True

    def _bind(self, now: LogSnapshot) -> None:
        """Start and end as they are now. A whole partition of a topic that was recreated is read from its new start."""
        one = self._planned.range
        first = now.earliest[one.partition]
        self._topic_id = now.topic_ids[one.partition.topic]
        is_whole = one.binds_start and one.binds_end
        if self._topic_id != self._planned.topic_id and not is_whole:
            self._lose(f"Topic {one.partition.topic} was recreated, offset {one.start} was the old one's")
        if self._topic_id != self._planned.topic_id and is_whole:
            self._position = first
        elif one.binds_start:
            self._position = max(self._position, first)
        if one.binds_end:
            self._end = now.latest[one.partition]

    def _read(self) -> Iterator[pa.RecordBatch]:
        topic, assembler = self._assembler()
        partition = self._planned.range.partition.partition
        frames = read_range(
            self._cluster,
            topic,
            partition,
            self._position,
            self._end,
            columns=assembler.column_ids,
            where=assembler.frame_test,
        )
        for decoded in frames:
            arrays = assembler.arrays(decoded, partition, self._position, self._end)
            self._position = max(self._position, decoded.header.next_offset)
            if arrays is not None:
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _assembler(self) -> tuple[Topic, RowAssembler]:
        """The topic with the planned id (or the one found since), in a version that has all columns."""
        one = self._planned.range
        topic = self._cluster.topic(one.partition.topic)
        is_other = topic.topic_id != self._topic_id or one.partition.partition >= len(topic.partitions)
        if is_other or self._is_cache_doubtful:
            self._is_cache_doubtful = False
            topic = self._cluster.topic(one.partition.topic, max_age=topic)
        if topic.topic_id != self._topic_id:
            raise InconsistentTopicIdError(f"topic {topic.name!r} was deleted and recreated")
        try:
            return topic, self._assembler_for(topic)
        except SchemaMismatchError:  # a column that was added since this process saw the topic
            topic = self._cluster.topic(one.partition.topic, max_age=topic)
            return topic, self._assembler_for(topic)

    def _assembler_for(self, topic: Topic) -> RowAssembler:
        return RowAssembler(topic.name, topic.schema, self._layout.columns, where=self._layout.where)

    def _skip_what_is_gone(self, error: PylogError) -> None:
        one = self._planned.range
        now = self._view.snapshot()
        if one.partition not in now.latest:
            self._lose(f"Partition {one.partition} was deleted, offsets {self._position} to {self._end} are gone")
            self._position = self._end
            return
        first, last = now.earliest[one.partition], now.latest[one.partition]
        start, end = max(self._position, first), min(self._end, last)
        if (start, end) == (self._position, self._end):
            raise error
        if start > self._position and not one.binds_start:
            self._lose(f"Offsets {self._position} to {min(start, self._end)} of partition {one.partition} are gone")
        if end < self._end:
            self._lose(f"Partition {one.partition} ends at {last}, offsets up to {self._end} were asked for")
        self._position, self._end = start, end


def _of_good_size(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    small: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        batch_bytes = batch.nbytes
        if batch.num_rows < _SMALL_ROWS or (batch_bytes <= _SMALL_BYTES and batch.num_rows < _MANY_ROWS):
            small.append(batch)
            rows += batch.num_rows
            size_bytes += batch_bytes
            if _is_enough(rows, size_bytes):
                yield _joined(small)
                small, rows, size_bytes = [], 0, 0
            continue
        if small:
            yield _joined(small)
            small, rows, size_bytes = [], 0, 0
        for first in range(0, batch.num_rows, _MOST_ROWS):
            yield batch.slice(first, _MOST_ROWS) if batch.num_rows > _MOST_ROWS else batch
    if small:
        yield _joined(small)


def _is_enough(rows: int, size_bytes: int) -> bool:
    """Whether the batch is large, or joining more would not be worth the copy."""
    if rows >= _MANY_ROWS or size_bytes >= _ENOUGH_BYTES:
        return True
    return rows >= _ENOUGH_ROWS and size_bytes >= _WORTHWHILE_BYTES


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
