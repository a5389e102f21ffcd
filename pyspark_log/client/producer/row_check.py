"""Python mappings checked against a typed topic's schema when they are sent, so that `Producer.send` raises the error.

Rule: unknown, missing and wrong fields are refused by name, at any depth (`column_values` defines what a column takes).
Columns are made later, for a whole batch at once (`batch_builder`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow.types as pt

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.suggestion import suggestion
from pyspark_log.client.producer.batch_builder import RECORD_OVERHEAD_BYTES, text_bytes
from pyspark_log.client.producer.column_values import column_check

_FIXED_VALUE_BYTES = 16


class RowCheck:
    """What a topic's rows must look like. Immutable."""

    def __init__(self, topic: str, schema: TopicSchema) -> None:
        self._topic = topic
        self._names = tuple(schema.arrow.names)
        self._known = frozenset(self._names)
        self._checks = tuple((field.name, *column_check(field, field.name)) for field in schema.arrow)
        self._key_index = None if schema.key is None else self._names.index(schema.key)
        is_long = schema.key is not None and pt.is_int64(schema.arrow.field(schema.key).type)
        self._key_width = 8 if is_long else 4  # of integers
        self._fixed_bytes = RECORD_OVERHEAD_BYTES + _FIXED_VALUE_BYTES * len(self._names)
        extra_bytes = [(index, _extra_bytes_of(field.type)) for index, field in enumerate(schema.arrow)]
        self._extra_bytes = tuple((index, extra) for index, extra in extra_bytes if extra is not None)

    def row(self, given: object) -> tuple[Any, ...]:
        """The columns' values in order; a nullable field that is left out is None. Raises `SchemaMismatchError`."""
        if type(given) is not dict and not isinstance(given, Mapping):
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
        return tuple(
            [
                value if type(value := get(name)) is kept or value is null else check(value)
                for name, kept, null, check in self._checks
            ]
        )

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
            width = self._key_width
            return (key & (1 << 8 * width) - 1).to_bytes(width, "big")
        return bytes(key)

    def size(self, row: tuple[Any, ...]) -> int:
        """The approximate size of the row in memory and in a frame."""
        size = self._fixed_bytes
        for index, extra_bytes in self._extra_bytes:
            value = row[index]
            if value is not None:
                size += extra_bytes(value)
        return size


def _extra_bytes_of(kind: Any) -> Callable[[Any], int] | None:
    """How much more than `_FIXED_VALUE_BYTES` a value takes, as a row has it; None: nothing."""
    if pt.is_string(kind):
        return text_bytes
    if pt.is_binary(kind):
        return len
    return _elements_bytes if pt.is_nested(kind) else None


def _elements_bytes(value: Any) -> int:
    return _value_bytes(value) - _FIXED_VALUE_BYTES


def _value_bytes(value: Any) -> int:
    if isinstance(value, str):
        return _FIXED_VALUE_BYTES + text_bytes(value)
    if isinstance(value, bytes):
        return _FIXED_VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return _FIXED_VALUE_BYTES + sum(_value_bytes(k) + _value_bytes(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return _FIXED_VALUE_BYTES + sum(map(_value_bytes, value))
    return _FIXED_VALUE_BYTES
