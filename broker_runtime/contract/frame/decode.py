"""From the bytes of a frame to a record batch, fully validated before a caller gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_runtime.contract.arrays import empty_rows, number_array
from broker_runtime.contract.errors import CorruptRecordError, SchemaMismatchError
from broker_runtime.contract.frame.directory import (
    HEADERS_COLUMN_ID,
    TIMESTAMP_COLUMN_ID,
    Directory,
    parse_directory,
)
from broker_runtime.contract.frame.header import FrameHeader, check_stamp, parse_checked_header
from broker_runtime.contract.frame.layout import chunk_layout
from broker_runtime.contract.frame.projection import chunks_present
from broker_runtime.contract.frame.verify import check_chunk, check_columns, check_crc
from broker_runtime.contract.schema import SchemaHistory, TopicSchema
from broker_runtime.contract.schema.cast import check_nulls
from broker_runtime.contract.schema.validity import find_bad_value

_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
_THOUSAND = number_array(np.array([1000]))[0]
_OUT_OF_MEMORY = ("not enough memory", "ERROR_allocation_failed")
"""What zstd and lz4 say when they cannot allocate memory. Arrow reports that as a failed decompression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFrame:
    """A frame's rows. ``batch``: the columns asked for, in the order asked for; those the frame lacks are null.

    Timestamps are ms since the epoch: ``constant_timestamp_ms`` if all records have the same one, else ``timestamps``
    (int64 by row). Both are None if they differ and the reader did not ask for `TIMESTAMP_COLUMN_ID`. ``headers``: by
    row; None if no record has any or the reader did not ask for them. An uncompressed frame's buffers are not copied.
    """

    header: FrameHeader
    batch: pa.RecordBatch
    constant_timestamp_ms: int | None
    timestamps: pa.Array | None
    headers: pa.Array | None

    def timestamp_column(self) -> pa.Array:
        """The records' timestamps as Spark's: timestamp[us, tz=UTC], in memory of its own.

        Raises `ValueError` if the timestamps differ and the reader did not ask for `TIMESTAMP_COLUMN_ID`,
        `CorruptRecordError` for times that do not fit into 64 bits as microseconds.
        """
        latest_ms = self.header.latest_timestamp_ms  # `decode_frame` has compared the column with it
        if latest_ms > _MAX_TIMESTAMP_MS:
            raise CorruptRecordError(f"timestamps of up to {latest_ms} ms are out of range")
        if self.constant_timestamp_ms is not None:
            microseconds = number_array(np.full(self.header.record_count, self.constant_timestamp_ms * 1000, np.int64))
        elif self.timestamps is not None:
            microseconds = pc.multiply_checked(self.timestamps, _THOUSAND)
        else:
            raise ValueError("the frame was decoded without the column of timestamps")
        return microseconds.view(pa.timestamp("us", "UTC"))


def decode_frame(
    frame: Any,
    schemas: SchemaHistory,
    *,
    columns: Sequence[int] | None = None,
    topic_id: bytes | None = None,
    partition: int | None = None,
) -> DecodedFrame:
    """The rows of ``frame`` (exactly one frame, whole or pruned), with every checksum and every value validated.

    ``columns``: ids, also those of system columns; None: all of the latest schema and of the system. With ``topic_id``
    and ``partition`` the leader's stamp is verified. Raises `CorruptRecordError`, `UnsupportedVersionError`,
    `SchemaMismatchError` for a schema id that ``schemas`` does not know yet, and `MemoryError` if the process has no
    memory for the rows.
    """
    buffer = frame if isinstance(frame, pa.Buffer) else pa.py_buffer(frame)
    view = memoryview(buffer).cast("B")
    header = parse_checked_header(view)
    if header.stored_bytes != len(view):
        raise CorruptRecordError(f"a frame of {header.stored_bytes} bytes in a buffer of {len(view)}")
    if topic_id is not None and partition is not None:
        check_stamp(view, topic_id=topic_id, partition=partition)
    directory = parse_directory(view, header)
    schema = schemas.get(header.schema_id)
    check_columns(directory.columns, schema)
    latest = schemas.latest
    wanted = tuple(columns) if columns is not None else _all_columns(latest)
    found = _decode_chunks(buffer, view, header, directory, schema, frozenset(wanted))

    batch = _batch(found, latest, [column_id for column_id in wanted if column_id < TIMESTAMP_COLUMN_ID], header)
    timestamps = found.get(TIMESTAMP_COLUMN_ID)
    constant: int | None = None
    if header.timestamp_type:
        constant, timestamps = header.append_time_ms, None
    elif timestamps is not None:
        _check_times(timestamps, header)
    elif TIMESTAMP_COLUMN_ID not in directory.columns:
        constant = header.base_timestamp_ms
        if constant != header.max_timestamp_ms:
            raise CorruptRecordError(
                f"timestamps of {constant} to {header.max_timestamp_ms} ms, and no column that says whose is which"
            )
    return DecodedFrame(
        header=header,
        batch=batch,
        constant_timestamp_ms=constant,
        timestamps=timestamps,
        headers=found.get(HEADERS_COLUMN_ID),
    )


