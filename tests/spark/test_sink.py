"""Writing with real queries to a real broker (KafkaSinkSuite): batch and stream, untyped and typed topics."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from pyspark_log import read
from tests.spark.queries import LIMIT_S, batch_of, failure_of, stream_of

RECORDS = "key string, value string, topic string, partition int, headers array<struct<key:string,value:binary>>"


def write(frame, given: dict[str, str], mode: str | None = "append") -> None:
    writer = frame.write.format("pylog").options(**given)
    (writer.mode(mode) if mode else writer).save()


def rows_of(options: dict[str, str], topic: str) -> pa.Table:
    return read(topic, metadata=True, bootstrap_servers=options["pylog.bootstrap.servers"]).read_all()


def start(frame, given: dict[str, str], checkpoint: str, mode: str = "append"):
    writer = frame.writeStream.format("pylog").options(**given).option("checkpointLocation", checkpoint)
    return writer.outputMode(mode).trigger(availableNow=True).start()


def test_batch_write_of_all_columns_comes_back(spark, new_topic, options) -> None:
    """KafkaSinkSuite "batch - write to kafka": keys, values and headers come back; null headers stay null."""
    topic = new_topic()
    rows = [
        ("k1", "v1", topic, None, [("h", bytearray(b"1"))]),
        (None, "v2", topic, None, None),
        ("k3", None, topic, None, []),
    ]
    frame = spark.createDataFrame(rows, RECORDS).coalesce(1)
    write(frame, options)
    actual = batch_of(spark, {**options, "subscribe": topic, "includeHeaders": "true"}).orderBy("offset")
    assert_df_equality(
        actual.select(sf.col("key").cast("string"), sf.col("value").cast("string")), frame.select("key", "value")
    )
    headers = actual.toArrow().column("headers").to_pylist()
    assert headers == [[{"key": "h", "value": b"1"}], None, []] or headers == [
        [{"key": "h", "value": b"1"}],
        None,
        None,
    ]


def test_batch_write_by_topic_column_and_by_option(spark, new_topic, options) -> None:
    """KafkaSinkSuite: the topic comes from the field, or from the option, which wins over the field."""
    first, second, third = new_topic(), new_topic(), new_topic()
    frame = spark.createDataFrame([("a", first), ("b", second), ("c", first)], "value string, topic string").coalesce(1)
    write(frame, options)
    write(frame, {**options, "topic": third})
    assert rows_of(options, first).column("value").to_pylist() == [b"a", b"c"]
    assert rows_of(options, second).column("value").to_pylist() == [b"b"]
    assert rows_of(options, third).column("value").to_pylist() == [b"a", b"b", b"c"]


def test_batch_write_partition_column_sets_the_partition(spark, new_topic, options) -> None:
    """KafkaSinkSuite "batch - partition column sets partition": null leaves it to the partitioner."""
    topic = new_topic(partitions=4)
    rows = [("a", 3), ("b", 1), ("c", 3), ("d", None)]
    write(spark.createDataFrame(rows, "value string, partition int").coalesce(1), {**options, "topic": topic})
    arrived = {row["value"]: row["_metadata"]["partition"] for row in rows_of(options, topic).to_pylist()}
    assert (arrived[b"a"], arrived[b"b"], arrived[b"c"]) == (3, 1, 3)
    assert set(arrived) == {b"a", b"b", b"c", b"d"}


def test_batch_write_keeps_rows_of_a_key_together_and_in_order(spark, new_topic, options) -> None:
    """W8: rows with the same key go to the same partition, in the DataFrame's order."""
    topic = new_topic(partitions=4)
    frame = spark.range(1000, numPartitions=1).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")
    write(frame, {**options, "topic": topic})
    rows = rows_of(options, topic).to_pylist()
    assert len(rows) == 1000
    for key in range(7):
        mine = [row for row in rows if row["key"] == str(key).encode()]
        assert len({row["_metadata"]["partition"] for row in mine}) == 1
        numbers = [int(row["value"]) for row in sorted(mine, key=lambda row: row["_metadata"]["offset"])]
        assert numbers == sorted(numbers)


