"""Batch reads with real queries against a real broker (KafkaRelationSuite)."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pyspark_log import Producer
from tests.spark.queries import batch_of

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)


def values(frame: DataFrame) -> list[str]:
    return sorted(value.decode() for value in frame.toArrow().column("value").to_pylist())


def test_format_is_found_without_registration(spark, new_topic, options, send) -> None:
    """S1: installation is enough; nothing was registered in this session."""
    topic = new_topic()
    send(topic, range(3))
    assert batch_of(spark, {**options, "subscribe": topic}).count() == 3


def test_untyped_topic_has_kafkas_columns(spark, new_topic, options, producer) -> None:
    """S7: column types are Kafka's, keys and values may be null (SPARK-27494), timestamps and offsets are as
    produced.
    """
    topic = new_topic(partitions=2)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)
    producer.send(topic, b"v0", b"k", partition=1, timestamp=at)
    producer.send(topic, None, b"k", partition=1, timestamp=at)
    producer.send(topic, b"v2", None, partition=1, timestamp=at)
    producer.flush(30)
    actual = batch_of(spark, {**options, "subscribe": topic}).orderBy("offset")
    rows = [(b"k", b"v0", 0), (b"k", None, 1), (None, b"v2", 2)]
    expected = spark.createDataFrame(
        [(key, value, topic, 1, offset, at, 0) for key, value, offset in rows], KAFKA_SCHEMA
    )
    assert_df_equality(actual, expected)


def test_headers_are_returned_on_request_and_null_without(spark, new_topic, options, producer) -> None:
    """KafkaRelationSuite "default starting and ending offsets with headers": no headers is null, not an empty list."""
    topic = new_topic()
    producer.send(topic, b"a", headers=[("h", b"1"), ("h", None)])
    producer.send(topic, b"b")
    producer.flush(30)
    frame = batch_of(spark, {**options, "subscribe": topic, "includeHeaders": "true"}).orderBy("offset")
    assert frame.columns[-1] == "headers"
    headers = frame.toArrow().column("headers").to_pylist()
    assert headers == [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None]


ALL_TYPES = pa.table(
    {
        "bool": pa.array([True, None]),
        "i8": pa.array([-128, None], pa.int8()),
        "i16": pa.array([2**15 - 1, None], pa.int16()),
        "i32": pa.array([-(2**31), None], pa.int32()),
        "i64": pa.array([2**63 - 1, None], pa.int64()),
        "f32": pa.array([1.5, None], pa.float32()),
        "f64": pa.array([float("nan"), None], pa.float64()),
        "dec": pa.array([decimal.Decimal("-12345678.901"), None], pa.decimal128(38, 3)),
        "s": pa.array(["zwölf", None]),
        "b": pa.array([b"\x00\xff", None], pa.binary()),
        "d": pa.array([dt.date(1999, 12, 31), None]),
        "ts": pa.array([dt.datetime(2026, 7, 1, 12, 30, 1, 5, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
        "ntz": pa.array([dt.datetime(2026, 7, 1, 2, 30), None], pa.timestamp("us")),
        "dur": pa.array([dt.timedelta(days=1, microseconds=3), None], pa.duration("us")),
        "arr": pa.array([[1, None], None], pa.list_(pa.int32())),
        "map": pa.array([[("k", 1.5), ("l", None)], None], pa.map_(pa.string(), pa.float64())),
        "st": pa.array(
            [{"a": 1, "b": [{"c": "x"}]}, None],
            pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))]),
        ),
    }
)


def test_all_types_of_a_typed_topic_arrive_unchanged(spark, new_topic, options, send) -> None:
    """S7: every type that a Spark schema can have, and nulls, arrive without from_json."""
    topic = new_topic(schema=ALL_TYPES.schema)
    send(topic, ALL_TYPES)
    frame = batch_of(spark, {**options, "subscribe": topic})
    assert frame.columns == ALL_TYPES.column_names
    arrived = frame.toArrow()
    for name in ALL_TYPES.column_names:
        assert str(arrived.column(name).to_pylist()) == str(ALL_TYPES.column(name).to_pylist()), name


def test_all_types_survive_writing_and_reading_by_spark(spark, new_topic, options, send) -> None:
    """S2/S7: Spark reads back what it wrote to a typed topic, whatever the session's time zone."""
    first, second = new_topic(schema=ALL_TYPES.schema), new_topic(schema=ALL_TYPES.schema)
    send(first, ALL_TYPES)
    source = batch_of(spark, {**options, "subscribe": first})
    source.write.format("pylog").options(**options, topic=second).mode("append").save()
    comparable = [name for name in ALL_TYPES.column_names if name != "map"]  # Spark cannot sort or compare maps
    assert_df_equality(
        batch_of(spark, {**options, "subscribe": second}).select(comparable),
        source.select(comparable),
        ignore_row_order=True,
        allow_nan_equality=True,
    )


