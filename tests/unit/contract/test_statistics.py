"""A statistic may be missing, never wrong."""

from __future__ import annotations

import datetime
import decimal
import math

import pyarrow as pa
import pytest
from frame_samples import EVERY_TYPE, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import encode_frame
from broker_runtime.contract.frame.directory import pack_directory
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.statistics import (
    MAX_VALUE_BYTES,
    ColumnStatistics,
    Kind,
    check_statistics,
    column_statistics,
    decode_value,
    encode_value,
)

NAN = float("nan")


def bounds(known: ColumnStatistics) -> tuple[object, object]:
    """The min and max according to Python."""
    return tuple(None if value is None else decode_value(known.kind, value) for value in (known.minimum, known.maximum))


def test_integers_dates_and_times_are_integers_with_their_unit() -> None:
    """Timestamps have a unit."""
    known = column_statistics(pa.array([3, None, -(2**63)], pa.int64()))
    assert (known.kind, known.null_count, bounds(known)) == (Kind.INTEGER, 1, (-(2**63), 3))
    day = column_statistics(pa.array([datetime.date(1969, 12, 31), datetime.date(1970, 1, 3)]))
    assert (day.kind, bounds(day)) == (Kind.DATE, (-1, 2))
    for zone in (None, "UTC"):
        known = column_statistics(pa.array([1, -5], pa.timestamp("us", zone)))
        assert (known.kind, known.scale, bounds(known)) == (Kind.TIMESTAMP, -6, (-5, 1))
    clock = column_statistics(pa.array([1, 86_399_999_999_999], pa.time64("ns")))
    assert (clock.kind, clock.scale, bounds(clock)) == (Kind.TIME, -9, (1, 86_399_999_999_999))
    span = column_statistics(pa.array([-1, 1], pa.duration("us")))
    assert (span.kind, span.scale, bounds(span)) == (Kind.DURATION, -6, (-1, 1))
    flag = column_statistics(pa.array([True, False, None]))
    assert (flag.kind, bounds(flag)) == (Kind.BOOLEAN, (False, True))


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_with_nan_have_no_bounds(kind: pa.DataType) -> None:
    """With NaN there is no max."""
    known = column_statistics(pa.array([1.5, NAN, None, NAN], kind))
    assert (known.nan_count, known.null_count, bounds(known)) == (2, 1, (None, None))
    known = column_statistics(pa.array([1.5, float("-inf"), float("inf")], kind))
    assert (known.nan_count, bounds(known)) == (0, (float("-inf"), float("inf")))
    only_nan = column_statistics(pa.array([NAN, None], kind))
    assert (only_nan.nan_count, only_nan.minimum, only_nan.maximum) == (1, None, None)


def test_both_zeros_lie_within_the_bounds() -> None:
    """-0.0 and 0.0 are equal, yet some order them: the bounds hold for both."""
    for values in ([0.0], [-0.0], [0.0, -0.0], [-0.0, 0.0], [0.0, 1.0], [-1.0, -0.0]):
        low, high = bounds(column_statistics(pa.array(values)))
        for value in values:
            assert low < value or (low == value and math.copysign(1, low) <= math.copysign(1, value))
            assert high > value or (high == value and math.copysign(1, high) >= math.copysign(1, value))


def test_decimals_are_unscaled_with_their_scale_whatever_pythons_context() -> None:
    """Decimals are unscaled with a scale, and keep all 38 digits."""
    smallest, largest = decimal.Decimal("-" + "9" * 28 + "." + "9" * 10), decimal.Decimal("0." + "0" * 9 + "1")
    known = column_statistics(pa.array([largest, None, smallest], pa.decimal128(38, 10)))
    assert (known.kind, known.scale, bounds(known)) == (Kind.DECIMAL, 10, (-(10**38) + 1, 1))
    assert known.minimum_is_exact
    assert known.maximum_is_exact


def test_strings_compare_by_their_bytes() -> None:
    """Strings are compared bytewise in UTF-8: U+10FFFF is above U+FFFF, upper case below lower."""
    known = column_statistics(pa.array(["b", "Z", "￿", "\U0010ffff", None, ""]))
    assert bounds(known) == (b"", "\U0010ffff".encode())
    assert (known.minimum_is_exact, known.maximum_is_exact) == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 33,
        "\U0010ffff" * 9,
        "\U0010ffff" * 20,
        "é" * 40,
        "a" * 31 + "é",
        "a" * 32 + "\x00",
        "￿" * 11 + "a",
        "\x7f" * 33,
    ],
)
def test_long_strings_are_cut_to_bounds_that_hold(text: str) -> None:
    """A truncated max is incremented, so it is never below the value."""
    known = column_statistics(pa.array([text, text + "z"]))
    low, high = bounds(known)
    assert len(low) <= MAX_VALUE_BYTES
    assert len(high) <= MAX_VALUE_BYTES
    assert low <= text.encode()
    assert (text + "z").encode() < high
    assert not known.minimum_is_exact
    assert not known.maximum_is_exact


