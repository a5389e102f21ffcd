"""Restarts from checkpoints: killed at any stage of a micro-batch, a query continues exactly where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_log import read
from tests.spark.queries import forget, run_to_end, stream_of
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("real_workers")

BATCHES = 4
ROWS_PER_BATCH = 5


@pytest.fixture
def frame(spark, new_topic, options, send):
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        send(topic, [f"{partition}-{n}" for n in range(BATCHES * ROWS_PER_BATCH // 2)], partition=partition)
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS_PER_BATCH - 1)}
    return stream_of(spark, {**options, "subscribe": topic, **given})


@pytest.mark.parametrize(
    ("stage", "gone"),
    [
        ("after the batch was committed", []),
        ("after the sink was done, before the commit was logged", ["commits"]),
        ("before the batch was planned", ["commits", "offsets"]),
    ],
)
def test_query_killed_at_a_stage_continues_exactly_there(frame, checkpoint, stage, gone) -> None:
    """S3: micro-batches that the checkpoint records as done are not read again; the one in flight is read again
    unchanged.
    """
    before = run_to_end(frame, checkpoint)
    last_id, last_rows = before.batches[-1]
    for kind in gone:
        forget(checkpoint, kind, last_id)
    after = run_to_end(frame, checkpoint)
    if not gone:
        assert after.batches == []
    else:
        assert after.batches[0] == (last_id, last_rows)
        assert len(after.batches) == 1
    assert len(before.rows) == BATCHES * ROWS_PER_BATCH
    assert len({row["value"] for row in before.rows}) == BATCHES * ROWS_PER_BATCH


PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
given = json.loads(sys.argv[1])
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.python.unix.domain.socket.enabled", "true").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
query = (spark.readStream.format("pylog").options(**given["source"]).load().select("value")
         .writeStream.format("pylog").options(**given["sink"]).option("checkpointLocation", given["checkpoint"])
         .trigger(**given["trigger"]).start())
query.awaitTermination()
"""


def test_driver_killed_under_load_loses_nothing(new_topic, options, send, admin, checkpoint, tmp_path) -> None:
    """S2/S5/S6: after SIGKILL of the whole driver a restart ends with every row in the sink once, and the group at the
    end.
    """
    source, target = new_topic(partitions=2), new_topic()
    rows = 3_000
    send(source, range(rows))
    given = {
        "source": {**options, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "200",
                   "pylog.group.id": f"g-{source}"},
        "sink": {**options, "topic": target},
        "checkpoint": checkpoint,
    }  # fmt: skip
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)

    def start(**trigger: object) -> subprocess.Popen:
        arguments = json.dumps({**given, "trigger": trigger})
        return subprocess.Popen([sys.executable, str(program), arguments], start_new_session=True)

    def written() -> list[int]:
        table = read(target, bootstrap_servers=options["pylog.bootstrap.servers"]).read_all()
        return [int(value) for value in table.column("value").to_pylist()]

    job = start(processingTime="0 seconds")
    try:
        wait_until(lambda: len(written()) >= 600, "the job is running", 180)
    finally:
        kill_group(job)
    assert len(set(written())) < rows
    job = start(availableNow=True)
    try:
        assert job.wait(180) == 0
    finally:
        kill_group(job)
    wait_until(lambda: len(written()) >= rows, "the last micro-batch is visible", 30)
    assert sorted(written()) == list(range(rows))
    assert sum(offset.committed for offset in admin.list_group_offsets(f"g-{source}").values()) == rows
    assert (Path(checkpoint) / "commits").is_dir()


def kill_group(job: subprocess.Popen) -> None:
    """Kills the driver, its JVM and all workers, without a warning."""
    import os

    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    job.wait(30)
