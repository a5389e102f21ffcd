"""Whether any row of a frame can match a predicate, by the frame's header and statistics alone.

Each node is asked whether it can be true for some row, and whether it can be false for some. (A row for which it is
unknown never matches, nor if it is negated.) What is not known leaves both open, so a frame without statistics, or with
bounds that say nothing, is kept. Rule: never a frame too few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker_runtime.contract.predicate.tree import And, Compare, Constant, IsNull, Known, Node, Not, Or, Prefix
from broker_runtime.contract.statistics import ColumnStatistics, Kind, Value, decode_value


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


class _Answers(NamedTuple):
    """What a node can be for some row."""

    true: bool
    false: bool


def may_match(node: Node, bounds: Callable[[str], Bounds]) -> bool:
    """Whether a row can match. ``bounds``: of a column by its name; `UNKNOWN_BOUNDS` where nothing is known."""
    return _answers(node, bounds).true


def _answers(node: Node, bounds: Callable[[str], Bounds]) -> _Answers:
    """As if the parts of a node had nothing to do with each other."""
    if isinstance(node, And | Or):
        parts = [_answers(part, bounds) for part in node.parts]
        join, opposite = (all, any) if isinstance(node, And) else (any, all)
        return _Answers(join(part.true for part in parts), opposite(part.false for part in parts))
    if isinstance(node, Not):
        part = _answers(node.part, bounds)
        return _Answers(part.false, part.true)
    if isinstance(node, Constant):
        return _Answers(node.answer is True, node.answer is False)
    known = bounds(node.column.name)
    if isinstance(node, IsNull):
        return _Answers(known.has_nulls, known.has_others)
    if not known.has_others:
        return _Answers(False, False)
    if isinstance(node, Known):
        return _Answers(node.answer, not node.answer)
    return _begins(node, known) if isinstance(node, Prefix) else _compares(node, known)


def _begins(node: Prefix, known: Bounds) -> _Answers:
    least, most, prefix = known.least, known.most, node.value
    is_before = isinstance(most, bytes) and most < prefix
    is_behind = isinstance(least, bytes) and least > prefix and not least.startswith(prefix)
    return _Answers(not (is_before or is_behind), True)


def _compares(node: Compare, known: Bounds) -> _Answers:
    if known.least is None or known.most is None:
        return _Answers(True, True)
    low, high = _order(known.least, node.value), _order(known.most, node.value)
    true, false = {
        "=": (low <= 0 <= high, not low == high == 0),
        "<": (low < 0, high >= 0),
        "<=": (low <= 0, high > 0),
        ">": (high > 0, low <= 0),
        ">=": (high >= 0, low < 0),
    }[node.op]
    if known.has_nan and isinstance(node.value, float):  # NaN is larger than all numbers
        return _Answers(true or node.op in (">", ">="), false or node.op not in (">", ">="))
    return _Answers(true, false)


def _order(one: Value, other: Value) -> int:
    """Below 0: ``one`` is smaller; 0: they are equal."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        assert isinstance(one, bytes)
        assert isinstance(other, bytes)
        return (one > other) - (one < other)
    return (one > other) - (one < other)
