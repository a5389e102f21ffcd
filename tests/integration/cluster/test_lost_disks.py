"""All brokers end, and one disk comes back empty, without a log, or as a copy made while its broker was running: no
acknowledged record is lost, in any order of restarts.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.files import RealFiles
from broker_runtime.log.identity import DiskIdentity
from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.znodes import DiskRecord, broker_disks_path, from_json
from pyspark_log import Admin, Producer
from pyspark_log.client.admin.health import why_offline
from pyspark_log.errors import PylogError
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import (
    SharedCluster,
    kill_all,
    leader_and_in_sync,
    numbers_in,
    replicas_are_identical,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 40.0
wait_through_errors = partial(wait_until, limit_s=LIMIT_S, ignoring=(PylogError,))  # of brokers that start
COUNT = 1_000
BROKERS = (1, 2, 3)
_numbers = itertools.count(1)


@pytest.fixture
def cluster(harmed_cluster: SharedCluster) -> Iterator[LocalCluster]:
    with harmed_cluster.lend() as running:
        yield running
        for broker_id in BROKERS:
            for path in running.log_dirs(broker_id):
                for left in path.parent.glob(f"{path.name}-*"):
                    shutil.rmtree(left)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A topic with records on all brokers. Its name is new, so nothing left of earlier topics belongs to it."""
    topic = f"t{next(_numbers)}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=3)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d" % number)
    cluster.wait_until_ready()
    return topic


def _stop_all(cluster: LocalCluster, last: int) -> None:
    for broker_id in [*(each for each in BROKERS if each != last), last]:
        cluster.stop(broker_id)


def _empty_disk(cluster: LocalCluster, broker_id: int) -> Path:
    """Replaces the disk by an empty one."""
    (path,) = cluster.log_dirs(broker_id)
    kept = path.with_name(path.name + "-kept")
    path.rename(kept)
    path.mkdir()
    return kept


def _log_bytes(cluster: LocalCluster, broker_id: int, topic: str) -> int:
    """The bytes of the partition's log in use, and of those set aside."""
    (path,) = cluster.log_dirs(broker_id)
    return sum(file.stat().st_size for file in path.glob(f"{topic}-0*/*.log"))


def _require_everything(cluster: LocalCluster, topic: str) -> None:
    cluster.wait_until_ready()
    assert sorted(numbers_in(cluster, topic)) == list(range(COUNT))
    for broker_id in BROKERS:
        assert _log_bytes(cluster, broker_id, topic) > COUNT


@pytest.mark.parametrize(("emptied", "order"), [(3, (1, 2, 3)), (3, (3, 1, 2)), (1, (1, 2, 3)), (2, (3, 1, 2))])
def test_emptied_disk_loses_nothing_after_all_brokers_were_killed(
    cluster: LocalCluster, topic: str, emptied: int, order: Sequence[int]
) -> None:
    """The broker with the empty disk fetches everything from the others, whichever restarts first."""
    kill_all(cluster)
    _empty_disk(cluster, emptied)
    for broker_id in order:
        cluster.start(broker_id)
    _require_everything(cluster, topic)


@pytest.mark.parametrize("emptied", [1, 3])
def test_missing_directory_of_the_partition_loses_nothing_after_all_brokers_were_killed(
    cluster: LocalCluster, topic: str, emptied: int
) -> None:
    """The checkpoints name the log, so its absence is noticed."""
    kill_all(cluster)
    (path,) = cluster.log_dirs(emptied)
    shutil.rmtree(path / f"{topic}-0")
    for broker_id in (emptied, *(each for each in BROKERS if each != emptied)):
        cluster.start(broker_id)
    _require_everything(cluster, topic)


def _known_generation(cluster: LocalCluster, broker_id: int, disk_id: str) -> int:
    client = KazooZooKeeper.connect(cluster.zookeeper_connect, session_timeout_ms=10_000)
    try:
        path = broker_disks_path(broker_id)
        return from_json(client.get(path).data, DiskRecord, path).generations.get(disk_id, 0)
    finally:
        client.close()


