"""`pylog txn …` against a real broker (W27)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pylog_command import LIMIT_S, Pylog, clean_environment

from pyspark_log import Producer, errors
from pyspark_log.testing import LocalCluster


def test_open_transaction_is_found_and_aborted(pylog: Pylog, pylog_cluster: LocalCluster, topic: str) -> None:
    """An operator sees behind what readers wait, ends it, and its producer learns that."""
    name = f"txn-{topic}"
    with Producer(pylog_cluster.bootstrap_servers, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(topic, b"first", partition=0)
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result(LIMIT_S)
        listed = [json.loads(line) for line in pylog("txn", "list", "-o", "jsonl").stdout.splitlines()]
        (mine,) = [each for each in listed if each["transactional_id"] == name]
        assert (mine["batch_id"], mine["outcome"]) == (0, "committed")
        assert name in pylog("txn", "list").stdout
        shown = pylog("txn", "describe", name)
        assert f"Transactional id {name}: batch 0 committed, 1 open transaction" in shown.stdout + shown.stderr
        (opened,) = json.loads(pylog("txn", "describe", name, "-o", "json").stdout)["open"]
        assert (opened["topic"], opened["partition"], opened["first_offset"]) == (topic, 1, 0)
        assert pylog("txn", "describe", name, "-o", "name").stdout.split() == [f"{topic}:1"]
        pylog("txn", "abort", name, "-y")
        with pytest.raises(errors.ProducerFencedError):
            producer.commit_transaction()
    assert pylog("consume", topic, "--from", "earliest", "-n", "1", "-f", "%v\\n").stdout == "first\n"


IMPATIENT = """
import sys
from pyspark_log.client.admin import health
health.HANGS_MS, health.REMARKED_MS = int(sys.argv.pop(1)), -1
from pyspark_log.cli import main
main()
"""


@pytest.mark.parametrize(("hangs_ms", "status"), [(10**9, 0), (-(10**9), 5)])
def test_health_shows_a_transaction_that_holds_readers_back(
    pylog_cluster: LocalCluster, topic: str, tmp_path: Path, hangs_ms: int, status: int
) -> None:
    """The partition, since which offset, and the command that ends it; with exit status 5 if it should have ended."""
    name = f"hanging-{topic}"
    with Producer(pylog_cluster.bootstrap_servers, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result(LIMIT_S)

        def health(*options: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-c", IMPATIENT, str(hangs_ms), "cluster", "health", "-b",
                 pylog_cluster.bootstrap_servers, *options],
                env=clean_environment(tmp_path), capture_output=True, text=True, timeout=LIMIT_S,
            )  # fmt: skip

        done = health()
        assert done.returncode == status, done.stderr
        assert f"{topic}:1: readers of committed records wait in front of offset 0" in done.stderr
        assert f"pylog txn abort {name}" in done.stderr
        assert (f"{topic}:1" in done.stdout, "transaction-hangs" in done.stdout) == (status == 5, status == 5)
        shown = json.loads(health("-o", "json").stdout)
        [mine] = [each for each in shown["transactions"] if each["transactional_id"] == name]
        assert (mine["partition"], mine["hangs"], mine["limit_s"]) == (f"{topic}:1", status == 5, 60)
        producer.abort_transaction()


def test_unknown_id_is_not_found(pylog: Pylog) -> None:
    """The exit status is 3, and the error names the id."""
    for command in (("describe",), ("abort", "-y")):
        done = pylog("txn", command[0], "no-such-id", *command[1:], status=3)
        assert done.stderr.startswith("[TRANSACTIONAL_ID_NOT_FOUND] no transactional id 'no-such-id'. ")
