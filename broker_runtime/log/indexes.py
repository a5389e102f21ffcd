"""The indexes of a segment: files of entries of one size, each with its own checksum.

    bytes          content
    0 … n-5        the entry's fields, little endian, n the entry's size
    n-4 … n-1      CRC-32C (u32) of those fields, seeded with the segment's base offset (8 bytes, little endian)

    .index      `OffsetIndex`        where some frames begin
    .timeindex  `TimeIndex`          how far the timestamps had risen there
    .txnindex   `TransactionIndex`   the aborted transactions that ended in the segment

Rules: an entry is believed only after its checksum. Nothing is kept in memory and nothing is read at start: look-ups
read single entries through the cache of open files. `IndexBuilder` alone decides which entries there are, on append, on
rebuild and in recovery. It needs nothing but the frames' headers and what control frames say, so indexes can be thrown
away at any time: a rebuilt one equals the one written live, byte by byte. They are fsynced when their segment is
closed, and not before.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import crc32c

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import Control, FrameHeader, TransactionEnd
from broker_runtime.log.files import read_file, replace_file
from broker_runtime.log.open_files import OpenFiles

_CHECKSUM = struct.Struct("<I")

NO_TIMESTAMP = -(1 << 63)
"""Below every timestamp: the maximum over no records."""
_OFFSET, _POSITION, _TIMESTAMP, _END_OFFSET = 0, 1, 0, 2  # fields by number
_ENTRIES_AT_ONCE = 128
_POSITIONS_REMEMBERED: Final = 64


class AbortedTransaction(NamedTuple):
    """The frames of ``producer_id`` in [first_offset, end_offset) are aborted."""

    producer_id: int
    first_offset: int
    end_offset: int


class IndexFile:
    """Fixed-size checked entries. Not thread-safe against writers: the log's lock guards those.

    Readers see the entries below the count that they read. ``is_optional``: while there is no entry, the file may be
    missing.
    """

    __slots__ = ("_count", "_fields", "_is_optional", "_open_files", "_seed", "entry_bytes", "path")

    def __init__(
        self, open_files: OpenFiles, path: Path, fields: str, base_offset: int, *, is_optional: bool = False
    ) -> None:
        self._open_files = open_files
        self._is_optional = is_optional
        self.path = path
        self._fields = struct.Struct(fields)
        self.entry_bytes = self._fields.size + _CHECKSUM.size
        self._seed = crc32c.crc32c(base_offset.to_bytes(8, "little"))
        self._count: int | None = None  # None: not read yet

    def __len__(self) -> int:
        """Entries in the file. Raises `CorruptRecordError` where it is missing or ends inside an entry, `OSError`."""
        if self._count is None:
            size = self._open_files.files.file_size(self.path)
            if size is None and self._is_optional:
                size = 0
            if size is None or size % self.entry_bytes:
                raise CorruptRecordError(f"{self.path} has {size} bytes, which are not whole entries")
            self._count = size // self.entry_bytes
        return self._count

    def encode(self, fields: Sequence[int]) -> bytes:
        """One entry's bytes."""
        body = self._fields.pack(*fields)
        return body + _CHECKSUM.pack(crc32c.crc32c(body, self._seed))

    def append(self, entries: Sequence[Sequence[int]]) -> None:
        """Writes entries after the last, all in one write. Raises `OSError`; then none of them counts."""
        count = len(self)
        with self._open_files.hold(self.path, create=True) as held:
            self._open_files.files.write(
                held.descriptor, [b"".join(map(self.encode, entries))], count * self.entry_bytes
            )
        self._count = count + len(entries)

    def entry(self, number: int) -> tuple[int, ...]:
        """The fields of one entry. Raises `CorruptRecordError`, `OSError`."""
        with self._open_files.hold(self.path) as held:
            data = self._open_files.files.read(held.descriptor, self.entry_bytes, number * self.entry_bytes)
        return self._decode(data, number)

    def entries(self, first: int = 0) -> Iterator[tuple[int, ...]]:
        """The entries from number ``first`` on, in order. Raises `CorruptRecordError` at the first bad one,
        `OSError`."""
        count = len(self)
        for start in range(first, count, _ENTRIES_AT_ONCE):
            end = min(start + _ENTRIES_AT_ONCE, count)
            with self._open_files.hold(self.path) as held:
                data = self._open_files.files.read(
                    held.descriptor, (end - start) * self.entry_bytes, start * self.entry_bytes
                )
            for number in range(start, end):
                at = (number - start) * self.entry_bytes
                yield self._decode(data[at : at + self.entry_bytes], number)

    def last_at_most(self, field: int, value: int) -> int:
        """The number of the last entry whose ``field`` is ≤ ``value``, or -1. The field must never decrease."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[field] <= value:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def create(self) -> None:
        """Makes an empty file if there is none. Raises `OSError`."""
        self._open_files.hold(self.path, create=True).release()

    def replace(self, entries: Sequence[Sequence[int]], *, is_durable: bool = True) -> None:
        """Makes ``entries`` the whole content. Raises `OSError`.

        Durable when it returns, unless ``is_durable`` leaves that to the caller (`replace_file`). A file that has these
        entries already is kept. If the caller is to sync it, they are written to it once more: what was read from it
        may be missing on the device, and its pages may count as clean all the same (see `recovery`).
        """
        data = b"".join(map(self.encode, entries))
        if not self._has(data):
            replace_file(self._open_files.files, self.path, data, is_durable=is_durable)
            self._open_files.forget(self.path)
        elif data and not is_durable:
            with self._open_files.hold(self.path) as held:
                self._open_files.files.write(held.descriptor, [data], 0)
        self._count = len(entries)

    def delete(self) -> None:
        """Unlinks the file if there is one. Raises `OSError`."""
        if self._open_files.files.file_size(self.path) is not None:
            self._open_files.files.unlink(self.path)
        self._open_files.forget(self.path)
        self._count = None

    def _has(self, data: bytes) -> bool:
        files = self._open_files.files
        if files.file_size(self.path) != len(data):
            return False
        try:
            return read_file(files, self.path) == data
        except OSError:  # unreadable: replace it like a wrong one
            return False

    def _decode(self, data: bytes, number: int) -> tuple[int, ...]:
        if len(data) != self.entry_bytes:
            raise CorruptRecordError(f"{self.path} ends inside entry {number}")
        body = data[: self._fields.size]
        if _CHECKSUM.unpack_from(data, self._fields.size)[0] != crc32c.crc32c(body, self._seed):
            raise CorruptRecordError(f"{self.path}: entry {number} fails its checksum")
        return self._fields.unpack(body)


class OffsetIndex:
    """``<base offset>.index``: where in the segment some of its frames begin.

        bytes    type   field
        0–3      u32    offset of the frame's first record, less the segment's base offset
        4–7      u32    the frame's position in the segment
        8–11     u32    checksum

    Sparse: a frame has an entry if its position is at least ``index.interval.bytes`` beyond that of the last entry
    (beyond 0, where there is none).

    Offset → position. Not thread-safe against writers.
    """

    __slots__ = ("_base_offset", "file")

    def __init__(self, open_files: OpenFiles, directory: Path, base_offset: int) -> None:
        self._base_offset = base_offset
        self.file = IndexFile(open_files, directory / f"{base_offset:020d}.index", "<II", base_offset)

    def floor(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before ``offset``; the segment's begin where there is none."""
        return self._entry(self.file.last_at_most(_OFFSET, offset - self._base_offset))

    def floor_position(self, position: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before ``position``; the segment's begin where there is none."""
        return self._entry(self.file.last_at_most(_POSITION, position))

    def last(self) -> tuple[int, int]:
        """(offset, position) of the last entry; the segment's begin where there is none."""
        return self._entry(len(self.file) - 1)

    def _entry(self, number: int) -> tuple[int, int]:
        if number < 0:
            return self._base_offset, 0
        relative_offset, position = self.file.entry(number)
        return self._base_offset + relative_offset, position


class TimeIndex:
    """``<base offset>.timeindex``: the largest timestamp so far, at some of the segment's frames.

        bytes    type   field
        0–7      i64    largest timestamp (ms) of all the segment's records before the offset
        8–11     u32    that offset, less the segment's base offset
        12–15    u32    checksum

    An entry is written along with an entry of the offset index if the maximum over the frames before it has risen since
    the last entry, and a final one for the segment's end when the segment is closed. So timestamps in the file rise
    strictly, and a closed segment's last entry has its maximum.

    Timestamp → offset before which no record is younger. Not thread-safe against writers.
    """

    __slots__ = ("_base_offset", "file")

    def __init__(self, open_files: OpenFiles, directory: Path, base_offset: int) -> None:
        self._base_offset = base_offset
        self.file = IndexFile(open_files, directory / f"{base_offset:020d}.timeindex", "<qI", base_offset)

    def last_timestamp(self) -> int:
        """The last entry's timestamp, or `NO_TIMESTAMP`. Raises `CorruptRecordError`, `OSError`."""
        count = len(self.file)
        return self.file.entry(count - 1)[_TIMESTAMP] if count else NO_TIMESTAMP

    def offset_before(self, timestamp_ms: int) -> int:
        """An offset before which no record has a timestamp ≥ ``timestamp_ms``: where a search begins."""
        number = self.file.last_at_most(_TIMESTAMP, timestamp_ms - 1)
        return self._base_offset if number < 0 else self._base_offset + self.file.entry(number)[1]


class TransactionIndex:
    """``<base offset>.txnindex``: the aborted transactions that ended in the segment (Kafka's AbortedTxn).

        bytes    type   field
        0–7      i64    producer id
        8–15     i64    offset of the transaction's `TransactionBegin`
        16–23    i64    offset of the `TransactionEnd` that aborted it
        24–31    i64    last stable offset behind that frame (its own field)
        32–35    u32    checksum

    Entries are in the order of the frames that aborted, all of which are in the segment. There is no file before the
    first entry; how many there are is also in the snapshot at the segment's end (`producer_state`), so that a missing
    file is noticed. Earlier versions made an empty file with every segment.
    """

    __slots__ = ("file",)

    def __init__(self, open_files: OpenFiles, directory: Path, base_offset: int) -> None:
        self.file = IndexFile(
            open_files, directory / f"{base_offset:020d}.txnindex", "<qqqq", base_offset, is_optional=True
        )

    def aborted(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that have records in [start, end), as far as they ended in this segment; and whether all
        that ended later began at ``end`` or later. Raises `CorruptRecordError`, `OSError`."""
        found: list[AbortedTransaction] = []
        last_end: int | None = None  # of the frame behind which nothing ends that began before ``end``
        ended = self.file.last_at_most(_END_OFFSET, start) + 1
        for producer_id, first_offset, end_offset, last_stable_offset in self.file.entries(ended):
            if last_end is not None and end_offset > last_end:
                break
            if first_offset < end:
                found.append(AbortedTransaction(producer_id, first_offset, end_offset))
            if last_stable_offset >= end:
                last_end = end_offset
        return found, last_end is not None


class IndexBuilder:
    """Makes a segment's index entries, and its figures, from its frames in order.

    The caller takes the entries from the three lists; what it has written it removes.
    """

    __slots__ = (
        "_base_offset", "_interval_bytes", "_last_indexed_position", "_last_timestamp_ms", "first_append_ms",
        "last_append_ms", "max_timestamp_ms", "next_offset", "offset_entries", "time_entries", "transaction_entries",
    )  # fmt: skip

    def __init__(
        self,
        base_offset: int,
        index_interval_bytes: int,
        *,
        next_offset: int | None = None,
        last_indexed_position: int = 0,
        last_timestamp_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Begins with the segment's first frame; or, for a segment with entries, with the frame at the last one, which
        is at ``last_indexed_position`` and begins with ``next_offset``. ``last_timestamp_ms``: of the time index."""
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._last_indexed_position = last_indexed_position
        self._last_timestamp_ms = last_timestamp_ms
        self.offset_entries: list[tuple[int, int]] = []
        self.time_entries: list[tuple[int, int]] = []
        self.transaction_entries: list[tuple[int, int, int, int]] = []
        self.next_offset = base_offset if next_offset is None else next_offset
        self.max_timestamp_ms = last_timestamp_ms
        self.first_append_ms = -1
        self.last_append_ms = -1

    def add(self, position: int, header: FrameHeader, control: Control | None = None) -> None:
        """The next frame, which begins at ``position``. ``control``: what it says, if it is a control frame."""
        if position - self._last_indexed_position >= self._interval_bytes:
            self.offset_entries.append((header.base_offset - self._base_offset, position))
            self._add_time(header.base_offset)
            self._last_indexed_position = position
        if isinstance(control, TransactionEnd):
            self.transaction_entries += [
                (each.producer_id, each.first_offset, header.base_offset, control.last_stable_offset)
                for each in control.aborted
            ]
        self.note(header)

    def note(self, header: FrameHeader) -> None:
        """The next frame, which gets no entry: it was considered for one before."""
        if not header.is_control:
            self.max_timestamp_ms = max(self.max_timestamp_ms, header.latest_timestamp_ms)
        if self.first_append_ms < 0:
            self.first_append_ms = header.append_time_ms
        self.last_append_ms = header.append_time_ms
        self.next_offset = header.next_offset

    def close(self) -> None:
        """The segment takes no more frames: its maximum timestamp gets an entry."""
        self._add_time(self.next_offset)

    def _add_time(self, offset: int) -> None:
        if self.max_timestamp_ms > self._last_timestamp_ms:
            self.time_entries.append((self.max_timestamp_ms, offset - self._base_offset))
            self._last_timestamp_ms = self.max_timestamp_ms


class ReadPositions:
    """Where frames begin: offset → (segment's base offset, position). Thread-safe; bounded; may forget anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def remember(self, offset: int, base_offset: int, position: int) -> None:
        """The frame that begins with ``offset`` is, or will be, at ``position`` of the segment."""
        with self._lock:
            self._positions[offset] = (base_offset, position)
            self._positions.move_to_end(offset)
            if len(self._positions) > _POSITIONS_REMEMBERED:
                self._positions.popitem(last=False)

    def find(self, offset: int, base_offset: int) -> int | None:
        """The position if it is remembered and in that segment."""
        with self._lock:
            base, position = self._positions.get(offset, (-1, -1))
            return position if base == base_offset else None

    def clear(self) -> None:
        """Forgets everything: positions may be those of other frames now."""
        with self._lock:
            self._positions.clear()
