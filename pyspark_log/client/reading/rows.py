"""Decoded frames as the rows that readers see, column by column.

    topics without a schema    key value topic partition offset timestamp timestampType headers     (as Kafka's source)
    topics with one            their own columns
    either                     _metadata: struct<topic partition offset timestamp timestampType headers>

Rule: nothing here is done per row. Offsets are a range; topic and partition are constants that are made once and
sliced; all other columns are the frame's own memory. The broker is asked only for the columns that are needed
(`column_ids`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from broker_runtime.contract.arrays import number_array, repeated_text
from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.frame import HEADERS_COLUMN_ID, HEADERS_TYPE, TIMESTAMP_COLUMN_ID, DecodedFrame
from broker_runtime.contract.predicate import METADATA_COLUMNS, Predicate, matching, parse_predicate
from broker_runtime.contract.predicate.frames import METADATA_IDS, Step, frame_test
from broker_runtime.contract.predicate.tree import renamed
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.suggestion import suggestion

METADATA = "_metadata"
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

_POSITION_FIELDS = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP_TYPE),
    pa.field("timestampType", pa.int32()),
)
_HEADERS_FIELD = pa.field("headers", HEADERS_TYPE)
_METADATA_FIELD = pa.field(METADATA, pa.struct([*_POSITION_FIELDS, _HEADERS_FIELD]), nullable=False)
_KAFKA_FIELDS = {
    field.name: field
    for field in (pa.field("key", pa.binary()), pa.field("value", pa.binary()), *_POSITION_FIELDS, _HEADERS_FIELD)
}
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of a topic without a schema if none are chosen."""


def topic_predicate(text: str, schema: TopicSchema) -> Predicate:
    """A predicate over a topic's columns and ``_metadata.…``. Raises `InvalidPredicateError`."""
    if schema.is_typed:
        return parse_predicate(text, {field.name: field.type for field in schema.arrow})
    predicate = parse_predicate(text, {name: _KAFKA_FIELDS[name].type for name in KAFKA_COLUMNS})
    return renamed(predicate, {name.removeprefix(f"{METADATA}."): name for name in METADATA_COLUMNS})


class RowFilter:
    """Which rows of one topic match a predicate. For one thread."""

    def __init__(self, topic: str, schema: TopicSchema, where: Predicate) -> None:
        self._where = where
        self._constants = _Constants(topic)
        own = [name for name in where.columns if name in schema.arrow.names and name not in METADATA_COLUMNS]
        self._own = {name: schema.column_ids([name])[0] for name in own}
        ids = set(self._own.values())
        if f"{METADATA}.timestamp" in where.columns:
            ids.add(TIMESTAMP_COLUMN_ID)
        self.column_ids = frozenset(ids)
        """The columns that it looks at."""
        self.frame_test = frame_test(where, self._id_for_brokers)
        """As brokers take it, to leave out frames in which no row can match."""

    def matches(self, decoded: DecodedFrame, partition: int, first: int, count: int) -> pa.Array:
        """For each of ``count`` rows of a frame, from the row ``first`` on, whether it matches; no nulls."""
        rows = _Rows(decoded, self._constants, partition, first, count)
        return matching(self._where, lambda name: self._column(rows, name), count)

    def _column(self, rows: _Rows, name: str) -> pa.Array:
        return rows.own(name) if name in self._own else rows.kafka(name.removeprefix(f"{METADATA}."))

    def _id_for_brokers(self, name: str) -> int | None:
        return self._own.get(name, METADATA_IDS.get(name))


