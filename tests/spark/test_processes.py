"""Where the code runs: workers that start and end, lookup and registration.

Executors in processes of their own: `tests/deploy/test_standalone.py`, and `test_attempts` and `test_failover` here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyspark_log import register
from tests.spark.queries import batch_of, running, stream_of, wait_for_rows

pytestmark = pytest.mark.usefixtures("real_workers")


def run_program(text: str, directory: Path, **given: object) -> Any:
    """What a driver of its own printed as its result."""
    program = directory / "job.py"
    program.write_text(text)
    environment = {**os.environ, "SPARK_HOME": str(Path(__import__("pyspark").__file__).parent)}
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(given)], capture_output=True, text=True, timeout=500, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


WATCHING_PROGRAM = """
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark_log.spark.source import DefaultSource
given = json.loads(sys.argv[1])
noted = Path(given["noted"])

class WatchedSource(DefaultSource):
    @classmethod
    def name(cls):
        return "watched"

    def reader(self, schema):
        return WatchedReader(super().reader(schema))

class WatchedReader(DataSourceReader):
    def __init__(self, reader):
        self.reader = reader

    def partitions(self):
        return self.reader.partitions()

    def read(self, partition):
        import gc

        yield from self.reader.read(partition)
        noted.write_text(str(gc.get_freeze_count()))

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(WatchedSource)

def objects_kept():
    rows = spark.read.format("watched").options(**given["options"]).load().select("value").collect()
    assert len(rows) == 3
    return int(noted.read_text())

kept, end_s = [objects_kept()], time.monotonic() + 60
while kept[-1] <= 10_000 and time.monotonic() < end_s:
    kept.append(objects_kept())
print("RESULT" + json.dumps([kept[0], kept[-1]]))
"""


def test_workers_collect_no_garbage_among_what_they_imported(new_topic, options, send, tmp_path) -> None:
    """Spark collects after each task, which took 50 ms of processor with all that Arrow, pandas and pylog are. Here a
    source notes how many objects the process that reads has put out of the collector's sight."""
    topic = new_topic()
    send(topic, range(3))
    first, last = run_program(
        WATCHING_PROGRAM, tmp_path, options={**options, "subscribe": topic}, noted=str(tmp_path / "noted")
    )
    assert first == 0
    assert last > 10_000, "no process has kept its imports"


def test_registered_source_is_the_same(spark, new_topic, options, send) -> None:
    """S1: `pyspark_log.register(spark)` is for places where Spark cannot look the source up."""
    register(spark)
    topic = new_topic()
    send(topic, range(3))
    assert batch_of(spark, {**options, "subscribe": topic}).count() == 3


@pytest.mark.slow
def test_query_continues_after_an_idle_minute(spark, new_topic, options, send, checkpoint) -> None:
    """Spark ends all idle workers after a minute: the next micro-batch starts with new processes and empty caches."""
    topic = new_topic()
    frame = stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest"})
    with running(frame, checkpoint) as (query, collected):
        send(topic, ["before"])
        wait_for_rows(query, collected, 1)
        idle_since_s = time.monotonic()
        while time.monotonic() - idle_since_s < 65:  # the minute itself is what is tested
            assert query.isActive
            time.sleep(1)
        send(topic, ["after"])
        wait_for_rows(query, collected, 2)
    assert collected.values == ["before", "after"]
