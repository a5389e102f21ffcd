"""Frames found by a read, and how they are loaded: a segment as a reader found it, a slice of it, its verification.

Rules: a slice stays readable even if the log is truncated or the segment removed meanwhile: it holds its file, and
files are unlinked or replaced, never shortened, and never written where a slice points. A bad frame is never returned,
and neither is anything after it: every checksum is verified before a caller gets the bytes. The only exception are
frames that this process itself appended to the active segment: it verified them then, and mostly reads them from the
page cache.

A projected read leaves out the columns that nobody asked for: it reads header and directory first, then only the chunks
needed, and chunks close to each other in one read. A frame small enough to come with the read of its header costs no
read of its own; a very small one, or one without columns, is returned whole.

A search for frames in which a row can match a predicate reads heads only, and those of a segment once as long as they
are kept (`frame_heads`). It never passes over damage: what it cannot read is left to the reader.

A look-up by time begins where the time index says, finds the frame by its header, and decodes only its timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import (
    HEADER_BYTES,
    TIMESTAMP_COLUMN_ID,
    FrameHeader,
    decode_frame,
    parse_checked_header,
    parse_directory,
    plan_projection,
    verify_answer,
)
from broker_runtime.contract.predicate.frames import FrameTest, bounds_in_frame
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema, schema_from_bytes
from broker_runtime.contract.waiting import Deadline
from broker_runtime.log.files import FileSystem
from broker_runtime.log.frame_heads import Head, RunBuilder
from broker_runtime.log.identity import PartitionIdentity
from broker_runtime.log.log_state import LogState, note_damage
from broker_runtime.log.open_files import HeldFile
from broker_runtime.log.scan import WINDOW_BYTES, damaged, header_at
from broker_runtime.log.segment import Segment

_LARGE_FRAME_BYTES = 64 << 10
_HEAD_WINDOW_BYTES = 8 << 10  # header and directory of a frame with some dozen columns
_GAP_BYTES = 16 << 10  # cheaper to read than another call
_SMALL_FRAME_BYTES = 1 << 10  # cheaper to send whole than to plan what to leave out


class SegmentView:
    """One segment for one read. Created under the log's lock, used once, without it."""

    def __init__(self, state: LogState, segment: Segment) -> None:
        """Holds the segment's file. Raises `OSError`."""
        self._state = state
        self._segment = segment
        self._extent = segment.extent
        # Only the active segment has a tail that this process wrote itself: it needs no second verification, and is
        # almost always in the page cache.
        self._verified_from = segment.next_offset if segment.is_closed else state.verified_from
        self._held = segment.hold()

    def find(self, offset: int, *, max_bytes: int, upto: int, at_least_one: bool) -> LogSlice | None:
        """The slice, as `PartitionLog.read` returns it. Raises `CorruptRecordError` for index and frames, `OSError`."""
        with self._held:
            start = self._start(offset)
            position, header = start
            end = self._segment.end_within(self._held, self._extent, start, max_bytes, upto)
            if end is None:
                if not at_least_one or header.next_offset > upto:
                    return None
                end = (position + header.frame_bytes, header.next_offset)
            end_position, next_offset = end
            self._state.positions.remember(next_offset, self._segment.base_offset, end_position)
            return LogSlice(
                self._state.files,
                self._held.hold(),
                position=position,
                size_bytes=end_position - position,
                start_offset=header.base_offset,
                next_offset=next_offset,
                fail=self._state.fail,
                check=SliceCheck(self._state),
                is_verified=header.base_offset >= self._verified_from,
            )

    def next_match(
        self, offset: int, test: FrameTest, *, max_bytes: int, upto: int, stop: int, deadline: Deadline
    ) -> tuple[int, int]:
        """As `PartitionLog.next_match`, in this segment. Raises `CorruptRecordError` for the index, `OSError`."""
        known = self._state.heads.of(self._segment)
        heads, runs, builder = known.heads, known.runs, RunBuilder(known, test.keys)
        with self._held:
            position, header = self._start(offset)
            at, end = header.base_offset, min(upto, self._extent.next_offset)
            found = previous = None  # position and offset of the first frame; where the one before it begins
            try:
                while at < end and at < stop:
                    is_first = builder.begins_at(position, previous)
                    head = runs.get(position) if is_first and found is None else None
                    if head is None or head.next_offset > end or _may_match(test, head) is not False:
                        head = heads.get(position)
                        if head is None or (head.bounds is not None and not test.keys <= head.bounds.keys()):
                            head = self._head(position, at, test)
                            known.keep(heads, position, head)
                        if head.next_offset > end:
                            break
                        builder.add(position, head, is_first=is_first)
                        if head.bounds is None and found is not None:
                            pass  # a control frame, which costs less than another answer
                        elif not _may_match(test, head):
                            if found is not None:
                                break
                        elif found is None:
                            found = position, at
                        elif head.end_position - found[0] > max_bytes:
                            break
                    previous, position, at = position, head.end_position, head.next_offset
                    if found is None and deadline.expired:
                        break
            except CorruptRecordError:
                if found is None:  # whoever reads it finds out
                    found, at = (position, at), end
        self._state.heads.settle(self._segment)
        return (at, at) if found is None else (found[1], at)

    def _head(self, position: int, offset: int, test: FrameTest) -> Head:
        """The head of the frame at ``position``, with what ``test`` asks for."""
        data = memoryview(self._state.files.read(self._held.descriptor, _HEAD_WINDOW_BYTES, position))
        header = header_at(data, 0, self._segment.path, position, self._extent.size_bytes, offset)
        end_position = position + header.frame_bytes
        if header.is_control:
            return Head(end_position, header.next_offset, None)
        if len(data) < header.head_bytes:
            data = memoryview(self._state.files.read(self._held.descriptor, header.head_bytes, position))
        header = parse_checked_header(data)
        bounds = bounds_in_frame(test.keys, header, parse_directory(data, header), self._state.identity.partition)
        return Head(end_position, header.next_offset, bounds)

    def _start(self, offset: int) -> tuple[int, FrameHeader]:
        position = self._state.positions.find(offset, self._segment.base_offset)
        if position is None or position >= self._extent.size_bytes:
            return self._segment.locate(self._held, self._extent, offset)
        data = self._state.files.read(self._held.descriptor, HEADER_BYTES, position)
        return position, header_at(data, 0, self._segment.path, position, self._extent.size_bytes, offset)


