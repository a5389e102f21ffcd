"""What it costs a broker to count (``http.listener``), beside one that does not: the same work, in turns.

``/metrics`` of the counting broker is fetched every 15 s, as Prometheus does it in most places.
Promised: at most 1 % of the throughput. One record's acknowledgement shows what a request costs, the batches what a
byte does.
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
from bench.topics import BATCH_ROWS, megabytes_per_s, temporary_topic
from bench.workspace import Workspace

RECORDS = 1_000
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

    yield _of_one_produce()


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

    def in_us() -> float:
        began_s = time.perf_counter()
        for _ in range(CALLS):
            all_of_it()
        return (time.perf_counter() - began_s) / CALLS * 1e6

    took_us = min(in_us() for _ in range(5))
    return Figure(
        name="what counting costs one produce request", unit="µs", ours=took_us, judged=took_us,
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


def _batches(workspace: Workspace, cluster: Any, admin: Any) -> float:
    batch, count = data.values_batch(BATCH_ROWS), workspace.scaled(ROWS) // BATCH_ROWS
    with temporary_topic(admin, prefix="counted", partitions=1) as topic:
        return megabytes_per_s(cluster, topic, batch, count, prepare=workspace.warm_memory)


def _acknowledged_ms(cluster: Any, admin: Any) -> float:
    from pyspark_log import Producer

    with (
        temporary_topic(admin, prefix="counted", partitions=1, config={"flush.mode": "os"}) as topic,
        Producer(cluster.bootstrap_servers, linger_ms=0) as producer,
    ):
        producer.send(topic, bytes(100)).result(10)
        return median_ms(lambda: producer.send(topic, bytes(100)).result(10), RECORDS)
