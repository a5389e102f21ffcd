"""Columns as Python values, a column at a time.

Rule: the values, and their types, are those of pyarrow's ``to_pylist``. What Python's types cannot hold is an int, a
count of the column's units, which `Producer.send` takes, too (see `Record`); the other values of such a column are not
affected.

``to_pylist`` is as fast as anything for most types, but it makes a scalar first of each time and decimal. numpy makes
times of the counts that Arrow stores, all at once. Per value (pyarrow 26): timestamps 0.07 µs instead of 2.5; dates,
timestamps without a zone, durations and times of day 0.02 to 0.05 instead of 0.7 to 0.9; decimals 0.15 instead of 0.43.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

_FIRST_DAY = datetime.date.min.toordinal() - datetime.date(1970, 1, 1).toordinal()
_END_DAY = _FIRST_DAY + datetime.date.max.toordinal()
_DAY_US = 86_400 * 10**6
_INT64_MIN = -(1 << 63)
_FEW_ROWS = 2  # so few values are made faster one by one

_PLAIN = frozenset(kind.id for kind in (pa.binary(), pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_()))

Convert = Callable[[pa.Array], list[Any]]


def python_values(column: pa.Array) -> list[Any]:
    """The column's values; null is None. Text that is not UTF-8 raises what pyarrow raises."""
    kind = column.type
    return _plain(column) if kind.id in _PLAIN else _converter(kind)(column)


@lru_cache(maxsize=1024)
def _converter(kind: Any) -> Convert:
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        made = _naive if kind.tz is None else partial(_aware, pa.scalar(0, kind).as_py())
        return partial(_counted, pa.int64(), _FIRST_DAY * _DAY_US, _END_DAY * _DAY_US, made)
    if pt.is_date32(kind):
        return partial(_counted, pa.int32(), _FIRST_DAY, _END_DAY, _dates)
    if pt.is_duration(kind) and kind.unit == "us":
        return partial(_counted, pa.int64(), _INT64_MIN + 1, 1 << 63, _durations)  # numpy's NaT is the smallest int64
    if pt.is_time64(kind) and kind.unit == "ns":
        return partial(_counted, pa.int64(), _INT64_MIN, 1 << 63, _times)
    if pt.is_decimal128(kind):
        return _decimals
    if pt.is_map(kind) and not {_converter(kind.key_type), _converter(kind.item_type)} <= {_plain}:
        return _maps
    if pt.is_list(kind) and _converter(kind.value_type) is not _plain:
        return _lists
    if pt.is_struct(kind) and not {_converter(field.type) for field in kind} <= {_plain}:
        return partial(_structs, [field.name for field in kind])
    return _others if pt.is_temporal(kind) else _plain


def _counted(
    stored: pa.DataType, low: int, end: int, made: Callable[[np.ndarray], list[Any] | None], column: pa.Array
) -> list[Any]:
    """``made`` of the numbers that a column stores, if Python has all of them: those in ``[low, end)``."""
    if len(column) <= _FEW_ROWS:
        return [_value(scalar) for scalar in column]
    numbers = column.view(stored)
    if column.null_count:
        numbers = numbers.fill_null(0)
    counts = numbers.to_numpy()
    values = made(counts) if low <= counts.min() and counts.max() < end else None
    if values is None:
        return [_value(scalar) for scalar in column]
    return _with_nulls(column, values)


def _dates(days: np.ndarray) -> list[Any]:
    values: list[Any] = days.astype("datetime64[D]").tolist()
    return values


def _naive(microseconds: np.ndarray) -> list[Any]:
    values: list[Any] = microseconds.view("datetime64[us]").tolist()
    return values


def _aware(epoch: datetime.datetime, microseconds: np.ndarray) -> list[Any]:
    return list(map(operator.add, repeat(epoch), _durations(microseconds)))


def _durations(microseconds: np.ndarray) -> list[Any]:
    values: list[Any] = microseconds.view("timedelta64[us]").tolist()
    return values


def _times(nanoseconds: np.ndarray) -> list[Any] | None:
    microseconds, rest = np.divmod(nanoseconds, 1000)
    return None if rest.any() else list(map(datetime.datetime.time, _naive(microseconds)))


def _decimals(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _lists(column: pa.Array) -> list[Any]:
    return _cut(column, lambda first, count: python_values(column.values.slice(first, count)))


def _maps(column: pa.Array) -> list[Any]:
    def pairs(first: int, count: int) -> list[Any]:
        keys, items = column.keys.slice(first, count), column.items.slice(first, count)
        return list(zip(python_values(keys), python_values(items), strict=True))

    return _cut(column, pairs)


def _cut(column: pa.Array, elements: Callable[[int, int], list[Any]]) -> list[Any]:
    """A list for each row, of the ``elements`` of all rows."""
    if not len(column):
        return []
    first, *ends = column.offsets.to_numpy().tolist()
    flat = elements(first, ends[-1] - first)
    return _with_nulls(column, [flat[start - first : end - first] for start, end in pairwise([first, *ends])])


def _structs(names: list[str], column: pa.Array) -> list[Any]:
    rows = zip(*map(python_values, column.flatten()), strict=True)
    return _with_nulls(column, [dict(zip(names, row, strict=True)) for row in rows])


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _others(column: pa.Array) -> list[Any]:
    """Times that no topic has."""
    try:
        return _plain(column)
    except (OverflowError, pa.ArrowInvalid):
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        # Of times in nanoseconds Arrow cuts some off or raises, which depends on whether pandas is installed.
        if isinstance(scalar, pa.Time64Scalar) and scalar.is_valid:
            scalar = scalar.cast(pa.time64("us"))
        return scalar.as_py()
    except (OverflowError, pa.ArrowInvalid):
        return scalar.value
