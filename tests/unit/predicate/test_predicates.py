"""Predicates: what is understood, what is refused by name, and that rows and statistics agree with plain Python."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import InvalidPredicateError
from broker_runtime.contract.predicate import matching, parse_predicate
from broker_runtime.contract.predicate.frames import (
    UNKNOWN_BOUNDS,
    Bounds,
    FrameTest,
    Key,
    bounds_of,
    common_bounds,
    frame_test,
)
from broker_runtime.contract.predicate.spans import Span, span_of
from broker_runtime.contract.statistics import ColumnStatistics, Kind, column_statistics, encode_value

TYPES: dict[str, pa.DataType] = {
    "i8": pa.int8(), "i32": pa.int32(), "i64": pa.int64(), "f": pa.float32(), "d": pa.float64(), "s": pa.string(),
    "bin": pa.binary(), "b": pa.bool_(), "dec": pa.decimal128(9, 2), "day": pa.date32(),
    "wide": pa.decimal128(38, 1), "small": pa.decimal128(38, 38), "a.b": pa.int32(), "_metadata.offset": pa.int32(),
    "ts": pa.timestamp("us", tz="UTC"), "ntz": pa.timestamp("us"), "list": pa.list_(pa.int32()), "a b": pa.int32(),
    "no": pa.null(), "Order": pa.int32(),
}  # fmt: skip
NAN = float("nan")


def rows_that_match(text: str, **columns: list[Any]) -> list[int]:
    arrays = {name: pa.array(values, TYPES[name]) for name, values in columns.items()}
    rows = len(next(iter(arrays.values())))
    mask = matching(parse_predicate(text, TYPES), arrays.__getitem__, rows).to_pylist()
    return [row for row, matches in enumerate(mask) if matches]


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("i32 < 2", {"i32": [1, 2, None]}, [0]),
        ("2 > i32", {"i32": [1, 2, None]}, [0]),
        ("i32 <> 2", {"i32": [1, 2, None]}, [0]),
        ("i32 != 2 OR i32 IS NULL", {"i32": [1, 2, None]}, [0, 2]),
        ("NOT i32 = 2", {"i32": [1, 2, None]}, [0]),
        ("NOT (i32 = 2 AND NULL)", {"i32": [1, 2, None]}, [0]),
        ("i32 <=> NULL", {"i32": [1, 2, None]}, [2]),
        ("NOT i32 <=> 1", {"i32": [1, 2, None]}, [1, 2]),
        ("i32 = NULL OR NOT i32 = NULL", {"i32": [1, None]}, []),
        ("i32 IN (1, NULL)", {"i32": [1, 2, None]}, [0]),
        ("i32 NOT IN (1, NULL)", {"i32": [1, 2, None]}, []),
        ("i32 NOT IN (1, 3)", {"i32": [1, 2, None]}, [1]),
        ("i32 BETWEEN 2 AND 3", {"i32": [1, 2, 3, 4]}, [1, 2]),
        ("i32 NOT BETWEEN 2 AND 3", {"i32": [1, 2, 3, None]}, [0]),
        ("i32 < 1.5", {"i32": [1, 2]}, [0]),
        ("i32 >= 1.5", {"i32": [1, 2]}, [1]),
        ("i32 = 1.5 OR i32 = 2.0", {"i32": [1, 2]}, [1]),
        ("i8 < 1000", {"i8": [1, None]}, [0]),
        ("i8 < 127 AND i8 > -128", {"i8": [127, 126, -128]}, [1]),
        ("i8 <= 127 AND i8 >= -128", {"i8": [127, None, -128]}, [0, 2]),
        ("i8 = 1000 OR i8 > 1000", {"i8": [1, None]}, []),
        ("NOT i8 = 1000", {"i8": [1, None]}, [0]),
        ("i64 > 9007199254740992", {"i64": [2**53, 2**53 + 1]}, [1]),
        ("i64 = 9007199254740993D", {"i64": [2**53, 2**53 + 1]}, [0, 1]),
        ("i32 > -2 and i32 < - 0", {"i32": [-2, -1, 0]}, [1]),
        ("dec >= 1.005", {"dec": [Decimal("1.00"), Decimal("1.01"), None]}, [1]),
        ("dec = 1.01", {"dec": [Decimal("1.00"), Decimal("1.01"), None]}, [1]),
        ("dec < 99999999999", {"dec": [Decimal("1.00"), None]}, [0]),
        ("dec = 1.13D AND dec <= 1.13D AND dec >= 1.13D", {"dec": [Decimal("1.13"), Decimal("1.14")]}, [0]),
        ("wide = 53434720.8D", {"wide": [Decimal("53434720.8"), Decimal("53434720.9")]}, [0]),
        ("i64 < 1.7976931348623157e308 AND i64 > -1.7976931348623157e308", {"i64": [-(2**63), None]}, [0]),
        ("wide < 1e38", {"wide": [Decimal("9" * 37 + ".9"), None]}, [0]),
        ("i64 > 9007199254740992D", {"i64": [2**53 + 1, 2**53 + 2]}, [1]),
        ("i64 = 9007199254740994D", {"i64": [2**53 + 1, 2**53 + 2, 2**53 + 3]}, [1]),
        ("i64 < 9223372036854775808D", {"i64": [2**63 - 1, 2**63 - 513]}, [1]),
        ("d = 'x' IS NULL", {"d": [1.0]}, None),
        ("d > 5", {"d": [NAN, 6.0, 5.0, None, math.inf]}, [0, 1, 4]),
        ("d <= 5", {"d": [NAN, 6.0, 5.0, None, -math.inf]}, [2, 4]),
        ("d = 0", {"d": [-0.0, 0.0, NAN]}, [0, 1]),
        ("NOT d = 5", {"d": [NAN, 5.0, None]}, [0]),
        ("f = 0.1", {"f": [0.1]}, []),
        ("f = 0.1F", {"f": [0.1]}, [0]),
        ("f = 0.5", {"f": [0.5, NAN]}, [0]),
        ("s LIKE 'a%'", {"s": ["abc", "b", "a", None]}, [0, 2]),
        (r"s LIKE 'a\\%%'", {"s": ["a%x", "ab"]}, [0]),
        (r"s LIKE 'a\%%'", {"s": ["a%x", "ab"]}, [0]),
        ("s LIKE '%'", {"s": ["", None]}, [0]),
        ("s LIKE 'abc'", {"s": ["abc", "abcd"]}, [0]),
        ("s NOT LIKE 'a%'", {"s": ["abc", "b", None]}, [1]),
        ("s > 'é'", {"s": ["z", "é", "ê", "\U0001f600"]}, [2, 3]),
        (r"s = 'it\'s'", {"s": ["it's"]}, [0]),
        ('s = "it\'s"', {"s": ["it's"]}, [0]),
        (r"s = '\u00e9\n'", {"s": ["é\n"]}, [0]),
        (r"s = '\101\000\177'", {"s": ["A\0\x7f"]}, [0]),
        (r"s = '\0a\201\18'", {"s": ["\0a20118"]}, [0]),
        (r"s LIKE '\U0001F600\45%' OR s = '\U1F600'", {"s": ["\U0001f60045", "U1F600"]}, [0, 1]),
        (r"s LIKE 'a\045'", {"s": ["ab", "b45"]}, [0]),
        ("bin = X'00fF'", {"bin": [b"\x00\xff", b"\x00"]}, [0]),
        ("bin > x'0' and bin < 'b'", {"bin": [b"a", b"b", b"\x00"]}, [0]),
        ("b", {"b": [True, False, None]}, [0]),
        ("NOT b", {"b": [True, False, None]}, [1]),
        ("b = false or b is null", {"b": [True, False, None]}, [1, 2]),
        ("day >= DATE '2026-01-31'", {"day": [dt.date(2026, 1, 30), dt.date(2026, 1, 31)]}, [1]),
        ("day = '2026-01-31'", {"day": [dt.date(2026, 1, 30), dt.date(2026, 1, 31)]}, [1]),
        ("ts < TIMESTAMP '2026-01-31 01:00:00+01:00'", {"ts": [dt.datetime(2026, 1, 30, 23, 59, 59, tzinfo=dt.UTC),
         dt.datetime(2026, 1, 31, tzinfo=dt.UTC)]}, [0]),
        ("ts = '2026-01-31T01:00:00 Europe/Berlin'", {"ts": [dt.datetime(2026, 1, 31, tzinfo=dt.UTC)]}, [0]),
        ("ntz = TIMESTAMP_NTZ '2026-01-31 01:02:03.5'", {"ntz": [dt.datetime(2026, 1, 31, 1, 2, 3, 500_000)]}, [0]),
        ("list IS NOT NULL", {"list": [[1], None]}, [0]),
        ("no IS NULL", {"no": [None]}, [0]),
        ("`a b` = 1 AND I32 = 1", {"a b": [1], "i32": [1]}, [0]),
        ("ORDER = 1", {"Order": [1]}, [0]),
        ("true and i32 = 1 or false", {"i32": [1, 2]}, [0]),
        ("i32 = 1 OR i32 = 2 AND i32 = 3", {"i32": [1, 2, 3]}, [0]),
    ],
)  # fmt: skip
def test_rows_match_as_in_spark(text: str, columns: dict[str, list[Any]], rows: list[int] | None) -> None:
    """S8: three-valued NULL, NaN equal to itself and largest, exact numbers, binary order of strings."""
    if rows is None:
        with pytest.raises(InvalidPredicateError):
            rows_that_match(text, **columns)
    else:
        assert rows_that_match(text, **columns) == rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "where is empty"),
        ("carier = 1", "no column 'carier'"),
        ("i32", "i32 is int32, not a condition"),
        ("i32 = ", "the end where a value is expected"),
        ("i32 = i64", "a column is compared with a value, not with another column"),
        ("1 = 1", "has no column"),
        ("i32 = 'x'", "i32 is int32, which cannot be compared with 'x': numbers have no quotes"),
        ("i32 = '1'", "numbers have no quotes"),
        ("s = 1", "s is string, which cannot be compared with 1"),
        ("b > true", "cannot be compared with TRUE"),
        ("s LIKE '%x'", "only a beginning can be asked for"),
        ("s LIKE 'a_b'", "only a beginning can be asked for"),
        ("i32 LIKE '1%'", "LIKE is for strings"),
        ("s = 'a''b'", "two strings in a row"),
        ("s = 'a", '"\'a" at character 5 is not understood'),
        ("i32 = 1 i64 = 2", "'i64' was not expected"),
        ("i32 = 1; drop", "'; drop' at character 8"),
        ("(i32 = 1", "the end where ) is expected"),
        ("i32 IN ()", "')' where a value is expected"),
        ("i32 IS 5", "'5' where NULL is expected"),
        ("i32 NOT 5", "NOT must come IN, BETWEEN or LIKE"),
        ("ts = '2026-01-31 00:00:00'", "cannot be compared with '2026-01-31 00:00:00': times are written"),
        ("ts = TIMESTAMP '2026-01-31 00:00:00'", "needs a time zone"),
        ("ntz = TIMESTAMP_NTZ '2026-01-31 00:00:00Z'", "has no time zone"),
        ("day = DATE '31.1.2026'", "DATE '31.1.2026'"),
        ("day = 5", "cannot be compared with 5"),
        ("list = 1", "cannot be compared"),
        ("length(s) > 1", "length(…): functions are not allowed"),
        ("bin = X'0g'", "is not hexadecimal"),
        ("i32 = 1.5L", "is no whole number"),
        ("i32 = -'a'", "is no number"),
        ("a.b = 1", "no column 'a.b'; fields of a column cannot be named"),
        ("`_metadata.partition` = 1", "no column '_metadata.partition'"),
        (r"s LIKE 'a\\b%'", r"in a pattern \ stands only before %, _ and itself"),
        ("s LIKE 'a\\\\'", "in a pattern"),
        ("bin = X'00 ff'", "is not hexadecimal"),
        ("ntz = TIMESTAMP_NTZ '2026-01-31+01:00'", "a time is written 2026-01-31 12:00:00"),
        ("ts = TIMESTAMP '2026-01-31x12:00:00Z'", "a time is written 2026-01-31 12:00:00"),
        ("i64 = " + "9" * 5000, "has more than 38 digits"),
        ("i64 = 1" + "0" * 5000, "has more than 38 digits"),
        ("d = 0." + "0" * 39, "has more than 38 digits"),
        ("dec = 1e999999999BD", "is no decimal"),
        ("i64 = 1e5L", "is no whole number"),
        ("i64 = ٣", "'٣' at character 7 is not understood"),
        ("day = DATE '20260131'", "a date is written 2026-01-31"),
        ("ts = TIMESTAMP '20260131T120000Z'", "a time is written 2026-01-31 12:00:00"),
        ("ts = TIMESTAMP '2026-01-31 12:00 Mars/Olympus'", "Mars/Olympus"),
        ("d = 1e400", "1e400 is larger than any double"),
        ("f = 1e39F", "1e39F is larger than any float"),
        ("(" * 60 + "i32 = 1" + ")" * 60, "parentheses more than 50 deep"),
        ("i32 = 1 OR " * 2000 + "b", "at most 16,384 are allowed"),
        ("_metadata.offse > 5", "did you mean '_metadata.offset'?"),
        ("s = '\ud800'", "is no text"),
        (r"s = '\U00110000'", "is no character"),
        ("i64 = 9223372036854775808L", "is not between -9223372036854775808 and 9223372036854775807"),
        ("i8 = -129Y", "-129Y is not between -128 and 127"),
        ("i32 IN (1, 32768S)", "32768S is not between"),
        ("f = 3.4028235e38F", "is larger than any float"),
        ("d = 1.7976931348623158e308", "is larger than any double"),
        ("day = DATE '2026-01-31\xa0'", "a date is written 2026-01-31"),
        ("ts = TIMESTAMP '2026-01-31 120000Z'", "a time is written 2026-01-31 12:00:00"),
        ("ts = TIMESTAMP '2026-01-31 Europe/Berlin'", "a time is written 2026-01-31 12:00:00"),
        ("ts = TIMESTAMP '2026-01-31 12:00Z'", "a time is written 2026-01-31 12:00:00"),
        ("ts = TIMESTAMP '2026-01-31 12:00:00,5Z'", "a time is written 2026-01-31 12:00:00"),
        ("ts = TIMESTAMP '2026-01-31 12:00:00+23:59'", "a time is written 2026-01-31 12:00:00"),
        ("ts = TIMESTAMP '2026-01-31 12:00:00 right/Europe/Berlin'", "a time is written 2026-01-31 12:00:00"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(text: str, says: str) -> None:
    """Bad input gets one error that names the value and what is allowed."""
    with pytest.raises(InvalidPredicateError) as caught:
        parse_predicate(text, TYPES)
    assert says in str(caught.value)


def test_values_of_an_in_are_doubles_if_one_of_them_is() -> None:
    """S8: Spark gives all of them one type."""
    types = {"l": pa.int64(), "dec": pa.decimal128(38, 18)}
    arrays = {"l": pa.array([2**53]), "dec": pa.array([Decimal("1.000000000000000001")], types["dec"])}
    for text, expected in {
        "l IN (9007199254740993, 1e0)": True,
        "l IN (9007199254740993, 1)": False,
        "l NOT IN (9007199254740993, 1e0)": False,
        "dec IN (1, 2e0)": True,
        "dec IN (1, 2)": False,
    }.items():
        assert matching(parse_predicate(text, types), arrays.__getitem__, 1).to_pylist() == [expected], text


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("i64 = 0." + "9" * 38, {"i64": [0, 1]}, [1]),  # as decimal(38,18)
        ("i8 = 0." + "9" * 38, {"i8": [0, 1]}, [1]),
        ("i8 < 0." + "9" * 38, {"i8": [0, 1]}, [0]),
        ("NOT i64 = +0." + "9" * 38, {"i64": [0, 1, None]}, [0]),
        ("wide = 1.25", {"wide": [Decimal("1.2"), Decimal("1.3")]}, [1]),
        ("wide >= 1.25 AND wide < 1.35", {"wide": [Decimal("1.2"), Decimal("1.3"), Decimal("1.4")]}, [1]),
        ("wide <= -1.25", {"wide": [Decimal("-1.2"), Decimal("-1.3"), None]}, [1]),
        ("wide IN (0.05, 7)", {"wide": [Decimal("0.0"), Decimal("0.1"), Decimal("7")]}, [1, 2]),
        ("small >= 1", {"small": ["0." + "9" * 38, "0." + "9" * 37 + "4", "-0." + "9" * 38]}, [0]),
        ("small < 1", {"small": ["0." + "9" * 38, "0." + "9" * 37 + "4", "-0." + "9" * 38]}, [1, 2]),
        ("small <= -1", {"small": ["0." + "9" * 38, "-0." + "9" * 37 + "4", "-0." + "9" * 38]}, [2]),
        ("small = 0", {"small": ["0.0", "1e-38", "4e-38", "5e-38", "-4e-38", "-5e-38"]}, [0, 1, 2, 4]),
        ("small >= +1", {"small": ["0." + "9" * 28 + "5" + "0" * 9, "0." + "9" * 28 + "4" * 10]}, [0]),
        ("small < +1.5", {"small": ["0." + "9" * 38]}, [0]),
        ("small IN (1, 0.5)", {"small": ["0.5", "0.5" + "0" * 27 + "1" + "0" * 9, "0.5" + "0" * 27 + "5" + "0" * 9]},
         [0, 1]),
        ("small IN (0.5, NULL)", {"small": ["0.5", "0.5" + "0" * 36 + "1"]}, [0]),
        ("small IN (1L, 0.5)", {"small": ["0.5", "0.5" + "0" * 17 + "4", "0.5" + "0" * 17 + "5"]}, [0, 1]),
        ("small = -0." + "9" * 38, {"small": ["-0." + "9" * 38, "-0." + "9" * 37 + "8"]}, [0]),
        ("i64 < 99999999999999999999", {"i64": [1, None]}, [0, 1]),
        ("NOT i64 <= 9223372036854775807.5", {"i64": [1, None]}, []),
        ("i64 BETWEEN 2 AND 99999999999999999999", {"i64": [1, 2, None]}, [1]),
        ("NOT i64 > 99999999999999999999", {"i64": [1, None]}, [0, 1]),
        ("99999999999999999999 > i8", {"i8": [1, None]}, [0, 1]),
        ("i8 > -99999999999999999999", {"i8": [1, None]}, [0, 1]),
        ("i64 < +99999999999999999999", {"i64": [1, None]}, [0]),
        ("i64 <> 99999999999999999999", {"i64": [1, None]}, [0]),
        ("i64 NOT IN (99999999999999999999)", {"i64": [1, None]}, [0]),
        ("i64 < 9223372036854775807.0", {"i64": [1, None, 2**63 - 1]}, [0]),
    ],
)  # fmt: skip
def test_numbers_are_compared_as_the_decimals_that_spark_makes_of_them(
    text: str, columns: dict[str, list[Any]], rows: list[int]
) -> None:
    """S8: the type of both has 38 digits at most and keeps those before the point; halves round away from zero. An
    order with what no long can be has an answer for NULL, too."""
    if "small" in columns:
        columns = {"small": [Decimal(value) for value in columns["small"]]}
    assert rows_that_match(text, **columns) == rows


def test_predicate_names_the_columns_it_needs() -> None:
    """They are fetched even if nobody reads them."""
    predicate = parse_predicate("I32 = 1 AND (s LIKE 'a%' OR i32 > 5) AND _metadata.offset < 9", TYPES)
    assert predicate.columns == ("i32", "s", "_metadata.offset")


# --- generated predicates against plain Python ------------------------------------------------------------------------

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i8": st.integers(-3, 3),
    "i64": st.sampled_from([-(2**63), -5, -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1]),
    "f": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.5, 3.0, math.inf, NAN]),
    "d": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.1, 3.0, math.inf, NAN]),
    "s": st.text("ab\x00é\U0001f600", max_size=3) | st.sampled_from(["a" * 40, "a" * 39 + "b"]),
    "dec": st.integers(-300, 300).map(lambda n: Decimal(n) / 100),
    "b": st.booleans(),
}
_LITERALS: dict[str, st.SearchStrategy[str]] = {
    "i8": st.integers(-200, 200).map(str) | st.integers(-30, 30).map(lambda n: str(Decimal(n) / 10)),
    "i64": st.sampled_from(["-5", "0", "1.5", "1e0", "9007199254740993D", "9223372036854775808", "-1e30", "2"]),
    "f": st.sampled_from(["0.5", "-1.5D", "0", "-0D", "1e300", "0.1"]),
    "d": st.sampled_from(["0.1", "3", "-0.0", "1e300", "-1e300"]),
    "s": st.sampled_from(["''", "'a'", "'é'", "'b'", f"'{'a' * 40}'"]),
    "dec": st.sampled_from(["1", "0.01", "-0.005", "1e0", "99999999999", "2.5"])
    | st.integers(-300, 300).map(lambda n: f"{Decimal(n) / 100}D"),
}


def _literal_value(text: str) -> Any:
    if text.startswith("'"):
        return text[1:-1]
    if text.endswith("D") or "e" in text:
        return float(text.rstrip("D"))
    return Decimal(text)


def _less(one: Any, other: Any) -> bool:
    """Spark's order, of values of one kind."""
    if isinstance(one, str):
        return one.encode() < other.encode()
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
        if math.isnan(one):
            return False
        return math.isnan(other) or one < other
    return Decimal(one) < Decimal(other)


