"""Schemas whose names no Python client can create: bytes that are not UTF-8, as any other peer may send them."""

from __future__ import annotations

import pyarrow as pa

MARK = "NAME"
"""Every name and time zone with this text gets bytes of the same length that are not UTF-8."""
_NOT_UTF8 = b"N\xff\xfeE"

_INSIDE = pa.struct([pa.field(MARK, pa.int32())])

FOREIGN_SCHEMAS: dict[str, pa.Schema] = {
    "column": pa.schema([pa.field(MARK, pa.binary())]),
    "second column": pa.schema([pa.field("value", pa.binary()), pa.field(MARK, pa.int32())]),
    "time zone": pa.schema([pa.field("value", pa.timestamp("us", tz=MARK))]),
    "struct": pa.schema([pa.field("value", _INSIDE)]),
    "list": pa.schema([pa.field("value", pa.list_(pa.field(MARK, pa.int32())))]),
    "list view": pa.schema([pa.field("value", pa.list_view(_INSIDE))]),
    "map": pa.schema([pa.field("value", pa.map_(pa.string(), _INSIDE))]),
    "union": pa.schema([pa.field("value", pa.dense_union([pa.field(MARK, pa.int32())]))]),
    "dictionary": pa.schema([pa.field("value", pa.dictionary(pa.int32(), _INSIDE))]),
    "run-end encoded": pa.schema([pa.field("value", pa.run_end_encoded(pa.int32(), _INSIDE))]),
    "extension": pa.schema([pa.field("value", pa.opaque(_INSIDE, "type", "vendor"))]),
    "zone in a list": pa.schema([pa.field("value", pa.list_(pa.timestamp("us", tz=MARK)))]),
}
"""Every place for names and zones, each with `MARK` in place of the bytes."""


def foreign_bytes(ipc: pa.Buffer) -> bytes:
    """An IPC message, or a whole stream of them, with every `MARK` replaced."""
    data: bytes = ipc.to_pybytes()
    assert MARK.encode() in data
    return data.replace(MARK.encode(), _NOT_UTF8)


def foreign_schema(kind: str) -> pa.Schema:
    """One of `FOREIGN_SCHEMAS`, as it is received."""
    return pa.ipc.read_schema(pa.py_buffer(foreign_bytes(FOREIGN_SCHEMAS[kind].serialize())))


def foreign_batch(kind: str) -> pa.RecordBatch:
    """A batch without rows of one of `FOREIGN_SCHEMAS`, as it is received."""
    sink = pa.BufferOutputStream()
    schema = FOREIGN_SCHEMAS[kind]
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(_empty(schema))
    return pa.ipc.open_stream(foreign_bytes(sink.getvalue())).read_next_batch()


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
