"""What an administrator sees when a leader does not answer: everything else, with -1 for what only that leader
knows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_runtime.contract.errors import BrokerUnavailableError, NetworkError, NotAPylogBrokerError, PylogError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    BrokerInfo,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListReassignmentsResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
    OffsetAnswer,
    PartitionInfo,
    PartitionProgress,
    ReassignmentInfo,
    ReplicaProgress,
    TopicInfo,
)
from broker_runtime.contract.settings import Address
from pyspark_log.client.admin import descriptions, movement
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from tests.unit.client.channels import FakeNetwork, answer_by

SILENT: list[PylogError] = [BrokerUnavailableError("down"), NetworkError("broke"), NotAPylogBrokerError("another")]


class Brokers:
    """Brokers 1 and 2 lead one partition of topic t each; the third has no leader. ``error``: raised by broker 2."""

    def __init__(self) -> None:
        self.leaders: list[int | None] = [1, 2, None]
        self.error: PylogError | None = None
        self.asked_2 = 0

    def answer(self, address: Address, name: str, request: Message, timeout_s: float) -> Message:
        broker_id = address.port
        if broker_id == 2 and self.error is not None:
            self.asked_2 += name != "metadata" or getattr(request, "with_offsets", False)
            raise self.error
        if isinstance(request, MetadataRequest):
            return self._metadata(broker_id if request.with_offsets else None)
        if isinstance(request, DescribeReplicasRequest):
            progress = (ReplicaProgress(broker_id=2, replicated_end=3, is_in_sync=False),)
            return DescribeReplicasResponse(
                partitions=tuple(
                    PartitionProgress(topic=each.topic, partition=each.partition, log_end=5, replicas=progress)
                    for each in request.partitions
                )
            )
        if isinstance(request, ListOffsetsRequest):
            return ListOffsetsResponse(answers=tuple(OffsetAnswer(offset=broker_id) for _ in request.queries))
        assert name == "list_reassignments"
        moving = [number for number, leader in enumerate(self.leaders) if leader is not None]
        return ListReassignmentsResponse(
            moves=tuple(ReassignmentInfo(topic="t", partition=each, target=(2,), original=(1,)) for each in moving)
        )

    def _metadata(self, speaks: int | None) -> MetadataResponse:
        partitions = tuple(
            PartitionInfo(
                partition=number, leader=leader, leader_epoch=0, replicas=(1, 2), isr=(1, 2),
                log_start=0 if speaks is not None and speaks == leader else -1,
                high_watermark=7 if speaks is not None and speaks == leader else -1,
            )
            for number, leader in enumerate(self.leaders)
        )  # fmt: skip
        return MetadataResponse(
            protocol_version=1, software_version="", cluster_id="c", controller_id=1, errors={},
            brokers=tuple(BrokerInfo(broker_id=each, host="h", port=each, epoch=1) for each in (1, 2)),
            topics=(TopicInfo(name="t", topic_id=bytes(16), partitions=partitions),),
        )  # fmt: skip


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def network(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    return answer_by(brokers.answer, monkeypatch)


@pytest.fixture
def cluster(network: FakeNetwork) -> Iterator[Cluster]:
    cluster = Cluster.at("h:1")
    cluster.describe()
    yield cluster
    cluster.close()


def ends(cluster: Cluster) -> list[int]:
    (topic,) = descriptions.topics_with_offsets(cluster, ["t"])
    return [partition.high_watermark for partition in topic.describe().partitions]


def test_description_waits_for_no_partition_without_a_leader(network: FakeNetwork, cluster: Cluster) -> None:
    """Its offsets are -1 at once."""
    assert ends(cluster) == [7, 7, -1]
    assert network.clock.now < 1


@pytest.mark.parametrize("error", SILENT, ids=lambda error: error.code)
def test_description_gives_up_a_silent_leader_after_seconds(
    brokers: Brokers, network: FakeNetwork, cluster: Cluster, error: PylogError
) -> None:
    """The other leaders' answers are returned; the silent one is asked again for some seconds."""
    brokers.error = error
    assert ends(cluster) == [7, -1, -1]
    assert 5 <= network.clock.now < 10
    assert brokers.asked_2 > 2


@pytest.fixture
def takeover(brokers: Brokers, network: FakeNetwork, cluster: Cluster) -> None:
    """Broker 2, the last known leader, is down; as soon as somebody waits, broker 1 leads instead."""
    brokers.leaders = [1, 2]
    cluster.topic("t")
    brokers.error = BrokerUnavailableError("down")
    sleep = network.clock.sleep

    def take_over(seconds: float) -> None:
        brokers.leaders = [1, 1]
        sleep(seconds)

    network.clock.sleep = take_over  # type: ignore[method-assign]


@pytest.mark.usefixtures("takeover")
def test_description_asks_the_current_leader(network: FakeNetwork, cluster: Cluster) -> None:
    """The new leader of a partition is asked after a failover."""
    assert ends(cluster) == [7, 7]
    assert network.clock.now < 5


@pytest.mark.usefixtures("takeover")
def test_offsets_are_requested_from_the_current_leader(network: FakeNetwork, cluster: Cluster) -> None:
    """W9: the same holds for offsets, whose first request goes by the client's cached metadata."""
    wanted = {TopicPartition("t", number): -1 for number in (0, 1)}
    assert {at.partition: each.offset for at, each in offsets.list_offsets(cluster, wanted).items()} == {0: 1, 1: 1}
    assert network.clock.now < 5


def test_progress_of_moves_asks_each_leader_once(brokers: Brokers, network: FakeNetwork, cluster: Cluster) -> None:
    """The moves are listed at once; the progress under a silent leader is unknown."""
    brokers.error = BrokerUnavailableError("down")
    lags = {at.partition: each.lag for at, each in movement.reassignments(cluster).items()}
    assert lags == {0: 2, 1: -1}
    assert network.clock.now < 2


def test_offsets_are_requested_again_until_their_leader_answers(brokers: Brokers, cluster: Cluster) -> None:
    """W9: no answer is omitted; in the end the last error is raised."""
    wanted = {TopicPartition("t", number): -1 for number in (0, 1)}
    assert {at.partition: each.offset for at, each in offsets.list_offsets(cluster, wanted).items()} == {0: 1, 1: 2}
    brokers.error = BrokerUnavailableError("down")
    with pytest.raises(BrokerUnavailableError):
        offsets.list_offsets(cluster, wanted, timeout_s=3)
    assert brokers.asked_2 > 2
