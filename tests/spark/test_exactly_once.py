"""The sink writes every row once: replays, tasks that fail half way, copies of a query, checkpoints put back."""

from __future__ import annotations

import shutil

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from pyspark_log import read, write_once
from tests.spark.queries import LIMIT_S, forget, stream_of
from tests.waiting import wait_until

ROWS = 40


@pytest.fixture
def source(spark, new_topic, options, send):
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        send(topic, [f"{partition}-{n}" for n in range(ROWS // 2)], partition=partition)
    return stream_of(
        spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    )


def values(options: dict[str, str], topic: str) -> list[bytes]:
    return sorted(read(topic, bootstrap_servers=options["pylog.bootstrap.servers"]).read_all()["value"].to_pylist())


def start(frame, given: dict[str, str], checkpoint: str):
    return (
        frame.select("value")
        .writeStream.format("pylog")
        .options(**given)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def run(frame, given: dict[str, str], checkpoint: str) -> int:
    """Runs the query to its end; the id of its last micro-batch."""
    query = start(frame, given, checkpoint)
    assert query.awaitTermination(LIMIT_S)
    return int(query.lastProgress["batchId"])


def wait_for(options: dict[str, str], topic: str, count: int) -> None:
    wait_until(lambda: len(values(options, topic)) >= count, "the last micro-batch is visible", 30)


@pytest.mark.parametrize("times", [1, 3])
def test_micro_batch_that_is_replayed_is_in_the_log_once(source, options, new_topic, checkpoint, times) -> None:
    """S6: the sink was done, and the query died before Spark recorded it. Each time Spark writes the batch again."""
    topic = new_topic(partitions=2)
    given = {**options, "topic": topic}
    last = run(source, given, checkpoint)
    wait_for(options, topic, ROWS)
    first = values(options, topic)
    for _ in range(times):
        forget(checkpoint, "commits", last)
        run(source, given, checkpoint)
    assert values(options, topic) == first
    assert len(set(first)) == ROWS


def test_task_that_fails_half_way_leaves_nothing(spark, options, new_topic) -> None:
    """Rows of the failed task, and of those beside it that succeeded, are never visible."""
    topic = new_topic(partitions=2)
    fails = sf.udf(lambda n: 1 // (n - 15) and str(n), "string")
    frame = spark.range(20, numPartitions=2).select(fails("id").alias("value"))
    with pytest.raises(PySparkException, match="ZeroDivisionError"):
        frame.write.format("pylog").options(**options).option("topic", topic).mode("append").save()
    spark.range(3).selectExpr("cast(id as string) value").write.format("pylog").options(**options).option(
        "topic", topic
    ).mode("append").save()
    assert values(options, topic) == [b"0", b"1", b"2"]


def test_rows_of_a_batch_write_are_found_as_soon_as_it_returns(spark, options, new_topic) -> None:
    topic = new_topic(partitions=4)
    for n in range(1, 6):
        spark.range(100).selectExpr("cast(id as string) value").write.format("pylog").options(**options).option(
            "topic", topic
        ).mode("append").save()
        assert len(values(options, topic)) == n * 100


def test_checkpoint_that_was_put_back_is_refused(source, options, new_topic, checkpoint, tmp_path) -> None:
    """An older copy would number other rows as batches that are in the log already."""
    topic = new_topic(partitions=2)
    given = {**options, "topic": topic}
    last = run(source, given, checkpoint)
    wait_for(options, topic, ROWS)
    old = tmp_path / "old"
    shutil.copytree(checkpoint, old)
    for n in (last - 1, last):
        for kind in ("commits", "offsets"):
            forget(str(old), kind, n)
    before = values(options, topic)
    query = start(source, given, str(old))
    with pytest.raises(PySparkException, match="CHECKPOINT_BEHIND_SINK"):
        query.awaitTermination(LIMIT_S)
    assert values(options, topic) == before


def test_write_once_in_foreach_batch_writes_each_batch_once(source, spark, options, new_topic, checkpoint) -> None:
    """Spark calls the function again with the batch that it has not recorded."""
    first, second = new_topic(), new_topic()
    address = options["pylog.bootstrap.servers"]
    seen: list[int] = []

    def both(frame, batch_id: int) -> None:
        seen.append(batch_id)
        for topic in (first, second):
            write_once(
                frame.select("value"), batch_id, app_id=f"app-{topic}", topic=topic, pylog_bootstrap_servers=address
            )

    def go() -> None:
        query = (
            source.writeStream.foreachBatch(both)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(LIMIT_S)

    go()
    forget(checkpoint, "commits", seen[-1])
    go()
    assert seen[-1] == seen[-2]
    for topic in (first, second):
        assert len(values(options, topic)) == len(set(values(options, topic))) == ROWS


def test_same_version_with_other_rows_is_refused(spark, options, new_topic) -> None:
    topic = new_topic()
    given = {**options, "topic": topic, "txnAppId": f"app-{topic}", "txnVersion": "7"}

    def write(rows: int, **more: str) -> None:
        frame = spark.range(rows).selectExpr("cast(id as string) value")
        frame.write.format("pylog").options(**{**given, **more}).mode("append").save()

    write(5)
    write(5)
    with pytest.raises(PySparkException, match="REPLAY_DIFFERS"):
        write(6)
    write(6, **{"pylog.replay.differs": "keep"})
    with pytest.raises(PySparkException, match="CHECKPOINT_BEHIND_SINK"):
        write(5, txnVersion="6")
    assert len(values(options, topic)) == 5


def test_second_copy_of_a_query_ends_the_first(source, spark, options, new_topic, send, checkpoint, tmp_path) -> None:
    """Two drivers over copies of one checkpoint: the later one has the id, and no row is in the log twice."""
    topic = new_topic(partitions=2)
    given = {**options, "topic": topic}
    run(source, given, checkpoint)
    copy = str(tmp_path / "copy")
    shutil.copytree(checkpoint, copy)
    run(source, given, copy)
    run(source, given, checkpoint)
    wait_for(options, topic, ROWS)
    found = values(options, topic)
    assert len(found) == len(set(found)) == ROWS