def _may_match(test: FrameTest, head: Head) -> bool | None:
    """Whether a row can match; None: that was not asked of this head."""
    if head.bounds is None:
        return False
    return test.may_match(head.bounds) if test.keys <= head.bounds.keys() else None


class LogSlice:
    """Whole frames [start_offset, next_offset), ``size_bytes`` of one segment. Close it, or use ``with``.

    ``start_offset`` is the first frame's, and may be below the offset asked for. One thread at a time.
    """

    __slots__ = (
        "_check", "_fail", "_files", "_held", "_is_closed", "_is_verified", "_position", "next_offset", "size_bytes",
        "start_offset",
    )  # fmt: skip

    def __init__(
        self,
        files: FileSystem,
        held: HeldFile,
        *,
        position: int,
        size_bytes: int,
        start_offset: int,
        next_offset: int,
        fail: Callable[[str, OSError], NoReturn],
        check: SliceCheck,
        is_verified: bool,
    ) -> None:
        """Takes over one hold of ``held``. ``fail`` turns an `OSError` into the log's `LogStorageError`.
        ``is_verified``: this process verified the frames when it appended them."""
        self._files = files
        self._held = held
        self._position = position
        self._fail = fail
        self._check = check
        self._is_verified = is_verified
        self._is_closed = False
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        return f"LogSlice({self.start_offset}..{self.next_offset} bytes={self.size_bytes} of {self._held.path.name})"

    def load(self) -> pa.Buffer:
        """The frames, in memory of their own, up to the first damaged one; `next_offset` becomes that one's offset.

        Blocks on the disk. Raises `CorruptRecordError` if the first frame is damaged or the file ends early,
        `LogStorageError`.
        """
        return self._load(is_verified=self._is_verified)

    def load_projected(self, column_ids: Iterable[int]) -> pa.Buffer:
        """The frames pruned to the chunks of ``column_ids``, in memory of their own. Other chunks are not read.

        A very small frame, and one whose columns share one chunk, is returned whole; before a damaged frame all may
        be. Blocks on the disk. Raises as `load`.
        """
        assert not self._is_closed, "a closed slice may read another file's bytes"
        end = self._position + self.size_bytes
        try:
            answer = ProjectedRead(self._files, self._held, column_ids).load(self._position, end, self.start_offset)
        except OSError as error:
            self._fail(f"read {self._held.path}", error)
        except CorruptRecordError:
            return self._load(is_verified=False)  # the sound frames, not pruned
        return answer if self._is_verified else self._sound_part(answer)

    def load_head(self) -> memoryview:
        """The first frame's header as it is on the disk, not verified; `load` verifies it.

        Blocks on the disk. Raises `CorruptRecordError` where the file ends early, `LogStorageError`.
        """
        head = memoryview(bytearray(HEADER_BYTES))
        self._read_into([head], self._position)
        return head

    def close(self) -> None:
        """Gives the file back. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._held.release()

    def __enter__(self) -> LogSlice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, *, is_verified: bool) -> pa.Buffer:
        buffer = pa.allocate_buffer(self.size_bytes)
        self._read_into([memoryview(buffer).cast("B")], self._position)
        return buffer if is_verified else self._sound_part(buffer)

    def _sound_part(self, frames: pa.Buffer) -> pa.Buffer:
        frames, self.next_offset = self._check.sound_part(frames, self.start_offset, self.next_offset)
        return frames

    def _read_into(self, buffers: list[memoryview], position: int) -> None:
        assert not self._is_closed, "a closed slice may read another file's bytes"
        wanted = sum(buffer.nbytes for buffer in buffers)
        try:
            got = self._files.read_into(self._held.descriptor, buffers, position)
        except OSError as error:
            self._fail(f"read {self._held.path}", error)
        if got != wanted:
            damage = CorruptRecordError(
                f"{self._held.path} ends at position {position + got}, offsets "
                f"{self.start_offset} to {self.next_offset - 1} need it to {position + wanted}"
            )
            self._check.suspect(damage, self.start_offset)
            raise damage


class SliceCheck:
    """Verifies what was read from one log. Thread-safe."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def suspect(self, error: CorruptRecordError, offset: int) -> None:
        """A read of ``offset`` found ``error``: if the log is at fault, it counts as damaged."""
        note_damage(self._state, error, offset)

    def sound_part(self, frames: pa.Buffer, offset: int, next_offset: int) -> tuple[pa.Buffer, int]:
        """The good frames at the beginning of ``frames``, which are whole or pruned and have the offsets [offset,
        next_offset); and the offset after them.

        Damage is noted, which reads the segment once more. Raises `CorruptRecordError` if the first frame is bad.
        """
        topic_id, partition = self._state.identity.topic_id.bytes, self._state.identity.partition
        view = memoryview(frames).cast("B")
        good_bytes, good_end = 0, offset
        try:
            while good_bytes < len(view):
                header = verify_answer(view[good_bytes:], topic_id=topic_id, partition=partition)
                if header.base_offset != good_end:
                    raise CorruptRecordError(f"a frame begins with offset {header.base_offset} instead of {good_end}")
                good_bytes += header.stored_bytes
                good_end = header.next_offset
        except CorruptRecordError as error:
            damage = CorruptRecordError(f"{self._state.name} is damaged at offset {good_end}: {error.message}")
            self.suspect(damage, good_end)
            if not good_bytes:
                raise damage from None
            return frames.slice(0, good_bytes), good_end
        return frames, next_offset


