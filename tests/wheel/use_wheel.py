"""Run by `check_wheel.py` with the Python of a venv that has the wheel and its dependencies, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark_log
from pyspark_log import Admin, Producer, read
from pyspark_log.testing import LocalCluster


def main() -> None:
    """Uses the package, the command, a cluster, and Spark both ways, without registration."""
    assert Path(pyspark_log.__file__).is_relative_to(sys.prefix), pyspark_log.__file__
    command = Path(sys.executable).parent / "pylog"
    version = subprocess.run([command, "version"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert version.startswith(f"pylog {pyspark_log.__version__} "), version
    with LocalCluster() as cluster:
        servers = cluster.bootstrap_servers
        listed = subprocess.run(
            [
                command,
                "-b",
                servers,
                "topic",
                "create",
                "flights",
                "-p",
                "2",
                "--schema",
                "carrier string, delay int32",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert listed.returncode == 0, listed.stderr
        with Admin(servers) as admin:
            admin.create_topic("copy", schema="carrier string, delay int32")
        with Producer(servers) as producer:
            producer.send("flights", {"carrier": "UA", "delay": 2})
            producer.send("flights", {"carrier": "AA", "delay": -1})
        use_spark(servers)
        rows = read("copy", bootstrap_servers=servers).read_all().sort_by("carrier").to_pylist()
    assert rows == [{"carrier": "AA", "delay": -1}, {"carrier": "UA", "delay": 2}], rows


def use_spark(servers: str) -> None:
    """Runs a batch read, and a stream from one topic to another."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    options = {"pylog.bootstrap.servers": servers, "subscribe": "flights", "startingOffsets": "earliest"}
    assert spark.read.format("pylog").options(**options).load().count() == 2
    query = (
        spark.readStream.format("pylog")
        .options(**options)
        .load()
        .writeStream.format("pylog")
        .option("pylog.bootstrap.servers", servers)
        .option("topic", "copy")
        .option("checkpointLocation", str(Path("checkpoint").absolute()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    spark.stop()


if __name__ == "__main__":
    main()
