"""What it costs a broker (``http.listener``) and a client (``metrics=``) to count, beside one that does not: the same
work, in turns.

``/metrics`` of the counting broker is fetched every 15 s, as Prometheus does it in most places.
Promised: at most 1 % of the throughput. One record's acknowledgement shows what a request or a batch costs, the batches
what a byte does, records what a record does.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench import data
from bench.harness import Figure, Promise, at_least, median_ms, paired
from bench.topics import BATCH_ROWS, earliest_consumer, fill, megabytes_per_s, poll_rows, temporary_topic
from bench.workspace import Workspace

RECORDS = 1_000
SENT_RECORDS = 1_000_000
ROWS = 4_000_000
CALLS = 50_000
_EVERY_S = 15.0
_AT_MOST_5_US = Promise(text="≤ 5 µs", at_most=5.0)
_AT_MOST_1_PERCENT_MORE = Promise(text="≤ 101%", at_most=1.01)


def run(workspace: Workspace) -> Iterator[Figure]:
    from pyspark_log import Admin

    with (
        workspace.cluster_of("counting", settings={"http.listener": "127.0.0.1:0"}) as counting,
        workspace.cluster_of("silent") as silent,
        Admin(counting.bootstrap_servers) as ours,
        Admin(silent.bootstrap_servers) as theirs,
        _scraped(f"http://{counting.http_address(1)}/metrics"),
    ):

        def compare(name: str, measure: Callable[[Any, Any], float], unit: str, promise: Promise, note: str) -> Figure:
            return paired(
                f"a broker that counts: {name}",
                lambda: measure(counting, ours),
                lambda: measure(silent, theirs),
                unit=unit,
                peer_is="one without http.listener",
                rounds=workspace.rounds,
                warmups=2,
                promises=(promise,),
                note=note,
            )

        yield compare("send_batch", lambda *at: _batches(workspace, *at), "MB/s", at_least(0.99), "")
        yield compare(
            "one record to its acknowledgement, p50", _acknowledged_ms, "ms", _AT_MOST_1_PERCENT_MORE, "lower is better"
        )

        yield from _of_clients(workspace, silent, theirs)

    yield _of_one_produce()
    yield from _of_one_batch_and_one_fetch()


def _of_clients(workspace: Workspace, cluster: Any, admin: Any) -> Iterator[Figure]:
    """With a registry and without, at a broker that does not count."""
    from prometheus_client import CollectorRegistry

    def compare(name: str, measure: Callable[..., float], unit: str, promise: Promise, note: str = "") -> Figure:
        return paired(
            f"a client that counts: {name}",
            lambda: measure(metrics=CollectorRegistry()),
            lambda: measure(),
            unit=unit,
            peer_is="one without metrics=",
            rounds=workspace.rounds,
            warmups=2,
            promises=(promise,),
            note=note,
        )

    rows = workspace.scaled(ROWS)
    batch = data.values_batch(BATCH_ROWS)
    megabytes = rows * batch.nbytes / BATCH_ROWS / 1e6
    with temporary_topic(admin, prefix="read", partitions=1) as topic:
        fill(cluster, topic, batch, rows=rows, partitions=1)

        def polled(**settings: Any) -> float:
            with earliest_consumer(cluster, topic, **settings) as consumer:
                began_s = time.perf_counter()
                poll_rows(consumer, rows)
                return megabytes / (time.perf_counter() - began_s)

        yield compare("poll_batches", polled, "MB/s", at_least(0.99))
    yield compare(
        "send_batch", lambda **settings: _batches(workspace, cluster, admin, **settings), "MB/s", at_least(0.99)
    )
    yield compare(
        "send", lambda **settings: _records_per_s(workspace, cluster, admin, **settings), "records/s", at_least(0.99)
    )
    yield compare(
        "one record to its acknowledgement, p50",
        lambda **settings: _acknowledged_ms(cluster, admin, **settings),
        "ms",
        _AT_MOST_1_PERCENT_MORE,
        "lower is better",
    )


def _of_one_produce() -> Figure:
    """All that is counted for one produce request, without the request: what the machine's noise hides above."""
    from prometheus_client import CollectorRegistry, disable_created_metrics

    from broker_runtime.metrics.counts import Counts

    disable_created_metrics()
    counts = Counts(CollectorRegistry())

    def all_of_it() -> None:
        counts.produced("t", records=1, size_bytes=100)
        for part in ("queue", "local", "remote", "response"):
            counts.took("produce", part, 0.0001)
        counts.answered("produce", 0.0005)

    return _cost_us("what counting costs one produce request", all_of_it)


def _of_one_batch_and_one_fetch() -> Iterator[Figure]:
    """All that clients count for one batch that is sent, and for one that is fetched, likewise."""
    from prometheus_client import CollectorRegistry, disable_created_metrics

    from pyspark_log.client.metrics.counts import ConsumerCounts, ProducerCounts

    disable_created_metrics()
    registry = CollectorRegistry()
    producer, consumer = ProducerCounts(registry, "bench"), ConsumerCounts(registry, "bench")
    batches = [b"records"]

    def fetch() -> None:
        with consumer.fetching():
            pass
        consumer.decoded("t", batches, 100)

    yield _cost_us(
        "what counting costs one batch of a producer's",
        lambda: producer.acknowledged("t", records=1, size_bytes=100, began_s=0.0),
    )
    yield _cost_us("what counting costs one fetch of a consumer's", fetch)


def _cost_us(name: str, once: Callable[[], None]) -> Figure:
    def in_us() -> float:
        began_s = time.perf_counter()
        for _ in range(CALLS):
            once()
        return (time.perf_counter() - began_s) / CALLS * 1e6

    took_us = min(in_us() for _ in range(5))
    return Figure(
        name=name, unit="µs", ours=took_us, judged=took_us,
        promises=(_AT_MOST_5_US,), note="1 % of the fastest acknowledgement above; lower is better",
    )  # fmt: skip


@contextmanager
def _scraped(url: str) -> Iterator[None]:
    is_over = threading.Event()
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def scrape() -> None:
        while not is_over.wait(_EVERY_S):
            with without_proxy.open(url, timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


def _batches(workspace: Workspace, cluster: Any, admin: Any, **settings: Any) -> float:
    batch, count = data.values_batch(BATCH_ROWS), workspace.scaled(ROWS) // BATCH_ROWS
    with temporary_topic(admin, prefix="counted", partitions=1) as topic:
        return megabytes_per_s(cluster, topic, batch, count, prepare=workspace.warm_memory, **settings)


def _records_per_s(workspace: Workspace, cluster: Any, admin: Any, **settings: Any) -> float:
    from pyspark_log import Producer

    count, value = workspace.scaled(SENT_RECORDS), bytes(100)
    with (
        temporary_topic(admin, prefix="counted", partitions=1) as topic,
        Producer(cluster.bootstrap_servers, **settings) as producer,
    ):
        producer.send(topic, value).result(10)
        began_s = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush(300)
        return count / (time.perf_counter() - began_s)


def _acknowledged_ms(cluster: Any, admin: Any, **settings: Any) -> float:
    from pyspark_log import Producer

    with (
        temporary_topic(admin, prefix="counted", partitions=1, config={"flush.mode": "os"}) as topic,
        Producer(cluster.bootstrap_servers, linger_ms=0, **settings) as producer,
    ):
        producer.send(topic, bytes(100)).result(10)
        return median_ms(lambda: producer.send(topic, bytes(100)).result(10), RECORDS)
