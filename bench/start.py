"""How long a broker takes from its start to being ready: with 1,000 partitions, and with 4 GB of log, beside empty.

All were stopped cleanly. The clusters run side by side and their brokers start in turns. Promised: as fast as an empty
one (1.25 times its time at most, because process starts scatter that much).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bench import data
from bench.harness import Figure, Promise, paired
from bench.workspace import Workspace

PARTITIONS = 1_000
PROMISE = Promise(text="≤ 1.25 times", at_most=1.25)


def run(workspace: Workspace) -> Iterator[Figure]:
    empty = workspace.new_cluster("empty")
    many = _with_partitions(workspace, workspace.scaled(PARTITIONS))
    full, _, rows = workspace.full_cluster
    shared = {"unit": "s", "peer_is": "a broker without topics", "promises": (PROMISE,), "note": "lower is better"}
    for what, cluster in (
        (f"{workspace.scaled(PARTITIONS):,} partitions", many),
        (f"{rows * 104 / 1e9:.1f} GB of log", full),
    ):
        yield paired(
            f"start with {what}",
            lambda cluster=cluster: _start_s(cluster),
            lambda: _start_s(empty),
            rounds=workspace.rounds,
            **shared,
        )


def _start_s(cluster: Any) -> float:
    cluster.stop(1)
    started = time.perf_counter()
    cluster.start(1)  # returns when it serves and leads its partitions
    return time.perf_counter() - started


def _with_partitions(workspace: Workspace, partitions: int) -> Any:
    from pyspark_log import Admin, Producer

    cluster = workspace.new_cluster("partitions")
    row = data.values_batch(1)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("many", partitions=partitions)
    with Producer(cluster.bootstrap_servers) as producer:
        for partition in range(partitions):  # a partition that was never written has no files to load
            producer.send_batch("many", row, partition=partition)
        producer.flush(timeout=300)
    return cluster
