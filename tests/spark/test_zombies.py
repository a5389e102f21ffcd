"""Drivers that do not die when they should, and those that die at the worst moment: the sink has every row once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from pyspark_log import Admin, read
from pyspark_log.spark.sink import PylogStreamWriter
from pyspark_log.spark.source import DefaultSource
from pyspark_log.testing import LocalCluster
from tests.spark.queries import LIMIT_S, failure_of, stream_of
from tests.spark.test_restart import PROGRAM, kill_group
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_workers")]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not have the tests

ROWS = 1_200
REFUSALS = ("PRODUCER_FENCED", "CHECKPOINT_BEHIND_SINK", "REPLAY_DIFFERS")


def written(servers: str, topic: str) -> list[int]:
    return sorted(int(value) for value in read(topic, bootstrap_servers=servers).read_all()["value"].to_pylist())


@pytest.fixture
def source_of(options, new_topic, send) -> dict[str, str]:
    """The options of a source of `ROWS` values in many micro-batches."""
    topic = new_topic(partitions=2)
    send(topic, range(ROWS))
    return {**options, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}


@pytest.fixture
def driver(source_of, options, new_topic, checkpoint, tmp_path, workers_python) -> Iterator[tuple]:
    """A query in a driver of its own, which has written some of its rows: its process and its topic."""
    target, program = new_topic(), tmp_path / "job.py"
    program.write_text(PROGRAM)
    given = {
        "source": source_of, "sink": {**options, "topic": target}, "checkpoint": checkpoint,
        "trigger": {"processingTime": "0 seconds"},
    }  # fmt: skip
    with (tmp_path / "errors").open("w") as errors:
        job = subprocess.Popen([sys.executable, str(program), json.dumps(given)], stderr=errors, start_new_session=True)
        try:
            servers = options["pylog.bootstrap.servers"]
            wait_until(lambda: written(servers, target), "the job is running", 180, pause_s=0.05)
            yield job, target
        finally:
            kill_group(job)


def start(spark, given: dict[str, str], sink: dict[str, str], checkpoint: str, form: str = "pylog", **trigger: object):
    writer = stream_of(spark, given).select("value").writeStream.format(form).options(**sink)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def test_frozen_driver_writes_nothing_after_another_has_taken_over(
    spark, driver, source_of, options, checkpoint, tmp_path
) -> None:
    """S6: frozen in the middle of a micro-batch, for as long as another run on a copy of its checkpoint needs for
    everything. When it continues, it is refused, and nothing of it is shown.
    """
    job, target = driver
    copy, servers = str(tmp_path / "copy"), options["pylog.bootstrap.servers"]
    os.killpg(job.pid, signal.SIGSTOP)
    try:
        shutil.copytree(checkpoint, copy)
        assert len(written(servers, target)) < ROWS, "it was frozen too late"
        query = start(spark, source_of, {**options, "topic": target}, copy, availableNow=True)
        assert query.awaitTermination(LIMIT_S)
        wait_until(lambda: len(written(servers, target)) >= ROWS, "all is visible", 30)
    finally:
        os.killpg(job.pid, signal.SIGCONT)
    assert job.wait(LIMIT_S) != 0
    assert "PRODUCER_FENCED" in (tmp_path / "errors").read_text()
    assert written(servers, target) == list(range(ROWS))


def test_of_two_live_drivers_on_one_copied_checkpoint_one_is_refused(
    spark, driver, source_of, options, checkpoint, tmp_path
) -> None:
    """S6: both run at once; whichever is refused, the other one writes every row once."""
    job, target = driver
    copy, servers = str(tmp_path / "copy"), options["pylog.bootstrap.servers"]
    shutil.copytree(checkpoint, copy)
    query = start(spark, source_of, {**options, "topic": target}, copy, processingTime="0 seconds")
    try:
        wait_until(lambda: job.poll() is not None or not query.isActive, "one of them is refused", LIMIT_S)
        error = (tmp_path / "errors").read_text() if job.poll() is not None else failure_of(query)
        assert any(name in error for name in REFUSALS), error[-3000:]
        wait_until(lambda: len(written(servers, target)) >= ROWS, "the other one goes on to the end", LIMIT_S)
        assert (job.poll() is None) != query.isActive
    finally:
        query.stop()
    assert written(servers, target) == list(range(ROWS))


class StopsInCommit(PylogStreamWriter):
    """Stands still, or dies, at one line of its first commit. Pickled by value: no module of the tests is imported."""

    def commit(self, messages, batch_id) -> None:
        import os
        import time
        from pathlib import Path

        when, how, notes = self.happening
        if when == "after":
            super().commit(messages, batch_id)
        if batch_id == 1:
            Path(notes).touch()
            if how == "killed":
                os.kill(os.getpid(), 9)
            time.sleep(12)
        if when == "before":
            super().commit(messages, batch_id)


class Stopping(DefaultSource):
    """`pylog`, with `StopsInCommit`."""

    def __init__(self, options) -> None:
        self.happening = [options.pop(name) for name in ("when", "how", "notes")]
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema, overwrite):
        made = super().streamWriter(schema, overwrite)
        made.__class__, made.happening = StopsInCommit, self.happening
        return made


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_query_that_ends_inside_commit_is_restarted(
    spark, source_of, options, new_topic, checkpoint, tmp_path, when: str, how: str
) -> None:
    """S6: `stop()` while the sink decides, or the process that decides is killed, just before or just after: Spark
    writes that micro-batch again.
    """
    spark.dataSource.register(Stopping)
    target, reached = new_topic(), tmp_path / "reached"
    given = {**source_of, "maxOffsetsPerTrigger": str(ROWS // 3)}
    sink = {**options, "topic": target}
    query = start(
        spark, given, {**sink, "when": when, "how": how, "notes": str(reached)}, checkpoint, "stopping",
        processingTime="0 seconds",
    )  # fmt: skip
    try:
        wait_until(reached.exists, "it is in its commit", LIMIT_S)
        if how == "killed":
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
    assert not (Path(checkpoint) / "commits" / "1").exists()
    query = start(spark, given, sink, checkpoint, availableNow=True)
    assert query.awaitTermination(LIMIT_S)
    servers = options["pylog.bootstrap.servers"]
    wait_until(lambda: len(written(servers, target)) >= ROWS, "all is visible", 30)
    assert written(servers, target) == list(range(ROWS))


AWAY_S = 40.0


def test_query_outlasts_a_frozen_broker_and_the_absence_of_all(spark, options, source_of, checkpoint) -> None:
    """S6: the sink is as patient as its source. One of three brokers is frozen, then all are away for a while: the
    query does not end, and every row is there once.
    """
    with LocalCluster(brokers=3) as cluster, Admin(cluster.bootstrap_servers) as admin:
        servers = cluster.bootstrap_servers
        admin.create_topic("target", partitions=3, replication_factor=3)
        sink = {"pylog.bootstrap.servers": servers, "topic": "target"}
        query = start(spark, source_of, sink, checkpoint, processingTime="1 second")

        def grows(what: str) -> None:
            def rows() -> int:
                assert query.isActive, query.exception()
                return len(written(servers, "target"))

            enough = rows() + 1
            wait_until(lambda: rows() >= enough, what, LIMIT_S, pause_s=0.5)

        try:
            grows("it runs")
            cluster.pause(3)
            grows("it goes on without the frozen broker")
            cluster.resume(3)
            for broker in cluster.broker_ids:
                cluster.kill(broker)
            began_s = time.monotonic()
            wait_until(lambda: time.monotonic() - began_s > AWAY_S or not query.isActive, "it waits", AWAY_S + 20)
            assert query.isActive, query.exception()
            for broker in cluster.broker_ids:
                cluster.start(broker)
            cluster.wait_until_ready()
            wait_until(lambda: len(written(servers, "target")) >= ROWS, "it goes on to the end", LIMIT_S, pause_s=0.5)
        finally:
            query.stop()
        assert query.exception() is None
        assert written(servers, "target") == list(range(ROWS))
