"""A predicate's text into a typed tree, for one topic's columns.

    or         := and {OR and}
    and        := not {AND not}
    not        := {NOT} test
    test       := ( or ) | operand [op operand | [NOT] IN (…) | [NOT] BETWEEN literal AND literal | [NOT] LIKE 'x%'
                  | IS [NOT] NULL]

One side of a comparison is a column, the other a literal, which is turned into what the column stores, exactly: a whole
number is less than 1.5 if it is at most 1. Where Spark rounds the column, the literal stands for all numbers that are
rounded to it: whole numbers and decimals to doubles if they are compared with a double, and decimals to the type of
both (`_Digits`) if that has fewer digits after the point.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import InvalidPredicateError
from broker_runtime.contract.predicate.syntax import (
    Date,
    Literal,
    Name,
    Timestamp,
    Token,
    Word,
    parse_date,
    parse_timestamp,
    tokens,
)
from broker_runtime.contract.predicate.tree import (
    And,
    Column,
    Compare,
    Constant,
    IsNull,
    Known,
    Node,
    Not,
    Op,
    Or,
    Predicate,
    Prefix,
)
from broker_runtime.contract.suggestion import suggestion

METADATA_COLUMNS: Mapping[str, pa.DataType] = {
    "_metadata.partition": pa.int32(),
    "_metadata.offset": pa.int64(),
    "_metadata.timestamp": pa.timestamp("us", tz="UTC"),
}
_MOST_DEPTH = 50
_MOST_DIGITS = 38
_LEAST_LONG, _MOST_LONG = -(1 << 63), (1 << 63) - 1
_DIGITS_BY_BITS: Mapping[int, int] = {8: 3, 16: 5, 32: 10, 64: 20}
_BITS_BY_SUFFIX: Mapping[str, int] = {"Y": 8, "S": 16, "L": 64}
_OPS: Mapping[str, Op] = {"<": "<", "<=": "<=", "=": "=", ">=": ">=", ">": ">"}
_FLIPPED: Mapping[str, str] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>", "<=>": "<=>"}


def parse_predicate(text: str, columns: Mapping[str, pa.DataType]) -> Predicate:
    """The predicate ``text`` over these columns (names → types) and `METADATA_COLUMNS`.

    Names are found in any case, as by Spark. Raises `InvalidPredicateError`, which names what is not understood, an
    unknown column, or a value that does not fit its column.
    """
    parser = _Parser(text, columns)
    return Predicate(text, parser.whole())


class _Parser:
    """Recursive descent over the words. Used once."""

    def __init__(self, text: str, columns: Mapping[str, pa.DataType]) -> None:
        self._columns = columns
        self._tokens = tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        if not self._tokens:
            raise InvalidPredicateError("where is empty")
        node = self._or()
        if self._at < len(self._tokens):
            raise InvalidPredicateError(f"where: {_shown(self._tokens[self._at])} was not expected")
        return node

    def _or(self) -> Node:
        parts = [self._and()]
        while self._take("OR"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Node:
        parts = [self._not()]
        while self._take("AND"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _not(self) -> Node:
        is_negated = False
        while self._take("NOT"):
            is_negated = not is_negated
        node = self._test()
        return Not(node) if is_negated else node

    def _test(self) -> Node:
        if self._take("("):
            self._depth += 1
            if self._depth > _MOST_DEPTH:
                raise InvalidPredicateError(f"where: parentheses more than {_MOST_DEPTH} deep")
            node = self._or()
            self._expect(")")
            self._depth -= 1
            return node
        operand = self._operand()
        if isinstance(operand, Literal):
            return self._after_literal(operand)
        is_negated = self._take("NOT")
        node = self._after_column(operand, is_negated=is_negated)
        return Not(node) if is_negated else node

    def _after_literal(self, literal: Literal) -> Node:
        op = self._operator()
        if op is None:
            if literal.value is None or isinstance(literal.value, bool):
                return Constant(literal.value)
            raise InvalidPredicateError(f"where: {literal.text} is not a condition")
        column = self._operand()
        if isinstance(column, Literal):
            raise InvalidPredicateError(f"where: {literal.text} {op} {column.text} has no column")
        return _comparison(column, _FLIPPED[op], literal)

    def _after_column(self, column: Column, *, is_negated: bool) -> Node:
        if self._take("IN"):
            self._expect("(")
            items = [self._literal()]
            while self._take(","):
                items.append(self._literal())
            self._expect(")")
            return _in(column, items)
        if self._take("BETWEEN"):
            low = self._literal()
            self._expect("AND")
            high = self._literal()
            return And((_comparison(column, ">=", low), _comparison(column, "<=", high)))
        if self._take("LIKE"):
            return _like(column, self._literal())
        if is_negated:
            raise InvalidPredicateError(f"where: after {column.name} NOT must come IN, BETWEEN or LIKE")
        if self._take("IS"):
            is_not = self._take("NOT")
            self._expect_null()
            return Not(IsNull(column)) if is_not else IsNull(column)
        op = self._operator()
        if op is not None:
            other = self._operand()
            if isinstance(other, Column):
                raise InvalidPredicateError(
                    f"where: {column.name} {op} {other.name}: a column is compared with a value, not with another "
                    "column"
                )
            return _comparison(column, op, other)
        if pt.is_boolean(column.type):
            return Compare(column, "=", True)
        raise InvalidPredicateError(f"where: {column.name} is {column.type}, not a condition")

    def _operator(self) -> str | None:
        token = self._peek()
        if isinstance(token, Word) and token.text in _FLIPPED:
            self._at += 1
            return token.text
        return None

    def _operand(self) -> Column | Literal:
        token = self._peek()
        if isinstance(token, Name):
            self._at += 1
            return self._column(token)
        return self._literal()

    def _literal(self) -> Literal:
        sign = "-" if self._take("-") else "+" if self._take("+") else ""
        token = self._peek()
        if not isinstance(token, Literal):
            raise InvalidPredicateError(f"where: {_shown(token)} where a value is expected")
        self._at += 1
        if not sign:
            return _in_range(token)
        value = token.value
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise InvalidPredicateError(f"where: {sign}{token.text} is no number")
        if sign == "-":
            value = value.copy_negate() if isinstance(value, Decimal) else -value  # -value would round to 28 digits
        return _in_range(Literal(sign + token.text, value))

    def _column(self, name: Name) -> Column:
        text, is_own = str(name), len(name.parts) == 1
        if self._peek() == Word("("):
            raise InvalidPredicateError(f"where: {text}(…): functions are not allowed, only columns and values")
        known = {one: kind for one, kind in self._columns.items() if one not in METADATA_COLUMNS}
        candidates = known if is_own else METADATA_COLUMNS
        alike = [text] if text in candidates else [one for one in candidates if one.lower() == text.lower()]
        if len(alike) == 1:
            return Column(alike[0], candidates[alike[0]])
        if alike:
            raise InvalidPredicateError(f"where: {text!r} may be {' or '.join(sorted(alike))}; write it as it is")
        hint = "" if is_own else "fields of a column cannot be named; "
        raise InvalidPredicateError(
            f"where: no column {text!r}; {hint}{suggestion(text, sorted({*known, *METADATA_COLUMNS}))}"
        )

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, word: str) -> bool:
        if self._peek() == Word(word):
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise InvalidPredicateError(f"where: {_shown(self._peek())} where {word} is expected")

    def _expect_null(self) -> None:
        token = self._peek()
        if not (isinstance(token, Literal) and token.value is None):
            raise InvalidPredicateError(f"where: {_shown(token)} where NULL is expected")
        self._at += 1


def _in_range(literal: Literal) -> Literal:
    bits = _BITS_BY_SUFFIX.get(literal.text[-1:].upper())
    if bits is not None and isinstance(literal.value, int) and not isinstance(literal.value, bool):
        most = (1 << bits - 1) - 1
        if not -most - 1 <= literal.value <= most:
            raise InvalidPredicateError(f"where: {literal.text} is not between {-most - 1} and {most}")
    return literal


def _in(column: Column, items: Sequence[Literal]) -> Node:
    """Spark gives the column and all values one type: doubles if one of them is a double."""
    numbers = [item for item in items if _is_number(item)]
    if any(isinstance(item.value, float) for item in numbers):
        items = [
            Literal(item.text, float(item.value))
            if isinstance(item.value, int | Decimal) and _is_number(item)
            else item
            for item in items
        ]
    elif (own := _Digits.of_column(column)) is not None and any(not _is_whole(item) for item in numbers):
        common = _Digits.of_all(own, numbers)
        return Or(
            tuple(
                _rounded(column, "=", item, common) if _is_number(item) else _comparison(column, "=", item)
                for item in items
            )
        )
    return Or(tuple(_comparison(column, "=", item) for item in items))


def _shown(token: Token | None) -> str:
    if token is None:
        return "the end"
    return repr(str(token) if isinstance(token, Name) else token.text)


def _comparison(column: Column, op: str, literal: Literal) -> Node:
    if op == "<=>":
        if literal.value is None:
            return IsNull(column)
        return And((Not(IsNull(column)), _comparison(column, "=", literal)))
    if op == "<>":
        return Not(_comparison(column, "=", literal))
    if literal.value is None:
        return Constant(None)
    for fits, compare in _KINDS:
        if fits(column.type):
            node = compare(column, _OPS[op], literal)
            if node is not None:
                return node
    raise InvalidPredicateError(
        f"where: {column.name} is {column.type}, which cannot be compared with {literal.text}{_advice(column, literal)}"
    )


def _advice(column: Column, literal: Literal) -> str:
    if isinstance(literal.value, str) and (pt.is_integer(column.type) or pt.is_floating(column.type)):
        return ": numbers have no quotes"
    if isinstance(literal.value, Date | Timestamp) or pt.is_temporal(column.type):
        return (
            ": times are written DATE '2026-01-31', TIMESTAMP '2026-01-31 12:00:00Z', TIMESTAMP_NTZ "
            "'2026-01-31 12:00:00'"
        )
    return ""


class _Digits(NamedTuple):
    """The digits of a decimal: ``whole`` before the point and ``scale`` after it.

    Spark's DecimalType, which has up to 38 of both; where two need more, it keeps those before the point.
    """

    whole: int
    scale: int

    @classmethod
    def of_column(cls, column: Column) -> _Digits | None:
        """None: it is no column of whole numbers or decimals."""
        if pt.is_decimal(column.type):
            return cls(column.type.precision - column.type.scale, column.type.scale)
        return cls(_DIGITS_BY_BITS[column.type.bit_width], 0) if pt.is_integer(column.type) else None

    @classmethod
    def of_value(cls, literal: Literal) -> _Digits:
        """Of a number as it is written."""
        assert isinstance(literal.value, int | Decimal)
        _, digits, exponent = Decimal(literal.value).as_tuple()
        assert isinstance(exponent, int)
        return cls(max(len(digits) + exponent, 0), max(-exponent, 0))

    @classmethod
    def of_type(cls, literal: Literal) -> _Digits:
        """Of all numbers of the literal's type."""
        bits = _bits(literal)
        return cls.of_value(literal) if bits is None else cls(_DIGITS_BY_BITS[bits], 0)

    @classmethod
    def of_all(cls, own: _Digits, literals: Iterable[Literal]) -> _Digits:
        """Of a column and the values of an IN."""
        for literal in literals:
            own = own.wider(cls.of_type(literal))
        return own

    def wider(self, other: _Digits) -> _Digits:
        whole = max(self.whole, other.whole)
        return _Digits(whole, min(max(self.scale, other.scale), _MOST_DIGITS - whole))


