"""The offsets of each partition that a `consume` shows: places as typed, resolved by asking the brokers once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from broker_runtime.contract.errors import InvalidPartitionsError, OptionError
from broker_runtime.contract.suggestion import suggestion
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
    from broker_runtime.contract.model import TopicDescription, TopicPartition
    from pyspark_log import Admin

KeyColumns = Mapping[str, str | None]
"""The key columns of the typed topics that are read (None: no key). A topic that is missing here is untyped."""


def topics_of(admin: Admin, partitions: Sequence[TopicPartition]) -> list[TopicDescription]:
    """The topics of ``partitions``."""
    return [admin.describe_topic(name) for name in dict.fromkeys(at.topic for at in partitions)]


def key_columns(topics: Sequence[TopicDescription]) -> KeyColumns:
    """The key columns of the typed topics."""
    return {topic.name: topic.key for topic in topics if topic.schema is not None}


def check_columns(wanted: Sequence[str], topics: Sequence[TopicDescription], columns: str | None) -> None:
    """Raises `OptionError` for a ``%{column}`` that no record has. ``columns``: the value of --columns."""
    known = list(dict.fromkeys(name for topic in topics if topic.schema is not None for name in topic.schema.names))
    if columns is not None:
        selected = {name.strip() for name in columns.split(",")}
        known = [name for name in known if name in selected]
    for name in wanted:
        if name in known:
            continue
        if not known:
            names = ", ".join(topic.name for topic in topics)
            raise OptionError(f"-f %{{{name}}}: {names} has no columns; use %k and %v for a record's key and value")
        raise OptionError(f"-f %{{{name}}}: there is no such column; {suggestion(name, known)}")


def partitions_of(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions that arguments like ``flights`` and ``flights:0`` name. Raises for unknown ones."""
    from broker_runtime.contract.model import TopicPartition

    found: list[TopicPartition] = []
    for text in topics:
        topic, partition = parse_topic_and_partition(text)
        count = len(admin.describe_topic(topic).partitions)
        if partition is not None and partition >= count:
            raise InvalidPartitionsError(f"{text}: topic {topic} has partitions 0 to {count - 1}")
        found += [TopicPartition(topic, number) for number in (range(count) if partition is None else [partition])]
    return list(dict.fromkeys(found))


def resolve_place(admin: Admin, place: Place, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset that ``place`` means in each partition, within the range that the log holds now."""
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
            # Offset -1: all records are older, so the range begins at the end.
            return {at: ends[at] if by_time[at].offset < 0 else by_time[at].offset for at in partitions}
