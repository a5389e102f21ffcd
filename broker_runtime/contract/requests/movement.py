"""Messages about moving partitions between brokers and choosing leaders. All of them go to the controller, except
`DescribeReplicasRequest`, which goes to the leader of the partitions it names."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from broker_runtime.contract.requests.message import (
    Entries,
    ErrorInfo,
    Int32,
    Int64,
    Message,
    Name,
    PartitionNumber,
    Replicas,
    Request,
    Whole,
)
from broker_runtime.contract.requests.offsets import PartitionKey


class PartitionMove(Message, frozen=True, kw_only=True):
    """``replicas``: who shall have the partition, the preferred leader first; None ends a move that is under way."""

    topic: Name
    partition: PartitionNumber
    replicas: Replicas | None


class ReassignPartitionsRequest(Request, frozen=True, kw_only=True):
    """All moves are checked before the first is begun."""

    MOST_BYTES: ClassVar[int] = 5 << 20

    moves: Whole[PartitionMove]


class ListReassignmentsRequest(Request, frozen=True, kw_only=True):
    pass


class ReassignmentInfo(Message, frozen=True, kw_only=True):
    """A partition that moves: from whom to whom."""

    topic: Name
    partition: PartitionNumber
    target: tuple[Int32, ...]
    original: tuple[Int32, ...]


class ListReassignmentsResponse(Message, frozen=True, kw_only=True):
    """``draining``: the brokers that are being emptied."""

    moves: tuple[ReassignmentInfo, ...]
    draining: tuple[Int32, ...] = ()


class DescribeReplicasRequest(Request, frozen=True, kw_only=True):
    """How far the replicas of these partitions are, as their leader knows."""

    partitions: Entries[PartitionKey]


class ReplicaProgress(Message, frozen=True, kw_only=True):
    """``replicated_end``: up to where the replica holds the log; -1: it has not fetched yet in this leader's epoch."""

    broker_id: Int32
    replicated_end: Int64
    is_in_sync: bool


class PartitionProgress(Message, frozen=True, kw_only=True):
    """``log_end`` is the leader's; -1 beside an error."""

    topic: Name
    partition: PartitionNumber
    log_start: Int64 = -1
    log_end: Int64 = -1
    replicas: tuple[ReplicaProgress, ...] = ()
    error: ErrorInfo | None = None


class DescribeReplicasResponse(Message, frozen=True, kw_only=True):
    partitions: tuple[PartitionProgress, ...]


class ElectLeadersRequest(Request, frozen=True, kw_only=True):
    """``preferred``: the first replica, which must be in sync. ``unclean``: for a partition without a leader, the first
    live replica, whatever it lacks. ``partitions`` None: all that need it."""

    partitions: Entries[tuple[Name, PartitionNumber]] | None = None
    election: Literal["preferred", "unclean"] = "preferred"


class ElectLeadersResponse(Message, frozen=True, kw_only=True):
    """``elected``: topic, partition and the new leader. ``errors``: by ``topic-partition``, for those asked for by
    name."""

    elected: tuple[tuple[str, int, int], ...]
    errors: dict[str, ErrorInfo] = msgspec.field(default_factory=dict)


class DecommissionBrokerRequest(Request, frozen=True, kw_only=True):
    """Everything the broker holds is moved to others, and it gets nothing new. ``cancel``: no longer."""

    broker_id: Int32
    cancel: bool = False


class DecommissionBrokerResponse(Message, frozen=True, kw_only=True):
    """How many partitions begin to move (0: it holds none)."""

    moves: int