_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "<": _less,
    ">": lambda a, b: _less(b, a),
    "<=": lambda a, b: not _less(b, a),
    ">=": lambda a, b: not _less(a, b),
    "=": lambda a, b: not _less(a, b) and not _less(b, a),
    "<>": lambda a, b: _less(a, b) or _less(b, a),
}
Answer = bool | None


@st.composite
def _tests(draw: st.DrawFn) -> tuple[str, Callable[[dict[str, Any]], Answer]]:
    name = draw(st.sampled_from(sorted(_VALUES)))
    if draw(st.integers(0, 4)) == 0 or name == "b":
        if name == "b" and draw(st.booleans()):
            return "b", lambda row: row["b"]
        is_not = draw(st.booleans())
        return f"{name} IS {'NOT ' if is_not else ''}NULL", lambda row: (row[name] is None) != is_not
    op = draw(st.sampled_from(sorted(_PYTHON)))
    text = draw(_LITERALS[name])
    value = _literal_value(text)
    compare = _PYTHON[op]
    if name == "s" and draw(st.integers(0, 3)) == 0:
        prefix = text[1:-1]
        return f"s LIKE '{prefix}%'", lambda row: None if row["s"] is None else row["s"].startswith(prefix)
    if name in ("f", "d"):
        value = float(value)
    if text == "9223372036854775808" and op not in ("=", "<>"):  # larger than any long: Spark looks at no row
        return f"{name} {op} {text}", lambda _: compare(0, value)
    return f"{name} {op} {text}", lambda row: None if row[name] is None else compare(row[name], value)


