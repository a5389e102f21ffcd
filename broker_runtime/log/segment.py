"""One segment: a file of frames back to back, and its indexes.

    <base offset, 20 digits>.log         frames (contract/frame)
    <base offset, 20 digits>.index       indexes.py
    <base offset, 20 digits>.timeindex   indexes.py
    <base offset, 20 digits>.txnindex    indexes.py

Rules: the base offset is that of the first record. Records are dense up to ``next_offset``, where the next segment
begins. Bytes at or beyond ``size_bytes`` mean nothing: a failed append may have left them.

`SegmentChain`: the segments of one log, in order. The next offset of one is the base offset of the next. There is at
least one, and only the last takes appends. Segments are removed oldest first or newest first, so a crash in between
leaves a chain without holes.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import Control, FrameHeader, parse_control, verify_frame
from broker_runtime.contract.settings import TopicSettings
from broker_runtime.log.files import copy_prefix
from broker_runtime.log.indexes import NO_TIMESTAMP, IndexBuilder, OffsetIndex, TimeIndex, TransactionIndex
from broker_runtime.log.open_files import HeldFile, OpenFiles
from broker_runtime.log.retention import SegmentAge
from broker_runtime.log.scan import LOG_SUFFIX, damaged, walk_headers

SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, ".index", ".timeindex", ".txnindex")
_MAX_RELATIVE_OFFSET: Final = (1 << 32) - 1
_LARGEST_FIRST_FRAME_BYTES: Final = 64 << 20  # the first entry of an index comes after the first frame

_logger = logging.getLogger(__name__)


class StampedFrame(NamedTuple):
    """A frame's bytes in pieces, its header, and what it says if it is a control frame."""

    pieces: Sequence[bytes | memoryview]
    header: FrameHeader
    control: Control | None = None


class Extent(NamedTuple):
    """How far a segment went when a reader held the log's lock: both change together, under that lock."""

    size_bytes: int
    next_offset: int


