"""From offsets to input partitions: pure arithmetic on ranges of offsets, without a broker or a clock.

`divide` is Spark's KafkaOffsetRangeCalculator (``minPartitions``, ``maxRecordsPerPartition``), `rate_limit` its
KafkaMicroBatchStream.rateLimit, `plan_ranges` its getOffsetRangesFromResolvedOffsets. `coalesce` is pylog's own: ranges
so small that a task would cost more than reading them go into one input partition, each still in order.

Invariant: every offset that goes in comes out once, in adjoining half-open ranges; none is dropped or doubled.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from broker_runtime.contract.predicate import Predicate
from broker_runtime.contract.predicate.frames import (
    METADATA_IDS,
    OFFSET_ID,
    PARTITION_ID,
    Bounds,
    frame_test,
    prepared,
)
from broker_runtime.contract.predicate.spans import span_of
from pyspark_log.spark.offsets import SourceOffset


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition.

    Spark keeps a plan and runs it again, over a log that has grown or been trimmed. So in a batch read
    ``binds_start`` says that the partition's start was "earliest": records that are gone when the range is read are not
    missed. ``binds_end`` says that this is the partition's last range and its end was "latest": the reader reads on to
    the end that the partition has then.
    """

    partition: TopicPartition
    start: int
    end: int
    binds_start: bool = False
    binds_end: bool = False

    @property
    def size(self) -> int:
        """How many offsets; 0 where the log went backwards."""
        return max(self.end - self.start, 0)

    @property
    def is_bound_late(self) -> bool:
        """Whether the range may hold more when it is read than when it was planned."""
        return self.binds_start or self.binds_end


def can_match(where: Predicate, one: OffsetRange) -> bool:
    """Whether a record of the range can match, by its partition and its offset."""
    number = one.partition.partition
    by_column = {
        PARTITION_ID: Bounds(number, number, has_nulls=False),
        OFFSET_ID: Bounds(
            None if one.binds_start else one.start, None if one.binds_end else one.end - 1, has_nulls=False
        ),
    }
    test = prepared(frame_test(where, METADATA_IDS.get))
    return test.may_match({key: by_column[key[0]] for key in test.keys if key[0] in by_column})