class RowAssembler:
    """Makes rows of chosen columns from frames of one topic. For one thread."""

    def __init__(
        self, topic: str, schema: TopicSchema, names: Sequence[str] | None = None, *, where: Predicate | None = None
    ) -> None:
        """``names``: columns in the order wanted, `METADATA` among them or not; None: all (`KAFKA_COLUMNS`).
        ``where``: only the rows that match; its columns need not be among ``names``.

        Raises `SchemaMismatchError` for an unknown column.
        """
        self.topic = topic
        self._filter = None if where is None else RowFilter(topic, schema, where)
        if names is None:
            names = schema.arrow.names if schema.is_typed else KAFKA_COLUMNS
        fields: list[pa.Field] = []
        for name in names:
            if name == METADATA:
                fields.append(_METADATA_FIELD)
            elif schema.is_typed:
                fields.append(schema.arrow.field(schema.column_ids([name])[0]))
            elif name in _KAFKA_FIELDS:
                fields.append(_KAFKA_FIELDS[name])
            else:
                raise SchemaMismatchError(f"no column {name!r}; {suggestion(name, _KAFKA_FIELDS)}")
        self.arrow_schema = pa.schema(fields)
        self._own = frozenset(schema.arrow.names)
        chosen = frozenset(names)
        ids = set(schema.column_ids([name for name in dict.fromkeys(names) if name in self._own and name != METADATA]))
        if METADATA in chosen or (not schema.is_typed and "timestamp" in chosen):
            ids.add(TIMESTAMP_COLUMN_ID)
        if METADATA in chosen or (not schema.is_typed and "headers" in chosen):
            ids.add(HEADERS_COLUMN_ID)
        self.column_ids: tuple[int, ...] = tuple(sorted(ids if self._filter is None else ids | self._filter.column_ids))
        """The columns to request from the broker, and to decode."""
        self._constants = _Constants(topic)

    @property
    def frame_test(self) -> tuple[Step, ...] | None:
        """See `RowFilter`; None: all rows are wanted."""
        return None if self._filter is None else self._filter.frame_test

    def batch(self, decoded: DecodedFrame, partition: int, start: int, end: int) -> pa.RecordBatch | None:
        """The frame's rows with offsets in ``[start, end)``, or None if there are none."""
        arrays = self.arrays(decoded, partition, start, end)
        return None if arrays is None else pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def arrays(self, decoded: DecodedFrame, partition: int, start: int, end: int) -> list[pa.Array] | None:
        """As `batch`, but as the columns of `arrow_schema`, for callers with a schema of their own."""
        base_offset = decoded.header.base_offset
        first = max(start - base_offset, 0)
        stop = min(end - base_offset, decoded.header.record_count)
        if first >= stop:
            return None
        rows = _Rows(decoded, self._constants, partition, first, stop - first)
        if self._filter is None:
            return [self._column(rows, name) for name in self.arrow_schema.names]
        matches = self._filter.matches(decoded, partition, first, stop - first)
        count = matches.true_count
        if count == 0:
            return None
        arrays = [self._column(rows, name) for name in self.arrow_schema.names]
        return arrays if count == stop - first else [array.filter(matches) for array in arrays]

    def _column(self, rows: _Rows, name: str) -> pa.Array:
        if name in self._own:
            return rows.own(name)
        return rows.metadata() if name == METADATA else rows.kafka(name)


class _Rows:
    """Rows ``[first, first + count)`` of one frame."""

    def __init__(self, decoded: DecodedFrame, constants: _Constants, partition: int, first: int, count: int) -> None:
        self._decoded = decoded
        self._constants = constants
        self._partition = partition
        self._first = first
        self._count = count

    def own(self, name: str) -> pa.Array:
        return self._cut(self._decoded.batch.column(name))

    def kafka(self, name: str) -> pa.Array:
        if name == "topic":
            return self._constants.topic_column(self._count)
        if name == "partition":
            return self._constants.number_column(self._partition, self._count)
        if name == "timestampType":
            return self._constants.number_column(self._decoded.header.timestamp_type, self._count)
        if name == "offset":
            start = self._decoded.header.base_offset + self._first
            return number_array(np.arange(start, start + self._count, dtype=np.int64))
        if name == "timestamp":
            return self._cut(self._decoded.timestamp_column())
        assert name == "headers"
        headers = self._decoded.headers
        return pa.nulls(self._count, HEADERS_TYPE) if headers is None else self._cut(headers)

    def metadata(self) -> pa.Array:
        fields = list(_METADATA_FIELD.type)
        return pa.StructArray.from_arrays([self.kafka(field.name) for field in fields], fields=fields)

    def _cut(self, column: pa.Array) -> pa.Array:
        if self._first == 0 and self._count == len(column):
            return column
        return column.slice(self._first, self._count)


class _Constants:
    """Columns with the same value in every row: made once, as long as needed, then sliced."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._topics: pa.Array = pa.nulls(0, pa.string())
        self._numbers: dict[int, pa.Array] = {}

    def topic_column(self, rows: int) -> pa.Array:
        if len(self._topics) < rows:
            self._topics = repeated_text(self._topic, rows)
        return self._topics.slice(0, rows)

    def number_column(self, number: int, rows: int) -> pa.Array:
        column = self._numbers.get(number)
        if column is None or len(column) < rows:
            column = self._numbers[number] = number_array(np.full(rows, number, np.int32))
        return column.slice(0, rows)
