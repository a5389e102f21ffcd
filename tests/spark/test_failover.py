"""Queries whose brokers die: executors in processes of their own, three replicas, and no task of Spark's retried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_log import Admin, Producer, read
from pyspark_log.client.producer.delivery import BatchFuture
from pyspark_log.testing import LocalCluster
from tests.spark.conftest import FRUGAL_JAVA
from tests.spark.queries import LIMIT_S
from tests.spark.test_restart import kill_group
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_workers")]

PARTITIONS = 3
VALUES_PER_BATCH = 30
"""The producer does so ten times a second."""

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
given = json.loads(sys.argv[1])
spark = (SparkSession.builder.master("local-cluster[1,2,1024]").config("spark.ui.enabled", "false")
         .config("spark.executor.extraJavaOptions", given["java"]).config("spark.executor.memory", "1g")
         .config("spark.python.unix.domain.socket.enabled", "true")
         .config("spark.task.maxFailures", "1")  # a failover is ours to survive, not Spark's
         .getOrCreate())
spark.sparkContext.setLogLevel("ERROR")

def start(name, sink, **options):
    values = spark.readStream.format("pylog").options(**given["source"], **{"pylog.group.id": name}).load()
    writer = values.selectExpr("CAST(value AS STRING) AS value").writeStream.format(sink).options(**options)
    checkpoint = given["directory"] + "/checkpoint-" + name
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="1 second").start()
    query.processAllAvailable()  # one after the other: what they start is a lot at once
    return query

files = given["directory"] + "/files"
queries = [start("to-topic", "pylog", **given["sink"]), start("to-files", "text", path=files)]
print("RUNNING", flush=True)
sys.stdin.readline()  # everything is in the source
for query in queries:
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
filed = [row.value for row in spark.read.text(files).collect()]
print("RESULT" + json.dumps(filed), flush=True)
"""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A cluster of its own with three brokers, which are killed."""
    with LocalCluster(brokers=3) as made:
        yield made


def test_query_runs_through_the_failover_of_every_broker(workers_python, cluster, tmp_path) -> None:
    """S2, W11: under load each broker is killed in turn: no query and no task fails, the source delivers every value
    exactly once, and the sink's topic has every acknowledged one at least once.
    """
    servers = cluster.bootstrap_servers
    with Admin(servers) as admin:
        for topic in ("source", "target"):
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        load = Load(servers)
        job = start_job(servers, tmp_path)
        try:
            with load:
                for broker in cluster.broker_ids:
                    cluster.kill(broker)
                    wait_for_growth(admin, job, f"the query continues without broker {broker}")
                    cluster.start(broker)
                    cluster.wait_until_ready()
                    wait_for_growth(admin, job, f"the query continues with broker {broker} back")
            printed, _ = job.communicate("all is sent\n", timeout=LIMIT_S)
        finally:
            kill_group(job)
        assert job.returncode == 0, (tmp_path / "errors").read_text()[-5000:]
        [line] = [line for line in printed.splitlines() if line.startswith("RESULT")]
        sent = Counter(map(str, range(load.sent)))
        assert Counter(json.loads(line.removeprefix("RESULT"))) == sent
        written = read("target", bootstrap_servers=servers).read_all().column("value").to_pylist()
        assert {value.decode() for value in written} == set(sent)
        for group in ("to-topic", "to-files"):
            assert sum(offset.committed for offset in admin.list_group_offsets(group).values()) == load.sent


def start_job(servers: str, directory: Path) -> subprocess.Popen[str]:
    """Both queries in a `local-cluster`; returns when they run. They end when a line arrives on their input."""
    program = directory / "job.py"
    program.write_text(PROGRAM)
    options = {"pylog.bootstrap.servers": servers}
    given = {
        "source": {**options, "subscribe": "source", "startingOffsets": "earliest"},
        "sink": {**options, "topic": "target"},
        "directory": str(directory),
        "java": FRUGAL_JAVA,
    }
    with (directory / "errors").open("w") as errors:
        job = subprocess.Popen(
            [sys.executable, str(program), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "SPARK_HOME": str(Path(__import__("pyspark").__file__).parent)},
            start_new_session=True,
        )
    assert job.stdout is not None
    if job.stdout.readline() != "RUNNING\n":
        kill_group(job)
        pytest.fail((directory / "errors").read_text()[-5000:])
    return job


def wait_for_growth(admin: Admin, job: subprocess.Popen[str], what: str) -> None:
    """Waits until the query has processed several seconds' worth of new values, and still runs."""

    def end() -> int:
        return sum(max(one.high_watermark, 0) for one in admin.describe_topic("target").partitions)

    enough = end() + 20 * VALUES_PER_BATCH
    wait_until(lambda: end() >= enough or job.poll() is not None, what, LIMIT_S, pause_s=0.2)  # a look costs something
    assert job.poll() is None, "the job ended"


class Load:
    """Writes values 0, 1, 2 … to the topic `source`: some at once, the others while the block runs; at its end all
    are acknowledged.
    """

    def __init__(self, servers: str) -> None:
        self.sent = 0
        self._producer = Producer(servers)
        self._futures: list[BatchFuture] = []
        self._is_enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._send()
        self._producer.flush(LIMIT_S)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_enough.set()
        self._thread.join(LIMIT_S)
        self._producer.close()
        for future in self._futures:
            future.result(0)

    def _run(self) -> None:
        while not self._is_enough.wait(0.1):
            self._send()

    def _send(self) -> None:
        values = [b"%d" % value for value in range(self.sent, self.sent + VALUES_PER_BATCH)]
        self._futures.append(self._producer.send_batch("source", pa.table({"value": values})))
        self.sent += len(values)
