"""The nouns that clients and brokers share: partitions, offsets, descriptions.

Rule: frozen values with no behaviour but checks. All times are milliseconds since the epoch (UTC), all ranges
are half-open, an offset is the number of a record in its partition (0-based).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa

from broker_runtime.contract.errors import InvalidGroupIdError, InvalidTopicError

EARLIEST = -2
"""Stands for the offset of the first record that exists (Kafka's wire value)."""
LATEST = -1
"""Stands for the offset after the last record that exists."""
MAX_TIMESTAMP = -3
"""Stands for a time in a query by time: the record with the largest timestamp."""

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


class TimestampType(IntEnum):
    """Who set a record's timestamp. The values are Kafka's."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class TopicPartition(NamedTuple):
    """One partition of a topic. Sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndTimestamp(NamedTuple):
    """An offset and the timestamp (ms) of the record there; timestamp -1 if no record was looked up."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class GroupOffset(NamedTuple):
    """What a group has committed in a partition: the next offset it will read, beside the partition's end and the lag.
    End and lag are -1 if no leader reported them."""

    committed: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """One broker as registered: where clients reach it, and the epoch of its registration.

    ``disks``: those of its data directories that take no records now, by path, and what is wrong with each.
    ``diverged``: paths of logs that it set aside because they had records, perhaps committed ones, that their leaders
    lacked.
    """

    broker_id: int
    host: str
    port: int
    epoch: int
    disks: Mapping[str, str] = field(default_factory=dict)
    diverged: Sequence[str] = ()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster's id, its controller (None if there is none now) and its live brokers by id."""

    cluster_id: str
    controller_id: int | None
    brokers: Mapping[int, BrokerDescription]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition's leader (None if there is none now), epoch, replicas and, if the leader reported them, offsets.

    ``last_stable_offset``: up to where readers of committed records may read: below the high watermark while a
    transaction is open.
    ``lost``: replicas that came back without the log that they were in sync with and are not in sync again yet. One
    that is also in ``isr`` was the last in-sync replica: the partition has no leader until that replica's disk is back
    or another replica is chosen. ``eligible``: replicas that are not in sync but have everything that is committed
    (KIP-966's eligible leader replicas). ``damaged``: replicas on live brokers that found their logs damaged.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]  # Invariant: isr ⊆ replicas
    log_start: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    lost: Sequence[int] = ()
    eligible: Sequence[int] = ()
    damaged: Sequence[int] = ()

    @property
    def end(self) -> int:
        """Where the partition ends for readers of committed records; -1: not known."""
        return self.last_stable_offset if self.last_stable_offset >= 0 else self.high_watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition that is being moved. ``lag``: how many records the slowest new replica still lacks; -1: not known."""

    target: Sequence[int]  # the brokers that are to have it, the preferred leader first
    original: Sequence[int]
    lag: int = -1

    @property
    def adding(self) -> Sequence[int]:
        """The brokers that are to get a replica."""
        return tuple(broker_id for broker_id in self.target if broker_id not in self.original)

    @property
    def removing(self) -> Sequence[int]:
        """The brokers that are to give theirs up."""
        return tuple(broker_id for broker_id in self.original if broker_id not in self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its id (a recreated topic has a new one), partitions in order, schema (None: Kafka's columns) and key.

    ``config`` has the settings that were set for this topic, by dotted name, as they were given.
    """

    name: str
    topic_id: uuid.UUID
    partitions: Sequence[PartitionDescription]
    schema: pa.Schema | None = None
    key: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id. ``batch_id``: the last batch that was decided, -1: none; a producer's transactions are
    batches that count from 0. ``outcome``: committed, aborted, or "". ``rows``: of the committed batch, as its Spark
    query counted them. ``unfinished``: decided batches that not all leaders know of yet.
    """

    transactional_id: str
    epoch: int
    run_id: str
    batch_id: int
    outcome: str
    rows: int
    decided_at_ms: int
    timeout_ms: int
    unfinished: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransactionDescription:
    """A transaction that is open in a partition, in front of whose ``first_offset`` readers of committed records wait.
    ``open_ms``: for how long. ``attempt``: Spark's id of the task attempt, -1: a producer's."""

    transactional_id: str
    batch_id: int
    run_id: str
    attempt: int
    producer_id: int
    topic: str
    partition: int
    first_offset: int
    open_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list.

    ``state``: empty, assigning (partitions are still being handed over) or stable. ``kind``: what its members are,
    consumer or spark, "" if it has none. ``coordinator``: the broker that coordinates it, None if none does now.
    """

    group_id: str
    state: str
    kind: str
    members: int
    coordinator: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member of a group. ``member_id`` lasts for one stay in the group; ``instance_id`` is a static member's name.

    ``state``: joining, reconciling (it was sent its assignment and has not confirmed it yet), stable, away (a static
    member that left for a while) or fenced. ``partitions``: all that it may hold now; a Spark query may hold all of its
    topics'. ``heard_ms_ago``: how long ago the coordinator last heard from it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    kind: str
    state: str
    epoch: int
    topics: Sequence[str]
    partitions: Sequence[TopicPartition]
    session_timeout_ms: int
    heard_ms_ago: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group and its members. ``epoch`` rises with every change of the assignment; the rest as in `GroupListing`."""

    group_id: str
    state: str
    kind: str
    coordinator: int | None
    epoch: int
    members: Sequence[MemberDescription]


def check_topic_name(name: str) -> str:
    """Returns ``name`` if it may name a topic (Kafka's rule); raises `InvalidTopicError`."""
    if not isinstance(name, str) or not _TOPIC_NAME.match(name) or name in {".", ".."}:
        raise InvalidTopicError(
            f"{name!r} cannot name a topic. Allowed: 1 to 249 of the characters a-z A-Z 0-9 . _ - (not '.' or '..')"
        )
    return name


def check_group_id(group_id: str) -> str:
    """Returns ``group_id`` if it may name a group; raises `InvalidGroupIdError`.

    ZooKeeper sets the rule: 1 to 249 printable characters up to U+FFEF, without '/'.
    """
    if (
        not isinstance(group_id, str)
        or not 1 <= len(group_id) <= 249
        or "/" in group_id
        or not group_id.isprintable()
        or max(group_id) > "\uffef"
        or group_id in {".", ".."}
    ):
        raise InvalidGroupIdError(
            f"{group_id!r} cannot be a group id. Allowed: 1 to 249 printable characters up to U+FFEF without '/' "
            "(not '.' or '..')"
        )
    return group_id
