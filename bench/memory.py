"""What a broker costs while it idles, while 200 consumers wait at it, and while it serves 4 GB.

    idle       resident memory of a fresh broker (all of it, libraries included), and its processor time over 20 s
    consumers  growth of its own memory with 200 consumers in a long poll, none of which gets anything
    serving    growth of its own memory, sampled 20 times a second, while one reader takes 4 GB of log

"Own" memory is anonymous memory (``RssAnon``): everything but the page cache's copies of files. The broker is restarted
before serving, so that it cannot reuse memory from receiving the 4 GB. Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Figure, bound
from bench.topics import earliest_consumer
from bench.workspace import Workspace

IDLE_S = 20.0
CONSUMERS = 200


def run(workspace: Workspace) -> Iterator[Figure]:
    if not Path("/proc/self/status").exists():
        raise OSError("a broker's memory is read from /proc, which this system does not have")
    cluster = workspace.new_cluster("idle")
    yield from _idle(workspace, cluster)
    yield _idle_consumers(workspace, cluster)
    yield from _serving(workspace)


def _idle(workspace: Workspace, cluster: Any) -> Iterator[Figure]:
    pid = cluster.pid(1)
    seconds = 5.0 if workspace.quick else IDLE_S
    time.sleep(2)  # registration and the first look at ZooKeeper are not idling
    used = processor_s(pid)
    time.sleep(seconds)
    percent = (processor_s(pid) - used) / seconds * 100
    resident, own = status_mb(pid, "VmRSS"), status_mb(pid, "RssAnon")
    yield bound("idle broker, resident memory", resident, 150, "MB", note=f"{own:.0f} MB of it its own")
    yield bound("idle broker, processor", percent, 2, "% of a core", note=f"over {seconds:.0f} s")


def _idle_consumers(workspace: Workspace, cluster: Any) -> Figure:
    from pyspark_log import Admin

    count = workspace.scaled(CONSUMERS)
    pid = cluster.pid(1)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("idle", partitions=2)
    before = status_mb(pid, "RssAnon")
    command = [sys.executable, "-m", "bench.idle_consumers", cluster.bootstrap_servers, "idle", str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as consumers:
        try:
            assert consumers.stdout.readline() == b"ready\n", "the consumers' process ended early"
            time.sleep(3)
            grown = status_mb(pid, "RssAnon") - before
            used = processor_s(pid)
            time.sleep(5)
            percent = (processor_s(pid) - used) / 5 * 100
        finally:
            consumers.stdin.close()
            try:
                consumers.wait(30)
            except subprocess.TimeoutExpired:
                consumers.kill()
    note = f"the broker then uses {percent:.1f} % of a core"
    return bound(f"{count} idle consumers, growth of the broker's own memory", grown, 100, "MB", note=note)


def _serving(workspace: Workspace) -> Iterator[Figure]:
    cluster, topic, rows = workspace.full_cluster
    size = f"{rows * 104 / 1e9:.1f} GB"

    def by_consumer() -> int:
        with earliest_consumer(cluster, topic) as consumer:
            seen = 0
            while seen < rows:
                batches = consumer.poll_batches(timeout=30)
                assert batches, f"nothing more after {seen:,} of {rows:,} rows"
                seen += sum(consumed.batch.num_rows for consumed in batches)
        return seen

    def by_read() -> int:
        from pyspark_log import read

        return sum(batch.num_rows for batch in read(topic, bootstrap_servers=cluster.bootstrap_servers))

    yield _growth(f"serving {size} to a consumer, growth of the broker's own memory", cluster, by_consumer, rows)
    yield _growth(f"serving {size} to read(), growth of the broker's own memory", cluster, by_read, rows)


def _growth(name: str, cluster: Any, reading: Callable[[], int], rows: int) -> Figure:
    cluster.stop(1)
    cluster.start(1)
    cluster.wait_until_ready()
    pid = cluster.pid(1)
    before = status_mb(pid, "RssAnon")
    with _highest(lambda: status_mb(pid, "RssAnon")) as highest:
        seen = reading()
    assert seen == rows, f"{seen:,} rows were read, {rows:,} are there"
    return bound(name, max(highest) - before, 150, "MB", note=f"from {before:.0f} MB")


@contextmanager
def _highest(measure: Callable[[], float]) -> Iterator[list[float]]:
    """Samples until the block ends; the list then has every sample."""
    samples = [measure()]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            samples.append(measure())

    sampler = threading.Thread(target=sample, name="sampler")
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()


def status_mb(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(f"/proc/{pid}/status has no {field}")


def processor_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
