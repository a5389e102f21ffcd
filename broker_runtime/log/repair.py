"""Giving up the unreadable part of a damaged log, so that the rest is served again: for ``pylog log repair``.

    with opened_for_repair(data_directory) as directory:
        plan = plan_repair(directory, partition)        reads only
        if plan is not None: carry_out(directory, partition, plan)

Rules: only under the data directory's lock, so never beside its broker. A log is dense, so everything after the first
damage is given up with it, sound or not; only where deleted records are damaged does it continue behind them, in a new
first segment without them. The checkpoints say so before a file is removed; a crash in between leaves a
log that is still damaged, or repaired. The repaired log counts as not closed in order: before its broker registers it
leaves the in-sync sets that have other members, so nobody takes its shorter log for a whole one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError, OptionError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.directory import LogDirectory
from broker_runtime.log.files import FileSystem, RealFiles, copy_prefix, copy_range
from broker_runtime.log.identity import META_NAME, PARTITION_NAME, DirectoryIdentity, PartitionIdentity
from broker_runtime.log.leader_epochs import EPOCHS_NAME, LeaderEpochs
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.producer_state import remove_snapshots
from broker_runtime.log.recovery import StartState
from broker_runtime.log.scan import LOG_SUFFIX, frames_anywhere, verified_frames
from broker_runtime.log.segment import SEGMENT_SUFFIXES

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of the first segment: from the byte ``position`` on, where ``offset`` begins."""

    segment: Path
    position: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What is wrong with a log, and what is left of it: offsets [start, end) instead of [old_start, old_end).

    ``segment`` is truncated at ``position``, where ``cut_offset`` would begin (perhaps below ``start``), and all later
    segments are removed. None: records are given up at the start only. ``rest``: takes the place of the first segment.
    ``sound_records``: how many of the records after the damage would be readable.
    """

    reason: str
    old_start: int
    old_end: int
    start: int
    end: int
    cut_offset: int
    segment: Path | None
    position: int
    sound_records: int
    rest: Rest | None = None

    @property
    def lost_records(self) -> int:
        """How many offsets are given up."""
        return (self.old_end - self.old_start) - (self.end - self.start)


@contextmanager
def opened_for_repair(path: Path, *, files: FileSystem | None = None) -> Iterator[LogDirectory]:
    """The data directory, locked. Afterwards it counts as stopped as cleanly as it was before.

    Raises `OptionError` for a directory that is no broker's, `DirectoryLockedError` while its broker runs,
    `CorruptRecordError` for a damaged meta.json, `OSError`.
    """
    files = files if files is not None else RealFiles()
    identity = DirectoryIdentity.read(files, path)
    if identity is None:
        raise OptionError(f"{path} is no data directory of a broker: it has no {META_NAME}")
    with LogDirectory.open(
        path, cluster_id=identity.cluster_id, broker_id=identity.broker_id, files=files
    ) as directory:
        yield directory


def plan_repair(directory: LogDirectory, partition: TopicPartition) -> RepairPlan | None:
    """What a repair would do; None where there is nothing to repair. Reads the whole log.

    Raises `OptionError` where there is no such log, `CorruptRecordError` where partition.json does not tell whose it
    is, `UnsupportedVersionError` for frames of a newer version, `OSError`.
    """
    if partition not in directory.partitions:
        raise OptionError(f"{directory.path} has no log of {partition}")
    files, path = directory.files, directory.path / str(partition)
    identity = PartitionIdentity.read(files, path)
    if identity is None:
        raise CorruptRecordError(f"{path / PARTITION_NAME} is missing: the broker recreates it when it starts")
    known = directory.start_of(partition)
    bases = PartitionFiles.find(files, path).base_offsets
    while len(bases) > 1 and bases[1] <= known.log_start_offset:
        bases.pop(0)  # left by a crash; it is below the log's start
    known_end = max(known.recovery_point, known.high_watermark, known.log_start_offset)
    if not bases:
        return _plan_without_segments(path, known.log_start_offset, known_end)
    end, bad = _good_part(files, path, bases, identity, known.log_start_offset)
    if bad is None and end < known_end:
        bad = _Bad(len(bases) - 1, files.file_size(_segment(path, bases[-1])) or 0, "the log ends there")
    behind_end, sound_records = (end, 0) if bad is None else _behind(files, path, bases, bad, identity)
    if not sound_records and end >= known_end:
        bad = None  # at most a torn tail, which the broker truncates by itself
    start = max(known.log_start_offset, bases[0])
    if bad is None and start == known.log_start_offset:
        return None
    reasons = []
    if start > known.log_start_offset:
        reasons.append(f"{path} lacks the segments with offsets {known.log_start_offset} to {start - 1}")
    if bad is not None:
        segment = _segment(path, bases[bad.number])
        reasons.append(f"{segment} is damaged at byte {bad.position}, where offset {end} should begin: {bad.reason}")
        if end < start and bad.number == 0:
            rest = _rest(files, path, bases, bad, identity, start)
            if rest is not None:
                rest_end = max(behind_end, rest.offset)
                return RepairPlan(
                    reason="; ".join(reasons) + ". It was deleted before; what is behind is whole",
                    old_start=known.log_start_offset,
                    old_end=max(known_end, rest_end),
                    start=max(start, rest.offset),
                    end=rest_end,
                    cut_offset=rest_end,
                    segment=None,
                    position=0,
                    sound_records=0,
                    rest=rest,
                )
    return RepairPlan(
        reason="; ".join(reasons),
        old_start=known.log_start_offset,
        old_end=max(known_end, behind_end),
        start=start,
        end=max(end, start),
        cut_offset=end,
        segment=None if bad is None else _segment(path, bases[bad.number]),
        position=0 if bad is None else bad.position,
        sound_records=sound_records,
    )


def carry_out(directory: LogDirectory, partition: TopicPartition, plan: RepairPlan) -> None:
    """Carries out ``plan``. Durable when it returns; what was given up is deleted. Raises `OSError`."""
    files, path = directory.files, directory.path / str(partition)
    known = directory.start_of(partition)
    event(
        _logger,
        "repair log",
        level=logging.WARNING,
        topic=partition.topic,
        partition=partition.partition,
        start=plan.start,
        end=plan.end,
        lost_records=plan.lost_records,
        error=plan.reason,
    )
    directory.begin_with(
        partition,
        StartState(
            recovery_point=min(known.recovery_point, plan.cut_offset),
            high_watermark=min(known.high_watermark, plan.cut_offset),
            log_start_offset=plan.start,
        ),
    )
    if plan.rest is not None:
        _continue_with(files, path, plan.rest)
    if plan.segment is not None:
        _cut(files, path, plan.segment, plan.position)
        epochs = LeaderEpochs.load(files, path / EPOCHS_NAME)
        if epochs is not None:
            epochs.truncate_from_end(plan.cut_offset)
    remove_snapshots(
        files,
        path,
        [offset for offset in PartitionFiles.find(files, path).snapshot_offsets if offset > plan.cut_offset],
    )
    files.sync_directory(path)


@dataclass(frozen=True, slots=True)
class _Bad:
    """Where the good part of a log ends: in which segment, at which byte, and why."""

    number: int
    position: int
    reason: str


def _segment(path: Path, base_offset: int) -> Path:
    return path / f"{base_offset:020d}{LOG_SUFFIX}"


def _plan_without_segments(path: Path, start: int, end: int) -> RepairPlan | None:
    if end == 0:
        return None
    reason = f"{path} has no segment, but records below offset {end} were written there"
    return RepairPlan(
        reason=reason,
        old_start=start,
        old_end=end,
        start=0,
        end=0,
        cut_offset=0,
        segment=None,
        position=0,
        sound_records=0,
    )


def _good_part(
    files: FileSystem, path: Path, bases: Sequence[int], identity: PartitionIdentity, log_start: int
) -> tuple[int, _Bad | None]:
    """The offset up to which all frames are good and dense, and what is wrong there; None: nothing. Of frames below
    ``log_start``, which nobody reads, only the headers count."""
    end, size = bases[0], 0
    for number, base in enumerate(bases):
        if base != end:
            return end, _Bad(number - 1, size, f"the next segment begins with offset {base}")
        segment = _segment(path, base)
        descriptor = files.open(segment, read_only=True)
        position = 0
        try:
            size = files.size(descriptor)
            for position, header, _ in verified_frames(
                files,
                descriptor,
                segment,
                size_bytes=size,
                base_offset=base,
                identity=identity,
                verify_from=log_start,
            ):
                position += header.frame_bytes
                end = header.next_offset
        except CorruptRecordError as error:
            return end, _Bad(number, position, error.message)
        finally:
            files.close(descriptor)
    return end, None


def _behind(
    files: FileSystem, path: Path, bases: Sequence[int], bad: _Bad, identity: PartitionIdentity
) -> tuple[int, int]:
    """The offset after the last good frame beyond the damage, and the number of records in all such frames."""
    end, records = 0, 0
    for number in range(bad.number, len(bases)):
        segment = _segment(path, bases[number])
        descriptor = files.open(segment, read_only=True)
        try:
            position = bad.position + 1 if number == bad.number else 0
            for _, header in frames_anywhere(files, descriptor, position, files.size(descriptor), identity):
                end, records = max(end, header.next_offset), records + header.record_count
        finally:
            files.close(descriptor)
    return end, records


def _rest(
    files: FileSystem, path: Path, bases: Sequence[int], bad: _Bad, identity: PartitionIdentity, start: int
) -> Rest | None:
    """Where the first segment goes on behind the damage, at a frame that has ``start`` or begins above it; None: not
    all frames from there to the log's end are good and dense."""
    rest: Rest | None = None
    end = -1
    for number, base in enumerate(bases):
        if number and base != end:
            return None
        segment = _segment(path, base)
        descriptor = files.open(segment, read_only=True)
        try:
            size = files.size(descriptor)
            reached = bad.position + 1 if number == 0 else 0
            for position, header in frames_anywhere(files, descriptor, reached, size, identity):
                if rest is None:
                    if header.next_offset <= start:
                        continue
                    rest = Rest(segment, position, header.base_offset)
                elif (position, header.base_offset) != (reached, end):
                    return None
                reached, end = position + header.frame_bytes, header.next_offset
            if rest is None or reached != size:
                return None
        finally:
            files.close(descriptor)
    return rest


def _continue_with(files: FileSystem, path: Path, rest: Rest) -> None:
    """The new first segment is there before the old one goes: a start in between removes the old one, which is below
    the log's start."""
    target = _segment(path, rest.offset)
    descriptor = files.open(rest.segment, read_only=True)
    try:
        copy_range(files, descriptor, target, rest.position, files.size(descriptor))
    finally:
        files.close(descriptor)
    for suffix in SEGMENT_SUFFIXES:
        name = rest.segment.with_suffix(suffix)
        if files.file_size(name) is not None:
            files.unlink(name)


def _cut(files: FileSystem, path: Path, segment: Path, position: int) -> None:
    """Removes the newest segment first, so that a crash in between leaves no hole."""
    for base in reversed(PartitionFiles.find(files, path).base_offsets):
        behind = _segment(path, base)
        if behind == segment:
            break
        for suffix in SEGMENT_SUFFIXES:
            name = path / f"{base:020d}{suffix}"
            if files.file_size(name) is not None:
                files.unlink(name)
    descriptor = files.open(segment, read_only=True)
    try:
        copy_prefix(files, descriptor, segment, position)
    finally:
        files.close(descriptor)
