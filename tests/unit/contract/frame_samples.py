"""Frames of every type that a topic can have, for tests that need one of each. Small, and the same in every run."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from broker_runtime.contract.frame import HEADERS_TYPE, encode_frame, plan_projection
from broker_runtime.contract.frame.directory import parse_directory
from broker_runtime.contract.frame.header import Buffer, parse_checked_header
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema
from broker_runtime.contract.statistics import ColumnStatistics

TOPIC_ID = bytes(range(16))
PARTITION = 3

LEAVES: dict[str, tuple[pa.DataType, list[object]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "tiny": (pa.int8(), [-128, None, 127]),
    "small": (pa.int16(), [-1, None, 32767]),
    "whole": (pa.int32(), [1, None, -(2**31)]),
    "big": (pa.int64(), [2**62, None, -1]),
    "single": (pa.float32(), [1.5, None, float("-inf")]),
    "double": (pa.float64(), [0.1, None, float("nan")]),
    "money": (pa.decimal128(38, 10), [decimal.Decimal("-12345678901234567890.5"), None, decimal.Decimal("0.01")]),
    "text": (pa.string(), ["", None, "grüße \U0001f30d"]),
    "blob": (pa.binary(), [b"", None, b"\x00\xff"]),
    "day": (pa.date32(), [datetime.date(1969, 12, 31), None, datetime.date(2024, 2, 29)]),
    "instant": (
        pa.timestamp("us", "UTC"),
        [datetime.datetime(2024, 5, 6, 7, 8, 9, 10), None, datetime.datetime(1, 1, 1)],
    ),
    "wall": (pa.timestamp("us"), [datetime.datetime(2024, 5, 6, 7, 8, 9, 10), None, datetime.datetime(9999, 12, 31)]),
    "clock": (pa.time64("ns"), [datetime.time(23, 59, 59, 999999), None, datetime.time(0)]),
    "span": (pa.duration("us"), [datetime.timedelta(days=-1), None, datetime.timedelta(microseconds=1)]),
    "nothing": (pa.null(), [None, None, None]),
}
NESTED: dict[str, tuple[pa.DataType, list[object]]] = {
    "list": (pa.list_(pa.field("element", pa.int32())), [[1, None, 3], None, []]),
    "strings": (pa.list_(pa.field("element", pa.string())), [["a", ""], None, [None]]),
    "pairs": (
        pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())),
        [[("a", 1), ("b", None)], None, []],
    ),
    "record": (
        pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string()), pa.field("c", pa.bool_())]),
        [{"a": 1, "b": "x", "c": None}, None, {"a": None, "b": None, "c": True}],
    ),
    "deep": (
        pa.list_(
            pa.field(
                "element",
                pa.struct(
                    [
                        pa.field(
                            "m",
                            pa.map_(
                                pa.field("key", pa.int32(), nullable=False),
                                pa.field("value", pa.list_(pa.field("element", pa.decimal128(5, 2)))),
                            ),
                        )
                    ]
                ),
            )
        ),
        [[{"m": [(1, [decimal.Decimal("1.25"), None])]}], None, [None, {"m": None}]],
    ),
}
EVERY_TYPE = {**LEAVES, **NESTED}


class Sample(NamedTuple):
    """A frame, its schemas, and its content."""

    name: str
    frame: bytes
    schemas: SchemaHistory
    batch: pa.RecordBatch
    timestamps: int | pa.Array
    headers: pa.Array | None


def typed_schema(types: dict[str, tuple[pa.DataType, list[object]]], schema_id: int = 0) -> TopicSchema:
    """A topic's schema with the named columns, all nullable."""
    return TopicSchema(schema_id=schema_id, arrow=pa.schema([(name, kind) for name, (kind, _) in types.items()]))


def typed_batch(types: dict[str, tuple[pa.DataType, list[object]]], repeat: int = 1) -> pa.RecordBatch:
    """The columns with their values, ``repeat`` times."""
    schema = typed_schema(types).arrow
    return pa.RecordBatch.from_arrays(
        [pa.array(values * repeat, kind) for kind, values in types.values()], schema=schema
    )


def encode_in_chunks(batch: pa.RecordBatch, schema: TopicSchema, **options: object) -> bytes:
    """`encode_frame` with a chunk per column, even for a small frame."""
    return encode_frame(batch, schema, chunk_per_column_bytes=0, **options).to_pybytes()  # type: ignore[arg-type]


def untyped_batch() -> pa.RecordBatch:
    """Three records of an untyped topic."""
    return pa.RecordBatch.from_arrays(
        [pa.array([b"k1", None, b""], pa.binary()), pa.array([b"v1", b"", None], pa.binary())], schema=UNTYPED.arrow
    )


HEADERS = pa.array([[("a", b"1"), ("a", None)], None, []], HEADERS_TYPE)
TIMESTAMPS = pa.array([1_700_000_000_002, 1_700_000_000_000, 1_700_000_000_001], pa.int64())


def pruned_answer(frame: Buffer, columns: Iterable[int]) -> bytes:
    """The answer to a reader of ``columns`` for a whole frame."""
    projection = plan_projection(frame, columns)
    view = memoryview(frame).cast("B")
    return b"".join([bytes(projection.prefix), *(view[start:end] for start, end in projection.ranges)])


def statistics_of(head: Buffer) -> dict[int, ColumnStatistics]:
    """The statistics of a frame's directory by column id; header and directory are enough."""
    view = memoryview(head).cast("B")
    return parse_directory(view, parse_checked_header(view)).statistics()


def samples() -> list[Sample]:
    """One frame of each kind: every type, both layouts, every codec."""
    made = []

    def add(name: str, batch: pa.RecordBatch, schema: TopicSchema, chunks: bool, codec: str, full: bool) -> None:
        timestamps: int | pa.Array = TIMESTAMPS if full else 1_700_000_000_000
        if full and batch.num_rows > 3:
            timestamps = pa.concat_arrays([TIMESTAMPS] * (batch.num_rows // 3))
        headers = HEADERS if full and batch.num_rows == 3 else None
        encode = encode_in_chunks if chunks else lambda *a, **k: encode_frame(*a, **k).to_pybytes()
        frame = encode(batch, schema, timestamps=timestamps, headers=headers, codec=codec)
        made.append(Sample(name, frame, SchemaHistory([schema]), batch, timestamps, headers))

    for codec in ("none", "lz4", "zstd"):
        add(f"untyped-{codec}", untyped_batch(), UNTYPED, False, codec, False)
        add(f"untyped-full-{codec}", untyped_batch(), UNTYPED, False, codec, True)
        add(f"untyped-chunks-{codec}", untyped_batch(), UNTYPED, True, codec, True)
        add(f"leaves-{codec}", typed_batch(LEAVES), typed_schema(LEAVES), False, codec, False)
        add(f"leaves-chunks-{codec}", typed_batch(LEAVES), typed_schema(LEAVES), True, codec, True)
        add(f"nested-{codec}", typed_batch(NESTED), typed_schema(NESTED), False, codec, False)
        add(f"nested-chunks-{codec}", typed_batch(NESTED), typed_schema(NESTED), True, codec, True)
        for name, column in EVERY_TYPE.items():
            if name in ("text", "deep", "record", "money", "flag", "pairs"):
                one = {name: column}
                add(f"{name}-{codec}", typed_batch(one, 20), typed_schema(one), False, codec, True)
    return made
