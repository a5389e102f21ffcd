"""Rows that readers get, built from decoded frames column by column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import CorruptRecordError, SchemaMismatchError
from broker_runtime.contract.frame import (
    HEADERS_COLUMN_ID,
    HEADERS_TYPE,
    STAMP_BYTES,
    TIMESTAMP_COLUMN_ID,
    DecodedFrame,
    decode_frame,
    encode_frame,
    stamp,
    verify_frame,
)
from broker_runtime.contract.predicate.frames import OFFSET_ID
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema
from pyspark_log.client.reading.rows import KAFKA_COLUMNS, METADATA, RowAssembler, RowFilter, topic_predicate

TYPED = TopicSchema(schema_id=0, arrow=pa.schema([("carrier", pa.string()), ("topic", pa.int32())]))
HEADERS = pa.array([[{"key": "h", "value": b"1"}], None, None], HEADERS_TYPE)


def frame(
    schema: TopicSchema = UNTYPED,
    *,
    base_offset: int = 100,
    timestamps: Any = (5, 6, 7),
    headers: pa.Array | None = None,
    append_time: bool = False,
    columns: tuple[int, ...] | None = None,
) -> DecodedFrame:
    """Three records as a broker stores them."""
    if schema.is_typed:
        batch = pa.record_batch({"carrier": ["AA", "UA", None], "topic": pa.array([1, 2, 3], pa.int32())})
    else:
        batch = pa.record_batch({"key": pa.array([b"k", None, b"m"]), "value": pa.array([b"1", b"2", None])})
    times = timestamps if isinstance(timestamps, int) else pa.array(timestamps, pa.int64())
    data = encode_frame(batch, schema, timestamps=times, headers=headers)
    head = stamp(
        verify_frame(data), base_offset=base_offset, leader_epoch=0, append_time_ms=99, high_watermark=0,
        topic_id=bytes(16), partition=0, log_append_time=append_time,
    )  # fmt: skip
    stored = bytes(head) + bytes(memoryview(data)[STAMP_BYTES:])
    return decode_frame(stored, SchemaHistory([schema]), columns=columns)


def rows(assembler: RowAssembler, decoded: DecodedFrame, start: int = 0, end: int = 1 << 40) -> list[dict[str, Any]]:
    batch = assembler.batch(decoded, 4, start, end)
    return [] if batch is None else batch.to_pylist()


def test_untyped_topic_gives_kafkas_columns() -> None:
    """S2: columns have Kafka's order and types; `timestampType` is 0 for the producer's and 1 for the broker's time."""
    assembler = RowAssembler("t", UNTYPED)
    assert tuple(assembler.arrow_schema.names) == KAFKA_COLUMNS
    first, *_ = found = rows(assembler, frame())
    assert [(row["key"], row["value"], row["offset"]) for row in found] == [
        (b"k", b"1", 100), (None, b"2", 101), (b"m", None, 102),
    ]  # fmt: skip
    assert (first["topic"], first["partition"], first["timestampType"]) == ("t", 4, 0)
    assert [row["timestamp"].timestamp() * 1000 for row in found] == pytest.approx([5, 6, 7])


