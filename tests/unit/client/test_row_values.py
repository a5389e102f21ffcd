"""What `Producer.send` accepts for a topic with a schema: every value arrives unchanged, or is refused by name."""

import datetime as dt
import re
from collections import namedtuple
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.schema import TopicSchema, check_topic_schema, parse_schema
from pyspark_log.client.producer.row_check import RowCheck

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=UTC)


def stored(kind: str, value: Any) -> Any:
    """The content of a column ``v`` of this type after a row with ``value`` was sent."""
    schema = TopicSchema(schema_id=0, arrow=check_topic_schema(parse_schema(f"v {kind}")))
    (taken,) = RowCheck("t", schema).row({"v": value})
    return pa.array([taken], schema.arrow.field(0).type).to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", 2**31 - 1, 2**31 - 1),
        ("int", np.int64(-5), -5),
        ("double", 1, 1.0),
        ("double", np.float32(0.5), 0.5),
        ("float", 2**24, 2.0**24),
        ("float", float("-inf"), float("-inf")),
        ("boolean", np.bool_(True), True),
        ("string", "é\0", "é\0"),
        ("binary", bytearray(b"\xff"), b"\xff"),
        ("decimal(5,1)", Decimal("1.50"), Decimal("1.5")),
        ("decimal(5,1)", Decimal("1E+2"), Decimal("100.0")),
        ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
        ("date", dt.date(1, 1, 1), dt.date(1, 1, 1)),
        ("date", np.datetime64("2026-01-31"), dt.date(2026, 1, 31)),
        ("timestamp", NOON, NOON),
        ("timestamp", NOON.astimezone(ZoneInfo("America/New_York")), NOON),
        ("timestamp", dt.datetime.min.replace(tzinfo=UTC), dt.datetime.min.replace(tzinfo=UTC)),
        ("timestamp", pd.Timestamp(NOON), NOON),
        ("timestamp_ntz", dt.datetime(2026, 1, 31, 12), dt.datetime(2026, 1, 31, 12)),
        ("timestamp_ntz", np.datetime64("2026-01-31T12:00"), dt.datetime(2026, 1, 31, 12)),
        ("time", dt.time(23, 59, 59, 999999), dt.time(23, 59, 59, 999999)),
        ("time", 86_399_999_999_000, dt.time(23, 59, 59, 999999)),
        ("duration", dt.timedelta(days=-1, microseconds=1), dt.timedelta(days=-1, microseconds=1)),
        ("duration", np.timedelta64(3, "s"), dt.timedelta(seconds=3)),
        ("void", None, None),
        ("array<int>", (n for n in (1, 2)), [1, 2]),
        ("array<int>", np.array([1, 2], np.int16), [1, 2]),
        ("map<string,int>", {"a": 1}, [("a", 1)]),
        ("map<int,string>", [(1, "x"), [1, None]], [(1, "x"), (1, None)]),
        ("struct<a:int,b:string>", {"b": "x"}, {"a": None, "b": "x"}),
        ("struct<a:int,b:string>", (1, "x"), {"a": 1, "b": "x"}),
        ("struct<a:int,b:string>", namedtuple("Row", "b a")("x", 1), {"a": 1, "b": "x"}),
        ("array<map<string,struct<a:array<date>>>>", [{"k": {"a": [None]}}, None], [[("k", {"a": [None]})], None]),
    ],
)
def test_value_is_stored_as_it_was_given(kind: str, value: Any, expected: Any) -> None:
    """SPEC 3: `send` takes a mapping, and a value that fits its column's type exactly."""
    assert stored(kind, value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [
        ("int", 1.0, "v"),
        ("int", True, "v"),
        ("int", 2**31, "v"),
        ("array<int>", [1, 1.5], "v.element"),
        ("array<tinyint>", [128], "v.element"),
        ("map<int,int>", {1: 2.5}, "v.value"),
        ("map<int,int>", {None: 2}, "v.key"),
        ("map<int,int>", [(1, 2, 3)], "v"),
        ("double", 2**53 + 1, "v"),
        ("double", Decimal("0.5"), "v"),
        ("double", "1", "v"),
        ("float", 1e300, "v"),
        ("array<float>", [1e39], "v.element"),
        ("float", 2**24 + 1, "v"),
        ("string", "\ud800", "v"),
        ("string", b"x", "v"),
        ("array<binary>", ["x"], "v.element"),
        ("decimal(5,1)", Decimal("1.55"), "v"),
        ("decimal(5,1)", Decimal("NaN"), "v"),
        ("decimal(5,1)", Decimal("12345"), "v"),
        ("decimal(5,1)", Decimal("1E+999999"), "v"),
        ("decimal(5,1)", Decimal("1E-999999"), "v"),
        ("decimal(5,1)", 1.5, "v"),
        ("date", dt.datetime(2026, 1, 31, 12), "v"),
        ("date", "2026-01-31", "v"),
        ("date", np.datetime64("2026-01-31T12:00"), "v"),
        ("timestamp", dt.datetime(2026, 1, 31, 12), "v"),
        ("timestamp", np.datetime64("2026-01-31T12:00"), "v"),
        ("timestamp", dt.date(2026, 1, 31), "v"),
        ("timestamp", pd.NaT, "v"),
        ("timestamp", pd.Timestamp(1, unit="ns", tz="UTC"), "v"),
        ("array<timestamp>", [dt.datetime(2026, 1, 31, 12)], "v.element"),
        ("struct<a:map<string,timestamp>>", {"a": {"k": dt.datetime(2026, 1, 31, 12)}}, "v.a.value"),
        ("timestamp_ntz", NOON, "v"),
        ("timestamp_ntz", np.datetime64("2026-01-31T12:00:00.000000001"), "v"),
        ("time", dt.time(1, tzinfo=UTC), "v"),
        ("time", 86_400 * 10**9, "v"),
        ("time", -1, "v"),
        ("array<time>", [0, -1], "v.element"),
        ("duration", pd.Timedelta(1, "ns"), "v"),
        ("duration", np.timedelta64(1, "M"), "v"),
        ("void", 0, "v"),
        ("array<int>", "12", "v"),
        ("array<int>", {1: 2}, "v"),
        ("array<string>", b"12", "v"),
        ("struct<a:int>", {"zz": 1}, "v.zz"),
        ("struct<a:int>", {1: 1}, "v.1"),
        ("struct<a:int>", [("a", 1)], "v"),
        ("struct<a:int>", (1, 2), "v"),
        ("array<struct<a:int>>", [{"a": 1, "zz": 1}], "v.element.zz"),
        ("map<string,struct<a:struct<b:int>>>", {"k": {"a": {"c": 1}}}, "v.value.a.c"),
        ("struct<a:int not null>", {}, "v.a"),
    ],
)
def test_value_that_would_be_changed_is_refused_by_its_path(kind: str, value: Any, path: str) -> None:
    """SPEC 3: the refusal names the column; nothing is truncated, rounded or omitted silently."""
    with pytest.raises(SchemaMismatchError, match=re.escape(repr(path))):
        stored(kind, value)