def test_big_write_with_a_small_buffer_blocks_and_loses_nothing(spark, new_topic, options) -> None:
    """KafkaSinkSuite "generic - write big data with small producer buffer"."""
    topic = new_topic(partitions=2)
    given = {**options, "topic": topic, "pylog.buffer.memory": "64KiB", "pylog.compression.type": "zstd"}
    frame = spark.range(200_000, numPartitions=2).selectExpr("cast(id as string) value")
    write(frame, given)
    got = batch_of(spark, {**options, "subscribe": topic, "columns": "value"})
    assert got.select(sf.countDistinct("value"), sf.count("value")).collect() == [(200_000, 200_000)]


@pytest.mark.parametrize(
    ("expression", "given", "says"),
    [
        ("'v' value", {}, "topic option required when no 'topic' attribute is present"),
        ("'k' key", {"topic": "TOPIC"}, "Required attribute 'value' not found"),
        ("1 value", {"topic": "TOPIC"}, "value attribute unsupported type int. value must be a(n) string or binary"),
        ("'v' value, 1 key", {"topic": "TOPIC"}, "key attribute unsupported type int"),
        ("'v' value, 1 topic", {}, "topic attribute unsupported type int. topic must be a(n) string"),
        ("'v' value, 'x' partition", {"topic": "TOPIC"}, "partition attribute unsupported type string"),
        ("'v' value, 'x' headers", {"topic": "TOPIC"}, "headers attribute unsupported type string"),
        ("'v' value, cast(null as string) topic", {}, "null topic present in the data"),
        ("'v' value", {"topic": "no-such-topic"}, "no-such-topic"),
        ("'v' value, 'no-such-topic' topic", {}, "no-such-topic"),
        ("'v' value", {"topic": "TOPIC", "pylog.key.serializer": "x"}, "'pylog.key.serializer' is not supported"),
        ("'v' value, 7 partition", {"topic": "TOPIC"}, "7"),
    ],
)
def test_batch_write_refuses_in_kafkas_words(spark, new_topic, options, expression, given, says) -> None:
    """KafkaSinkSuite "with bad schema", "with valid schema but wrong types", "to non-existing topic", null topic."""
    topic = new_topic()
    given = {name: value.replace("TOPIC", topic) for name, value in given.items()}
    frame = spark.range(1, numPartitions=1).selectExpr(*expression.split(", "))
    with pytest.raises(PySparkException) as caught:
        write(frame, {**options, **given})
    assert says in str(caught.value)
    assert rows_of(options, topic).num_rows == 0


def test_overwrite_is_refused(spark, new_topic, options) -> None:
    """KafkaSinkSuite "batch - unsupported save modes": a log only appends; the error names the alternative."""
    topic = new_topic()
    frame = spark.range(1).selectExpr("'v' value")
    with pytest.raises(PySparkException, match=r'OVERWRITE_REFUSED.*Use \.mode\("append"\)'):
        write(frame, {**options, "topic": topic}, mode="overwrite")
    with pytest.raises(PySparkException, match=r'"ErrorIfExists".*"Append"'):  # Spark's own text for an omitted mode
        write(frame, {**options, "topic": topic}, mode=None)


def test_expressions_are_analysed_before_they_are_written(spark, new_topic, options) -> None:
    """SPARK-20496: a DataFrame built from expressions causes no UnresolvedException."""
    topic = new_topic()
    frame = spark.createDataFrame([("a,b",)], "line string").select(sf.explode(sf.split("line", ",")).alias("value"))
    write(frame, {**options, "topic": topic})
    assert sorted(rows_of(options, topic).column("value").to_pylist()) == [b"a", b"b"]