@pytest.mark.parametrize("timestamps", [5, (5, 6, 7)])
def test_brokers_time_is_that_of_every_row(timestamps: Any) -> None:
    """W1: with `LogAppendTime` the producer's times are not shown."""
    found = rows(RowAssembler("t", UNTYPED), frame(timestamps=timestamps, append_time=True))
    assert [(row["timestamp"].timestamp() * 1000, row["timestampType"]) for row in found] == [(99.0, 1)] * 3


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [
        (0, 1 << 40, [100, 101, 102]), (100, 103, [100, 101, 102]), (101, 1 << 40, [101, 102]), (0, 101, [100]),
        (101, 102, [101]), (103, 200, []), (0, 100, []), (101, 101, []), (102, 101, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("timestamps", [5, (5, 6, 7)])
def test_rows_are_those_of_the_range(start: int, end: int, offsets: list[int], timestamps: Any) -> None:
    """A frame begins before a range or ends after it; each column is cut at the same places."""
    names = ["offset", "value", "key", "timestamp", "topic", "partition", "headers", METADATA]
    decoded = frame(timestamps=timestamps, headers=HEADERS)
    whole = {row["offset"]: row for row in rows(RowAssembler("t", UNTYPED, names), decoded)}
    batch = RowAssembler("t", UNTYPED, names).batch(decoded, 4, start, end)
    assert (batch is None) == (offsets == [])
    found = [] if batch is None else batch.to_pylist()
    assert [row["offset"] for row in found] == offsets
    assert found == [whole[offset] for offset in offsets]
    for row in found:
        assert row[METADATA] == {**{name: row[name] for name in row[METADATA] if name in row}, "timestampType": 0}


def test_typed_topic_gives_its_own_columns_even_with_a_name_of_kafkas() -> None:
    """S3: `topic` is the schema's column; a record's position is in `_metadata` alone."""
    assert rows(RowAssembler("t", TYPED), frame(TYPED))[0] == {"carrier": "AA", "topic": 1}
    (row, *_) = rows(RowAssembler("t", TYPED, ["topic", METADATA]), frame(TYPED))
    assert (row["topic"], row[METADATA]["topic"], row[METADATA]["offset"]) == (1, "t", 100)


@pytest.mark.parametrize(
    ("schema", "names", "asked"),
    [
        (UNTYPED, ["topic", "offset"], ()),
        (UNTYPED, ["value"], (1,)),
        (UNTYPED, ["timestamp"], (TIMESTAMP_COLUMN_ID,)),
        (UNTYPED, ["headers", "key"], (0, HEADERS_COLUMN_ID)),
        (UNTYPED, [METADATA], (TIMESTAMP_COLUMN_ID, HEADERS_COLUMN_ID)),
        (TYPED, ["topic"], (1,)),
        (TYPED, [METADATA, "carrier"], (0, TIMESTAMP_COLUMN_ID, HEADERS_COLUMN_ID)),
        (TYPED, [], ()),
    ],
)
def test_broker_is_asked_only_for_needed_columns(schema: TopicSchema, names: list[str], asked: tuple[int, ...]) -> None:
    """S6: unselected columns are not read, and the requested ones suffice."""
    assembler = RowAssembler("t", schema, names)
    assert assembler.column_ids == tuple(sorted(asked))
    decoded = frame(schema, headers=HEADERS, columns=assembler.column_ids)
    assert rows(assembler, decoded) == rows(RowAssembler("t", schema, names), frame(schema, headers=HEADERS))


@pytest.mark.parametrize(("schema", "name"), [(UNTYPED, "valeu"), (TYPED, "carier"), (TYPED, "timestamp")])
def test_unknown_column_is_refused(schema: TopicSchema, name: str) -> None:
    """The error suggests the closest name."""
    with pytest.raises(SchemaMismatchError, match=f"no column '{name}'"):
        RowAssembler("t", schema, [name])


def test_headers_of_a_frame_without_any_are_null() -> None:
    """The null column is as long as the others."""
    assert [row["headers"] for row in rows(RowAssembler("t", UNTYPED, ["headers"]), frame(), 101)] == [None, None]


def test_constant_columns_are_built_once_and_reused_for_other_frames() -> None:
    """A longer frame, another partition and a shorter range follow each other."""
    assembler = RowAssembler("t", UNTYPED, ["topic", "partition"])
    for partition, start, count in ((1, 102, 1), (1, 100, 3), (2, 101, 2), (1, 101, 2)):
        batch = assembler.batch(frame(), partition, start, 200)
        assert batch is not None
        assert batch.to_pylist() == [{"topic": "t", "partition": partition}] * count


def test_rows_are_the_frames_own_memory() -> None:
    """Nothing is copied if a frame is used whole."""
    decoded = frame()
    (values,) = RowAssembler("t", UNTYPED, ["value"]).arrays(decoded, 0, 0, 1 << 40) or []
    assert values.buffers()[2].address == decoded.batch.column("value").buffers()[2].address


@pytest.mark.parametrize("timestamps", [2**62, (5, 6, 2**62)])
@pytest.mark.parametrize("column", ["timestamp", METADATA])
def test_time_that_microseconds_cannot_express_is_an_error(timestamps: Any, column: str) -> None:
    """Milliseconds reach further than Spark's microseconds. A number that wraps around would be a wrong time."""
    with pytest.raises(CorruptRecordError, match="out of range"):
        rows(RowAssembler("t", UNTYPED, [column]), frame(timestamps=timestamps))


def test_own_column_never_shadows_what_a_record_is() -> None:
    """S8: `_metadata.offset` is the offset, whatever columns a topic has."""
    schema = TopicSchema(schema_id=0, arrow=pa.schema([("_metadata.offset", pa.int64()), ("topic", pa.int32())]))
    row_filter = RowFilter("t", schema, topic_predicate("_metadata.offset = 101", schema))
    assert row_filter.column_ids == frozenset()
    assert [step.column for step in row_filter.frame_test] == [OFFSET_ID]
    matches = row_filter.matches(frame(TYPED), 0, 0, 3)
    assert matches.to_pylist() == [False, True, False]
