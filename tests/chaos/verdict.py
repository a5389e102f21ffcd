"""What is checked at the end of a round: every record of the log, and the files of every replica."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from broker_runtime.log.inspect import compare_replicas
from pyspark_log import Admin, TopicPartition, read
from pyspark_log.errors import PylogError
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import Flip
from tests.chaos.history import Partition

_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.5


def calm(cluster: ChaosCluster, limit_s: float = _LIMIT_S) -> list[str]:
    """Waits until all replicas are in sync and nothing moves; returns what is stuck after ``limit_s``."""
    cluster.network.heal_all()
    deadline_s = time.monotonic() + limit_s
    try:
        cluster.wait_until_ready(limit_s)
        with Admin(cluster.proxied_servers) as admin:
            while moving := admin.list_reassignments():
                if time.monotonic() > deadline_s:
                    return [f"stuck: {moving} still move after {limit_s:.0f} s"]
                time.sleep(_POLL_S)
        cluster.wait_until_ready(limit_s)
    except PylogError as error:
        return [f"stuck: {error}"]
    return []


def hidden_damage(cluster: ChaosCluster, topic: str, flips: Sequence[Flip]) -> list[str]:
    """Lets brokers lead and serve logs that were damaged while they were down: the damage must be found and repaired.

    Damage that remains after `_LIMIT_S` is an error. Other replicas must be in sync.
    """
    wrong = []
    for flip in flips:
        deadline_s = time.monotonic() + _LIMIT_S
        while flip.is_there():
            if time.monotonic() > deadline_s:
                wrong.append(f"hidden: {flip} is not found, though its broker led and all was read")
                break
            # A refusal: the broker is giving up its leadership just now, or does not lead yet; so retry.
            with contextlib.suppress(PylogError):
                _lead_and_serve(cluster, topic, flip)
            time.sleep(_POLL_S)
    return wrong


def _lead_and_serve(cluster: ChaosCluster, topic: str, flip: Flip) -> None:
    at = TopicPartition(topic, flip.partition)
    with Admin(cluster.proxied_servers) as admin:
        now = admin.describe_topic(topic).partitions[flip.partition]
        if flip.broker_id not in now.replicas:
            return  # its files go away by themselves
        if now.replicas[0] != flip.broker_id and not admin.list_reassignments():
            others = [each for each in now.replicas if each != flip.broker_id]
            admin.reassign_partitions({at: [flip.broker_id, *others]})
        if now.replicas[0] == flip.broker_id and now.leader != flip.broker_id:
            admin.elect_leaders([at])
    for _ in read(topic, bootstrap_servers=cluster.proxied_servers):
        pass


def everything(cluster: ChaosCluster, topic: str, partitions: int) -> dict[Partition, dict[int, bytes]]:
    """Every record of the topic, by partition and offset."""
    final: dict[Partition, dict[int, bytes]] = {(topic, partition): {} for partition in range(partitions)}
    for batch in read(topic, metadata=True, bootstrap_servers=cluster.proxied_servers):
        values = batch.column("value").to_pylist()
        for value, where in zip(values, batch.column("_metadata").to_pylist(), strict=True):
            final[topic, where["partition"]][where["offset"]] = value
    return final


def replicas(cluster: ChaosCluster, topic: str) -> dict[Partition, list[Path]]:
    """The directories of each partition's replicas."""
    with Admin(cluster.proxied_servers) as admin:
        partitions = admin.describe_topic(topic).partitions
    return {
        (topic, each.partition): [
            cluster.log_dirs(broker_id)[0] / f"{topic}-{each.partition}" for broker_id in each.replicas
        ]
        for each in partitions
    }


def compare(directories: Mapping[Partition, Sequence[Path]], ends: Mapping[Partition, int]) -> list[str]:
    """What differs between replicas, or is not in all of them. ``ends``: the offset after the last record read, by
    partition.
    """
    wrong = []
    for at, paths in directories.items():
        found = compare_replicas(paths)
        if found.difference is not None:
            wrong.append(f"replicas: {found.difference}")
        needed = max(ends.get(at, 0), found.high_watermark)
        if min(found.log_ends) < needed:
            wrong.append(f"replicas: {at} is committed to {needed}, but they end at {found.log_ends}")
        elif found.end < needed:
            wrong.append(f"replicas: {at} was read to {needed}, but is committed to {found.end} on the disks")
    return wrong
