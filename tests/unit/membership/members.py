"""Brokers' membership over a ZooKeeper in memory, for unit tests: what they host is only recorded."""

from __future__ import annotations

from msgspec import structs

from broker_runtime.contract.requests import CreateTopicRequest
from broker_runtime.controller.assignment import loads
from broker_runtime.controller.topic_plans import plan_topic
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.zookeeper.membership import BrokerIdentity
from broker_runtime.zookeeper.session import Set
from broker_runtime.zookeeper.znodes import (
    PartitionState,
    announcing,
    from_json,
    partition_state_path,
    to_json,
)


class RecordingHosting:
    """Records what the member had it host."""

    def __init__(self):
        self.epochs = {}
        self.led = set()
        self.removed = []
        self.retries = []

    def apply(self, cluster, broker_epoch):
        for name in self.led - set(cluster.topics):
            self.forget_topic(name)
        for topic in cluster.topics.values():
            self.apply_topic(topic, broker_epoch)

    def apply_topic(self, topic, broker_epoch):
        for versioned in topic.partitions:
            if versioned is not None and versioned.state.leader_broker_epoch == broker_epoch:
                self.led.add(topic.name)
                self.epochs[topic.name] = versioned.state.leader_epoch

    def forget_topic(self, name):
        self.led.discard(name)

    def remove_logs(self, name, topic_id):
        self.forget_topic(name)
        self.removed.append(name)

    def step_down_all(self):
        self.led.clear()

    def damaged_replicas(self):
        return []

    def failures(self, name):
        return {}

    def release(self, partition, version):
        raise AssertionError("nothing is damaged")

    def retry_failed(self, cluster, broker_epoch):
        self.retries.append((sorted(cluster.topics), broker_epoch))


class Broker:
    def __init__(self, server, broker_id=1, instance=None, *, clock=None, ports=None, was_clean=True, **options):
        self.client = CountingClient(server.client())
        self.hosting = RecordingHosting()
        self.clock = clock or [0]
        self.reported = []
        identity = BrokerIdentity(
            broker_id=broker_id,
            host=f"h{broker_id}",
            port=1,
            instance=instance or f"data-{broker_id}",
            pid=1,
            boot_id="",
            software_version="",
            was_clean=was_clean,
        )
        refusing = ports if ports is not None else set()
        self.member = ClusterMember(
            self.client,
            identity,
            self.hosting,
            now_ms=lambda: self.clock[0],
            probe=lambda host, port: host in refusing,
            report=self.reported.append,
            **options,
        )

    def create(self, name, replication_factor=1, partitions=1, config=None):
        with self.member.changing() as cluster:
            plan = plan_topic(
                CreateTopicRequest(name=name, config=config or {}),
                topic_id=name.encode().ljust(16),
                brokers=loads(cluster.brokers, [topic.record.assignment for topic in cluster.topics.values()]),
                default_partitions=partitions,
                default_replication_factor=replication_factor,
                now_ms=0,
            )
            self.member.topics.create(plan)
            return self.member.refresh_topic(name)

    def state(self, name, partition=0):
        """Returns (leader, leader epoch, in-sync set) as this broker knows it."""
        state = self.member.state.topics[name].partitions[partition].state
        return state.leader, state.leader_epoch, state.isr

    def full_state(self, name, partition=0):
        """The partition's state as this broker knows it."""
        return self.member.state.topics[name].partitions[partition].state


class CountingClient:
    """Forwards everything and counts."""

    def __init__(self, client):
        self._client = client
        self.transactions = 0
        self.reads = []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        self.transactions += 1
        return self._client.transaction(operations, session=session)

    def find_all(self, paths, **options):
        self.reads += paths
        return self._client.find_all(paths, **options)


def settle(brokers, rounds=6):
    for _ in range(rounds):
        for each in brokers.values():
            each.member.step(0)


def put_in_sync(broker, name, in_sync, partition=0):
    """Writes an in-sync set as a leader does."""
    path = partition_state_path(name, partition)
    node = broker.client.get(path)
    state = structs.replace(from_json(node.data, PartitionState, path), isr=in_sync)
    broker.client.transaction([Set(path, to_json(state), node.version), announcing([name])])
