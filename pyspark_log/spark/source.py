"""What Spark looks up as ``format("pylog")``.

Spark finds `DefaultSource` through `pyspark_log` (it imports every installed top-level package named ``pyspark_*``);
where it does not, `pyspark_log.register(spark)` registers it. Spark makes one `DefaultSource` per `load`, `save` or
`start`, before it says whether it reads or writes, so options are sorted by the methods that know.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
from pyspark.sql.types import StructType

from broker_runtime.contract.errors import OptionError
from pyspark_log.spark.log_view import BrokerLogView, load_patience_s
from pyspark_log.spark.offsets import SpecificOffsets
from pyspark_log.spark.options import SinkOptions, SourceOptions, parse_sink_options, parse_source_options
from pyspark_log.spark.plain_errors import plain_errors
from pyspark_log.spark.planning import plan_batch
from pyspark_log.spark.query_offsets import find_end, find_start, input_partitions, narrowed, refuse_missing
from pyspark_log.spark.range_reading import read_ranges
from pyspark_log.spark.row_schema import RowLayout, lay_out_rows
from pyspark_log.spark.sink import PylogBatchWriter, PylogStreamWriter
from pyspark_log.spark.stream_reader import PylogStreamReader
from pyspark_log.spark.task_secrets import TaskPartition, task_token, with_token, without_password, without_secrets


class DefaultSource(DataSource):
    """Reads and writes topics of a pylog cluster."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._layout: RowLayout | None = None
        self._is_planned = False

    def __getstate__(self) -> dict[str, Any]:
        """Once there is a reader or a writer, Spark sends this along to the tasks, which use its name alone."""
        if not self._is_planned:
            return dict(self.__dict__)
        return {**self.__dict__, "options": without_secrets(self.options)}

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pylog"

    @plain_errors()
    def schema(self) -> StructType:
        """The rows' schema, asked from the brokers at ``load()``. Raises `OptionError` for wrong options, and
        `UnknownTopicOrPartitionError` for topics that do not exist."""
        self._layout = _find_layout(parse_source_options(self.options))
        return self._layout.schema

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = self._parsed_for_reading()
        return PylogBatchReader(options, self._layout_of(options, schema))

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        options = self._parsed_for_reading()
        return PylogStreamReader(options, self._layout_of(options, schema))

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        return PylogBatchWriter(self._parsed_for_writing(), schema, overwrite)

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:
        """For ``df.writeStream``. ``overwrite`` is Spark's way to say "complete mode": each result is appended, as
        with Kafka's sink."""
        return PylogStreamWriter(self._parsed_for_writing(), schema)

    def _parsed_for_reading(self) -> SourceOptions:
        self._is_planned = True
        return parse_source_options(self.options)

    def _parsed_for_writing(self) -> SinkOptions:
        self._is_planned = True
        return parse_sink_options(self.options)

    def _layout_of(self, options: SourceOptions, schema: StructType) -> RowLayout:
        layout = self._layout or _find_layout(options)
        if layout.schema != schema:
            raise OptionError(
                "pylog source has a fixed schema and cannot be set with a custom one. Leave out .schema(…); choose "
                f"columns with .option('columns', …). The rows have {layout.schema.simpleString()}"
            )
        return layout


def _find_layout(options: SourceOptions) -> RowLayout:
    view = BrokerLogView(options, patience_s=load_patience_s(options))
    try:
        return lay_out_rows(view.schemas(), options)
    finally:
        view.close()


class PylogBatchReader(DataSourceReader):
    """``spark.read.format("pylog")``. Holds settings only: it is pickled to the executors.

    Spark plans a batch read once per DataFrame and runs the plan as often as the DataFrame is used. So ranges that
    begin at earliest or end at latest say so, and the tasks look up the offsets when they run: a DataFrame that is used
    again sees what came since, as with Kafka's source. (A partition that was added since needs a new `load()`.)
    """

    def __init__(self, options: SourceOptions, layout: RowLayout) -> None:
        options.batch_limits()
        self._options = options
        self._layout = layout

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": without_password(self._options)}

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """One input partition per range or group of small ranges; its value is a tuple of `PlannedRange`."""
        options = self._options
        starting, ending = options.batch_limits()
        view = BrokerLogView(options, patience_s=load_patience_s(options))
        try:
            snapshot = view.snapshot()
            refuse_missing(snapshot)
            start, snapshot = find_start(options, starting, snapshot, view)
            end, snapshot = find_end(ending, snapshot, view)
            is_written = isinstance(starting, SpecificOffsets) and isinstance(ending, SpecificOffsets)
            ranges = plan_batch(start, end, snapshot.earliest, snapshot.latest, is_written=is_written)
            where = self._layout.where
            if where is not None:
                ranges = narrowed(ranges, where, snapshot, view)
        finally:
            view.close()
        token = task_token(options)
        return [TaskPartition(group, token) for group in input_partitions(ranges, options, snapshot, where)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of an input partition. None as value is Spark's own for "there are no partitions"."""
        with plain_errors():
            options = with_token(self._options, getattr(partition, "token", None))
            yield from read_ranges(partition.value or (), options, self._layout)
