"""`Producer.send_batch`: frames from anything that speaks Arrow's C interface, by partition.

Rule: rows stay columns. A record batch is cast to the topic's schema once, its rows are divided among the partitions
(`topic_queues`), and those of each partition are cut into frames. Rows without a key are slices of the caller's memory
until they are encoded.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_runtime.contract.errors import InvalidTimestampError, SchemaMismatchError
from broker_runtime.contract.frame import HEADERS_TYPE, parse_header, split_into_frames
from broker_runtime.contract.schema import TopicSchema, cast_column, cast_to_topic
from broker_runtime.contract.suggestion import nearest
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import PartitionQueue
from pyspark_log.client.producer.topic_queues import TopicQueues, key_column

_SMALL_BYTES = 1 << 20  # the record batches of a stream are joined until each partition gets about this much
_MOST_JOINED_BYTES = 32 << 20  # for any number of partitions: these bytes are not part of buffer.memory
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_EXTRA = ("headers", "timestamp")


def batch_frames(
    queues: TopicQueues,
    data: Any,
    partition: int | None,
    codec: str,
    lock: threading.Lock,
    *,
    refreshed: Callable[[], TopicQueues],
) -> Iterator[tuple[PartitionQueue, Delivery, pa.Buffer]]:
    """The frames of ``data``, each with its partition and a delivery to be finished. ``lock``: the accumulator's.

    Data that does not fit the topic as ``queues`` knows it is tried once more with ``refreshed()``: a column may have
    been added since. Raises `SchemaMismatchError` and `InvalidTimestampError`, possibly after some frames were taken.
    """
    first_row = 0
    shares_count = 1 if partition is not None else len(queues.partitions)
    is_new = False
    for table in joined(_batches(data), min(_SMALL_BYTES * shares_count, _MOST_JOINED_BYTES)):
        now_ms = time.time_ns() // 1_000_000
        schema = queues.topic.schema
        try:
            batch, timestamps, headers = _columns(table, schema, now_ms)
        except SchemaMismatchError:
            if is_new or not schema.is_typed:
                raise
            queues, is_new = refreshed(), True
            schema = queues.topic.schema
            batch, timestamps, headers = _columns(table, schema, now_ms)
        with lock:
            shares = queues.shares(batch, key_column(batch, schema), partition)
        for queue, rows in shares:
            frames = split_into_frames(
                _pick(batch, rows),
                schema,
                timestamps=timestamps if isinstance(timestamps, int) else _pick(timestamps, rows),
                headers=None if headers is None else _pick(headers, rows),
                codec=codec,
                max_bytes=queues.max_message_bytes,
            )
            places = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
            taken = 0
            for frame in frames:
                header = parse_header(frame)
                delivery = Delivery(queue.topic, queue.partition, base_timestamp_ms=header.max_timestamp_ms)
                delivery.count = header.record_count
                delivery.rows = (first_row, places[taken : taken + delivery.count])
                taken += delivery.count
                yield queue, delivery, frame
        first_row += batch.num_rows


def joined(batches: Iterable[pa.RecordBatch], wanted_bytes: int) -> Iterator[pa.Table]:
    """The batches joined, without a copy, to tables of at least ``wanted_bytes``, except for the last. Never empty."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= wanted_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _batches(data: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield _without_index(data)
    elif hasattr(data, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(data):
            yield _without_index(batch)
    elif hasattr(data, "__arrow_c_array__"):
        yield _without_index(pa.record_batch(data))
    else:
        raise SchemaMismatchError(
            f"send_batch takes an object with __arrow_c_stream__ or __arrow_c_array__ (pyarrow, pandas, Polars, "
            f"DuckDB), not {type(data).__name__}"
        )


def _without_index(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the columns that pandas adds for its index."""
    names = batch.schema.names
    kept = [name for name in names if not _PANDAS_INDEX.fullmatch(name)]
    return batch if len(kept) == len(names) else batch.select(kept)


def _columns(
    table: pa.Table, schema: TopicSchema, now_ms: int
) -> tuple[pa.RecordBatch, int | pa.Array, pa.Array | None]:
    """The topic's columns, the timestamps and the headers of a part of the data."""
    if schema.is_typed:
        return cast_to_topic(table, schema), now_ms, None
    for name in table.schema.names:
        if table.schema.names.count(name) > 1:
            raise SchemaMismatchError(f"column {name!r} is there twice")
        if name not in schema.arrow.names and name not in _EXTRA:
            known = (*schema.arrow.names, *_EXTRA)
            meant = nearest(name, known)
            raise SchemaMismatchError(
                f"column {name!r}: a topic without a schema takes {', '.join(known)}"
                + ("" if meant is None else f"; did you mean {meant!r}?")
            )
    if "value" not in table.schema.names:
        raise SchemaMismatchError("column 'value' is missing: a topic without a schema needs it")
    batch = cast_to_topic(table.select([n for n in table.schema.names if n in schema.arrow.names]), schema)
    timestamps: int | pa.Array = now_ms
    if "timestamp" in table.schema.names:
        timestamps = _milliseconds(_whole(table.column("timestamp")), now_ms)
    headers = None
    if "headers" in table.schema.names:
        headers = cast_column(_whole(table.column("headers")), pa.field("headers", HEADERS_TYPE))
        pairs = headers.flatten()  # only those of these rows
        if pairs.null_count or pairs.field("key").null_count:
            raise SchemaMismatchError(
                "column 'headers' has a header without a name: headers are pairs of name and bytes"
            )
    return batch, timestamps, headers


def _milliseconds(column: pa.Array, now_ms: int) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise InvalidTimestampError(f"column 'timestamp' is {kind}, without a time zone")
        # Finer units are cut to ms; coarser ones may be out of its range.
        is_safe = kind.unit == "s"
        column = _in_range(column, pa.timestamp("ms", tz="UTC"), is_safe=is_safe).view(pa.int64())
    elif pa.types.is_integer(kind):
        column = _in_range(column, pa.int64(), is_safe=True)
    else:
        raise SchemaMismatchError(f"column 'timestamp' is {kind}; it must be a timestamp with a time zone, or ms")
    return column.fill_null(now_ms) if column.null_count else column


def _in_range(column: pa.Array, kind: pa.DataType, *, is_safe: bool) -> pa.Array:
    try:
        return pc.cast(column, kind, safe=is_safe)
    except pa.ArrowInvalid as error:
        raise InvalidTimestampError(f"column 'timestamp' is {column.type}, with times out of range: {error}") from None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _pick(column: Any, rows: np.ndarray | slice) -> Any:
    """The rows of an array or batch: a view of a slice, a copy of others."""
    if isinstance(rows, slice):
        return column.slice(rows.start, rows.stop - rows.start)
    return column.take(pa.array(rows))


def payload_bytes(data: pa.Table | pa.RecordBatch) -> int:
    """The bytes of all values in ``data``: texts and binaries as long as they are, numbers as wide as their type. Equal
    rows have equal bytes. Costs no look at a row: lengths are in the columns' offsets."""
    return sum(_bytes_of(chunk) for column in data.columns for chunk in _chunks(column))


def _chunks(column: Any) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _bytes_of(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_null(kind) or not len(array):
        return 0
    if (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    ):
        return int(pc.sum(pc.binary_length(array)).as_py() or 0)
    if pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return 4 * len(array) + sum(_bytes_of(part.slice(first, last - first)) for part in (array.keys, array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return 4 * len(array) + _bytes_of(array.values.slice(first, last - first))
    if pa.types.is_struct(kind):
        return sum(_bytes_of(part) for part in array.flatten())
    return len(array) * int(max(1, kind.bit_width // 8))
