"""The parts of a consumer without threads or sockets, over a cluster in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from broker_runtime.contract.errors import PylogError, UnknownTopicOrPartitionError
from broker_runtime.contract.model import EARLIEST, LATEST, TimestampType, TopicPartition
from broker_runtime.contract.requests import (
    AssignedPartitions,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    ErrorInfo,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    PartitionInfo,
    TopicInfo,
)
from broker_runtime.contract.security import UNPROTECTED
from broker_runtime.contract.settings import resolve
from broker_runtime.contract.waiting import Clock, Deadline
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.assignment import Assignment, Callbacks
from pyspark_log.client.consumer.committer import Committer
from pyspark_log.client.consumer.delivery import Delivery
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.group_assignment import GroupAssignment
from pyspark_log.client.consumer.heartbeats import Heartbeats, stay_of
from pyspark_log.client.consumer.partition_state import PartitionState
from pyspark_log.client.meters import NO_CONSUMER_METERS, ConsumerMeters
from pyspark_log.client.records import ConsumedBatch


def make_topic(name: str, *, topic_id: int = 1, partitions: int = 1, leaders: Sequence[int] | None = None) -> Topic:
    infos = tuple(
        PartitionInfo(partition=number, leader=leader, leader_epoch=0, replicas=(leader,), isr=(leader,))
        for number, leader in enumerate(leaders or [1] * partitions)
    )
    return Topic.from_info(TopicInfo(name=name, topic_id=topic_id.to_bytes(16, "big"), partitions=infos))


def consumed(at: TopicPartition, base_offset: int, *values: bytes) -> ConsumedBatch:
    """A decoded batch of an untyped topic."""
    return ConsumedBatch(
        topic=at.topic,
        partition=at.partition,
        batch=pa.record_batch({"key": pa.nulls(len(values), pa.binary()), "value": pa.array(values, pa.binary())}),
        base_offset=base_offset,
        times=1_700_000_000_000,
        timestamp_type=TimestampType.CREATE_TIME,
        headers=None,
    )


class MemoryGroup:
    """A coordinator with one member, to which it assigns ``share`` (None: all partitions of its topics)."""

    def __init__(self, topics: dict[str, Topic]) -> None:
        self._topics = topics
        self.share: set[TopicPartition] | None = None
        self.epoch = 0
        self.assigned: frozenset[tuple[TopicPartition, bytes]] = frozenset()
        self.member_id = ""
        self.subscribed: tuple[str, ...] = ()
        self.requests: list[GroupHeartbeatRequest] = []
        self.is_settled = True
        self.failures: list[PylogError] = []

    @property
    def acknowledged(self) -> int:
        """The epoch of the last heartbeat."""
        return self.requests[-1].member_epoch

    def heartbeat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        if request.member_epoch < 0:
            return GroupHeartbeatResponse(member_epoch=-1, heartbeat_interval_ms=0, session_timeout_ms=0)
        if request.member_id != self.member_id:
            self.member_id, self.epoch, self.assigned = request.member_id, 0, frozenset()
        self.subscribed = request.topics or ()
        wanted = frozenset(
            (TopicPartition(name, number), topic.topic_id)
            for name in self.subscribed
            if (topic := self._topics.get(name)) is not None
            for number in range(len(topic.partitions))
            if self.share is None or TopicPartition(name, number) in self.share
        )
        if self.epoch == 0 or wanted != self.assigned:
            self.epoch, self.assigned = self.epoch + 1, wanted
        assignment = tuple(
            AssignedPartitions(topic=at.topic, topic_id=topic_id, partitions=(at.partition,))
            for at, topic_id in sorted(self.assigned)
        )
        return GroupHeartbeatResponse(
            member_epoch=self.epoch,
            heartbeat_interval_ms=1000,
            session_timeout_ms=request.session_timeout_ms,
            assignment=None if request.member_epoch == self.epoch else assignment,
            is_settled=self.is_settled,
        )


class SteppedHeartbeats(Heartbeats):
    """Heartbeats without a thread: the waiting caller does its work."""

    def _start_thread(self) -> None:
        return

    def wait(self, timeout_s: float) -> None:
        self.step()

    def leave(self) -> None:
        self._machine.leave(self._clock())
        while self.step() == 0.0:
            pass
        self._machine.give_up_leaving()


class MemoryCluster:
    """Topics, log limits and one group's offsets, with the calls of `Cluster` that a consumer makes."""

    request_timeout_s = 5.0
    access = UNPROTECTED
    client_id = "test"

    def __init__(self, *topics: Topic) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.limits: dict[TopicPartition, tuple[int, int]] = {}
        self.committed: dict[tuple[TopicPartition, bytes], int] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.commit_requests: list[CommitOffsetsRequest] = []
        self.refused_commits: list[PylogError] = []
        self.group = MemoryGroup(self.topics)
        self.unavailable: PylogError | None = None

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        return Deadline(self.request_timeout_s if timeout_s is None else timeout_s)

    def topic(self, name: str, *, max_age: Topic | None = None, timeout_s: float | None = None) -> Topic:
        return self.fetch_topics([name])[0]

    def fetch_topics(self, names: list[str] | None = None, *, timeout_s: float | None = None) -> list[Topic]:
        self._answer()
        for name in names or ():
            if name not in self.topics:
                raise UnknownTopicOrPartitionError(f"no topic {name!r}")
        return list(self.topics.values()) if names is None else [self.topics[name] for name in names]

    def forget_coordinator(self, of: object) -> None:
        return

    def call(self, action: str, request: Any, response: type, *, timeout_s: float | None = None, to: object = 1) -> Any:
        if action == "group_heartbeat":
            return self.group.heartbeat(request)
        self._answer()
        return getattr(self, f"_{action}")(request)

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        answers = []
        for query in request.queries:
            start, end = self.limits.get(TopicPartition(query.at.topic, query.at.partition), (0, 0))
            offset = {EARLIEST: start, LATEST: end}[query.timestamp]
            answers.append(OffsetAnswer(offset=offset, timestamp=-1, leader_epoch=0))
        return ListOffsetsResponse(answers=tuple(answers))

    def _fetch_offsets(self, request: FetchOffsetsRequest) -> FetchOffsetsResponse:
        found = []
        for key in request.partitions or ():
            offset = self.committed.get((TopicPartition(key.topic, key.partition), key.topic_id))
            if offset is not None:
                found.append(CommittedOffset(at=key, offset=offset))
        return FetchOffsetsResponse(offsets=tuple(found))

    def _commit_offsets(self, request: CommitOffsetsRequest) -> CommitOffsetsResponse:
        self.commit_requests.append(request)
        if self.refused_commits:
            raise self.refused_commits.pop(0)
        errors: list[ErrorInfo | None] = []
        written = {}
        for entry in request.offsets:
            at = TopicPartition(entry.at.topic, entry.at.partition)
            if at.topic not in self.topics or self.topics[at.topic].topic_id != entry.at.topic_id:
                errors.append(ErrorInfo.of(UnknownTopicOrPartitionError(f"no topic {at.topic!r} of this id")))
                continue
            errors.append(None)
            written[at] = self.committed[at, entry.at.topic_id] = entry.offset
        self.commits.append(written)
        return CommitOffsetsResponse(errors=tuple(errors))

    def _answer(self) -> None:
        if self.unavailable is not None:
            raise self.unavailable


