"""Brokers that coordinate groups over one ZooKeeper in memory, for unit tests."""

from __future__ import annotations

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.groups.claims import Claims
from broker_runtime.groups.coordinator import GroupCoordinator
from broker_runtime.groups.group import Limits
from broker_runtime.groups.hosted import HostedGroups
from broker_runtime.zookeeper.cluster_state import read_cluster
from broker_runtime.zookeeper.membership import BrokerIdentity, deregister, mark_stopping, register
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import (
    BROKER_IDS,
    PERMANENT,
    BrokerRegistration,
    TopicRecord,
    broker_path,
    from_json,
    to_json,
    topic_path,
)

ID = b"\x01" * 16
LIMITS = Limits(min_session_ms=1_000, max_session_ms=60_000, max_members=100)


class Client:
    """Forwards everything; a test makes it fail before transactions, lose their replies, or do something else first."""

    def __init__(self, client):
        self._client = client
        self.loses_replies = self.fails = 0
        self.before = []
        self.transactions = []
        self.reads = 0

    def find_all(self, paths, *, are_small=False):
        self.reads += len(paths)
        return self._client.find_all(paths, are_small=are_small)

    def find(self, path):
        self.reads += 1
        return self._client.find(path)

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        if self.before:
            self.before.pop(0)()
        if self.fails:
            self.fails -= 1
            raise ZooKeeperUnavailableError("no connection")
        versions = self._client.transaction(operations, session=session)
        self.transactions.append(list(operations))
        if self.loses_replies:
            self.loses_replies -= 1
            raise ZooKeeperUnavailableError("the reply was lost")
        return versions


class World:
    """The ZooKeeper, the clock, and the ports that refuse."""

    def __init__(self, brokers=2):
        self.server = MemoryZooKeeper()
        self.client = self.server.client()
        for path in PERMANENT:
            self.client.ensure_path(path)
        self.now_ms = 1_000_000
        self.refusing = set()
        self.probed = []
        self.brokers = {number: Broker(self, number) for number in range(1, brokers + 1)}

    def refuses(self, host, port):
        self.probed.append(host)
        return host in self.refusing

    def create_topic(self, name, partitions=4, topic_id=ID):
        record = TopicRecord(topic_id=topic_id, assignment=((1,),) * partitions)
        if self.client.find(topic_path(name)) is None:
            self.client.create(topic_path(name), to_json(record))
        else:
            self.client.set(topic_path(name), to_json(record), version=-1)

    def cluster(self):
        return read_cluster(self.client)

    def registered(self):
        paths = {int(name): broker_path(int(name)) for name in self.client.children(BROKER_IDS)}
        return {
            number: from_json(self.client.get(path).data, BrokerRegistration, path) for number, path in paths.items()
        }


class Broker:
    """A registered broker."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.client = Client(world.server.client())
        self.suspects = set()
        self.identity = BrokerIdentity(
            broker_id=number, host=f"h{number}", port=1, instance=str(number), pid=1, boot_id="",
            software_version="", was_clean=True,
        )  # fmt: skip
        self.membership = None
        self.register()
        self.claims = Claims(
            self.client,
            membership=lambda: self.membership,
            brokers=world.registered,
            suspects=lambda: self.suspects,
            refuses=world.refuses,
            steady_ms=lambda: world.now_ms,
        )
        self.groups = HostedGroups(
            self.client, self.claims, LIMITS, membership=lambda: self.membership, steady_ms=lambda: world.now_ms
        )
        self.coordinator = GroupCoordinator(
            self.client,
            self.groups,
            world.cluster,
            broker_id=number,
            steady_ms=lambda: world.now_ms,
            wall_ms=lambda: world.now_ms,
        )

    def register(self):
        self.membership = register(self.client, self.identity, now_ms=0)

    def restart(self):
        """Starts another process of the broker in another session; the old one's session has ended."""
        self.client._client.expire()
        self.register()

    def die(self):
        """Kills the process; its session lasts."""
        self.world.refusing.add(f"h{self.number}")

    def stop(self):
        mark_stopping(self.client, self.membership)

    def leave(self):
        deregister(self.client, self.membership)
