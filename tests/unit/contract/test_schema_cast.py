"""Data is cast to a topic's schema by name and safely, or refused with the column's name."""

from __future__ import annotations

import datetime
import decimal

import pandas
import polars
import pyarrow as pa
import pytest
from frame_samples import EVERY_TYPE, typed_batch, typed_schema

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.frame import decode_frame, encode_frame
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema, cast_to_topic, parse_schema


def topic(text: str) -> TopicSchema:
    """A topic's schema from text."""
    return TopicSchema(schema_id=0, arrow=parse_schema(text))


def one(array: pa.Array, text: str) -> pa.Array:
    """``array`` cast to the one column of type ``text``."""
    return cast_to_topic(pa.table({"c": array}), topic(f"c {text}")).column(0)


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_equal_types_are_not_copied(name: str) -> None:
    """A value that fits is used as it is."""
    types = {name: EVERY_TYPE[name]}
    batch = typed_batch(types)
    result = cast_to_topic(batch, typed_schema(types))
    assert str(result.to_pylist()) == str(batch.to_pylist())
    if name != "nothing":
        ours, theirs = result.column(0).buffers(), batch.column(0).buffers()
        assert [b and b.address for b in ours] == [b and b.address for b in theirs]


@pytest.mark.parametrize(
    ("array", "text", "values"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), "string", ["a", "b", "a"]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([7, 8])), "int", [7, 7, 8]),
        (pa.array(["x", None], pa.large_string()), "string", ["x", None]),
        (pa.array(["x" * 50, None], pa.string_view()), "string", ["x" * 50, None]),
        (pa.array([b"x" * 50], pa.binary_view()), "binary", [b"x" * 50]),
        (pa.array([b"ab"], pa.binary(2)), "binary", [b"ab"]),
        (pa.array([b"0123456789abcdef"], pa.uuid()), "binary", [b"0123456789abcdef"]),
        (pa.array(["x"]), "binary", [b"x"]),
        (pa.array([1, None], pa.int64()), "tinyint", [1, None]),
        (pa.array([1], pa.uint64()), "int", [1]),
        (pa.array([2.0, None]), "int", [2, None]),
        (pa.array([3]), "double", [3.0]),
        (pa.array([0.5]), "float", [0.5]),
        (pa.array([12]), "decimal(10,2)", [decimal.Decimal("12.00")]),
        (pa.array([decimal.Decimal("1.5")]), "decimal(38,10)", [decimal.Decimal("1.5000000000")]),
        (pa.array([1_000], pa.timestamp("ms")), "timestamp_ntz", [datetime.datetime(1970, 1, 1, 0, 0, 1)]),
        (pa.array([None, None], pa.null()), "array<string>", [None, None]),
        (pa.array([["a"], None], pa.large_list(pa.large_string())), "array<string>", [["a"], None]),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), "array<int>", [[1, 2]]),
        (pa.array([{"b": 1, "a": "x"}]), "struct<a:string,b:int>", [{"a": "x", "b": 1}]),
        (pa.array([{"a": "x"}]), "struct<a:string,b:int>", [{"a": "x", "b": None}]),
        (pa.array([[("k", 1)]], pa.map_(pa.large_string(), pa.int64())), "map<string,int>", [[("k", 1)]]),
        (pa.array([datetime.date(2024, 1, 2)], pa.date64()), "date", [datetime.date(2024, 1, 2)]),
        (pa.array([1], pa.time32("s")), "time", [datetime.time(0, 0, 1)]),
    ],
)
def test_values_are_cast_safely(array: pa.Array, text: str, values: list[object]) -> None:
    """Dictionary, view, run-end and extension types are decoded at the edge; large types are cast."""
    result = one(array, text)
    assert result.type == parse_schema(f"c {text}").field(0).type
    assert result.to_pylist() == values
    result.validate(full=True)


def test_timestamps_keep_their_instant_in_any_zone() -> None:
    """Spark passes timestamps in the session's zone."""
    given = pa.array([datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC)], pa.timestamp("us", "Europe/Berlin"))
    assert one(given, "timestamp").equals(given.cast(pa.timestamp("us", "UTC")))


