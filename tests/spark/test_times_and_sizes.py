"""Where reads start and end by time, and how large micro-batches and tasks are (KafkaRelationSuite and others)."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.spark.queries import batch_of, run_to_end, running, stream_of, wait_for_rows

GLOBAL = {"start": {"startingTimestamp": "200"}, "end": {"endingTimestamp": "300"}}
BY_PARTITION = {
    "start": {"startingOffsetsByTimestamp": '{"%s":{"0":200,"1":200}}'},
    "end": {"endingOffsetsByTimestamp": '{"%s":{"0":300,"1":300}}'},
}
BY_TOPIC = {"start": {"startingOffsetsByTimestamp": '{"%s":200}'}, "end": {"endingOffsetsByTimestamp": '{"%s":300}'}}


@pytest.fixture
def timed(new_topic, producer) -> str:
    """Two partitions, each with a record at 100, 200, 300 and 400 ms since 1970: its value."""
    topic = new_topic(partitions=2)
    for time_ms in (100, 200, 300, 400):
        for partition in (0, 1):
            at = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
            producer.send(topic, b"%d" % time_ms, partition=partition, timestamp=at)
    producer.flush(30)
    return topic


def times_read(spark, options, topic: str, *given: dict[str, str]) -> list[int]:
    chosen = {name: value.replace("%s", topic) for each in given for name, value in each.items()}
    frame = batch_of(spark, {**options, "subscribe": topic, **chosen})
    return sorted(int(row.value) for row in frame.select("value").collect())


@pytest.mark.parametrize("form", [GLOBAL, BY_PARTITION, BY_TOPIC], ids=["global", "by partition", "by topic"])
def test_timestamp_provided_for_starting_and_ending(spark, timed, options, form) -> None:
    """KafkaRelationSuite: start and end by time, alone, together, and beside offsets."""
    start, end = form["start"], form["end"]
    by_offset = {"endingOffsets": f'{{"{timed}":{{"0":2,"1":4}}}}'}
    assert times_read(spark, options, timed, start, end) == [200, 200]
    assert times_read(spark, options, timed, start) == [200, 200, 300, 300, 400, 400]
    assert times_read(spark, options, timed, end) == [100, 100, 200, 200]
    assert times_read(spark, options, timed, start, by_offset) == [200, 200, 300, 400]
    assert times_read(spark, options, timed, end, {"startingOffsets": f'{{"{timed}":{{"0":1,"1":0}}}}'}) == [
        100, 200, 200,
    ]  # fmt: skip


def test_preferences_on_offset_related_options(spark, timed, options) -> None:
    """KafkaRelationSuite: one time for all, then times by partition, then offsets."""
    offsets = {"startingOffsets": f'{{"{timed}":{{"0":-2,"1":-2}}}}'}
    by_partition = {"startingOffsetsByTimestamp": f'{{"{timed}":300}}'}
    assert times_read(spark, options, timed, offsets, by_partition) == [300, 300, 400, 400]
    assert times_read(spark, options, timed, offsets, by_partition, {"startingTimestamp": "400"}) == [400, 400]


def test_no_matched_offset_for_timestamp(spark, timed, options) -> None:
    """KafkaRelationSuite: a start after all records is an error, or the end by the strategy; an end is the end."""
    with pytest.raises(Exception, match=r"No offset matched from request of topic-partition .* and timestamp 401"):
        times_read(spark, options, timed, {"startingTimestamp": "401"})
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert times_read(spark, options, timed, {"startingTimestamp": "401"}, latest) == []
    assert times_read(spark, options, timed, {"endingTimestamp": "401"}) == [100, 100, 200, 200, 300, 300, 400, 400]


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_query_from_a_timestamp(spark, timed, options, send, checkpoint, strategy) -> None:
    """KafkaSourceSuiteBase: "from global timestamp", restarted; and "with non-matching starting timestamp"."""
    given = {**options, "subscribe": timed, "startingOffsetsByTimestampStrategy": strategy}
    with running(stream_of(spark, {**given, "startingTimestamp": "300"}), checkpoint) as (query, collected):
        query.processAllAvailable()
        assert sorted(collected.values) == ["300", "300", "400", "400"]
    send(timed, ["later"], partition=0)
    with running(stream_of(spark, {**given, "startingTimestamp": "300"}), checkpoint) as (query, collected):
        query.processAllAvailable()
        assert collected.values == ["later"]


def test_query_from_a_time_after_all_records(spark, timed, options, send, checkpoint) -> None:
    """KafkaSourceSuiteBase: "with non-matching starting timestamp": fails, or goes on from the end."""
    after = str(int(dt.datetime.now(dt.UTC).timestamp() * 1000) + 3_600_000)
    given = {**options, "subscribe": timed, "startingTimestamp": after}
    with (
        pytest.raises(Exception, match="No offset matched from request of topic-partition"),
        running(stream_of(spark, given), checkpoint + "-fails") as (query, _),
    ):
        query.processAllAvailable()
    frame = stream_of(spark, {**given, "startingOffsetsByTimestampStrategy": "latest"})
    with running(frame, checkpoint) as (query, collected):
        query.processAllAvailable()
        send(timed, ["later"], partition=0)
        query.processAllAvailable()
        assert collected.values == ["later"]


def test_few_records_wait_for_more(spark, new_topic, options, send, checkpoint) -> None:
    """KafkaMicroBatchSourceSuite: "minOffsetsPerTrigger" and "compositeReadLimit"; the first does not wait."""
    topic = new_topic()
    send(topic, range(3))
    given = {**options, "subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "5",
             "maxOffsetsPerTrigger": "6", "maxTriggerDelay": "1h"}  # fmt: skip
    with running(stream_of(spark, given), checkpoint) as (query, collected):
        query.processAllAvailable()
        assert len(collected.values) == 3
        send(topic, range(4))
        query.processAllAvailable()
        assert len(collected.values) == 3
        send(topic, range(4))
        query.processAllAvailable()
        assert [len(rows) for _, rows in collected.batches] == [3, 6]
    assert len(run_to_end(stream_of(spark, given), checkpoint).values) == 2


def test_few_records_wait_no_longer_than_the_delay(spark, new_topic, options, send, checkpoint) -> None:
    """S4: maxTriggerDelay, which also Spark's times may name."""
    topic = new_topic()
    send(topic, range(1))
    given = {**options, "subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "100",
             "maxTriggerDelay": "2s"}  # fmt: skip
    with running(stream_of(spark, given), checkpoint) as (query, collected):
        query.processAllAvailable()
        send(topic, range(1))
        wait_for_rows(query, collected, 2)


