"""Group members that send the requests themselves, to real brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from broker_runtime.contract.errors import PylogError, RetriableError
from broker_runtime.contract.requests import (
    LEAVES,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    Message,
    PartitionKey,
)
from pyspark_log.client.connection.cluster import Cluster
from tests.waiting import wait_until

LIMIT_S = 60.0
ATTEMPT_S = 5.0


class GroupCaller:
    """Calls for one group, sent to its coordinator, which is looked up again after each retriable answer."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.coordinator: int | None = None

    def find(self) -> int:
        """The coordinator, as any broker reports it."""
        request = FindCoordinatorRequest(group_id=self.group_id)
        return self.cluster.call("find_coordinator", request, FindCoordinatorResponse).broker_id

    def call(self, action: str, request: Message, response: type, limit_s: float = LIMIT_S):
        """Repeats the call until it is answered or ``limit_s`` is over."""

        def answer():
            try:
                if self.coordinator is None:
                    self.cluster.refresh()
                    self.coordinator = self.find()
                channel = self.cluster._channel(self.cluster.address_of(self.coordinator))
                return channel.call(action, request, response, timeout_s=ATTEMPT_S)
            except RetriableError:
                self.coordinator = None
                raise

        return wait_until(answer, f"{action} is answered", limit_s, ignoring=(RetriableError,))

    def committed(self) -> dict[int, int]:
        """The group's offsets of its only topic."""
        found = self.call("fetch_offsets", FetchOffsetsRequest(group_id=self.group_id), FetchOffsetsResponse)
        return {entry.at.partition: entry.offset for entry in found.offsets}


class Member(GroupCaller):
    """A member that carries out each assignment at once, whenever its `beat` is called."""

    def __init__(self, cluster: Cluster, group_id: str, topic: str, **fields) -> None:
        super().__init__(cluster, group_id)
        self.topic = topic
        self.fields = {"session_timeout_ms": 6_000, **fields}
        self.member_id = uuid.uuid4().hex
        self.epoch = 0
        self.held: set[int] = set()
        self.answer: GroupHeartbeatResponse | None = None
        self.sequence = 0

    def heartbeat(self, epoch: int | None = None) -> GroupHeartbeatResponse:
        """Sends one heartbeat."""
        request = GroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            topics=(self.topic,),
            **self.fields,
        )
        return self.call("group_heartbeat", request, GroupHeartbeatResponse)

    def beat(self) -> None:
        """Sends one heartbeat and carries out the answer."""
        self.answer = self.heartbeat()
        if self.answer.assignment is not None:
            self.held = {number for part in self.answer.assignment for number in part.partitions}
            self.epoch = self.answer.member_epoch

    def leave(self) -> None:
        """Leaves the group for good."""
        self.heartbeat(LEAVES)
        self.held = set()

    def commit(self, offsets: dict[int, int], **fields) -> list[str | None]:
        """Commits; returns the error codes by entry."""
        self.sequence += 1
        request = CommitOffsetsRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            sequence=self.sequence,
            offsets=entries(self.topic, offsets),
            **fields,
        )
        answer = self.call("commit_offsets", request, CommitOffsetsResponse)
        return [None if error is None else error.code for error in answer.errors]


def entries(topic: str, offsets: dict[int, int]) -> tuple[CommittedOffset, ...]:
    """The offsets as entries of a commit."""
    return tuple(
        CommittedOffset(at=PartitionKey(topic=topic, partition=number), offset=offset)
        for number, offset in offsets.items()
    )


def settle(members: list[Member], condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Heartbeats until all are settled and the condition holds; returns how long that took."""

    def is_so_after_a_beat() -> bool:
        for member in members:
            member.beat()
        return condition() and all(member.answer is not None and member.answer.is_settled for member in members)

    started_s = time.monotonic()
    wait_until(is_so_after_a_beat, what, limit_s)
    return time.monotonic() - started_s


def refused(call: Callable[[], object]) -> str:
    """The code of the error that the call raises."""
    try:
        call()
    except PylogError as error:
        return error.code
    raise AssertionError("it was not refused")
