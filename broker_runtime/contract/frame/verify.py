"""Checks that bytes are a frame, and that the frame fits a topic, without looking at a row.

Leaders, followers and recovery do this with every frame. It costs one checksum over the bytes and a bounded amount of
work per chunk and column. Readers do what needs the rows, full validation, in `decode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from broker_runtime.contract.errors import CorruptRecordError, RecordTooLargeError, SchemaMismatchError
from broker_runtime.contract.frame.directory import (
    TIMESTAMP_COLUMN_ID,
    Directory,
    parse_directory,
)
from broker_runtime.contract.frame.header import (
    MAX_UNCOMPRESSED_BYTES,
    Buffer,
    FrameHeader,
    Glance,
    check_stamp,
    glance,
    parse_checked_header,
    parse_header,
)
from broker_runtime.contract.frame.layout import chunk_layout, column_field, missing_row_bytes
from broker_runtime.contract.frame.message import check_uncompressed_size, parse_message
from broker_runtime.contract.frame.projection import chunks_present
from broker_runtime.contract.schema import SchemaHistory, TopicSchema
from broker_runtime.contract.statistics import kind_of

AbortedRange = tuple[int, int, int]
"""Producer id, first offset, end: its frames that begin in [first offset, end) are aborted."""


def verify_frame(buffer: Buffer, *, topic_id: bytes | None = None, partition: int | None = None) -> FrameHeader:
    """The header of the whole frame that fills ``buffer``, with every checksum verified.

    With ``topic_id`` and ``partition`` the leader's stamp is verified too. Nothing is copied; safe from any thread.
    Raises `CorruptRecordError` for a frame that is damaged, too short or long, pruned, or stamped for another
    partition. Raises `UnsupportedVersionError` for an undamaged frame with a version or feature that this release does
    not know: such bytes must be kept, not truncated.
    """
    frame = memoryview(buffer).cast("B")
    return _verify(frame, topic_id, partition)[0]


def verify_answer(buffer: Buffer, *, topic_id: bytes, partition: int) -> FrameHeader:
    """The header of the frame that ``buffer`` begins with, whole or pruned. The frame ends at ``stored_bytes``.

    The checksum of each chunk that is present and the leader's stamp are verified. Raises as `verify_frame`.
    """
    view = memoryview(buffer).cast("B")
    header = parse_checked_header(view)
    if header.stored_bytes > len(view):
        raise CorruptRecordError(f"a frame of {header.stored_bytes} bytes in a buffer of {len(view)}")
    check_stamp(view, topic_id=topic_id, partition=partition)
    directory = parse_directory(view, header)
    position, present = chunks_present(view, header)
    for index, chunk in enumerate(directory.chunks):
        if present >> index & 1:
            check_crc(view[position : position + chunk.length], chunk.crc, index)
            position += chunk.length
    return header


class SoundFrame(NamedTuple):
    """A whole frame whose checksums hold, with its parsed header and directory.

    Only `sound_frame` makes one, so code that is given one need not verify it again.
    """

    buffer: memoryview
    header: FrameHeader
    directory: Directory


def sound_frame(buffer: Buffer) -> SoundFrame:
    """`verify_frame` for callers that go on working with the frame. The buffer is not copied."""
    frame = memoryview(buffer).cast("B")
    return SoundFrame(frame, *_verify(frame, None, None))


def check_frame_schema(frame: Buffer | SoundFrame, schemas: SchemaHistory | TopicSchema) -> None:
    """Checks that a verified, whole frame has columns of the schema it names, with as many rows as its header says.

    A leader does this before it appends. Rows are not decoded; the work does not grow with them. Raises
    `SchemaMismatchError` for an unknown schema id or missing required columns, `CorruptRecordError` for anything else.
    """
    if isinstance(frame, SoundFrame):
        buffer, header, directory = frame
    else:
        buffer = memoryview(frame).cast("B")
        header = parse_header(buffer)
        directory = parse_directory(buffer, header)
    if header.is_control:
        raise CorruptRecordError("only brokers write control frames")
    schema = schemas.get(header.schema_id) if isinstance(schemas, SchemaHistory) else schemas
    if schema.schema_id != header.schema_id:
        raise SchemaMismatchError(f"the frame follows schema {header.schema_id}, the topic's is {schema.schema_id}")
    own = check_columns(directory.columns, schema)
    check_statistics_kinds(directory, schema)
    if (size := header.record_count * missing_row_bytes(schema, own)) > MAX_UNCOMPRESSED_BYTES:
        raise RecordTooLargeError(
            f"{header.record_count} records without {len(schema.arrow) - len(own)} of the topic's columns: readers "
            f"need {size} bytes for these; a frame has at most {MAX_UNCOMPRESSED_BYTES}"
        )
    is_one_time = header.timestamp_type or header.base_timestamp_ms == header.max_timestamp_ms
    if not is_one_time and TIMESTAMP_COLUMN_ID not in directory.columns:
        raise CorruptRecordError(
            f"timestamps of {header.base_timestamp_ms} to {header.max_timestamp_ms} ms, and no column that says whose "
            "is which"
        )
    position = header.head_bytes
    first = 0
    for chunk in directory.chunks:
        ids = directory.columns[first : first + chunk.column_count]
        check_chunk(buffer[position : position + chunk.length], schema, ids, header, chunk.uncompressed_bytes)
        position += chunk.length
        first += chunk.column_count


def iter_frames(buffer: Buffer) -> Iterator[tuple[FrameHeader, Any]]:
    """The frames that lie back to back in ``buffer``, as (header, slice): `pa.Buffer` of `pa.Buffer`, else memoryview.

    Slices share the buffer's memory. The headers say which frames are pruned. Checksums are not verified. Raises
    `CorruptRecordError` at bytes that do not begin a frame, and at a frame that is cut off.
    """
    size = memoryview(buffer).nbytes
    view = buffer if isinstance(buffer, pa.Buffer) else memoryview(buffer).cast("B")
    position = 0
    while position < size:
        header, frame = _frame_at(view, position, size)
        yield header, frame
        position += header.stored_bytes


def visible_frames(buffer: Buffer, aborted: Sequence[AbortedRange] = ()) -> Iterator[tuple[FrameHeader, Any]]:
    """As `iter_frames`, without control frames and without the frames of ``aborted`` transactions: what a reader of
    committed records gets. The only place where frames are dropped.

    Offsets of what is dropped are gaps: a reader continues behind them (``next_offset``), and never counts rows to know
    where it is.
    """
    hidden: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, end in aborted:
        hidden.setdefault(producer_id, []).append((first, end))
    size = memoryview(buffer).nbytes
    view = buffer if isinstance(buffer, pa.Buffer) else memoryview(buffer).cast("B")
    position = 0
    while position < size:
        seen = glance(view, position)
        if seen is not None and (seen.is_control or _is_hidden(seen, hidden)):
            if position + seen.stored_bytes > size:
                raise _cut_off(position, seen.stored_bytes, size)
            position += seen.stored_bytes
            continue
        header, frame = _frame_at(view, position, size)
        yield header, frame
        position += header.stored_bytes


def _is_hidden(seen: Glance, hidden: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
    return any(first <= seen.base_offset < end for first, end in hidden.get(seen.producer_id, ()))


def _frame_at(view: Any, position: int, size: int) -> tuple[FrameHeader, Any]:
    header = parse_header(view, position)
    end = position + header.stored_bytes
    if end > size:
        raise _cut_off(position, header.stored_bytes, size)
    return header, view[position:end]


def _cut_off(position: int, stored_bytes: int, size: int) -> CorruptRecordError:
    return CorruptRecordError(f"the frame at {position} needs {stored_bytes} bytes, {size - position} are left")


@lru_cache(maxsize=1024)
def check_columns(columns: tuple[int, ...], schema: TopicSchema) -> tuple[int, ...]:
    """Checks that a directory's ``columns`` are the schema's and that no required one is missing. Returns those that
    are the user's own. Raises `CorruptRecordError`, `SchemaMismatchError`."""
    count = len(schema.arrow)
    own = tuple(column_id for column_id in columns if column_id < TIMESTAMP_COLUMN_ID)
    if own and own[-1] >= count:
        raise CorruptRecordError(
            f"column id {own[-1]} is unknown to schema {schema.schema_id}, which has {count} columns"
        )
    missing = schema.required - set(own)
    if missing:
        names = ", ".join(schema.arrow.names[column_id] for column_id in sorted(missing))
        raise SchemaMismatchError(f"the frame lacks columns that allow no nulls: {names}")
    return own