def test_typed_rows_carry_metadata_on_request(spark, new_topic, options, producer) -> None:
    """S7: `_metadata` is a struct of topic, partition, offset, timestamp, timestampType, headers."""
    topic = new_topic(schema="n int", partitions=1)
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    producer.send(topic, {"n": 7}, timestamp=at, headers=[("h", b"1")])
    producer.flush(30)
    frame = batch_of(spark, {**options, "subscribe": topic, "includeMetadata": "true"})
    [row] = frame.toArrow().to_pylist()
    assert row["n"] == 7
    assert {**row["_metadata"], "timestamp": row["_metadata"]["timestamp"].astimezone(dt.UTC)} == {
        "topic": topic, "partition": 0, "offset": 0, "timestamp": at, "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}],
    }  # fmt: skip
    assert frame.select("_metadata.offset").count() == 1


def test_only_chosen_columns_are_returned(spark, new_topic, options, send) -> None:
    """S8: `columns` selects in the given order, for typed and untyped topics."""
    typed, untyped = new_topic(schema="a int, b string, c double"), new_topic()
    send(typed, pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "c": [0.5]}))
    send(untyped, ["v"])
    assert batch_of(spark, {**options, "subscribe": typed, "columns": "c,a"}).collect() == [(0.5, 1)]
    frame = batch_of(spark, {**options, "subscribe": untyped, "columns": "offset,topic"})
    assert frame.collect() == [(0, untyped)]


def test_columns_added_to_the_topic_are_null_in_older_rows(spark, new_topic, options, admin, send) -> None:
    """S7: a schema grows by nullable columns; a DataFrame keeps the columns of its creation, a new one has them all."""
    topic = new_topic(schema="a int")
    send(topic, pa.table({"a": pa.array([1], pa.int32())}))
    before = batch_of(spark, {**options, "subscribe": topic})
    admin.add_columns(topic, "b string")
    with_both = pa.table({"a": pa.array([2], pa.int32()), "b": ["new"]})
    send_fresh(options, topic, with_both)
    assert sorted(before.collect()) == [(1,), (2,)]
    assert sorted(batch_of(spark, {**options, "subscribe": topic}).collect()) == [(1, None), (2, "new")]


def send_fresh(options: dict[str, str], topic: str, table: pa.Table) -> None:
    from pyspark_log import Producer

    with Producer(options["pylog.bootstrap.servers"]) as producer:
        producer.send_batch(topic, table).result(30)


def test_several_topics_are_read_by_list_and_by_pattern(spark, new_topic, options, send) -> None:
    """S4: subscribe, subscribePattern, assign."""
    topics = [new_topic("multi-x", partitions=2) for _ in range(2)]
    for topic in topics:
        send(topic, ["p0"], partition=0)
        send(topic, ["p1"], partition=1)
    assert batch_of(spark, {**options, "subscribe": ",".join(topics)}).count() == 4
    assert batch_of(spark, {**options, "subscribePattern": "multi-x-.*"}).count() == 4
    assigned = batch_of(spark, {**options, "assign": f'{{"{topics[0]}":[1]}}'})
    assert values(assigned) == ["p1"]
    assert batch_of(spark, {**options, "subscribePattern": "nothing-is-called-this"}).count() == 0


def test_reused_dataframe_sees_new_records(spark, new_topic, options, send) -> None:
    """KafkaRelationSuite "explicit earliest to latest offsets": binding is late although Spark keeps the plan."""
    topic = new_topic(partitions=3)
    frame = batch_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "endingOffsets": "latest"})
    assert frame.count() == 0
    for partition in range(3):
        send(topic, range(10), partition=partition)
    assert frame.count() == 30
    send(topic, range(5), partition=1)
    assert frame.count() == 35


