"""What a chunk of given columns must look like: its Arrow schema, its numbers of nodes and buffers.

Layouts are derived once per schema and choice of columns, then cached (with a bound), so that a frame costs no work per
column here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame.directory import HEADERS_COLUMN_ID, TIMESTAMP_COLUMN_ID
from broker_runtime.contract.frame.message import BatchMetadata
from broker_runtime.contract.schema.cast import has_required_inside
from broker_runtime.contract.schema.topic import TopicSchema

TIMESTAMP_FIELD = pa.field("__timestamp", pa.int64(), nullable=False)
HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
HEADERS_FIELD = pa.field("__headers", HEADERS_TYPE)


class ChunkLayout(NamedTuple):
    """The layout of a chunk, by column.

    ``first_nodes``: the index of each column's own node. ``required``: which columns allow no nulls.
    ``required_inside``: which columns have a nested field that allows none.
    """

    schema: pa.Schema
    fields: tuple[pa.Field, ...]
    node_count: int
    buffer_count: int
    first_nodes: tuple[int, ...]
    required: tuple[bool, ...]
    required_inside: tuple[bool, ...]

    def check(self, metadata: BatchMetadata, record_count: int) -> None:
        """Raises `CorruptRecordError` unless ``metadata`` is of these columns with ``record_count`` rows."""
        if metadata.rows != record_count:
            raise CorruptRecordError(f"a chunk of {metadata.rows} rows in a frame of {record_count}")
        if metadata.node_count != self.node_count or metadata.buffer_count != self.buffer_count:
            raise CorruptRecordError(
                f"a chunk with {metadata.node_count} nodes and {metadata.buffer_count} buffers; its columns "
                f"{self.schema.names} have {self.node_count} and {self.buffer_count}"
            )
        nodes = metadata.nodes
        for column, node in enumerate(self.first_nodes):
            if nodes[2 * node] != record_count:
                raise CorruptRecordError(
                    f"column {self.schema.names[column]} has {nodes[2 * node]} values in a frame of {record_count}"
                )
            if self.required[column] and nodes[2 * node + 1]:
                raise CorruptRecordError(f"column {self.schema.names[column]} allows no nulls and has some")


@lru_cache(maxsize=1024)
def missing_row_bytes(schema: TopicSchema, columns: tuple[int, ...]) -> int:
    """How many bytes a reader allocates for each row of a frame that has only these columns: the others are null, and
    Arrow has them whole."""
    return sum(_row_bytes(field.type) for column_id, field in enumerate(schema.arrow) if column_id not in columns)


def _row_bytes(kind: pa.DataType) -> int:
    if pt.is_nested(kind) and not pt.is_list(kind) and not pt.is_map(kind):
        return 1 + sum(_row_bytes(kind.field(index).type) for index in range(kind.num_fields))
    try:
        return 1 + int(kind.bit_width) // 8
    except ValueError:  # of no fixed width: an offset into the values
        return 5


@lru_cache(maxsize=1024)
def chunk_layout(schema: TopicSchema, columns: tuple[int, ...]) -> ChunkLayout:
    """The layout of a chunk that holds ``columns`` (ids) of ``schema``. Raises `CorruptRecordError` for unknown ids."""
    fields = [column_field(schema, column_id) for column_id in columns]
    nodes = buffers = 0
    first_nodes = []
    for field in fields:
        first_nodes.append(nodes)
        field_nodes, field_buffers = _size_of(field.type)
        nodes += field_nodes
        buffers += field_buffers
    return ChunkLayout(
        pa.schema(fields),
        tuple(fields),
        nodes,
        buffers,
        tuple(first_nodes),
        tuple(not field.nullable for field in fields),
        tuple(has_required_inside(field.type) for field in fields),
    )


def column_field(schema: TopicSchema, column_id: int) -> pa.Field:
    """The Arrow field of one column, the system's included. Raises `CorruptRecordError` for an unknown id."""
    if column_id == TIMESTAMP_COLUMN_ID:
        return TIMESTAMP_FIELD
    if column_id == HEADERS_COLUMN_ID:
        return HEADERS_FIELD
    if column_id >= len(schema.arrow):
        raise CorruptRecordError(
            f"column id {column_id} is unknown to schema {schema.schema_id}, which has {len(schema.arrow)} columns"
        )
    return schema.arrow.field(column_id)


def _size_of(kind: pa.DataType) -> tuple[int, int]:
    """How many nodes and buffers a column of this type has in a message, children included."""
    if pt.is_null(kind):
        return 1, 0
    if pt.is_struct(kind):
        own, children = 1, [kind.field(i).type for i in range(kind.num_fields)]
    elif pt.is_map(kind):
        # A map has a child, its entries: a struct of key and value.
        keys, values = _size_of(kind.key_type), _size_of(kind.item_type)
        return 2 + keys[0] + values[0], 3 + keys[1] + values[1]
    elif pt.is_list(kind):
        own, children = 2, [kind.value_type]
    elif pt.is_string(kind) or pt.is_binary(kind):
        own, children = 3, []
    else:
        own, children = 2, []
    sizes = [_size_of(child) for child in children]
    return 1 + sum(size[0] for size in sizes), own + sum(size[1] for size in sizes)
