"""The segments of one log, in order.

Rule: the next offset of one is the base offset of the next; only the last takes appends; there is always one. On the
disk a change cut short by a crash leaves a chain without holes: removed are the oldest first, or the newest first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from broker_runtime.contract.frame import FrameHeader
from broker_runtime.log.config import LogConfig
from broker_runtime.log.files import copy_prefix
from broker_runtime.log.frame_walk import damaged
from broker_runtime.log.open_files import HeldFile, OpenFiles
from broker_runtime.log.retention import SegmentAge
from broker_runtime.log.segment import Segment

_MAX_RELATIVE_OFFSET = (1 << 32) - 1

StampedFrame = tuple[Sequence[bytes | memoryview], FrameHeader]
"""A frame's bytes in pieces, and its header."""


class SegmentChain:
    """Not thread-safe: the log's lock guards it."""

    def __init__(self, open_files: OpenFiles, directory: Path, segments: list[Segment]) -> None:
        assert segments
        assert all(segment.is_closed == (segment is not segments[-1]) for segment in segments)
        self._open_files = open_files
        self._directory = directory
        self._segments = segments
        self._closed_unsynced: list[Segment] = []  # closed since the last fsync, oldest first

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._segments

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def active(self) -> Segment:
        """The segment that takes appends."""
        return self._segments[-1]

    @property
    def end_offset(self) -> int:
        """The offset the next record gets."""
        return self._segments[-1].next_offset

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """Of all segments, rising."""
        return tuple(segment.base_offset for segment in self._segments)

    def all_loaded(self) -> list[Segment]:
        """All segments, oldest first, each loaded. Raises `CorruptRecordError`, `OSError`."""
        return [self._loaded(number) for number in range(len(self._segments))]

    def size_bytes(self) -> int:
        """Bytes of frames. Raises `CorruptRecordError`, `OSError`."""
        return sum(segment.size_bytes for segment in self.all_loaded())

    def ages(self, now_ms: int) -> list[SegmentAge]:
        """What retention asks at ``now_ms``. Raises `CorruptRecordError`, `OSError`."""
        return [
            SegmentAge(
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
                last_append_ms=segment.believed_append_ms(now_ms),
            )
            for segment in self.all_loaded()
        ]

    def find(self, offset: int) -> Segment:
        """The segment that has, or will have, ``offset``, loaded. Raises `CorruptRecordError`, `OSError`."""
        return self._loaded(max(bisect_right(self._segments, offset, key=_base_offset) - 1, 0))

    def append(
        self, frames: Sequence[StampedFrame], config: LogConfig, *, now_ms: int, on_roll: Callable[[int], None]
    ) -> None:
        """Writes stamped frames, one write per segment they go to. ``on_roll(offset)`` before each new segment.

        Raises `OSError`: then some may be written, and nothing may be appended any more.
        """
        waiting: list[StampedFrame] = []
        waiting_bytes = 0
        for frame in frames:
            _, header = frame
            active = self.active
            size = active.size_bytes + waiting_bytes
            is_full = size + header.frame_bytes > config.segment_bytes
            is_far = header.next_offset - active.base_offset > _MAX_RELATIVE_OFFSET
            is_old = not waiting and active.size_bytes and now_ms - active.first_append_ms >= config.segment_ms
            if size and (is_full or is_far or is_old):
                self._write(waiting)
                waiting, waiting_bytes = [], 0
                self.roll(config, on_roll)
            waiting.append(frame)
            waiting_bytes += header.frame_bytes
        self._write(waiting)

    def roll(self, config: LogConfig, on_roll: Callable[[int], None]) -> None:
        """Closes the active segment and begins another. Raises `OSError`."""
        closed = self.active
        offset = closed.next_offset
        on_roll(offset)
        closed.close_for_appends()
        # Before the next segment is there: from then on the recovery point may lie behind this one (it does already,
        # where all of it was flushed), and recovery builds no index of such a segment anew.
        closed.sync_indexes()
        segment = self._new(offset, config.index_interval_bytes)
        self._closed_unsynced.append(closed)
        self._segments.append(segment)

    def hold_unsynced(self) -> list[HeldFile]:
        """The files to fsync so that all appended so far is durable; the caller releases them."""
        holds: list[HeldFile] = []
        for segment in [*self._closed_unsynced, self.active]:
            held = segment.take_unsynced()
            if held is not None:
                holds.append(held)
        self._closed_unsynced = []
        return holds

    def remove_oldest(self, count: int) -> None:
        """Unlinks the first ``count`` segments. Readers keep what they hold. Raises `OSError`."""
        assert count < len(self._segments)
        for _ in range(count):
            segment = self._segments.pop(0)
            if segment in self._closed_unsynced:
                self._closed_unsynced.remove(segment)
            segment.delete()
        if count:
            self._open_files.files.sync_directory(self._directory)

    def truncate(self, offset: int, index_interval_bytes: int) -> None:
        """Removes the frame that has ``offset`` and all behind it. Durable when it returns. Raises `OSError`.

        The kept prefix of the segment becomes a new file. Segments whose base offset is ``offset`` or above go.
        """
        while len(self._segments) > 1 and self.active.base_offset >= offset:
            self._drop_active()
        kept = self._loaded(len(self._segments) - 1)
        if kept.next_offset <= offset and not kept.is_closed:
            return
        with kept.hold() as held:
            if kept.next_offset <= offset:
                position = kept.size_bytes
            elif offset <= kept.base_offset:
                position = 0
            else:
                position, _ = kept.locate(held, kept.extent, offset)
            kept.release()
            copy_prefix(self._open_files.files, held.descriptor, kept.path, position)
            self._open_files.forget(kept.path)
        anew = Segment(
            self._open_files,
            self._directory,
            kept.base_offset,
            index_interval_bytes=index_interval_bytes,
            is_closed=False,
        )
        anew.rebuild_indexes(position)
        self._segments[-1] = anew
        self._closed_unsynced = [segment for segment in self._closed_unsynced if segment in self._segments]

    def release(self) -> None:
        """Gives up the holds for the next fsync: there will be none."""
        for segment in self._segments:
            segment.release()

    def _drop_active(self) -> None:
        self._segments.pop().delete()
        self._open_files.files.sync_directory(self._directory)

    def _new(self, offset: int, index_interval_bytes: int) -> Segment:
        segment = Segment(
            self._open_files, self._directory, offset, index_interval_bytes=index_interval_bytes, is_closed=False
        )
        segment.create()
        return segment

    def _write(self, frames: Sequence[StampedFrame]) -> None:
        if frames:
            pieces = [piece for frame_pieces, _ in frames for piece in frame_pieces]
            self.active.append(pieces, [header for _, header in frames])

    def _loaded(self, number: int) -> Segment:
        segment = self._segments[number]
        if not segment.is_loaded:
            segment.load()
            behind = self._segments[number + 1 :]
            if behind and segment.next_offset != behind[0].base_offset:
                segment.is_loaded = False
                raise damaged(
                    segment.path,
                    segment.size_bytes,
                    segment.next_offset,
                    f"it ends there, the next segment begins with offset {behind[0].base_offset}",
                )
        return segment


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
