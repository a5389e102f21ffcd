"""Reads records for a page: from a start position, those that match, up to a number of rows; and makes histograms.

Rule: reading is bounded in rows, in cells, in characters of a cell, and in time; the page says what was left out. A
reader without a group leaves no trace in the cluster. Values are plain text here: templates escape them.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import InvalidPartitionsError, OptionError
from broker_runtime.contract.model import TopicDescription, TopicPartition
from broker_runtime.contract.suggestion import suggestion
from broker_runtime.contract.waiting import Deadline
from pyspark_log.cli.arguments import parse_place
from pyspark_log.cli.records.json_values import to_json
from pyspark_log.cli.records.ranges import resolve_place
from pyspark_log.client.records import ConsumedBatch, headers_of
from pyspark_log.console.connection import Connection

if TYPE_CHECKING:
    from pyspark_log import Consumer

MOST_ROWS: Final = 1_000
DEFAULT_ROWS: Final = 100
MOST_CELL_CHARS: Final = 200
MOST_CELLS: Final = 50_000
_MOST_HEADERS: Final = 20
_LIMIT_S: Final = 8.0
_POLL_S: Final = 0.25
_FETCH_BYTES: Final = 8 << 20
_BINS: Final = 20
_ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to read. ``partition`` None: all. ``start``: as the user typed it."""

    start: str
    partition: int | None = None
    where: str = ""
    columns: tuple[str, ...] = ()
    rows: int = DEFAULT_ROWS
    newest_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value as text. ``kind``: null, number, time, text, bytes or nested. ``is_cut``: there is more of it."""

    text: str
    kind: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record."""

    partition: int
    offset: int
    timestamp_ms: int
    cells: tuple[Cell, ...]
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Browsed:
    """``columns``: their names and types. ``passed``: how many offsets were examined. ``next_offsets``: where to
    continue in each partition that has more. ``is_late``: the time limit was reached before enough rows were found."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    passed: int
    next_offsets: Mapping[int, int]
    is_late: bool
    values: Mapping[str, list[Any]]
    """Each column's values, for a histogram: numbers, text, true and false, None."""


