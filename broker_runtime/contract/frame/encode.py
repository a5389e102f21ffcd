"""From a record batch to the bytes of a frame: how large frames are, and when they have a chunk per column.

Measured by ``python -m bench.frame_size`` (ratios within one run; two cores, pyarrow 26):

| a chunk per column against one chunk | 5 columns, 160 KiB | 20 columns, 640 KiB | 20 columns, 4 MiB |
|--------------------------------------|-------------------:|--------------------:|------------------:|
| encode                               |         1.0 to 1.3 |          1.1 to 1.2 |               1.0 |
| verify and check the schema          |                1.4 |                 2.0 |               1.5 |
| decode all columns                   |                1.6 |          1.9 to 2.2 |        1.3 to 1.5 |
| bytes                                |              1.004 |               1.005 |             1.001 |
| decode one column                    |               0.95 |                0.73 |              0.45 |
| bytes of one column                  |               0.26 |               0.068 |             0.066 |

A chunk costs its readers about 25 µs whatever its size, so the bound is per column. At 32 KiB a column of 8-byte values
has 4,000 of them, and chunks cost 6 ns a value, far less than Spark takes to convert one. Below the bound, readers of
all columns lose more than readers of some columns gain.

| frames of a size against the best, batch to batch | 64 KiB | 256 KiB | 1 MiB | 2 MiB | 4 MiB | 8 MiB |
|---------------------------------------------------|-------:|--------:|------:|------:|------:|------:|
| 100-byte values                                   |    5.6 |     2.3 |   1.3 |   1.1 |   1.0 |  1.05 |
| 5 typed columns                                   |    6.8 |     3.4 |   1.9 |   1.4 |   1.2 |   1.0 |

So producers aim at frames of 1 MiB (2 ms of one core): larger ones would make records wait longer for each other.
Spark's sink is a producer and does the same.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from broker_runtime.contract.errors import InvalidTimestampError, RecordTooLargeError, SchemaMismatchError
from broker_runtime.contract.frame.directory import (
    HEADERS_COLUMN_ID,
    TIMESTAMP_COLUMN_ID,
    Chunk,
    directory_size,
    pack_directory,
    padded,
)
from broker_runtime.contract.frame.header import (
    CODECS,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_RECORDS_PER_FRAME,
    MAX_UNCOMPRESSED_BYTES,
    FrameHeader,
    pack_header,
)
from broker_runtime.contract.frame.layout import (
    HEADERS_FIELD,
    HEADERS_TYPE,
    TIMESTAMP_FIELD,
    chunk_layout,
    missing_row_bytes,
)
from broker_runtime.contract.schema.topic import TopicSchema
from broker_runtime.contract.statistics import ColumnStatistics, column_statistics

CHUNK_PER_COLUMN_BYTES = 32 << 10
"""A frame has a chunk per column if its columns, uncompressed, have at least this size on average."""
DEFAULT_FRAME_TARGET_BYTES = 1 << 20
"""How much a producer gathers per partition; records wait for the frame to fill."""
STATISTICS_MIN_ROWS = 32
"""Frames with fewer rows state only null counts: min and max would cost more than skipping such a frame saves."""

_LOOSE_BYTES = 4096


def encode_frame(
    batch: pa.RecordBatch,
    schema: TopicSchema,
    *,
    timestamps: int | pa.Array,
    headers: pa.Array | None = None,
    codec: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    chunk_per_column_bytes: int = CHUNK_PER_COLUMN_BYTES,
) -> pa.Buffer:
    """The frame of ``batch``, unstamped, in newly allocated memory.

    ``batch``: 1 to `MAX_RECORDS_PER_FRAME` rows; its columns are ``schema``'s by name and have exactly its types, as
    after `cast_to_topic`; nullable ones may be missing. ``timestamps``: ms since the epoch, one for all rows or int64
    by row without nulls. ``headers``: `HEADERS_TYPE` by row. ``chunk_per_column_bytes`` is for measurements and tests.

    Raises `SchemaMismatchError`, `InvalidTimestampError` (negative or null), `RecordTooLargeError` (more rows or bytes
    than a frame can have: split the batch first).
    """
    rows = batch.num_rows
    if not 1 <= rows <= MAX_RECORDS_PER_FRAME:
        raise RecordTooLargeError(f"a frame has 1 to {MAX_RECORDS_PER_FRAME} records, not {rows}")
    if codec not in CODECS:
        raise ValueError(f"codec {codec!r} is none of {', '.join(CODECS)}")
    batch, columns = _in_schema_order(batch, schema)
    base_timestamp, max_timestamp, timestamp_column = _timestamps(timestamps, rows)
    if timestamp_column is not None:
        batch = batch.append_column(TIMESTAMP_FIELD, timestamp_column)
        columns += (TIMESTAMP_COLUMN_ID,)
    if headers is not None and headers.null_count < rows:
        if headers.type != HEADERS_TYPE or len(headers) != rows:
            raise SchemaMismatchError(
                f"headers are {rows} values of {HEADERS_TYPE}, not {len(headers)} of {headers.type}"
            )
        batch = batch.append_column(HEADERS_FIELD, headers)
        columns += (HEADERS_COLUMN_ID,)
    if not columns:
        raise SchemaMismatchError(f"a frame needs at least one of the columns {', '.join(schema.arrow.names)}")

    size = pa.ipc.get_record_batch_size(batch)
    if size > _LOOSE_BYTES and size > 2 * batch.nbytes:
        batch = _compacted(batch)
        size = pa.ipc.get_record_batch_size(batch)
    if size > MAX_UNCOMPRESSED_BYTES:
        raise RecordTooLargeError(f"{rows} records of {size} bytes; a frame has at most {MAX_UNCOMPRESSED_BYTES}")
    if len(columns) > 1 and size >= chunk_per_column_bytes * len(columns):
        parts = [batch.select([i]) for i in range(len(columns))]
    else:
        parts = [batch]
    messages = [_serialize(part, codec) for part in parts]
    uncompressed = [size] if len(parts) == 1 else [pa.ipc.get_record_batch_size(part) for part in parts]
    return _assemble(
        parts,
        messages,
        uncompressed,
        columns,
        [_statistics(column, column_id) for column, column_id in zip(batch.columns, columns, strict=True)],
        FrameHeader(
            base_offset=-1,
            append_time_ms=-1,
            high_watermark=-1,
            leader_epoch=-1,
            timestamp_type=0,
            pruned_bytes=0,
            frame_bytes=0,
            uncompressed_bytes=sum(uncompressed),
            codec=codec,
            is_transactional=is_transactional,
            is_control=False,
            record_count=rows,
            last_offset_delta=rows - 1,
            base_timestamp_ms=base_timestamp,
            max_timestamp_ms=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            schema_id=schema.schema_id,
            chunk_count=len(parts),
            directory_bytes=0,
        ),
    )


def split_into_frames(
    batch: pa.RecordBatch,
    schema: TopicSchema,
    *,
    timestamps: int | pa.Array,
    headers: pa.Array | None = None,
    codec: str = "none",
    target_bytes: int = DEFAULT_FRAME_TARGET_BYTES,
    max_bytes: int = MAX_FRAME_BYTES,
) -> list[pa.Buffer]:
    """Frames of contiguous slices of ``batch``, in order: about ``target_bytes`` uncompressed, at most ``max_bytes``.

    Otherwise as `encode_frame`, without a producer's numbers. Raises `RecordTooLargeError` if a single record is too
    large.
    """
    frames: list[pa.Buffer] = []
    measured = batch if headers is None else batch.append_column(HEADERS_FIELD, headers)
    columns, _ = _column_order(schema, tuple(batch.schema.names))
    most_rows = max(1, MAX_UNCOMPRESSED_BYTES // max(1, missing_row_bytes(schema, columns)))
    # Invariant: the slices on the stack are disjoint and cover the rows that are not in frames; the first are on top.
    pending = list(reversed(_slices(measured, target_bytes, min(MAX_RECORDS_PER_FRAME, most_rows))))
    while pending:
        start, rows = pending.pop()
        if rows > 1 and pa.ipc.get_record_batch_size(measured.slice(start, rows)) > MAX_UNCOMPRESSED_BYTES // 2:
            pending += [(start + rows // 2, rows - rows // 2), (start, rows // 2)]
            continue
        frame = encode_frame(
            batch.slice(start, rows),
            schema,
            timestamps=timestamps if isinstance(timestamps, int) else timestamps.slice(start, rows),
            headers=None if headers is None else headers.slice(start, rows),
            codec=codec,
        )
        if frame.size <= max_bytes:
            frames.append(frame)
        elif rows > 1:
            pending += [(start + rows // 2, rows - rows // 2), (start, rows // 2)]
        else:
            raise RecordTooLargeError(
                f"a record makes a frame of {frame.size} bytes; the topic takes {max_bytes} (its max.message.bytes)"
            )
    return frames


def _slices(batch: pa.RecordBatch, target_bytes: int, most_rows: int) -> list[tuple[int, int]]:
    """(start, rows) of slices with equal numbers of rows, ``most_rows`` at most, and about ``target_bytes`` each."""
    rows = batch.num_rows
    count = max(1, -(-pa.ipc.get_record_batch_size(batch) // max(1, target_bytes)), -(-rows // most_rows))
    count = min(count, max(1, rows))
    bounds = [rows * i // count for i in range(count + 1)]
    return [(bounds[i], bounds[i + 1] - bounds[i]) for i in range(count)]


def _assemble(
    parts: list[pa.RecordBatch],
    messages: list[memoryview],
    uncompressed: list[int],
    columns: tuple[int, ...],
    statistics: list[ColumnStatistics],
    header: FrameHeader,
) -> pa.Buffer:
    """The whole frame in one buffer. The directory needs the chunks' checksums and the header the directory's."""
    directory_bytes = directory_size(len(messages), statistics)
    position = HEADER_BYTES + directory_bytes
    frame_bytes = position + sum(padded(len(message)) for message in messages)
    if frame_bytes > MAX_FRAME_BYTES:
        raise RecordTooLargeError(f"a frame of {frame_bytes} bytes; at most {MAX_FRAME_BYTES} are allowed")
    frame = pa.allocate_buffer(frame_bytes)
    view = memoryview(frame).cast("B")
    chunks = []
    for part, message, size in zip(parts, messages, uncompressed, strict=True):
        end = position + padded(len(message))
        view[position : position + len(message)] = message
        view[position + len(message) : end] = bytes(end - position - len(message))
        chunks.append(Chunk(end - position, crc32c(view[position:end]), size, part.num_columns))
        position = end
    directory = pack_directory(chunks, columns, statistics)
    header = msgspec.structs.replace(header, frame_bytes=frame_bytes, directory_bytes=directory_bytes)
    view[: HEADER_BYTES + directory_bytes] = pack_header(header, directory) + directory
    return frame


def _compacted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the slice alone.

    Arrow truncates buffers to the slice when it writes them, except for a nested column whose values in the slice are
    all empty or null: then it writes the offsets of the whole column.
    """
    columns = [pa.concat_arrays([column]) if column.type.num_fields else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _in_schema_order(batch: pa.RecordBatch, schema: TopicSchema) -> tuple[pa.RecordBatch, tuple[int, ...]]:
    names = tuple(batch.schema.names)
    columns, order = _column_order(schema, names)
    if order is not None:
        batch = batch.select(order)
    expected = chunk_layout(schema, columns)
    if not batch.schema.equals(expected.schema):
        for i, column_id in enumerate(columns):
            field = schema.arrow.field(column_id)
            if batch.schema.field(i).type != field.type:
                raise SchemaMismatchError(
                    f"column {field.name!r} is {batch.schema.field(i).type}, the topic's is {field.type}"
                )
            if not field.nullable and batch.column(i).null_count:
                raise SchemaMismatchError(f"column {field.name!r} allows no nulls and has {batch.column(i).null_count}")
    elif any(expected.required):
        for i, required in enumerate(expected.required):
            if required and batch.column(i).null_count:
                raise SchemaMismatchError(f"column {names[i]!r} allows no nulls and has {batch.column(i).null_count}")
    return batch, columns


@lru_cache(maxsize=1024)
def _column_order(schema: TopicSchema, names: tuple[str, ...]) -> tuple[tuple[int, ...], list[int] | None]:
    """The ids of ``names`` in rising order, and how to reorder the columns (None: they are in order already)."""
    ids = schema.column_ids(names)
    if len(set(ids)) != len(ids):
        raise SchemaMismatchError(f"columns appear twice: {', '.join(names)}")
    missing = schema.required - set(ids)
    if missing:
        lacking = ", ".join(schema.arrow.names[column_id] for column_id in sorted(missing))
        raise SchemaMismatchError(f"columns that allow no nulls are missing: {lacking}")
    order = sorted(range(len(ids)), key=ids.__getitem__)
    return tuple(sorted(ids)), None if order == list(range(len(ids))) else order


def _timestamps(timestamps: int | pa.Array, rows: int) -> tuple[int, int, pa.Array | None]:
    """The smallest and the largest timestamp, and the column unless all are equal."""
    if isinstance(timestamps, int):
        low = high = timestamps
        column = None
    else:
        if timestamps.type != pa.int64() or len(timestamps) != rows or timestamps.null_count:
            raise InvalidTimestampError(
                f"timestamps are {rows} int64 without nulls, not {len(timestamps)} {timestamps.type} "
                f"with {timestamps.null_count} nulls"
            )
        bounds = pc.min_max(timestamps)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        column = None if low == high else timestamps
    if low < 0:
        raise InvalidTimestampError(f"timestamp {low} ms is before 1970")
    return low, high, column


def _statistics(column: pa.Array, column_id: int) -> ColumnStatistics:
    if column_id >= TIMESTAMP_COLUMN_ID or len(column) < STATISTICS_MIN_ROWS:
        return ColumnStatistics(null_count=column.null_count)
    return column_statistics(column)


def _serialize(batch: pa.RecordBatch, codec: str) -> memoryview:
    """The encapsulated message of ``batch``, without what its buffers have outside of the slice."""
    if codec == "none":
        return memoryview(batch.serialize()).cast("B")
    # Only the stream writer takes options. It writes the schema first, as a message without a body.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_compressing(codec)) as writer:
        writer.write_batch(batch)
    stream = memoryview(sink.getvalue()).cast("B")
    start = 8 + int.from_bytes(stream[4:8], "little")
    return stream[start : len(stream) - 8]


@lru_cache(maxsize=4)
def _compressing(codec: str) -> pa.ipc.IpcWriteOptions:
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
