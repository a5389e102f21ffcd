"""Lost records: an error by default, the rest without repeats on request (KafkaDontFailOnDataLossSuite)."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.spark.queries import batch_of, failure_of, run_to_end, running, stream_of, wait_for_rows


@pytest.fixture
def trimmed(new_topic, admin, send) -> str:
    """A topic whose records 0 to 4 of 10 are gone."""
    topic = new_topic()
    send(topic, range(10))
    admin.delete_records({(topic, 0): 5})
    return topic


def test_batch_read_of_deleted_records(spark, options, trimmed) -> None:
    """S4: failOnDataLoss=true is an error; false must not return duplicates."""
    given = {**options, "subscribe": trimmed, "startingOffsets": f'{{"{trimmed}":{{"0":2}}}}'}
    with pytest.raises(PySparkException, match=r"DATA_LOSS.*gone"):
        batch_of(spark, given).count()
    rows = batch_of(spark, {**given, "failOnDataLoss": "false"}).toArrow()
    assert rows.column("offset").to_pylist() == [5, 6, 7, 8, 9]


def test_batch_read_up_to_an_end_above_the_logs(spark, options, trimmed) -> None:
    """COULD_NOT_READ_OFFSET_RANGE: an explicit end is above the log's."""
    given = {**options, "subscribe": trimmed, "endingOffsets": f'{{"{trimmed}":{{"0":20}}}}'}
    with pytest.raises(PySparkException, match=r"DATA_LOSS.*ends at 10"):
        batch_of(spark, given).count()
    assert batch_of(spark, {**given, "failOnDataLoss": "false"}).count() == 5


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_stream_over_records_that_retention_deleted_while_it_was_stopped(
    spark, new_topic, options, admin, send, checkpoint, fail_on_data_loss
) -> None:
    """KafkaDontFailOnDataLossSuite, micro-batch: the remaining records come once each, or the query fails."""
    topic = new_topic()
    send(topic, range(4))
    given = {**options, "subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
    frame = stream_of(spark, given)
    assert len(run_to_end(frame, checkpoint).rows) == 4
    send(topic, range(4, 12))
    admin.delete_records({(topic, 0): 9})
    if fail_on_data_loss == "true":
        with running(frame, checkpoint, availableNow=True) as (query, _):
            assert "DATA_LOSS" in failure_of(query)
    else:
        assert run_to_end(frame, checkpoint).values == ["9", "10", "11"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_topic_recreated_under_a_running_query_fails_it(
    spark, new_topic, options, admin, send, checkpoint, count
) -> None:
    """PARTITION_OFFSET_CHANGED is raised even if the new topic has as many records as the old one, or more."""
    topic = new_topic()
    send(topic, ["a", "b"])
    frame = stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"})
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 2)
        admin.delete_topic(topic)
        admin.create_topic(topic)
        send_with_a_new_producer(options, topic, [f"new-{n}" for n in range(count)])
        text = failure_of(query)
    assert "DATA_LOSS" in text
    assert collected.values == ["a", "b"]


def test_recreated_topic_is_read_from_its_start_without_fail_on_data_loss(
    spark, new_topic, options, admin, send, checkpoint
) -> None:
    """ "subscribing topic by pattern with topic deletions": the query continues with the new topic."""
    topic = new_topic()
    send(topic, ["a", "b"])
    given = {**options, "subscribePattern": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    with running(stream_of(spark, given), checkpoint) as (query, collected):
        wait_for_rows(query, collected, 2)
        admin.delete_topic(topic)
        admin.create_topic(topic)
        send_with_a_new_producer(options, topic, ["c", "d", "e"])
        wait_for_rows(query, collected, 5)
        query.processAllAvailable()
    assert collected.values == ["a", "b", "c", "d", "e"]


def test_topic_recreated_between_two_runs_fails_the_second(spark, new_topic, options, admin, send, checkpoint) -> None:
    """ "subscribe topic by pattern with topic recreation between batches": "was changed from 2 to 1"."""
    topic = new_topic()
    send(topic, ["a", "b"])
    frame = stream_of(spark, {**options, "subscribePattern": topic, "startingOffsets": "earliest"})
    run_to_end(frame, checkpoint)
    admin.delete_topic(topic)
    admin.create_topic(topic)
    send_with_a_new_producer(options, topic, ["c"])
    with running(frame, checkpoint, availableNow=True) as (query, _):
        assert "was changed from 2 to 1" in failure_of(query)


def test_topic_deleted_under_a_running_query(spark, new_topic, options, admin, send, checkpoint) -> None:
    """PARTITIONS_DELETED: the query's error names the partition."""
    topic = new_topic()
    send(topic, ["a"])
    frame = stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"})
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 1)
        admin.delete_topic(topic)
        assert f"{topic}-0 were deleted" in failure_of(query)


def test_topic_deleted_under_a_running_query_without_fail_on_data_loss(
    spark, new_topic, options, admin, send, checkpoint
) -> None:
    """ "delete a topic when a Spark job is running": nothing fails, and the other topics continue."""
    doomed, stays = new_topic("pair"), new_topic("pair")
    send(doomed, ["a"])
    given = {**options, "subscribe": f"{doomed},{stays}", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    with running(stream_of(spark, given), checkpoint) as (query, collected):
        wait_for_rows(query, collected, 1)
        admin.delete_topic(doomed)
        send(stays, ["b"])
        wait_for_rows(query, collected, 2)
    assert sorted(collected.values) == ["a", "b"]


def test_available_now_fails_when_its_topic_is_deleted(spark, new_topic, options, admin, send, checkpoint) -> None:
    """LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW, whatever failOnDataLoss says."""
    topic = new_topic()
    send(topic, range(6))
    given = {**options, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}

    class DeletesAfterFirst:
        batches = 0

        def __call__(self, frame, batch_id: int) -> None:
            frame.count()
            if batch_id == 0:
                admin.delete_topic(topic)

    writer = stream_of(spark, {**given, "failOnDataLoss": "false"}).writeStream.option("checkpointLocation", checkpoint)
    query = writer.foreachBatch(DeletesAfterFirst()).trigger(availableNow=True).start()
    try:
        assert "Trigger.AvailableNow" in failure_of(query)
    finally:
        query.stop()


def send_with_a_new_producer(options: dict[str, str], topic: str, values: list[str]) -> None:
    """Sends with a producer that never knew the old topic."""
    from pyspark_log import Producer

    with Producer(options["pylog.bootstrap.servers"]) as producer:
        for value in values:
            producer.send(topic, value.encode())
        producer.flush(30)