NOTHING: Final = Browsed(columns=(), rows=(), passed=0, next_offsets={}, is_late=False, values={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a histogram. ``share``: its count in percent of the largest count."""

    label: str
    count: int
    share: float


def browse(connection: Connection, topic: TopicDescription, wanted: Wanted) -> Browsed:
    """The records by timestamp, ascending, or descending with ``newest_first``. Raises `OptionError`,
    `InvalidPredicateError`, and what reading raises."""
    partitions = _partitions(topic, wanted.partition)
    place = parse_place(in_utc(wanted.start), now_ms=round(time.time() * 1000), option="from")
    deadline = Deadline(_LIMIT_S)
    names = _check_columns(topic, wanted.columns)
    starts = resolve_place(connection.admin, place, partitions)
    settings: dict[str, Any] = {
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.max.bytes": _FETCH_BYTES,
    }  # fmt: skip
    if wanted.where:
        settings["where"] = wanted.where
    if wanted.columns:
        settings["columns"] = ",".join(names)
    with connection.consumer(**settings) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        reading = {at for at in partitions if starts[at] < ends[at]}
        for at in partitions:
            if at in reading:
                consumer.seek(at, starts[at])
        consumer.pause(*(at for at in partitions if at not in reading))
        batches, positions, is_late = _read(consumer, reading, starts, ends, wanted.rows, deadline)
    more = {at.partition: positions[at] for at in partitions if at in positions and positions[at] < ends[at]}
    passed = sum(positions[at] - starts[at] for at in reading)
    found = _browsed(topic, names, batches, passed=passed, more=more, is_late=is_late)
    return replace(found, rows=found.rows[::-1]) if wanted.newest_first else found


def _read(
    consumer: Consumer,
    reading: set[TopicPartition],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    rows: int,
    deadline: Deadline,
) -> tuple[list[ConsumedBatch], dict[TopicPartition, int], bool]:
    """What was read, the position in each partition, and whether time was up. Each partition contributes at most its
    share of the rows, so that no partition crowds out the others."""
    share = max(1, math.ceil(rows / max(1, len(reading))))
    positions = {at: starts[at] for at in reading}
    left = dict.fromkeys(reading, share)
    active = set(reading)
    batches: list[ConsumedBatch] = []
    room = rows
    while active and not deadline.expired:
        polled = consumer.poll_batches(min(_POLL_S, deadline.remaining_s()))
        for batch in polled:
            at = batch.topic_partition
            if at not in active:
                continue
            taken = batch.slice(0, batch.rows_before(ends[at]))
            if len(taken) > min(left[at], room):
                taken = taken.slice(0, min(left[at], room))
                positions[at] = taken.next_offset
            else:
                positions[at] = min(ends[at], batch.next_offset)
            left[at] -= len(taken)
            room -= len(taken)
            if len(taken):
                batches.append(taken)
            if room <= 0:  # more partitions than rows, or shares that were rounded up
                return batches, positions, False
            if left[at] <= 0 or positions[at] >= ends[at]:
                active.discard(at)
                consumer.pause(at)
        if not polled:  # nothing matched: the position shows how far was read
            for at in list(active):
                positions[at] = max(positions[at], min(ends[at], consumer.position(at)))
                if positions[at] >= ends[at]:
                    active.discard(at)
    return batches, positions, bool(active)


def _browsed(
    topic: TopicDescription,
    names: Sequence[str],
    batches: Sequence[ConsumedBatch],
    *,
    passed: int,
    more: Mapping[int, int],
    is_late: bool,
) -> Browsed:
    kinds = {field.name: str(field.type) for field in topic.schema} if topic.schema is not None else {}
    rows: list[Row] = []
    values: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches:
        columns = [batch.batch.column(name) for name in names]
        cells = [cells_of(column) for column in columns]
        for name, column in zip(names, columns, strict=True):
            values[name] += plain_values(column)
        headers = headers_of(batch.headers, len(batch))
        times: list[int] = batch.timestamps_ms.to_pylist()
        rows += [
            Row(
                partition=batch.partition,
                offset=offset,
                timestamp_ms=at_ms,
                cells=tuple(column[index] for column in cells),
                headers=_headers(headers[index]),
            )
            for index, (offset, at_ms) in enumerate(zip(batch.row_offsets, times, strict=True))
        ]
    rows.sort(key=lambda row: (row.timestamp_ms, row.partition, row.offset))
    return Browsed(
        columns=tuple((name, kinds.get(name, "bytes")) for name in names),
        rows=tuple(rows),
        passed=passed,
        next_offsets=more,
        is_late=is_late,
        values=values,
    )


def rows_that_fit(rows: int, columns: int) -> int:
    """How many of ``rows`` a page takes: a table of a million cells keeps a browser, and the console, busy."""
    return max(1, min(rows, MOST_CELLS // max(1, columns)))


def _headers(pairs: Sequence[tuple[str, bytes | None]]) -> tuple[tuple[str, str], ...]:
    shown = [(_cell(name, "text").text, _cell(bytes_text(value), "text").text) for name, value in pairs[:_MOST_HEADERS]]
    return (*shown, (_ELLIPSIS, f"{len(pairs) - _MOST_HEADERS:,} more")) if len(pairs) > _MOST_HEADERS else tuple(shown)


def cells_of(column: pa.Array) -> list[Cell]:
    """A column's values as text."""
    kind = column.type
    if pt.is_binary(kind):
        return [_cell(bytes_text(value), "text" if _is_text(value) else "bytes") for value in column.to_pylist()]
    shown = (
        "nested" if pt.is_nested(kind) else "number" if _is_number(kind) else "time" if pt.is_temporal(kind) else "text"
    )
    return [_json_cell(value, shown) for value in to_json(column)]


def bytes_text(value: bytes | None) -> str:
    """Text if it is printable UTF-8, else hexadecimal digits; "" for None."""
    if value is None:
        return ""
    return value.decode() if _is_text(value) else f"0x{value[: MOST_CELL_CHARS + 1].hex()}"


def _is_text(value: bytes | None) -> bool:
    try:
        return value is not None and all(char.isprintable() or char in "\n\r\t" for char in value.decode())
    except UnicodeDecodeError:
        return False


def _json_cell(value: Any, kind: str) -> Cell:
    if value is None:
        return Cell(text="null", kind="null")
    if isinstance(value, bool):
        return Cell(text="true" if value else "false", kind="text")
    if isinstance(value, str):
        return _cell(value, kind)
    return _cell(json.dumps(value, ensure_ascii=False) if kind == "nested" else str(value), kind)


def _cell(text: str, kind: str) -> Cell:
    if len(text) <= MOST_CELL_CHARS:
        return Cell(text=text, kind=kind)
    return Cell(text=text[:MOST_CELL_CHARS] + _ELLIPSIS, kind=kind, is_cut=True)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def plain_values(column: pa.Array) -> list[Any]:
    """What a histogram counts: numbers (times as seconds since 1970), text, or None."""
    kind = column.type
    if pt.is_timestamp(kind):
        return [None if value is None else value / 1e6 for value in column.view(pa.int64()).to_pylist()]
    if pt.is_decimal(kind):
        return [None if value is None else float(value) for value in column.to_pylist()]
    if pt.is_integer(kind) or pt.is_floating(kind):
        values: list[Any] = column.to_pylist()
        return values
    return [None if cell.kind == "null" else cell.text for cell in cells_of(column)]


def histogram(values: Sequence[Any], *, is_time: bool = False) -> list[Bar]:
    """Numbers in bins of equal width, text by how often it occurs. Nulls come last."""
    known = [value for value in values if value is not None]
    nulls = len(values) - len(known)
    numbers = [value for value in known if isinstance(value, int | float) and math.isfinite(value)]
    if numbers and len(numbers) == len(known) and len(set(numbers)) > _BINS // 2:
        counts = _binned(numbers, is_time=is_time)
    else:
        often = Counter(map(_label, known))
        top = often.most_common(_BINS)
        if numbers and len(numbers) == len(known):
            top.sort(key=lambda item: float(item[0].replace(",", "")))
        counts = [
            *top,
            *([("all others", often.total() - sum(count for _, count in top))] if len(often) > _BINS else []),
        ]
    counts += [("null", nulls)] if nulls else []
    most = max((count for _, count in counts), default=1)
    return [Bar(label=label, count=count, share=round(100 * count / most, 2)) for label, count in counts]


def _binned(numbers: Sequence[float], *, is_time: bool) -> list[tuple[str, int]]:
    least, most = min(numbers), max(numbers)
    # Numbers next to 0 would need a power of ten that is too small for a float.
    between = max(most / _BINS - least / _BINS, sys.float_info.min)
    width = _round_width(between, is_whole=all(isinstance(each, int) for each in numbers))
    first = math.floor(least / width)
    counts = Counter(math.floor(number / width) - first for number in numbers)
    return [
        (f"{_edge((first + index) * width, is_time)} to {_edge((first + index + 1) * width, is_time)}", counts[index])
        for index in range(max(counts) + 1)
    ]


def _round_width(width: float, *, is_whole: bool) -> float:
    """1, 2 or 5 times a power of ten, so that the edges are round numbers."""
    power = 10.0 ** math.floor(math.log10(width))
    rounded = next(step * power for step in (1, 2, 5, 10) if step * power >= width)
    return max(1.0, rounded) if is_whole else rounded


def _edge(value: float, is_time: bool) -> str:
    if is_time:
        try:
            return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"
        except (OverflowError, ValueError, OSError):
            return f"{value:,.0f} s"
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}"


def _label(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else value if value else "(empty)"


def in_utc(text: str) -> str:
    """Adds UTC to a time without a zone, as all times of the console are UTC. Other text is unchanged."""
    stripped = text.strip()
    try:
        typed = datetime.fromisoformat(stripped)
    except ValueError:
        return text
    if stripped.lstrip("+-").isdecimal():  # an offset such as 20260131
        return text
    return text if typed.tzinfo is not None else typed.replace(tzinfo=UTC).isoformat()


def column_names(topic: TopicDescription) -> tuple[str, ...]:
    """The columns that records of the topic have."""
    return tuple(topic.schema.names) if topic.schema is not None else ("key", "value")


def _check_columns(topic: TopicDescription, wanted: Sequence[str]) -> tuple[str, ...]:
    known = column_names(topic)
    for name in wanted:
        if name not in known:
            raise OptionError(f"columns: there is no column {name[:80]!r}; {suggestion(name, known)}")
    return tuple(dict.fromkeys(wanted)) or known


def _partitions(topic: TopicDescription, partition: int | None) -> list[TopicPartition]:
    count = len(topic.partitions)
    if partition is not None and partition >= count:
        raise InvalidPartitionsError(f"partition {partition}: topic {topic.name} has partitions 0 to {count - 1}")
    return [TopicPartition(topic.name, each) for each in (range(count) if partition is None else (partition,))]


def split_names(text: str) -> Iterator[str]:
    """``carrier, dep_delay``."""
    return filter(None, map(str.strip, text.split(",")))
