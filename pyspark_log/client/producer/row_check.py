"""Python mappings checked against a typed topic's schema when they are sent, so that `Producer.send` raises the error.

Rule: unknown, missing and wrong fields are refused by name, at any depth (`column_values` defines what a column takes).
Columns are made later, for a whole batch at once (`batch_builder`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.suggestion import suggestion
from pyspark_log.client.producer.batch_builder import RECORD_OVERHEAD_BYTES, text_bytes
from pyspark_log.client.producer.column_values import value_check

_FIXED_VALUE_BYTES = 16


class RowCheck:
    """What a topic's rows must look like. Immutable."""

    def __init__(self, topic: str, schema: TopicSchema) -> None:
        self._topic = topic
        self._names = tuple(schema.arrow.names)
        self._known = frozenset(self._names)
        self._checks = tuple((field.name, value_check(field, field.name)) for field in schema.arrow)
        self._key_index = None if schema.key is None else self._names.index(schema.key)
        self._key_type = None if schema.key is None else schema.arrow.field(schema.key).type

    def row(self, given: object) -> tuple[Any, ...]:
        """The columns' values in order; a nullable field that is left out is None. Raises `SchemaMismatchError`."""
        if not isinstance(given, Mapping):
            raise SchemaMismatchError(
                f"topic {self._topic!r} has a schema: send a mapping of {', '.join(self._names)}, "
                f"not {type(given).__name__}"
            )
        if not self._known.issuperset(given):
            unknown = next(name for name in given if name not in self._known)
            raise SchemaMismatchError(
                f"topic {self._topic!r} has no column {unknown!r}; {suggestion(str(unknown), self._names)}"
            )
        get = given.get
        return tuple([check(get(name)) for name, check in self._checks])

    def key_bytes(self, row: tuple[Any, ...]) -> bytes | None:
        """The key column's bytes, whose hash chooses the partition; None without a key column, or if it is null."""
        if self._key_index is None:
            return None
        key = row[self._key_index]
        if key is None:
            return None
        if isinstance(key, str):
            return key.encode()
        if isinstance(key, int):
            kind: Any = self._key_type
            width = 8 if kind.bit_width == 64 or kind == pa.uint32() else 4
            return (key & (1 << 8 * width) - 1).to_bytes(width, "big")
        return bytes(key)

    def size(self, row: tuple[Any, ...]) -> int:
        """The approximate size of the row in memory and in a frame."""
        return RECORD_OVERHEAD_BYTES + sum(map(_value_bytes, row))


def _value_bytes(value: Any) -> int:
    if isinstance(value, str):
        return _FIXED_VALUE_BYTES + text_bytes(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _FIXED_VALUE_BYTES + len(value)
    if isinstance(value, Mapping):
        return _FIXED_VALUE_BYTES + sum(_value_bytes(k) + _value_bytes(v) for k, v in value.items())
    if isinstance(value, Iterable):
        return _FIXED_VALUE_BYTES + sum(map(_value_bytes, value))
    return _FIXED_VALUE_BYTES