@pytest.mark.parametrize(("first", "is_copy"), [(1, True), (3, True), (1, False)])
def test_copy_of_a_running_brokers_disk_does_not_lead_after_all_were_killed(
    cluster: LocalCluster, topic: str, first: int, is_copy: bool
) -> None:
    """The copy lacks later acknowledged records; ZooKeeper knows of a newer disk, and that one leads at once."""
    (path,) = cluster.log_dirs(first)
    copy = path.with_name(path.name + "-copy")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.tmp"))
    copied = DiskIdentity.read(RealFiles(), copy)
    assert copied is not None
    written = COUNT
    with Producer(cluster.bootstrap_servers) as producer:

        def is_known_after_one_more() -> bool:
            nonlocal written
            producer.send(topic, b"%d" % written).result(LIMIT_S)
            written += 1
            return _known_generation(cluster, first, copied.disk_id) >= copied.generation + 2

        wait_until(is_known_after_one_more, "ZooKeeper knows of a newer generation", pause_s=0.1)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic)[1] == BROKERS, "all are in sync")
    kill_all(cluster)
    if is_copy:
        shutil.rmtree(path)
        copy.rename(path)
    cluster.start(first)
    others = tuple(each for each in BROKERS if each != first)
    expected = (None, others) if is_copy else (first, (first,))
    wait_through_errors(
        lambda: leader_and_in_sync(cluster, topic) == expected, f"leader and in-sync set are {expected}"
    )
    for broker_id in others:
        cluster.start(broker_id)
    cluster.wait_until_ready()
    assert sorted(numbers_in(cluster, topic)) == list(range(written))
    for broker_id in BROKERS:
        assert _log_bytes(cluster, broker_id, topic) > written


def test_very_recent_copy_of_a_disk_does_not_lead_after_all_were_killed(cluster: LocalCluster, topic: str) -> None:
    """The copy may lack acknowledged records, however recent it is."""
    (path,) = cluster.log_dirs(1)
    copy = path.with_name(path.name + "-copy")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.tmp"))
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(COUNT, 2 * COUNT):
            producer.send(topic, b"%d" % number)
    kill_all(cluster)
    shutil.rmtree(path)
    copy.rename(path)
    cluster.start(1)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic) == (None, (2, 3)), "the others are waited for")
    for broker_id in (2, 3):
        cluster.start(broker_id)
    cluster.wait_until_ready()
    assert sorted(numbers_in(cluster, topic)) == list(range(2 * COUNT))


@pytest.mark.parametrize("first", [1, 3])
def test_first_broker_to_come_back_leads_at_once_after_all_were_killed(
    cluster: LocalCluster, topic: str, first: int
) -> None:
    """The first broker has every acknowledged record; with the second, ``min.insync.replicas`` is met."""
    kill_all(cluster)
    cluster.start(first)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic) == (first, (first,)), f"broker {first} leads alone")
    second, third = (each for each in BROKERS if each != first)
    cluster.start(second)
    wait_through_errors(lambda: len(numbers_in(cluster, topic)) == COUNT, "everything can be read without the third")
    cluster.start(third)
    _require_everything(cluster, topic)


def _empty_the_log(log: Path) -> None:
    for file in log.iterdir():
        file.unlink()


def _flip_a_bit(log: Path) -> None:
    (segment,) = log.glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)


def _put_another_in_its_place(log: Path) -> None:
    shutil.rmtree(log)
    log.with_name(f"u{log.name}").rename(log)


def _has_given_up(cluster: LocalCluster, topic: str) -> bool:
    """Broker 1 was asked for its log end, opened the log and found the damage; the other replicas have everything."""
    with Admin(cluster.bootstrap_servers) as admin:
        (partition,) = admin.describe_topic(topic).partitions
        health = admin.check_health()
    return (
        partition.leader is None
        and set(partition.isr) in ({2}, {3}, {2, 3})
        and (health.problems.get(TopicPartition(topic, 0)), health.missing_brokers) == ("offline", (2, 3))
        and "Start one of them: nothing is lost." in str(why_offline(TopicPartition(topic, 0), partition))
    )


def _leads_alone(cluster: LocalCluster, topic: str) -> bool:
    """Broker 1 does not read the damaged part; the last replicas to leave with everything committed are remembered."""
    with Admin(cluster.bootstrap_servers) as admin:
        (partition,) = admin.describe_topic(topic).partitions
        health = admin.check_health()
    return (
        (partition.leader, partition.isr) == (1, (1,))
        and set(partition.eligible) in ({2}, {3}, {2, 3})
        and (health.problems.get(TopicPartition(topic, 0)), health.missing_brokers) == ("under-min-isr", (2, 3))
    )


def _is_healthy(cluster: LocalCluster) -> bool:
    with Admin(cluster.bootstrap_servers) as admin:
        return admin.check_health().is_healthy


