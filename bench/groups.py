"""What a group costs: a join, many commits, and members without partitions.

- A member joins a stable group of ten that shares 100 partitions, all of which have records to read: for each partition
  that moves, how long no member got a record of it (promised: p99 under 1 s); and whether the others continued.
- 100 groups of 50 partitions commit each second, as one member each: how long a commit takes (p99 under 1 s), and how
  many writes reach ZooKeeper (under 500 a second).
- 1,000 members without partitions on one broker: its processor time (under 2 % of a core for each 100) and memory
  (under 0.5 MB each).
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from bench.harness import Figure, bound
from bench.memory import processor_s, status_mb
from bench.workspace import Workspace

PARTITIONS, MEMBERS, JOINS = 100, 10, 10
GROUPS, OF_EACH, COMMIT_S = 100, 50, 20.0
IDLE, IDLE_S = 1_000, 30.0
_OF_A_PROCESS = 100  # a thousand clients in one process would measure its threads


def run(workspace: Workspace) -> list[Figure]:
    return [*_joins(workspace), *_commits(workspace), *_idle(workspace)]


class _Member:
    """A consumer in a thread, which records when it got its records of each partition."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self._arguments = (servers, topic, group)
        self.received: dict[int, list[float]] = {}
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        from pyspark_log import Consumer

        servers, topic, group = self._arguments
        with Consumer(topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="latest") as consumer:
            while not self.stopping.is_set():
                for batch in consumer.poll_batches(0.05):
                    self.received.setdefault(batch.partition, []).append(time.monotonic())

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(60)


def _joins(workspace: Workspace) -> list[Figure]:
    """One member joins, ``JOINS`` times: the longest silence of each partition that moved, from one owner to the
    next.
    """
    import pyarrow as pa

    from pyspark_log import Producer

    gaps: list[float] = []
    kept_gaps: list[float] = []
    servers = workspace.cluster.bootstrap_servers
    with workspace.topic(partitions=PARTITIONS, prefix="join") as topic, Producer(servers, linger_ms=0) as producer:
        stopping = threading.Event()

        def feed() -> None:
            row = pa.record_batch({"value": [b"x"]})
            while not stopping.wait(0.05):
                for number in range(PARTITIONS):
                    producer.send_batch(topic, row, partition=number)

        members = [_Member(servers, topic, "joining") for _ in range(MEMBERS)]
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        time.sleep(8)
        for _ in range(workspace.scaled(JOINS) or 1):
            began = time.monotonic()
            members.append(_Member(servers, topic, "joining"))
            time.sleep(6)
            times: dict[int, list[tuple[float, int]]] = {}
            for position, member in enumerate(members):
                for number, received in list(member.received.items()):
                    times.setdefault(number, []).extend((at, position) for at in list(received) if at >= began - 1)
            for noted in times.values():
                noted.sort()
                silence = max((b[0] - a[0] for a, b in itertools.pairwise(noted)), default=0.0)
                moved = len({who for _, who in noted}) > 1
                (gaps if moved else kept_gaps).append(silence)
            members.pop(0).stop()  # so that it is ten again
            time.sleep(4)
        stopping.set()
        feeder.join(10)
        for member in members:
            member.stop()
    note = f"{len(gaps)} partitions that moved; p50 {statistics.median(gaps):.2f} s; those that stayed: p99 "
    note += f"{_p99(kept_gaps):.2f} s"
    return [bound("join: no record of a partition that moves, p99", _p99(gaps), 1.0, "s", note=note)]


def _commits(workspace: Workspace) -> list[Figure]:
    """The only member of each group commits 50 new offsets each second, all groups concurrently."""
    from pyspark_log import Consumer, TopicPartition

    servers = workspace.cluster.bootstrap_servers
    took: list[float] = []
    lock = threading.Lock()
    with workspace.topic(partitions=OF_EACH, prefix="commits") as topic:
        ready, begin = threading.Semaphore(0), threading.Event()

        def commit(number: int) -> None:
            with Consumer(
                topic, bootstrap_servers=servers, group_id=f"c{number}", enable_auto_commit=False
            ) as consumer:
                ready.release()
                begin.wait(120)
                end = time.monotonic() + COMMIT_S
                offset = 0
                while (now := time.monotonic()) < end:
                    offset += 1
                    consumer.poll(0)
                    consumer.commit({TopicPartition(topic, n): offset for n in range(OF_EACH)})
                    done = time.monotonic()
                    with lock:
                        took.append(done - now)
                    time.sleep(max(0.0, 1.0 - (done - now)))

        threads = [threading.Thread(target=commit, args=(number,), daemon=True) for number in range(GROUPS)]
        for thread in threads:
            thread.start()
        for _ in threads:
            if not ready.acquire(timeout=120):
                raise RuntimeError("not all groups came to be within 120 s")
        before, began = _zookeeper_writes(workspace.cluster), time.monotonic()
        begin.set()
        for thread in threads:
            thread.join(120)
        writes = (_zookeeper_writes(workspace.cluster) - before) / (time.monotonic() - began)
    note = f"{len(took)} commits of {OF_EACH} partitions; p50 {statistics.median(took):.3f} s"
    return [
        bound("commits of 100 groups each second, p99", _p99(took), 1.0, "s", note=note),
        bound("the same: ZooKeeper transactions", writes, 500, "per s", note="all that changes its database"),
    ]


def _idle(workspace: Workspace) -> list[Figure]:
    """Members without partitions wait and send heartbeats."""
    cluster = workspace.new_cluster("idle-members")
    from pyspark_log import Admin

    count = workspace.scaled(IDLE)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("idle", partitions=1)
    pid = cluster.pid(1)
    memory_mb = status_mb(pid, "RssAnon")
    command = [sys.executable, "-m", "bench.idle_members", cluster.bootstrap_servers, "idle", str(_OF_A_PROCESS)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count // _OF_A_PROCESS):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            processes.append(process)
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise RuntimeError("the members did not all join")
        time.sleep(10)
        used_s, began = processor_s(pid), time.monotonic()
        time.sleep(IDLE_S)
        percent = (processor_s(pid) - used_s) / (time.monotonic() - began) * 100
        grown_mb = status_mb(pid, "RssAnon") - memory_mb
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [
        bound("idle members: processor of the broker, for each 100", percent / (count / 100), 2.0, "% of a core"),
        bound("idle members: memory of the broker, each", grown_mb / count, 0.5, "MB", note=f"{count} members"),
    ]


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))] if values else 0.0


def _zookeeper_writes(cluster: Any) -> int:
    """The number of transactions that the server has carried out: the counter in its last zxid."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=cluster.zookeeper_connect.partition("/")[0])
    client.start(10)
    try:
        path = f"/bench-{os.getpid()}-{time.monotonic_ns()}"
        client.create(path)
        stat = client.exists(path)
        client.delete(path)
        return int(stat.czxid) & 0xFFFFFFFF
    finally:
        client.stop()
        client.close()
