"""A partition's log as it lies on a broker's disk, seen from outside: nothing is opened, loaded or changed.

Rule: a log ends for the observer at the first byte that is no whole, undamaged frame of this partition that continues
it; of deleted records it need not have any. What was seen before is looked at again only where it was written over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.frame import Control, FrameHeader, parse_control, parse_header, verify_frame
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.directory import LOG_START_NAME
from broker_runtime.log.partition_files import RESTART_NAME
from tests.simulation.partitions.broker.disk import LOG_SUFFIX, SimFiles
from tests.simulation.partitions.history import body_of

DIRECTORY_NAME = re.compile(r"([a-zA-Z0-9_-]+)-(\d+)\Z")


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A frame in a log. ``content``: a checksum over all of its bytes, ``body``: over the producer's alone.
    ``control``: what a control frame says."""

    header: FrameHeader
    topic_id: bytes
    content: int
    body: int
    segment: Path
    end_position: int
    control: Control | None = None

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def next_offset(self) -> int:
        return self.header.next_offset


@dataclass(slots=True)
class LogView:
    """One replica's log. ``frames`` by offset; ``changes`` rises whenever something but an append happened to it.
    ``is_whole``: they are all that lies there, up to the last byte."""

    frames: list[StoredFrame] = field(default_factory=list)
    changes: int = 0
    is_whole: bool = True

    @property
    def end(self) -> int:
        """The offset behind the last frame; 0 without one."""
        return self.frames[-1].next_offset if self.frames else 0

    def is_appended(self, positions: dict[Path, int]) -> bool:
        """Whether writes from these positions on leave what was seen as it was."""
        if not self.frames or not self.is_whole:
            return False
        last = self.frames[-1]
        known = {frame.segment for frame in self.frames}
        return all(
            position >= last.end_position if path == last.segment else path not in known
            for path, position in positions.items()
        )

    def durable_end(self, files: SimFiles) -> int:
        """The offset up to which a power failure leaves the log in any case; 0 where it takes everything."""
        durable: dict[Path, int] = {}
        end = 0
        for frame in self.frames:
            if frame.segment not in durable:
                durable[frame.segment] = files.durable_bytes(frame.segment)
            if frame.end_position > durable[frame.segment]:
                break
            end = frame.next_offset
        return end


class DiskView:
    """All logs on one broker's disk, by topic id and number (the id from the frames' stamps: see ``topic_ids``)."""

    def __init__(self, files: SimFiles, topic_ids: dict[str, list[bytes]]) -> None:
        self._files = files
        self._topic_ids = topic_ids
        self.logs: dict[TopicPartition, LogView] = {}

    def refresh(self) -> list[TopicPartition]:
        """Looks at what was written since the last time; the partitions that changed."""
        written, self._files.written_from = self._files.written_from, {}
        changed: dict[TopicPartition, dict[Path, int]] = {}
        for path, position in written.items():
            match = DIRECTORY_NAME.match(path.parent.name)
            if match:
                changed.setdefault(TopicPartition(match[1], int(match[2])), {})[path] = position
        for at, positions in changed.items():
            self._look(at, positions)
        return sorted(changed)

    def refresh_all(self) -> None:
        """Every log is looked at again by the next `refresh`: what is on the device may have changed."""
        for path in self._files.paths():
            if path.suffix == LOG_SUFFIX:
                self._files.written_from[path] = 0

    def _look(self, at: TopicPartition, positions: dict[Path, int]) -> None:
        view = self.logs.setdefault(at, LogView())
        before = view.frames
        is_appended = view.is_appended(positions)
        frames = list(before) if is_appended else []
        view.is_whole = True
        for path in sorted(positions) if is_appended else self._segments(next(iter(positions)).parent):
            start = frames[-1].end_position if frames and frames[-1].segment == path else 0
            if not self._walk(at, path, start, frames):
                view.is_whole = False
                break
        if frames and frames[0].base_offset != int(frames[0].segment.stem):
            view.is_whole = False
        if before != frames[: len(before)]:
            view.changes += 1
        view.frames = frames

    def _segments(self, directory: Path) -> list[Path]:
        paths = self._files.paths()
        return [
            path for path in paths if path.parent == directory and path.suffix == LOG_SUFFIX and path.stem.isdecimal()
        ]

    def _walk(self, at: TopicPartition, path: Path, position: int, frames: list[StoredFrame]) -> bool:
        data = memoryview(self._files.seen(path))
        if frames and position == 0 and int(path.stem) > frames[-1].next_offset and self._begins_at(at, path):
            frames.clear()
        elif frames and position == 0 and int(path.stem) != frames[-1].next_offset:
            return False
        while position < len(data):
            frame = self._frame(at, path, data, position)
            behind = self._behind_deleted(at, path, data, position) if frame is None else 0
            if behind:
                frames.clear()
                position = behind
                continue
            if frame is None or (frames and frame.base_offset != frames[-1].next_offset):
                return False
            frames.append(frame)
            position = frame.end_position
        return True

    def _behind_deleted(self, at: TopicPartition, path: Path, data: memoryview, position: int) -> int:
        """The position behind a frame that is bad, of which all records were deleted: nobody misses it. Else 0."""
        try:
            header = parse_header(data, position)
        except PylogError:
            return 0
        return position + header.frame_bytes if header.next_offset <= self._saved_start(at, path) else 0

    def _begins_at(self, at: TopicPartition, path: Path) -> bool:
        """Whether what is below that segment was deleted, or is about to be: a crash then may leave any of it, with
        gaps. (One that takes the end of the segment before leaves a gap, too.)"""
        is_anew = bool(self._files.seen(path.parent / RESTART_NAME))
        return is_anew or self._saved_start(at, path) >= int(path.stem)

    def _saved_start(self, at: TopicPartition, path: Path) -> int:
        """The log's start as its directory has it; -1: it has none."""
        entry = re.compile(rf"^{re.escape(at.topic)} {at.partition} (\d+)$", re.MULTILINE)
        saved = entry.search(self._files.seen(path.parent.parent / LOG_START_NAME).decode())
        return int(saved[1]) if saved is not None else -1

    def _frame(self, at: TopicPartition, path: Path, data: memoryview, position: int) -> StoredFrame | None:
        try:
            size = parse_header(data, position).frame_bytes
        except PylogError:
            return None
        piece = data[position : position + size]
        for topic_id in reversed(self._topic_ids.get(at.topic, [])):
            try:
                header = verify_frame(piece, topic_id=topic_id, partition=at.partition)
            except PylogError:
                continue
            control = parse_control(piece) if header.is_control else None
            return StoredFrame(header, topic_id, crc32c(piece), body_of(piece), path, position + size, control)
        return None
