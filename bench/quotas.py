"""A modest client beside a greedy one: does a quota of the greedy one leave the modest one its latency?

The greedy one is a process that writes batches of a megabyte as fast as it may, and reads its topic again and again.
The modest one sends one record at a time, a hundred a second, and waits for each acknowledgement; its figure is their
99th percentile. Beside a greedy client with quotas for bytes and for processor time it may be at most 1.5 times what it
is alone. How it is beside the same client without quotas is printed for comparison.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness import Figure, at_most, paired, percentile
from bench.topics import temporary_topic
from bench.workspace import Workspace

RECORDS = 1_000
_PAUSE_S = 0.01
_SETTLE_S = 3.0
_STOP_LIMIT_S = 30.0
GREEDY = "greedy"
LIMITS = {"producer_byte_rate": 5e6, "consumer_byte_rate": 5e6, "request_percentage": 10.0}


def run(workspace: Workspace) -> Iterator[Figure]:
    from pyspark_log import Admin, Producer, QuotaEntity

    records = workspace.scaled(RECORDS)
    with (
        workspace.cluster_of("quotas") as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        temporary_topic(admin, prefix="modest", partitions=1) as modest,
        temporary_topic(admin, prefix="greedy", partitions=4) as greedy,
    ):
        entity = QuotaEntity(client_id=GREEDY)

        def p99_ms() -> float:
            value, times = bytes(100), []
            with Producer(cluster.bootstrap_servers, client_id="modest", linger_ms=0) as producer:
                producer.send(modest, value).result(30)
                for _ in range(records):
                    began_s = time.perf_counter()
                    producer.send(modest, value).result(30)
                    times.append((time.perf_counter() - began_s) * 1000)
                    time.sleep(_PAUSE_S)
            return percentile(times, 99)

        def beside(limits: dict[str, float]) -> float:
            admin.alter_quotas({entity: {name: limits.get(name) for name in LIMITS}})
            with _greedy(cluster.bootstrap_servers, greedy):
                time.sleep(_SETTLE_S)
                return p99_ms()

        for name, limits, promises in (("with quotas", LIMITS, (at_most(1.5),)), ("without quotas", {}, ())):
            yield paired(
                f"a modest client beside a greedy one {name}: acknowledgement, p99",
                lambda limits=limits: beside(limits),
                p99_ms,
                unit="ms",
                peer_is="the same client alone",
                rounds=workspace.rounds,
                promises=promises,
                note="lower is better",
            )


@contextmanager
def _greedy(bootstrap_servers: str, topic: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.quotas", bootstrap_servers, topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.kill()
            process.wait(_STOP_LIMIT_S)


def take_all(bootstrap_servers: str, topic: str) -> None:
    """The greedy client; until it is killed."""
    import threading

    from pyspark_log import Consumer, Producer

    def write() -> None:
        value = os.urandom(250_000)
        with Producer(bootstrap_servers, client_id=GREEDY, linger_ms=5) as producer:
            while True:
                producer.send(topic, value)

    def read() -> None:
        while True:
            with Consumer(
                topic, bootstrap_servers=bootstrap_servers, client_id=GREEDY, auto_offset_reset="earliest"
            ) as consumer:
                until_s = time.monotonic() + 10
                while time.monotonic() < until_s:
                    consumer.poll_batches(1)

    for each in (write, read):
        threading.Thread(target=each, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    take_all(*sys.argv[1:])
