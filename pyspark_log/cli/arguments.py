"""Arguments as people type them: durations, places in a log, partitions, NAME=VALUE.

Pure. Anything wrong is a `ValueError`, or an error of `broker_runtime.contract.errors`, that shows what was given and
what is allowed.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker_runtime.contract.errors import InvalidPartitionsError, OptionError, PylogError

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicPartition

# Kafka's values. broker_runtime.contract.model has them too, but importing it imports pyarrow; a test compares the two.
EARLIEST: Final = -2
LATEST: Final = -1

_PLACES = (
    "earliest, latest, an offset (42), a number of records before the end (-10), an age (1h), "
    "or a time (2026-01-31T12:00)"
)
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_LARGEST = 2**31 - 1
_AGE = re.compile(r"[0-9]+(\.[0-9]+)?(ms|s|m|min|h|d|w)\Z")


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset. `EARLIEST` and `LATEST` stand for the two ends of the log."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromEnd:
    """A number of records before the end."""

    records: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with this timestamp (ms since the epoch) or a later one."""

    timestamp_ms: int


Place = AtOffset | FromEnd | AtTime


def parse_place(text: str, *, now_ms: int, option: str) -> Place:
    """A place in a partition's log. ``end`` is another word for ``latest``. Raises `OptionError` naming ``option``."""
    word = text.strip().lower()
    if word in {"earliest", "beginning", "start"}:
        return AtOffset(EARLIEST)
    if word in {"latest", "end"}:
        return AtOffset(LATEST)
    if _INTEGER.match(word):
        number = int(word)
        return FromEnd(-number) if word.startswith("-") else AtOffset(number)
    try:
        return AtTime(max(0, _time_ms(text.strip(), now_ms)))
    except (ValueError, OverflowError):
        raise OptionError(f"{option} {text!r}: allowed are {_PLACES}") from None


def _time_ms(text: str, now_ms: int) -> int:
    """The time in ms since 1970; negative before that."""
    if _AGE.match(text.lower()):
        from broker_runtime.contract.settings import parse_duration

        return now_ms - parse_duration(text)
    # A time without a zone is local time.
    return round(datetime.datetime.fromisoformat(text).astimezone().timestamp() * 1000)


def parse_timeout_s(text: str) -> float:
    """Seconds: ``10``, ``0.5``, or with a unit ``500ms``, ``2m``. Raises `ValueError`."""
    from broker_runtime.contract.settings import parse_duration

    try:
        timeout_s = float(text) if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else parse_duration(text) / 1000
    except ValueError:
        raise ValueError(f"{text!r} must be a number of seconds (10) or a duration (500ms, 2m)") from None
    if not 0 < timeout_s <= 86_400:
        raise ValueError(f"{text!r} must be greater than 0 and at most one day")
    return timeout_s


def is_number(text: str) -> bool:
    """Whether ``text`` is a partition or an offset: ASCII digits, no more than an offset can have."""
    return _NUMBER.match(text) is not None


def check_number(number: int, *, option: str) -> int:
    """A number of partitions or replicas, or a broker's id: what a request can hold. The broker knows the exact limits.

    Raises `OptionError` naming ``option``.
    """
    if abs(number) > _LARGEST:
        raise OptionError(f"{option} {number}: must be a number up to {_LARGEST}")
    return number


def parse_partition(text: str) -> TopicPartition:
    """``flights:0``. Raises `InvalidPartitionsError`."""
    from broker_runtime.contract.model import TopicPartition, check_topic_name

    topic, colon, number = text.rpartition(":")
    if not colon or not is_number(number):
        raise InvalidPartitionsError(f"{text!r} must be TOPIC:PARTITION, for example flights:0")
    return TopicPartition(check_topic_name(topic), int(number))


def parse_topic_and_partition(text: str) -> tuple[str, int | None]:
    """``flights`` or ``flights:0``."""
    if ":" in text:
        return parse_partition(text)
    from broker_runtime.contract.model import check_topic_name

    return check_topic_name(text), None


def parse_settings(
    given: Iterable[str], *, option: str, example: str, error: type[PylogError] = OptionError
) -> dict[str, str]:
    """``['retention.ms=7d', …]`` as a mapping; the last value of a name wins.

    Raises ``error``, naming ``option``, for text without a name or without ``=``. Names and values are not checked.
    """
    settings: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise error(f"{option} {text!r}: must be NAME=VALUE, for example {option} {example}")
        settings[name.strip()] = value.strip()
    return settings
