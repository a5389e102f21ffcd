"""``spark.read.format("pylog")``: the ranges of a batch read.

Spark plans a batch read once per DataFrame and runs the plan as often as the DataFrame is used. So ranges that begin
at earliest or end at latest say so, and the tasks find what that is when they run: a DataFrame that is used again sees
what came since, as with Kafka's source. (A partition that was added since needs a new `load()`.)
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_log.spark.log_view import BrokerLogView, load_patience_s
from pyspark_log.spark.offsets import OffsetLimit, Position, SourceOffset, expand_limit
from pyspark_log.spark.options import SourceOptions
from pyspark_log.spark.planning import divide, plan_batch, share
from pyspark_log.spark.query_offsets import LogSnapshot, PlannedRange, refuse_missing
from pyspark_log.spark.range_reading import read_ranges
from pyspark_log.spark.row_schema import RowLayout


class PylogBatchReader(DataSourceReader):
    """Holds settings only: it is pickled to the executors."""

    def __init__(self, options: SourceOptions, layout: RowLayout) -> None:
        options.batch_limits()
        self._options = options
        self._layout = layout

    def partitions(self) -> list[InputPartition]:
        """One input partition per range or group of small ranges; its value is a tuple of `PlannedRange`."""
        options = self._options
        starting, ending = options.batch_limits()
        view = BrokerLogView(options, patience_s=load_patience_s(options))
        try:
            snapshot = view.snapshot()
            refuse_missing(snapshot)
            start = _expand("startingOffsets", starting, snapshot, view)
            end = _expand("endingOffsets", ending, snapshot, view)
        finally:
            view.close()
        ranges = divide(plan_batch(start, end, snapshot.earliest, snapshot.latest), options.min_partitions)
        shared = share(ranges, coalesce_rows=options.coalesce_rows, min_partitions=options.min_partitions)
        return [
            InputPartition(tuple(PlannedRange(one, snapshot.topic_ids[one.partition.topic]) for one in group))
            for group in shared
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of an input partition. None as value is Spark's own for "there are no partitions"."""
        return read_ranges(partition.value or (), self._options, self._layout)


def _expand(option: str, limit: OffsetLimit, snapshot: LogSnapshot, view: BrokerLogView) -> SourceOffset:
    committed = view.committed(snapshot.latest) if limit is Position.COMMITTED else {}
    return expand_limit(option, limit, snapshot.latest, committed)
