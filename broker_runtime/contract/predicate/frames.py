"""Whether any row of a frame can match a predicate, by the frame's header and statistics alone.

Each node is asked which answers its rows can have: a set of true, false and unknown. What is not known leaves all three
open, so a frame without statistics, or with bounds that say nothing, is kept. Rule: never a frame too few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow.types as pt

from broker_runtime.contract.predicate.tree import And, Compare, Constant, IsNull, Known, Node, Not, Or, Prefix
from broker_runtime.contract.statistics import ColumnStatistics, Kind, Value, decode_value, kind_of

_TRUE, _FALSE, _UNKNOWN = 1, 2, 4
_ANY: Final = _TRUE | _FALSE | _UNKNOWN
_NEGATED = [sum(flag for flag, of in ((_TRUE, _FALSE), (_FALSE, _TRUE), (_UNKNOWN, _UNKNOWN)) if bits & of) for bits in range(8)]  # noqa: E501  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a column in a frame. ``least``, ``most``: None: not known; they need not be rows' values.

    ``has_nulls`` and ``has_others``: whether some row may be NULL, and whether some may not. ``has_nan``: whether some
    may be NaN, which the bounds do not include.
    """

    least: Value | None = None
    most: Value | None = None
    has_nulls: bool = True
    has_others: bool = True
    has_nan: bool = True


UNKNOWN_BOUNDS: Final = Bounds()


def bounds_of(known: ColumnStatistics, record_count: int) -> Bounds:
    """The statistics of a column in a frame of ``record_count`` rows, as bounds. Raises `CorruptRecordError`."""
    nulls = known.null_count
    return Bounds(
        least=None if known.minimum is None else decode_value(known.kind, known.minimum),
        most=None if known.maximum is None else decode_value(known.kind, known.maximum),
        has_nulls=nulls is None or nulls > 0,
        has_others=nulls is None or nulls < record_count,
        has_nan=known.kind == Kind.FLOAT and known.nan_count != 0,
    )


def may_match(node: Node, bounds: Callable[[str], Bounds]) -> bool:
    """Whether a row can match. ``bounds``: of a column by its name; `UNKNOWN_BOUNDS` where nothing is known."""
    return bool(_answers(node, bounds) & _TRUE)


def _answers(node: Node, bounds: Callable[[str], Bounds]) -> int:
    if isinstance(node, And | Or):
        return _joined(node, bounds)
    if isinstance(node, Not):
        return _NEGATED[_answers(node.part, bounds)]
    if isinstance(node, Constant):
        return _UNKNOWN if node.answer is None else _TRUE if node.answer else _FALSE
    known = bounds(node.column.name)
    if isinstance(node, IsNull):
        return (_TRUE if known.has_nulls else 0) | (_FALSE if known.has_others else 0)
    unknown = _UNKNOWN if known.has_nulls else 0
    if not known.has_others:
        return unknown
    if isinstance(node, Known):
        return unknown | (_TRUE if node.answer else _FALSE)
    if isinstance(node, Prefix):
        return unknown | _begins(node, known)
    return unknown | _compares(node, known)


def _joined(node: And | Or, bounds: Callable[[str], Bounds]) -> int:
    """Three-valued logic over sets of answers, as if the parts had nothing to do with each other."""
    decisive, neutral = (_FALSE, _TRUE) if isinstance(node, And) else (_TRUE, _FALSE)
    answers = neutral
    for part in node.parts:
        other = _answers(part, bounds)
        found = (answers | other) & decisive
        if answers & neutral and other & neutral:
            found |= neutral
        if (answers & _UNKNOWN and other & (_UNKNOWN | neutral)) or (other & _UNKNOWN and answers & neutral):
            found |= _UNKNOWN
        answers = found
    return answers


def _begins(node: Prefix, known: Bounds) -> int:
    least, most, prefix = known.least, known.most, node.value
    if isinstance(most, bytes) and most < prefix:
        return _FALSE
    if isinstance(least, bytes) and least > prefix and not least.startswith(prefix):
        return _FALSE
    return _TRUE | _FALSE


def _compares(node: Compare, known: Bounds) -> int:
    """The answers of rows that are not NULL."""
    least, most, value = known.least, known.most, node.value
    if isinstance(value, float) and not pt.is_floating(node.column.type):
        scale = kind_of(node.column.type)[1]
        least, most = _as_double(least, scale), _as_double(most, scale)
    if isinstance(value, float) and math.isnan(value):
        return _TRUE | _FALSE
    answers = 0
    if node.op in (">", ">=") and known.has_nan and pt.is_floating(node.column.type):
        answers |= _TRUE  # NaN is larger than all numbers
    elif known.has_nan and pt.is_floating(node.column.type):
        answers |= _FALSE
    if least is None or most is None:
        return answers | _TRUE | _FALSE
    return answers | _between(node.op, least, most, value)


def _between(op: str, least: Value, most: Value, value: Value) -> int:
    """The answers of values from ``least`` to ``most``."""
    assert not isinstance(least, bytes) or isinstance(value, bytes)
    low, high = _order(least, value), _order(most, value)
    if op == "=":
        can_be = low <= 0 <= high
        return (_TRUE if can_be else 0) | (0 if low == high == 0 else _FALSE)
    if op in (">", ">="):  # the opposite of what is asked below
        opposite = _between("<=" if op == ">" else "<", least, most, value)
        return _NEGATED[opposite]
    can_be = low < 0 or (op == "<=" and low == 0)
    can_fail = high > 0 or (op == "<" and high == 0)
    return (_TRUE if can_be else 0) | (_FALSE if can_fail else 0)


def _order(one: Value, other: Value) -> int:
    if isinstance(one, bytes) and isinstance(other, bytes):
        return (one > other) - (one < other)
    assert not isinstance(one, bytes)
    assert not isinstance(other, bytes)
    return (one > other) - (one < other)


def _as_double(value: Value | None, scale: int) -> Value | None:
    """A bound of whole numbers or decimals as Spark compares it with a double. Rounding keeps the order."""
    if value is None or isinstance(value, bytes | float):
        return value
    return float(value) if not scale else value / 10**scale