def _is_number(literal: Literal) -> bool:
    return isinstance(literal.value, int | float | Decimal) and not isinstance(literal.value, bool)


def _bits(literal: Literal) -> int | None:
    """How many the whole number has in Spark; None: it is a decimal."""
    value = literal.value
    if not isinstance(value, int) or not _LEAST_LONG <= value <= _MOST_LONG:
        return None
    return _BITS_BY_SUFFIX.get(literal.text[-1].upper(), 32 if -(1 << 31) <= value < 1 << 31 else 64)


def _is_whole(literal: Literal) -> bool:
    return _bits(literal) is not None


def _of_number(column: Column, op: Op, literal: Literal) -> Node | None:
    """Whole numbers and decimals."""
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float):
        unit = 10**column.type.scale if pt.is_decimal(column.type) else 1
        return _between(column, op, *_rounded_to(value, unit))
    own, is_signed = _Digits.of_column(column), literal.text.startswith("+")  # to Spark, +1 is no literal
    assert own is not None
    if pt.is_integer(column.type):
        if _is_whole(literal):
            return _of_exact(column, op, Fraction(value))
        if op != "=" and not is_signed:
            if not _LEAST_LONG <= value <= _MOST_LONG:  # Spark does not look at the column, and so not for NULL
                return Constant((op in ("<", "<=")) == (value > 0))
            return _of_exact(column, op, Fraction(value))
    return _rounded(column, op, literal, own.wider((_Digits.of_type if is_signed else _Digits.of_value)(literal)))