def _both(one: Answer, other: Answer) -> Answer:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _not(answer: Answer) -> Answer:
    return None if answer is None else not answer


@st.composite
def _predicates(draw: st.DrawFn, depth: int = 3) -> tuple[str, Callable[[dict[str, Any]], Answer]]:
    kind = draw(st.sampled_from(["test", "test", "not", "and", "or"])) if depth else "test"
    if kind == "test":
        return draw(_tests())
    text, answer = draw(_predicates(depth=depth - 1))
    if kind == "not":
        return f"NOT ({text})", lambda row: _not(answer(row))
    text2, answer2 = draw(_predicates(depth=depth - 1))
    if kind == "and":
        return f"({text}) AND ({text2})", lambda row: _both(answer(row), answer2(row))
    return f"({text}) OR ({text2})", lambda row: _not(_both(_not(answer(row)), _not(answer2(row))))


_ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in _VALUES.items()}), max_size=6)


@settings(max_examples=400)
@given(_predicates(), _ROWS)
def test_generated_predicates_answer_as_plain_python_and_statistics_never_lose_a_row(
    generated: tuple[str, Callable[[dict[str, Any]], Answer]], rows: list[dict[str, Any]]
) -> None:
    """S8: rows by Arrow, rows one by one in Python, and the frame's statistics."""
    text, answer = generated
    predicate = parse_predicate(text, TYPES)
    arrays = {name: pa.array([row[name] for row in rows], TYPES[name]) for name in _VALUES}
    stored = pa.table(arrays).to_pylist()
    expected = [answer(row) is True for row in stored]
    assert matching(predicate, arrays.__getitem__, len(rows)).to_pylist() == expected
    statistics = [column_statistics(array) for array in arrays.values()]
    test = FrameTest(frame_test(predicate, list(arrays).index))
    for name in ("i8", "i64"):
        least, most = span_of(predicate, name)
        pairs = zip(stored, expected, strict=True)
        found = [row[name] for row, is_match in pairs if is_match and row[name] is not None]
        assert least is None or all(value >= least for value in found)
        assert most is None or all(value <= most for value in found)
    halves = [[array.slice(start, 3) for array in arrays.values()] for start in (0, 3)]
    known = [{key: _bounds(key, column_statistics(half[key[0]]), len(half[0])) for key in test.keys} for half in halves]
    if any(map(test.may_match, known)):
        assert test.may_match({key: common_bounds(known[0][key], known[1][key]) for key in test.keys})
    if any(expected):
        assert test.may_match({key: _bounds(key, statistics[key[0]], len(rows)) for key in test.keys})
        assert test.may_match({})


