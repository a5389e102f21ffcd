"""A source's requests to the brokers, with prepared answers: nothing transient is ever taken for loss."""

from __future__ import annotations

from typing import Any

import pytest

from broker_runtime.contract.errors import LeaderNotAvailableError, RequestTimedOutError, StaleMemberEpochError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    ErrorInfo,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection.coordinator import Coordinator as GroupCoordinator
from pyspark_log.client.connection.offsets import Signature
from pyspark_log.spark.log_view import BrokerLogView, load_patience_s
from pyspark_log.spark.options import parse_source_options
from tests.unit.client.channels import FakeClock


class Answers:
    """In place of a `Cluster`: returns prepared metadata, and records the requests."""

    def __init__(self, *answers: MetadataResponse) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, Any]] = []
        self.clock = FakeClock()

    def deadline(self, timeout_s: float) -> Deadline:
        return Deadline(timeout_s, clock=self.clock)

    def call(self, action: str, request: Any, response: type, *, timeout_s: float, to: Any = "any") -> MetadataResponse:
        assert action == "metadata"
        self.asked.append((request.topics, to))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def topic(name: str, *ends: int, leader: int | None = 1, epoch: int = 0) -> TopicInfo:
    return TopicInfo(
        name=name,
        topic_id=name.ljust(16).encode(),
        partitions=tuple(
            PartitionInfo(
                partition=n, leader=leader, leader_epoch=epoch, replicas=(1,), isr=(1,),
                log_start=0 if end >= 0 else -1, high_watermark=end,
            )
            for n, end in enumerate(ends)
        ),
    )  # fmt: skip


def answer(*topics: TopicInfo, **errors: str) -> MetadataResponse:
    return MetadataResponse(
        protocol_version=1, software_version="0", cluster_id="c", controller_id=1, brokers=(), topics=topics,
        errors={name: ErrorInfo(code=code, message="") for name, code in errors.items()},
    )  # fmt: skip


def view(cluster: Answers, patience_s: float = 30.0, **given: str) -> BrokerLogView:
    return BrokerLogView(parse_source_options(given), patience_s=patience_s, cluster=cluster)  # type: ignore[arg-type]


def test_snapshot_has_ends_and_ids_of_selected_partitions() -> None:
    """It is one request, however many partitions; only assigned partitions are included."""
    cluster = Answers(answer(topic("t", 5, 7)))
    snapshot = view(cluster, assign='{"t":[1]}').snapshot()
    assert snapshot.latest == {TopicPartition("t", 1): 7}
    assert snapshot.topic_ids == {"t": b"t".ljust(16)}
    assert cluster.asked == [(("t",), "any")]


def test_snapshot_names_missing_topics_and_partitions() -> None:
    """These are a missing topic and a missing partition."""
    gone = view(Answers(answer(topic("t", 5), u="UNKNOWN_TOPIC_OR_PARTITION")), subscribe="t,u").snapshot()
    assert gone.missing == ("topic 'u'",)
    assert view(Answers(answer(topic("t", 5))), assign='{"t":[0,3]}').snapshot().missing == ("partition t-3",)


@pytest.mark.parametrize(
    "transient", [answer(t="ZOOKEEPER_UNAVAILABLE"), answer(topic("t", -1, leader=None)), answer(topic("t", 3, -1))]
)
def test_snapshot_is_retried_while_a_broker_is_away(transient: MetadataResponse) -> None:
    """Without a leader or ZooKeeper there is no immediate error, and no partition looks deleted."""
    cluster = Answers(transient, transient, answer(topic("t", 5, 6)))
    assert len(view(cluster, subscribe="t").snapshot().latest) == 2


def test_snapshot_asks_the_leaders_of_partitions_unknown_to_the_first_broker() -> None:
    """Offsets come from each partition's leader."""
    cluster = Answers(answer(topic("t", -1, leader=2)), answer(topic("t", 9, leader=2)))
    assert view(cluster, subscribe="t").snapshot().latest == {TopicPartition("t", 0): 9}
    assert cluster.asked[1] == (("t",), 2)


def test_snapshot_ignores_a_leader_of_an_older_epoch() -> None:
    """W13: a deposed broker that does not know it yet reports an outdated end: that is no loss, and the request is
    repeated.
    """
    old, new = answer(topic("t", 5, epoch=1)), answer(topic("t", 9, leader=2, epoch=2))
    cluster = Answers(old, new, old, old, new)
    source = view(cluster, subscribe="t")
    assert [source.snapshot().latest[TopicPartition("t", 0)] for _ in range(3)] == [5, 9, 9]
    assert [to for _, to in cluster.asked] == ["any", "any", "any", 1, "any"]