def _rounded(column: Column, op: Op, literal: Literal, common: _Digits) -> Node:
    """Column and literal are compared as decimals of this type, to which both are rounded, halves away from zero."""
    assert isinstance(literal.value, int | Decimal)
    scaled = abs(Fraction(literal.value)) * 10**common.scale
    rounded = math.floor(scaled + Fraction(1, 2))
    own = _Digits.of_column(column)
    assert own is not None
    is_negative = literal.value < 0
    if common.scale >= own.scale:
        exact = Fraction(-rounded if is_negative else rounded, 10 ** (common.scale - own.scale))
        return _of_exact(column, op, exact)
    unit = 10 ** (own.scale - common.scale)
    most = rounded * unit + unit // 2 - 1
    least = rounded * unit - unit // 2 if rounded else -most
    return _between(column, op, *((-most, -least) if is_negative else (least, most)))


def _between(column: Column, op: Op, least: int, most: int) -> Node:
    """The literal stands for all numbers from ``least`` to ``most``, in units of the column's last digit."""
    if op == "=":
        return And((_of_exact(column, ">=", Fraction(least)), _of_exact(column, "<=", Fraction(most))))
    return _of_exact(column, op, Fraction(least if op in ("<", ">=") else most))


def _rounded_to(value: float, unit: int) -> tuple[int, int]:
    """The least and the largest whole number that, divided by ``unit``, is nearest to this double of all doubles. The
    former is the larger one where there is none."""
    low, high = (_middle(value, towards) * unit for towards in (-math.inf, math.inf))
    least, most = math.ceil(low), math.floor(high)
    if struct.unpack("<q", struct.pack("<d", value))[0] & 1:  # a number in the middle goes to the even neighbour
        return least + (least == low), most - (most == high)
    return least, most


