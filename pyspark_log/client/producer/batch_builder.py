"""The frame of a batch of records, built from the lists that `Producer.send` appends to.

Rule: a record costs one append, and one more each for a key, headers or a timestamp. Arrow makes the columns of a whole
batch at once. The lists of keys, timestamps and headers exist only from the first record that has one, and are filled
up with None at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from broker_runtime.contract.errors import InvalidTimestampError, SchemaMismatchError
from broker_runtime.contract.frame import HEADERS_TYPE, encode_frame
from broker_runtime.contract.schema import TopicSchema
from pyspark_log.client.producer.delivery import Delivery

RECORD_OVERHEAD_BYTES = 64
"""What a record costs in ``buffer.memory`` in addition to its key and value."""
_HEADER_OVERHEAD_BYTES = 16

Headers = Sequence[tuple[str, bytes | None]]


class BatchBuilder:
    """The records of one sealed batch. ``values``: bytes or None; of typed topics, a tuple of columns per record."""

    __slots__ = ("delivery", "headers", "keys", "schema", "timestamps", "values")

    def __init__(
        self,
        delivery: Delivery,
        schema: TopicSchema,
        values: list[Any],
        keys: list[bytes | None] | None,
        timestamps: list[int | None] | None,
        headers: list[Headers | None] | None,
    ) -> None:
        self.delivery = delivery
        self.schema = schema
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.headers = headers

    def encode(self, codec: str) -> pa.Buffer:
        """The frame. Raises `RequestError` if no frame can be made of the records."""
        count = len(self.values)
        batch = self._typed_batch() if self.schema.is_typed else self._untyped_batch(count)
        timestamps: int | pa.Array = self.delivery.base_timestamp_ms
        if self.timestamps is not None:
            base = self.delivery.base_timestamp_ms
            times = [base if t is None else t for t in filled(self.timestamps, count)]
            try:
                timestamps = pa.array(times, pa.int64())
            except MemoryError:
                raise
            except (pa.ArrowException, OverflowError, TypeError) as error:
                raise InvalidTimestampError(f"a timestamp is ms since the epoch: {error}") from None
        headers = None
        if self.headers is not None:
            rows = [None if not h else [{"key": k, "value": v} for k, v in h] for h in filled(self.headers, count)]
            headers = pa.array(rows, HEADERS_TYPE)
        return encode_frame(batch, self.schema, timestamps=timestamps, headers=headers, codec=codec)

    def _untyped_batch(self, count: int) -> pa.RecordBatch:
        values = _binary_column(self.values)
        if self.keys is None:
            return pa.RecordBatch.from_arrays([values], ["value"])
        keys = _binary_column(filled(self.keys, count))
        return pa.RecordBatch.from_arrays([keys, values], ["key", "value"])

    def _typed_batch(self) -> pa.RecordBatch:
        arrays = []
        width, rows = len(self.schema.arrow), self.values
        if any(len(row) < width for row in rows):  # checked before columns were added, which are nullable
            rows = [(*row, *[None] * (width - len(row))) for row in rows]
        for field, column in zip(self.schema.arrow, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(pa.array(column, field.type))
            except MemoryError:
                raise
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise SchemaMismatchError(f"column {field.name!r} is {field.type}: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)


def headers_bytes(headers: Headers) -> int:
    """The approximate size of a record's headers in memory and in a frame."""
    return sum(_HEADER_OVERHEAD_BYTES + text_bytes(name) + len(value or b"") for name, value in headers)


def text_bytes(text: str) -> int:
    """The length of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def filled(column: list[Any], count: int) -> list[Any]:
    """``column``, extended with None to ``count`` records."""
    column.extend([None] * (count - len(column)))
    return column


def _binary_column(values: list[bytes | None]) -> pa.Array:
    """The values as a column. (``pa.array`` of a list imports pandas: see `arrays`.)"""
    try:
        content = b"".join(values)  # type: ignore[arg-type]  # nulls are what the except is for
    except TypeError:
        return pa.array(values, pa.binary())
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])  # type: ignore[arg-type]
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(content)])