def test_snapshot_waits_only_briefly_for_a_frozen_leader() -> None:
    """The next leader should be asked long before the query's timeout."""

    class Patient(Answers):
        def call(self, *given: Any, timeout_s: float, to: Any = "any", **named: Any) -> MetadataResponse:
            if to == 2:
                assert timeout_s <= 5
                raise RequestTimedOutError("frozen")
            return super().call(*given, timeout_s=timeout_s, to=to, **named)

    cluster = Patient(answer(topic("t", -1, leader=2)), answer(topic("t", 9, leader=3)))
    assert view(cluster, patience_s=120, subscribe="t").snapshot().latest == {TopicPartition("t", 0): 9}


def test_snapshot_gives_up_after_its_time_limit() -> None:
    """The wait is bounded, and the error names the partition."""
    with pytest.raises(LeaderNotAvailableError, match="t-0"):
        view(Answers(answer(topic("t", -1, leader=None))), patience_s=0.05, subscribe="t").snapshot()


def test_pattern_is_matched_again_only_after_a_while() -> None:
    """All topics are requested once a second, in between only matching ones."""
    cluster = Answers(answer(topic("t1", 1), topic("other", 1)))
    source = view(cluster, subscribePattern="t.")
    assert set(source.snapshot().latest) == {TopicPartition("t1", 0)}
    source.snapshot()
    cluster.clock.now += 1.5
    source.snapshot()
    assert [names for names, _ in cluster.asked] == [None, ("t1",), None]


class Coordinator(Answers):
    """In place of a `Cluster`: takes commits, and refuses those of some partitions."""

    def __init__(self, **refused: str) -> None:
        super().__init__()
        self.refused = refused
        self.commits: list[CommitOffsetsRequest] = []

    def call(self, action: str, request: Any, response: type, *, timeout_s: float, to: Any = "any") -> Any:
        assert (action, to) == ("commit_offsets", GroupCoordinator("g"))
        self.commits.append(request)
        errors = [self.refused.get(entry.at.topic) for entry in request.offsets]
        return CommitOffsetsResponse(errors=tuple(code and ErrorInfo(code=code, message="") for code in errors))


PROGRESS = {TopicPartition("gone", 0): 1, TopicPartition("t", 0): 2}


def test_commit_is_the_members_and_omits_deleted_topics() -> None:
    """S5: progress goes to the current topic of the name, and a deleted topic holds up no other."""
    cluster = Coordinator(gone="UNKNOWN_TOPIC_OR_PARTITION")
    view(cluster, subscribe="t", **{"pylog.group.id": "g"}).commit(PROGRESS, True, Signature("m", 3, 7), {})
    (commit,) = cluster.commits
    assert (commit.member_id, commit.member_epoch, commit.sequence, commit.only_forward) == ("m", 3, 7, True)
    assert [(entry.at.topic, entry.at.topic_id, entry.offset) for entry in commit.offsets] == [
        ("gone", None, 1),
        ("t", None, 2),
    ]


def test_commit_is_never_one_of_a_recreated_topic() -> None:
    """S5: progress is that of the topic which was read, and the recreated one holds up no other."""
    cluster = Coordinator(gone="INCONSISTENT_TOPIC_ID")
    progress = view(cluster, subscribe="t", **{"pylog.group.id": "g"})
    progress.commit(PROGRESS, True, Signature("m", 3, 7), {"gone": b"old"})
    (commit,) = cluster.commits
    assert [(entry.at.topic, entry.at.topic_id) for entry in commit.offsets] == [("gone", b"old"), ("t", None)]


def test_commit_raises_refusals_beside_deleted_topics() -> None:
    """S5: a query that lost its membership gets the error."""
    cluster = Coordinator(gone="UNKNOWN_TOPIC_OR_PARTITION", t="STALE_MEMBER_EPOCH")
    with pytest.raises(StaleMemberEpochError):
        view(cluster, subscribe="t", **{"pylog.group.id": "g"}).commit(PROGRESS, True, Signature("m", 3, 7), {})


@pytest.mark.parametrize(("given", "patience_s"), [({}, 30.0), ({"pylog.request.timeout.ms": "2s"}, 2.0)])
def test_load_waits_no_longer_than_a_request_may_take(given: dict[str, str], patience_s: float) -> None:
    """S4: `pylog.request.timeout.ms` bounds the answer."""
    assert load_patience_s(parse_source_options({"subscribe": "t", **given})) == patience_s
