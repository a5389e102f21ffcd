"""What a client remembers of topics when brokers' answers arrive out of order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker_runtime.contract.requests import BrokerInfo, MetadataResponse, PartitionInfo, TopicInfo
from broker_runtime.contract.settings import Address
from pyspark_log.client.connection.cluster import Cluster
from tests.unit.client.channels import answer_by


def metadata(epochs: Sequence[int], *, leader: int = 1, topic_id: bytes = b"\x01" * 16) -> MetadataResponse:
    """The metadata of a broker that knows these leader epochs of the partitions of topic ``t``."""
    partitions = tuple(
        PartitionInfo(partition=number, leader=leader, leader_epoch=epoch, replicas=(1, 2), isr=(1, 2))
        for number, epoch in enumerate(epochs)
    )
    return MetadataResponse(
        protocol_version=1,
        software_version="test",
        cluster_id="c",
        controller_id=1,
        brokers=tuple(BrokerInfo(broker_id=number, host="h", port=number, epoch=0) for number in (1, 2)),
        topics=(TopicInfo(name="t", topic_id=topic_id, partitions=partitions),),
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[MetadataResponse]:
    """The brokers' answers, one after the other."""
    waiting: list[MetadataResponse] = []
    answer_by(lambda *call: waiting.pop(0), monkeypatch)
    return waiting


@pytest.mark.parametrize("older", [metadata([4, 9], leader=2), metadata([5], leader=2)], ids=["epoch", "partitions"])
def test_client_never_goes_back_to_an_older_leader_epoch(
    answers: list[MetadataResponse], older: MetadataResponse
) -> None:
    """A broker that lags or is cut off does not send the client back to a former leader."""
    cluster = Cluster([Address("h", 1)])
    answers += [metadata([5, 3]), older]
    assert cluster.leader(cluster.fetch_topics(["t"])[0], 0) == (Address("h", 1), 5)
    assert cluster.leader(cluster.fetch_topics(["t"])[0], 0) == (Address("h", 1), 5)
    assert cluster.leader(cluster.topic("t"), 0) == (Address("h", 1), 5)
    cluster.close()


@pytest.mark.parametrize(
    "newer", [metadata([6, 3], leader=2), metadata([0], leader=2, topic_id=b"\x02" * 16)], ids=["epoch", "recreated"]
)
def test_client_accepts_newer_metadata(answers: list[MetadataResponse], newer: MetadataResponse) -> None:
    """This holds for another leader, and for a recreated topic, whose epochs begin again."""
    cluster = Cluster([Address("h", 1)])
    answers += [metadata([5, 3]), newer]
    cluster.fetch_topics(["t"])
    cluster.fetch_topics(["t"])
    assert cluster.leader(cluster.topic("t"), 0) == (Address("h", 2), newer.topics[0].partitions[0].leader_epoch)
    cluster.close()
