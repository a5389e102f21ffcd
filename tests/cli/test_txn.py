"""`pylog txn …` against a real broker (W27)."""

from __future__ import annotations

import json

import pytest
from pylog_command import LIMIT_S, Pylog

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


def test_unknown_id_is_named(pylog: Pylog) -> None:
    for command in (("describe",), ("abort", "-y")):
        done = pylog("txn", command[0], "no-such-id", *command[1:], status=1)
        assert "no transactional id 'no-such-id'" in done.stderr
