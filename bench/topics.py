"""Topics filled for reading: the rows of `data`, in batches of a given size, equally in every partition."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

BATCH_ROWS = 10_000
"""Rows per batch given to ``send_batch``; Spark's own Arrow writer makes as many."""


@contextmanager
def temporary_topic(admin: Any, *, prefix: str, **how: Any) -> Iterator[str]:
    """A topic with the arguments of `Admin.create_topic`, deleted afterwards so that disk use stays bounded."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, **how)
    try:
        yield name
    finally:
        admin.delete_topic(name)


def fill(cluster: Any, topic: str, batch: pa.RecordBatch, *, rows: int, partitions: int) -> None:
    """Sends ``rows`` rows as copies of ``batch``, the same number to every partition; returns when all are safe."""
    from pyspark_log import Producer

    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(rows // batch.num_rows):
            producer.send_batch(topic, batch, partition=number % partitions)
        producer.flush(timeout=600)


def megabytes_per_s(
    cluster: Any,
    topic: str,
    batch: pa.RecordBatch,
    count: int,
    *,
    prepare: Callable[[], object] = lambda: None,
    **settings: Any,
) -> float:
    """Megabytes per second of ``count`` copies of ``batch`` into a producer, until all are acknowledged. ``prepare`` is
    called when the first one is, which does not count. ``settings``: the producer's."""
    from pyspark_log import Producer

    with Producer(cluster.bootstrap_servers, **settings) as producer:
        producer.send_batch(topic, batch)
        producer.flush(timeout=60)
        prepare()
        started = time.perf_counter()
        for _ in range(count):
            producer.send_batch(topic, batch)
        producer.flush(timeout=300)
        return count * batch.nbytes / 1e6 / (time.perf_counter() - started)


def rows_per_batch(cluster: Any, topic: str) -> int:
    """The median size of the batches that readers of ``topic`` get: a fair peer yields the same."""
    from pyspark_log import TopicPartition

    consumer = earliest_consumer(cluster, topic)
    with consumer:
        sizes: list[int] = []
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while len(sizes) < 20:
            batches = consumer.poll_batches(timeout=5)
            if not batches:
                break
            sizes += [consumed.batch.num_rows for consumed in batches]
    return int(statistics.median(sizes))


def earliest_consumer(cluster: Any, *topics: str, **settings: Any) -> Any:
    """A consumer without a group that begins at the first record."""
    from pyspark_log import Consumer

    return Consumer(*topics, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", **settings)


def poll_rows(consumer: Any, rows: int) -> int:
    """Polls batches until there were so many rows; returns how many there were."""
    seen = 0
    while seen < rows:
        batches = consumer.poll_batches(timeout=30)
        assert batches, f"nothing more after {seen:,} of {rows:,} rows"
        seen += sum(consumed.batch.num_rows for consumed in batches)
    return seen
