"""Python mappings checked against a typed topic's schema as they are sent, so that the mistake shows where it is made.

Rule: unknown, missing and wrong fields are refused by name; nothing is converted but what Arrow itself takes for the
type. Columns are made later, for a whole frame at once (`gathering`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.schema.topic import nearest
from pyspark_log.client.gathering import RECORD_OVERHEAD_BYTES, text_bytes

_FIXED_VALUE_BYTES = 16


class RowCheck:
    """What a topic's rows must look like. Immutable."""

    def __init__(self, topic: str, schema: TopicSchema) -> None:
        self._topic = topic
        self._names = tuple(schema.arrow.names)
        self._known = frozenset(self._names)
        self._checks = tuple(_Field(field) for field in schema.arrow)
        self._key_index = None if schema.key is None else self._names.index(schema.key)
        self._key_type = None if schema.key is None else schema.arrow.field(schema.key).type

    def row(self, given: object) -> tuple[Any, ...]:
        """The columns' values in order; fields left out that may be null are None. Raises `SchemaMismatchError`."""
        if not isinstance(given, Mapping):
            raise SchemaMismatchError(
                f"topic {self._topic!r} has a schema: send a mapping of {', '.join(self._names)}, "
                f"not {type(given).__name__}"
            )
        if not self._known.issuperset(given):
            unknown = next(name for name in given if name not in self._known)
            raise SchemaMismatchError(f"topic {self._topic!r} has no column {unknown!r}{nearest(unknown, self._names)}")
        get = given.get
        return tuple([check(get(check.name)) for check in self._checks])

    def key_bytes(self, row: tuple[Any, ...]) -> bytes | None:
        """The bytes whose hash chooses the partition: of the key column, None without one or if it is null."""
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
        """About what the row costs in memory and in a frame."""
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


class _Field:
    """One column: a quick test for the usual Python types, Arrow's own conversion for all else."""

    __slots__ = ("_kind", "_plain", "_required", "name")

    def __init__(self, field: pa.Field) -> None:
        self.name: str = field.name
        self._kind = field.type
        self._required = not field.nullable
        self._plain = _plain_test(field.type)

    def __call__(self, value: Any) -> Any:
        if value is None:
            if self._required:
                raise SchemaMismatchError(f"column {self.name!r} allows no nulls and is missing or None")
            return None
        if self._plain is not None:
            if self._plain(value):
                return value
            raise SchemaMismatchError(f"column {self.name!r} is {self._kind}, not {type(value).__name__} {value!r:.80}")
        try:
            pa.scalar(value, self._kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatchError(f"column {self.name!r} is {self._kind}, not {value!r:.80}: {error}") from None
        return value


def _plain_test(kind: pa.DataType) -> Callable[[Any], bool] | None:
    if pt.is_string(kind):
        return lambda value: isinstance(value, str)
    if pt.is_binary(kind):
        return lambda value: isinstance(value, (bytes, bytearray, memoryview))
    if pt.is_boolean(kind):
        return lambda value: isinstance(value, bool)
    if pt.is_integer(kind):
        bits = kind.bit_width
        low, high = (-(1 << bits - 1), 1 << bits - 1) if pt.is_signed_integer(kind) else (0, 1 << bits)
        return lambda value: hasattr(value, "__index__") and not isinstance(value, bool) and low <= value < high
    if pt.is_floating(kind):
        return lambda value: hasattr(value, "__float__") and not isinstance(value, (bool, str))
    return None
