"""Schemas written as text, and the normal form that a topic keeps."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from foreign_names import FOREIGN_SCHEMAS, foreign_bytes
from frame_samples import EVERY_TYPE, typed_schema

from broker_runtime.contract.errors import InvalidSchemaError, SchemaMismatchError
from broker_runtime.contract.requests import SchemaVersion, TopicInfo
from broker_runtime.contract.schema import (
    MAX_SCHEMA_BYTES,
    UNTYPED,
    SchemaHistory,
    TopicSchema,
    check_new_columns,
    check_topic_schema,
    parse_schema,
    schema_from_bytes,
    schema_history_from_info,
    schema_to_bytes,
)

STRING_MAP = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int32()))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("carrier", None),
        ("string", pa.string()),
        ("STRING", pa.string()),
        ("varchar(20)", pa.string()),
        ("int", pa.int32()),
        ("int32", pa.int32()),
        ("BIGINT", pa.int64()),
        ("tinyint", pa.int8()),
        ("short", pa.int16()),
        ("boolean", pa.bool_()),
        ("bool", pa.bool_()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("decimal128(38, 38)", pa.decimal128(38, 38)),
        ("decimal(7)", pa.decimal128(7, 0)),
        ("decimal", pa.decimal128(10, 0)),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("date32[day]", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ltz", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("timestamp[us]", pa.timestamp("us")),
        ("timestamp[ms]", pa.timestamp("us")),
        ("timestamp[us, tz=UTC]", pa.timestamp("us", "UTC")),
        ("timestamp[ns, tz=Europe/Berlin]", pa.timestamp("us", "UTC")),
        ("timestamp[us, tz=+02:00]", pa.timestamp("us", "UTC")),
        ("time(6)", pa.time64("ns")),
        ("time64[ns]", pa.time64("ns")),
        ("duration[us]", pa.duration("us")),
        ("interval day to second", pa.duration("us")),
        ("void", pa.null()),
        ("array<string>", pa.list_(pa.field("element", pa.string()))),
        ("list<item: int32>", pa.list_(pa.field("element", pa.int32()))),
        ("array<int not null>", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        (
            "array<array<decimal(3,1)>>",
            pa.list_(pa.field("element", pa.list_(pa.field("element", pa.decimal128(3, 1))))),
        ),
        ("map<string,int>", STRING_MAP),
        ("struct<a:int,b:string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("struct<a int, `b c`: map<string, int>>", pa.struct([("a", pa.int32()), ("b c", STRING_MAP)])),
    ],
)
def test_schema_text_is_parsed_as_the_type(text: str, kind: pa.DataType | None) -> None:
    """Spark's and Arrow's names of types are accepted."""
    if kind is None:
        with pytest.raises(InvalidSchemaError, match="ends too early, after 'carrier': expected a type"):
            parse_schema(text)
        return
    for written in (f"c {text}", f"c: {text}", f"  c  {text}  "):
        parsed = parse_schema(written)
        assert parsed.equals(pa.schema([("c", kind)]), check_metadata=True)
        assert check_topic_schema(parsed).equals(parsed)


def test_schema_text_of_several_columns() -> None:
    """This is the line in the documentation."""
    parsed = parse_schema(
        "carrier string NOT NULL, delay int32, t timestamp COMMENT 'when, exactly', d decimal(10,2), "
        "tags array<string>, m map<string,int>, s struct<a:int NOT NULL>, `odd name, really` long, größe double"
    )
    assert parsed.names == ["carrier", "delay", "t", "d", "tags", "m", "s", "odd name, really", "größe"]
    assert [field.nullable for field in parsed] == [False] + [True] * 8
    assert not parsed.field("s").type.field(0).nullable


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty: expected a name"),
        ("a", "ends too early, after 'a': expected a type"),
        ("a strin", "did you mean 'string'"),
        ("a int b int", "'b'"),
        ("a int,", "ends too early, after ',': expected a name"),
        (", a int", "expected a name"),
        ("a decimal(39,2)", "up to 38 digits"),
        ("a decimal(3,4)", "after the point"),
        ("a decimal(x)", "expected a number"),
        ("a array<int", "'>'"),
        ("a map<string>", "','"),
        ("a int not", "NULL after NOT"),
        ("a int comment x", "quotes"),
        ("a timestamp[fortnight]", "s, ms, us or ns"),
        ("a interval year to month", "int for months"),
        ("a void not null", "must allow nulls"),
        ("a map<void,int>", "must allow nulls"),
        ("a " + "array<" * 100 + "int" + ">" * 100, "nested deeper"),
        ("a" * 300_000 + " int", "at most"),
    ],
)
def test_wrong_schema_text_is_refused_with_its_position(text: str, says: str) -> None:
    """The error says where, and what to write instead."""
    with pytest.raises(InvalidSchemaError, match=says):
        parse_schema(text)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
        (pa.uuid(), pa.binary()),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.decimal256(38, 2), pa.decimal128(38, 2)),
        (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.time32("ms"), pa.time64("ns")),
        (pa.duration("s"), pa.duration("us")),
        (pa.date64(), pa.date32()),
        (pa.large_list(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
        (pa.list_(pa.int32(), 3), pa.list_(pa.field("element", pa.int32()))),
        (pa.list_view(pa.int32()), pa.list_(pa.field("element", pa.int32()))),
        (pa.map_(pa.large_string(), pa.date64(), keys_sorted=True), pa.map_(pa.string(), pa.date32())),
        (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
    ],
)
def test_types_that_differ_only_in_storage_are_kept_plain(given: pa.DataType, kept: pa.DataType) -> None:
    """Dictionary, view, run-end, large and extension types are decoded at the edge."""
    normal = check_topic_schema(pa.schema([pa.field("c", given, nullable=False)]))
    assert normal.field("c").type.equals(kept)
    assert not normal.field("c").nullable
    assert check_topic_schema(normal).equals(normal, check_metadata=True)


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_types_of_spark_are_kept(name: str) -> None:
    """Types that Spark's Arrow reader accepts are the normal form."""
    schema = typed_schema({name: EVERY_TYPE[name]}).arrow
    assert check_topic_schema(schema).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("schema", "key", "says"),
    [
        (pa.schema([("n", pa.uint32())]), None, "'n' is uint32.*use int64"),
        (pa.schema([("n", pa.uint64())]), None, r"decimal\(20, 0\)"),
        (pa.schema([("n", pa.list_(pa.uint8()))]), None, "'n.element' is uint8.*use int16"),
        (pa.schema([("n", pa.float16())]), None, "use float"),
        (pa.schema([("n", pa.month_day_nano_interval())]), None, "duration"),
        (pa.schema([("n", pa.dense_union([pa.field("a", pa.int32())]))]), None, "struct"),
        (pa.schema([("n", pa.decimal256(50, 2))]), None, "38 digits"),
        (pa.schema([("n", pa.decimal128(5, -2))]), None, "38 digits"),
        (pa.schema([("a", pa.int32()), ("a", pa.int32())]), None, "twice"),
        (pa.schema([("a", pa.int32()), ("A", pa.int32())]), None, "case"),
        (pa.schema([("s", pa.struct([("x", pa.int8()), ("X", pa.int8())]))]), None, "twice"),
        (pa.schema([("", pa.int32())]), None, "without a name"),
        (pa.schema([("_metadata", pa.int32())]), None, "metadata"),
        (pa.schema([]), None, "1 to 4096 columns, not 0"),
        (pa.schema([(f"c{i}", pa.int8()) for i in range(4097)]), None, "not 4097"),
        (pa.schema([("a", pa.int32())]), "b", "not one of the columns a"),
        (pa.schema([("a", pa.float64())]), "a", "string, binary or integer"),
    ],
)
def test_impossible_schema_is_refused(schema: pa.Schema, key: str | None, says: str) -> None:
    """The error names the column and a replacement."""
    with pytest.raises(InvalidSchemaError, match=says):
        check_topic_schema(schema, key)