def check_statistics_kinds(directory: Directory, schema: TopicSchema) -> None:
    """Checks that the directory's statistics can be parsed and are of their columns' kinds.

    Raises `CorruptRecordError`. Whether they are true cannot be checked without the rows. A producer that writes false
    ones only hides its own frames.
    """
    for column_id, known in directory.statistics().items():
        if known.minimum is None and known.maximum is None:
            continue
        if (known.kind, known.scale) != kind_of(column_field(schema, column_id).type):
            raise CorruptRecordError(
                f"column {column_id} has statistics of kind {known.kind.name}, scale {known.scale}"
            )


def check_chunk(
    chunk: memoryview, schema: TopicSchema, columns: tuple[int, ...], header: FrameHeader, limit_bytes: int
) -> None:
    """Checks that ``chunk``'s metadata describes these columns with the header's rows and codec, within the bounds."""
    metadata = parse_message(chunk)
    if metadata.codec != header.codec:
        raise CorruptRecordError(f"a chunk is compressed by {metadata.codec}, the header says {header.codec}")
    chunk_layout(schema, columns).check(metadata, header.record_count)
    check_uncompressed_size(chunk, metadata, limit_bytes)


def check_crc(chunk: memoryview, expected: int, index: int) -> None:
    """Verifies the checksum of one chunk. Raises `CorruptRecordError`."""
    crc = crc32c(chunk)
    if crc != expected:
        raise CorruptRecordError(
            f"CRC of the frame's chunk {index} is {crc:#010x}, its directory says {expected:#010x}"
        )


def _verify(frame: memoryview, topic_id: bytes | None, partition: int | None) -> tuple[FrameHeader, Directory]:
    header = parse_checked_header(frame)
    if header.is_pruned:
        raise CorruptRecordError("a pruned frame is an answer to a reader, never part of a log")
    if header.frame_bytes != len(frame):
        raise CorruptRecordError(f"a frame of {header.frame_bytes} bytes in a buffer of {len(frame)}")
    if topic_id is not None:
        if partition is None:
            raise ValueError("a stamp is verified for topic_id and partition together")
        check_stamp(frame, topic_id=topic_id, partition=partition)
    directory = parse_directory(frame, header)
    position = header.head_bytes
    for index, chunk in enumerate(directory.chunks):
        check_crc(frame[position : position + chunk.length], chunk.crc, index)
        position += chunk.length
    return header, directory
