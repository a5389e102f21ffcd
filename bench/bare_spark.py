"""The ceilings in Spark: a Python source that only yields batches, and a Python sink that only drops them.

Rule: nothing here costs anything that any Python data source does not cost. Batches are made once per worker process
and yielded again and again; offsets are numbers. What pylog loses against these is pylog's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bench import data

SOURCE = "bench_bare_source"
SINK = "bench_dropping_sink"
PARTITIONS = 2

_MAKERS = {
    "kafka": data.kafka_batch,
    "typed": data.typed_batch,
    "wide": data.wide_batch,
    "one": data.one_column_batch,
}
_DDL = {
    "kafka": "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int",
    "typed": "carrier string, flight int, distance bigint, delay double, at timestamp",
    "wide": ", ".join(f"c{position:02} {'bigint' if position % 2 else 'double'}" for position in range(20)),
    "one": f"{data.WIDE_COLUMN} bigint",
}
_prepared: dict[tuple[str, int], pa.RecordBatch] = {}


class _Rows(InputPartition):
    """The number of rows that one task yields."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


def _split(rows: int) -> list[InputPartition]:
    if rows < PARTITIONS:
        return [_Rows(rows)]
    each = rows // PARTITIONS
    return [_Rows(each)] * (PARTITIONS - 1) + [_Rows(rows - each * (PARTITIONS - 1))]


def _yield(shape: str, batch_rows: int, rows: int) -> Iterator[pa.RecordBatch]:
    batch = _prepared.get((shape, batch_rows))
    if batch is None:
        batch = _prepared[shape, batch_rows] = _MAKERS[shape](batch_rows)
    for _ in range(rows // batch_rows):
        yield batch
    if rows % batch_rows:
        yield batch.slice(0, rows % batch_rows)


class BareSource(DataSource):
    """Options: ``shape`` (a key of `_MAKERS`), ``rows`` in all, ``batchRows`` per batch, ``rowsPerTrigger``."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> str:
        return _DDL[self.options["shape"]]

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BareReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _BareStreamReader(self.options)


class _BareReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.shape, self.rows, self.batch_rows = options["shape"], int(options["rows"]), int(options["batchRows"])

    def partitions(self) -> list[InputPartition]:
        return _split(self.rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _yield(self.shape, self.batch_rows, partition.rows)


class _BareStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self.shape, self.rows, self.batch_rows = options["shape"], int(options["rows"]), int(options["batchRows"])
        self.rows_per_trigger = int(options.get("rowsPerTrigger", "0"))

    def initialOffset(self) -> dict:  # noqa: N802
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.rows_per_trigger) if self.rows_per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """No more data will ever arrive."""

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.rows
        return {"rows": min(self.rows, start["rows"] + most)}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        return _split(end["rows"] - start["rows"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _yield(self.shape, self.batch_rows, partition.rows)

    def commit(self, end: dict) -> None:
        """Nothing to remember."""

    def stop(self) -> None:
        """Nothing to close."""


class DroppingSink(DataSource):
    """Counts the rows of its Arrow batches and forgets them."""

    @classmethod
    def name(cls) -> str:
        return SINK

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _DroppingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _DroppingStreamWriter()


def _drop(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
    return WriterCommitMessage()


class _DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _drop(iterator)


class _DroppingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _drop(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to keep."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to undo."""
