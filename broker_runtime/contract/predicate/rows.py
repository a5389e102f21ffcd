"""Which rows match a predicate: Arrow's vectorised comparisons, with Spark's meaning. Nothing is done per row."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from broker_runtime.contract.predicate.tree import (
    And,
    Compare,
    Constant,
    IsNull,
    Known,
    Node,
    Not,
    Or,
    Predicate,
    Prefix,
)

_WIDE = Context(prec=80)
_COMPARE: dict[str, Callable[[Any, Any], pa.Array]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    "=": pc.equal,
    ">=": pc.greater_equal,
    ">": pc.greater,
}


def matching(predicate: Predicate, column: Callable[[str], pa.Array], rows: int) -> pa.Array:
    """For each of ``rows`` rows whether it matches, as booleans without nulls. ``column``: the values by name."""
    answers = _answers(predicate.root, column, rows)
    return answers if answers.null_count == 0 else pc.fill_null(answers, False)


def _answers(node: Node, column: Callable[[str], pa.Array], rows: int) -> pa.Array:
    """Booleans, null where the answer is unknown."""
    if isinstance(node, And | Or):
        join = pc.and_kleene if isinstance(node, And) else pc.or_kleene
        answers = _answers(node.parts[0], column, rows)
        for part in node.parts[1:]:
            answers = join(answers, _answers(part, column, rows))
        return answers
    if isinstance(node, Not):
        return pc.invert(_answers(node.part, column, rows))
    if isinstance(node, Constant):
        return pa.repeat(pa.scalar(node.answer, pa.bool_()), rows)
    values = column(node.column.name)
    if isinstance(node, IsNull):
        return pc.is_null(values)
    if isinstance(node, Known):
        return pc.if_else(pc.is_valid(values), node.answer, pa.scalar(None, pa.bool_()))
    if isinstance(node, Prefix):
        return pc.starts_with(values, node.value)
    return _compared(node, values)


def _compared(node: Compare, values: pa.Array) -> pa.Array:
    if not isinstance(node.value, float):
        return _COMPARE[node.op](values, _scalar(node.column.type, node.value))
    values = values.cast(pa.float64())  # without loss
    answers = _COMPARE[node.op](values, pa.scalar(node.value, pa.float64()))
    # NaN is larger than all numbers, and no literal.
    return pc.or_kleene(answers, pc.is_nan(values)) if node.op in (">", ">=") else answers


@lru_cache(maxsize=1024)
def _scalar(kind: pa.DataType, value: bool | int | bytes) -> pa.Scalar:
    if isinstance(value, bytes):
        return pa.scalar(value.decode() if pt.is_string(kind) else value, kind)
    if pt.is_decimal(kind):
        return pa.scalar(_WIDE.scaleb(Decimal(value), -kind.scale), kind)
    if pt.is_date(kind):
        return pa.scalar(value, pa.int32()).cast(kind)
    if pt.is_timestamp(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)
