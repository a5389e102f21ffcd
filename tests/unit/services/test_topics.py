"""Requests about topics, over a fake ZooKeeper and data directories in a temporary directory."""

import pytest

from broker_runtime.contract.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError
from broker_runtime.contract.requests import CreatePartitionsRequest, CreateTopicRequest, DeleteTopicRequest
from broker_runtime.contract.settings import resolve
from broker_runtime.log import LogDirectory
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.membership.hosting import Hosting
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.topics import TopicService
from broker_runtime.zookeeper.cluster_state import read_topic
from broker_runtime.zookeeper.membership import BrokerIdentity
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import topic_path
from tests.callers import CLIENT


@pytest.fixture
def directory(tmp_path):
    with LogDirectory.open(tmp_path, cluster_id="c", broker_id=1) as opened:
        yield opened


@pytest.fixture
def registry():
    return PartitionRegistry()


@pytest.fixture
def member(directory, registry):
    identity = BrokerIdentity(broker_id=1, host="h", port=1, instance="data", pid=1, boot_id="", software_version="")
    hosting = Hosting(registry, [directory], broker_id=1, min_free_bytes=0)
    member = ClusterMember(MemoryZooKeeper().client(), identity, hosting, now_ms=lambda: 0)
    member.join()
    return member


@pytest.fixture
def topics(member):
    return TopicService(member, resolve("broker", {"broker.id": "1", "log.dirs": "unused"}))


def test_topic_whose_partitions_cannot_be_opened_is_an_error_until_they_can(
    topics, member, registry, directory, monkeypatch
):
    """The answer of `create_topic` is true: its partitions here accept records, or it says which do not, and why."""

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(directory, "log", refuse)
        with pytest.raises(LeaderNotAvailableError, match=r"t exists, but 2 of its .*partition 0: .*No space left"):
            topics.create_topic(CLIENT, CreateTopicRequest(name="t", partitions=2))
    member.step(0)
    assert [partition.is_leader for partition in registry.hosted()] == [True, True]
    assert topics.create_topic(CLIENT, CreateTopicRequest(name="u", partitions=2)).topic.name == "u"


def test_creation_and_deletion_are_each_one_line_of_the_log_which_names_the_client(topics, caplog):
    """The request is the event: the controller's write of it is not a second one."""
    with caplog.at_level("INFO"):
        topics.create_topic(CLIENT, CreateTopicRequest(name="t", partitions=2))
        topics.delete_topic(CLIENT, DeleteTopicRequest(name="t"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith(("create topic", "delete topic"))] == [
        "create topic topic=t client_id=test address=127.0.0.1:4711",
        "delete topic topic=t client_id=test address=127.0.0.1:4711",
    ]


def overtaken(member, monkeypatch, change):
    """Runs ``change(client)`` between the plan of the next write and the write."""
    client = member._client
    real = client.transaction

    def transaction(operations, *, session=None):
        monkeypatch.setattr(client, "transaction", real)
        change(client)
        return real(operations, session=session)

    monkeypatch.setattr(client, "transaction", transaction)


def test_change_of_a_concurrently_changed_topic_is_planned_again(topics, member, monkeypatch):
    """Another client's write is not lost, and the request is carried out."""
    topics.create_topic(CLIENT, CreateTopicRequest(name="t", partitions=2))
    path = topic_path("t")
    overtaken(member, monkeypatch, lambda client: client.set(path, client.get(path).data, version=0))
    topics.create_partitions(CLIENT, CreatePartitionsRequest(name="t", total=3))
    assert len(read_topic(member._client, "t").partitions) == 3
    assert member._client.get(path).version == 2


def test_change_of_a_concurrently_deleted_topic_fails(topics, member, monkeypatch):
    topics.create_topic(CLIENT, CreateTopicRequest(name="t"))

    def delete(client):
        for path in ("partitions/0/state", "partitions/0", "partitions"):
            client.delete(f"{topic_path('t')}/{path}")
        client.delete(topic_path("t"))

    overtaken(member, monkeypatch, delete)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted meanwhile"):
        topics.create_partitions(CLIENT, CreatePartitionsRequest(name="t", total=3))
