"""Which connections Spark's Python processes share between tasks and decisions."""

from __future__ import annotations

import os

import pytest

from pyspark_log.spark import worker_cluster as module
from pyspark_log.spark.options import parse_sink_options, parse_source_options
from pyspark_log.spark.worker_cluster import worker_cluster


def test_one_cluster_for_each_kind_of_options_and_settings_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other options of the same query do not matter; a child of the process gets its own."""
    monkeypatch.setattr(module, "_clusters", {})
    one = parse_sink_options({"topic": "t", "pylog.bootstrap.servers": "one:1"})
    same = parse_sink_options({"topic": "u", "pylog.bootstrap.servers": "one:1"})
    other = parse_sink_options({"topic": "t", "pylog.bootstrap.servers": "two:1"})
    source = parse_source_options({"subscribe": "t", "pylog.bootstrap.servers": "one:1"})
    found = [worker_cluster(each) for each in (one, same, other, source)]
    assert found[0] is found[1]
    assert len(set(map(id, found))) == 3
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert worker_cluster(one) not in found
    for cluster in [*found, worker_cluster(one)]:
        cluster.close()
