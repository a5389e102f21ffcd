"""Whether what a broker derives from its logs agrees with them.

In memory: leader epochs and idempotent producers. Saved beside the logs: snapshots of producers, and high watermarks.
What is saved counts at the next start alone, and most starts do not need it: so it is looked at when it is saved.
Rule: looks at a log that nobody is at work on, and at the disk as it is, and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.directory import HIGH_WATERMARK_NAME, LOG_START_NAME
from broker_runtime.log.log_state import LogState
from broker_runtime.log.partition_files import RESTART_NAME
from broker_runtime.log.producer_state import SNAPSHOT_SUFFIX, ProducerState
from tests.simulation.partitions.broker.disk import SimFiles
from tests.simulation.partitions.log_view import DIRECTORY_NAME, DiskView, LogView, StoredFrame

_ENTRY = re.compile(r"^(\S+) (\d+) (\d+)$", re.MULTILINE)


# --- in memory ----------------------------------------------------------------------------------------------------


def is_locked(lock: Any) -> bool:
    """Whether somebody is in the middle of something under the lock."""
    return bool(lock.locked())


def disagreement_in_memory(state: LogState, frames: Sequence[StoredFrame], *, was_cut: bool = False) -> str | None:
    """What is wrong with the epochs or producers of a log whose files hold ``frames``; None: nothing. ``was_cut``: the
    last that happened to it, since it was loaded, is that its end was cut off."""
    kept = [frame for frame in frames if frame.next_offset > state.log_start_offset]
    return _of_epochs(state, kept, was_cut) or _of_producers(state, kept)


def _of_epochs(state: LogState, frames: Sequence[StoredFrame], was_cut: bool) -> str | None:
    entries = state.epochs.entries
    end = state.segments.end_offset
    for epoch, start in entries:
        # One may begin at the very end, where its first record was lost or never written; none does after a cut.
        if start > end or (was_cut and start == end):
            return f"leader epoch {epoch} begins at {start}, and the log {'was cut to' if was_cut else 'ends at'} {end}"
    for frame in frames:
        offset = max(frame.base_offset, state.log_start_offset)
        known = [epoch for epoch, start in entries if start <= offset]
        if not known or known[-1] != frame.header.leader_epoch:
            return f"offset {offset} is of leader epoch {frame.header.leader_epoch}, the epochs say {entries}"
    return None


def _of_producers(state: LogState, frames: Sequence[StoredFrame]) -> str | None:
    newest = {frame.header.producer_id: frame.header for frame in frames if frame.header.producer_id >= 0}
    for producer_id, header in newest.items():
        entry = state.producers.producers.get(producer_id)
        expected = header.base_sequence + header.record_count
        if entry is None or (entry.epoch, entry.next_sequence) != (header.producer_epoch, expected):
            return f"producer {producer_id} comes next with {expected} by its frames, what is known of it is {entry}"
    return None


# --- on disk ------------------------------------------------------------------------------------------------------


def disagreements_on_disk(files: SimFiles, disk: DiskView) -> Iterator[tuple[TopicPartition, str]]:
    """The logs, and what is wrong with what was saved of each since somebody looked."""
    replaced, files.replaced = sorted(files.replaced), set()
    for path in replaced:
        if path.suffix == SNAPSHOT_SUFFIX:
            match = DIRECTORY_NAME.match(path.parent.name)
            view = None if match is None else disk.logs.get(TopicPartition(match[1], int(match[2])))
            lack = None if view is None else _of_snapshot(files, path, view)
            if match is not None and lack is not None:
                yield TopicPartition(match[1], int(match[2])), lack
        elif path.name == HIGH_WATERMARK_NAME:
            yield from _of_high_watermarks(files, path.parent, disk)


def _of_snapshot(files: SimFiles, path: Path, view: LogView) -> str | None:
    offset = int(path.stem)
    if view.end < offset:  # it was cut since
        return None
    try:
        known = ProducerState.decode(files.seen(path)).producers
    except CorruptRecordError:  # the file was removed
        return None
    newest = {frame.header.producer_id: frame.header for frame in view.frames if frame.next_offset <= offset}
    for producer_id, header in sorted(newest.items()):
        expected = header.base_sequence + header.record_count
        entry = known.get(producer_id)
        if producer_id >= 0 and (entry is None or entry.next_sequence != expected):
            return f"producer {producer_id} comes next with {expected} at {offset}, the snapshot there has {entry}"
    return None


def _of_high_watermarks(files: SimFiles, directory: Path, disk: DiskView) -> Iterator[tuple[TopicPartition, str]]:
    starts = _entries(files, directory / LOG_START_NAME)
    for at, high_watermark in _entries(files, directory / HIGH_WATERMARK_NAME).items():
        view = disk.logs.get(at)
        if not files.is_directory(directory / str(at)):
            continue  # it was taken away while the others' were written, and the next ones do not name it
        if view is None or files.seen(directory / str(at) / RESTART_NAME):  # it starts again: its frames are gone
            continue
        durable_end = max(view.durable_end(files), starts.get(at, 0))
        if high_watermark > durable_end:
            yield at, f"saved a high watermark of {high_watermark}, only what is below {durable_end} is on the device"


def _entries(files: SimFiles, path: Path) -> dict[TopicPartition, int]:
    found = _ENTRY.findall(files.seen(path).decode())
    return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in found}