def test_row_keeps_its_values_when_the_caller_changes_them_later() -> None:
    """Rows are encoded later, so the caller's lists and buffers are copied."""
    tags, raw = [1], bytearray(b"a")
    schema = TopicSchema(schema_id=0, arrow=check_topic_schema(parse_schema("t array<int>, b binary")))
    row = RowCheck("t", schema).row({"t": tags, "b": raw})
    tags.append(2)
    raw[0] = 0
    assert row == ([1], b"a")


def test_column_names_that_are_no_text_are_refused_by_name() -> None:
    """The mapping has keys of another type."""
    schema = TopicSchema(schema_id=0, arrow=check_topic_schema(parse_schema("a int")))
    with pytest.raises(SchemaMismatchError, match="no column 1"):
        RowCheck("t", schema).row({1: 2})


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("decimal(10,2)", Decimal("1.234"), "column 'v' takes decimal(10,2); 1.234 has 3 digits after the point"),
        ("decimal(3,2)", 12, "column 'v' takes decimal(3,2); 12 has 2 digits before the point"),
        (
            "decimal(2,1)",
            Decimal("1e999999"),
            "column 'v' takes decimal(2,1); 1E+999999 has 1,000,000 digits before the",
        ),
        ("timestamp", NOON.replace(tzinfo=None), "column 'v' needs a time zone; 2026-01-31T12:00:00 has none"),
        ("timestamp_ntz", NOON, "column 'v' takes no time zone; 2026-01-31T12:00:00+00:00 has one"),
        ("time", 86_400 * 10**9, "it takes 00:00:00 to 23:59:59.999999999, 0 to 86399999999999 ns"),
    ],
)
def test_refusal_says_what_is_wrong_in_plain_words(kind: str, value: Any, message: str) -> None:
    """Not with Python's notation of the value."""
    with pytest.raises(SchemaMismatchError) as raised:
        stored(kind, value)
    assert message in raised.value.message


