"""The one mapping between columns and JSON: whatever a topic can hold survives the round trip unchanged."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.schema import TopicSchema, check_topic_schema, parse_schema
from pyspark_log.cli.records.json_values import (
    load_json,
    parse_bytes,
    parse_timestamp_ms,
    row_parser,
    rows_json,
    to_json,
)
from pyspark_log.client.producer.row_check import RowCheck

INT64 = st.integers(-(2**63), 2**63 - 1)
LEAVES: list[tuple[st.SearchStrategy[pa.DataType], Any]] = [
    (st.just(pa.bool_()), lambda _: st.booleans()),
    *[
        (
            st.just(getattr(pa, f"int{bits}")()),
            lambda _, bits=bits: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        )
        for bits in (8, 16, 32, 64)
    ],
    (st.just(pa.float32()), lambda _: st.floats(width=32)),
    (st.just(pa.float64()), lambda _: st.floats()),
    (st.just(pa.string()), lambda _: st.text(st.characters(codec="utf-8"))),
    (st.just(pa.binary()), lambda _: st.one_of(st.binary(), st.sampled_from([b"base64:aGk=", b'{"base64":""}']))),
    (st.just(pa.date32()), lambda _: st.integers(-(2**31), 2**31 - 1)),
    (st.sampled_from([pa.timestamp("us", "UTC"), pa.timestamp("us")]), lambda _: INT64),
    (st.just(pa.time64("ns")), lambda _: st.integers(0, 86_400 * 10**9 - 1)),
    (st.just(pa.duration("us")), lambda _: INT64),
    (st.just(pa.null()), lambda _: st.none()),
    (
        st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
        lambda kind: st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1).map(
            lambda n: Decimal(((n < 0), tuple(map(int, str(abs(n)))), -kind.scale))
        ),
    ),
]
KEYS = st.sampled_from([pa.string(), pa.int32(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.bool_()])


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        st.builds(pa.map_, KEYS, inner),
        st.dictionaries(st.sampled_from(["a", "base64", "key", "é"]), inner, min_size=1, max_size=3).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    )


TYPES = st.recursive(st.one_of(*[kinds for kinds, _ in LEAVES]), nested, max_leaves=4)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as Arrow takes them; nulls at every level."""
    if pa.types.is_map(kind):
        keys = values_of(kind.key_type).filter(lambda value: value is not None)
        made: Any = st.lists(st.tuples(keys, values_of(kind.item_type)), max_size=3)
    elif pa.types.is_list(kind):
        made = st.lists(values_of(kind.value_type), max_size=3)
    elif pa.types.is_struct(kind):
        made = st.fixed_dictionaries(
            {kind.field(i).name: values_of(kind.field(i).type) for i in range(kind.num_fields)}
        )
    else:
        sample = next(values for kinds, values in LEAVES if kind.id in {k.id for k in [example_of(kinds)]})
        made = sample(kind)
    return st.one_of(st.none(), made)


def example_of(kinds: st.SearchStrategy[pa.DataType]) -> pa.DataType:
    """An example type of the strategy, for its id."""
    return _EXAMPLES[id(kinds)]


