"""Streaming reads with real queries against a real broker (KafkaMicroBatchSourceSuite, KafkaSourceSuite)."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from pyspark_log import Admin, Producer
from pyspark_log.testing import LocalCluster
from tests.spark.queries import (
    LIMIT_S,
    failure_of,
    offset_in_checkpoint,
    run_to_end,
    running,
    stream_of,
    wait_for_commit,
    wait_for_rows,
)
from tests.waiting import wait_until

SELECTIONS = {
    "subscribe": lambda topic: {"subscribe": topic},
    "pattern": lambda topic: {"subscribePattern": f"{topic[:-1]}."},
    "assign": lambda topic: {"assign": f'{{"{topic}":[0,1,2,3,4]}}'},
}


@pytest.mark.parametrize("kind", SELECTIONS)
def test_query_from_latest_reads_records_after_its_start(spark, new_topic, options, send, checkpoint, kind) -> None:
    """KafkaSourceSuite "from latest offsets": earlier records are not read, all later ones are, also those sent
    while it is stopped.
    """
    topic = new_topic(partitions=5)
    send(topic, ["before"], partition=0)
    frame = stream_of(spark, {**options, **SELECTIONS[kind](topic)})
    with running(frame, checkpoint) as (query, collected):
        query.processAllAvailable()
        send(topic, ["1", "2"], partition=2)
        wait_for_rows(query, collected, 2)
    send(topic, ["3", "4"], partition=3)
    with running(frame, checkpoint, collected) as (query, _):
        query.processAllAvailable()
        send(topic, ["5"], partition=0)
        query.processAllAvailable()
    assert sorted(collected.values) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("kind", ["subscribe", "pattern"])
def test_query_from_earliest_reads_partitions_added_while_it_runs(
    spark, new_topic, admin, options, send, checkpoint, kind
) -> None:
    """KafkaSourceSuite "from earliest offsets", partitions 5 → 10 mid-query: no restart is needed."""
    topic = new_topic(partitions=5)
    send(topic, ["before"], partition=4)
    frame = stream_of(spark, {**options, **SELECTIONS[kind](topic), "startingOffsets": "earliest"})
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 1)
        admin.create_partitions(topic, 10)
        with_new = {n: f"new-{n}" for n in range(5, 10)}
        with Producer(options["pylog.bootstrap.servers"]) as producer:
            for partition, value in with_new.items():
                producer.send(topic, value.encode(), partition=partition).result(30)
        wait_for_rows(query, collected, 6)
    assert sorted(collected.values) == ["before", *sorted(with_new.values())]


def test_query_from_specific_offsets_reads_from_exactly_there(spark, new_topic, options, send, checkpoint) -> None:
    """KafkaSourceSuite "from specific offsets": -2, -1, 0, 1, 2 in five partitions."""
    topic = new_topic(partitions=5)
    for partition in range(5):
        send(topic, [f"{partition}-{n}" for n in range(3)], partition=partition)
    starts = f'{{"{topic}":{{"0":-2,"1":-1,"2":0,"3":1,"4":2}}}}'
    collected = run_to_end(stream_of(spark, {**options, "subscribe": topic, "startingOffsets": starts}), checkpoint)
    expected = ["0-0", "0-1", "0-2", "2-0", "2-1", "2-2", "3-1", "3-2", "4-2"]
    assert sorted(collected.values) == expected


def test_offsets_in_the_checkpoint_are_like_kafkas(spark, new_topic, options, send, checkpoint) -> None:
    """S3: ``{"topic": {"0": 12}}``."""
    topic = new_topic(partitions=2)
    send(topic, range(12), partition=0)
    run_to_end(stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"}), checkpoint)
    assert offset_in_checkpoint(checkpoint, 0) == {topic: {"0": 12, "1": 0}}


def test_available_now_reads_several_batches_and_leaves_later_data(spark, new_topic, options, send, checkpoint) -> None:
    """KafkaMicroBatchSourceSuite "Trigger.AvailableNow": 15 records, at most 5 → 3 batches, then it stops."""
    topic = new_topic()
    send(topic, range(15))
    frame = stream_of(
        spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    )
    collected = run_to_end(frame, checkpoint)
    assert [len(rows) for _, rows in collected.batches] == [5, 5, 5]
    send(topic, [15])
    assert run_to_end(frame, checkpoint).values == ["15"]


def test_rate_limit_is_proportional_and_survives_a_restart(spark, new_topic, options, send, checkpoint) -> None:
    """KafkaMicroBatchSourceSuite "maxOffsetsPerTrigger": 1/1/8, then 0/1/9; Trigger.Once ignores it."""
    topic = new_topic(partitions=3)
    for partition, count in enumerate((1, 11, 101)):
        send(topic, [f"{partition}-{n}" for n in range(count)], partition=partition)
    frame = stream_of(
        spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    )
    with running(frame, checkpoint, processingTime="1 hour") as (query, collected):
        wait_for_rows(query, collected, 10)
        wait_for_commit(checkpoint, 0)
    with running(frame, checkpoint, collected, processingTime="1 hour") as (query, _):
        wait_for_rows(query, collected, 20)
        wait_for_commit(checkpoint, 1)
    taken = [[sum(row["partition"] == p for row in rows) for p in range(3)] for _, rows in collected.batches]
    assert taken == [[1, 1, 8], [0, 1, 9]]
    rest = run_to_end(frame, checkpoint, once=True)
    assert [len(rows) for _, rows in rest.batches] == [113 - 20]


def test_progress_has_offsets_and_rows(spark, new_topic, options, send, checkpoint) -> None:
    """S9 and "input row metrics": startOffset, endOffset, latestOffset and numInputRows are in the query's progress."""
    topic = new_topic()
    send(topic, range(8))
    frame = stream_of(
        spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    )
    with running(frame, checkpoint, availableNow=True) as (query, _):
        assert query.awaitTermination(LIMIT_S)
        progress = [json.loads(one.json) for one in query.recentProgress if one.numInputRows]
    assert [one["numInputRows"] for one in progress] == [3, 3, 2]
    source = progress[0]["sources"][0]
    assert source["endOffset"] == {topic: {"0": 3}}
    assert source["latestOffset"] == {topic: {"0": 8}}


