"""Where a streaming query is and how far its next micro-batch goes. No thread, no connection of its own.

A `QueryOffsets` lives in the source's process as long as the query runs. Spark calls `initial` once, `latest(start,
limit)` again and again, and `plan(start, end)` for each micro-batch; on a restart `plan` comes first, for the
micro-batch that was under way. The checkpoint holds offsets and nothing else, so the topics' ids are known from one
call to the next only: a topic that was deleted and recreated is noticed by its id while the query runs, and after a
restart by offsets that went backwards.

The checkpoint holds the end of each micro-batch, and not where the first one began. If that is planned again after a
restart, Spark asks the new process for `initial`. So partitions that start at the log's end have nothing in the first
micro-batch: its end is their start, whatever has come since.

Rule: with ``failOnDataLoss`` every loss is a `DataLossError`. Without, it is a warning, what exists is read, and no
record is read twice while it is known that the topic is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from broker_runtime.contract.errors import DataLossError, OptionError, UnknownTopicOrPartitionError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from broker_runtime.contract.predicate import Predicate
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline
from pyspark_log.spark.offsets import (
    OffsetLimit,
    Position,
    SameTime,
    SourceOffset,
    SpecificTimes,
    expand_limit,
    written_for,
)
from pyspark_log.spark.options import SourceOptions
from pyspark_log.spark.planning import (
    OffsetRange,
    RangePlan,
    can_match,
    coalesce,
    divide,
    narrow,
    plan_ranges,
    rate_limit,
    since_ms,
)

_SECOND_LOOKS = 3
_SECOND_LOOK_PAUSE_S = 0.2

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """The selected partitions as they were at one moment: their topics' ids, first offsets and ends.

    ``missing``: topics and partitions that the user named and that do not exist.
    """

    topic_ids: Mapping[str, bytes]
    earliest: SourceOffset
    latest: SourceOffset
    missing: tuple[str, ...] = ()


class LogView(Protocol):
    """What `QueryOffsets` asks of the brokers. Both calls try again on transient errors, within a bound."""

    def snapshot(self) -> LogSnapshot:
        """The selected partitions now; the answer is newer than the call."""

    def committed(self, partitions: Iterable[TopicPartition]) -> SourceOffset:
        """The group's committed offsets; partitions without one are left out."""

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> SourceOffset:
        """The offset of each partition's first record with that timestamp (ms since 1970) or a later one; partitions
        without such a record are left out."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range to read, of the topic with this very id."""

    range: OffsetRange
    topic_id: bytes


@dataclass(slots=True)
class _Step:
    """The start that `latest` was given and the end that it returned, with the ids of the topics they are about.
    ``seen``: topics of which this process had seen how far the start is."""

    start: SourceOffset
    end: SourceOffset
    seen: frozenset[str] = frozenset()
    start_ids: dict[str, bytes] = field(default_factory=dict)
    end_ids: dict[str, bytes] = field(default_factory=dict)
    snapshot: LogSnapshot | None = None


class SecondLooks:
    """How often, and after which pauses, what looks lost is looked at again before it counts as lost.

    A broker that has not learned of a change yet, or has only just learned of it, knows less than the one that answered
    before.
    """

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._left = _SECOND_LOOKS

    def again(self) -> bool:
        """Whether to look again; then a pause has passed. False, and at once, when it was looked at often enough."""
        if not self._left:
            return False
        self._left -= 1
        self._clock.sleep(_SECOND_LOOK_PAUSE_S)
        return True


