"""Which columns a sink takes (KafkaSinkSuite "with bad schema", "with valid schema but wrong types")."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.schema import parse_schema
from pyspark_log.spark.sink_columns import RecordColumns, find_record_columns

HEADERS = "array<struct<key:string,value:binary>>"


def test_sink_finds_columns_by_name_in_any_case_and_order() -> None:
    """S4: value, key, headers, partition and topic are found; others are left out."""
    schema = from_arrow_schema(
        parse_schema(f"extra int, Partition int, headers {HEADERS}, VALUE string, topic string, key binary")
    )
    assert find_record_columns(schema, None) == RecordColumns(value=3, key=5, headers=2, partition=1, topic=4)


def test_sink_prefers_the_exact_name() -> None:
    """S4: Kafka's sink takes `value` and leaves `Value` out, wherever the two stand."""
    names = {"Value": StringType(), "value": StringType(), "key": BinaryType(), "KEY": IntegerType()}
    schema = StructType([StructField(name, kind) for name, kind in names.items()])
    columns = find_record_columns(schema, "t")
    assert (columns.value, columns.key) == (1, 2)


def test_sink_topic_option_wins_over_the_column() -> None:
    """KafkaSinkSuite: with a topic field and a topic option the option counts."""
    schema = from_arrow_schema(parse_schema("topic int, value binary"))
    assert find_record_columns(schema, "t").topic is None


@pytest.mark.parametrize(
    ("ddl", "topic", "says"),
    [
        ("value string", None, "topic option required when no 'topic' attribute is present."),
        ("key string, topic string", None, "Required attribute 'value' not found"),
        ("value int", "t", "value attribute unsupported type int. value must be a(n) string or binary"),
        ("value string, key array<int>", "t", "key attribute unsupported type array<int>. key must be a(n) string or"),
        ("value string, topic int", None, "topic attribute unsupported type int. topic must be a(n) string"),
        (
            "value string, partition bigint",
            "t",
            "partition attribute unsupported type bigint. partition must be a(n) int",
        ),
        ("value string, headers map<string,binary>", "t", f"headers must be a(n) {HEADERS}"),
        ("value string, headers array<struct<key:string,value:string>>", "t", "headers attribute unsupported type"),
    ],
)
def test_sink_refuses_missing_and_wrong_columns_in_kafkas_words(ddl: str, topic: str | None, says: str) -> None:
    """S4: each column's error names it, its type and what is allowed."""
    with pytest.raises(SchemaMismatchError) as caught:
        find_record_columns(from_arrow_schema(parse_schema(ddl)), topic)
    assert says in str(caught.value)


def test_sink_warns_once_of_columns_that_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    """As with Kafka's sink they are not written; a timestamp that gets lost should not be a surprise."""
    schema = from_arrow_schema(parse_schema("value string, left_out int, `timestamp` timestamp, topic string"))
    for _ in range(2):
        find_record_columns(schema, "t")
    [warning] = caplog.messages
    assert "leave out columns" in warning
    assert "left_out,timestamp" in warning
    assert "value,key,headers,partition,topic" in warning
    caplog.clear()
    find_record_columns(from_arrow_schema(parse_schema("VALUE string, key binary")), "t")
    assert caplog.messages == []
