"""Messages about the cluster, topics and their settings."""

from __future__ import annotations

from typing import Annotated, ClassVar

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
    Settings,
    Uuid,
    Whole,
)


class BrokerInfo(Message, frozen=True, kw_only=True):
    broker_id: Int32
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    epoch: Int64
    disks: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # directories that take no records at present, by path: what is wrong
    diverged: tuple[str, ...] = ()  # paths of logs that it set aside as such and keeps


class PartitionInfo(Message, frozen=True, kw_only=True):
    partition: PartitionNumber
    leader: Int32 | None
    leader_epoch: Int32
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    log_start: Int64 = -1  # -1: the answering broker does not lead it
    high_watermark: Int64 = -1
    lost: tuple[Int32, ...] = ()  # replicas that came back without the log they were in sync with
    eligible: tuple[Int32, ...] = ()  # replicas that are not in sync and have all that is committed
    damaged: tuple[Int32, ...] = ()  # replicas whose live brokers found their logs damaged


class SchemaVersion(Message, frozen=True, kw_only=True):
    """One version of a topic's schema: its id (0, 1, …; each only adds nullable columns) and Arrow's IPC bytes."""

    schema_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    arrow: bytes


class TopicInfo(Message, frozen=True, kw_only=True):
    name: Name
    topic_id: Uuid
    partitions: tuple[PartitionInfo, ...]
    schemas: tuple[SchemaVersion, ...] = ()  # empty: Kafka's columns
    key: str | None = None
    config: dict[str, str] = msgspec.field(default_factory=dict)


class MetadataRequest(Request, frozen=True, kw_only=True):
    """``topics=None``: all. ``with_offsets``: fill log start and high watermark for led partitions."""

    topics: Entries[str] | None = None
    with_offsets: bool = False


class MetadataResponse(Message, frozen=True, kw_only=True):
    """``errors`` has an entry for each topic asked for that cannot be described."""

    protocol_version: int
    software_version: str
    cluster_id: str
    controller_id: Int32 | None
    brokers: tuple[BrokerInfo, ...]
    topics: tuple[TopicInfo, ...]
    errors: dict[str, ErrorInfo] = msgspec.field(default_factory=dict)


class CreateTopicRequest(Request, frozen=True, kw_only=True):
    """``schema``: Arrow IPC bytes of a typed topic. None for partitions or factor: the broker's default."""

    MOST_BYTES: ClassVar[int] = 2 << 20

    name: str
    partitions: Int32 | None = None
    replication_factor: Int32 | None = None
    schema: bytes | None = None
    key: str | None = None
    config: Settings[str] = msgspec.field(default_factory=dict)
    replica_assignment: Whole[Replicas] | None = None
    validate_only: bool = False


class TopicResponse(Message, frozen=True, kw_only=True):
    topic: TopicInfo


class DeleteTopicRequest(Request, frozen=True, kw_only=True):
    name: str


class CreatePartitionsRequest(Request, frozen=True, kw_only=True):
    """``total``: how many the topic has afterwards; only more than now."""

    name: str
    total: Int32


class AddColumnsRequest(Request, frozen=True, kw_only=True):
    """``schema``: Arrow IPC bytes of the new nullable columns alone."""

    name: str
    schema: bytes


class AddColumnsResponse(Message, frozen=True, kw_only=True):
    schema_id: int


class DescribeConfigRequest(Request, frozen=True, kw_only=True):
    """Exactly one of both."""

    topic: str | None = None
    broker_id: Int32 | None = None


class ConfigEntry(Message, frozen=True, kw_only=True):
    """``source``: ``default``, ``broker`` or ``topic``."""

    value: str
    source: str


class DescribeConfigResponse(Message, frozen=True, kw_only=True):
    entries: dict[str, ConfigEntry]


class AlterConfigRequest(Request, frozen=True, kw_only=True):
    """A value of None takes the topic's own setting away."""

    topic: str
    changes: Settings[str | None]


class Empty(Message, frozen=True, kw_only=True):
    """A response that says only that it was done."""
