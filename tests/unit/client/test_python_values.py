"""Columns as Python values: those of pyarrow's ``to_pylist``, whatever makes them."""

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_log.client.python_values import python_values

_DAY = 86_400
_YEAR_1_S = -62_135_596_800
_YEAR_10000_S = 253_402_300_800
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _counts(*bounds: int, bits: int = 64) -> st.SearchStrategy[int | None]:
    """Integers of all sizes, those beside ``bounds`` among them, and nulls."""
    low, end = -(1 << bits - 1), 1 << bits - 1
    beside = [bound + by for bound in (*bounds, 0, low, end) for by in (-1, 0, 1) if low <= bound + by < end]
    return st.none() | st.integers(-(10**9), 10**9) | st.sampled_from(beside) | st.integers(low, end - 1)


def _instants(unit: str) -> st.SearchStrategy[int | None]:
    per_second = _PER_SECOND[unit]
    bounds = [bound * per_second for bound in (_YEAR_1_S, _YEAR_10000_S)]
    within = st.integers(*(min(max(bound, -(1 << 62)), 1 << 62) for bound in bounds))
    return within | _counts(*bounds)


STORED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.date32(): st.integers(_YEAR_1_S // _DAY, _YEAR_10000_S // _DAY - 1)
    | _counts(_YEAR_1_S // _DAY, _YEAR_10000_S // _DAY, bits=32),
    **{pa.timestamp(unit): _instants(unit) for unit in _PER_SECOND},
    **{pa.timestamp(unit, "UTC"): _instants(unit) for unit in _PER_SECOND},
    **{pa.timestamp("us", zone): _instants("us") for zone in ("Europe/Berlin", "+05:30", "-00:01", "Etc/UTC")},
    **{pa.duration(unit): _counts(999_999_999 * _DAY) for unit in _PER_SECOND},
    pa.time64("ns"): st.none() | st.integers(0, _DAY * 10**6 - 1).map(lambda microseconds: microseconds * 1000),
    pa.time64("us"): st.none() | st.integers(0, _DAY * 10**6 - 1),
    pa.decimal128(38, 10): st.none() | st.decimals(-(10**20), 10**20, places=10),
    pa.decimal128(5, 0): st.none() | st.integers(-99_999, 99_999).map(Decimal),
    pa.int64(): _counts(),
    pa.string(): st.none() | st.text(st.characters(codec="utf-8"), max_size=3),
}


def _of_pyarrow(scalar: pa.Scalar) -> Any:
    """What ``to_pylist`` makes of the value; the number that is stored if Python's type cannot hold it."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _of_pyarrow(scalar[name]) for name in scalar}
    if isinstance(scalar, pa.MapScalar):
        return [(_of_pyarrow(entry["key"]), _of_pyarrow(entry["value"])) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_of_pyarrow(each) for each in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, pa.ArrowInvalid):
        return scalar.value


def _described(value: Any) -> Any:
    """All of a value that a caller can tell: a datetime also equals one of another zone, and 1 a Decimal."""
    if isinstance(value, dict):
        return {name: _described(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [_described(each) for each in value]
    return type(value), repr(value), getattr(value, "tzinfo", None), getattr(value, "fold", None)


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    return pa.array(values, kind)


def _wrapped(column: pa.Array, how: str) -> pa.Array:
    """The column's values within rows of another type, some rows of which are null."""
    rows = len(column)
    ends = pa.array([2 * row if row % 3 else None for row in range(rows // 2)] + [rows // 2 * 2], pa.int32())
    if how == "lists":
        return pa.ListArray.from_arrays(ends, column)
    if how == "maps":
        return pa.MapArray.from_arrays(ends, pa.array([str(row) for row in range(rows)]), column)
    if how == "structs":
        texts = pa.array([str(row) for row in range(rows)])
        return pa.StructArray.from_arrays(
            [column, texts], ["times", "texts"], mask=pa.array([row % 3 == 1 for row in range(rows)], pa.bool_())
        )
    assert how == "alone"
    return column


@pytest.mark.parametrize("how", ["alone", "lists", "maps", "structs", "lists of structs"])
@pytest.mark.parametrize("kind", STORED, ids=str)
def test_python_values_are_those_of_pyarrow(kind: pa.DataType, how: str) -> None:
    """W20: values and types, time zones, nulls and slices; what Python cannot hold is the number that is stored."""

    @given(st.lists(STORED[kind], max_size=12), st.integers(0, 3), st.integers(0, 12))
    @example([None] * 8, 0, 8)
    @settings(deadline=None, max_examples=25)
    def check(values: list[Any], start: int, length: int) -> None:
        column = _column(kind, values)
        for each in ("structs", "lists") if how == "lists of structs" else (how,):
            column = _wrapped(column, each)
        for part in (column, column.slice(min(start, len(column)), length)):
            expected = [_of_pyarrow(scalar) for scalar in part]
            found = python_values(part)
            assert _described(found) == _described(expected)
            try:
                whole = part.to_pylist()
            except (OverflowError, pa.ArrowInvalid):
                continue
            assert _described(found) == _described(whole)

    check()


def test_values_beside_one_that_python_cannot_hold_are_not_affected() -> None:
    """Only that one is a number."""
    last_us = _YEAR_10000_S * 10**6 - 1
    column = pa.array([last_us, last_us + 1, None, 0, -(1 << 63)]).view(pa.timestamp("us"))
    names = Counter(type(value).__name__ for value in python_values(column))
    assert names == {"datetime": 2, "int": 2, "NoneType": 1}
    assert python_values(column)[1] == last_us + 1


@pytest.mark.parametrize("rows", [1, 20])
def test_times_of_a_zone_that_does_not_exist_are_counts_of_their_units(rows: int) -> None:
    """No topic has such a column; it stops no reader."""
    column = pa.array(range(rows)).view(pa.timestamp("us", "Nowhere/Zone"))
    with pytest.raises(pa.ArrowInvalid):
        column.to_pylist()
    assert python_values(column) == list(range(rows))