def since_ms(where: Predicate) -> int | None:
    """No record before this time can match, ms since 1970; None: any may."""
    least = span_of(where, "_metadata.timestamp").least
    return None if least is None else max(0, -(-least // 1000))


def narrow(where: Predicate, one: OffsetRange, first: int) -> OffsetRange:
    """The range without the offsets at its ends that cannot match. ``first``: no record before it is late enough.

    An end that is bound late stays where it is.
    """
    span = span_of(where, "_metadata.offset")
    start = max(one.start, first, one.start if span.least is None else span.least)
    end = one.end if one.binds_end or span.most is None else min(one.end, span.most + 1)
    return replace(one, start=min(start, max(one.end, one.start)), end=max(end, one.start))


def divide(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """The ranges that are not empty, none larger than ``max_records``, the large ones split until there are about
    ``min_partitions``.

    Ranges that are bound late are kept even if they are empty now. Splits are proportional to size; small ranges stay
    whole and do not count in the proportion; the last part takes the remainder.
    """
    kept = [one for one in ranges if one.size > 0 or one.is_bound_late]
    if max_records is not None:
        kept = [part for one in kept for part in _split(one, max(1, math.ceil(one.size / max_records)))]
    if min_partitions is None or len(kept) >= min_partitions:
        return kept
    total = sum(one.size for one in kept)
    is_whole = {one: _part_count(one.size, total, min_partitions) == 1 for one in kept}
    whole = [one for one in kept if is_whole[one]]
    split_total = total - sum(one.size for one in whole)
    split_partitions = max(min_partitions - len(whole), 1)
    divided: list[OffsetRange] = []
    for one in kept:
        parts = 1 if is_whole[one] else _part_count(one.size, split_total, split_partitions)
        divided.extend(_split(one, parts))
    return divided


def coalesce(
    ranges: Sequence[OffsetRange], *, coalesce_rows: int, min_partitions: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each input partition: ranges of fewer than ``coalesce_rows`` rows share one up to that many.

    In order: a partition's ranges follow each other. With 0 each range has an input partition of its own. So it has
    where there would be fewer than ``min_partitions``: whoever sets that asks for tasks.
    """
    alone: list[tuple[OffsetRange, ...]] = [(one,) for one in ranges]
    if coalesce_rows == 0 or not ranges:
        return alone
    coalesced: list[tuple[OffsetRange, ...]] = []
    open_ranges: list[OffsetRange] = []
    open_rows = 0
    for one in ranges:
        if one.size >= coalesce_rows:
            coalesced.append((one,))
            continue
        if open_ranges and open_rows + one.size > coalesce_rows:
            coalesced.append(tuple(open_ranges))
            open_ranges, open_rows = [], 0
        open_ranges.append(one)
        open_rows += one.size
    if open_ranges:
        coalesced.append(tuple(open_ranges))
    return alone if min_partitions is not None and len(coalesced) < min_partitions else coalesced


def rate_limit(
    limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """``end`` brought back so that about ``limit`` offsets lie between, in proportion to each partition's backlog.

    Every partition with a backlog gets at least one, so the total may exceed ``limit``. A partition without a start is
    left at its end.
    """
    sizes = {partition: end[partition] - start[partition] for partition in end if partition in start}
    sizes = {partition: size for partition, size in sizes.items() if size > 0}
    total = sum(sizes.values())
    limited: dict[TopicPartition, int] = {}
    for partition, offset in end.items():
        size = sizes.get(partition)
        if size is None:
            limited[partition] = offset
        else:
            share_of_limit = max(limit * size // total, 1)
            limited[partition] = min(offset, start[partition] + share_of_limit)
    return limited


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePlan:
    """The ranges between two source offsets, and the losses that are known (one sentence each)."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def plan_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    recreated: Iterable[TopicPartition] = (),
    same: Collection[TopicPartition] = (),
) -> RangePlan:
    """The range of each partition in ``end``; a partition that is new there begins at ``earliest``.

    ``recreated``: partitions whose topic is known to be another one than ``start`` was about; ``same``: those whose
    topic is known to be that one. The former are losses, and so are partitions whose end lies before their start: what
    there is now is read from ``earliest``, unless it is known to have been read.
    """
    losses: list[str] = []
    ranges: list[OffsetRange] = []
    replaced = set(recreated)
    deleted = sorted(start.keys() - end.keys())
    if deleted:
        losses.append(f"Partitions {_names(deleted)} were deleted. What was not read of them is gone")
    for partition in sorted(end):
        first = earliest.get(partition)
        begin = start.get(partition, first)
        if begin is None:
            losses.append(f"The first offset of the new partition {partition} cannot be found; it was deleted again")
            continue
        if partition not in start and begin != 0:
            losses.append(f"The new partition {partition} starts at offset {begin} instead of 0")
        if partition in replaced or end[partition] < begin:
            losses.append(
                f"Partition {partition}'s offset was changed from {begin} to {end[partition]}: "
                "its topic was deleted and recreated, or lost its end"
            )
            is_read = partition in same and partition not in replaced
            begin = end[partition] if is_read else min(first or 0, end[partition])
        ranges.append(OffsetRange(partition, begin, end[partition]))
    return RangePlan(ranges=tuple(ranges), losses=tuple(losses))


def plan_batch(
    start: SourceOffset,
    end: SourceOffset,
    earliest: SourceOffset,
    latest: SourceOffset,
    *,
    is_written: bool = True,
) -> list[OffsetRange]:
    """The ranges of a batch read, one per partition in order.

    ``start`` and ``end`` may hold -2 and -1; ``earliest`` and ``latest`` say where those are now. ``is_written``: the
    user wrote the other offsets; none was looked up by a time or in a group. Raises `OptionError` when the two have
    different partitions, or a start lies behind its end.
    """
    if start.keys() != end.keys():
        raise OptionError("The specified start offset and end offset should have the same topic-partitions.")
    ranges: list[OffsetRange] = []
    for partition in sorted(start):
        first, last = start[partition], end[partition]
        begin = {EARLIEST: earliest, LATEST: latest}.get(first, {}).get(partition, first)
        until = {LATEST: latest, EARLIEST: earliest}.get(last, {}).get(partition, last)
        if begin > until:
            kind = "specified" if is_written and first >= 0 and last >= 0 else "resolved"
            end_kind = "" if kind == "specified" else "resolved "
            raise OptionError(
                f"The {kind} start offset {begin} is greater than the {end_kind}end offset {until} "
                f"for topic {partition.topic} partition {partition.partition}."
            )
        ranges.append(OffsetRange(partition, begin, until, binds_start=first == EARLIEST, binds_end=last == LATEST))
    return ranges


def _part_count(size: int, total: int, min_partitions: int) -> int:
    """Java's Math.round of the proportional share, at least 1."""
    return max(math.floor(size / total * min_partitions + 0.5), 1) if total > 0 else 1


def _split(one: OffsetRange, parts: int) -> list[OffsetRange]:
    if parts == 1:
        return [one]
    split: list[OffsetRange] = []
    begin, remaining = one.start, one.size
    for part in range(parts):
        rows = remaining // (parts - part)
        remaining -= rows
        split.append(OffsetRange(one.partition, begin, begin + rows, binds_start=one.binds_start))
        begin += rows
    assert begin == one.end
    split[-1] = replace(split[-1], binds_end=one.binds_end)
    return split


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(partition) for partition in partitions)