def _asides(cluster: LocalCluster, topic: str) -> list[int]:
    """The brokers with a log that was set aside, once for each such log."""
    return [each for each in BROKERS for path in cluster.log_dirs(each) for _ in path.glob(f"{topic}-0.*")]


@pytest.mark.parametrize(
    ("harm", "is_so_while_alone"),
    [(_empty_the_log, _has_given_up), (_put_another_in_its_place, _has_given_up), (_flip_a_bit, _leads_alone)],
)
def test_damaged_log_of_the_first_broker_to_come_back_is_repaired_from_the_others(
    cluster: LocalCluster,
    topic: str,
    harm: Callable[[Path], None],
    is_so_while_alone: Callable[[LocalCluster, str], bool],
) -> None:
    """The broker finds the damage when it opens or reads the log; the other replicas have everything committed."""
    (path,) = cluster.log_dirs(1)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(f"u{topic}", partitions=1, replication_factor=3)
    wait_through_errors((path / f"u{topic}-0" / "partition.json").exists, "another log is there")
    wait_through_errors(
        lambda: f"{topic} 0 {COUNT}" in (path / "high-watermark-checkpoint").read_text(), "the checkpoint is written"
    )
    kill_all(cluster)
    harm(path / f"{topic}-0")
    cluster.start(1)
    wait_through_errors(lambda: is_so_while_alone(cluster, topic), str(is_so_while_alone.__doc__))
    cluster.start(2)
    cluster.start(3)
    _require_everything(cluster, topic)
    wait_through_errors(lambda: _asides(cluster, topic) == [1], "the damaged log is set aside")
    wait_through_errors(lambda: _is_healthy(cluster), "the cluster is healthy")
    # Any broker answers with the state it last learned.
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic)[1] == BROKERS, "all are in sync")
    replicas_are_identical(cluster, topic)
    assert sorted(numbers_in(cluster, topic)) == list(range(COUNT))
    assert _asides(cluster, topic) == [1]


@pytest.mark.parametrize("is_whole_disk", [True, False])
def test_partition_has_no_leader_until_the_log_of_the_last_stopped_broker_is_back(
    cluster: LocalCluster, topic: str, is_whole_disk: bool
) -> None:
    """No replica with fewer than the acknowledged records leads; putting the disk or the directory back repairs the
    partition.
    """
    _stop_all(cluster, last=3)
    (path,) = cluster.log_dirs(3)
    if is_whole_disk:
        kept = _empty_disk(cluster, 3)
    else:
        kept = path.with_name(f"{topic}-0-kept")
        (path / f"{topic}-0").rename(kept)
    for broker_id in (3, 1, 2):
        cluster.start(broker_id)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic) == (None, (3,)), "the partition has no leader")
    for broker_id in (1, 2):
        assert _log_bytes(cluster, broker_id, topic) > COUNT
    cluster.stop(3)
    if is_whole_disk:
        shutil.rmtree(path)
        kept.rename(path)
    else:
        kept.rename(path / f"{topic}-0")
    cluster.start(3)
    _require_everything(cluster, topic)


def test_operator_can_elect_a_replica_when_the_last_in_sync_one_lost_its_disk(
    cluster: LocalCluster, topic: str
) -> None:
    """An unclean election prefers a replica with everything committed: broker 3, which left the in-sync set last."""
    _stop_all(cluster, last=1)
    _empty_disk(cluster, 1)
    for broker_id in BROKERS:
        cluster.start(broker_id)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic) == (None, (1,)), "the partition has no leader")
    with Admin(cluster.bootstrap_servers) as admin:
        (described,) = [each for each in admin.describe_topics() if each.name == topic]
        assert tuple(described.partitions[0].eligible) == (3,)
        ((_, leader),) = admin.elect_leaders([(topic, 0)], election="unclean").items()
    assert leader == 3
    _require_everything(cluster, topic)


def test_eligible_replica_leads_when_the_last_in_sync_one_does_not_come_back(cluster: LocalCluster, topic: str) -> None:
    """The replica has everything committed. A broker that comes back later, even with an empty disk, joins it."""
    _stop_all(cluster, last=1)
    for broker_id in (2, 3):
        cluster.start(broker_id)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic)[0] == 3, "the one that left last leads")
    _require_everything(cluster, topic)
    _empty_disk(cluster, 1)
    cluster.start(1)
    wait_through_errors(
        lambda: set(leader_and_in_sync(cluster, topic)[1]) == {1, 2, 3}, "the third one has fetched everything"
    )
    _require_everything(cluster, topic)
