"""Brokers that lead 250, 500 and 1,000 partitions: how long they take to hand them over, to come back, to be replaced.

Three brokers; broker 1 leads all the partitions, each has a second replica on one of the others and contains a record.

    hand over    SIGTERM to broker 1 until the others lead everything and report their latest offsets
    come back    its start until it serves, everything has a leader that serves, and it is in sync everywhere
    take over    SIGKILL to broker 1 until the others lead everything and report their latest offsets

Promised: hand over and come back within 10 s, four times the partitions in at most five times the time (linear would be
four); 1,000 leaders moved by the controller within 5 s.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import data
from bench.harness import Figure, at_most, below
from bench.workspace import SESSION_TIMEOUT_MS, Workspace

SIZES = (250, 500, 1_000)
LEADER = 1
_LIMIT_S = 120.0
_LOOK_S = 0.01
_LOOK_IN_SYNC_S = 0.2  # a look at all partitions' in-sync sets costs the brokers some of the time that is measured


def run(workspace: Workspace) -> Iterator[Figure]:
    from pyspark_log import Admin

    settings = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
    turns = min(workspace.rounds, 3)
    with (
        workspace.cluster_of("many-partitions", brokers=3, settings=settings) as cluster,
        Admin(cluster.bootstrap_servers, request_timeout_ms=60_000) as admin,
    ):
        many = ManyPartitions(cluster, admin)
        times: dict[str, dict[int, list[float]]] = {"hand over": {}, "come back": {}, "take over": {}}
        for size in map(workspace.scaled, SIZES):
            many.grow_to(size)
            for _ in range(turns):
                # In this order: after each of them the broker must come back.
                for what, measure in (
                    ("hand over", lambda: many.others_lead_after(cluster.stop)),
                    ("come back", many.comes_back),
                    ("take over", lambda: many.others_lead_after(cluster.kill)),
                    ("come back", many.comes_back),
                ):
                    seconds = measure()
                    times[what].setdefault(size, []).append(seconds)
                    print(f"  {what} {size}: {seconds:.2f} s", file=sys.stderr, flush=True)
        for what, limit_s in (("hand over", 10.0), ("come back", 10.0), ("take over", 5.0)):
            yield from _figures(what, times[what], limit_s)


def _figures(what: str, times: dict[int, list[float]], limit_s: float) -> Iterator[Figure]:
    smallest, largest = min(times), max(times)
    medians = {size: statistics.median(of) for size, of in times.items()}
    worst_s = max(times[largest])
    yield Figure(
        name=f"{what} {largest:,} partitions, longest",
        unit="s",
        ours=worst_s,
        judged=worst_s,
        spread=(min(times[largest]), worst_s),
        promises=(below(limit_s, "s"),),
        note="medians " + ", ".join(f"{size:,}: {median:.2f} s" for size, median in medians.items()),
    )
    ratio = medians[largest] / medians[smallest]
    yield Figure(
        name=f"{what} {largest:,} partitions",
        unit="s",
        ours=medians[largest],
        peer=medians[smallest],
        peer_is=f"{smallest:,} partitions",
        judged=ratio,
        promises=(at_most(5),),
        note="in a straight line: 4",
    )


class ManyPartitions:
    """Topics whose partitions broker 1 leads, in a cluster of three."""

    def __init__(self, cluster: Any, admin: Any) -> None:
        self._cluster = cluster
        self._admin = admin
        self._topics: dict[str, int] = {}

    def grow_to(self, total: int) -> None:
        """Adds one more topic, with as many partitions as are missing to ``total``."""
        from pyspark_log import Producer

        partitions = total - sum(self._topics.values())
        name = f"many-{total}"
        assignment = [(LEADER, 2 + number % 2) for number in range(partitions)]
        self._admin.create_topic(name, replica_assignment=assignment)
        self._topics[name] = partitions
        row = data.values_batch(1)
        with Producer(self._cluster.bootstrap_servers) as producer:
            for number in range(partitions):  # a partition that was never written has no files to load
                producer.send_batch(name, row, partition=number)
            producer.flush(timeout=300)
        self._cluster.wait_until_ready()

    def others_lead_after(self, end: Callable[[int], None]) -> float:
        """Ends broker 1 by ``end``; returns the seconds until the others lead everything and know their latest
        offsets.
        """
        started_s = time.monotonic()
        ending = threading.Thread(target=end, args=(LEADER,))
        ending.start()
        self._wait(lambda each: each.leader not in {None, LEADER})
        for name, partitions in self._topics.items():
            self._admin.list_offsets({(name, number): "latest" for number in range(partitions)})
        seconds = time.monotonic() - started_s
        ending.join(_LIMIT_S)
        return seconds

    def comes_back(self) -> float:
        """Starts broker 1; returns the seconds until it is in sync everywhere. Returns when it leads again, too."""
        from pyspark_log import errors

        started_s = time.monotonic()
        self._cluster.start(LEADER)
        self._wait(lambda each: set(each.isr) == set(each.replicas), _LOOK_IN_SYNC_S)
        self._cluster.wait_until_ready(_LIMIT_S)
        seconds = time.monotonic() - started_s
        with contextlib.suppress(errors.ElectionNotNeededError):
            self._admin.elect_leaders()
        self._wait(lambda each: each.leader == LEADER)
        self._cluster.wait_until_ready(_LIMIT_S)
        return seconds

    def _wait(self, is_right: Callable[[Any], bool], pause_s: float = _LOOK_S) -> None:
        from pyspark_log import errors

        deadline_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(errors.PylogError):
                topics = self._admin.describe_topics()
                if all(is_right(each) for topic in topics for each in topic.partitions):
                    return
            time.sleep(pause_s)
        raise TimeoutError(f"the partitions are not led, or in sync, as they should be after {_LIMIT_S:g} s")
