"""``python -m tests.chaos.run --minutes 3``: real brokers, a real ZooKeeper, producers, consumers and faults.

One round is one cluster, alternately with one ZooKeeper server and an ensemble of three: the workload runs, faults
occur alone and in pairs, everything is repaired, and then the whole log is read and the brokers' files are compared. A
run has as many rounds as its time with faults needs. Each finding is one line, with the seed and the directory, which
stays. Rule: however a run ends, nothing that it started or mounted is left.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Final

from pyspark_log import Admin
from pyspark_log.errors import PylogError
from tests.chaos.catalogue import Machine, catalogue, named
from tests.chaos.cluster import ChaosCluster
from tests.chaos.disks import SmallDisks, sweep
from tests.chaos.faults import Fault, Faults, Undo
from tests.chaos.history import check
from tests.chaos.leaders import LeaderWatch
from tests.chaos.proxy_trap import ProxyTrap
from tests.chaos.report import Report, end_on_sigterm
from tests.chaos.verdict import calm, compare, everything, hidden_damage, replicas
from tests.chaos.workload import Workload

log = logging.getLogger("chaos")

TOPIC: Final = "chaos"
PARTITIONS: Final = 6
_TOPIC_SETTINGS: Final = {"segment.bytes": "32KiB", "max.message.bytes": "16KiB"}  # so that segments are closed soon
_ROUND_S: Final = 150.0
_MENDING_LIMIT_S: Final = 180.0


def main() -> int:
    """Returns the exit status: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="with faults; beginnings and ends are beside them")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--zookeepers", type=int, default=None, help="1 or 3; both in turn unless said")
    parser.add_argument("--rate", type=int, default=200, help="records per second and producer")
    parser.add_argument("--only", default=None, help="only faults whose name holds this (FAULT= of make)")
    parser.add_argument("--alone", action="store_true", help="no pairs: one fault at a time")
    arguments = parser.parse_args()
    machine = Machine.find()
    try:
        kinds = named(catalogue(machine), arguments.only)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    end_on_sigterm()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    log.info("seed=%d", seed)
    report = Report()
    # At least two: with one ZooKeeper server, and with three. What counts is the time with faults.
    rounds = max(2, math.ceil(arguments.minutes * 60 / _ROUND_S))
    while report.rounds < rounds and not report.wrong:
        one_round(
            random.Random(seed + report.rounds),
            report,
            duration_s=arguments.minutes * 60 / rounds,
            zookeepers=arguments.zookeepers or (1 if (seed + report.rounds) % 2 == 0 else 3),
            rate=arguments.rate,
            machine=machine,
            only=arguments.only,
            is_alone=arguments.alone,
        )
    report.never = [fault.name for fault in kinds if not report.alone[fault.name] + report.paired[fault.name]]
    for line in report.lines():
        print(line)
    print(f"seed {seed}")
    return 1 if report.wrong else 0


def one_round(
    rng: random.Random,
    report: Report,
    *,
    duration_s: float,
    zookeepers: int,
    rate: int,
    machine: Machine,
    only: str | None = None,
    is_alone: bool = False,
) -> None:
    """Runs one cluster from its start to the comparison of its files; adds to ``report``. ``is_alone``: no pairs."""
    for left in sweep():
        log.info("swept disk=%s", left)
    directory = Path(tempfile.mkdtemp(prefix="pylog-chaos-"))
    disks = SmallDisks() if machine.has_small_disks else None
    report.left_out.update(machine.left_out)
    report.rounds += 1
    report.ensembles[zookeepers] += 1
    before, is_sound = len(report.wrong), False
    try:
        with ProxyTrap() as trap:
            cluster = ChaosCluster(brokers=3, zookeepers=zookeepers, directory=directory, disks=disks)
            kinds = named(catalogue(machine), only)
            _run(cluster, rng, report, kinds, duration_s=duration_s, rate=rate, is_alone=is_alone)
        if trap.visitors:
            report.wrong.append(f"proxy: {trap.visitors} connections used the one in the environment")
        is_sound = len(report.wrong) == before
    finally:
        if is_sound:
            _unmount(disks)
            shutil.rmtree(directory, ignore_errors=True)
        else:
            if disks is not None:
                _keep(directory)
            _unmount(disks)
            report.wrong.append(f"kept: {directory}")