@pytest.mark.parametrize(
    ("text", "bounds", "kept"),
    [
        ("i32 > 5", Bounds(1, 5), False),
        ("i32 > 5", Bounds(1, 6), True),
        ("NOT i32 > 5", Bounds(6, 9), False),
        ("i32 <= 5", Bounds(5, 9), True),
        ("i32 < 5", Bounds(5, 9), False),
        ("i32 >= 5", Bounds(1, 5), True),
        ("NOT i32 <= 5", Bounds(1, 5), False),
        ("NOT i32 > 5", Bounds(5, 9), True),
        ("NOT i32 < 5", Bounds(1, 5), True),
        ("NOT i32 = 5", Bounds(5, 6), True),
        ("NOT (i32 = 5 AND NULL)", Bounds(5, 5), False),
        ("NOT (i32 = 5 OR NULL)", Bounds(1, 1), False),
        ("i32 = 5", Bounds(6, 9), False),
        ("i32 <> 5", Bounds(5, 5, has_nulls=True), False),
        ("i32 < 1000 AND i32 IN (1, 2)", Bounds(3, 9), False),
        ("i32 < 5 OR i32 > 8", Bounds(5, 8), False),
        ("i32 IS NULL", Bounds(5, 8, has_nulls=False), False),
        ("i32 IS NOT NULL", Bounds(has_others=False), False),
        ("i32 = 5", Bounds(has_others=False), False),
        ("i32 > 1e9", Bounds(5, 8), False),
        ("s LIKE 'b%'", Bounds(b"c", b"d"), False),
        ("s LIKE 'b%'", Bounds(b"a", b"azz"), False),
        ("s LIKE 'b%'", Bounds(b"bx", b"d"), True),
        ("s LIKE 'b%'", Bounds(b"a", b"b"), True),
        ("s NOT LIKE 'b%'", Bounds(b"ba", b"bz"), True),
        ("d < 5", Bounds(1.0, 2.0, has_nan=True), True),
        ("NOT d < 5", Bounds(1.0, 2.0, has_nan=True), True),
        ("d >= 5", Bounds(1.0, 2.0, has_nan=True), True),
        ("d > 5", Bounds(1.0, 2.0, has_nan=False), False),
        ("d > 5", Bounds(has_nan=True), True),
        ("NULL", UNKNOWN_BOUNDS, False),
        ("i32 = 1", UNKNOWN_BOUNDS, True),
    ],
)
def test_frames_are_left_out_where_no_row_can_match(text: str, bounds: Bounds, kept: bool) -> None:
    """S8: by bounds and counts; what is not known keeps a frame."""
    test = FrameTest(frame_test(parse_predicate(text, TYPES), list(TYPES).index))
    assert test.may_match(dict.fromkeys(test.keys, bounds)) is kept