class _FileRange(NamedTuple):
    position: int
    size_bytes: int


class ProjectedRead:
    """One projected read; used once, by one thread."""

    def __init__(self, files: FileSystem, held: HeldFile, column_ids: Iterable[int]) -> None:
        self._files = files
        self._held = held
        self._column_ids = frozenset(column_ids)
        self._window = memoryview(b"")
        self._window_position = 0
        # The answer in order: bytes at hand, or where in the file they are.
        self._pieces: list[bytes | bytearray | memoryview | _FileRange] = []

    def load(self, position: int, end_position: int, offset: int) -> pa.Buffer:
        """The pruned frames of [position, end_position), which begin with ``offset``, in memory of their own.

        Raises `CorruptRecordError`, `OSError`.
        """
        window_bytes = WINDOW_BYTES
        while position < end_position:
            self._need(position, HEADER_BYTES, window_bytes)
            at = position - self._window_position
            header = header_at(self._window, at, self._held.path, position, end_position, offset)
            if header.is_control or header.frame_bytes <= _SMALL_FRAME_BYTES:
                self._need(position, header.frame_bytes, window_bytes)
                frame = self._window[position - self._window_position :][: header.frame_bytes]
                if len(frame) < header.frame_bytes:
                    raise damaged(self._held.path, position, offset, "the file ends in the middle of it")
                self._pieces.append(frame)
            else:
                self._need(position, header.head_bytes, window_bytes)
                self._plan(position, header.head_bytes, offset)
            position += header.frame_bytes
            offset = header.next_offset
            window_bytes = _HEAD_WINDOW_BYTES if header.frame_bytes >= _LARGE_FRAME_BYTES else WINDOW_BYTES
            window_bytes = min(window_bytes, end_position - position)
        return self._fill()

    def _need(self, position: int, size_bytes: int, window_bytes: int) -> None:
        """Makes the window contain ``size_bytes`` from ``position`` on, if the file has them."""
        if position + size_bytes <= self._window_position + len(self._window):
            return
        data = self._files.read(self._held.descriptor, max(size_bytes, window_bytes), position)
        self._window, self._window_position = memoryview(data), position

    def _plan(self, position: int, head_bytes: int, offset: int) -> None:
        at = position - self._window_position
        try:
            projection = plan_projection(self._window[at : at + head_bytes], self._column_ids)
        except CorruptRecordError as error:
            raise damaged(self._held.path, position, offset, error.message) from None
        self._pieces.append(projection.prefix)
        for start, end in projection.ranges:
            if at + end <= len(self._window):
                self._pieces.append(self._window[at + start : at + end])
            else:
                self._pieces.append(_FileRange(position + start, end - start))

    def _fill(self) -> pa.Buffer:
        sizes = [piece.size_bytes if isinstance(piece, _FileRange) else len(piece) for piece in self._pieces]
        answer = pa.allocate_buffer(sum(sizes))
        view = memoryview(answer).cast("B")
        wanted: list[tuple[int, memoryview]] = []
        at = 0
        for piece, size in zip(self._pieces, sizes, strict=True):
            if isinstance(piece, _FileRange):
                wanted.append((piece.position, view[at : at + size]))
            else:
                view[at : at + size] = piece
            at += size
        self._read(wanted)
        return answer

    def _read(self, wanted: list[tuple[int, memoryview]]) -> None:
        """Fills memory from rising file positions; nearby ones in one call, with the gaps read into scratch memory."""
        scratch = memoryview(bytearray(_GAP_BYTES))
        number = 0
        while number < len(wanted):
            first = position = wanted[number][0]
            buffers: list[memoryview] = []
            while number < len(wanted) and wanted[number][0] - position <= _GAP_BYTES:
                start, target = wanted[number]
                buffers += [scratch[: start - position], target] if start > position else [target]
                position = start + target.nbytes
                number += 1
            got = self._files.read_into(self._held.descriptor, buffers, first)
            if got != position - first:
                raise CorruptRecordError(f"{self._held.path} ends at {first + got}, its frames need it to {position}")


