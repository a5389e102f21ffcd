"""Between which values of a column all rows lie that match a predicate: by the predicate alone."""

from __future__ import annotations

from typing import NamedTuple

from broker_runtime.contract.predicate.tree import And, Compare, Constant, Node, Not, Or, Predicate


class Span(NamedTuple):
    """``[least, most]``; None: no bound on that side. ``least`` above ``most``: no row matches."""

    least: int | None = None
    most: int | None = None


_EMPTY = Span(1, 0)


def span_of(predicate: Predicate, name: str) -> Span:
    """Of a column of whole numbers or times that is never NULL."""
    return _span(predicate.root, name, is_negated=False)


def _span(node: Node, name: str, *, is_negated: bool) -> Span:
    if isinstance(node, Not):
        return _span(node.part, name, is_negated=not is_negated)
    if isinstance(node, And | Or):
        parts = [_span(part, name, is_negated=is_negated) for part in node.parts]
        return _common(parts) if isinstance(node, And) != is_negated else _hull(parts)
    if isinstance(node, Constant):
        return Span() if node.answer is not None and node.answer != is_negated else _EMPTY
    if not isinstance(node, Compare) or node.column.name != name:
        return Span()
    value = int(node.value)
    if node.op == "=":
        return Span() if is_negated else Span(value, value)
    if (node.op in ("<", "<=")) != is_negated:
        return Span(None, value - 1 if node.op in ("<", ">=") else value)
    return Span(value + 1 if node.op in (">", "<=") else value, None)


def _common(parts: list[Span]) -> Span:
    least = [part.least for part in parts if part.least is not None]
    most = [part.most for part in parts if part.most is not None]
    return Span(max(least, default=None), min(most, default=None))


def _hull(parts: list[Span]) -> Span:
    some = [part for part in parts if part.least is None or part.most is None or part.least <= part.most]
    if not some:
        return _EMPTY
    least = [part.least for part in some]
    most = [part.most for part in some]
    return Span(
        None if None in least else min(each for each in least if each is not None),
        None if None in most else max(each for each in most if each is not None),
    )