_EXAMPLES = {
    id(kinds): kind
    for (kinds, _), kind in zip(
        LEAVES,
        [
            pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
            pa.binary(), pa.date32(), pa.timestamp("us"), pa.time64("ns"), pa.duration("us"), pa.null(),
            pa.decimal128(1, 0),
        ],
        strict=True,
    )
}  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_rows_of_any_type_survive_the_round_trip(data: st.DataObject) -> None:
    """W27: rows → `consume`'s JSON → `produce`'s parser → `send`'s check → equal rows, NaN and extremes included."""
    schema = check_topic_schema(pa.schema([("v", data.draw(TYPES)), ("w", data.draw(TYPES))]))
    rows = data.draw(
        st.lists(st.fixed_dictionaries({field.name: values_of(field.type) for field in schema}), max_size=4)
    )
    start = data.draw(st.integers(0, len(rows)))
    batch = pa.RecordBatch.from_pylist(rows, schema).slice(start)  # as after a consumer that began in the middle
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False).encode() for row in rows_json(batch)]
    assert not any(b"\n" in line for line in lines)
    parse, check = row_parser(schema), RowCheck("t", TopicSchema(schema_id=0, arrow=schema))
    taken = [check.row(parse(load_json(line))) for line in lines]
    for index, field in enumerate(schema):
        again = pa.array([row[index] for row in taken], field.type)
        assert to_json(again) == to_json(batch.column(index))
        assert again.equals(batch.column(index)) or "NaN" in str(to_json(again))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.float64(), math.nan, "NaN"),
        (pa.float64(), -math.inf, "-Infinity"),
        (pa.decimal128(10, 2), Decimal("12.50"), "12.50"),
        (pa.decimal128(38, 38), Decimal("0E-38"), "0." + "0" * 38),
        (pa.binary(), b"\xff", {"base64": "/w=="}),
        (pa.binary(), "é".encode(), "é"),
        (pa.date32(), -719529, "-0001-12-31"),
        (pa.date32(), -719528, "0000-01-01"),
        (pa.date32(), 0, "1970-01-01"),
        (pa.date32(), 11016, "2000-02-29"),
        (pa.date32(), 2932897, "+10000-01-01"),
        (pa.date32(), -(2**31), "-5877641-06-23"),
        (pa.date32(), 2**31 - 1, "+5881580-07-11"),
        (pa.timestamp("us", "UTC"), 1, "1970-01-01T00:00:00.000001Z"),
        (pa.timestamp("us", "UTC"), -1, "1969-12-31T23:59:59.999999Z"),
        (pa.timestamp("us"), 2**63 - 1, "+294247-01-10T04:00:54.775807"),
        (pa.time64("ns"), 43_200_000_000_001, "12:00:00.000000001"),
        (pa.time64("ns"), 86_400 * 10**9 - 1, "23:59:59.999999999"),
        (pa.duration("us"), -90_500_000, "-PT90.5S"),
        (pa.map_(pa.string(), pa.int32()), [("k", 1), ("k", None)], [["k", 1], ["k", None]]),
        (pa.struct([("a", pa.list_(pa.null()))]), {"a": [None]}, {"a": [None]}),
    ],
)
def test_each_type_has_its_form(kind: pa.DataType, value: Any, text: Any) -> None:
    """The forms are those of the table in the guide Records in and out."""
    assert to_json(pa.array([value, None], kind)) == [text, None]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("decimal(5,2)", "1.5", Decimal("1.5")),
        ("decimal(5,2)", '"1.50"', Decimal("1.50")),
        ("double", "1.5e3", 1500.0),
        ("double", "2", 2.0),
        ("timestamp", '"2026-01-31T13:00:00.1+01:00"', 1769860800100000),
        ("timestamp", '"2026-01-31 12:00Z"', 1769860800000000),
        ("timestamp", '"2026-01-31T06:30:00-0530"', 1769860800000000),
        ("timestamp_ntz", '"2026-01-31T12:00:00.000000000"', 1769860800000000),
        ("duration", '"P1DT1H1M1S"', 90061000000),
        ("map<string,int>", '{"k": 1}', [("k", 1)]),
        ("map<date,int>", '{"1970-01-02": 1}', [(1, 1)]),
        ("binary", '{"base64": "/w=="}', b"\xff"),
        ("string", '"base64:/w=="', "base64:/w=="),
    ],
)
def test_other_forms_are_accepted(kind: str, text: str, value: Any) -> None:
    """Forms that people write by hand are accepted."""
    assert taken(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timestamp", '"2026-01-31T12:00:00"'),
        ("timestamp_ntz", '"2026-01-31T12:00:00Z"'),
        ("timestamp", '"2026-02-29T12:00:00Z"'),
        ("timestamp", '"2026-01-31T24:00:00Z"'),
        ("timestamp", '"2026-01-31T12:60:00Z"'),
        ("timestamp", '"2026-01-31T12:00:00.0000001Z"'),
        ("timestamp", '"+999999999-01-31T12:00:00Z"'),
        ("timestamp", "1769860800000"),
        ("timestamp", '"\\uff12026-01-31T12:00:00Z"'),
        ("date", '"2026-13-01"'),
        ("date", '"2026-01-31T00:00:00"'),
        ("date", '"+999999999999-01-01"'),
        ("time", '"12"'),
        ("time", '"24:00:00"'),
        ("time", '"-00:00:01"'),
        ("time", '"23:59:60"'),
        ("duration", '"P"'),
        ("duration", '"PT"'),
        ("duration", "90"),
        ("int", "1.5"),
        ("int", "1e2"),
        ("int", '"1"'),
        ("int", "true"),
        ("double", "1e999"),
        ("double", '"inf"'),
        ("decimal(5,2)", '"1.555"'),
        ("decimal(5,2)", '"x"'),
        ("binary", '{"base64": "x"}'),
        ("binary", '{"base64": "/w==", "x": 1}'),
        ("binary", '"\\ud800"'),
        ("string", '"\\ud800"'),
        ("map<int,int>", '{"1": 1}'),
        ("map<int,int>", "[[1]]"),
        ("struct<a:int>", '{"a": 1, "zz": 2}'),
        ("array<struct<a:int>>", '[{"zz": 2}]'),
        ("struct<a:int>", '{"a": 1, "a": 2}'),
        ("array<int>", "[" * 100_000),
    ],
)
def test_value_of_another_type_is_refused(kind: str, text: str) -> None:
    """Nothing is guessed, truncated or omitted."""
    with pytest.raises((ValueError, SchemaMismatchError)):
        taken(kind, text)