def _bounds(key: Key, known: ColumnStatistics, rows: int) -> Bounds:
    assert key[1:] in ((0, 0), (known.kind, known.scale))  # of steps that compare nothing, or of the column's type
    return bounds_of(known, rows)


def test_common_bounds_are_as_narrow_as_both_allow() -> None:
    """A frame without values says nothing against the bounds of the other."""
    nulls, values = Bounds(has_others=False, has_nan=False), Bounds(1, 2, has_nulls=False, has_nan=False)
    assert common_bounds(nulls, values) == common_bounds(values, nulls) == Bounds(1, 2, has_nan=False)
    assert common_bounds(values, Bounds(0, 1)) == Bounds(0, 2)
    assert common_bounds(values, UNKNOWN_BOUNDS) == UNKNOWN_BOUNDS


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("i32 > 5 AND i32 <= 9", Span(6, 9)),
        ("i32 IN (3, 7) OR i32 = 5", Span(3, 7)),
        ("NOT (i32 < 3 OR i32 > 7)", Span(3, 7)),
        ("NOT i32 = 3", Span()),
        ("i32 < 3 OR s = 'x'", Span()),
        ("i32 < 3 AND s = 'x'", Span(None, 2)),
        ("i32 > 5 OR NULL", Span(6, None)),
        ("NULL OR FALSE", Span(1, 0)),
        ("NOT FALSE", Span()),
        ("i32 > 9 AND i32 < 3", Span(10, 2)),
        ("(i32 > 9 AND i32 < 3) OR i32 = 4", Span(4, 4)),
    ],
)
def test_span_holds_all_values_that_can_match(text: str, span: Span) -> None:
    """S8: ranges of offsets are narrowed by it."""
    assert span_of(parse_predicate(text, TYPES), "i32") == span


def test_what_a_producer_did_not_say_is_possible() -> None:
    """Statistics may be missing: then a column may have nulls, and NaN beyond its bounds."""
    silent = ColumnStatistics(
        kind=Kind.FLOAT, minimum=encode_value(Kind.FLOAT, 1.0), maximum=encode_value(Kind.FLOAT, 2.0)
    )
    assert bounds_of(silent, 3) == Bounds(1.0, 2.0, has_nulls=True, has_others=True, has_nan=True)
    told = msgspec.structs.replace(silent, null_count=0, nan_count=0)
    assert bounds_of(told, 3) == Bounds(1.0, 2.0, has_nulls=False, has_others=True, has_nan=False)
    assert bounds_of(ColumnStatistics(kind=Kind.STRING, null_count=3), 3) == Bounds(has_others=False, has_nan=False)