def test_max_of_0xff_alone_is_absent() -> None:
    """It is no UTF-8, but if it occurred, it could not be incremented."""
    array = pa.array([b"\xff" * 40]).view(pa.string())
    known = column_statistics(array)
    assert (known.minimum, known.maximum) == (b"\xff" * 32, None)


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_columns_of_nulls_have_only_a_null_count(name: str) -> None:
    """They have a null count and no bounds."""
    known = column_statistics(pa.nulls(5, EVERY_TYPE[name][0]))
    assert (known.null_count, known.minimum, known.maximum) == (5, None, None)


@pytest.mark.parametrize("name", ["list", "pairs", "record", "deep", "blob", "nothing"])
def test_nested_binary_and_void_columns_have_no_bounds(name: str) -> None:
    """Nested and binary types have none."""
    kind, values = EVERY_TYPE[name]
    known = column_statistics(pa.array(values, kind))
    assert (known.kind, known.minimum, known.maximum) == (Kind.NONE, None, None)


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=50)), min_size=1, max_size=20))
def test_string_bounds_hold_for_every_value(values: list[str | None]) -> None:
    """The bounds are never wrong, whatever the text."""
    known = column_statistics(pa.array(values, pa.string()))
    low, high = bounds(known)
    for value in values:
        if value is not None:
            assert low is not None
            assert low <= value.encode()
            assert high is None or value.encode() <= high
    if known.minimum_is_exact and low is not None:
        assert low.decode() in values
    if known.maximum_is_exact and high is not None:
        assert high.decode() in values


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(width=32)), min_size=1, max_size=20))
def test_float_bounds_hold_for_every_value(values: list[float | None]) -> None:
    """The bounds are never wrong, whatever the numbers."""
    known = column_statistics(pa.array(values, pa.float32()))
    low, high = bounds(known)
    numbers = [value for value in values if value is not None]
    assert known.nan_count == sum(map(math.isnan, numbers))
    if low is None:
        assert known.nan_count or not numbers
    else:
        assert all(low <= value <= high for value in numbers)


def test_slices_have_the_statistics_of_the_slice() -> None:
    """Offsets into a larger array are respected."""
    whole = pa.array([100, 5, None, 7, -100], pa.timestamp("us"))
    known = column_statistics(whole.slice(1, 3))
    assert (known.null_count, bounds(known)) == (1, (5, 7))


def test_statistics_travel_in_the_directory() -> None:
    """A broker and a reader find the computed statistics."""
    schema = TopicSchema(schema_id=0, arrow=pa.schema([("n", pa.int32()), ("s", pa.string()), ("x", pa.float64())]))
    columns = {
        "n": pa.array(range(40), pa.int32()),
        "s": pa.array([f"{i:04}" * 20 for i in range(40)]),
        "x": pa.array([NAN] + [None] * 39),
    }
    frame = encode_frame(pa.record_batch(columns), schema, timestamps=0)
    known = statistics_of(frame)
    assert known == {i: column_statistics(column) for i, column in enumerate(columns.values())}
    few = statistics_of(encode_frame(pa.record_batch(columns).slice(0, 3), schema, timestamps=0))
    assert few == {
        0: ColumnStatistics(null_count=0),
        1: ColumnStatistics(null_count=0),
        2: ColumnStatistics(null_count=2),
    }


def test_statistics_of_the_wrong_length_are_refused() -> None:
    """A number must have a number's bytes."""
    assert decode_value(Kind.DECIMAL, encode_value(Kind.DECIMAL, -(10**38) + 1)) == -(10**38) + 1
    for kind, data in ((Kind.INTEGER, b"1234"), (Kind.DECIMAL, b"12345678"), (Kind.NONE, b""), (Kind.BOOLEAN, b"")):
        with pytest.raises(CorruptRecordError):
            decode_value(kind, data)
    with pytest.raises(CorruptRecordError):
        decode_value(Kind.FLOAT, encode_value(Kind.FLOAT, NAN))
    with pytest.raises(CorruptRecordError):
        check_statistics(ColumnStatistics(null_count=3, nan_count=2), 4)


def test_directory_is_padded_and_bounded_by_column() -> None:
    """A column costs at most 16 bytes and two values."""
    widest = ColumnStatistics(kind=Kind.STRING, minimum=b"a" * 32, maximum=b"b" * 32)
    assert len(pack_directory([], range(100), [widest] * 100)) == 128 * 64 - 64 * 3