@pytest.mark.parametrize("zeros", range(25, 90, 4))
@pytest.mark.parametrize(
    ("kind", "value"), [("decimal(10,2)", "12.5"), ("decimal(38,10)", "-1.5"), ("decimal(38,0)", "7")]
)
def test_decimal_with_zeros_at_its_end_is_stored_as_it_is(kind: str, value: str, zeros: int) -> None:
    """Arrow itself makes another number of more than 38 digits."""
    padded = Decimal((value if "." in value else f"{value}.") + "0" * zeros)
    assert stored(kind, padded) == Decimal(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp_ntz", np.datetime64("999999-12-31")),
        ("timestamp_ntz", np.datetime64("-300000-01-01T00:00:00")),
        ("duration", np.timedelta64(200_000_000, "D")),
        ("duration", np.timedelta64(2**62, "s")),
        ("date", np.datetime64(2**62, "h")),
        ("date", np.datetime64(2**62, "Y")),
    ],
)
def test_time_that_is_out_of_range_is_refused(kind: str, value: Any) -> None:
    """numpy before 2.5 wraps around in silence; later ones raise an error of their own."""
    with pytest.raises(SchemaMismatchError, match="column 'v' is"):
        stored(kind, value)


def typed(columns: str, key: str | None = None) -> TopicSchema:
    return TopicSchema(schema_id=0, arrow=check_topic_schema(parse_schema(columns)), key=key)


@pytest.mark.parametrize("kind", ["double", "binary", "boolean", "bigint", "string"])
def test_required_column_takes_no_null(kind: str) -> None:
    """Neither one that is given nor one that is left out, whatever else the column takes unchecked."""
    check = RowCheck("t", typed(f"v {kind} not null, w {kind}"))
    for row in ({"v": None}, {}, {"w": None}):
        with pytest.raises(SchemaMismatchError, match="'v' allows no nulls and is missing or None"):
            check.row(row)


@pytest.mark.parametrize(("kind", "value"), [("double", True), ("binary", "x"), ("boolean", 1), ("boolean", 1.0)])
def test_value_of_another_type_is_refused_although_it_equals_one(kind: str, value: Any) -> None:
    """Only values of exactly the column's own type are taken unchecked."""
    with pytest.raises(SchemaMismatchError, match="column 'v' is"):
        stored(kind, value)


def bytes_of(value: Any) -> int:
    if isinstance(value, str):
        return 16 + len(value.encode())
    if isinstance(value, bytes):
        return 16 + len(value)
    if isinstance(value, Mapping):
        return 16 + sum(bytes_of(name) + bytes_of(each) for name, each in value.items())
    if isinstance(value, Iterable):
        return 16 + sum(map(bytes_of, value))
    return 16


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"i": 1, "f": 0.5, "d": Decimal(1), "at": NOON, "flag": True},
        {"text": "é" * 50, "raw": bytes(70)},
        {"tags": ["a", "bc", None], "m": {"k": b"12"}, "s": {"text": "xyz", "n": None}, "nested": [{"a": ["x" * 90]}]},
    ],
)
def test_size_of_a_row_counts_every_value_and_all_text(row: dict[str, Any]) -> None:
    """``buffer.memory`` bounds what is held: 64 bytes a record, 16 a value, and the bytes of text at any depth."""
    columns = (
        "i int, f double, d decimal(5,1), at timestamp, flag boolean, text string, raw binary, tags array<string>, "
        "m map<string,binary>, s struct<text:string,n:int>, nested array<struct<a:array<string>>>"
    )
    check = RowCheck("t", typed(columns))
    taken = check.row(row)
    assert check.size(taken) == 64 + sum(map(bytes_of, taken))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", -2, b"\xff\xff\xff\xfe"),
        ("bigint", -2, b"\xff" * 7 + b"\xfe"),
        ("tinyint", 1, b"\0\0\0\1"),
        ("string", "é", "é".encode()),
        ("binary", b"\0a", b"\0a"),
        ("bigint", None, None),
    ],
)
def test_key_column_has_the_bytes_that_kafkas_serializers_write(kind: str, value: Any, expected: bytes | None) -> None:
    """W7: four bytes for integers of up to 32 bits, eight above."""
    check = RowCheck("t", typed(f"w int, k {kind}", key="k"))
    assert check.key_bytes(check.row({"k": value})) == expected