class TimeLookup:
    """A look-up by time in one segment, under the log's lock."""

    def __init__(self, files: FileSystem, segment: Segment, identity: PartitionIdentity) -> None:
        self._files = files
        self._segment = segment
        self._identity = identity

    def first_at_or_after(self, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record ≥ ``start_offset`` with a timestamp ≥ ``timestamp_ms``, or None.

        Raises `CorruptRecordError` for indexes and frames alike, `OSError`.
        """
        segment, extent = self._segment, self._segment.extent
        if extent.size_bytes == 0:
            return None
        begin = min(max(segment.time_index.offset_before(timestamp_ms), start_offset), extent.next_offset - 1)
        with segment.hold() as held:
            position, first = segment.locate(held, extent, begin)
            for found, header in segment.walk(held, extent.size_bytes, position, first.base_offset):
                if header.is_control or header.next_offset <= start_offset:
                    continue
                if header.latest_timestamp_ms < timestamp_ms:
                    continue
                record = self._first_in_frame(held, found, header, timestamp_ms, start_offset)
                if record is not None:
                    return record
        return None

    def _first_in_frame(
        self, held: HeldFile, position: int, header: FrameHeader, timestamp_ms: int, start_offset: int
    ) -> tuple[int, int] | None:
        first = max(start_offset - header.base_offset, 0)
        if header.timestamp_type or header.base_timestamp_ms == header.max_timestamp_ms:
            return header.base_offset + first, header.latest_timestamp_ms
        decoded = decode_frame(
            self._files.read(held.descriptor, header.frame_bytes, position),
            schema_history(self._identity),
            columns=(TIMESTAMP_COLUMN_ID,),
            topic_id=self._identity.topic_id.bytes,
            partition=self._identity.partition,
        )
        timestamps = decoded.timestamps
        if timestamps is None:
            raise damaged(self._segment.path, position, header.base_offset, "its timestamps differ but are not there")
        hits = pc.indices_nonzero(pc.greater_equal(timestamps.slice(first), timestamp_ms))
        if len(hits) == 0:
            return None
        row = first + hits[0].as_py()
        return header.base_offset + row, timestamps[row].as_py()


def schema_history(identity: PartitionIdentity) -> SchemaHistory:
    """The topic's schemas that are in the partition's directory."""
    versions = [
        TopicSchema(schema_id=schema_id, arrow=schema_from_bytes(arrow), is_typed=True, key=None)
        for schema_id, arrow in identity.schemas
    ]
    return SchemaHistory(versions or [UNTYPED])