class Segment:
    """One segment. The log's lock guards appends and repairs; `locate` and `end_within` may run beside them."""

    __slots__ = (
        "_builder", "_directory", "_open_files", "_unsynced", "base_offset", "first_append_ms", "first_open",
        "has_bad_header", "has_sound_transactions", "index_interval_bytes", "is_closed", "is_loaded", "last_append_ms",
        "max_timestamp_ms", "next_offset", "offset_index", "path", "seen_append", "size_bytes", "time_index",
        "transaction_index",
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
        # The fields below are valid once `load` or `create` was called.
        self.is_loaded = False
        self.has_bad_header = False  # found while its indexes were rebuilt; never False again
        self.has_sound_transactions = False  # this process made the transaction index, or has compared it
        self.first_open: int | None = None  # of a closed segment, see `SegmentTransactions`; None: not known
        self.size_bytes = 0
        self.next_offset = base_offset
        self.max_timestamp_ms = NO_TIMESTAMP
        self.first_append_ms = -1
        self.last_append_ms = -1
        self.seen_append: tuple[int, int] | None = None  # a last append ahead of the clock, and when that was seen
        self._builder = IndexBuilder(base_offset, index_interval_bytes)  # has seen all frames
        # Held from an append to the fsync that covers it, so that the descriptor learns of failed write-backs.
        self._unsynced: HeldFile | None = None

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}..{self.next_offset} bytes={self.size_bytes} closed={self.is_closed})"

    def create(self) -> None:
        """Makes empty files; their names are durable when it returns. Raises `OSError`."""
        self._open_files.hold(self.path, create=True).release()
        for index in (self.offset_index.file, self.time_index.file):
            index.create()
        self._open_files.files.sync_directory(self._directory)
        self.is_loaded = self.has_sound_transactions = True

    @property
    def extent(self) -> Extent:
        """How far the segment goes. Read it under the log's lock."""
        return Extent(self.size_bytes, self.next_offset)

    def hold(self) -> HeldFile:
        """The open file, held for a reader. Raises `OSError`."""
        return self._open_files.hold(self.path)

    def load(self) -> None:
        """Finds the segment's end from the last index entries and the headers after them. Does so once.

        Indexes that fail their checks are rebuilt. Raises `CorruptRecordError` where the frames fail theirs, `OSError`.
        """
        if self.is_loaded:
            return
        with self.hold() as held:
            size = self._open_files.files.size(held.descriptor)
            try:
                self._load_from_indexes(held, size)
            except CorruptRecordError as error:
                event(_logger, "rebuild index", level=logging.WARNING, path=self.path, error=error)
                self.rebuild_indexes(size)
        self.is_loaded = True

    def rebuild_indexes(self, size_bytes: int) -> None:
        """Rebuilds the indexes from the headers in the first ``size_bytes``, and sets all that `load` sets.

        Raises `CorruptRecordError` where a header is bad, `OSError`.
        """
        builder = IndexBuilder(self.base_offset, self.index_interval_bytes)
        with self.hold() as held:
            for position, header in self.walk(held, size_bytes, 0, self.base_offset):
                builder.add(position, header, self.control(held, position, header))
        self.adopt(builder, size_bytes)

    def adopt(self, builder: IndexBuilder, size_bytes: int, *, is_durable: bool = True) -> None:
        """Replaces the indexes by what ``builder`` made of all frames, which are in the first ``size_bytes``.

        Without ``is_durable`` the caller must sync the directory, and a closed segment's indexes. Raises `OSError`.
        """
        if self.is_closed:
            builder.close()
        self.offset_index.file.replace(builder.offset_entries, is_durable=is_durable)
        self.time_index.file.replace(builder.time_entries, is_durable=is_durable)
        if builder.transaction_entries:
            self.transaction_index.file.replace(builder.transaction_entries, is_durable=is_durable)
        else:
            self.transaction_index.file.delete()
        builder.offset_entries.clear()
        builder.time_entries.clear()
        builder.transaction_entries.clear()
        self._take(builder, size_bytes)
        self.is_loaded = self.has_sound_transactions = True

    def append(self, frames: Sequence[StampedFrame]) -> None:
        """Writes stamped frames at the end.

        Raises `OSError`. Then the segment must not be appended to again; readers get the same as before.
        """
        if self._unsynced is None:
            self._unsynced = self.hold()
        pieces = [piece for frame in frames for piece in frame.pieces]
        self._open_files.files.write(self._unsynced.descriptor, pieces, self.size_bytes)
        position = self.size_bytes
        for _, header, control in frames:
            self._builder.add(position, header, control)
            position += header.frame_bytes
        if self._builder.offset_entries or self._builder.transaction_entries:
            self._write_entries()
        self._take(self._builder, position)

    def believed_append_ms(self, now_ms: int) -> int:
        """When the last append was; while that is ahead of the clock, when it was first seen to be ahead."""
        if self.last_append_ms <= now_ms:
            self.seen_append = None
            return self.last_append_ms
        if self.seen_append is None or self.seen_append[0] != self.last_append_ms:
            self.seen_append = (self.last_append_ms, now_ms)
        return self.seen_append[1]

    def close_for_appends(self) -> None:
        """Another segment takes the appends from now on. Raises `OSError`."""
        self._builder.close()
        self._write_entries()
        self.is_closed = True

    def take_unsynced(self) -> HeldFile | None:
        """The file to fsync, if it was written to since the last call. The caller releases it."""
        held, self._unsynced = self._unsynced, None
        return held

    def sync_unsynced(self) -> None:
        """Fsyncs the file if it was written to since the last fsync. Raises `OSError`."""
        unsynced = self.take_unsynced()
        if unsynced is not None:
            with unsynced:
                self._open_files.files.sync(unsynced.descriptor)

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
        """(position, header) of the frame with the record ``offset``, which is in this segment.

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
        """(position, offset) of the end of the last frame that ends within ``max_bytes`` of the start and at or before
        ``upto``.

        ``start``: the first frame. None if that frame does not fit either. Raises as `locate`.
        """
        size, end_offset = extent
        position, header = start
        limit = position + max_bytes
        if size <= limit and end_offset <= upto:
            return size, end_offset
        end = (position, header.base_offset)
        by_bytes = self.offset_index.floor_position(limit)
        by_offset = self.offset_index.floor(upto)
        # Frames begin at entries, so all frames before the nearer of the two entries are within both limits.
        nearest = min(by_bytes, by_offset)
        if nearest[1] > position:
            end = (nearest[1], nearest[0])
        for found, header in self.walk(held, size, end[0], end[1]):
            if found + header.frame_bytes > limit or header.next_offset > upto:
                break
            end = (found + header.frame_bytes, header.next_offset)
        return end if end[0] > position else None

    def walk(self, held: HeldFile, end_position: int, position: int, offset: int) -> Iterator[tuple[int, FrameHeader]]:
        """(position, header) of the frames from the one at ``position`` on, which begins with ``offset``; see
        `walk_headers`."""
        files = self._open_files.files
        return walk_headers(
            files, held.descriptor, self.path, position=position, end_position=end_position, offset=offset
        )

    def control(self, held: HeldFile, position: int, header: FrameHeader) -> Control | None:
        """What the frame at ``position`` says, if it is a control frame. Raises `CorruptRecordError`, `OSError`."""
        if not header.is_control:
            return None
        frame = self._open_files.files.read(held.descriptor, header.frame_bytes, position)
        try:
            verify_frame(frame)
            return parse_control(frame)
        except CorruptRecordError as error:
            raise damaged(self.path, position, header.base_offset, error.message) from None

    def delete(self) -> None:
        """Unlinks the files; readers keep those they hold. Raises `OSError`."""
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
        builder = IndexBuilder(
            self.base_offset,
            self.index_interval_bytes,
            next_offset=offset,
            last_indexed_position=position,
            last_timestamp_ms=self.time_index.last_timestamp(),
        )
        len(self.transaction_index.file)  # raises where that is not whole entries
        if position > size or (position == 0 and size > 2 * self.index_interval_bytes + _LARGEST_FIRST_FRAME_BYTES):
            raise CorruptRecordError(f"{self.offset_index.file.path} does not fit the {size} bytes of the segment")
        for _, header in self.walk(held, size, position, offset):
            builder.note(header)
        if size:
            _, first = next(self.walk(held, size, 0, self.base_offset))
            builder.first_append_ms = first.append_time_ms
        self._take(builder, size)

    def _write_entries(self) -> None:
        for index, entries in (
            (self.offset_index, self._builder.offset_entries),
            (self.time_index, self._builder.time_entries),
            (self.transaction_index, self._builder.transaction_entries),
        ):
            if entries:
                index.file.append(entries)
                entries.clear()

    def _take(self, builder: IndexBuilder, size_bytes: int) -> None:
        """The segment's frames are those that ``builder`` has seen, which have ``size_bytes``."""
        self._builder = builder
        self.size_bytes = size_bytes
        self.next_offset = builder.next_offset
        self.max_timestamp_ms = builder.max_timestamp_ms
        self.first_append_ms = builder.first_append_ms
        self.last_append_ms = builder.last_append_ms


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
        """The size of all frames. Raises `CorruptRecordError`, `OSError`."""
        return sum(segment.size_bytes for segment in self.all_loaded())

    def ages(self, now_ms: int) -> list[SegmentAge]:
        """What retention goes by at ``now_ms``. Raises `CorruptRecordError`, `OSError`."""
        return [
            SegmentAge(
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
                last_append_ms=segment.believed_append_ms(now_ms),
            )
            for segment in self.all_loaded()
        ]

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """The segments from the one with ``offset`` on, each loaded. Raises `CorruptRecordError`, `OSError`."""
        first = max(bisect_right(self._segments, offset, key=_base_offset) - 1, 0)
        return map(self._loaded, range(first, len(self._segments)))

    def find(self, offset: int) -> Segment:
        """The segment with ``offset``, or where it will be; loaded. Raises `CorruptRecordError`, `OSError`."""
        return self._loaded(max(bisect_right(self._segments, offset, key=_base_offset) - 1, 0))

    def append(
        self, frames: Sequence[StampedFrame], config: TopicSettings, *, now_ms: int, on_roll: Callable[[int], None]
    ) -> None:
        """Writes stamped frames, in one write per segment. Calls ``on_roll(offset)`` before each new segment.

        Raises `OSError`. Then some frames may be written, and nothing may be appended any more.
        """
        waiting: list[StampedFrame] = []
        waiting_bytes = 0
        for frame in frames:
            header = frame.header
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

    def roll(self, config: TopicSettings, on_roll: Callable[[int], None]) -> None:
        """Closes the active segment and begins another. Raises `OSError`."""
        closed = self.active
        offset = closed.next_offset
        on_roll(offset)
        closed.close_for_appends()
        # Before the next segment exists: from then on the recovery point may be beyond this one (it is already, if all
        # of it was flushed), and recovery does not rebuild the indexes of such a segment.
        closed.sync_indexes()
        segment = self._new(offset, config.index_interval_bytes)
        self._closed_unsynced.append(closed)
        self._segments.append(segment)

    def hold_unsynced(self) -> list[HeldFile]:
        """The files to fsync so that everything appended so far is durable. The caller releases them."""
        holds: list[HeldFile] = []
        for segment in [*self._closed_unsynced, self.active]:
            held = segment.take_unsynced()
            if held is not None:
                holds.append(held)
        self._closed_unsynced = []
        return holds

    def remove_oldest(self, count: int) -> None:
        """Unlinks the first ``count`` segments. Readers keep the files they hold. Raises `OSError`."""
        assert count < len(self._segments)
        for _ in range(count):
            segment = self._segments.pop(0)
            if segment in self._closed_unsynced:
                self._closed_unsynced.remove(segment)
            segment.delete()
        if count:
            self._open_files.files.sync_directory(self._directory)

    def truncate(self, offset: int, index_interval_bytes: int) -> None:
        """Removes the frame with ``offset`` and all after it. Durable when it returns. Raises `OSError`.

        The prefix of the segment that is kept becomes a new file. Segments whose base offset is at or above ``offset``
        are deleted.
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
            kept.sync_unsynced()  # only this file learns of a write-back that failed; its copy may lack those pages
            copy_prefix(self._open_files.files, held.descriptor, kept.path, position)
            self._open_files.forget(kept.path)
        shortened = Segment(
            self._open_files,
            self._directory,
            kept.base_offset,
            index_interval_bytes=index_interval_bytes,
            is_closed=False,
        )
        shortened.rebuild_indexes(position)
        self._segments[-1] = shortened
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
            self.active.append(frames)

    def _loaded(self, number: int) -> Segment:
        segment = self._segments[number]
        if not segment.is_loaded:
            segment.load()
            following = self._segments[number + 1 :]
            if following and segment.next_offset != following[0].base_offset:
                segment.is_loaded = False
                raise damaged(
                    segment.path,
                    segment.size_bytes,
                    segment.next_offset,
                    f"it ends there, the next segment begins with offset {following[0].base_offset}",
                )
        return segment


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
