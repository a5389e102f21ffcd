"""The nouns that clients and brokers share: partitions, offsets, descriptions.

Rule: frozen values without behaviour beyond checks. All times are milliseconds since the epoch (UTC), all ranges
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
"""In place of an offset: the first record that exists (Kafka's wire value)."""
LATEST = -1
"""In place of an offset: behind the last record that exists."""
MAX_TIMESTAMP = -3
"""In a query's place of a time: the record with the largest timestamp."""

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
    """An offset and the timestamp (ms) of the record there; timestamp -1 where no record was looked at."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class GroupOffset(NamedTuple):
    """What a group has acknowledged in a partition: the next offset it will read, the partition's end, the lag; these
    two are -1 where no leader tells."""

    committed: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """One broker as registered: where clients reach it, and the epoch of its registration. ``disks``: of its data
    directories, by path, those that take no records at present, and what is wrong with each. ``diverged``: paths of
    logs that it set aside, because they had records, perhaps committed ones, that their leaders had not."""

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
    """The cluster's id, its controller (None: none at present) and its live brokers by id."""

    cluster_id: str
    controller_id: int | None
    brokers: Mapping[int, BrokerDescription]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition's leader (None: none at present), epoch, replicas and, where the leader told, its offsets.

    ``lost``: replicas that came back without the log that they were in sync with, and are not in sync again yet. One
    that is in ``isr`` as well was the last one in sync: nobody leads until its disk is back, or another is chosen.
    ``eligible``: replicas that are not in sync and have all that is committed (KIP-966's eligible leader replicas).
    ``damaged``: replicas whose brokers, which are up, found their logs damaged.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]  # Invariant: isr ⊆ replicas
    log_start: int = -1
    high_watermark: int = -1
    lost: Sequence[int] = ()
    eligible: Sequence[int] = ()
    damaged: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition that moves. ``lag``: how many records the slowest of the new replicas still lacks; -1: not known."""

    target: Sequence[int]  # who shall have it, the preferred leader first
    original: Sequence[int]
    lag: int = -1

    @property
    def adding(self) -> Sequence[int]:
        """The brokers that get it."""
        return tuple(broker_id for broker_id in self.target if broker_id not in self.original)

    @property
    def removing(self) -> Sequence[int]:
        """The brokers that give it up."""
        return tuple(broker_id for broker_id in self.original if broker_id not in self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its id (new when it is made anew), partitions in order, schema (None: Kafka's columns), key column.

    ``config`` has the settings that were set for the topic, by dotted name, as given.
    """

    name: str
    topic_id: uuid.UUID
    partitions: Sequence[PartitionDescription]
    schema: pa.Schema | None = None
    key: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list. ``state``: empty, assigning (partitions are still on their way) or stable. ``kind``: of its
    members, consumer or spark, "" without any. ``coordinator``: the broker that keeps it, None: none at present."""

    group_id: str
    state: str
    kind: str
    members: int
    coordinator: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member of a group. ``member_id``: of this one stay in the group. ``instance_id``: a static member's name.

    ``state``: joining, reconciling (it was told what it is to hold, and has not said yet that it does), stable, away
    (static, left for a while) or fenced. ``partitions``: all that it may hold at present; a Spark query's are all of
    its topics'. ``heard_ms_ago``: when the coordinator last heard of it.
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
    """A group and its members; fields as `GroupListing`'s. ``epoch`` rises with every change of who has what."""

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
    """Returns ``group_id`` if it may name a group: 1 to 249 printable characters up to U+FFEF, which is what ZooKeeper
    takes, without '/'."""
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
