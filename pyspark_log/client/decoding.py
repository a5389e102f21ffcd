"""What arrived for a consumer, decoded: batches of frames, records of batches.

Rule: a frame is checked in full before anything of it is seen (`decode_frame`); rows below the position are cut off
without a copy. Records are made column by column, a slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from broker_runtime.contract.errors import InconsistentTopicIdError
from broker_runtime.contract.frame import iter_frames
from broker_runtime.contract.model import TimestampType
from pyspark_log.client.cluster import Cluster
from pyspark_log.client.partition_state import Arrived, PartitionState
from pyspark_log.client.records import ConsumedBatch, Record, headers_of

Deserializer = Callable[[bytes], Any]


def decode(cluster: Cluster, state: PartitionState, arrived: Arrived) -> Iterator[ConsumedBatch]:
    """The batches in what arrived, from ``state.position`` on. Raises `CorruptRecordError`.

    A schema unknown yet is asked for; that raises as `Cluster.topic`, and `InconsistentTopicIdError`.
    """
    position = state.position
    for header, frame in iter_frames(arrived.buffer):
        if header.is_control or header.next_offset <= position:
            continue
        if not state.topic.schemas.knows(header.schema_id):
            newer = cluster.topic(state.at.topic, max_age=state.topic)
            if newer.topic_id != state.topic.topic_id:
                raise InconsistentTopicIdError(f"topic {state.at.topic!r} was deleted and made anew")
            state.topic = newer
        decoded = state.topic.decode(frame, header, state.at.partition, state.columns)
        constant = decoded.constant_timestamp_ms
        batch = ConsumedBatch(
            topic=state.at.topic,
            partition=state.at.partition,
            batch=decoded.batch,
            base_offset=header.base_offset,
            times=decoded.timestamps if constant is None else constant,
            timestamp_type=TimestampType(header.timestamp_type),
            headers=decoded.headers,
        )
        yield batch if header.base_offset >= position else batch.slice(position - header.base_offset)


def records_of(
    batch: ConsumedBatch,
    *,
    key: str | None,
    is_typed: bool,
    key_from: Deserializer | None,
    value_from: Deserializer | None,
) -> list[Record]:
    """The batch's records. ``key``: a typed topic's key column."""
    rows = len(batch)
    constant = batch.constant_timestamp_ms
    times = repeat(constant, rows) if constant is not None else batch.timestamps_ms.to_pylist()
    mappings: Iterable[Any] = repeat(None, rows)
    if is_typed:
        names = batch.batch.schema.names
        rows_of_values = zip(*map(_values, batch.batch.columns), strict=True) if names else repeat((), rows)
        mappings = [dict(zip(names, row, strict=True)) for row in rows_of_values]
        keys = _column(batch.batch, key, rows)
        values = [None] * rows
    else:
        keys = _converted(_column(batch.batch, "key", rows), key_from)
        values = _converted(_column(batch.batch, "value", rows), value_from)
    columns = zip(
        repeat(batch.topic, rows),
        repeat(batch.partition, rows),
        range(batch.base_offset, batch.next_offset),
        times,
        repeat(batch.timestamp_type, rows),
        keys,
        values,
        headers_of(batch.headers, rows),
        mappings,
        strict=True,
    )
    # As `Record(*each)` for each of them, at half its cost.
    return list(map(tuple.__new__, repeat(Record, rows), columns))


def _column(batch: pa.RecordBatch, name: str | None, rows: int) -> list[Any]:
    if name is None or name not in batch.schema.names:
        return [None] * rows
    return _values(batch.column(name))


def _values(column: pa.Array) -> list[Any]:
    """As Python has them; dates and timestamps outside its years as counts, which `Producer.send` takes as well."""
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        return [_value(scalar) for scalar in column]
    return values


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(each) for name, each in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_value(each) for each in scalar.values]
    try:
        return scalar.as_py()
    except OverflowError:
        return scalar.value


def _converted(column: list[Any], convert: Deserializer | None) -> list[Any]:
    return column if convert is None else [None if value is None else convert(value) for value in column]
