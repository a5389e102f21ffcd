"""A client splits a request that would name too much into several, and merges their answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.errors import UnknownTopicOrPartitionError
from broker_runtime.contract.flight import decode_action, encode_action
from broker_runtime.contract.model import EARLIEST
from broker_runtime.contract.requests import (
    MOST_ENTRIES,
    BrokerInfo,
    CommitOffsetsResponse,
    CommittedOffset,
    DeleteRecordsResponse,
    DescribeReplicasResponse,
    ElectLeadersResponse,
    ErrorInfo,
    FetchOffsetsResponse,
    FindCoordinatorResponse,
    ListOffsetsResponse,
    ListReassignmentsResponse,
    Message,
    MetadataResponse,
    OffsetAnswer,
    PartitionInfo,
    PartitionProgress,
    ReassignmentInfo,
    ReplicaProgress,
    TopicInfo,
)
from broker_runtime.contract.settings import Address
from pyspark_log import Admin, TopicPartition
from pyspark_log.client.admin import descriptions
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.spark.log_view import BrokerLogView
from pyspark_log.spark.options import parse_source_options
from tests.unit.client.channels import answer_by

COUNT = 2 * MOST_ENTRIES + 1
ALL = [TopicPartition("wide", number) for number in range(COUNT)]
NAMES = [f"t{number}" for number in range(COUNT)]


def topic(name: str, count: int = 1) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(
            partition=number, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), log_start=0, high_watermark=number
        )
        for number in range(count)
    )
    return TopicInfo(name=name, topic_id=bytes(16), partitions=partitions)


class Broker:
    """Decodes and answers requests; each name of `NAMES` is a topic, and ``wide`` one with `COUNT` partitions."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.committed: dict[TopicPartition, tuple[int, int]] = {}  # offset, sequence
        self.unknown = "nowhere"

    def answer(self, address: Address, name: str, request: Message, timeout_s: float) -> Message:
        received = decode_action(name, encode_action(name, request).body).request
        self.requests.append((name, received))
        result: Message = getattr(self, f"_{name}")(received)
        assert isinstance(result, ACTIONS[name].response)
        return result

    def sizes(self, name: str, field: str) -> list[int]:
        """The sizes of all non-empty requests of that kind."""
        return [len(list_) for of, each in self.requests if of == name and (list_ := getattr(each, field))]

    def _metadata(self, request: Any) -> MetadataResponse:
        names = request.topics or ()
        return MetadataResponse(
            protocol_version=1,
            software_version="",
            cluster_id="c",
            controller_id=1,
            brokers=(BrokerInfo(broker_id=1, host="h", port=1, epoch=1),),
            topics=tuple(topic(name, COUNT if name == "wide" else 1) for name in names if name != self.unknown),
            errors={self.unknown: ErrorInfo.saying(UnknownTopicOrPartitionError, "no")}
            if self.unknown in names
            else {},
        )

    def _find_coordinator(self, request: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(broker_id=1)

    def _list_offsets(self, request: Any) -> ListOffsetsResponse:
        return ListOffsetsResponse(answers=tuple(OffsetAnswer(offset=each.at.partition) for each in request.queries))

    def _delete_records(self, request: Any) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(answers=tuple(OffsetAnswer(offset=each.offset) for each in request.deletions))

    def _commit_offsets(self, request: Any) -> CommitOffsetsResponse:
        for each in request.offsets:
            self.committed[TopicPartition(each.at.topic, each.at.partition)] = (
                each.offset,
                getattr(request, "sequence", -1),
            )
        return CommitOffsetsResponse(errors=(None,) * len(request.offsets))

    _alter_group_offsets = _commit_offsets

    def _fetch_offsets(self, request: Any) -> FetchOffsetsResponse:
        return FetchOffsetsResponse(
            offsets=tuple(CommittedOffset(at=each, offset=each.partition) for each in request.partitions)
        )

    def _elect_leaders(self, request: Any) -> ElectLeadersResponse:
        return ElectLeadersResponse(elected=tuple((name, number, 1) for name, number in request.partitions))

    def _list_reassignments(self, request: Any) -> ListReassignmentsResponse:
        return ListReassignmentsResponse(
            moves=tuple(
                ReassignmentInfo(topic=at.topic, partition=at.partition, target=(2,), original=(1,)) for at in ALL
            )
        )

    def _describe_replicas(self, request: Any) -> DescribeReplicasResponse:
        replicas = (ReplicaProgress(broker_id=2, replicated_end=3, is_in_sync=False),)
        return DescribeReplicasResponse(
            partitions=tuple(
                PartitionProgress(topic=each.topic, partition=each.partition, log_end=5, replicas=replicas)
                for each in request.partitions
            )
        )


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    answer_by(broker.answer, monkeypatch)
    return broker


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    cluster = Cluster.at("h:1")
    yield cluster
    cluster.close()


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin("h:1") as admin:
        yield admin


THREE = [MOST_ENTRIES, MOST_ENTRIES, 1]


def test_many_topics_are_asked_for_in_several_requests(broker: Broker, cluster: Cluster) -> None:
    assert [each.name for each in cluster.fetch_topics(NAMES)] == NAMES
    assert broker.sizes("metadata", "topics") == THREE
    broker.unknown = NAMES[-1]
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.fetch_topics(NAMES)


def test_offsets_of_many_topics_are_asked_of_their_leader_in_several_requests(broker: Broker, cluster: Cluster) -> None:
    assert [each.name for each in descriptions.topics_with_offsets(cluster, NAMES)] == NAMES
    assert broker.sizes("metadata", "topics") == THREE * 2


def test_offsets_of_many_partitions_are_listed_and_deleted(broker: Broker, cluster: Cluster) -> None:
    found = offsets.list_offsets(cluster, dict.fromkeys(ALL, EARLIEST))
    assert [found[at].offset for at in ALL] == list(range(COUNT))
    assert broker.sizes("list_offsets", "queries") == THREE
    assert offsets.delete_records(cluster, {at: at.partition for at in ALL}) == {at: at.partition for at in ALL}
    assert broker.sizes("delete_records", "deletions") == THREE


def test_offsets_of_many_partitions_are_committed_and_fetched(broker: Broker, cluster: Cluster) -> None:
    signature = offsets.Signature("member", 3, 7)
    offsets.commit(cluster, "g", {at: at.partition for at in ALL}, signature=signature)
    assert broker.sizes("commit_offsets", "offsets") == THREE
    assert broker.committed == {at: (at.partition, 7) for at in ALL}
    assert offsets.committed(cluster, "g", ALL) == {at: at.partition for at in ALL}
    assert broker.sizes("fetch_offsets", "partitions") == THREE


def test_administrator_names_many_partitions(broker: Broker, admin: Admin) -> None:
    admin.alter_group_offsets("g", {at: at.partition for at in ALL})
    assert broker.sizes("alter_group_offsets", "offsets") == THREE
    assert list(admin.elect_leaders(ALL)) == ALL
    assert broker.sizes("elect_leaders", "partitions") == THREE
    assert {each.lag for each in admin.list_reassignments().values()} == {2}
    assert broker.sizes("describe_replicas", "partitions") == THREE


def test_spark_source_names_many_topics_and_partitions(broker: Broker, cluster: Cluster) -> None:
    given = {"pylog.bootstrap.servers": "h:1", "subscribe": ",".join(NAMES), "pylog.group.id": "g"}
    view = BrokerLogView(parse_source_options(given), patience_s=30, cluster=cluster)
    assert len(view.snapshot().latest) == COUNT
    assert broker.sizes("metadata", "topics") == THREE
    view.commit({at: at.partition for at in ALL}, False, offsets.Signature("member", 1, 0), {})
    assert broker.sizes("commit_offsets", "offsets") == THREE
    assert broker.committed == {at: (at.partition, 0) for at in ALL}
    assert view.committed(ALL) == {at: at.partition for at in ALL}
    assert broker.sizes("fetch_offsets", "partitions") == THREE
