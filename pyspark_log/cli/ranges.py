"""Which offsets of each partition a `consume` shows: places as typed, resolved by asking the brokers once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from broker_runtime.contract.errors import InvalidPartitionsError
from pyspark_log.cli.arguments import (
    EARLIEST,
    LATEST,
    AtOffset,
    AtTime,
    FromEnd,
    Place,
    parse_topic_and_partition,
)

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log import Admin

KeyColumns = Mapping[str, str | None]
"""The typed topics among those read, with their key columns (None: no key). A topic that is not in it is untyped."""


def key_columns(admin: Admin, partitions: Sequence[TopicPartition]) -> KeyColumns:
    """What the topics of ``partitions`` are keyed by."""
    topics = [admin.describe_topic(name) for name in dict.fromkeys(at.topic for at in partitions)]
    return {topic.name: topic.key for topic in topics if topic.schema is not None}


def partitions_of(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions that ``flights`` and ``flights:0`` name. Raises for unknown ones."""
    from broker_runtime.contract.model import TopicPartition

    found: list[TopicPartition] = []
    for text in topics:
        topic, partition = parse_topic_and_partition(text)
        count = len(admin.describe_topic(topic).partitions)
        if partition is not None and partition >= count:
            raise InvalidPartitionsError(f"{text}: {topic} has the partitions 0 to {count - 1}")
        found += [TopicPartition(topic, number) for number in (range(count) if partition is None else [partition])]
    return list(dict.fromkeys(found))


def resolve_place(admin: Admin, place: Place, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset that ``place`` means in each partition, within what the log holds now."""
    starts = {at: found.offset for at, found in admin.list_offsets(dict.fromkeys(partitions, "earliest")).items()}
    ends = {at: found.offset for at, found in admin.list_offsets(dict.fromkeys(partitions, "latest")).items()}
    match place:
        case AtOffset(offset) if offset == EARLIEST:
            return starts
        case AtOffset(offset) if offset == LATEST:
            return ends
        case AtOffset(offset):
            return {at: min(max(offset, starts[at]), ends[at]) for at in partitions}
        case FromEnd(records):
            return {at: max(starts[at], ends[at] - records) for at in partitions}
        case AtTime(timestamp_ms):
            by_time = admin.list_offsets(dict.fromkeys(partitions, timestamp_ms))
            # Offset -1: no record is that young, so what is wanted begins at the end.
            return {at: ends[at] if by_time[at].offset < 0 else by_time[at].offset for at in partitions}
