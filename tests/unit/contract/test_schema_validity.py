"""A value that is none of its type is refused where columns are written: its readers would all stop at it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import CorruptRecordError, SchemaMismatchError
from broker_runtime.contract.frame import decode_frame, encode_frame
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema, cast_to_topic, parse_schema
from broker_runtime.contract.schema.validity import find_bad_value

DAY_NS = 86_400 * 10**9
GOOD_TIMES = pa.array([0, DAY_NS - 1, None]).view(pa.time64("ns"))
BAD_TIMES = pa.array([0, DAY_NS, None, -1]).view(pa.time64("ns"))
BAD_DECIMALS = pa.Array.from_buffers(pa.decimal128(5, 2), 2, pa.array([1, 10**20], pa.decimal128(38, 0)).buffers())
BAD_TEXT = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())
MAP = pa.map_(pa.string(), pa.time64("ns"))

CASES: dict[str, tuple[str, pa.Array, str]] = {
    "time": ("time", BAD_TIMES, r"'c' is time64\[ns\], not 24:00:00 \(row 1\); it takes 00:00:00 to 23:59:59"),
    "negative": ("time", BAD_TIMES[3:], r"'c' is time64\[ns\], not -00:00:00.000000001"),
    "time32": ("time", pa.array([5, 86_400], pa.int32()).view(pa.time32("s")), r"'c' is time64\[ns\], not 24:00:00"),
    "microseconds": ("time", pa.array([-1]).view(pa.time64("us")), "not -00:00:00.000001"),
    "decimal": ("decimal(5,2)", BAD_DECIMALS, r"not 1000000000000000000.00 \(row 1\); it takes up to 3 digits before"),
    "text": ("string", BAD_TEXT, r"'c' is string, not b'\\xff\\xfe' \(row 1\); it takes text in UTF-8"),
    "large text": (
        "string",
        pa.Array.from_buffers(pa.large_string(), 1, pa.array([b"\xff"], pa.large_binary()).buffers()),
        r"UTF-?8",
    ),
    "array": ("array<time>", pa.ListArray.from_arrays([0, 1, 3, 4], BAD_TIMES), r"'c.element' .* 24:00:00 \(row 1\)"),
    "struct": (
        "struct<a:int,t:time>",
        pa.StructArray.from_arrays([pa.array([1, 2, 3, 4], pa.int32()), BAD_TIMES], ["a", "t"]),
        r"'c.t' .* 24:00:00 \(row 1\)",
    ),
    "map": (
        "map<string,time>",
        pa.MapArray.from_arrays([0, 1, 3], pa.array(["a", "b", "c"]), BAD_TIMES[:3]),
        r"'c.value' .* 24:00:00 \(row 1\)",
    ),
    "deep": (
        "array<struct<t:time>>",
        pa.ListArray.from_arrays([0, 1, 4], pa.StructArray.from_arrays([BAD_TIMES], ["t"])),
        r"'c.element.t' .* 24:00:00 \(row 1\)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_that_is_none_of_its_type_is_refused_by_column_and_value(name: str) -> None:
    """W9: what was acknowledged can be read. The error names column, value and what is allowed."""
    kind, array, message = CASES[name]
    schema = TopicSchema(schema_id=0, arrow=parse_schema(f"c {kind}"))
    with pytest.raises(SchemaMismatchError, match=message):
        cast_to_topic(pa.table({"c": array}), schema)


def test_reader_refuses_what_the_writer_refuses() -> None:
    """The writer's check is the readers' own: neither lets through what stops the other."""
    for kind, array, _ in CASES.values():
        schema = TopicSchema(schema_id=0, arrow=parse_schema(f"c {kind}"))
        if array.type != schema.arrow.field(0).type:
            continue
        frame = encode_frame(pa.record_batch({"c": array[:1]}), schema, timestamps=1)
        try:
            decode_frame(frame, SchemaHistory([schema]))
        except CorruptRecordError:
            with pytest.raises(SchemaMismatchError):
                cast_to_topic(pa.table({"c": array[:1]}), schema)
        else:
            cast_to_topic(pa.table({"c": array[:1]}), schema)


def test_sound_values_pass_in_slices_of_columns_with_others() -> None:
    """Only the rows that are written count: a slice may come from a column with bad values elsewhere."""
    schema = TopicSchema(schema_id=0, arrow=parse_schema("c time"))
    assert cast_to_topic(pa.table({"c": GOOD_TIMES}), schema).num_rows == 3
    assert cast_to_topic(pa.table({"c": BAD_TIMES.slice(0, 1)}), schema).num_rows == 1
    assert find_bad_value(GOOD_TIMES, pa.field("c", pa.time64("ns"))) is None


def test_names_of_headers_are_text() -> None:
    """A header's name is checked as well: consumers read headers with the record."""
    from pyspark_log.client.producer.record_batches import _columns

    pairs = pa.StructArray.from_arrays([BAD_TEXT, pa.array([b"1", b"2"])], ["key", "value"])
    headers = pa.ListArray.from_arrays([0, 2], pairs)
    with pytest.raises(SchemaMismatchError, match=r"headers.element.key.* is string"):
        _columns(pa.table({"value": [b"v"], "headers": headers}), UNTYPED, 1)


def test_value_of_buffers_that_do_not_hold_together_is_not_searched() -> None:
    """An array with offsets out of order is refused, and never taken apart."""
    offsets = pa.array([0, 5, 1], pa.int32()).buffers()[1]
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"hello")])
    assert find_bad_value(array, pa.field("c", pa.string())) is None
    with pytest.raises(SchemaMismatchError, match="'c' are damaged"):
        cast_to_topic(pa.table({"c": array}), TopicSchema(schema_id=0, arrow=parse_schema("c string")))
