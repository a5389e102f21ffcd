"""``python -m tests.chaos.copy_query '{…}'``: a Spark driver that copies one topic into another, to be killed.

It starts Spark, says whom to kill, and waits for a file ``go`` before it starts the query, so that the next driver can
be ready when one dies. It ends with the query: by SIGTERM in order, with ``availableNow`` at the end of the input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyarrow.feather as feather
from pyspark.sql import SparkSession

from tests.chaos.sink_hooks import DIRECTORY, tell_pids

GO: Final = "go"
_LIMIT_S: Final = 900.0


def main() -> None:
    """Runs the query that the argument describes, as `queries.Driver` makes it."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    directory = Path(os.environ[DIRECTORY])
    builder = SparkSession.builder.master(given["master"])
    for name, value in given["spark"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel("org.apache.spark.scheduler.TaskSetManager", log4j.Level.INFO)
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    tell_pids([jvm.pid, os.getpid()])
    deadline_s = time.monotonic() + _LIMIT_S
    while not (directory / GO).exists():
        if time.monotonic() > deadline_s:
            sys.exit("nobody needed this driver")
        time.sleep(0.02)
    trigger = json.loads((directory / GO).read_text())
    rows = spark.readStream.format("pylog").options(**given["source"]).load()
    query = (
        rows.selectExpr(f"'{given['name']}' AS key", "value")
        .writeStream.format("pylog")
        .options(**given["sink"])
        .option("checkpointLocation", given["checkpoint"])
        .trigger(**trigger)
        .start()
    )

    def stop(number: int, frame: FrameType | None) -> None:
        query.stop()

    signal.signal(signal.SIGTERM, stop)
    while not query.awaitTermination(1):
        pass
    if "read_to" in given and "availableNow" in trigger:
        found = spark.read.format("pylog").options(**given["read"]).load()
        table = found.selectExpr("partition", "offset", "key", "value").toArrow()
        feather.write_feather(table, given["read_to"], compression="uncompressed")
    spark.stop()


if __name__ == "__main__":
    main()
