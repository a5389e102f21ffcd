"""Every example runs, as its docstring says, and does what it claims."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_log import Admin, Producer
from pyspark_log.testing import LocalCluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
LIMIT_S = 400
SPARK_SETTINGS = (
    "spark.ui.enabled=false",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.sql.shuffle.partitions=2",
    "spark.python.unix.domain.socket.enabled=true",
)


@pytest.fixture(autouse=True)
def sparks_python(forked_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(forked_python))


def run(*command: str | Path, directory: Path) -> str:
    """Standard output of a program that must succeed; it runs elsewhere, with this Python as Spark's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    environment |= {name: os.environ[name] for name in ("PYSPARK_PYTHON", "SPARK_SUBMIT_OPTS")}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def spark_submit(program: str, *arguments: str, directory: Path) -> str:
    """`spark-submit`, as installed beside this Python."""
    settings = [part for setting in SPARK_SETTINGS for part in ("--conf", setting)]
    submit = Path(sys.executable).parent / "spark-submit"
    return run(submit, "--master", "local[2]", *settings, EXAMPLES / program, *arguments, directory=directory)


def test_word_count_counts_words(pylog_cluster: LocalCluster, tmp_path: Path) -> None:
    """S1, S7: an untyped topic has Kafka's columns; no registration."""
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        admin.create_topic("lines", partitions=2)
    with Producer(pylog_cluster.bootstrap_servers) as producer:
        for line in (b"to be or not to be", b"", b"that is the question", b"to  sleep"):
            producer.send("lines", line)
    shown = spark_submit("word_count.py", pylog_cluster.bootstrap_servers, "lines", directory=tmp_path)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines() if "|" in line]
    assert rows[0] == ["word", "count"]
    assert rows[1:3] == [["to", "3"], ["be", "2"]]
    assert sorted(word for word, _ in rows[3:]) == ["is", "not", "or", "question", "sleep", "that", "the"]


def test_flights_pipeline_and_latest_per_key_agree_with_the_rows(pylog_cluster: LocalCluster, tmp_path: Path) -> None:
    """S2, S7: typed topics are read and written as columns. (That a second run adds new rows is the demo's.)"""
    servers = pylog_cluster.bootstrap_servers
    stats = (
        "carrier string, flights int64, departed int64, dep_delay_sum int64, mean_dep_delay double, "
        "cancelled_share double"
    )
    with Admin(servers) as admin:
        admin.create_topic(
            "flights", partitions=3, schema="carrier string, origin string, dep_delay int32", key="carrier"
        )
        admin.create_topic("carrier_stats", schema=stats, key="carrier")
    flights = [("UA", 2), ("UA", None), ("AA", -3), ("UA", 5), ("B6", 7)]
    with Producer(servers) as producer:
        for carrier, delay in flights:
            producer.send("flights", {"carrier": carrier, "origin": "JFK", "dep_delay": delay})
    shown = spark_submit("flights_pipeline.py", servers, str(tmp_path / "checkpoint"), directory=tmp_path)
    # spark-submit mixes warnings of Python libraries in.
    assert [line for line in shown.splitlines() if line.startswith("micro-batch")] == ["micro-batch 0: 5 flights"]
    spark_submit("latest_per_key.py", servers, str(tmp_path / "figures.json"), directory=tmp_path)
    figures = json.loads((tmp_path / "figures.json").read_text())
    names = ("carrier", "flights", "departed", "dep_delay_sum", "mean_dep_delay", "cancelled_share")
    assert figures == {
        "UA": dict(zip(names, ("UA", 3, 2, 7, 3.5, 1 / 3), strict=True)),
        "AA": dict(zip(names, ("AA", 1, 1, -3, -3.0, 0.0), strict=True)),
        "B6": dict(zip(names, ("B6", 1, 1, 7, 7.0, 0.0), strict=True)),
    }


def test_plain_python_produces_and_consumes(pylog_cluster: LocalCluster, tmp_path: Path) -> None:
    """A producer and a consumer without Spark."""
    shown = run(sys.executable, EXAMPLES / "plain_python.py", pylog_cluster.bootstrap_servers, directory=tmp_path)
    lines = shown.splitlines()
    assert lines[0].startswith("hello is in partition ")
    assert sorted(line.split(": ", 1)[1] for line in lines[1:3]) == ["b'en' b'hello'", "b'fr' b'bonjour'"]
    assert lines[3].startswith("[{'city': 'Cairo', 'celsius': 24.5}")


def test_work_queue_gives_each_job_to_one_worker(pylog_cluster: LocalCluster, tmp_path: Path) -> None:
    """W21, W24: processes with one group id share a topic, and each job is done once, by one of them."""
    shown = run(sys.executable, EXAMPLES / "work_queue.py", pylog_cluster.bootstrap_servers, "3", "30",
                directory=tmp_path)  # fmt: skip
    *done, last = shown.splitlines()
    assert last == "0 jobs are left"
    assert sorted(line.split(" did ")[1] for line in done) == sorted(f"job {number}" for number in range(30))
    assert {line.split(" did ")[0] for line in done} == {"worker 1", "worker 2", "worker 3"}


def test_exactly_once_loses_and_doubles_nothing_though_workers_are_killed(
    pylog_cluster: LocalCluster, tmp_path: Path
) -> None:
    """S6 for everyone else: a receipt and the offset of its payment are there together, or neither is."""
    shown = run(sys.executable, EXAMPLES / "exactly_once.py", pylog_cluster.bootstrap_servers, "2", "5", "600",
                directory=tmp_path)  # fmt: skip
    *_, killed, transactions, receipts, verdict = shown.splitlines()
    assert killed.startswith("killed 5 times"), shown
    begun, ended_well, aborted = map(int, re.findall(r"\d+", transactions))
    assert begun == ended_well + aborted, shown
    written, visible, invisible = map(int, re.findall(r"\d+", receipts))
    assert (written, visible) == (visible + invisible, 600), shown
    assert verdict == "600 payments: 0 without a receipt, 0 receipts too many"


def test_pytest_example_passes_with_the_fixture(tmp_path: Path) -> None:
    """The fixture is available wherever pyspark-log is installed."""
    shown = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path,
                EXAMPLES / "test_with_fixture.py", directory=tmp_path)  # fmt: skip
    assert "2 passed" in shown
