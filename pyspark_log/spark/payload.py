"""How many bytes the values of rows have, however the rows are spread over batches and tasks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


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