def _run(
    cluster: ChaosCluster,
    rng: random.Random,
    report: Report,
    kinds: list[Fault],
    *,
    duration_s: float,
    rate: int,
    is_alone: bool,
) -> None:
    before = len(report.wrong)
    with cluster:
        with Admin(cluster.proxied_servers) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, config=_TOPIC_SETTINGS)
        workload = Workload(cluster.proxied_servers, TOPIC, PARTITIONS, producers=3, consumers=2, rate=rate)
        watch = LeaderWatch(cluster.zookeeper_connect, TOPIC, PARTITIONS, cluster.serving)
        faults = Faults(cluster, TOPIC, PARTITIONS, rng)
        workload.start()
        watch.start()
        try:
            _break_things(faults, kinds, report, until_s=time.monotonic() + duration_s, is_alone=is_alone)
            workload.send_no_more()
            report.wrong += calm(cluster)
        except BaseException:
            workload.abandon()  # not one more wait: what it waits for is about to end
            raise
        finally:
            watch.stop()
        workload.stop()
        _measure(report, workload, watch)
        report.wrong += faults.wrong
        if len(report.wrong) == before:
            report.wrong += hidden_damage(cluster, TOPIC, faults.flips) or calm(cluster)
        if len(report.wrong) > before:
            return
        final = everything(cluster, TOPIC, PARTITIONS)
        report.wrong += check(workload.history, final)
        directories = replicas(cluster, TOPIC)
    report.wrong += compare(directories, {at: max(records, default=-1) + 1 for at, records in final.items()})


def _measure(report: Report, workload: Workload, watch: LeaderWatch) -> None:
    report.acknowledged += workload.history.acknowledged_records
    report.consumed += workload.history.consumed_records
    report.failed.update(workload.history.failed)
    report.longest_silence_s = max(report.longest_silence_s, workload.silence.all_s)
    for number, silent_s in workload.silence.partition_s.items():
        report.longest_silence_of_one = max(
            report.longest_silence_of_one, (silent_s, (TOPIC, number)), key=lambda each: each[0]
        )
    for at, missing_s in watch.gaps.longest_s.items():
        report.longest_without_leader = max(report.longest_without_leader, (missing_s, at), key=lambda each: each[0])


def _break_things(
    faults: Faults, kinds: list[Fault], report: Report, *, until_s: float, is_alone: bool = False
) -> None:
    """Causes one fault, or two that overlap, then a little calm, repeatedly. No fault is repeated before all others
    occurred.
    """
    deck: list[Fault] = []
    while time.monotonic() < until_s:
        undos: list[tuple[str, Undo]] = []
        count = min(len(kinds), 1 if is_alone else faults.rng.choice((1, 2)))
        if len(deck) < count:
            deck = faults.rng.sample(kinds, len(kinds))
        for fault in [deck.pop() for _ in range(count)]:
            faults.others_are_under_way = bool(undos)
            undo = fault.begin(faults)
            log.info("fault=%s done=%s", fault.name, undo is not None)
            if undo is None:
                continue
            undos.append((fault.name, undo))
            time.sleep(min(faults.rng.uniform(1.0, fault.longest_s), max(0.0, until_s - time.monotonic())))
        report.note_faults([name for name, _ in undos])
        faults.rng.shuffle(undos)
        mend(undos)
        time.sleep(faults.rng.uniform(0.5, 4.0))


def mend(undos: list[tuple[str, Undo]]) -> None:
    """Repairs all; a fault that needs another to be repaired first (a broker's start needs ZooKeeper) is retried
    after it.
    """
    left, deadline_s = deque(undos), time.monotonic() + _MENDING_LIMIT_S
    while left:
        name, undo = left.popleft()
        log.info("mend fault=%s", name)
        try:
            undo()
        except PylogError as error:
            if time.monotonic() > deadline_s:
                raise
            log.info("cannot mend yet fault=%s error=%s", name, error)
            left.append((name, undo))
            time.sleep(1.0)


def _keep(directory: Path) -> None:
    """Copies the content of small disks beside them: they disappear."""
    for disk in directory.glob("disk-*"):
        shutil.copytree(disk, directory / f"kept-{disk.name}", ignore=shutil.ignore_patterns("ballast"))


def _unmount(disks: SmallDisks | None) -> None:
    if disks is not None:
        disks.close()


if __name__ == "__main__":
    sys.exit(main())
