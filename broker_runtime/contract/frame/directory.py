"""The frame's directory: its chunks with their lengths and checksums, and the statistics of each column.

It follows the header, whose checksum covers it: three tables back to back, little-endian, then zeros up to the next
multiple of 64 (``directory_bytes`` counts them). The third table has, per column, the bytes of min, then of max.

| 1. per chunk                                  | 2. per column, in rising order of column ids                         |
|----------------------------------------------|-----------------------------------------------------------------------|
| 0 u32 length, padding to 64 included          | 0 u16 column id                                                      |
| 4 u32 CRC-32C of those bytes                  | 2 u8  kind of min and max (`statistics.Kind`)                        |
| 8 u32 what its columns take uncompressed      | 3 u8  flags: 1 null count known, 2 NaN count known, 4 min present,   |
| 12 u16 how many columns                       |       8 max present, 16 min is exact, 32 max is exact; others zero   |
| 14 u16 zero                                   | 4 i8  scale of a decimal; unit of a time as power of ten             |
|                                               | 5 u8  bytes of min, 6 u8 bytes of max, 7 u8 zero                     |
|                                               | 8 u32 null count, 12 u32 NaN count                                   |

Chunks lie back to back from the end of the directory to the end of the frame. In table 2 the columns of chunk i follow
those of chunk i - 1. A control frame has one chunk, without columns. A pruned answer has presence bits after the
directory (bit i % 8 of byte i // 8 is set if chunk i is present), padded to 64, then the chunks that are present.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame.header import ALIGNMENT_BYTES, HEADER_BYTES, MAX_CHUNKS, FrameHeader
from broker_runtime.contract.statistics import MAX_VALUE_BYTES, ColumnStatistics, Kind, check_statistics

TIMESTAMP_COLUMN_ID = 0xFFFE
"""int64, ms since the epoch; absent where all records have the header's base timestamp."""
HEADERS_COLUMN_ID = 0xFFFF
"""list<struct<key: string, value: binary>>; absent where no record has headers."""
MAX_COLUMNS = MAX_CHUNKS

_CHUNK = struct.Struct("<IIIHH")
_COLUMN = struct.Struct("<HBBbBBBII")
_COLUMN_ID = struct.Struct("<H14x")
_FLAG_NULL_COUNT, _FLAG_NAN_COUNT, _FLAG_MIN, _FLAG_MAX, _FLAG_MIN_EXACT, _FLAG_MAX_EXACT = 1, 2, 4, 8, 16, 32


class Chunk(NamedTuple):
    """One chunk; ``length`` is a multiple of 64. A chunk's position is the sum of the lengths before it."""

    length: int
    crc: int
    uncompressed_bytes: int
    column_count: int
    reserved: int = 0


class Directory(NamedTuple):
    """A parsed directory. ``columns``: the ids, in the order of the chunks. Statistics are parsed on demand."""

    chunks: tuple[Chunk, ...]
    columns: tuple[int, ...]
    data: memoryview
    record_count: int

    def statistics(self, wanted: Collection[int] | None = None) -> dict[int, ColumnStatistics]:
        """The statistics of each column, by id; of the ``wanted`` ones that the frame has. Raises
        `CorruptRecordError`."""
        return _parse_statistics(self, wanted)


