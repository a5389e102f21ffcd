"""Which replica leads after all machines lost their power before records were flushed.

The processes are killed, the ends of their logs are cut off, and ZooKeeper gets other boot ids than the ones the
brokers registered with: what a power loss leaves behind.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.znodes import DiskRecord, broker_disks_path, from_json, to_json
from pyspark_log import Admin, Producer
from pyspark_log.errors import PylogError
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import SharedCluster, kill_all, leader_and_in_sync, numbers_in
from tests.waiting import wait_until

LIMIT_S = 25.0
wait_through_errors = partial(wait_until, limit_s=LIMIT_S, ignoring=(PylogError,))  # of brokers that start
COUNT = 50
BROKERS = (1, 2, 3)
_numbers = itertools.count(1)


@pytest.fixture
def cluster(harmed_cluster: SharedCluster) -> Iterator[LocalCluster]:
    with harmed_cluster.lend() as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A topic with a new name and records on all brokers; the disks hold what the kernel wrote by itself."""
    topic = f"power{next(_numbers)}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=3, config={"flush.mode": "os"})
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d" % number).result(LIMIT_S)  # each in a frame of its own
    cluster.wait_until_ready()
    return topic


def _forget_boots(cluster: LocalCluster) -> None:
    """Makes the machines look rebooted since their last registrations."""
    client = KazooZooKeeper.connect(cluster.zookeeper_connect, session_timeout_ms=10_000)
    try:
        for broker_id in BROKERS:
            path = broker_disks_path(broker_id)
            known = from_json(client.get(path).data, DiskRecord, path)
            client.set(path, to_json(msgspec.structs.replace(known, boot_id="another boot")), version=-1)
    finally:
        client.close()


def _cut(cluster: LocalCluster, broker_id: int, topic: str, left: float) -> None:
    """Cuts off the part of the log that never reached the disk."""
    (directory,) = cluster.log_dirs(broker_id)
    (path,) = (directory / f"{topic}-0").glob("*.log")
    os.truncate(path, int(path.stat().st_size * left))


def _logged(cluster: LocalCluster) -> str:
    """What the brokers have logged."""
    (directories,) = zip(*(cluster.log_dirs(broker_id) for broker_id in BROKERS), strict=True)
    return "".join((directory.parent / "broker.out").read_text() for directory in directories)


@pytest.mark.parametrize("most", [3, 1])
def test_longest_log_leads_after_all_lost_power_in_any_order_of_restarts(
    cluster: LocalCluster, topic: str, most: int
) -> None:
    """Records on one disk of the in-sync set are not lost once all of the set are back."""
    kill_all(cluster)
    _forget_boots(cluster)
    for broker_id in BROKERS:
        if broker_id != most:
            _cut(cluster, broker_id, topic, left=broker_id / 5)
    cluster.start(1)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic) == (None, BROKERS), "the first does not lead alone")
    cluster.start(2)
    cluster.start(3)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic)[0] is not None, "one leads")
    # It leads for a moment at least: the first replica leads again as soon as it is in sync.
    assert f"elect longest log topic={topic} partition=0 leader={most} " in _logged(cluster)
    cluster.wait_until_ready()
    assert sorted(numbers_in(cluster, topic)) == list(range(COUNT))


def test_first_broker_leads_at_once_when_the_machines_kept_power(cluster: LocalCluster, topic: str) -> None:
    """Without a power loss the kernel has written everything that the processes had handed to it."""
    kill_all(cluster)
    cluster.start(3)
    wait_through_errors(lambda: leader_and_in_sync(cluster, topic) == (3, (3,)), "broker 3 leads alone")
    for broker_id in (1, 2):
        cluster.start(broker_id)
    cluster.wait_until_ready()
    assert sorted(numbers_in(cluster, topic)) == list(range(COUNT))