def test_reused_dataframe_starts_at_the_current_earliest_offset(spark, new_topic, options, admin, send) -> None:
    """KafkaRelationSuite "test late binding start offsets": records deleted meanwhile are not missed."""
    topic = new_topic()
    send(topic, range(20))
    frame = batch_of(spark, {**options, "subscribe": topic, "minPartitions": "4"})
    assert frame.count() == 20
    admin.delete_records({(topic, 0): 12})
    assert values(frame) == sorted(str(n) for n in range(12, 20))


def test_reused_dataframe_reads_a_recreated_topic(spark, new_topic, options, admin, send) -> None:
    """KafkaRelationSuite "test late binding start offsets", for a recreated topic: all of it is read, however often."""
    topic = new_topic()
    send(topic, range(6))
    admin.delete_records({(topic, 0): 4})
    frame = batch_of(spark, {**options, "subscribe": topic})
    assert frame.count() == 2
    for count in (3, 7):
        admin.delete_topic(topic)
        admin.create_topic(topic)
        with Producer(options["pylog.bootstrap.servers"]) as producer:  # one that never knew the old topic
            producer.send_batch(topic, pa.table({"value": [b"new"] * count})).result(30)
        assert [frame.count() for _ in range(3)] == [count] * 3


def test_explicit_start_in_a_recreated_topic_is_data_loss(spark, new_topic, options, admin, send) -> None:
    """A reused DataFrame whose start is an offset of the old topic does not mistake the new one for it."""
    topic = new_topic()
    send(topic, range(6))
    given = {**options, "subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":4}}}}'}
    frame = batch_of(spark, given)
    lenient = batch_of(spark, {**given, "failOnDataLoss": "false"})
    assert (frame.count(), lenient.count()) == (2, 2)
    admin.delete_topic(topic)
    admin.create_topic(topic)
    with Producer(options["pylog.bootstrap.servers"]) as producer:
        producer.send_batch(topic, pa.table({"value": [b"new"] * 7})).result(30)
    with pytest.raises(PySparkException, match=r"DATA_LOSS.*recreated"):
        frame.count()
    assert lenient.count() == 3


def test_dataframe_used_twice_in_one_query_is_complete_twice(spark, new_topic, options, send) -> None:
    """KafkaRelationSuite "reuse same dataframe in query": one use is filtered, the other complete."""
    topic = new_topic()
    send(topic, range(10))
    frame = batch_of(spark, {**options, "subscribe": topic})
    assert frame.union(frame).count() == 20
    assert frame.filter("value = cast('3' as binary)").union(frame).count() == 11


def test_explicit_offsets_hold_while_minus_one_follows_the_end(spark, new_topic, options, send) -> None:
    """KafkaRelationSuite "explicit offsets": a fixed end ignores new data, -1 sees it, -2 is the start."""
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        send(topic, range(10), partition=partition)
    given = {**options, "subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":-2,"1":4}}}}'}
    fixed = batch_of(spark, {**given, "endingOffsets": f'{{"{topic}":{{"0":3,"1":6}}}}'})
    moving = batch_of(spark, {**given, "endingOffsets": f'{{"{topic}":{{"0":-1,"1":6}}}}'})
    assert (fixed.count(), moving.count()) == (5, 12)
    send(topic, range(10), partition=0)
    send(topic, range(10), partition=1)
    assert (fixed.count(), moving.count()) == (5, 22)


def test_min_partitions_and_sharing_determine_the_tasks(spark, new_topic, options, send) -> None:
    """S3/SPARK-30656: one task per partition, more with minPartitions, fewer for small ranges; nothing is lost or
    duplicated.
    """
    topic = new_topic(partitions=3)
    for partition in range(3):
        send(topic, range(partition * 100, partition * 100 + 100), partition=partition)
    base = {**options, "subscribe": topic}
    for given, tasks in ({"coalesceRows": "0"}, 3), ({}, 1), ({"minPartitions": "6"}, 6), ({"coalesceRows": "200"}, 2):
        frame = batch_of(spark, {**base, **given})
        assert frame.rdd.getNumPartitions() == tasks, given
        assert values(frame) == sorted(str(n) for n in range(300)), given


