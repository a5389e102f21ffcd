"""The rows that every comparison moves: Kafka's columns with 100-byte values, five typed columns, twenty columns.

Rule: made once, deterministic, by Arrow and numpy; no comparison's clock runs while rows are made.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

VALUE_BYTES = 100
START_MS = 1_700_000_000_000

KAFKA_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""What Spark's Kafka source yields, and pylog's for a topic without a schema."""

TYPED = pa.schema(
    [
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("distance", pa.int64()),
        ("delay", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
WIDE = pa.schema([(f"c{position:02}", pa.int64() if position % 2 else pa.float64()) for position in range(20)])
WIDE_COLUMN = "c07"

_CARRIERS = ["UA", "AA", "DL", "B6", "EV", "MQ", "US", "9E", "WN", "VX"]


def fixed_binary(rows: int, width: int = VALUE_BYTES, seed: int = 1) -> pa.Array:
    """``rows`` random values of ``width`` bytes each, as a binary column."""
    content = np.random.default_rng(seed).integers(0, 256, rows * width, dtype=np.uint8)
    ends = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(content)])


def values_batch(rows: int) -> pa.RecordBatch:
    """One column ``value``, as for a topic without a schema."""
    return one_value_column(rows, VALUE_BYTES)


def one_value_column(rows: int, width: int) -> pa.RecordBatch:
    """As `values_batch`, with values of ``width`` bytes."""
    return pa.RecordBatch.from_arrays([fixed_binary(rows, width)], names=["value"])


def kafka_batch(rows: int) -> pa.RecordBatch:
    """Kafka's seven columns, keys null, as a reader of one partition yields them."""
    times = pa.array(np.arange(START_MS, START_MS + rows, dtype=np.int64) * 1000, pa.timestamp("us", tz="UTC"))
    columns = [
        pa.nulls(rows, pa.binary()),
        fixed_binary(rows),
        pa.array(["bench"] * rows, pa.string()),
        pa.array(np.zeros(rows, np.int32)),
        pa.array(np.arange(rows, dtype=np.int64)),
        times,
        pa.array(np.zeros(rows, np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KAFKA_COLUMNS)


def typed_batch(rows: int) -> pa.RecordBatch:
    """Five columns: a short string, two integers, a double, a timestamp."""
    random = np.random.default_rng(2)
    carriers = pa.array(_CARRIERS).take(pa.array(random.integers(0, len(_CARRIERS), rows)))
    columns = [
        carriers,
        pa.array(random.integers(1, 9_000, rows, dtype=np.int32)),
        pa.array(random.integers(80, 5_000, rows, dtype=np.int64)),
        pa.array(random.normal(5, 30, rows)),
        pa.array(np.arange(START_MS, START_MS + rows, dtype=np.int64) * 1000, pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TYPED)


def wide_batch(rows: int) -> pa.RecordBatch:
    """Twenty columns of eight bytes."""
    random = np.random.default_rng(3)
    columns = [
        pa.array(random.integers(0, 1 << 40, rows)) if position % 2 else pa.array(random.random(rows))
        for position in range(len(WIDE))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WIDE)


def one_column_batch(rows: int) -> pa.RecordBatch:
    """One of the twenty columns, by itself."""
    return wide_batch(rows).select([WIDE_COLUMN])