def padded(size_bytes: int) -> int:
    """``size_bytes`` up to the next multiple of 64."""
    return (size_bytes + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES


def directory_size(chunk_count: int, statistics: Sequence[ColumnStatistics]) -> int:
    """How many bytes `pack_directory` returns for that many chunks and columns with these statistics."""
    values = sum(len(known.minimum or b"") + len(known.maximum or b"") for known in statistics)
    return padded(chunk_count * _CHUNK.size + len(statistics) * _COLUMN.size + values)


def pack_directory(chunks: Sequence[Chunk], columns: Sequence[int], statistics: Sequence[ColumnStatistics]) -> bytes:
    """The directory's bytes, padded. ``statistics`` are parallel to ``columns``."""
    parts = [_CHUNK.pack(*chunk) for chunk in chunks]
    values = []
    for column_id, known in zip(columns, statistics, strict=True):
        parts.append(_pack_column(column_id, known))
        values.append((known.minimum or b"") + (known.maximum or b""))
    data = b"".join(parts + values)
    return data.ljust(padded(len(data)), b"\0")


def parse_directory(head: memoryview, header: FrameHeader) -> Directory:
    """The directory of the frame that ``head`` begins with. The caller has verified the checksum.

    Raises `CorruptRecordError` if the tables do not fit into the directory or contradict the header.
    """
    data = head[HEADER_BYTES : HEADER_BYTES + header.directory_bytes]
    chunks_end = header.chunk_count * _CHUNK.size
    if chunks_end > len(data):
        raise CorruptRecordError(f"a directory of {len(data)} bytes cannot have {header.chunk_count} chunks")
    chunks = tuple(map(Chunk._make, _CHUNK.iter_unpack(data[:chunks_end])))
    length = uncompressed = count = 0
    for chunk in chunks:
        has_columns = chunk.column_count > 0
        if chunk.length % ALIGNMENT_BYTES or chunk.length == 0 or has_columns == header.is_control or chunk.reserved:
            raise CorruptRecordError(f"the directory has a chunk out of bounds: {chunk}")
        length += chunk.length
        uncompressed += chunk.uncompressed_bytes
        count += chunk.column_count
    if HEADER_BYTES + len(data) + length != header.frame_bytes:
        raise CorruptRecordError(
            f"header, directory and chunks of {HEADER_BYTES} + {len(data)} + {length} bytes are not the frame's "
            f"{header.frame_bytes}"
        )
    if uncompressed != header.uncompressed_bytes:
        raise CorruptRecordError(
            f"chunks of {uncompressed} bytes uncompressed, {header.uncompressed_bytes} in the header"
        )
    columns_end = chunks_end + count * _COLUMN.size
    if count > MAX_COLUMNS or columns_end > len(data):
        raise CorruptRecordError(f"a directory of {len(data)} bytes cannot have {count} columns")
    columns = tuple(column_id for (column_id,) in _COLUMN_ID.iter_unpack(data[chunks_end:columns_end]))
    if count > 1 and any(columns[i] >= columns[i + 1] for i in range(count - 1)):
        raise CorruptRecordError(f"column ids do not rise: {columns}")
    return Directory(chunks, columns, data, header.record_count)


def _pack_column(column_id: int, known: ColumnStatistics) -> bytes:
    flags = 0
    if known.null_count is not None:
        flags |= _FLAG_NULL_COUNT
    if known.nan_count is not None:
        flags |= _FLAG_NAN_COUNT
    if known.minimum is not None:
        flags |= _FLAG_MIN | (_FLAG_MIN_EXACT if known.minimum_is_exact else 0)
    if known.maximum is not None:
        flags |= _FLAG_MAX | (_FLAG_MAX_EXACT if known.maximum_is_exact else 0)
    return _COLUMN.pack(
        column_id,
        known.kind,
        flags,
        known.scale,
        len(known.minimum or b""),
        len(known.maximum or b""),
        0,
        known.null_count or 0,
        known.nan_count or 0,
    )


def _parse_statistics(directory: Directory, wanted: Collection[int] | None) -> dict[int, ColumnStatistics]:
    start = len(directory.chunks) * _CHUNK.size
    position = start + len(directory.columns) * _COLUMN.size
    known: dict[int, ColumnStatistics] = {}
    for column_id, kind, flags, scale, min_bytes, max_bytes, zero, nulls, nans in _COLUMN.iter_unpack(
        directory.data[start:position]
    ):
        end = position + min_bytes + max_bytes
        if (
            zero
            or flags > 63
            or min_bytes > MAX_VALUE_BYTES
            or max_bytes > MAX_VALUE_BYTES
            or end > len(directory.data)
            or (nulls and not flags & _FLAG_NULL_COUNT)
            or (nans and not flags & _FLAG_NAN_COUNT)
            or (min_bytes and not flags & _FLAG_MIN)
            or (max_bytes and not flags & _FLAG_MAX)
        ):
            raise CorruptRecordError(f"the directory's statistics of column {column_id} are out of bounds")
        if wanted is not None and column_id not in wanted:
            position = end
            continue
        minimum = bytes(directory.data[position : position + min_bytes]) if flags & _FLAG_MIN else None
        maximum = bytes(directory.data[position + min_bytes : end]) if flags & _FLAG_MAX else None
        statistics = ColumnStatistics(
            # A newer producer wrote a kind that this reader does not know: it ignores the values.
            kind=Kind(kind) if kind in _KINDS else Kind.NONE,
            scale=scale,
            null_count=nulls if flags & _FLAG_NULL_COUNT else None,
            nan_count=nans if flags & _FLAG_NAN_COUNT else None,
            minimum=minimum if kind in _KINDS else None,
            maximum=maximum if kind in _KINDS else None,
            minimum_is_exact=bool(flags & _FLAG_MIN_EXACT),
            maximum_is_exact=bool(flags & _FLAG_MAX_EXACT),
        )
        check_statistics(statistics, directory.record_count)
        known[column_id] = statistics
        position = end
    return known


_KINDS = frozenset(int(kind) for kind in Kind)
