"""The arguments of `pylog group reset` as offsets.

Pure, except for `read_offsets_file` and for `resolve`, which asks brokers. Anything wrong is an `OptionError` that
shows what was given.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker_runtime.contract.errors import InvalidPartitionsError, OptionError
from pyspark_log.cli.arguments import AtOffset, Place, is_number, parse_place

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log import Admin

_SHIFT = re.compile(r"[+-][0-9]{1,18}\Z")
_SHOWN_PARTITIONS = 5
_FILE_HEADING = ["topic", "partition", "offset"]


@dataclass(frozen=True, slots=True)
class Shift:
    """A number of records forward from the committed offset; negative: backward."""

    records: int


Target = Place | Shift


def parse_target(text: str, *, now_ms: int, option: str = "--to") -> Target:
    """``earliest``, ``latest``, ``42``, ``+10``, ``-10`` (from the committed offset), ``1h``, an ISO time. ``option``:
    what errors call it."""
    if _SHIFT.match(text.strip()):
        return Shift(int(text))
    try:
        return parse_place(text, now_ms=now_ms, option=option)
    except OptionError:
        raise OptionError(
            f"{option} {text!r}: allowed are earliest, latest, an offset (42), a number of records from the committed "
            "offset (+10, -10), an age (1h), or a time (2026-01-31T12:00)"
        ) from None


def parse_topics(given: Sequence[str]) -> dict[str, list[int] | None]:
    """``flights`` (None: all partitions), ``flights:0`` and ``flights:0,2``; the same topic may come again."""
    from broker_runtime.contract.model import check_topic_name

    found: dict[str, list[int] | None] = {}
    for text in given:
        topic, colon, listed = text.partition(":")
        numbers = listed.split(",")
        if "," in topic or (colon and not all(map(is_number, numbers))):
            raise InvalidPartitionsError(
                f"{text!r} must be TOPIC or TOPIC:PARTITION[,PARTITION…], for example flights:0,2"
            )
        before = found.get(check_topic_name(topic), [])
        if not colon or before is None:
            found[topic] = None
        else:
            found[topic] = list(dict.fromkeys([*before, *map(int, numbers)]))
    return found


def read_offsets_file(file: Path) -> dict[TopicPartition, int]:
    """`parse_offsets_file` of a file in UTF-8, with a byte order mark or without. Raises `OSError`, too."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError(f"{file} must be UTF-8 text with lines of topic,partition,offset") from None
    return parse_offsets_file(text.splitlines(), name=str(file))


def parse_offsets_file(lines: Sequence[str], *, name: str) -> dict[TopicPartition, int]:
    """Rows of ``topic,partition,offset``, with a heading of these words or without."""
    from broker_runtime.contract.model import TopicPartition, check_topic_name

    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(_rows(lines, name), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and [cell.lower() for cell in cells] == _FILE_HEADING):
            continue
        if len(cells) != 3 or not is_number(cells[1]) or not is_number(cells[2]):
            raise OptionError(
                f"{name}, line {number}: {','.join(row)!r} must be topic,partition,offset, for example flights,0,42"
            )
        at = TopicPartition(check_topic_name(cells[0]), int(cells[1]))
        if at in found:
            raise OptionError(f"{name}, line {number}: {at.topic}:{at.partition} occurs twice")
        found[at] = int(cells[2])
    if not found:
        raise OptionError(f"{name} has no line of topic,partition,offset")
    return found


def _rows(lines: Sequence[str], name: str) -> Iterator[list[str]]:
    reader = csv.reader(lines)
    try:
        yield from reader
    except csv.Error as error:
        raise OptionError(f"{name}, line {reader.line_num}: {error}") from None


def resolve(
    admin: Admin, target: Target, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The offset that ``target`` means in each partition. An offset given as a number may lie outside the log. For a
    `Shift`, partitions without a committed offset are left out."""
    from pyspark_log.cli.records.ranges import resolve_place

    match target:
        case Shift(records):
            return {at: committed[at] + records for at in partitions if at in committed}
        case AtOffset(offset) if offset >= 0:
            return dict.fromkeys(partitions, offset)
        case _:
            return resolve_place(admin, target, partitions)


def within_log(
    wanted: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """The offsets moved into the range that the logs hold, and at most one message about those that were moved."""
    new = {at: min(max(offset, starts[at]), ends[at]) for at, offset in wanted.items()}
    outside = [at for at in new if new[at] != wanted[at]]
    shown = ", ".join(f"{at.topic}:{at.partition} has {starts[at]} to {ends[at]}" for at in outside[:_SHOWN_PARTITIONS])
    more = f", and {len(outside) - _SHOWN_PARTITIONS} more" if len(outside) > _SHOWN_PARTITIONS else ""
    offsets = {wanted[at] for at in outside}
    what = f"Offset {min(offsets)} is" if len(offsets) == 1 else "Some offsets are"
    messages = [f"{what} outside the log; the nearest offset is used: {shown}{more}."] if outside else []
    return new, messages
