"""What a frame's directory says about a column: null count, NaN count, smallest and largest value.

The minimum and maximum are for predicates: by them `predicate.frames` says whether any row of a frame can match, and
brokers leave out frames in which none can. Producers write them; leaders check only that they are well formed and of
the column's kind.

Rule: a statistic may be missing but is never wrong.

- A column with a NaN has no min and no max, nor have binary, nested and void columns.
- Strings compare by their UTF-8 bytes. A min that is cut is smaller than the value it was cut from. A max that is cut
  is incremented, so that it is larger; it is left out if that is impossible.
- Decimals are stored as unscaled integers beside their scale, times as integers beside their unit.
- -0.0 and 0.0 are one value. A min of zero is stored as -0.0 and a max of zero as 0.0, so the bounds hold whether or
  not an order tells the two apart.

| kind      | bytes of min and max                                         | scale                           |
|-----------|--------------------------------------------------------------|---------------------------------|
| INTEGER   | 8, signed                                                    | 0                               |
| FLOAT     | 8, IEEE double (a float is widened without loss)             | 0                               |
| BOOLEAN   | 1, 0 or 1                                                    | 0                               |
| STRING    | 0 to `MAX_VALUE_BYTES`, UTF-8, perhaps cut inside a character | 0                              |
| DECIMAL   | 16, signed, unscaled                                         | digits after the point          |
| DATE      | 8, signed, days since 1970-01-01                             | 0                               |
| TIMESTAMP | 8, signed, since the epoch (UTC, or the wall clock's if NTZ) | -6: microseconds                |
| TIME      | 8, signed, since midnight                                    | -9: nanoseconds                 |
| DURATION  | 8, signed                                                    | -6: microseconds                |
"""

from __future__ import annotations

import decimal
import enum
import math
import struct
from functools import lru_cache
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from broker_runtime.contract.errors import CorruptRecordError

Value: TypeAlias = int | float | bytes
"""A min or max in Python: bool, int, float, or the bytes of a string."""

MAX_VALUE_BYTES = 32
"""A longer min or max of strings is cut to this."""


class Kind(enum.IntEnum):
    """What the bytes of a column's min and max are."""

    NONE = 0
    INTEGER = 1
    FLOAT = 2
    BOOLEAN = 3
    STRING = 4
    DECIMAL = 5
    DATE = 6
    TIMESTAMP = 7
    TIME = 8
    DURATION = 9


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The statistics of one column in one frame. None: not known. An inexact bound holds, but is no row's value."""

    kind: Kind = Kind.NONE
    scale: int = 0
    null_count: int | None = None
    nan_count: int | None = None
    minimum: bytes | None = None
    maximum: bytes | None = None
    minimum_is_exact: bool = False
    maximum_is_exact: bool = False


def column_statistics(column: pa.Array) -> ColumnStatistics:
    """The statistics of ``column``, whose type must be one that a topic can have. No Python code runs per row."""
    rows, nulls = len(column), column.null_count
    kind, scale = kind_of(column.type)
    nans = _nan_count(column) if kind == Kind.FLOAT else None
    if kind == Kind.NONE or nulls == rows or nans:
        return ColumnStatistics(kind=kind, scale=scale, null_count=nulls, nan_count=nans)
    storage = _STORAGE.get(column.type.id)
    bounds = pc.min_max(column if storage is None else column.view(storage))
    low, high = bounds[0], bounds[1]
    if kind == Kind.STRING:
        minimum, maximum = low.as_buffer().to_pybytes(), high.as_buffer().to_pybytes()
        return ColumnStatistics(
            kind=kind,
            null_count=nulls,
            minimum=minimum[:MAX_VALUE_BYTES],
            maximum=_upper_bound(maximum),
            minimum_is_exact=len(minimum) <= MAX_VALUE_BYTES,
            maximum_is_exact=len(maximum) <= MAX_VALUE_BYTES,
        )
    smallest, largest = low.as_py(), high.as_py()
    if kind == Kind.FLOAT:
        # Arrow may return either zero; the bounds must also hold in an order that tells -0.0 from 0.0.
        smallest, largest = smallest or -0.0, largest or 0.0
    elif kind == Kind.DECIMAL:
        smallest, largest = _unscaled(smallest, scale), _unscaled(largest, scale)
    return ColumnStatistics(
        kind=kind,
        scale=scale,
        null_count=nulls,
        nan_count=nans,
        minimum=encode_value(kind, smallest),
        maximum=encode_value(kind, largest),
        minimum_is_exact=True,
        maximum_is_exact=True,
    )