def test_metadata_of_fields_is_kept_but_not_arrows_own() -> None:
    """Spark recognises a variant by its field's metadata; files leave other marks."""
    variant = pa.struct(
        [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    )
    field = pa.field("v", variant, metadata={"PARQUET:field_id": "7"})
    normal = check_topic_schema(pa.schema([field], metadata={"pandas": "{}"}))
    assert normal.metadata is None
    assert normal.field("v").metadata is None
    assert normal.field("v").type.field("metadata").metadata == {b"variant": b"true"}
    assert schema_from_bytes(schema_to_bytes(normal)).equals(normal, check_metadata=True)


def test_new_columns_must_be_nullable_and_new() -> None:
    """A schema evolves by nullable columns."""
    old = parse_schema("a int")
    assert check_new_columns(old, pa.schema([("b", pa.large_string())])).equals(parse_schema("a int, b string"))
    for columns in ("a int", "b int not null"):
        with pytest.raises(InvalidSchemaError):
            check_new_columns(old, parse_schema(columns))
    with pytest.raises(InvalidSchemaError):
        check_new_columns(old, pa.schema([]))


def test_schema_bytes_are_bounded_and_garbage_is_refused() -> None:
    """A client's bytes may be anything."""
    data = schema_to_bytes(typed_schema(EVERY_TYPE).arrow)
    assert schema_from_bytes(data).equals(typed_schema(EVERY_TYPE).arrow)
    with pytest.raises(InvalidSchemaError, match=str(MAX_SCHEMA_BYTES)):
        schema_to_bytes(pa.schema([("a" * MAX_SCHEMA_BYTES, pa.int8())]))
    for garbage in (b"", b"x", bytes(1000), b"\xff" * 1000, data[:-20], bytes(MAX_SCHEMA_BYTES + 1)):
        with pytest.raises(InvalidSchemaError):
            schema_from_bytes(garbage)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x81 if position % 2 else 1
        try:
            check_topic_schema(schema_from_bytes(bytes(damaged)))
        except InvalidSchemaError:
            continue


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_schema_bytes_with_names_that_are_not_utf8_are_refused(kind: str) -> None:
    """This holds for every name and zone, in dictionaries and extensions, too: later code never meets them."""
    with pytest.raises(InvalidSchemaError, match="has a name or time zone that is not UTF-8"):
        schema_from_bytes(foreign_bytes(FOREIGN_SCHEMAS[kind].serialize()))


def test_history_is_dense_and_read_from_a_topics_description() -> None:
    """Versions are found by id; an unknown id means an outdated history, not damage."""
    info = TopicInfo(name="t", topic_id=bytes(16), partitions=())
    assert schema_history_from_info(info).latest is UNTYPED
    first, second = parse_schema("a string"), parse_schema("a string, b int")
    versions = tuple(SchemaVersion(schema_id=i, arrow=schema_to_bytes(s)) for i, s in enumerate((first, second)))
    history = schema_history_from_info(
        TopicInfo(name="t", topic_id=bytes(16), partitions=(), schemas=versions, key="a")
    )
    assert (len(history), history.latest.schema_id, history.latest.key) == (2, 1, "a")
    assert history.get(0).arrow.equals(first)
    assert [version.schema_id for version in history] == [0, 1]
    assert (history.knows(1), history.knows(2), history.knows(-1)) == (True, False, False)
    with pytest.raises(SchemaMismatchError, match="refresh"):
        history.get(2)
    with pytest.raises(ValueError, match="gap"):
        SchemaHistory([TopicSchema(schema_id=1, arrow=first)])


def test_column_ids_are_positions_and_unknown_names_name_the_nearest() -> None:
    """The error for a typo suggests the intended name."""
    schema = TopicSchema(schema_id=0, arrow=parse_schema("carrier string, delay int"))
    assert schema.column_ids(["delay", "carrier"]) == (1, 0)
    with pytest.raises(SchemaMismatchError, match="did you mean 'carrier'"):
        schema.column_ids(["carier"])
    with pytest.raises(SchemaMismatchError, match="did you mean 'delay'"):
        schema.column_ids(["DELAY"])
    with pytest.raises(SchemaMismatchError, match="choose from carrier, delay"):
        schema.column_ids(["xyz"])
    assert schema == TopicSchema(schema_id=0, arrow=parse_schema("carrier string, delay int"))
    assert hash(schema) == hash(TopicSchema(schema_id=0, arrow=parse_schema("carrier string, delay int")))
    assert schema != TopicSchema(schema_id=0, arrow=parse_schema("carrier string, delay long"))


def test_schemas_travel_to_executors() -> None:
    """Spark pickles the schema that a reader holds."""
    history = SchemaHistory([TopicSchema(schema_id=0, arrow=parse_schema("a string, b int"), key="a")])
    copy = pickle.loads(pickle.dumps(history))
    assert list(copy) == list(history)
    assert {copy.latest: 1}[history.latest] == 1