def taken(kind: str, text: str) -> Any:
    """What `send` gets for the column ``v`` of a row with ``text`` in it."""
    schema = check_topic_schema(parse_schema(f"v {kind}"))
    row = row_parser(schema)(load_json(f'{{"v": {text}}}'.encode()))
    return RowCheck("t", TopicSchema(schema_id=0, arrow=schema)).row(row)[0]


def test_bytes_and_times_of_records() -> None:
    """Keys, values and times of records that have no schema."""
    assert [parse_bytes(v, "value") for v in (None, "é", {"base64": "/w=="})] == [None, "é".encode(), b"\xff"]
    assert [parse_timestamp_ms(t) for t in (5, "1970-01-01T00:00:00.005Z")] == [5, 5]
    for value in (1, [], {"base64": 1}, {"x": ""}):
        with pytest.raises(ValueError, match="value must be text"):
            parse_bytes(value, "value")
    for time in (1.5, None, True, "1970-01-01T00:00:00.0000001Z", "1970-01-01T00:00:00", "1970-01-01T00:00:00.0005Z"):
        with pytest.raises(ValueError, match="timestamp"):
            parse_timestamp_ms(time)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.timestamp("us", "UTC"), "2026-01-01T00:00:00+99:99"),
        (pa.timestamp("us", "UTC"), "2026-01-01T00:00:00+24:00"),
        (pa.decimal128(5, 2), "1_0"),
        (pa.decimal128(5, 2), " 1"),
        (pa.decimal128(5, 2), "\u0661"),
    ],
)
def test_text_that_only_python_accepts_is_refused(kind: pa.DataType, text: str) -> None:
    """A typing error must not become another value."""
    with pytest.raises(ValueError, match="column 'c'"):
        row_parser(pa.schema([("c", kind)]))({"c": text})


def test_json_is_utf8() -> None:
    """A file in UTF-16 without a byte order mark is refused: its first line would parse, and its second would not."""
    with pytest.raises(ValueError, match="column 2"):
        load_json('{"a": 1}'.encode("utf-16-le"))


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("timestamp", '"2026-01-01T00:00:00"', "column 'c' needs a time zone; 2026-01-01T00:00:00 has none"),
        ("timestamp_ntz", '"2026-01-01T00:00:00Z"', "column 'c' takes no time zone; 2026-01-01T00:00:00Z has one"),
        ("int", "-" + "7" * 5000, "a number has 5,000 digits, more than any column takes"),
        ("time", '"24:00:00"', "'24:00:00' is not a time: 00:00:00 to 23:59:59.999999999"),
    ],
)
def test_refusal_of_text_is_in_plain_words(kind: str, text: str, message: str) -> None:
    """It names column and text, and says what is missing."""
    with pytest.raises(ValueError, match=re.escape(message)):
        row_parser(check_topic_schema(parse_schema(f"c {kind}")))(load_json(f'{{"c": {text}}}'.encode()))