def encode_value(kind: Kind, value: Value) -> bytes:
    """The bytes of a min or max. ``value`` is an integer for decimals and times, UTF-8 bytes for strings."""
    if kind == Kind.FLOAT:
        return _DOUBLE.pack(value)
    if kind == Kind.STRING:
        assert isinstance(value, bytes)
        return value
    return int(value).to_bytes(_BYTES[kind], "little", signed=kind != Kind.BOOLEAN)


def decode_value(kind: Kind, data: bytes) -> Value:
    """The inverse of `encode_value`. Raises `CorruptRecordError` for bytes that are not a value of ``kind``."""
    expected = _BYTES.get(kind)
    if kind == Kind.NONE or (expected is not None and len(data) != expected):
        raise CorruptRecordError(f"a statistic of kind {kind.name} cannot have {len(data)} bytes")
    if kind == Kind.STRING:
        return data
    if kind == Kind.FLOAT:
        value: float = _DOUBLE.unpack(data)[0]
        if math.isnan(value):
            raise CorruptRecordError("a statistic is not a number")
        return value
    number = int.from_bytes(data, "little", signed=kind != Kind.BOOLEAN)
    return bool(number) if kind == Kind.BOOLEAN else number


def check_statistics(known: ColumnStatistics, record_count: int) -> None:
    """Raises `CorruptRecordError` for statistics that no column of ``record_count`` rows can have."""
    if (known.null_count or 0) + (known.nan_count or 0) > record_count:
        raise CorruptRecordError(f"{known.null_count} nulls and {known.nan_count} NaNs in {record_count} rows")
    if known.minimum is not None:
        decode_value(known.kind, known.minimum)
    if known.maximum is not None:
        decode_value(known.kind, known.maximum)


def _upper_bound(value: bytes) -> bytes | None:
    """``value`` if it is short enough, else at most `MAX_VALUE_BYTES` that are greater than every string with the same
    beginning; None if no such bytes exist."""
    if len(value) <= MAX_VALUE_BYTES:
        return value
    kept = value[:MAX_VALUE_BYTES].rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


def _nan_count(column: pa.Array) -> int:
    return pc.sum(pc.is_nan(column)).as_py() or 0


def _unscaled(value: decimal.Decimal, scale: int) -> int:
    # Without Decimal's arithmetic, which rounds to the 28 digits of its context.
    sign, digits, exponent = value.as_tuple()
    assert exponent == -scale
    number = int("".join(map(str, digits)))
    return -number if sign else number


@lru_cache(maxsize=1024)
def kind_of(kind: pa.DataType) -> tuple[Kind, int]:
    """The kind and scale of the statistics that a column of type ``kind`` has."""
    if pt.is_integer(kind):
        return Kind.INTEGER, 0
    if pt.is_floating(kind):
        return Kind.FLOAT, 0
    if pt.is_boolean(kind):
        return Kind.BOOLEAN, 0
    if pt.is_string(kind):
        return Kind.STRING, 0
    if pt.is_decimal(kind):
        return Kind.DECIMAL, kind.scale
    if pt.is_date(kind):
        return Kind.DATE, 0
    if pt.is_timestamp(kind):
        return Kind.TIMESTAMP, _POWERS[kind.unit]
    if pt.is_time(kind):
        return Kind.TIME, _POWERS[kind.unit]
    if pt.is_duration(kind):
        return Kind.DURATION, _POWERS[kind.unit]
    return Kind.NONE, 0


_POWERS = {"s": 0, "ms": -3, "us": -6, "ns": -9}
_DOUBLE = struct.Struct("<d")
_BYTES = {
    Kind.INTEGER: 8,
    Kind.FLOAT: 8,
    Kind.BOOLEAN: 1,
    Kind.DECIMAL: 16,
    Kind.DATE: 8,
    Kind.TIMESTAMP: 8,
    Kind.TIME: 8,
    Kind.DURATION: 8,
}
_STORAGE = {
    pa.date32().id: pa.int32(),
    pa.timestamp("us").id: pa.int64(),
    pa.time64("us").id: pa.int64(),
    pa.duration("us").id: pa.int64(),
}
"""Times are compared and read as the integers that store them."""
