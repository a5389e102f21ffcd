"""Bits that flip on the disk of one of three brokers are never served, and are repaired from the other replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_runtime.contract.model import PartitionDescription
from broker_runtime.log.inspect import compare_replicas, iterate_frames, verify_directory
from pyspark_log import Admin, Producer
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import numbers_in
from tests.waiting import wait_until

RECORDS = 600


def produce(cluster: LocalCluster, topic: str, numbers: range) -> None:
    """Sends frames of a few records and waits until all in-sync replicas have acknowledged them."""
    with Producer(cluster.bootstrap_servers, acks="all") as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, key=b"k" * 100)
            if number % 5 == 4:
                producer.flush()


def log_of(cluster: LocalCluster, broker_id: int, topic: str) -> Path:
    """The directory of partition 0."""
    (found,) = [path / f"{topic}-0" for path in cluster.log_dirs(broker_id) if (path / f"{topic}-0").exists()]
    return found


def flip(segment: Path, frame: int, within: int) -> None:
    """Flips a bit of frame number ``frame``; a negative number counts from the end."""
    position = [found for found, _, _ in iterate_frames(segment)][frame] + within
    content = bytearray(segment.read_bytes())
    content[position] ^= 0x10
    segment.write_bytes(content)


def in_rows_of_a_closed_segment(log: Path) -> None:
    first, *others = sorted(log.glob("*.log"))
    assert len(others) > 2
    flip(first, 2, 300)


def in_a_header_below_the_high_watermark(log: Path) -> None:
    """It is no torn tail: later frames follow, which carry the high watermark."""
    flip(max(log.glob("*.log")), -3, 70)


def created(admin: Admin, topic: str) -> PartitionDescription:
    config = {"segment.bytes": "16KiB", "max.message.bytes": "16KiB"}
    return admin.create_topic(topic, replication_factor=3, config=config).partitions[0]


def replicas_are_whole(cluster: LocalCluster, admin: Admin, topic: str, damaged: int) -> None:
    """All replicas are in sync, and identical and undamaged after a stop; the damaged log was set aside."""
    wait_until(lambda: len(admin.describe_topic(topic).partitions[0].isr) == 3, "all are in sync")
    for broker_id in (1, 2, 3):
        cluster.stop(broker_id)
    logs = [log_of(cluster, broker_id, topic) for broker_id in (1, 2, 3)]
    compared = compare_replicas(logs)
    assert compared.difference is None
    assert (compared.start, len(set(compared.log_ends))) == (0, 1)
    assert compared.end == compared.high_watermark == compared.log_ends[0]
    for log in logs:
        assert not [report.damage for report in verify_directory(log) if report.damage]
        aside = list(log.parent.glob(f"{topic}-0.*.damaged"))
        assert len(aside) == (log.parent in cluster.log_dirs(damaged))
    for broker_id in (1, 2, 3):
        cluster.start(broker_id)
    cluster.wait_until_ready()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_damaged_follower_is_repaired_from_its_leader(cluster: LocalCluster, admin: Admin, is_killed: bool) -> None:
    """A follower fetches frames below the high watermark of a closed segment again if their bits flipped while it
    was away.
    """
    topic = f"follower-{is_killed}"
    partition = created(admin, topic)
    (follower, *_) = [replica for replica in partition.replicas if replica != partition.leader]
    produce(cluster, topic, range(RECORDS))
    if is_killed:
        cluster.kill(follower)
    else:
        cluster.stop(follower)
    log = log_of(cluster, follower, topic)
    in_rows_of_a_closed_segment(log)
    in_a_header_below_the_high_watermark(log)
    produce(cluster, topic, range(RECORDS, RECORDS + 50))
    cluster.start(follower)
    cluster.wait_until_ready()
    replicas_are_whole(cluster, admin, topic, follower)
    assert numbers_in(cluster, topic) == list(range(RECORDS + 50))


def test_damaged_leader_is_never_read_and_is_repaired(cluster: LocalCluster, admin: Admin) -> None:
    """Damage in a closed segment of a cleanly closed log is found when its broker leads: readers get everything from
    the next leader, and the damaged replica follows.
    """
    partition = created(admin, "leader")
    leader = partition.leader
    assert leader is not None
    assert leader == partition.replicas[0]
    produce(cluster, "leader", range(RECORDS))
    cluster.stop(leader)
    in_rows_of_a_closed_segment(log_of(cluster, leader, "leader"))
    produce(cluster, "leader", range(RECORDS, RECORDS + 50))
    cluster.start(leader)
    cluster.wait_until_ready()
    wait_until(lambda: admin.describe_topic("leader").partitions[0].leader == leader, "the preferred leader leads")
    assert numbers_in(cluster, "leader") == list(range(RECORDS + 50))
    produce(cluster, "leader", range(RECORDS + 50, RECORDS + 100))
    replicas_are_whole(cluster, admin, "leader", leader)
    assert numbers_in(cluster, "leader") == list(range(RECORDS + 100))
