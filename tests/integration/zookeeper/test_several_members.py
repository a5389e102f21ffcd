"""Several brokers over a real ZooKeeper: each learns the others' writes, and leaderships move in time."""

import threading
import time
from contextlib import ExitStack

import pytest

from broker_runtime.contract.requests import CreateTopicRequest
from broker_runtime.controller.assignment import loads
from broker_runtime.controller.topic_plans import plan_topic
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.membership import BrokerIdentity
from broker_runtime.zookeeper.znodes import broker_path
from tests.waiting import wait_until


class NoHosting:
    """Hosts nothing."""

    def apply(self, cluster, broker_epoch): ...

    def apply_topic(self, topic, broker_epoch): ...

    def retry_failed(self, cluster, broker_epoch): ...

    def remove_logs(self, name, topic_id): ...

    def forget_topic(self, name): ...

    def step_down_all(self): ...

    def damaged_replicas(self):
        return []

    def release(self, partition, version): ...


class Broker:
    """A member with a thread of its own."""

    def __init__(self, connect_string, broker_id):
        self.refusing = set()
        self.client = KazooZooKeeper.connect(connect_string, session_timeout_ms=6_000)
        identity = BrokerIdentity(
            broker_id=broker_id,
            host=f"h{broker_id}",
            port=1,
            instance=f"data-{broker_id}",
            pid=1,
            boot_id="",
            software_version="",
            was_clean=True,
        )
        self.member = ClusterMember(
            self.client,
            identity,
            NoHosting(),
            now_ms=lambda: time.time_ns() // 1_000_000,
            probe=lambda host, port: host in self.refusing,
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.member.join()
        self._thread.start()

    def _run(self):
        while not self._ends.is_set():
            self.member.step(1.0)

    def close(self):
        self._ends.set()
        self.member.wake()
        self._thread.join(30)
        self.client.close()

    def leaders(self, name):
        topic = self.member.state.topics.get(name)
        return [] if topic is None else [present and present.state.leader for present in topic.partitions]


@pytest.fixture
def brokers(zookeeper_connect):
    with ExitStack() as ending:
        made = {}
        for number in (1, 2, 3):
            made[number] = Broker(zookeeper_connect, number)
            ending.callback(made[number].close)
        wait_until(lambda: len(made[1].member.state.brokers) == 3, "the controller knows all brokers")
        yield made


def create(broker, name, partitions):
    with broker.member.changing() as cluster:
        plan = plan_topic(
            CreateTopicRequest(name=name),
            topic_id=name.encode().ljust(16),
            brokers=loads(cluster.placeable, []),
            default_partitions=partitions,
            default_replication_factor=3,
            now_ms=0,
        )
        broker.member.topics.create(plan)
        broker.member.refresh_topic(name)


def test_leaderships_of_a_stopping_broker_move_and_all_brokers_know(brokers):
    """W13: a broker that leads a third of a thousand partitions shuts down under control."""
    create(brokers[1], "t", 999)
    wait_until(lambda: brokers[3].leaders("t").count(2) == 333, "everybody knows the topic")
    brokers[2].member.begin_stopping()
    assert brokers[2].member.wait_until_handed_over(60) == 0
    wait_until(lambda: brokers[3].leaders("t").count(2) == 0, "everybody knows the new leaders")
    brokers[2].member.leave()
    wait_until(lambda: set(brokers[3].member.state.brokers) == {1, 3}, "everybody knows that it left")


def test_dead_controller_is_replaced_before_its_session_times_out(brokers):
    """W13, W25: brokers and controller are in ZooKeeper."""
    create(brokers[1], "t", 3)
    wait_until(lambda: 1 in brokers[3].leaders("t"), "everybody knows the topic")
    for number in (2, 3):
        brokers[number].refusing.add("h1")

    def has_moved():
        brokers[3].member.probe_peers()
        return brokers[3].leaders("t") and 1 not in brokers[3].leaders("t")

    wait_until(has_moved, "another controller has elected other leaders")
    assert brokers[2].client.find(broker_path(1)) is not None, "its session is alive"
    wait_until(lambda: not brokers[1].member.controller.is_active, "it knows that it is not the controller")
