"""``python -m tests.spark_classes``: keeps the classes that Spark loads as they are in memory, in a file of the venv.

Java calls this class data sharing. A driver that starts with the file needs about a third of the processor time, and
the tests start dozens. Java itself leaves a file alone that does not fit its version or Spark's jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
_FRUGAL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM of minutes spends half of its processor time on optimising itself."""
_LIMIT_S: Final = 300.0
_JOB: Final = """
import sys, tempfile
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
servers, topic, copy = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
options = {"pylog.bootstrap.servers": servers}
rows = spark.range(100).selectExpr("cast(id as string) as key", "cast(id as string) as value")
rows.write.format("pylog").options(**options, topic=topic).mode("append").save()
read = spark.readStream.format("pylog").options(**options, subscribe=topic, startingOffsets="earliest").load()
with tempfile.TemporaryDirectory() as directory:
    copied = read.select("key", "value").writeStream.format("pylog").options(**options, topic=copy)
    counted = read.groupBy("partition").agg(F.count("*"), F.max("timestamp")).writeStream.format("memory")
    for name, writer in {"copied": copied, "counted": counted.outputMode("complete")}.items():
        writer = writer.queryName(name).option("checkpointLocation", f"{directory}/{name}").trigger(availableNow=True)
        writer.start().awaitTermination()
assert spark.read.format("pylog").options(**options, subscribe=copy).load().toArrow().num_rows == 100
spark.stop()
"""


def frugal_java() -> str:
    """The options of a JVM that is to start soon and does not live long."""
    shared = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else ""
    return _FRUGAL + shared


def keep() -> None:
    """Runs a job that does what the tests do, and writes the file when it is over. Raises `CalledProcessError`."""
    from pyspark_log import Admin
    from pyspark_log.testing import LocalCluster

    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster() as made,
        Admin(made.bootstrap_servers) as admin,
    ):
        for topic in ("rows", "copy"):
            admin.create_topic(topic, partitions=2)
        job, written = Path(directory) / "job.py", ARCHIVE.with_suffix(".new")
        job.write_text(_JOB)
        java = f"{_FRUGAL} -XX:ArchiveClassesAtExit={written} -Xlog:disable"
        subprocess.run(
            [Path(sys.executable).with_name("spark-submit"), job, made.bootstrap_servers, "rows", "copy"],
            env={**os.environ, "SPARK_SUBMIT_OPTS": java, "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=True,
        )
        written.replace(ARCHIVE)


if __name__ == "__main__":
    keep()
