"""What replication costs: a topic of three replicas beside one of a single replica, in one cluster of three brokers.

All on one machine, so every byte is written and fdatasynced three times by the same disk and passes the same processors
three times. ``acks=all`` in both. Batches of 10,000 rows of 100 bytes into one partition; single records one at a time,
``linger.ms=0``, medians of 300. Promised: at least a quarter of the throughput, at most five times the latency.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pyarrow as pa

from bench import data
from bench.harness import Figure, at_least, at_most, paired
from bench.topics import BATCH_ROWS, megabytes_per_s, temporary_topic
from bench.workspace import Workspace

ROWS = 2_000_000
RECORDS = 300
REPLICAS = 3


def run(workspace: Workspace) -> Iterator[Figure]:
    batch = data.values_batch(BATCH_ROWS)
    count = workspace.scaled(ROWS) // BATCH_ROWS
    yield paired(
        f"send_batch, {REPLICAS} replicas",
        lambda: _megabytes_per_s(workspace, batch, count, REPLICAS),
        lambda: _megabytes_per_s(workspace, batch, count, 1),
        unit="MB/s",
        peer_is="the same with one replica",
        rounds=workspace.rounds,
        promises=(at_least(0.25),),
    )
    yield paired(
        f"one record to its acknowledgement by {REPLICAS} replicas, p50",
        lambda: _median_ms(workspace, REPLICAS),
        lambda: _median_ms(workspace, 1),
        unit="ms",
        peer_is="the same with one replica",
        rounds=workspace.rounds,
        promises=(at_most(5),),
        note="lower is better",
    )


def _megabytes_per_s(workspace: Workspace, batch: pa.RecordBatch, count: int, replicas: int) -> float:
    cluster, admin = workspace.three_brokers
    with temporary_topic(admin, prefix="replicated", partitions=1, replication_factor=replicas) as topic:
        return megabytes_per_s(cluster, topic, batch, count)


def _median_ms(workspace: Workspace, replicas: int) -> float:
    from pyspark_log import Producer

    cluster, admin = workspace.three_brokers
    value = bytes(100)
    times = []
    with (
        temporary_topic(admin, prefix="acknowledged", partitions=1, replication_factor=replicas) as topic,
        Producer(cluster.bootstrap_servers, linger_ms=0) as producer,
    ):
        for _ in range(20):
            producer.send(topic, value).result(30)
        for _ in range(RECORDS):
            started = time.perf_counter()
            producer.send(topic, value).result(30)
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3