class QueryOffsets:
    """See the module. Not thread-safe: Spark calls a source from one thread."""

    def __init__(
        self, options: SourceOptions, view: LogView, *, where: Predicate | None = None, clock: Clock = CLOCK
    ) -> None:
        """``where``: partitions in which no record can match are not read."""
        self._options = options
        self._where = where
        self._view = view
        self._clock = clock
        self._initial: SourceOffset | None = None
        self._at_end: frozenset[TopicPartition] = frozenset()  # of these: that start at the log's end
        self._refusal: OptionError | None = None  # why no new query may start there
        self._has_planned_again = False
        self._step: _Step | None = None
        self._target: LogSnapshot | None = None
        self._delay: Deadline | None = None  # until then, few offsets wait for more
        self._is_bounded = False
        self._warned: set[str] = set()
        self.reported: SourceOffset | None = None

    def initial(self) -> SourceOffset:
        """Where a new query starts. The first answer is kept: Spark asks until its first micro-batch is logged.

        Raises `UnknownTopicOrPartitionError` for named topics that do not exist, `OptionError` for offsets that do
        not fit the partitions, `DataLossError` for offsets that the log no longer has. Partitions that were added since
        the offsets were written are refused by `latest`: if the first micro-batch is planned again, they are news.
        """
        if self._initial is None:
            snapshot = self._view.snapshot()
            refuse_missing(snapshot)
            limit = self._options.stream_start()
            try:
                asked, snapshot = find_start(self._options, limit, snapshot, self._view)
            except OptionError as error:
                named = () if isinstance(limit, Position) else [p for p in snapshot.latest if limit.get(p) is not None]
                if not named or len(named) == len(snapshot.latest):
                    raise
                asked, snapshot = find_start(self._options, limit, snapshot, self._view, partitions=named)
                self._refusal = error
            self._at_end = frozenset(partition for partition, offset in asked.items() if offset == LATEST)
            self._initial = resolve_start(asked, snapshot, self._lose)
        return dict(self._initial)

    def bound(self) -> None:
        """The query ends where the log ends at the next `latest` (availableNow)."""
        self._is_bounded = True

    @property
    def is_bounded(self) -> bool:
        """Whether `bound` was called."""
        return self._is_bounded

    def latest(self, start: SourceOffset, max_rows: int | None, min_rows: int | None = None) -> SourceOffset:
        """How far the next micro-batch goes from ``start``; ``start`` itself when there is nothing new.

        ``max_rows`` None: all there is. ``min_rows``: fewer are nothing new, until ``maxTriggerDelay`` has passed since
        the micro-batch before; the first one of this process does not wait. Raises `DataLossError`.
        """
        is_first = self._step is None and not self._has_planned_again and start == self._initial
        if is_first and self._refusal is not None:
            raise self._refusal
        start_ids = self.topic_ids_at(start)
        snapshot, losses = self._snapshot_and_losses(start, start_ids)
        for loss in losses:
            self._lose(loss)
        self.reported = snapshot.latest
        ids = {partition.topic: snapshot.topic_ids[partition.topic] for partition in snapshot.latest}
        known_ids = {topic: start_ids.get(topic, topic_id) for topic, topic_id in ids.items()}
        recreated = _recreated(start, start_ids, snapshot)
        begin = {
            **snapshot.earliest,
            **{partition: offset for partition, offset in start.items() if partition not in recreated},
        }
        if not self._options.fail_on_data_loss:  # what is gone is no part of the backlog
            begin = {
                partition: max(offset, snapshot.earliest.get(partition, offset)) for partition, offset in begin.items()
            }
        end = self._bounded_end(snapshot) if self._is_bounded else dict(snapshot.latest)
        if min_rows is not None and not self._is_bounded and self._waits_for_more(begin, end, min_rows):
            return dict(start)
        if max_rows is not None:
            end = rate_limit(max_rows, begin, end)
        if is_first:
            end.update({partition: start[partition] for partition in self._at_end if partition in end})
        if not end:
            return dict(start)
        if end == start and snapshot.latest != start:
            end = _told_apart(end, recreated, snapshot)
        is_new = end != start
        self._step = _Step(start, end, frozenset(start_ids), known_ids, ids if is_new else known_ids, snapshot)
        return end

    def _waits_for_more(self, begin: SourceOffset, end: SourceOffset, min_rows: int) -> bool:
        """Whether there are some offsets and still too few for a micro-batch. One that comes about begins the wait of
        the next."""
        rows = sum(max(0, offset - begin[partition]) for partition, offset in end.items())
        if 0 < rows < min_rows and self._delay is not None and not self._delay.expired:
            return True
        if rows:
            self._delay = Deadline(self._options.max_trigger_delay_ms / 1000, clock=self._clock)
        return False

    def plan(self, start: SourceOffset, end: SourceOffset) -> list[tuple[PlannedRange, ...]]:
        """The ranges of each input partition for the micro-batch from ``start`` to ``end``. Raises `DataLossError`."""
        step = self._step
        if step is not None and (step.start, step.end) == (start, end) and step.snapshot is not None:
            snapshot = step.snapshot
            plan, existing = _planned(start, end, step.start_ids, snapshot, seen=step.seen)
        else:  # the micro-batch that was under way when the query stopped
            start = self._start_again(start, end)
            snapshot = self._view.snapshot()
            plan, existing = _planned(start, end, {}, snapshot)
            looks = SecondLooks(self._clock)
            while (plan.losses or existing != end) and looks.again():
                snapshot = self._view.snapshot()
                plan, existing = _planned(start, end, {}, snapshot)
        self._report(plan, end, existing)
        return input_partitions(plan.ranges, self._options, snapshot, self._where)

    def topic_ids_at(self, start: SourceOffset) -> dict[str, bytes]:
        """The ids of the topics that ``start`` is about, as far as this process has seen them."""
        step = self._step
        if step is None:
            return {}
        if start == step.end:
            return step.end_ids
        return step.start_ids if start == step.start else {}

    def _start_again(self, start: SourceOffset, end: SourceOffset) -> SourceOffset:
        """Where the micro-batch to ``end`` began, which Spark plans again. For the first one it gives what `initial`
        says now."""
        self._has_planned_again = True
        if self._initial is None or start != self._initial:
            return start
        again = {
            partition: end[partition] if partition in self._at_end else offset
            for partition, offset in start.items()
            if partition in end
        }
        is_time = isinstance(self._options.starting, SpecificTimes | SameTime)
        if (
            is_time and self._options.unmatched_time_is_end
        ):  # then it was the end; now it may be a record that came since
            again = {partition: min(offset, end[partition]) for partition, offset in again.items()}
        return again

    def _snapshot_and_losses(
        self, start: SourceOffset, start_ids: Mapping[str, bytes]
    ) -> tuple[LogSnapshot, list[str]]:
        """A snapshot, and the losses that it shows. A loss counts only if the second looks show it, too."""
        snapshot = self._view.snapshot()
        losses = self._losses(start, start_ids, snapshot)
        is_news = not self._warned.issuperset(losses)
        looks = SecondLooks(self._clock)
        while is_news and losses and looks.again():
            snapshot = self._view.snapshot()
            losses = self._losses(start, start_ids, snapshot)
        return snapshot, losses

    def _losses(self, start: SourceOffset, start_ids: Mapping[str, bytes], snapshot: LogSnapshot) -> list[str]:
        known = {partition: start[partition] for partition in start if partition in snapshot.latest}
        ends = {partition: max(snapshot.latest[partition], 0) for partition in known}
        recreated = _recreated(start, start_ids, snapshot)
        losses = list(plan_ranges(known, ends, snapshot.earliest, recreated).losses)
        gone = sorted(start.keys() - snapshot.latest.keys())
        if gone and self._is_bounded and self._target is not None:
            raise DataLossError(
                f"Partitions {', '.join(map(str, gone))} were lost while the query ran with Trigger.AvailableNow. "
                "Make sure that topics are not deleted while it runs"
            )
        return losses + ([f"Partitions {', '.join(map(str, gone))} were deleted"] if gone else [])

    def _bounded_end(self, snapshot: LogSnapshot) -> SourceOffset:
        """The end of the log at the first call. Raises `DataLossError` where the log no longer reaches it."""
        if self._target is None:
            self._target = snapshot
        for partition, end in self._target.latest.items():
            now = snapshot.latest.get(partition)
            is_other = snapshot.topic_ids.get(partition.topic) != self._target.topic_ids[partition.topic]
            if now is None or now < end or is_other:
                raise DataLossError(
                    f"Partition {partition} had records up to {end} when the query with Trigger.AvailableNow began, "
                    f"and now {'is gone' if now is None else f'ends at {now}'}: its topic was deleted or recreated. "
                    "Make sure that topics are not deleted while it runs"
                )
        return dict(self._target.latest)

    def _report(self, plan: RangePlan, end: SourceOffset, existing: SourceOffset) -> None:
        gone = sorted(end.keys() - existing.keys())
        for loss in plan.losses:
            self._lose(loss)
        if gone:
            self._lose(f"Partitions {', '.join(map(str, gone))} of the micro-batch were deleted")

    def _lose(self, loss: str) -> None:
        report_loss(loss, fail=self._options.fail_on_data_loss, warned=self._warned)


