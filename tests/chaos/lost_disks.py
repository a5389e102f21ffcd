"""Faults that take a disk, or all brokers at once: which come back, in which order, and with what on their disks.

Rule: a disk is taken only while every replica is in sync and no other one is damaged. Nobody can restore what all have
lost; but while one in-sync replica has its disk, no acknowledged record may be lost, whichever broker comes back first,
with or without its data.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.znodes import PartitionState, from_json, partition_state_path
from pyspark_log.errors import PylogError
from tests.chaos.faults import Faults, Undo

log = logging.getLogger(__name__)

LEADER_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.2
_ANSWER_LIMIT_S: Final = 2.0
_SESSION_MS: Final = 10_000


def partition_states(faults: Faults) -> dict[int, PartitionState] | None:
    """ZooKeeper's state of each of the topic's partitions; None: it does not answer, or not for all."""
    paths = {number: partition_state_path(faults.topic, number) for number in range(faults.partitions)}
    try:
        client = KazooZooKeeper.connect(
            faults.cluster.zookeeper_connect, session_timeout_ms=_SESSION_MS, operation_limit_s=_ANSWER_LIMIT_S
        )
    except PylogError:
        return None
    try:
        found = client.find_all(list(paths.values()))
    except ZooKeeperUnavailableError:
        return None
    finally:
        client.close()
    states = {
        number: from_json(znode.data, PartitionState, path)
        for (number, path), znode in zip(paths.items(), found, strict=True)
        if znode is not None
    }
    return states if len(states) == faults.partitions else None


def is_whole(faults: Faults, replicas: int = 3) -> bool:
    """Whether every replica is in sync and none has undetected damage."""
    if any(flip.is_there() for flip in faults.flips):
        return False
    states = partition_states(faults)
    return states is not None and all(
        len(state.isr) == replicas and state.leader is not None for state in states.values()
    )


def empty(directories: Sequence[Path]) -> None:
    """Empties the disk, as a new one is."""
    for directory in directories:
        for entry in directory.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def disk_emptied(faults: Faults, broker_id: int) -> Undo | None:
    """A broker's disk is replaced by an empty one while it is down."""
    if not is_whole(faults):
        return None
    _end(faults, broker_id)
    empty(faults.cluster.log_dirs(broker_id))
    log.info("emptied broker=%d", broker_id)
    return lambda: faults.cluster.start(broker_id)


def partition_lost(faults: Faults, broker_id: int) -> Undo | None:
    """One partition's directory is gone from a broker's disk while it is down."""
    if not is_whole(faults):
        return None
    _end(faults, broker_id)
    there = sorted(faults.cluster.log_dirs(broker_id)[0].glob(f"{faults.topic}-*[0-9]"))
    for directory in faults.rng.sample(there, min(1, len(there))):
        shutil.rmtree(directory)
        log.info("removed directory=%s", directory)
    return lambda: faults.cluster.start(broker_id)


def all_killed(faults: Faults, *, is_one_emptied: bool = False) -> Undo | None:
    """All brokers are killed and come back one after the other, in an order that is not repeated until all orders were
    used; the last of them not before everything else is repaired. One may come back with an empty disk.

    As soon as one is back that was in sync and has its disk, there must be a leader.
    """
    cluster = faults.cluster
    if faults.busy or (is_one_emptied and not is_whole(faults)):
        return None
    order = faults.next_order()
    faults.busy.update(order)
    for broker_id in faults.rng.sample(order, len(order)):
        cluster.kill(broker_id)
    states = partition_states(faults)
    emptied: int | None = None
    if is_one_emptied:
        emptied = faults.rng.choice(order)
        empty(cluster.log_dirs(emptied))
    log.info("killed all order=%s emptied=%s", order, emptied)
    started: list[int] = []
    for broker_id in order[:-1]:
        with suppress(PylogError):  # ZooKeeper may be away as well; it starts when everything is repaired
            cluster.start(broker_id)
            started.append(broker_id)
        if states is not None and not faults.others_are_under_way:
            with_logs = [each for each in started if each != emptied]
            faults.wrong += _leaderless(faults, states, with_logs, started)

    def start_the_rest() -> None:
        for broker_id in order:
            cluster.start(broker_id)
        faults.busy.difference_update(order)

    return start_the_rest


def _end(faults: Faults, broker_id: int) -> None:
    """Ends the brokers, in order or not."""
    faults.rng.choice((faults.cluster.kill, faults.cluster.stop))(broker_id)


def _leaderless(
    faults: Faults, before: Mapping[int, PartitionState], with_logs: Sequence[int], started: Sequence[int]
) -> list[str]:
    """Partitions without a leader although one of ``with_logs``, of the brokers that were ``started`` again, was in
    sync. One whose disk was emptied may lead as well, once it has caught up."""
    due = {number for number, state in before.items() if set(state.isr) & set(with_logs)}
    deadline_s = time.monotonic() + LEADER_LIMIT_S
    while due:
        states = partition_states(faults) or {}
        due -= {number for number in due if number in states and is_led_anew(states[number], before[number], started)}
        if due and time.monotonic() > deadline_s:
            return [
                f"leaderless: {faults.topic}-{number} was in sync on {before[number].isr}, of which {with_logs} are "
                f"back, but after {LEADER_LIMIT_S:.0f} s its state is {states.get(number)}"
                for number in sorted(due)
            ]
        time.sleep(_POLL_S)
    return []


def is_led_anew(state: PartitionState, before: PartitionState, started: Sequence[int]) -> bool:
    """Whether one of these brokers was elected since all were killed."""
    return state.leader in started and state.leader_epoch > before.leader_epoch
