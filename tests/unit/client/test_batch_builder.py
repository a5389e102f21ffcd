"""The records of a batch, and the frame they are encoded into."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import InvalidTimestampError, SchemaMismatchError
from broker_runtime.contract.frame import DecodedFrame, decode_frame
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema
from pyspark_log.client.producer.batch_builder import BatchBuilder, filled, headers_bytes, text_bytes
from pyspark_log.client.producer.delivery import Delivery

BASE_MS = 1_700_000_000_000
TYPED = TopicSchema(schema_id=0, arrow=pa.schema([("a", pa.int8()), ("b", pa.string())]))


def builder(
    values: list[Any],
    *,
    schema: TopicSchema = UNTYPED,
    keys: Any = None,
    timestamps: Any = None,
    headers: Any = None,
) -> BatchBuilder:
    return BatchBuilder(Delivery("t", 0, base_timestamp_ms=BASE_MS), schema, values, keys, timestamps, headers)


def decoded(records: BatchBuilder) -> DecodedFrame:
    return decode_frame(records.encode("none"), SchemaHistory([records.schema]))


@pytest.mark.parametrize("values", [[b""], [b"a", b"", b"ccc"], [b"a", None, b""], [None, None]])
def test_values_arrive_unchanged_nulls_and_empty_ones_too(values: list[bytes | None]) -> None:
    """W1: a null is no empty value; a batch without keys has no key column."""
    frame = decoded(builder(list(values)))
    assert frame.batch.column("value").to_pylist() == values
    assert frame.batch.column("key").to_pylist() == [None] * len(values)
    assert (frame.constant_timestamp_ms, frame.headers) == (BASE_MS, None)


def test_field_that_only_some_records_have_is_null_for_the_others() -> None:
    """W1: keys, times and headers are lists that end with the last record that had one."""
    frame = decoded(
        builder(
            [b"1", b"2", b"3", b"4"],
            keys=[None, b"k"],
            timestamps=[None, 7, None],
            headers=[None, (("h", b"1"), ("h", None)), ()],
        )
    )
    assert frame.batch.column("key").to_pylist() == [None, b"k", None, None]
    assert frame.timestamps is not None
    assert frame.timestamps.to_pylist() == [BASE_MS, 7, BASE_MS, BASE_MS]
    assert frame.headers is not None
    assert frame.headers.to_pylist() == [
        None, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [1 << 63, "noon"])
def test_invalid_timestamp_is_refused_as_one(wrong: object) -> None:
    """The error says what a timestamp is, not what Arrow made of it."""
    with pytest.raises(InvalidTimestampError, match="a timestamp is ms since the epoch"):
        builder([b"1"], timestamps=[wrong]).encode("none")


def test_rows_checked_before_columns_were_added_have_nulls_there() -> None:
    """W5: a schema may grow between `send` and the encoding."""
    frame = decoded(builder([(1,), (2, "x"), (None, None)], schema=TYPED))
    assert frame.batch.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": None}]


@pytest.mark.parametrize(("row", "said"), [((128, "x"), "column 'a' is int8"), ((1, 2), "column 'b' is string")])
def test_value_that_a_column_cannot_hold_is_named_with_it(row: tuple[Any, ...], said: str) -> None:
    """W5: the row was not checked before."""
    with pytest.raises(SchemaMismatchError, match=said):
        builder([(1, "x"), row], schema=TYPED).encode("none")


def test_codec_is_the_one_that_was_chosen() -> None:
    """W9: `compression.type` chooses the codec."""
    records = [b"x" * 5_000]
    assert len(builder(list(records)).encode("none")) > 5_000 > len(builder(list(records)).encode("zstd"))


def test_sizes_count_bytes_and_not_characters() -> None:
    """`buffer.memory` counts bytes; a lone surrogate, which no header may contain, is refused elsewhere."""
    assert [text_bytes(text) for text in ("", "abc", "ü", "日本", "\ud800")] == [0, 3, 2, 6, 3]
    assert headers_bytes(()) == 0
    assert headers_bytes((("ü", b"12"), ("b", None))) == 16 + 2 + 2 + 16 + 1


def test_column_is_filled_to_the_count_in_place() -> None:
    """The list itself continues to grow."""
    column = [b"a"]
    assert filled(column, 3) is column
    assert filled(column, 3) == [b"a", None, None]
