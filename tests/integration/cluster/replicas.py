"""What tests of several brokers look at: the replicas on their disks, and records with numbers as values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark_log import Admin, Producer, read
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

LIMIT_S = 60.0


def kill_all(cluster: LocalCluster) -> None:
    """Kills all brokers at one moment: none of them sees another die."""
    for broker_id in cluster.broker_ids:
        cluster.pause(broker_id)
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)


def leader_and_in_sync(cluster: LocalCluster, topic: str) -> tuple[int | None, tuple[int, ...]]:
    """Who leads the topic's only partition, and its in-sync replicas in order."""
    with Admin(cluster.bootstrap_servers) as admin:
        (partition,) = admin.describe_topic(topic).partitions
        return partition.leader, tuple(sorted(partition.isr))


def produce(cluster: LocalCluster, topic: str, numbers: Iterable[int], *, partition: int | None = None) -> None:
    """Sends the numbers with ``acks=all`` and returns when all are acknowledged."""
    with Producer(cluster.bootstrap_servers, acks="all") as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=partition)


def numbers_in(cluster: LocalCluster, topic: str) -> list[int]:
    """The numbers of all records that can be read now, in order within each partition."""
    return [
        int(value) for value in read(topic, bootstrap_servers=cluster.bootstrap_servers).read_all()["value"].to_pylist()
    ]


def segments(cluster: LocalCluster, broker_id: int, topic: str) -> dict[str, bytes]:
    """Content of a broker's segment files of the topic, but for what was set aside, by partition directory and file
    name."""
    found: dict[str, bytes] = {}
    for directory in cluster.log_dirs(broker_id):
        for path in sorted(Path(directory).glob(f"{topic}-*[0-9]/*.log")):
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return found


def replicas_are_identical(cluster: LocalCluster, topic: str) -> None:
    """Waits until the topic's replicas on all brokers have the same bytes in the same files."""

    def differing() -> bool:
        first, *others = (segments(cluster, broker_id, topic) for broker_id in cluster.broker_ids)
        return not any(first.values()) or any(other != first for other in others)

    wait_until(lambda: not differing(), f"replicas of {topic} are identical")
