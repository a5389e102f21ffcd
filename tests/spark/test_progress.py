"""S5: a query's progress as its group's committed offsets in ZooKeeper, for each trigger and each way to end."""

from __future__ import annotations

import os
import signal
import uuid

import pytest
from kazoo.client import KazooClient

from pyspark_log import offsets_behind
from tests.spark.queries import (
    LIMIT_S,
    Collected,
    run_to_end,
    running,
    source_processes,
    stream_of,
    wait_for_commit,
    wait_for_rows,
)
from tests.waiting import wait_until


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def committed(admin, group):
    """The group's committed offset of partition 0 of a topic; None: none."""

    def ask(topic: str) -> int | None:
        found = {
            tp.partition: offset.committed
            for tp, offset in admin.list_group_offsets(group).items()
            if tp.topic == topic
        }
        return found.get(0)

    return ask


@pytest.fixture
def topic(new_topic, send) -> str:
    name = new_topic()
    send(name, range(5))
    return name


@pytest.fixture
def frame(spark, options, topic, group):
    return stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "pylog.group.id": group})


def test_default_trigger_publishes_within_moments(frame, topic, send, committed, checkpoint) -> None:
    """S5: the default is a fraction of a second, without another batch to trigger it."""
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 5)
        wait_until(lambda: committed(topic) == 5, "the first batch is published", 20)
        send(topic, range(3))
        wait_for_rows(query, collected, 8)
        wait_until(lambda: committed(topic) == 8, "the second batch is published", 20)


def test_processing_time_publishes_at_the_next_trigger(frame, topic, committed, checkpoint) -> None:
    """S5: it does so with or without new data."""
    with running(frame, checkpoint, processingTime="1 second") as (query, collected):
        wait_for_rows(query, collected, 5)
        wait_until(lambda: committed(topic) == 5, "the batch is published at the next trigger", 20)


def test_available_now_publishes_at_its_end(spark, options, topic, group, committed, checkpoint) -> None:
    """S5: when awaitTermination returns, the progress is in ZooKeeper."""
    given = {**options, "subscribe": topic, "startingOffsets": "earliest", "pylog.group.id": group}
    run_to_end(stream_of(spark, {**given, "maxOffsetsPerTrigger": "2"}), checkpoint)
    assert committed(topic) == 5


def test_once_publishes_when_the_query_next_starts(frame, topic, committed, checkpoint) -> None:
    """S5: after `once` Spark calls the source no more; the next start publishes the progress."""
    assert len(run_to_end(frame, checkpoint, once=True).rows) == 5
    assert committed(topic) in (0, 5)
    run_to_end(frame, checkpoint)
    assert committed(topic) == 5


def test_stopped_query_publishes_its_last_batch_at_the_latest_when_it_next_starts(
    frame, topic, committed, checkpoint
) -> None:
    """S5: stopped an hour before its next trigger, the last batch is published by the next start."""
    with running(frame, checkpoint, processingTime="1 hour") as (query, collected):
        wait_for_rows(query, collected, 5)
        wait_for_commit(checkpoint, 0)
    with running(frame, checkpoint, collected, processingTime="1 hour"):
        wait_until(lambda: committed(topic) == 5, "the restart publishes", LIMIT_S)
    assert len(collected.rows) == 5


def test_new_query_publishes_where_it_starts(spark, options, topic, group, committed, checkpoint) -> None:
    """W17/S5: a query from latest has its starting point in ZooKeeper before there is data."""
    frame = stream_of(spark, {**options, "subscribe": topic, "pylog.group.id": group})
    with running(frame, checkpoint):
        wait_until(lambda: committed(topic) == 5, "the start is published", LIMIT_S)


def test_killed_source_process_loses_no_progress_for_good(frame, topic, send, committed, checkpoint) -> None:
    """S5: SIGKILL of the source's process ends the query; its next start publishes and continues without a gap."""
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 5)
        wait_until(lambda: committed(topic) == 5, "published")
        for pid in source_processes():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not query.isActive, "the query notices", LIMIT_S)
    send(topic, range(5, 7))
    assert run_to_end(frame, checkpoint).values == ["5", "6"]
    assert committed(topic) == 7


def test_terminated_source_process_publishes_its_progress(frame, topic, committed, checkpoint) -> None:
    """S5: an orderly stop (SIGTERM) publishes at once."""
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 5)
        query.processAllAvailable()
    wait_until(lambda: committed(topic) == 5, "published by the handler", 20)
    wait_until(lambda: not source_processes(), "its process has ended", 20)


def test_progress_shows_how_far_a_query_is_behind(spark, options, topic, checkpoint) -> None:
    """S9: the figures are those of Kafka's source, from what Spark reports of a source in Python."""
    given = {**options, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
    with running(stream_of(spark, given), checkpoint) as (query, collected):
        wait_for_rows(query, collected, 5)
        wait_until(lambda: len([each for each in query.recentProgress if each.numInputRows]) == 3, "all is reported")
        behind = [offsets_behind(each) for each in query.recentProgress if each.numInputRows]
    assert [(each.topics, each.min, each.max, each.avg) for (each,) in behind] == [
        ((topic,), 3, 3, 3.0), ((topic,), 1, 1, 1.0), ((topic,), 0, 0, 0.0),
    ]  # fmt: skip


def test_no_group_commits_nothing(spark, options, topic, pylog_cluster, checkpoint) -> None:
    """S5: without a group id nothing is committed: ZooKeeper has no group that it did not have before (those of other
    tests' queries may still end)."""
    before = groups_in_zookeeper(pylog_cluster.zookeeper_connect)
    run_to_end(stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"}), checkpoint)
    assert groups_in_zookeeper(pylog_cluster.zookeeper_connect) <= before


def groups_in_zookeeper(connect: str) -> set[str]:
    client = KazooClient(connect)
    client.start(20)
    try:
        return set(client.get_children("/consumers")) if client.exists("/consumers") else set()
    finally:
        client.stop()
        client.close()


def test_new_checkpoint_starts_from_the_groups_offsets(
    spark, options, topic, group, send, frame, checkpoint, tmp_path
) -> None:
    """S5: `startingOffsets=committed` continues where the group's query with another checkpoint ended."""
    run_to_end(frame, checkpoint)
    send(topic, ["5", "6"])
    given = {**options, "subscribe": topic, "startingOffsets": "committed", "pylog.group.id": group}
    assert run_to_end(stream_of(spark, given), str(tmp_path / "other")).values == ["5", "6"]


def test_query_continues_while_zookeeper_is_away_and_publishes_afterwards(spark, own_zookeepers, tmp_path) -> None:
    """S5/W26: without ZooKeeper micro-batches continue, and their progress is published when it is back."""
    from pyspark_log import Admin, Producer
    from pyspark_log.testing import LocalCluster

    with LocalCluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t")
        given = {"pylog.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t", "pylog.group.id": "g"}
        frame = stream_of(spark, {**given, "startingOffsets": "earliest"})
        with running(frame, str(tmp_path / "c"), Collected()) as (query, collected):
            query.processAllAvailable()
            cluster.kill_zookeeper(1)
            with Producer(cluster.bootstrap_servers) as producer:
                producer.send("t", b"x").result(60)
            wait_for_rows(query, collected, 1)
            cluster.start_zookeeper(1)

            def is_published() -> bool:
                return [offset.committed for offset in admin.list_group_offsets("g").values()] == [1]

            wait_until(is_published, "published after ZooKeeper came back")