def test_stream_write_copies_a_topic_and_reports_rows(spark, new_topic, options, send, checkpoint) -> None:
    """S2 and KafkaSinkSuite "streaming - write to kafka with topic option"."""
    source, target = new_topic(partitions=2), new_topic(partitions=2)
    send(source, range(500))
    frame = stream_of(
        spark, {**options, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
    )
    query = start(frame.select("key", "value"), {**options, "topic": target}, checkpoint)
    try:
        assert query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
    got = sorted(int(value) for value in rows_of(options, target).column("value").to_pylist())
    assert got == list(range(500))


def test_stream_write_of_a_complete_aggregate_appends_each_result(spark, new_topic, options, send, checkpoint) -> None:
    """S4: complete mode is accepted, as in Kafka's sink: each result is appended."""
    source, target = new_topic(), new_topic()
    send(source, ["a", "b", "a"])
    frame = stream_of(spark, {**options, "subscribe": source, "startingOffsets": "earliest"})
    counts = frame.groupBy(sf.col("value").cast("string").alias("key")).count()
    result = counts.select("key", sf.col("count").cast("string").alias("value"))
    query = start(result, {**options, "topic": target}, checkpoint, mode="complete")
    try:
        assert query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
    rows = {(row["key"], row["value"]) for row in rows_of(options, target).to_pylist()}
    assert rows == {(b"a", b"2"), (b"b", b"1")}


def test_stream_write_to_a_missing_topic_fails_the_query(spark, new_topic, options, send, checkpoint) -> None:
    """KafkaSinkSuite "streaming - write to non-existing topic": no topic is made by accident."""
    source = new_topic()
    send(source, ["x"])
    frame = stream_of(spark, {**options, "subscribe": source, "startingOffsets": "earliest"})
    query = start(frame.select("value"), {**options, "topic": "no-such-topic"}, checkpoint)
    try:
        assert "no-such-topic" in failure_of(query)
    finally:
        query.stop()


def test_typed_write_matches_columns_by_name(spark, new_topic, options) -> None:
    """S7/S2: columns are matched by name, nullable ones may be missing, and casts are safe."""
    topic = new_topic(schema="carrier string not null, delay int, seen timestamp", key="carrier")
    frame = spark.range(3, numPartitions=1).selectExpr("cast(id as bigint) delay", "concat('C', id) carrier")
    write(frame, {**options, "topic": topic})
    rows = rows_of(options, topic).to_pylist()
    assert sorted((row["carrier"], row["delay"], row["seen"]) for row in rows) == [
        ("C0", 0, None), ("C1", 1, None), ("C2", 2, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["'x' carier"], "carier"),
        (["1 delay"], "carrier"),
        (["'x' carrier", "'late' delay"], "delay"),
        (["'x' carrier", "array(1) delay"], "delay"),
    ],
)
def test_typed_write_refuses_a_wrong_schema_by_column_before_a_row_is_sent(
    spark, new_topic, options, columns, says
) -> None:
    """S7: unknown, missing and wrongly typed columns are named, on the driver."""
    topic = new_topic(schema="carrier string not null, delay int")
    with pytest.raises(PySparkException) as caught:
        write(spark.range(1).selectExpr(*columns), {**options, "topic": topic})
    assert "SCHEMA_MISMATCH" in str(caught.value)
    assert says in str(caught.value)
    assert rows_of(options, topic).num_rows == 0


def test_typed_write_refuses_values_that_do_not_fit(spark, new_topic, options) -> None:
    """S7: the error for a number too large, or a null where none is allowed, names the column."""
    topic = new_topic(schema="n int not null")
    for expression in ("cast(3000000000 as bigint) n", "cast(null as int) n"):
        with pytest.raises(PySparkException, match="'n'"):
            write(spark.range(1).selectExpr(expression), {**options, "topic": topic})
    assert rows_of(options, topic).num_rows == 0


def test_failed_task_fails_the_write_and_acknowledged_rows_stay(spark, new_topic, options) -> None:
    """At least once: a failing task fails the job; acknowledged rows are in the log, and no row is there in part."""
    topic = new_topic()
    good = spark.range(10, numPartitions=1).selectExpr("cast(id as string) value")
    write(good, {**options, "topic": topic})
    failing = spark.range(20_000, numPartitions=1).selectExpr(
        "if(id = 19999, raise_error('boom'), cast(id as string)) value"
    )
    with pytest.raises(PySparkException, match="boom"):
        write(failing, {**options, "topic": topic})
    values = [int(value) for value in rows_of(options, topic).column("value").to_pylist()]
    assert values[:10] == list(range(10))
    assert set(values) <= set(range(20_000))


def test_overwrite_error_does_not_depend_on_the_environment(options) -> None:
    """The refusal comes before any request to a broker."""
    from pyspark.sql.types import StructType

    from pyspark_log.errors import OverwriteRefusedError
    from pyspark_log.spark.source import DefaultSource

    assert "PYSPARK_PYTHON" in os.environ
    with pytest.raises(OverwriteRefusedError):
        DefaultSource({"topic": "t", "pylog.bootstrap.servers": "127.0.0.1:1"}).writer(StructType([]), overwrite=True)
