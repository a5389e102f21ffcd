"""Producer state of a log that is opened or truncated: the newest good snapshot, then the frames behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.log.files import FileSystem, read_file
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.producer_state import ProducerState, snapshot_path
from broker_runtime.log.segment import Segment


def load_producers(files: FileSystem, directory: Path, segments: Sequence[Segment], end: int) -> ProducerState:
    """The state after all records before ``end``, where ``segments`` end. Other snapshots are removed: those behind it
    tell of records that are no more, those before the first segment miss what lay in between.

    Raises `CorruptRecordError` where a segment is damaged, `OSError`.
    """
    offsets = PartitionFiles.find(files, directory).snapshot_offsets
    first = segments[0].base_offset
    stale = [offset for offset in offsets if not first <= offset <= end]
    remove_snapshots(files, directory, stale)
    if stale:  # else a power failure might bring one back when the log has grown beyond it
        files.sync_directory(directory)
    offset, state = _newest_snapshot(files, directory, [offset for offset in offsets if offset not in stale])
    ends = [segment.base_offset for segment in segments[1:]] + [end]
    for segment, segment_end in zip(segments, ends, strict=True):
        if segment_end <= offset:
            continue
        segment.load()
        with segment.hold() as held:
            for _, header in segment.walk(held, segment.size_bytes, 0, segment.base_offset):
                if header.base_offset >= offset:
                    state.add(header)
    return state


def remove_snapshots(files: FileSystem, directory: Path, offsets: Iterable[int]) -> None:
    """Unlinks the snapshots at ``offsets``, where there are any. Raises `OSError`."""
    for offset in offsets:
        path = snapshot_path(directory, offset)
        if files.file_size(path) is not None:
            files.unlink(path)


def _newest_snapshot(files: FileSystem, directory: Path, offsets: Sequence[int]) -> tuple[int, ProducerState]:
    """The newest good one and its offset; (-1, no producers) where there is none."""
    for offset in reversed(offsets):
        data = read_file(files, snapshot_path(directory, offset))
        if data is None:
            continue
        try:
            return offset, ProducerState.decode(data)
        except CorruptRecordError:
            continue  # the frames say the same
    return -1, ProducerState()