def test_initial_offset_latest_is_frozen_at_the_start(spark, new_topic, options, send, checkpoint) -> None:
    """ "(de)serialization of initial offsets": a query stopped before its first batch loses nothing."""
    topic = new_topic()
    send(topic, ["old"])
    frame = stream_of(spark, {**options, "subscribe": topic})
    with running(frame, checkpoint) as (query, collected):
        query.processAllAvailable()
        send(topic, ["new"])
        query.processAllAvailable()
        send(topic, ["newer"])
        query.processAllAvailable()
    assert collected.values == ["new", "newer"]


def test_two_sources_in_one_query_of_which_one_is_idle(spark, new_topic, options, send, checkpoint) -> None:
    """SPARK-22956: the query is a union of two topics with a rate limit, one of them empty."""
    busy, idle = new_topic(), new_topic()
    send(busy, range(6))
    limited = {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
    frame = stream_of(spark, {**limited, "subscribe": busy}).union(stream_of(spark, {**limited, "subscribe": idle}))
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 6)
        send(idle, ["late"])
        wait_for_rows(query, collected, 7)
        query.processAllAvailable()
    assert sorted(collected.values) == [*map(str, range(6)), "late"]


def test_watermark_and_aggregation_on_the_timestamp(spark, new_topic, options, producer, checkpoint) -> None:
    """ "KafkaSource with watermark": `timestamp` is the records' own."""
    topic = new_topic()
    for minute in (0, 0, 1, 30):
        producer.send(topic, b"x", timestamp=dt.datetime(2026, 1, 1, 0, minute, tzinfo=dt.UTC))
    producer.flush(30)
    frame = (
        stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"})
        .withWatermark("timestamp", "5 minutes")
        .groupBy(sf.window("timestamp", "1 minute"))
        .count()
    )
    collected = run_to_end(frame, checkpoint)
    assert sorted(row["count"] for row in collected.rows) == [1, 2]


