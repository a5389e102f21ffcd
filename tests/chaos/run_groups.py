"""``python -m tests.chaos.run_groups --minutes 3``: a group of twelve workers over brokers that fail.

Workers join, leave, are killed and frozen, while brokers and ZooKeeper are killed, paused and cut off. Then everything
is repaired, every acknowledged record must have been processed, and the workers' diaries must agree (see
`group_verdict`). Rule: however it ends, nothing that it started is left.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark_log import Admin, Producer
from pyspark_log.errors import PylogError
from tests.chaos.catalogue import Machine, catalogue, named
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import Faults
from tests.chaos.group_crowd import Crowd
from tests.chaos.group_verdict import judge
from tests.chaos.report import end_on_sigterm
from tests.chaos.run import mend

log = logging.getLogger("chaos")

TOPIC: Final = "work"
GROUP: Final = "workers"
PARTITIONS: Final = 8
WORKERS: Final = 12
BROKER_FAULTS: Final = (
    "kill a broker", "stop a broker", "pause a broker", "kill the controller", "expire a session", "cut from ZooKeeper",
    "cut from clients", "slow network", "kill ZooKeeper", "kill all brokers",
)  # fmt: skip
_CALM_LIMIT_S: Final = 180.0


@dataclass(slots=True)
class Outcome:
    """The outcome of a round."""

    wrong: list[str] = field(default_factory=list)
    acknowledged: int = 0
    delivered: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The outcome for people."""
        return [
            f"acknowledged {self.acknowledged:,} records, delivered {self.delivered:,}",
            "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())),
            "diaries: " + ", ".join(f"{name} {count:,}" for name, count in sorted(self.events.items())),
            *(self.wrong or ["every acknowledged record was processed, and once where its worker lived"]),
        ]


class Source(threading.Thread):
    """Sends numbered records until it is stopped."""

    def __init__(self, servers: str, rate: int) -> None:
        super().__init__(name="source", daemon=True)
        self._servers = servers
        self._pause_s = 1 / rate
        self._stopping = threading.Event()
        self._connected = threading.Event()
        self.acknowledged: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """Starts it, and returns when a record is acknowledged: a client that has never reached a broker gives up after
        10 s, as it should. Raises `TimeoutError`."""
        self.start()
        if not self._connected.wait(60):
            raise TimeoutError("the producer has not reached a broker")

    def run(self) -> None:
        with Producer(self._servers, delivery_timeout_ms=300_000, max_block_ms=300_000) as producer:
            first = producer.send(TOPIC, b"first").result(60)
            self.acknowledged["first"] = (first.partition, first.offset)
            self._connected.set()
            number, futures = 0, []
            while not self._stopping.wait(self._pause_s):
                futures.append((f"v{number}", producer.send(TOPIC, f"v{number}".encode())))
                number += 1
            for value, future in futures:
                metadata = future.result(300)
                self.acknowledged[value] = (metadata.partition, metadata.offset)

    def stop(self) -> None:
        """Returns when everything is acknowledged. Raises `TimeoutError`."""
        self._stopping.set()
        self.join(320)
        if self.is_alive():
            raise TimeoutError("the producer has not ended")


def one_round(
    rng: random.Random, *, duration_s: float, zookeepers: int, rate: int = 60, only: str | None = None
) -> Outcome:
    """Runs one cluster and one group, from start to verdict. A failed round keeps its directory."""
    directory = Path(tempfile.mkdtemp(prefix="pylog-chaos-groups-"))
    outcome = Outcome()
    cluster = ChaosCluster(brokers=3, zookeepers=zookeepers, directory=directory)
    with cluster:
        with Admin(cluster.proxied_servers) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        source = Source(cluster.proxied_servers, rate)
        without_disks = catalogue(Machine(has_small_disks=False, has_strace=False))
        kinds = named([each for each in without_disks if each.name in BROKER_FAULTS], only)
        faults = Faults(cluster, TOPIC, PARTITIONS, rng)
        with Crowd(directory, cluster.proxied_servers, topic=TOPIC, group=GROUP, size=WORKERS, rng=rng) as crowd:
            for _ in range(WORKERS // 2):
                crowd.join()
            source.begin()
            until_s = time.monotonic() + duration_s
            while time.monotonic() < until_s:
                fault = rng.choice(kinds)
                undo = fault.begin(faults)
                if undo is not None:
                    log.info("fault=%s", fault.name)
                    outcome.faults[fault.name] = outcome.faults.get(fault.name, 0) + 1
                    _crowd_for(crowd, min(rng.uniform(1.0, fault.longest_s), max(0.0, until_s - time.monotonic())))
                    mend([(fault.name, undo)])
                _crowd_for(crowd, rng.uniform(2.0, 8.0))
            source.stop()
            crowd.calm(WORKERS // 2)
            outcome.wrong += _drain(cluster.proxied_servers)
            outcome.wrong += faults.wrong + crowd.broken() + crowd.leave()
            diaries = crowd.diaries()
            outcome.faults |= {f"worker: {what}": count for what, count in crowd.counts.items() if what != "nothing"}
    outcome.wrong += judge(diaries, source.acknowledged)
    outcome.acknowledged, outcome.delivered, outcome.events = len(source.acknowledged), len(diaries.got), diaries.counts
    if outcome.wrong:
        outcome.wrong.append(f"kept: {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _crowd_for(crowd: Crowd, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        crowd.step()
        time.sleep(min(1.5, max(0.0, until_s - time.monotonic())))


def _drain(servers: str) -> list[str]:
    """Waits until the group has acknowledged everything."""
    deadline_s = time.monotonic() + _CALM_LIMIT_S
    lacks: object = "nothing was asked"
    with Admin(servers) as admin:
        while time.monotonic() < deadline_s:
            try:
                offsets = admin.list_group_offsets(GROUP)
                lacks = {str(at): (each.committed, each.end) for at, each in offsets.items() if each.lag}
                if not lacks and len(offsets) == PARTITIONS:
                    return []
            except PylogError as error:
                lacks = error
            time.sleep(0.5)
    return [f"not everything was acknowledged within {_CALM_LIMIT_S:.0f} s: {lacks}"]


def main() -> int:
    """Returns the exit status: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--zookeepers", type=int, default=1)
    parser.add_argument("--only", default=None, help="only faults of brokers whose name holds this (FAULT= of make)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    end_on_sigterm()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    log.info("seed=%d", seed)
    outcome = one_round(
        random.Random(seed), duration_s=arguments.minutes * 60, zookeepers=arguments.zookeepers, only=arguments.only
    )
    print("\n".join(outcome.lines()))
    print(f"seed {seed}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