def input_partitions(
    ranges: Iterable[OffsetRange], options: SourceOptions, snapshot: LogSnapshot, where: Predicate | None = None
) -> list[tuple[PlannedRange, ...]]:
    """What each of Spark's tasks reads, by the options that say how much that may be. Ranges in which no record can
    match ``where`` are left out."""
    if where is not None:
        ranges = [one for one in ranges if can_match(where, one)]
    rows, least = options.max_records_per_partition, options.min_partitions
    most = options.coalesce_rows if rows is None else min(options.coalesce_rows, rows)
    coalesced = coalesce(divide(ranges, least, rows), coalesce_rows=most, min_partitions=least)
    return [tuple(PlannedRange(one, snapshot.topic_ids[one.partition.topic]) for one in group) for group in coalesced]


def narrowed(
    ranges: Iterable[OffsetRange], where: Predicate, snapshot: LogSnapshot, view: LogView
) -> list[OffsetRange]:
    """The ranges of a batch read without what cannot match ``where`` at their ends, by offset and by time."""
    since = since_ms(where)
    if since is None:
        return [narrow(where, one, one.start) for one in ranges]
    kept = list(ranges)
    found = view.offsets_at({one.partition: since for one in kept})
    # Where no record is late enough, none is that the snapshot knows: it is older than the answer.
    return [narrow(where, one, found.get(one.partition, snapshot.latest[one.partition])) for one in kept]


