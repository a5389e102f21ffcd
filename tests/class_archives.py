"""``python -m tests.class_archives``: writes archives of the classes of Spark and ZooKeeper into the venv.

Java calls this class data sharing: a JVM maps the classes into its memory, and need not parse and verify them. A driver
that starts with such a file needs about a third of the processor time, a ZooKeeper half, and the tests start hundreds.
Java itself leaves a file alone that does not fit its version or the jars.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SPARK: Final = Path(sys.prefix) / "spark-classes.jsa"
ZOOKEEPER: Final = Path(sys.prefix) / "zookeeper-classes.jsa"
_FRUGAL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM of minutes spends half of its processor time on optimising itself."""
_LIMIT_S: Final = 300.0
_JOB: Final = """
import sys, tempfile
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
servers, topic, copy = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
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
    """The options of a driver that is to start soon and does not live long."""
    return " ".join([_FRUGAL, *_sharing(SPARK)])


def zookeeper_java() -> str:
    """The options of a ZooKeeper that is to start soon, as ``SERVER_JVMFLAGS`` has them."""
    return shlex.join(_sharing(ZOOKEEPER))


def _sharing(archive: Path) -> list[str]:
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.exists() else []


def keep() -> None:
    """Does what the tests do, and writes the files when it is over. Raises `CalledProcessError`."""
    from pyspark_log import Admin
    from pyspark_log.testing import LocalCluster

    zookeeper_classes = ZOOKEEPER.with_suffix(".new")
    options = [f"-XX:ArchiveClassesAtExit={zookeeper_classes}", "-Xlog:disable"]
    os.environ["SERVER_JVMFLAGS"] = shlex.join(options)
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster() as made,
        Admin(made.bootstrap_servers) as admin,
    ):
        for topic in ("rows", "copy"):
            admin.create_topic(topic, partitions=2)
        job, written = Path(directory) / "job.py", SPARK.with_suffix(".new")
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
        written.replace(SPARK)
    zookeeper_classes.replace(ZOOKEEPER)


if __name__ == "__main__":
    keep()
