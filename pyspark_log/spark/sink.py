"""``df.write`` and ``df.writeStream`` with ``format("pylog")``: rows go out as Arrow batches, at least once.

A task is done when all in-sync replicas have its rows. An acknowledged row is never lost. Rows of a failed task may be
in the log, and a task or micro-batch that is run again writes its rows again.

Rule: everything that can be known from schema and options is checked when the writer is made, on the driver, before
a row is sent; rows stay Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from broker_runtime.contract.errors import OverwriteRefusedError, SchemaMismatchError
from broker_runtime.contract.frame import HEADERS_TYPE
from broker_runtime.contract.schema import cast_to_topic
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.delivery import BatchFuture
from pyspark_log.client.producer.producer import Producer
from pyspark_log.client.producer.record_batches import joined
from pyspark_log.spark.options import SinkOptions
from pyspark_log.spark.sink_columns import RecordColumns, find_record_columns

_SEND_BYTES = 4 << 20  # Spark's batches, of 10,000 rows at most, are joined until frames of a good size can be made
"""How much is handed to the producer at a time: a full frame (1 MiB) for each of a few partitions."""


@dataclass
class RowsWritten(WriterCommitMessage):
    """What a task reports to the driver."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """How a DataFrame's rows become records. ``columns`` None: a typed topic, columns by name."""

    options: SinkOptions
    columns: RecordColumns | None


def plan_sink(options: SinkOptions, schema: StructType) -> SinkPlan:
    """Checks the topic, if the option names it, and the schema. Raises `UnknownTopicOrPartitionError`,
    `SchemaMismatchError`, and what asking a broker raises."""
    if options.topic is None:
        return SinkPlan(options=options, columns=find_record_columns(schema, None))
    cluster = Cluster.from_settings(options.settings())
    try:
        topic = cluster.topic(options.topic)
    finally:
        cluster.close()
    if not topic.is_typed:
        return SinkPlan(options=options, columns=find_record_columns(schema, options.topic))
    empty = to_arrow_schema(schema, timezone="UTC").empty_table()
    cast_to_topic(empty, topic.schema)
    return SinkPlan(options=options, columns=None)


class PylogBatchWriter(DataSourceArrowWriter):
    """For ``df.write``; pickled to the executors."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__()
        if overwrite:
            raise OverwriteRefusedError('A log only appends. Use .mode("append"), or delete the topic first.')
        self._plan = plan_sink(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows and waits until they are acknowledged."""
        return write_rows(self._plan, iterator)


class PylogStreamWriter(DataSourceStreamArrowWriter):
    """For ``df.writeStream``; Spark makes one per micro-batch for the tasks, and one to commit."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._plan = plan_sink(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows and waits until they are acknowledged."""
        return write_rows(self._plan, iterator)


def write_rows(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> RowsWritten:
    """Sends all rows and waits for their acknowledgements. Raises the first delivery error."""
    tables = joined(batches, _SEND_BYTES)
    first = next(tables, None)
    if first is None:
        return RowsWritten(0)
    rows = 0
    sent: list[BatchFuture] = []
    # A task that runs again writes again, so idempotence would not make it exactly-once; and every partition's leader
    # would remember a producer for each task of a day.
    settings = {**plan.options.client, "enable.idempotence": False}
    with Producer(config=settings) as producer:
        for table in chain((first,), tables):
            rows += table.num_rows
            for topic, partition, records in _records(plan, table):
                sent.append(producer.send_batch(topic, records, partition=partition))
            sent = [future for future in sent if not _is_delivered(future)]
        producer.flush()
        for future in sent:
            future.result(0)
    return RowsWritten(rows)


def _is_delivered(future: BatchFuture) -> bool:
    """Whether it was acknowledged. Raises its error at once, so that a task fails early."""
    if not future.done():
        return False
    future.result(0)
    return True


def _records(plan: SinkPlan, table: pa.Table) -> Iterator[tuple[str, int | None, pa.Table]]:
    """The rows by topic and partition (None: the partitioner's), in their order."""
    columns = plan.columns
    if columns is None:
        assert plan.options.topic is not None
        yield plan.options.topic, None, table
        return
    records = _record_table(columns, table)
    partitions = None if columns.partition is None else table.column(columns.partition)
    if columns.topic is None:
        assert plan.options.topic is not None
        for partition, part in _by_value(partitions, records):
            yield plan.options.topic, partition, part
        return
    topics = table.column(columns.topic)
    if topics.null_count:
        raise SchemaMismatchError(
            "null topic present in the data. Give every row a topic, or use the topic option for all of them."
        )
    for topic, rows in _groups(topics):
        part_partitions = None if partitions is None else _take(partitions, rows)
        for partition, part in _by_value(part_partitions, _take(records, rows)):
            yield topic, partition, part


def _by_value(partitions: pa.ChunkedArray | None, records: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
    if partitions is None or partitions.null_count == len(partitions):
        yield None, records
        return
    for partition, rows in _groups(partitions):
        yield partition, _take(records, rows)


def _groups(column: pa.ChunkedArray) -> Iterator[tuple[Any, pa.Array | None]]:
    """Each distinct value with the positions of its rows, in order; None for "all rows"."""
    values = pc.unique(column)
    for value in values:
        if len(values) == 1:
            yield value.as_py(), None
        else:
            is_here = pc.is_null(column) if not value.is_valid else pc.equal(column, value)
            yield value.as_py(), pc.indices_nonzero(is_here)


def _take(data: Any, rows: pa.Array | None) -> Any:
    return data if rows is None else data.take(rows)


def _record_table(columns: RecordColumns, table: pa.Table) -> pa.Table:
    parts = {"value": table.column(columns.value).cast(pa.binary())}
    if columns.key is not None:
        parts["key"] = table.column(columns.key).cast(pa.binary())
    if columns.headers is not None:
        parts["headers"] = table.column(columns.headers).cast(HEADERS_TYPE)
    return pa.table(parts)