def test_rows_of_a_partition_stay_in_order_within_a_shared_task(spark, new_topic, options, send) -> None:
    """S3: ranges that share an input partition are each still in order."""
    topic = new_topic(partitions=4)
    for chunk in range(3):
        for partition in range(4):
            send(topic, range(chunk * 10, chunk * 10 + 10), partition=partition)
    rows = batch_of(spark, {**options, "subscribe": topic, "columns": "partition,offset"}).collect()
    for partition in range(4):
        assert [row.offset for row in rows if row.partition == partition] == list(range(30))


def test_small_and_large_frames_are_read_completely(spark, new_topic, options, producer) -> None:
    """Frames of one row are joined, one of 200,000 rows is sliced; every row comes once, in order."""
    topic = new_topic(partitions=1)
    for n in range(50):
        producer.send(topic, b"small-%d" % n)
        producer.flush(30)
    large = pa.table({"value": pa.array([b"%06d" % n for n in range(200_000)], pa.binary())})
    producer.send_batch(topic, large, partition=0).result(60)
    rows = batch_of(spark, {**options, "subscribe": topic, "columns": "offset,value"}).toArrow()
    assert rows.column("offset").to_pylist() == list(range(200_050))
    assert rows.column("value")[50].as_py() == b"000000"
    assert rows.column("value")[-1].as_py() == b"199999"


def test_empty_topic_gives_no_rows(spark, new_topic, options) -> None:
    """No records are no error."""
    assert batch_of(spark, {**options, "subscribe": new_topic(partitions=3)}).count() == 0


def test_committed_offsets_bound_a_batch_read(spark, new_topic, options, admin, send) -> None:
    """S5: startingOffsets=committed reads what the group has not acknowledged, endingOffsets=committed what it has."""
    topic = new_topic()
    send(topic, range(10))
    admin.alter_group_offsets("g-batch", {(topic, 0): 4})
    base = {**options, "subscribe": topic, "pylog.group.id": "g-batch"}
    assert batch_of(spark, {**base, "startingOffsets": "committed"}).count() == 6
    assert batch_of(spark, {**base, "endingOffsets": "committed"}).count() == 4


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"assign": '{"no-such-topic":[0]}'}, "no-such-topic"),
        ({}, "One of the following options must be specified for pylog source"),
        ({"subscribe": "t", "kafka.group.id": "g"}, "Use 'pylog.group.id'"),
        ({"subscribe": "t", "startingOfset": "latest"}, "did you mean 'startingOffsets'?"),
    ],
)
def test_load_refuses_invalid_options(spark, options, given, says) -> None:
    """S4: a missing topic and bad options fail at load(), and the text says what to do."""
    with pytest.raises(PySparkException) as caught:
        batch_of(spark, {**options, **given})
    assert says in str(caught.value)


def test_load_with_a_path_or_a_schema_names_the_alternative(spark, new_topic, options) -> None:
    """S4: pylog has no paths, and its schema is fixed like Kafka's."""
    topic = new_topic()
    with pytest.raises(PySparkException, match="Name the topic with"):
        spark.read.format("pylog").options(**options).load(topic)
    with pytest.raises(PySparkException, match="fixed schema"):
        spark.read.format("pylog").options(**options, subscribe=topic).schema("value string").load().count()


def test_absent_broker_is_a_clear_error(spark) -> None:
    """The error names the address, and how to start a cluster."""
    with pytest.raises(PySparkException, match=r"BROKER_UNAVAILABLE.*127\.0\.0\.1:1"):
        batch_of(spark, {"subscribe": "t", "pylog.bootstrap.servers": "127.0.0.1:1"})


def test_topics_with_other_schemas_are_read_by_the_columns_they_share(spark, new_topic, options, send) -> None:
    """S4: `columns` counts before the schemas are compared, whatever the order and nullability of the columns."""
    flights = new_topic(schema="carrier string not null, delay int")
    trains = new_topic(schema="speed double, delay int, carrier string")
    send(flights, pa.table({"carrier": ["UA"], "delay": pa.array([7], pa.int32())}))
    send(trains, pa.table({"speed": [200.0], "delay": pa.array([None], pa.int32()), "carrier": [None]}))
    given = {**options, "subscribe": f"{flights},{trains}", "columns": "carrier,delay"}
    rows = {tuple(row) for row in batch_of(spark, given).collect()}
    assert rows == {("UA", 7), (None, None)}
