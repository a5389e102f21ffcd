"""The sink writes every row once: replays, tasks that fail half way, copies of a query, checkpoints put back."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import functions as sf

from pyspark_log import read, write_once
from tests.spark.queries import LIMIT_S, failure_of, forget, offset_in_checkpoint, stream_of
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
    with pytest.raises(PySparkException, match=r"CHECKPOINT_BEHIND_SINK.*another pylog\.transactional\.id"):
        query.awaitTermination(LIMIT_S)
    assert values(options, topic) == before
    # The way out that the error names: everything from there on once more, under another name.
    missing = ROWS - sum(count for batch, count in rows_of(str(old)).items() if batch <= last - 2)
    run(source, {**given, "pylog.transactional.id": f"again-{topic}"}, str(old))
    wait_for(options, topic, ROWS + missing)
    assert sorted(set(values(options, topic))) == before
    assert len(values(options, topic)) == ROWS + missing


def rows_of(checkpoint: str) -> dict[int, int]:
    """How many rows each micro-batch of the checkpoint has, by its id."""
    ends = {}
    for path in (Path(checkpoint) / "offsets").iterdir():
        if path.name.isdigit():
            partitions = offset_in_checkpoint(checkpoint, int(path.name)).values()
            ends[int(path.name)] = sum(offset for each in partitions for offset in each.values())
    return {batch: end - ends.get(batch - 1, 0) for batch, end in ends.items()}


def test_batch_that_comes_back_different_is_refused_and_can_be_kept(source, options, new_topic, checkpoint) -> None:
    """A batch as of a query with rand(), which died between the sink's decision and Spark's record of it: the error has
    both counts and the way out, and the way out is needed for one start only.

    Not with rand() itself: Spark gives it another seed in each start, so one time in 1,024 it would keep all ten rows.
    """
    topic = new_topic(partitions=2)
    given = {**options, "topic": topic}
    last = run(source, given, checkpoint)
    wait_for(options, topic, ROWS)
    before = values(options, topic)
    count = rows_of(checkpoint)[last]
    forget(checkpoint, "commits", last)
    fewer = source.where("offset % 2 = 0")
    for frame, now in ((fewer, r"[1-9]\d*"), (source.where("1 = 0"), "0")):
        query = start(frame, given, checkpoint)
        text = failure_of(query)
        assert "REPLAY_DIFFERS" in text
        assert "pylog.replay.differs=keep" in text
        assert re.search(rf"committed with {count} rows .* with {now} rows", text, re.DOTALL), text
    run(fewer, {**given, "pylog.replay.differs": "keep"}, checkpoint)
    assert values(options, topic) == before
    run(source, given, checkpoint)
    assert values(options, topic) == before


@pytest.mark.parametrize("given", [{}, {"_asyncProgressTrackingOverrideSinkSupportCheck": "true"}])
def test_asynchronous_progress_tracking_is_refused(source, options, new_topic, checkpoint, given) -> None:
    """D6: it gives a batch other offsets after a crash. Spark refuses it; where that is overridden, the sink does."""
    topic = new_topic()
    writer = source.select("value").writeStream.format("pylog").options(**options, **given).option("topic", topic)
    writer.option("checkpointLocation", checkpoint).option("asyncProgressTrackingEnabled", "true")
    if not given:
        with pytest.raises(IllegalArgumentException, match="does not support async progress tracking"):
            writer.start()
    else:
        assert "Option 'asyncProgressTrackingEnabled' is refused" in failure_of(writer.start())
    assert values(options, topic) == []


def test_queries_of_one_application_do_not_meet(source, options, new_topic, tmp_path) -> None:
    """Several sinks in one application, two of them into one topic: each is a query of its own."""
    shared, own = new_topic(partitions=2), new_topic()
    queries = [
        start(source, {**options, "topic": topic}, str(tmp_path / str(number)))
        for number, topic in enumerate((shared, shared, own))
    ]
    for query in queries:
        assert query.awaitTermination(LIMIT_S)
    wait_for(options, shared, 2 * ROWS)
    wait_for(options, own, ROWS)
    once = values(options, own)
    assert len(set(once)) == len(once) == ROWS
    assert values(options, shared) == sorted(once * 2)


def test_rows_for_several_topics_are_one_decision(source, options, new_topic, admin, checkpoint) -> None:
    """A `topic` column, rows placed by their key or by a `partition` column: replayed, they are there once."""
    by_key, by_number = new_topic(partitions=3), new_topic(partitions=2)
    frame = source.selectExpr(
        "value", "substring(value, 1, 1) key", f"if(partition = 0, '{by_key}', '{by_number}') topic",
        "if(partition = 1, cast(offset % 2 as int), null) partition",
    )  # fmt: skip

    def go() -> int:
        writer = frame.writeStream.format("pylog").options(**options).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
        return int(query.lastProgress["batchId"])

    known = {each.transactional_id for each in admin.list_transactions()}
    last = go()
    [mine] = [each for each in admin.list_transactions() if each.transactional_id not in known]
    assert (mine.batch_id, mine.outcome) == (last, "committed")
    for topic in (by_key, by_number):
        wait_for(options, topic, ROWS // 2)
    forget(checkpoint, "commits", last)
    go()
    tables = [
        read(topic, bootstrap_servers=options["pylog.bootstrap.servers"]).read_all() for topic in (by_key, by_number)
    ]
    assert sorted(tables[0]["value"].to_pylist()) == sorted(b"0-%d" % n for n in range(ROWS // 2))
    assert sorted(tables[1]["value"].to_pylist()) == sorted(b"1-%d" % n for n in range(ROWS // 2))
    assert len(set(tables[0]["partition"].to_pylist())) == 1  # all have one key
    assert all(
        int(value.split(b"-")[1]) % 2 == partition
        for value, partition in zip(tables[1]["value"].to_pylist(), tables[1]["partition"].to_pylist(), strict=True)
    )


def test_typed_topic_gets_a_replayed_batch_once(source, options, new_topic, checkpoint) -> None:
    topic = new_topic(partitions=2, schema=pa.schema([("n", pa.int64()), ("name", pa.string())]), key="n")
    frame = source.selectExpr("offset n", "cast(value as string) name")

    def go() -> int:
        writer = frame.writeStream.format("pylog").options(**options).option("topic", topic)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
        return int(query.lastProgress["batchId"])

    forget(checkpoint, "commits", go())
    go()

    def names() -> list[str]:
        return sorted(read(topic, bootstrap_servers=options["pylog.bootstrap.servers"]).read_all()["name"].to_pylist())

    wait_until(lambda: len(names()) >= ROWS, "the last micro-batch is visible", 30)
    assert names() == sorted(f"{partition}-{n}" for partition in (0, 1) for n in range(ROWS // 2))


def test_empty_batches_leave_nothing(source, options, new_topic, admin, checkpoint) -> None:
    """S6: nothing in the log, and nothing in ZooKeeper, for batches without rows."""
    topic = new_topic(partitions=2)
    known = {each.transactional_id for each in admin.list_transactions()}
    run(source.where("value is null"), {**options, "topic": topic}, checkpoint)
    assert [each.high_watermark for each in admin.describe_topic(topic).partitions] == [0, 0]
    assert {each.transactional_id for each in admin.list_transactions()} == known


def test_batch_without_rows_is_decided_too(spark, options, new_topic, send, checkpoint, tmp_path) -> None:
    """S6: else a copy of the checkpoint writes other rows as this batch, and the query writes them once more in its
    next one. Replayed without rows it passes."""
    topic, written = new_topic(), new_topic()
    given = {**options, "topic": written}
    stream = stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"}).where("value = 'yes'")
    send(topic, ["yes"])
    run(stream, given, checkpoint)
    copy = str(tmp_path / "copy")
    shutil.copytree(checkpoint, copy)
    send(topic, ["no"])
    empty = run(stream, given, checkpoint)
    forget(checkpoint, "commits", empty)
    assert run(stream, given, checkpoint) == empty
    send(topic, ["yes"])
    assert "REPLAY_DIFFERS" in failure_of(start(stream, given, copy))
    run(stream, given, checkpoint)
    wait_for(options, written, 2)
    assert values(options, written) == [b"yes"] * 2


def test_checkpoint_location_of_the_session_is_as_good(source, spark, options, new_topic, tmp_path) -> None:
    """The sink goes by the query's id, however Spark is told where the checkpoint is."""
    topic = new_topic(partitions=2)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        for _ in range(2):
            writer = source.select("value").writeStream.format("pylog").options(**options).option("topic", topic)
            query = writer.queryName("named").trigger(availableNow=True).start()
            assert query.awaitTermination(LIMIT_S)
            wait_for(options, topic, ROWS)
            forget(str(tmp_path / "named"), "commits", last_batch(str(tmp_path / "named")))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    found = values(options, topic)
    assert len(found) == len(set(found)) == ROWS


def last_batch(checkpoint: str) -> int:
    """The id of the checkpoint's last micro-batch."""
    return max(rows_of(checkpoint))


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
