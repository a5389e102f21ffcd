"""Whether what a broker saves beside its logs agrees with them: snapshots of producers, and high watermarks.

Both count at the next start alone, and most starts do not need them: so they are looked at when they are saved.
Rule: looks at the disk as it is, and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.directory import HIGH_WATERMARK_NAME, LOG_START_NAME
from broker_runtime.log.partition_files import RESTART_NAME
from broker_runtime.log.producer_state import SNAPSHOT_SUFFIX, ProducerState
from tests.simulation.partitions.broker.disk import SimFiles
from tests.simulation.partitions.log_view import DIRECTORY_NAME, DiskView, LogView

_ENTRY = re.compile(r"^(\S+) (\d+) (\d+)$", re.MULTILINE)


def disagreements(files: SimFiles, disk: DiskView) -> Iterator[tuple[TopicPartition, str]]:
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
        if view is None or files.seen(directory / str(at) / RESTART_NAME):  # it begins anew: its frames are gone
            continue
        durable_end = max(view.durable_end(files), starts.get(at, 0))
        if high_watermark > durable_end:
            yield at, f"saved a high watermark of {high_watermark}, only what is below {durable_end} is on the device"


def _entries(files: SimFiles, path: Path) -> dict[TopicPartition, int]:
    found = _ENTRY.findall(files.seen(path).decode())
    return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in found}
