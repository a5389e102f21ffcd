"""Run by `test_versions` with the Python of a venv that has the wheel and its dependencies, and nothing else. Its
PySpark is the oldest that is supported, its Python another than the tests'.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter

import pyspark_log
from pyspark_log import Admin, Producer, read
from pyspark_log.errors import SchemaMismatchError
from pyspark_log.testing import LocalCluster

SCHEMA = "carrier string, delay int32"
ROWS = [{"carrier": "AA", "delay": -1}, {"carrier": "UA", "delay": 2}]
LATER = {"carrier": "WN", "delay": 7}
LIMIT_S = 300
STARTS = 5
NOT_CONNECTED = "Python worker failed to connect back"


def main() -> None:
    """Uses the package, the command, a cluster, and Spark both ways, without registration."""
    assert Path(pyspark_log.__file__).is_relative_to(sys.prefix), pyspark_log.__file__
    print(f"Python {sys.version_info.major}.{sys.version_info.minor}, PySpark {pyspark.__version__}", flush=True)
    version = pylog("version")
    assert version.startswith(f"pylog {pyspark_log.__version__} "), version
    with LocalCluster() as cluster:
        servers = cluster.bootstrap_servers
        pylog("-b", servers, "topic", "create", "flights", "-p", "2", "--schema", SCHEMA)
        with Admin(servers) as admin:
            admin.create_topic("copy", schema=SCHEMA)
        with Producer(servers) as producer:
            for row in ROWS:
                producer.send("flights", row)
            refuse_time_out_of_range(servers, producer)
        use_spark(servers)
        printed = pylog("-b", servers, "consume", "copy", "--from", "earliest", "--to", "end", "-o", "jsonl")
        rows = read("copy", bootstrap_servers=servers).read_all().sort_by("carrier").to_pylist()
    assert rows == [*ROWS, LATER], rows
    assert len(printed.splitlines()) == len(rows), printed
    assert all(json.loads(line) for line in printed.splitlines()), printed


def pylog(*arguments: str) -> str:
    """What the command prints."""
    command = Path(sys.executable).parent / "pylog"
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"pylog {' '.join(arguments)}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def refuse_time_out_of_range(servers: str, producer: Producer) -> None:
    """Which numpy is installed depends on the Python, and a later one has an error of its own for it."""
    with Admin(servers) as admin:
        admin.create_topic("times", schema="spent duration")
    try:
        producer.send("times", {"spent": np.timedelta64(2**62, "s")})
    except SchemaMismatchError:
        return
    raise AssertionError("a time that is out of range was taken")


def use_spark(servers: str) -> None:
    """Runs a batch read, and a stream from one topic to another, which writes each row once over two starts."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    options = {"pylog.bootstrap.servers": servers, "subscribe": "flights", "startingOffsets": "earliest"}
    flights = spark.read.format("pylog").options(**options).load()
    assert flights.count() == len(ROWS)
    assert [row.carrier for row in flights.where("delay > 0").collect()] == ["UA"]
    copy = (
        spark.readStream.format("pylog")
        .options(**options)
        .load()
        .writeStream.format("pylog")
        .option("pylog.bootstrap.servers", servers)
        .option("topic", "copy")
        .option("checkpointLocation", str(Path("checkpoint").absolute()))
        .trigger(availableNow=True)
    )
    run_to_its_end(copy)
    # As if the query had died before Spark recorded its last micro-batch: it is written again.
    last = max(Path("checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    written = spark.createDataFrame([tuple(LATER.values())], "carrier string, delay int")
    sink = {"pylog.bootstrap.servers": servers, "topic": "flights"}
    written.write.format("pylog").options(**sink).mode("append").save()
    run_to_its_end(copy)
    spark.stop()


def run_to_its_end(query: DataStreamWriter) -> None:
    """Starts it again where Spark gave up on its own Python process: 10 s are too short on a busy machine."""
    for attempt in range(STARTS):
        try:
            assert query.start().awaitTermination(LIMIT_S)
            return
        except StreamingQueryException as error:
            if NOT_CONNECTED not in str(error) or attempt == STARTS - 1:
                raise


if __name__ == "__main__":
    main()