class PartsClock(Clock):
    """The clock of a consumer's parts; only tests move it."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def now_s(self) -> float:
        return self._parts.now_s


class Parts:
    """The parts of one consumer."""

    def __init__(self, cluster: MemoryCluster, *, meters: ConsumerMeters = NO_CONSUMER_METERS, **settings: Any) -> None:
        anything: Any = cluster
        resolved = resolve("consumer", None, settings)
        self.cluster = cluster
        self.fetcher = Fetcher(anything, max_bytes=1 << 20, max_wait_ms=500, on_stale=lambda: None, meters=meters)
        self.fetcher.start_threads = lambda: None  # type: ignore[method-assign]
        self.now_s = 0.0
        self.heartbeats = SteppedHeartbeats(
            anything, stay_of(resolved), on_news=lambda: None, on_failure=lambda _: None, clock=lambda: self.now_s
        )
        self.committer = Committer(anything, resolved, fetcher=self.fetcher, heartbeats=self.heartbeats, meters=meters)
        parts: dict[str, Any] = {
            "fetcher": self.fetcher,
            "committer": self.committer,
            "heartbeats": self.heartbeats,
            "meters": meters,
        }
        self.assignment: Assignment
        if self.committer.has_group:
            self.assignment = GroupAssignment(
                anything, resolved, **parts, start_threads=lambda: None, clock=PartsClock(self)
            )
        else:
            self.assignment = Assignment(anything, resolved, **parts, start_threads=lambda: None)
        self.delivery = Delivery(anything, resolved, **parts, assignment=self.assignment)

    def subscribe(
        self,
        *names: str,
        pattern: re.Pattern[str] | None = None,
        on_assign: Callable[[list[TopicPartition]], object] | None = None,
        on_revoke: Callable[[list[TopicPartition]], object] | None = None,
        on_lost: Callable[[list[TopicPartition]], object] | None = None,
    ) -> None:
        callbacks = Callbacks(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        self.assignment.subscribe(list(names), pattern, callbacks)

    def beat(self, seconds: float = 1.0) -> None:
        """Lets time pass and sends the heartbeats that are due."""
        self.now_s += seconds
        while self.heartbeats.step() == 0.0:
            pass

    def state(self, at: TopicPartition) -> PartitionState:
        return self.fetcher.states[at]

    def arrives(self, at: TopicPartition, *values: bytes) -> None:
        """Records arrive and are decoded."""
        state = self.state(at)
        last = state.batches[-1].next_offset if state.batches else state.position
        state.batches.append(consumed(at, last, *values))

    def fails(self, at: TopicPartition, error: PylogError) -> None:
        """The leader's answer is an error."""
        self.fetcher.fail(self.state(at), error)
