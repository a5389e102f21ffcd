"""Source offsets: the checkpoint's JSON, and where a query or a batch read starts and ends.

A source offset maps each partition to the next offset to read, and is written as Kafka's source writes it,
``{"topic": {"0": 12, "1": 7}}``. Spark compares the JSON texts, so topics and partitions are always sorted. In what
users write, -2 is earliest and -1 latest; ``{"topic": "earliest"}`` says it for all partitions of a topic. Times are
milliseconds since 1970, for all partitions, for a topic's or for one; each stands for its partition's first record with
that timestamp or a later one.

Nothing here asks a broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition

SourceOffset = dict[TopicPartition, int]
"""The next offset to read of each partition."""

_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_EXAMPLE_OF_TIMES = '{"topicA": {"0": 123456789, "1": 123456789}, "topicB": 123456789}'
_MAX_OFFSET = 2**63 - 1


class Position(Enum):
    """A position that each partition has, looked up when it is needed."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


_SENTINELS = {Position.EARLIEST.value: EARLIEST, Position.LATEST.value: LATEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Numbers that the user wrote down, per partition or for all partitions of a topic."""

    partitions: Mapping[TopicPartition, int]
    topics: Mapping[str, int]

    def get(self, partition: TopicPartition) -> int | None:
        """The number for the partition, its topic's if that was given, else None."""
        return self.partitions.get(partition, self.topics.get(partition.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecificOffsets(_Written):
    """Offsets that the user wrote down; -2 earliest, -1 latest."""

    def items(self) -> Iterable[tuple[str, int]]:
        """Everything given, as (``topic-partition`` or ``topic``, offset)."""
        return [*((str(partition), offset) for partition, offset in self.partitions.items()), *self.topics.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecificTimes(_Written):
    """Times that the user wrote down, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class SameTime:
    """One time for all partitions, in ms since 1970."""

    timestamp_ms: int

    def get(self, partition: TopicPartition) -> int | None:
        """The time."""
        return self.timestamp_ms


OffsetLimit = Position | SpecificOffsets | SpecificTimes | SameTime
"""Where to start, or to end."""


def offset_to_json(offset: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """What Spark writes into the checkpoint: topics in order, and each topic's partitions in order."""
    tree: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offset):
        tree.setdefault(topic, {})[str(partition)] = offset[TopicPartition(topic, partition)]
    return tree


def offset_from_json(tree: object) -> SourceOffset:
    """The reverse of `offset_to_json`; raises `OptionError` for anything else (a checkpoint of another source)."""
    try:
        return _partitions_of(tree, lowest=0, what="offset")
    except ValueError as error:
        raise OptionError(f"The checkpoint's offset is not pylog's ({error}); is it another source's?") from None


def parse_offset_limit(option: str, text: str) -> OffsetLimit:
    """``earliest``, ``latest``, ``committed`` (any case) or JSON; raises `OptionError` with an example."""
    word = text.strip()
    for position in Position:
        if word.lower() == position.value:
            return position
    try:
        tree = _object(word)
        topics = {
            topic: _SENTINELS[value.strip().lower()]
            for topic, value in tree.items()
            if isinstance(value, str) and value.strip().lower() in _SENTINELS
        }
        partitions = _partitions_of({k: v for k, v in tree.items() if k not in topics}, lowest=EARLIEST, what="offset")
    except (ValueError, RecursionError) as error:
        words = "earliest, latest, committed are allowed too"
        raise OptionError(f"Expected e.g. {_EXAMPLE}, got {text} for option '{option}' ({error}); {words}") from None
    return SpecificOffsets(partitions=partitions, topics=topics)


def parse_time(text: str) -> SameTime:
    """The options ``startingTimestamp`` and ``endingTimestamp``; raises `OptionError`."""
    if re.fullmatch(r"[0-9]{1,19}", text.strip()) is None or int(text) > _MAX_OFFSET:
        raise OptionError(f"Expected a single long value, got {text} (milliseconds since 1970)")
    return SameTime(int(text))


def parse_times(option: str, text: str) -> SpecificTimes:
    """JSON with times by topic and partition, or by topic; raises `OptionError` with an example."""
    try:
        tree = _object(text)
        topics = {topic: value for topic, value in tree.items() if isinstance(value, int)}
        for value in topics.values():
            _check_number(value, lowest=0, what="time")
        partitions = _partitions_of({k: v for k, v in tree.items() if k not in topics}, lowest=0, what="time")
    except (ValueError, RecursionError) as error:
        raise OptionError(f"Expected e.g. {_EXAMPLE_OF_TIMES}, got {text} for option '{option}' ({error})") from None
    return SpecificTimes(partitions=partitions, topics=topics)


def expand_limit(
    option: str,
    limit: Position | SpecificOffsets,
    assigned: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> SourceOffset:
    """The limit for each assigned partition, still with -2 for earliest and -1 for latest.

    A partition without a committed offset starts at earliest, so that no record is left out silently. Raises
    `OptionError` when written offsets are not those of exactly the assigned partitions.
    """
    partitions = sorted(assigned)
    if limit is Position.COMMITTED:
        return {partition: committed.get(partition, EARLIEST) for partition in partitions}
    if isinstance(limit, Position):
        return dict.fromkeys(partitions, _SENTINELS[limit.value])
    return written_for(option, limit, partitions)


def written_for(
    option: str, limit: SpecificOffsets | SpecificTimes | SameTime, assigned: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """What was written for each assigned partition: offsets, or times. Raises `OptionError` unless it was written for
    exactly these."""
    partitions = sorted(assigned)
    found = {partition: number for partition in partitions if (number := limit.get(partition)) is not None}
    if isinstance(limit, SameTime):
        return found
    topics = {partition.topic for partition in partitions}
    unassigned = (limit.partitions.keys() - set(partitions)) or (limit.topics.keys() - topics)
    if unassigned or len(found) != len(partitions):
        specified = ", ".join(sorted({*map(str, limit.partitions), *limit.topics}))
        is_time = isinstance(limit, SpecificTimes)
        advice = "" if is_time else "Use -1 for latest, -2 for earliest, if you don't care.\n"
        raise OptionError(
            f"If {option} contains specific {'timestamps' if is_time else 'offsets'}, you must specify all "
            f"TopicPartitions.\n{advice}Specified: {specified} Assigned: {', '.join(map(str, partitions))}"
        )
    return found


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    """The option ``assign``: ``{"topicA":[0,1],"topicB":[2,4]}``, sorted, each once."""
    if not text.strip().startswith("{"):
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    try:
        tree = json.loads(text, object_pairs_hook=_without_repeats)
        found = {
            TopicPartition(topic, _natural(number)) for topic, numbers in tree.items() for number in _list(numbers)
        }
    except (ValueError, RecursionError) as error:
        raise OptionError(f'Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text} ({error})') from None
    if not found:
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return tuple(sorted(found))


def _object(text: str) -> dict[str, object]:
    tree = json.loads(text, object_pairs_hook=_without_repeats)
    if not isinstance(tree, dict):
        raise ValueError("not an object")
    return tree


def _check_number(value: object, *, lowest: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= _MAX_OFFSET:
        raise ValueError(f"{value!r} is no {what}")
    return value


def _partitions_of(tree: object, *, lowest: int, what: str) -> SourceOffset:
    if not isinstance(tree, dict):
        raise ValueError("not an object")
    offset: SourceOffset = {}
    for topic, partitions in tree.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} has no partitions")
        for number, value in partitions.items():
            if not (number.isascii() and number.isdigit()):
                raise ValueError(f"{number!r} is no partition")
            offset[TopicPartition(topic, int(number))] = _check_number(value, lowest=lowest, what=what)
    return {partition: offset[partition] for partition in sorted(offset)}


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name is given twice")
    return tree


def _natural(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{number!r} is no partition")
    return number


def _list(numbers: object) -> list[object]:
    if not isinstance(numbers, list):
        raise ValueError(f"{numbers!r} is no list of partitions")
    return numbers