def report_loss(loss: str, *, fail: bool, warned: set[str] | None = None) -> None:
    """Raises `DataLossError`, or warns, once where ``warned`` remembers."""
    if fail:
        raise DataLossError(
            f"{loss}. Some data may have been lost because it is no longer in the log: it was aged out by retention, "
            "or its topic was deleted. To go on with what exists, set the option failOnDataLoss to false"
        )
    if warned is None or loss not in warned:
        event(_logger, "lose records", loss=loss, level=logging.WARNING)
        if warned is not None:
            warned.add(loss)


def refuse_missing(snapshot: LogSnapshot) -> None:
    """Raises `UnknownTopicOrPartitionError` if the user named a topic or partition that does not exist."""
    if snapshot.missing:
        raise UnknownTopicOrPartitionError(
            f"{', '.join(snapshot.missing)}: no such topic or partition. Topics are not made by reading them; create "
            "one with `pylog topic create`"
        )


def find_start(
    options: SourceOptions,
    limit: OffsetLimit,
    snapshot: LogSnapshot,
    view: LogView,
    *,
    partitions: Collection[TopicPartition] | None = None,
) -> tuple[SourceOffset, LogSnapshot]:
    """Where these partitions of ``snapshot`` start (None: all of them), with -2 for earliest and -1 for latest.

    Also returns a snapshot that is not older than any of these offsets. Raises `OptionError` where the limit is not
    about exactly these partitions, and where a time is later than all records, unless that means the end.
    """
    chosen = snapshot.latest if partitions is None else partitions
    if not isinstance(limit, SpecificTimes | SameTime):
        committed = view.committed(chosen) if limit is Position.COMMITTED else {}
        return expand_limit("startingOffsets", limit, chosen, committed), snapshot
    times, found, newer = _find_times("startingOffsetsByTimestamp", limit, chosen, view)
    for at in times:
        if at not in found and not options.unmatched_time_is_end:
            raise OptionError(f"No offset matched from request of topic-partition {at} and timestamp {times[at]}.")
    return {at: found.get(at, LATEST) for at in times}, newer