def _check_times(timestamps: pa.Array, header: FrameHeader) -> None:
    """Brokers know a frame's times by its header alone: rows that contradict it would be found at other times."""
    bounds = pc.min_max(timestamps)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if not header.base_timestamp_ms <= low <= high <= header.max_timestamp_ms:
        raise CorruptRecordError(
            f"timestamps of {low} to {high} ms in a frame whose header says {header.base_timestamp_ms} to "
            f"{header.max_timestamp_ms}"
        )


def _all_columns(schema: TopicSchema) -> tuple[int, ...]:
    return (*range(len(schema.arrow)), TIMESTAMP_COLUMN_ID, HEADERS_COLUMN_ID)


def _decode_chunks(
    buffer: pa.Buffer,
    view: memoryview,
    header: FrameHeader,
    directory: Directory,
    schema: TopicSchema,
    wanted: frozenset[int],
) -> dict[int, pa.Array]:
    """The wanted columns that the frame has, by id. Every chunk that is present is verified, wanted or not."""
    position, present = chunks_present(view, header)
    found: dict[int, pa.Array] = {}
    first = 0
    for index, chunk in enumerate(directory.chunks):
        ids = directory.columns[first : first + chunk.column_count]
        first += chunk.column_count
        if not present >> index & 1:
            if not wanted.isdisjoint(ids):
                raise CorruptRecordError(
                    f"a pruned frame lacks the columns {sorted(wanted.intersection(ids))} asked for"
                )
            continue
        end = position + chunk.length
        if end > len(view):
            raise CorruptRecordError("a pruned frame has more chunks than bytes")
        check_crc(view[position:end], chunk.crc, index)
        if not wanted.isdisjoint(ids):
            check_chunk(view[position:end], schema, ids, header, chunk.uncompressed_bytes)
            layout = chunk_layout(schema, ids)
            batch = _read(buffer.slice(position, chunk.length), layout.schema)
            for i, column_id in enumerate(ids):
                if column_id in wanted:
                    found[column_id] = _validated(batch.column(i), layout.fields[i], layout.required_inside[i])
        position = end
    if position != len(view):
        raise CorruptRecordError(f"a frame's chunks end at {position}, the frame has {len(view)} bytes")
    return found


def _read(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    try:
        return pa.ipc.read_record_batch(message, schema)
    except MemoryError:  # Arrow raises it, too. The bytes are not at fault.
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        if any(words in str(error) for words in _OUT_OF_MEMORY):
            raise MemoryError(str(error)) from None
        raise CorruptRecordError(f"a chunk is not a record batch of its columns: {error}") from None


def _validated(column: pa.Array, field: pa.Field, required_inside: bool) -> pa.Array:
    # The chunk's metadata says how many nulls the column itself has. Only nested nulls must be looked up in the values.
    try:
        column.validate(full=True)
        if required_inside:
            check_nulls(column, field)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, SchemaMismatchError) as error:
        raise _of_values(column, field, error) from None
    return column


def _of_values(column: pa.Array, field: pa.Field, error: Exception) -> CorruptRecordError:
    """The checksums are right. If the buffers hold together, it is the producer that did not check a value."""
    bad = find_bad_value(column, field)
    if bad is None:
        return CorruptRecordError(f"the values of column {field.name!r} are damaged: {error}")
    corrupt = CorruptRecordError(f"row {bad.row} holds a value that no reader accepts ({bad})")
    corrupt.unreadable = bad.row, str(bad)
    return corrupt


def _batch(found: dict[int, pa.Array], latest: TopicSchema, ids: list[int], header: FrameHeader) -> pa.RecordBatch:
    rows = header.record_count
    arrays = []
    for column_id in ids:
        array = found.get(column_id)
        arrays.append(pa.nulls(rows, latest.arrow.field(column_id).type) if array is None else array)
    schema = chunk_layout(latest, tuple(ids)).schema
    if not arrays:
        return pa.RecordBatch.from_struct_array(empty_rows(rows))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