@pytest.mark.parametrize(
    ("array", "text", "says"),
    [
        (pa.array([300]), "tinyint", "300 not in range"),
        (pa.array([1.5]), "int", "truncated"),
        (pa.array([float("nan")]), "int", "column 'c'"),
        (pa.array(["1"]), "int", "'c' is string, the topic's is int32"),
        (pa.array([1]), "string", "'c' is int64"),
        (pa.array([True]), "int", "'c' is bool"),
        (pa.array([b"x"]), "string", "'c' is binary"),
        (pa.array([1e300]), "float", "out of the range"),
        (pa.array([2**60]), "double", "does not fit"),
        (pa.array([123456]), "decimal(5,2)", "does not fit"),
        (pa.array([decimal.Decimal("1.234")]), "decimal(5,2)", "does not fit"),
        (pa.array([1], pa.timestamp("ns")), "timestamp_ntz", "lose data"),
        (pa.array([1], pa.timestamp("us")), "timestamp", "give it a time zone"),
        (pa.array([1], pa.timestamp("us", "UTC")), "timestamp_ntz", "remove its time zone"),
        (pa.array([{"a": 1, "x": 2}]), "struct<a:int,b:int>", "no field 'c.x'"),
        (pa.array([["a"]]), "array<int>", "'c' is list"),
        (pa.array([[1, None]]), "array<int not null>", "'element' in it allows no nulls"),
        (pa.array([{"a": None, "b": 1}, None]), "struct<a:int not null,b:int>", "'?a'? "),
        (pa.array([[("k", None)]], pa.map_(pa.string(), pa.int32())), "map<string,int not null>", "'value' in it"),
        (pa.array([None]), "int not null", "'c' allows no nulls and has 1"),
        (pa.array([1], pa.duration("s")), "int", "'c' is duration"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "int", "'c' is month_day_nano_interval"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_column(array: pa.Array, text: str, says: str) -> None:
    """`send_batch` refuses by column name; a value is never changed to fit."""
    with pytest.raises(SchemaMismatchError, match=says):
        one(array, text)


def test_columns_are_found_by_name() -> None:
    """Order does not matter; unknown, repeated and missing columns are named."""
    schema = topic("carrier string not null, delay int, origin string")
    result = cast_to_topic(pa.table({"delay": [1, 2], "carrier": ["UA", "AA"]}), schema)
    assert result.to_pylist() == [{"carrier": "UA", "delay": 1}, {"carrier": "AA", "delay": 2}]
    for table, says in (
        (pa.table({"carrier": ["UA"], "delai": [1]}), "'delai'; did you mean 'delay'"),
        (pa.table({"delay": [1]}), "'carrier' allows no nulls and is missing"),
        (pa.table([pa.array(["x"]), pa.array(["y"])], names=["carrier", "carrier"]), "'carrier' appears twice"),
    ):
        with pytest.raises(SchemaMismatchError, match=says):
            cast_to_topic(table, schema)
    with pytest.raises(SchemaMismatchError, match="no columns"):
        cast_to_topic(pa.table({}), topic("a int"))


def test_tables_of_many_chunks_become_one_batch() -> None:
    """Chunks are joined; empty tables stay empty."""
    table = pa.concat_tables([pa.table({"value": [b"a"]}), pa.table({"value": [b"b", None]})])
    assert cast_to_topic(table, UNTYPED).column("value").to_pylist() == [b"a", b"b", None]
    assert cast_to_topic(table.slice(0, 0), UNTYPED).num_rows == 0


def test_nested_nulls_are_judged_by_the_slice() -> None:
    """Values outside the slice do not matter."""
    schema = topic("c struct<a: array<int not null> not null>")
    whole = pa.array([{"a": None}, {"a": [1]}, None, {"a": [2, None]}])
    fits = cast_to_topic(pa.table({"c": whole.slice(1, 2)}), schema)
    assert fits.column(0).to_pylist() == [{"a": [1]}, None]
    for start, rows in ((0, 1), (0, 2), (1, 3), (3, 1)):
        with pytest.raises(SchemaMismatchError):
            cast_to_topic(pa.table({"c": whole.slice(start, rows)}), schema)
    frame = encode_frame(fits, schema, timestamps=0)
    assert decode_frame(frame, SchemaHistory([schema])).batch.to_pylist() == fits.to_pylist()


def test_polars_and_pandas_tables_fit() -> None:
    """W: this holds for anything with Arrow's C stream."""
    schema = topic("name string, n int, t timestamp_ntz, cat string")
    when = datetime.datetime(2024, 1, 1)
    columns = {"name": ["a", None], "n": [1, 2], "t": [when, when], "cat": ["x", "y"]}
    frame = polars.DataFrame(columns).with_columns(polars.col("cat").cast(polars.Categorical))
    for table in (
        pa.table(frame),
        frame.to_arrow(),
        pa.Table.from_pandas(pandas.DataFrame(columns).astype({"cat": "category"})),
    ):
        assert cast_to_topic(table, schema).to_pydict() == columns


@pytest.mark.parametrize(
    ("array", "text", "said"),
    [
        (pa.array([{"a": 1, "zz": 2}]), "struct<a:int>", "'c.zz'"),
        (pa.array([[{"s": {"zz": 2}}]]), "array<struct<s:struct<a:int>>>", "'c.element.s.zz'"),
        (
            pa.array([[("k", {"zz": 1})]], pa.map_(pa.string(), pa.struct([("zz", pa.int32())]))),
            "map<string,struct<a:int>>",
            "'c.value.zz'",
        ),
        (pa.array([{"a": 1}]), "struct<a:int,b:int not null>", "'c.b' allows no nulls"),
        (pa.array([[datetime.datetime(2026, 1, 1)]]), "array<timestamp>", "'c.element' must be timestamp"),
        (pa.array([datetime.datetime(2026, 1, 1)]), "timestamp", "give it a time zone"),
        (pa.array([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)]), "timestamp_ntz", "remove its time zone"),
        (pa.array([{"a": 1e300}]), "struct<a:float>", "out of the range of float"),
        (pa.array([[1e300, float("inf")]]), "array<float>", "out of the range of float"),
        (
            pa.array([[("k", 1e300)]], pa.map_(pa.string(), pa.float64())),
            "map<string,float>",
            "out of the range of float",
        ),
        (pa.array([[1.5]]), "array<int>", "does not fit"),
        (pa.array([[decimal.Decimal("1.55")]]), "array<decimal(5,1)>", "does not fit"),
        (pa.array([[1001]], pa.list_(pa.timestamp("ns", "UTC"))), "array<timestamp>", "would lose data"),
    ],
)
def test_lossy_nested_value_is_refused_by_its_path(array: pa.Array, text: str, said: str) -> None:
    """SPEC 3: `send_batch` refuses by column name, at any depth."""
    with pytest.raises(SchemaMismatchError, match=said):
        one(array, text)


def test_infinite_numbers_inside_a_column_are_kept() -> None:
    """A number that becomes infinite is out of range; one that is infinite is not."""
    array = pa.array([{"a": [float("-inf"), 0.5]}, None])
    assert one(array, "struct<a:array<float>>").to_pylist() == [{"a": [float("-inf"), 0.5]}, None]
