"""The Spark schema of a source's rows (KafkaSourceSuite "Kafka column types", S7)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.schema import UNTYPED, TopicSchema, check_topic_schema, parse_schema
from pyspark_log.spark.options import parse_source_options
from pyspark_log.spark.row_schema import lay_out_rows

KAFKA_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
HEADERS = "array<struct<key:string,value:binary>>"


def typed(schema: pa.Schema) -> TopicSchema:
    return TopicSchema(schema_id=0, arrow=check_topic_schema(schema), is_typed=True, key=None)


FLIGHTS = typed(pa.schema([pa.field("carrier", pa.string(), nullable=False), pa.field("delay", pa.int32())]))


def layout(topics: dict[str, TopicSchema], **given: str):
    return lay_out_rows(topics, parse_source_options({"subscribe": "t", **given}))


def ddl(text: str) -> StructType:
    return from_arrow_schema(parse_schema(text))


def test_rows_of_an_untyped_topic_are_kafkas() -> None:
    """S7: these are Kafka's seven columns; headers only with includeHeaders."""
    assert layout({"t": UNTYPED}).schema == ddl(KAFKA_COLUMNS)
    assert layout({}).schema == ddl(KAFKA_COLUMNS)
    with_headers = layout({"t": UNTYPED}, includeHeaders="true")
    assert with_headers.schema == ddl(f"{KAFKA_COLUMNS}, headers {HEADERS}")
    assert not with_headers.is_typed


def test_rows_of_a_typed_topic_are_its_columns() -> None:
    """S7: columns keep their nullability; _metadata is added on request."""
    assert layout({"t": FLIGHTS}).schema == ddl("carrier string not null, delay int")
    rows = layout({"t": FLIGHTS, "u": FLIGHTS}, includeMetadata="true")
    metadata = (
        f"struct<topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,headers:{HEADERS}>"
    )
    assert rows.schema == ddl(f"carrier string not null, delay int, _metadata {metadata}")
    assert rows.is_typed


def test_columns_are_chosen_in_the_order_given() -> None:
    """S8: `columns` works for both kinds of topics."""
    assert layout({"t": FLIGHTS}, columns="delay,carrier").columns == ("delay", "carrier")
    assert layout({"t": UNTYPED}, columns="offset, value").columns == ("offset", "value")
    assert layout({"t": FLIGHTS}, columns="delay", includeMetadata="true").columns == ("delay", "_metadata")


def test_topics_that_share_the_chosen_columns_are_read_together() -> None:
    """S4: `columns` counts before the schemas are compared; a column is nullable where it is in one of the topics."""
    other = typed(pa.schema([("price", pa.float64()), ("delay", pa.int32()), ("carrier", pa.string())]))
    assert layout({"t": FLIGHTS, "u": other}, columns="carrier,delay").schema == ddl("carrier string, delay int")
    with pytest.raises(OptionError, match=r"name columns that both have with .option\('columns', …\)"):
        layout({"t": FLIGHTS, "u": other})
    with pytest.raises(OptionError, match="topic t has no column 'price'"):
        layout({"t": FLIGHTS, "u": other}, columns="price")
    longer = typed(pa.schema([("delay", pa.int64())]))
    with pytest.raises(OptionError, match=r"different schemas \(delay int32; delay int64\)"):
        layout({"t": FLIGHTS, "u": longer}, columns="delay")


@pytest.mark.parametrize(
    ("topics", "given", "says"),
    [
        ({"t": FLIGHTS}, {"columns": "carier"}, "no column 'carier'; did you mean 'carrier'?"),
        ({"t": UNTYPED}, {"columns": "valu"}, "did you mean 'value'?"),
        ({"t": UNTYPED}, {"columns": "headers"}, "it needs includeHeaders=true"),
        ({"t": FLIGHTS, "u": UNTYPED}, {}, "cannot be read by one source"),
        ({"t": FLIGHTS, "u": typed(pa.schema([("x", pa.int64())]))}, {}, "Topics t and u have different schemas"),
        ({"t": FLIGHTS}, {"includeHeaders": "true"}, "use includeMetadata"),
    ],
)
def test_impossible_rows_are_refused_by_name(topics: dict[str, TopicSchema], given: dict[str, str], says: str) -> None:
    """The error has the nearest name for an unknown column, and the names of topics that do not fit together."""
    with pytest.raises(OptionError) as caught:
        layout(topics, **given)
    assert says in str(caught.value)


def test_every_type_of_spark_keeps_its_type() -> None:
    """S7: the Arrow type is exactly the one that Spark demands of the batches."""
    struct = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.string()))])
    given = pa.schema(
        [
            ("bool", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("i64", pa.int64()),
            ("f32", pa.float32()), ("f64", pa.float64()), ("dec", pa.decimal128(12, 3)), ("s", pa.string()),
            ("b", pa.binary()), ("d", pa.date32()), ("ts", pa.timestamp("us", tz="UTC")), ("ntz", pa.timestamp("us")),
            ("dur", pa.duration("us")), ("list", pa.list_(pa.int32())), ("map", pa.map_(pa.string(), pa.float64())),
            ("struct", struct), ("null", pa.null()),
        ]
    )  # fmt: skip
    schema = typed(given)
    assert layout({"t": schema}).arrow_schema().equals(schema.arrow)