def find_end(limit: OffsetLimit, snapshot: LogSnapshot, view: LogView) -> tuple[SourceOffset, LogSnapshot]:
    """Where a batch read of all partitions ends, as `find_start`. A time that is later than all records is the end
    that the log has now, and stays it."""
    if not isinstance(limit, SpecificTimes | SameTime):
        committed = view.committed(snapshot.latest) if limit is Position.COMMITTED else {}
        return expand_limit("endingOffsets", limit, snapshot.latest, committed), snapshot
    times, found, newer = _find_times("endingOffsetsByTimestamp", limit, snapshot.latest, view)
    return {at: found.get(at, newer.latest[at]) for at in times}, newer


def _find_times(
    option: str, limit: SpecificTimes | SameTime, partitions: Collection[TopicPartition], view: LogView
) -> tuple[dict[TopicPartition, int], SourceOffset, LogSnapshot]:
    """The times of those of ``partitions`` that still exist, what was found, and a snapshot of these afterwards."""
    times = written_for(option, limit, partitions)
    found = view.offsets_at(times)
    newer = view.snapshot()  # what was found may have been written since the last one
    refuse_missing(newer)
    still = [at for at in times if at in newer.latest]
    newer = replace(
        newer, earliest={at: newer.earliest[at] for at in still}, latest={at: newer.latest[at] for at in still}
    )
    return {at: times[at] for at in still}, found, newer


def resolve_start(asked: SourceOffset, snapshot: LogSnapshot, lose: Callable[[str], None]) -> SourceOffset:
    """The start of a new query as offsets. No "latest" is left in it: that means the end when the query starts."""
    start: SourceOffset = {}
    for partition, offset in asked.items():
        earliest, latest = snapshot.earliest[partition], snapshot.latest[partition]
        resolved = {EARLIEST: earliest, LATEST: latest}.get(offset, offset)
        if not earliest <= resolved <= latest:
            lose(f"Offset {resolved} of partition {partition} does not exist; the log has {earliest} to {latest}")
            resolved = min(max(resolved, earliest), latest)
        start[partition] = resolved
    return start


def _planned(
    start: SourceOffset,
    end: SourceOffset,
    start_ids: Mapping[str, bytes],
    snapshot: LogSnapshot,
    seen: Collection[str] = (),
) -> tuple[RangePlan, SourceOffset]:
    """The ranges, and ``end`` without the partitions that are gone."""
    existing = {partition: offset for partition, offset in end.items() if partition in snapshot.latest}
    same = {
        each for each in existing if each.topic in seen and start_ids.get(each.topic) == snapshot.topic_ids[each.topic]
    }
    return plan_ranges(start, existing, snapshot.earliest, _recreated(start, start_ids, snapshot), same), existing


def _told_apart(end: SourceOffset, recreated: Iterable[TopicPartition], snapshot: LogSnapshot) -> SourceOffset:
    """Spark sees nothing new in an end that is the start. That of a topic that was recreated may be the same number by
    chance, where a limit ends it: then one partition goes one record less far, or further."""
    for partition in sorted(recreated):
        first, last = snapshot.earliest[partition], snapshot.latest[partition]
        for offset in (end[partition] - 1, end[partition] + 1):
            if first < offset <= last:
                return {**end, partition: offset}
    return end


def _recreated(
    start: Mapping[TopicPartition, int], start_ids: Mapping[str, bytes], snapshot: LogSnapshot
) -> set[TopicPartition]:
    return {
        partition
        for partition in start
        if partition in snapshot.latest
        and start_ids.get(partition.topic, snapshot.topic_ids[partition.topic]) != snapshot.topic_ids[partition.topic]
    }
