"""Messages about offsets (of partitions, and those that groups have acknowledged) and log directories."""

from __future__ import annotations

from typing import Annotated

import msgspec

from broker_runtime.contract.requests.message import (
    Entries,
    ErrorInfo,
    Int32,
    Int64,
    Message,
    Name,
    PartitionNumber,
    Request,
    Uuid,
)


class PartitionKey(Message, frozen=True, kw_only=True):
    topic: Name
    partition: PartitionNumber
    topic_id: Uuid | None = None  # None: whatever topic has the name now


class OffsetQuery(Message, frozen=True, kw_only=True):
    """``timestamp``: ms, or -2 earliest, -1 latest, -3 the record with the largest timestamp (Kafka's values)."""

    at: PartitionKey
    timestamp: Int64
    leader_epoch: Int32 = -1


class OffsetAnswer(Message, frozen=True, kw_only=True):
    """Offset -1: no record has such a timestamp."""

    offset: Int64 = -1
    timestamp: Int64 = -1
    leader_epoch: Int32 = -1
    error: ErrorInfo | None = None


class ListOffsetsRequest(Request, frozen=True, kw_only=True):
    queries: Entries[OffsetQuery]


class ListOffsetsResponse(Message, frozen=True, kw_only=True):
    """One answer per query, in order."""

    answers: tuple[OffsetAnswer, ...]


class RecordDeletion(Message, frozen=True, kw_only=True):
    """``offset``: the first that stays; -1: the high watermark."""

    at: PartitionKey
    offset: Int64


class DeleteRecordsRequest(Request, frozen=True, kw_only=True):
    deletions: Entries[RecordDeletion]


class DeleteRecordsResponse(Message, frozen=True, kw_only=True):
    """Each answer's offset is the log start afterwards."""

    answers: tuple[OffsetAnswer, ...]


class CommittedOffset(Message, frozen=True, kw_only=True):
    """``offset``: the next to read. ``leader_epoch``: of the record before it, -1 unknown."""

    at: PartitionKey
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    leader_epoch: Int32 = -1
    metadata: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class CommitOffsetsRequest(Request, frozen=True, kw_only=True):
    """``member_id``: of a member of the group, empty for who is none. ``member_epoch``: the last one the member was
    told. ``sequence``: counts the member's commits (a commit that is sent again keeps it), so that one which arrives
    late takes nothing back.

    ``only_forward``: an offset below the committed one changes nothing (sources that republish).
    """

    group_id: str
    offsets: Entries[CommittedOffset]
    member_id: Annotated[str, msgspec.Meta(max_length=64)] = ""
    member_epoch: Int32 = -1
    sequence: Int64 = -1
    only_forward: bool = False


class CommitOffsetsResponse(Message, frozen=True, kw_only=True):
    """One entry per offset, in order; None: written to ZooKeeper."""

    errors: tuple[ErrorInfo | None, ...]


class FetchOffsetsRequest(Request, frozen=True, kw_only=True):
    """``partitions=None``: all that the group has."""

    group_id: str
    partitions: Entries[PartitionKey] | None = None


class FetchOffsetsResponse(Message, frozen=True, kw_only=True):
    offsets: tuple[CommittedOffset, ...]  # partitions without one are left out


class LogDirInfo(Message, frozen=True, kw_only=True):
    path: str
    total_bytes: int
    usable_bytes: int
    partitions: dict[str, int]  # "topic-partition" → bytes
    error: str | None = None


class DescribeLogDirsRequest(Request, frozen=True, kw_only=True):
    pass


class DescribeLogDirsResponse(Message, frozen=True, kw_only=True):
    broker_id: int
    log_dirs: tuple[LogDirInfo, ...]
