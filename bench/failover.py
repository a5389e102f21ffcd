"""How long acknowledgements stop when a partition's leader is killed, goes silent, or is stopped in order.

Three brokers, three replicas of every partition, ``acks=all``. A producer sends one record after the other to the
partition whose leader goes, each when the last was acknowledged; an attempt's time is the longest between two
acknowledgements from the moment the leader goes until the others have served a while. Every third leader is the
cluster's controller as well. Then the broker comes back, and leads again, before the next attempt.

Promised, as p99: killed (SIGKILL) 2 s, silent (SIGSTOP) the session timeout and 1 s, stopped (SIGTERM) 1 s.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from bench.harness import Figure, below
from bench.topics import temporary_topic
from bench.workspace import SESSION_TIMEOUT_MS, Workspace

TRIES = 30
QUICK_TRIES = 3
SETTLE_S = 0.5
_PAUSE_S = 0.005
_LIMIT_S = 60.0


def run(workspace: Workspace) -> Iterator[Figure]:
    cluster, admin = workspace.three_brokers
    session_s = SESSION_TIMEOUT_MS / 1000
    tries = QUICK_TRIES if workspace.quick else TRIES
    ways = (
        ("killed", cluster.kill, cluster.start, 2.0, ""),
        ("silent", cluster.pause, cluster.resume, session_s + 1, f"zookeeper.session.timeout.ms={SESSION_TIMEOUT_MS}"),
        ("stopped", cluster.stop, cluster.start, 1.0, ""),
    )
    with temporary_topic(admin, prefix="failover", replica_assignment=((1, 2, 3), (2, 3, 1), (3, 1, 2))) as topic:
        for name, end, begin, limit_s, note in ways:
            failover = Failover(cluster, admin, topic, end, begin)
            yield _figure(name, [failover.once(name, number, tries) for number in range(tries)], limit_s, note)


def _figure(name: str, tries: list[tuple[float, bool]], limit_s: float, note: str) -> Figure:
    times = sorted(seconds for seconds, _ in tries)
    p99 = times[math.ceil(0.99 * len(times)) - 1]
    controllers = sum(was_controller for _, was_controller in tries)
    described = f"p50 {statistics.median(times):.2f} s of {len(times)} tries, {controllers} of them the controller"
    return Figure(
        name=f"without acknowledgements, leader {name}, p99",
        unit="s",
        ours=p99,
        judged=p99,
        spread=(times[0], times[-1]),
        promises=(below(limit_s, "s"),),
        note="; ".join(part for part in (described, note) if part),
        pairs=[(seconds, float(was_controller)) for seconds, was_controller in tries],
    )


class Failover:
    """One way to go, repeated on the same cluster."""

    def __init__(
        self, cluster: Any, admin: Any, topic: str, end: Callable[[int], None], begin: Callable[[int], None]
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._topic = topic
        self._end = end
        self._begin = begin

    def once(self, name: str, number: int, tries: int) -> tuple[float, bool]:
        """Returns the seconds without acknowledgements, and whether the leader was the controller as well."""
        self._prepare()
        controller = self._admin.describe_cluster().controller_id
        victim = controller if number % 3 == 0 else next(b for b in _from(number) if b != controller)
        with Acknowledgements(self._cluster, self._topic, partition=victim - 1) as acknowledgements:
            acknowledgements.wait_after(time.monotonic() + SETTLE_S)
            gone_s = time.monotonic()
            self._end(victim)
            acknowledgements.wait_after(max(time.monotonic(), gone_s + 0.1))
            acknowledgements.wait_after(time.monotonic() + SETTLE_S)
            seconds = acknowledgements.longest_pause_s(gone_s)
            self._begin(victim)
        role = "controller" if victim == controller else "broker"
        print(f"  {name} {number + 1}/{tries}: {role} {victim}, {seconds:.3f} s", file=sys.stderr, flush=True)
        return seconds, victim == controller

    def _prepare(self) -> None:
        """Every partition is led by its first replica, and all replicas are in sync."""
        from pyspark_log import errors

        deadline_s = time.monotonic() + _LIMIT_S
        while True:
            self._cluster.wait_until_ready()
            partitions = self._admin.describe_topic(self._topic).partitions
            if all(each.leader == each.replicas[0] for each in partitions):
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._topic} is not led by its first replicas after {_LIMIT_S:g} s")
            with contextlib.suppress(errors.PylogError):  # leadership also returns by itself
                self._admin.elect_leaders([(self._topic, each.partition) for each in partitions])


class Acknowledgements:
    """A thread that sends a record, waits for its acknowledgement, and repeats; a context manager."""

    def __init__(self, cluster: Any, topic: str, *, partition: int) -> None:
        self._servers = cluster.bootstrap_servers
        self._topic = topic
        self._partition = partition
        self._news = threading.Condition()
        self._times_s: list[float] = []
        self._error: Exception | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="acknowledgements", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over = True
        self._thread.join(_LIMIT_S)

    def wait_after(self, moment_s: float) -> None:
        """Returns when something was acknowledged after ``moment_s``. Raises the sender's error, or `TimeoutError`."""
        with self._news:
            if not self._news.wait_for(lambda: self._error is not None or self._last_s > moment_s, _LIMIT_S):
                raise TimeoutError(f"{self._topic}-{self._partition}: no acknowledgement within {_LIMIT_S:g} s")
            if self._error is not None:
                raise self._error

    def longest_pause_s(self, since_s: float) -> float:
        """The longest time between two acknowledgements, the later one after ``since_s``."""
        times = self._times_s
        return max(after - before for before, after in itertools.pairwise(times) if after > since_s)

    @property
    def _last_s(self) -> float:
        return self._times_s[-1] if self._times_s else -math.inf

    def _run(self) -> None:
        from pyspark_log import Producer

        value = bytes(100)
        try:
            with Producer(self._servers, linger_ms=0) as producer:
                while not self._is_over:
                    producer.send(self._topic, value, partition=self._partition).result(_LIMIT_S)
                    with self._news:
                        self._times_s.append(time.monotonic())
                        self._news.notify_all()
                    time.sleep(_PAUSE_S)
        except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
            with self._news:
                self._error = error
                self._news.notify_all()


def _from(number: int) -> list[int]:
    """The brokers, each time beginning with another."""
    return [(number + turn) % 3 + 1 for turn in range(3)]