def test_tasks_have_at_most_the_records_that_are_asked_for(spark, new_topic, options, send, checkpoint) -> None:
    """SPARK-49259: maxRecordsPerPartition, in a batch read and in a micro-batch; small ranges share no more."""
    topic = new_topic(partitions=3)
    for partition, count in enumerate((25, 4, 4)):
        send(topic, range(count), partition=partition)
    given = {**options, "subscribe": topic, "startingOffsets": "earliest", "maxRecordsPerPartition": "10"}
    frame = batch_of(spark, given)
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert sum(sizes) == 33
    assert max(sizes) <= 10
    with running(stream_of(spark, given), checkpoint) as (query, collected):
        query.processAllAvailable()
        assert len(collected.values) == 33


def test_create_table_says_what_works(spark, new_topic, options, send) -> None:
    """S1: a table of the catalog cannot be read, whatever a source does; a temporary view can."""
    topic = new_topic()
    send(topic, range(3))
    named = ", ".join(f"`{name}` '{value}'" for name, value in {**options, "subscribe": topic}.items())
    with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW … USING pylog OPTIONS"):
        spark.sql(f"CREATE TABLE refused USING pylog OPTIONS ({named})")
    spark.sql(f"CREATE TEMPORARY VIEW shown USING pylog OPTIONS ({named})")
    assert spark.sql("SELECT count(*) FROM shown").first()[0] == 3
