"""Whether what a broker derives from its logs agrees with them.

In memory: leader epochs, idempotent producers, open transactions; indexes of aborted ones. Saved beside the logs:
snapshots of producers, and high watermarks.
What is saved counts at the next start alone, and most starts do not need it: so it is looked at when it is saved.
Rule: looks at a log that nobody is at work on, and at the disk as it is, and changes nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import TransactionBegin, TransactionEnd
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.directory import HIGH_WATERMARK_NAME, LOG_START_NAME
from broker_runtime.log.log_state import LogState
from broker_runtime.log.partition_files import RESTART_NAME
from broker_runtime.log.producer_state import SNAPSHOT_SUFFIX, ProducerState
from tests.simulation.partitions.broker.disk import SimFiles
from tests.simulation.partitions.log_view import DIRECTORY_NAME, DiskView, LogView, StoredFrame

_ABORTED = struct.Struct("<qqqqI")  # see `TransactionIndex`
_ENTRY = re.compile(r"^(\S+) (\d+) (\d+)$", re.MULTILINE)


# --- in memory ----------------------------------------------------------------------------------------------------


def is_locked(lock: Any) -> bool:
    """Whether somebody is in the middle of something under the lock."""
    return bool(lock.locked())


def disagreement_in_memory(
    state: LogState, frames: Sequence[StoredFrame], files: SimFiles, *, was_cut: bool = False
) -> str | None:
    """What is wrong with what was made of a log whose files hold ``frames``; None: nothing. ``was_cut``: the last that
    happened to it, since it was loaded, is that its end was cut off."""
    kept = [frame for frame in frames if frame.next_offset > state.log_start_offset]
    return _of_epochs(state, kept, was_cut) or _of_producers(state, kept) or _of_aborted(state, frames, files)


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
    next_sequences, opened = _producers_after(frames)
    for producer_id, (epoch, expected) in next_sequences.items():
        entry = state.producers.producers.get(producer_id)
        if entry is None or (entry.epoch, entry.next_sequence) != (epoch, expected):
            return f"producer {producer_id} comes next with {expected} by its frames, what is known of it is {entry}"
    known = {each.producer_id: each.first_offset for each in state.producers.transactions.open.values()}
    # Of one whose beginning was deleted the frames do not tell all.
    start = frames[0].base_offset if frames else state.segments.end_offset
    if opened != {producer_id: first for producer_id, first in known.items() if first >= start}:
        return f"transactions {opened} are open by the frames, {known} by what is known of them"
    return None


def _producers_after(frames: Sequence[StoredFrame]) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """Of each producer its epoch and next sequence, and of each open transaction its first offset."""
    next_sequences: dict[int, tuple[int, int]] = {}
    opened: dict[int, int] = {}
    for frame in frames:
        header, control = frame.header, frame.control
        if isinstance(control, TransactionBegin):
            opened[header.producer_id] = header.base_offset
            next_sequences[header.producer_id] = (header.producer_epoch, 0)
        elif isinstance(control, TransactionEnd):
            for each in control.ended:
                opened.pop(each.producer_id, None)
                next_sequences.pop(each.producer_id, None)
        elif header.producer_id >= 0:
            expected = header.base_sequence + header.record_count
            next_sequences[header.producer_id] = (header.producer_epoch, expected)
    return next_sequences, opened


def _of_aborted(state: LogState, frames: Sequence[StoredFrame], files: SimFiles) -> str | None:
    """The index of aborted transactions of each segment whose frames are all there."""
    expected: dict[str, list[tuple[int, int, int]]] = {}
    for frame in frames:
        entries = expected.setdefault(frame.segment.stem, [])
        if isinstance(frame.control, TransactionEnd):
            entries += [(each.producer_id, each.first_offset, frame.base_offset) for each in frame.control.aborted]
    for segment in state.segments._segments:
        wanted = expected.get(segment.path.stem)
        if wanted is None or not (segment.is_loaded and segment.has_sound_transactions):
            continue
        data = files.seen(segment.transaction_index.file.path)
        found = [entry[:3] for entry in _ABORTED.iter_unpack(data[: len(data) // _ABORTED.size * _ABORTED.size])]
        if found != wanted or len(data) % _ABORTED.size:
            return f"aborted in segment {segment.base_offset} are {wanted}, its transaction index has {found}"
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
    next_sequences, _ = _producers_after([frame for frame in view.frames if frame.next_offset <= offset])
    for producer_id, (_, expected) in sorted(next_sequences.items()):
        entry = known.get(producer_id)
        if entry is None or entry.next_sequence != expected:
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
