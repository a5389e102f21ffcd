"""Attempts of tasks: retried, doubled, killed in the middle of writing, lost with their executor. One counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_log import read
from tests.spark.conftest import FRUGAL_JAVA
from tests.spark.test_restart import kill_group
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("real_workers")

PARTITIONS, ROWS = 4, 40_000
LIMIT_S = 420.0

PROGRAM = '''
import json, os, sys, time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from pyspark_log.spark.sink import PylogBatchWriter, PylogStreamWriter
from pyspark_log.spark.source import DefaultSource

given = json.loads(sys.argv[1])


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def first_time(happening, notes):
    """Whether this is the first attempt that comes here: it alone suffers ``happening``."""
    try:
        os.close(os.open(f"{notes}/{happening}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def note(happening, notes, context):
    """An attempt has written all its rows."""
    Path(f"{notes}/{happening}.written.{context.partitionId()}.{context.taskAttemptId()}.{time.time_ns()}").touch()


def suffer(writer, happening, notes, write):
    """``write`` with one thing that happens to the first attempt of task 0, in the middle or after everything."""

    def written(batches):
        context = TaskContext.get()
        is_chosen = context.partitionId() == 0 and first_time(happening, notes)

        def passed():
            for number, batch in enumerate(batches):
                if is_chosen and number == 2:
                    if happening == "worker-killed":
                        os.kill(os.getpid(), 9)
                    if happening == "executor-killed":
                        os.kill(parent_of(parent_of(os.getpid())), 9)
                yield batch

        if is_chosen and happening.startswith("twice"):
            # As with speculation, which Spark leaves undone where all executors are on one host.
            whole = list(batches)
            batches = whole
            write(passed())
            note(happening, notes, context)
        message = write(passed())
        note(happening, notes, context)
        if is_chosen and happening == "failed-after-writing":
            raise RuntimeError("failed after writing")
        return message

    return written


class Batch(PylogBatchWriter):
    def write(self, iterator):
        return suffer(self, self.happening, self.notes, super().write)(iterator)


class Stream(PylogStreamWriter):
    def write(self, iterator):
        return suffer(self, self.happening, self.notes, super().write)(iterator)


class Suffering(DefaultSource):
    def __init__(self, options):
        self.happening, self.notes = options.pop("happening"), options.pop("notes")
        super().__init__(options)

    @classmethod
    def name(cls):
        return "suffering"

    def writer(self, schema, overwrite):
        made = super().writer(schema, overwrite)
        made.__class__, made.happening, made.notes = Batch, self.happening, self.notes
        return made

    def streamWriter(self, schema, overwrite):
        made = super().streamWriter(schema, overwrite)
        made.__class__, made.happening, made.notes = Stream, self.happening, self.notes
        return made


spark = (SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
         .config("spark.executor.extraJavaOptions", given["java"]).config("spark.executor.memory", "1g")
         .config("spark.python.unix.domain.socket.enabled", "true")
         .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
         .getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(Suffering)
rows = spark.range(given["rows"], numPartitions=given["partitions"]).selectExpr("cast(id as string) value")
for happening, topic in given["batches"].items():
    writer = rows.write.format("suffering").options(**given["sink"], happening=happening, notes=given["notes"])
    writer.option("topic", topic).mode("append").save()
    print("DONE", happening, flush=True)
for happening, topic in given["streams"].items():
    source = spark.readStream.format("pylog").options(**given["sink"], subscribe=given["batches"]["worker-killed"],
                                                     startingOffsets="earliest", minPartitions=given["partitions"])
    writer = source.load().select("value").writeStream.format("suffering").options(**given["sink"])
    query = (writer.options(happening=happening, notes=given["notes"], topic=topic,
                            checkpointLocation=given["notes"] + "/checkpoint-" + happening)
             .trigger(availableNow=True).start())
    query.awaitTermination()
    print("DONE", happening, flush=True)
'''


def test_one_attempt_of_each_task_counts(workers_python, new_topic, options, admin, tmp_path) -> None:
    """S6: a task that fails after it has written everything, one whose Python worker is killed in the middle, one that
    is lost with its executor, and one that is written twice to the end, in batch writes and in a streaming query.
    """
    batches = {
        name: new_topic(partitions=2) for name in ("worker-killed", "failed-after-writing", "twice", "executor-killed")
    }
    streams = {"twice-stream": new_topic(partitions=2)}
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    given = {
        "sink": options, "rows": ROWS, "partitions": PARTITIONS, "notes": str(tmp_path), "java": FRUGAL_JAVA,
        "batches": batches, "streams": streams,
    }  # fmt: skip
    with (tmp_path / "errors").open("w") as errors, (tmp_path / "printed").open("w") as printed:
        job = subprocess.Popen(
            [sys.executable, str(program), json.dumps(given)],
            stdout=printed,
            stderr=errors,
            env={**os.environ, "SPARK_HOME": str(Path(__import__("pyspark").__file__).parent)},
            start_new_session=True,
        )
        try:
            assert job.wait(LIMIT_S) == 0, (tmp_path / "errors").read_text()[-5000:]
        finally:
            kill_group(job)
    for happening, topic in {**batches, **streams}.items():
        assert (tmp_path / happening).exists(), f"{happening} did not happen"
        wait_until(lambda topic=topic: written(options, topic) == list(range(ROWS)), f"{happening}: all, once", 30)
        attempts = len(list(tmp_path.glob(f"{happening}.written.0.*")))
        # The first attempt had written everything, too, where it failed after that or was doubled. The Python worker
        # of an executor that was killed may live on for a moment, and write what it was given.
        possible = {"worker-killed": {1}, "executor-killed": {1, 2}}
        assert attempts in possible.get(happening, {2}), happening
    wait_until(lambda: not admin.list_open_transactions()[0], "nothing is left open", 60)


def written(options: dict[str, str], topic: str) -> list[int]:
    table = read(topic, bootstrap_servers=options["pylog.bootstrap.servers"]).read_all()
    return sorted(int(value) for value in table.column("value").to_pylist())