def _middle(value: float, towards: float) -> Fraction:
    """Between a double and the next one. Behind the largest one, rounding is as if there were a next."""
    following = math.nextafter(value, towards)
    exact = Fraction(following) if math.isfinite(following) else Fraction(2) ** 1024 * (1 if following > 0 else -1)
    return (Fraction(value) + exact) / 2


def _of_exact(column: Column, op: Op, scaled: Fraction) -> Node:
    """``scaled``: the literal in units of the column's last digit."""
    if pt.is_decimal(column.type):
        most = 10**column.type.precision - 1
        least = -most
    else:
        bits = column.type.bit_width
        least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    if op == "=" and (scaled.denominator != 1 or not least <= scaled <= most):
        return Known(column, False)
    if scaled > most:
        return Known(column, op in ("<", "<="))
    if scaled < least:
        return Known(column, op in (">", ">="))
    if scaled.denominator != 1:  # there is no equal value: below 1.5 is at most 1
        op = "<=" if op in ("<", "<=") else ">="
        return Compare(column, op, math.floor(scaled) if op == "<=" else math.ceil(scaled))
    return Compare(column, op, int(scaled))


def _of_float(column: Column, op: Op, literal: Literal) -> Node | None:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return Compare(column, op, float(value))


def _of_boolean(column: Column, op: Op, literal: Literal) -> Node | None:
    return Compare(column, op, literal.value) if isinstance(literal.value, bool) and op == "=" else None


def _of_text(column: Column, op: Op, literal: Literal) -> Node | None:
    value = literal.value
    if isinstance(value, str):
        return Compare(column, op, _utf8(value))
    return Compare(column, op, value) if isinstance(value, bytes) and not pt.is_string(column.type) else None


def _of_date(column: Column, op: Op, literal: Literal) -> Node | None:
    value = _parsed(literal, parse_date)
    return Compare(column, op, value.days) if isinstance(value, Date) else None


def _of_timestamp(column: Column, op: Op, literal: Literal) -> Node | None:
    value = _parsed(literal, parse_timestamp)
    if not isinstance(value, Timestamp) or value.has_zone == (column.type.tz is None):
        return None
    return Compare(column, op, value.micros)


def _parsed(literal: Literal, parse: Callable[[str], Date | Timestamp]) -> object:
    if not isinstance(literal.value, str):
        return literal.value
    try:
        return parse(literal.value)
    except (ValueError, KeyError, OverflowError):
        return None


_Compare = Callable[[Column, Op, Literal], Node | None]
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], _Compare], ...] = (
    (lambda kind: pt.is_integer(kind) or pt.is_decimal(kind), _of_number),
    (pt.is_floating, _of_float),
    (pt.is_boolean, _of_boolean),
    (lambda kind: pt.is_string(kind) or pt.is_binary(kind), _of_text),
    (pt.is_date, _of_date),
    (lambda kind: pt.is_timestamp(kind) and kind.unit == "us", _of_timestamp),
)


def _like(column: Column, literal: Literal) -> Node:
    if literal.value is None:
        return Constant(None)
    if not isinstance(literal.value, str) or not pt.is_string(column.type):
        raise InvalidPredicateError(f"where: {column.name} LIKE {literal.text}: LIKE is for strings")
    parts = re.findall(r"\\.|.", literal.value, flags=re.DOTALL)
    plain = "".join(part[-1] for part in parts if part not in ("%", "_"))
    wild = [index for index, part in enumerate(parts) if part in ("%", "_")]
    if any(part[0] == "\\" and part[1:] not in ("%", "_", "\\") for part in parts):
        raise InvalidPredicateError(f"where: LIKE {literal.text}: in a pattern \\ stands only before %, _ and itself")
    if not wild:
        return Compare(column, "=", _utf8(plain))
    if wild != [len(parts) - 1] or parts[-1] != "%":
        raise InvalidPredicateError(f"where: LIKE {literal.text}: only a beginning can be asked for, as in 'x%'")
    return Prefix(column, _utf8(plain))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidPredicateError(f"where: {text!r} is no text") from None
