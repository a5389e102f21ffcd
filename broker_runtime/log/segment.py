"""One segment: a file of frames back to back, and its indexes.

    <base offset, 20 digits>.log         frames (contract/frame)
    <base offset, 20 digits>.index       indexes.py
    <base offset, 20 digits>.timeindex   indexes.py
    <base offset, 20 digits>.txnindex    indexes.py

Rule: the base offset is that of the first record; records are dense up to ``next_offset``, where the next segment
begins. Bytes at and behind ``size_bytes`` mean nothing: a failed append may have left them.

`SegmentChain`: the segments of one log, in order. The next offset of one is the base offset of the next; only the last
takes appends; there is always one. On the disk a change cut short by a crash leaves a chain without holes: removed are
the oldest first, or the newest first.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import FrameHeader
from broker_runtime.log.config import LogConfig
from broker_runtime.log.files import copy_prefix
from broker_runtime.log.indexes import NO_TIMESTAMP, IndexBuilder, OffsetIndex, TimeIndex, TransactionIndex
from broker_runtime.log.open_files import HeldFile, OpenFiles
from broker_runtime.log.retention import SegmentAge
from broker_runtime.log.scan import LOG_SUFFIX, damaged, walk_headers

_log = logging.getLogger(__name__)

SEGMENT_SUFFIXES = (LOG_SUFFIX, ".index", ".timeindex", ".txnindex")
_MAX_RELATIVE_OFFSET = (1 << 32) - 1

StampedFrame = tuple[Sequence[bytes | memoryview], FrameHeader]
"""A frame's bytes in pieces, and its header."""


class Extent(NamedTuple):
    """How far a segment went when a reader took the log's lock: both change together, under that lock."""

    size_bytes: int
    next_offset: int


