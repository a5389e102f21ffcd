"""Messages of consumer groups: who coordinates, heartbeats of members, and what an administrator sees and does.

A member says with ``member_epoch`` which assignment it holds, exactly and completely: while it still has to release
something it goes on with its old epoch, and every answer repeats the assignment it is to have. Its lease counts from
when it sent the last heartbeat that was answered without an error.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from broker_runtime.contract.requests.message import (
    Entries,
    Int32,
    Message,
    Name,
    PartitionNumber,
    Request,
    Uuid,
    WaitMs,
    Whole,
)
from broker_runtime.contract.requests.offsets import CommittedOffset

JOINS = 0
LEAVES = -1
LEAVES_FOR_A_WHILE = -2
"""Of `GroupHeartbeatRequest.member_epoch`; the last one of static members only."""

MemberId = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"\A[A-Za-z0-9._-]+\Z")]
InstanceId = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
MemberKind = Literal["consumer", "spark"]


class AssignedPartitions(Message, frozen=True, kw_only=True):
    """Partitions of one topic."""

    topic: Name
    topic_id: Uuid
    partitions: tuple[PartitionNumber, ...]


class FindCoordinatorRequest(Request, frozen=True, kw_only=True):
    group_id: str


class FindCoordinatorResponse(Message, frozen=True, kw_only=True):
    """The broker to ask about the group: who has claimed it, or who would."""

    broker_id: Int32


class GroupHeartbeatRequest(Request, frozen=True, kw_only=True):
    """``member_id``: chosen by the client for one stay in the group, never used again. ``topics``: the subscription,
    None: as told before. ``kind`` spark: a query that takes all partitions by itself and is alone in its group.
    ``rebalance_timeout_ms``: how long the member may take to release what it is told to (``max.poll.interval.ms``).
    """

    MOST_BYTES: ClassVar[int] = 3 << 20

    group_id: str
    member_id: MemberId
    member_epoch: Int32
    instance_id: InstanceId | None = None
    kind: MemberKind = "consumer"
    client_host: Annotated[str, msgspec.Meta(max_length=255)] = ""
    client_id: Annotated[str, msgspec.Meta(max_length=255)] = ""
    topics: Whole[Name] | None = None
    session_timeout_ms: WaitMs = 45_000
    rebalance_timeout_ms: WaitMs = 300_000


class GroupHeartbeatResponse(Message, frozen=True, kw_only=True):
    """``assignment``: all that the member is to hold in ``member_epoch``; None: as it said. ``is_settled``: nothing is
    to come for it, so far as is known. ``session_timeout_ms``: how long its lease is."""

    member_epoch: Int32
    heartbeat_interval_ms: WaitMs
    session_timeout_ms: WaitMs
    assignment: tuple[AssignedPartitions, ...] | None = None
    is_settled: bool = False


class GroupInfo(Message, frozen=True, kw_only=True):
    """``state``: empty, assigning (something is still on its way) or stable. ``kind``: of its members, "" without."""

    group_id: str
    state: Literal["empty", "assigning", "stable"]
    kind: str
    members: int
    coordinator: Int32  # -1: none at present


class ListGroupsRequest(Request, frozen=True, kw_only=True):
    pass


class ListGroupsResponse(Message, frozen=True, kw_only=True):
    groups: tuple[GroupInfo, ...]


class MemberInfo(Message, frozen=True, kw_only=True):
    """``state``: joining, reconciling, stable, away or fenced. ``assignment``: all that it may hold at present."""

    member_id: str
    instance_id: str | None
    kind: str
    client_id: str
    client_host: str
    state: str
    member_epoch: Int32
    topics: tuple[str, ...]
    assignment: tuple[AssignedPartitions, ...]
    session_timeout_ms: int
    last_heartbeat_ms: int  # how long ago


class DescribeGroupRequest(Request, frozen=True, kw_only=True):
    group_id: str


class DescribeGroupResponse(Message, frozen=True, kw_only=True):
    """``epoch``: rises with every change of who has what."""

    group: GroupInfo
    epoch: Int32
    members: tuple[MemberInfo, ...]


class AlterGroupOffsetsRequest(Request, frozen=True, kw_only=True):
    """Answered with a `CommitOffsetsResponse`. Refused while the group has members."""

    group_id: str
    offsets: Entries[CommittedOffset]


class DeleteGroupRequest(Request, frozen=True, kw_only=True):
    """Refused while the group has members."""

    group_id: str


class RemoveGroupMembersRequest(Request, frozen=True, kw_only=True):
    """By member id or instance id. What they hold is free when their leases have ended."""

    MOST_BYTES: ClassVar[int] = 4 << 20

    group_id: str
    members: Whole[str]