def test_typed_stream_is_deduplicated_by_its_metadata(spark, new_topic, options, send, checkpoint) -> None:
    """S7: `_metadata.timestamp` carries a watermark, so dropDuplicates works on typed rows."""
    topic = new_topic(schema="id int, word string")
    table = pa.table({"id": pa.array([1, 1, 2], pa.int32()), "word": ["a", "a", "b"]})
    send(topic, table)
    frame = (
        stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "includeMetadata": "true"})
        .select("id", "word", sf.col("_metadata.timestamp").alias("at"))
        .withWatermark("at", "1 minute")
        .dropDuplicatesWithinWatermark(["id"])
        .select("id", "word")
    )
    collected = run_to_end(frame, checkpoint)
    assert sorted((row["id"], row["word"]) for row in collected.rows) == [(1, "a"), (2, "b")]


def test_stream_joined_with_itself_reads_its_topic_once_per_side(spark, new_topic, options, send, checkpoint) -> None:
    """ "stream-stream self-join": every pair is there."""
    topic = new_topic()
    send(topic, ["1", "2", "3"])
    frame = stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "columns": "value"})
    joined = frame.alias("a").join(frame.alias("b"), sf.expr("a.value = b.value")).select("a.value")
    assert sorted(run_to_end(joined, checkpoint).values) == ["1", "2", "3"]


def test_two_concurrent_queries_each_get_everything(spark, new_topic, options, send, tmp_path) -> None:
    """Two queries over one topic do not take records from each other."""
    topic = new_topic(partitions=2)
    frame = stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"})
    with (
        running(frame, str(tmp_path / "a")) as (first, of_first),
        running(frame, str(tmp_path / "b")) as (second, of_second),
    ):
        for n in range(20):
            send(topic, [n], partition=n % 2)
        wait_for_rows(first, of_first, 20)
        wait_for_rows(second, of_second, 20)
    expected = sorted(str(n) for n in range(20))
    assert sorted(of_first.values) == sorted(of_second.values) == expected


def test_pattern_finds_topics_created_while_the_query_runs(spark, new_topic, options, send, checkpoint) -> None:
    """S4: a new topic that matches is read from its first record."""
    first = new_topic("grow")
    frame = stream_of(spark, {**options, "subscribePattern": "grow-.*"})
    with running(frame, checkpoint) as (query, collected):
        query.processAllAvailable()
        second = new_topic("grow")
        send(second, ["x", "y"])
        send(first, ["z"])
        wait_for_rows(query, collected, 3)
    assert sorted(collected.values) == ["x", "y", "z"]


def test_stream_stops_while_it_waits(spark, new_topic, options, checkpoint) -> None:
    """ "cannot stop Kafka stream": stop() of an idle query returns."""
    frame = stream_of(spark, {**options, "subscribe": new_topic()})
    with running(frame, checkpoint) as (query, _):
        query.processAllAvailable()
        query.stop()
        wait_until(lambda: not query.isActive, "the query is stopped")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"startingOffsets": '{"TOPIC":{"0":0}}'}, "you must specify all TopicPartitions"),
    ],
)
def test_stream_refuses_options_of_batch_reads(spark, new_topic, options, checkpoint, given, says) -> None:
    """S4: bad options of streams end the query with their message."""
    topic = new_topic(partitions=2)
    given = {name: value.replace("TOPIC", topic) for name, value in given.items()}
    with running(stream_of(spark, {**options, "subscribe": topic, **given}), checkpoint) as (query, _):
        assert says in failure_of(query)


def test_broker_restart_is_only_a_delay_for_a_running_query(spark, checkpoint) -> None:
    """Transient errors never end a query: the broker is killed and comes back, and the query continues."""
    with LocalCluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t")
        given = {"pylog.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t", "startingOffsets": "earliest"}
        with running(stream_of(spark, given), checkpoint) as (query, collected):
            with Producer(cluster.bootstrap_servers) as producer:
                producer.send("t", b"before").result(30)
            wait_for_rows(query, collected, 1)
            cluster.kill(1)
            cluster.start(1)
            with Producer(cluster.bootstrap_servers) as producer:
                producer.send("t", b"after").result(60)
            wait_for_rows(query, collected, 2)
        assert collected.values == ["before", "after"]