class Segment:
    """One segment. The log's lock guards appends and repairs; `locate` and `end_within` may run beside them."""

    __slots__ = (
        "_directory", "_open_files", "_unsynced", "base_offset", "first_append_ms", "has_bad_header",
        "index_interval_bytes",
        "is_closed", "is_loaded", "last_append_ms", "last_indexed_position", "max_timestamp_ms",
        "next_offset", "offset_index", "path", "seen_append", "size_bytes", "time_index", "transaction_index",
    )  # fmt: skip

    def __init__(
        self, open_files: OpenFiles, directory: Path, base_offset: int, *, index_interval_bytes: int, is_closed: bool
    ) -> None:
        self._open_files = open_files
        self._directory = directory
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.path = directory / f"{base_offset:020d}{LOG_SUFFIX}"
        self.offset_index = OffsetIndex(open_files, directory, base_offset)
        self.time_index = TimeIndex(open_files, directory, base_offset)
        self.transaction_index = TransactionIndex(open_files, directory, base_offset)
        # Invariant: True for all segments of a log but the last.
        self.is_closed = is_closed
        # The fields below mean something once `load` was called (or `create`).
        self.is_loaded = False
        self.has_bad_header = False  # met when its indexes were to be built anew: it stays so
        self.size_bytes = 0
        self.next_offset = base_offset
        self.last_indexed_position = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        self.first_append_ms = -1
        self.last_append_ms = -1
        self.seen_append: tuple[int, int] | None = None  # a last append ahead of the clock, and when that was seen
        # Held from an append to the fsync that covers it, so that the descriptor learns of failed write-backs.
        self._unsynced: HeldFile | None = None

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}..{self.next_offset} bytes={self.size_bytes} closed={self.is_closed})"

    def create(self) -> None:
        """Makes the files, empty; their names are durable when it returns. Raises `OSError`."""
        self._open_files.hold(self.path, create=True).release()
        for index in (self.offset_index.file, self.time_index.file):
            index.create()
        self._open_files.files.sync_directory(self._directory)
        self.is_loaded = True

    @property
    def extent(self) -> Extent:
        """How far the segment goes. Take it under the log's lock."""
        return Extent(self.size_bytes, self.next_offset)

    def hold(self) -> HeldFile:
        """The open file, held for a reader. Raises `OSError`."""
        return self._open_files.hold(self.path)

    def load(self) -> None:
        """Finds the segment's end: reads the last index entries and the headers behind them. Once.

        Indexes that fail their checks are built anew. Raises `CorruptRecordError` where the frames do, `OSError`.
        """
        if self.is_loaded:
            return
        with self.hold() as held:
            size = self._open_files.files.size(held.descriptor)
            try:
                self._load_from_indexes(held, size)
            except CorruptRecordError as error:
                _log.warning("rebuild index segment=%s reason=%s", self.path, error.message)
                self.rebuild_indexes(size)
        self.is_loaded = True

    def rebuild_indexes(self, size_bytes: int) -> None:
        """Makes the indexes anew from the headers of the first ``size_bytes``, and with them all that `load` finds.

        Raises `CorruptRecordError` where a header is bad, `OSError`.
        """
        builder = IndexBuilder(self.base_offset, self.index_interval_bytes)
        with self.hold() as held:
            for position, header in self.walk(held, size_bytes, 0, self.base_offset):
                builder.add(position, header)
        self.adopt(builder, size_bytes)

    def adopt(self, builder: IndexBuilder, size_bytes: int, *, is_durable: bool = True) -> None:
        """Makes what ``builder`` gathered over the first ``size_bytes`` the segment's indexes and figures.

        Without ``is_durable`` it is the caller's to sync the directory, and of a closed segment the indexes. Raises
        `OSError`.
        """
        if self.is_closed:
            builder.close()
        self.offset_index.file.replace(builder.offset_entries, is_durable=is_durable)
        self.time_index.replace(builder.time_entries, is_durable=is_durable)
        self.transaction_index.file.delete()
        self.size_bytes = size_bytes
        self.next_offset = builder.next_offset
        self.last_indexed_position = builder.last_indexed_position
        self.max_timestamp_ms = builder.max_timestamp_ms
        self.first_append_ms = builder.first_append_ms
        self.last_append_ms = builder.last_append_ms
        self.is_loaded = True

    def append(self, pieces: Sequence[bytes | memoryview], headers: Sequence[FrameHeader]) -> None:
        """Writes stamped frames at the end: ``pieces`` are their bytes, ``headers`` theirs, as stamped.

        Raises `OSError`: then the segment must not be appended to again; what it answers readers is unchanged.
        """
        if self._unsynced is None:
            self._unsynced = self.hold()
        self._open_files.files.write(self._unsynced.descriptor, pieces, self.size_bytes)
        position = self.size_bytes
        for header in headers:
            if position - self.last_indexed_position >= self.index_interval_bytes:
                self.offset_index.append(header.base_offset, position)
                self.time_index.maybe_append(self.max_timestamp_ms, header.base_offset)
                self.last_indexed_position = position
            self.max_timestamp_ms = max(self.max_timestamp_ms, header.latest_timestamp_ms)
            position += header.frame_bytes
        if self.first_append_ms < 0:
            self.first_append_ms = headers[0].append_time_ms
        self.last_append_ms = headers[-1].append_time_ms
        self.next_offset = headers[-1].next_offset
        self.size_bytes = position

    def believed_append_ms(self, now_ms: int) -> int:
        """The time of the last append; while that is ahead of the clock, when it was first seen to be so."""
        if self.last_append_ms <= now_ms:
            self.seen_append = None
            return self.last_append_ms
        if self.seen_append is None or self.seen_append[0] != self.last_append_ms:
            self.seen_append = (self.last_append_ms, now_ms)
        return self.seen_append[1]

    def close_for_appends(self) -> None:
        """Another segment takes the appends from now on. Raises `OSError`."""
        self.time_index.maybe_append(self.max_timestamp_ms, self.next_offset)
        self.is_closed = True

    def take_unsynced(self) -> HeldFile | None:
        """The file to fsync, if it was written since the last call; the caller releases it."""
        held, self._unsynced = self._unsynced, None
        return held

    def hold_indexes(self) -> list[HeldFile]:
        """The index files, to be fsynced and released. Raises `OSError`."""
        files = [self.offset_index.file, self.time_index.file]
        if len(self.transaction_index.file):
            files.append(self.transaction_index.file)
        return [self._open_files.hold(index.path, create=True) for index in files]

    def sync_indexes(self) -> None:
        """Fsyncs the indexes. Raises `OSError`."""
        for held in self.hold_indexes():
            with held:
                self._open_files.files.sync(held.descriptor)

    def locate(self, held: HeldFile, extent: Extent, offset: int) -> tuple[int, FrameHeader]:
        """(position, header) of the frame that has the record ``offset``, which is in this segment.

        Raises `CorruptRecordError` for bad indexes and bad headers alike, `OSError`.
        """
        start_offset, position = self.offset_index.floor(offset)
        for found, header in self.walk(held, extent.size_bytes, position, start_offset):
            if header.next_offset > offset:
                return found, header
        raise damaged(self.path, extent.size_bytes, offset, f"it ends before that offset, at {extent.next_offset}")

    def end_within(
        self, held: HeldFile, extent: Extent, start: tuple[int, FrameHeader], max_bytes: int, upto: int
    ) -> tuple[int, int] | None:
        """(position, offset) where the last whole frame ends within ``max_bytes`` that ends at most at ``upto``.

        ``start``: the first frame. None where not even that one fits. Raises as `locate`.
        """
        size, end_offset = extent
        position, header = start
        limit = position + max_bytes
        if size <= limit and end_offset <= upto:
            return size, end_offset
        end = (position, header.base_offset)
        by_bytes = self.offset_index.floor_position(limit)
        by_offset = self.offset_index.floor(upto)
        # Entries are where frames begin, so all frames before the nearer of the two are within both limits.
        nearest = min(by_bytes, by_offset)
        if nearest[1] > position:
            end = (nearest[1], nearest[0])
        for found, header in self.walk(held, size, end[0], end[1]):
            if found + header.frame_bytes > limit or header.next_offset > upto:
                break
            end = (found + header.frame_bytes, header.next_offset)
        return end if end[0] > position else None

    def walk(self, held: HeldFile, end_position: int, position: int, offset: int) -> Iterator[tuple[int, FrameHeader]]:
        """(position, header) of the frames from that at ``position``, which begins ``offset``; see `walk_headers`."""
        files = self._open_files.files
        return walk_headers(
            files, held.descriptor, self.path, position=position, end_position=end_position, offset=offset
        )

    def delete(self) -> None:
        """Unlinks the files; readers keep what they hold. Raises `OSError`."""
        self.release()
        self._open_files.files.unlink(self.path)
        self._open_files.forget(self.path)
        for index in (self.offset_index.file, self.time_index.file, self.transaction_index.file):
            index.delete()

    def release(self) -> None:
        """Gives up the hold for the next fsync: there will be none."""
        held = self.take_unsynced()
        if held is not None:
            held.release()

    def _load_from_indexes(self, held: HeldFile, size: int) -> None:
        offset, position = self.offset_index.last()
        max_timestamp = self.time_index.last_timestamp()
        len(self.transaction_index.file)
        if position > size or (position == 0 and size - position > 2 * self.index_interval_bytes + _LARGEST_GAP_BYTES):
            raise CorruptRecordError(f"{self.offset_index.file.path} does not fit the {size} bytes of the segment")
        next_offset, last_append = offset, -1
        for _, header in self.walk(held, size, position, offset):
            max_timestamp = max(max_timestamp, header.latest_timestamp_ms)
            next_offset, last_append = header.next_offset, header.append_time_ms
        if size:
            _, first = next(self.walk(held, size, 0, self.base_offset))
            self.first_append_ms = first.append_time_ms
        self.size_bytes, self.next_offset, self.last_append_ms = size, next_offset, last_append
        self.last_indexed_position, self.max_timestamp_ms = position, max_timestamp


_LARGEST_GAP_BYTES = 64 << 20  # of a first frame, behind which the first entry stands


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
