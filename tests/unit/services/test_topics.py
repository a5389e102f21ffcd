"""Requests about topics, over a fake ZooKeeper and data directories in a temporary directory."""

import pytest

from broker_runtime.contract.errors import LeaderNotAvailableError
from broker_runtime.contract.requests import CreateTopicRequest
from broker_runtime.contract.settings import resolve
from broker_runtime.log import LogDirectory
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.membership.hosting import Hosting
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.topics import TopicService
from broker_runtime.zookeeper.membership import BrokerIdentity
from broker_runtime.zookeeper.memory import MemoryZooKeeper
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


def test_topic_whose_partitions_cannot_be_opened_is_no_success_and_is_served_once_they_can(
    topics, member, registry, directory, monkeypatch
):
    """What `create_topic` answers is true: its partitions here take records, or it says which do not, and why."""

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(directory, "log", refuse)
        with pytest.raises(LeaderNotAvailableError, match=r"t exists, but 2 of its .*partition 0: .*No space left"):
            topics.create_topic(CLIENT, CreateTopicRequest(name="t", partitions=2))
    member.step(0)
    assert [partition.is_leader for partition in registry.hosted()] == [True, True]
    assert topics.create_topic(CLIENT, CreateTopicRequest(name="u", partitions=2)).topic.name == "u"
