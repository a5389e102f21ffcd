"""A predicate as a tree over columns, its values in the form in which columns store them.

Compare    column op value        value: an integer for whole numbers, decimals (unscaled), dates (days) and
                                  timestamps (us); a float; bytes for strings and binary; a bool
Prefix     the string or binary begins with these bytes
IsNull     the column is NULL
Known      the same answer wherever the column is not NULL (``delay < 1e30``)
Constant   an answer that depends on no row; None: unknown (``delay = NULL``)
And, Or, Not
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pyarrow as pa

Op: TypeAlias = Literal["<", "<=", "=", ">=", ">"]
Value: TypeAlias = bool | int | float | bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A column by the name under which `rows` finds it: the topic's own, or ``_metadata.…``."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Compare:
    """See the module."""

    column: Column
    op: Op
    value: Value


@dataclass(frozen=True, slots=True)
class Prefix:
    """See the module."""

    column: Column
    value: bytes


@dataclass(frozen=True, slots=True)
class IsNull:
    """See the module."""

    column: Column


@dataclass(frozen=True, slots=True)
class Known:
    """See the module."""

    column: Column
    answer: bool


@dataclass(frozen=True, slots=True)
class Constant:
    """See the module."""

    answer: bool | None


@dataclass(frozen=True, slots=True)
class And:
    """All of these, by three-valued logic."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of these, by three-valued logic."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    part: Node


Node: TypeAlias = Compare | Prefix | IsNull | Known | Constant | And | Or | Not


@dataclass(frozen=True, slots=True)
class Predicate:
    """A typed predicate. ``text``: as it was given."""

    text: str
    root: Node

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it looks at, each once, in order of appearance."""
        return tuple(dict.fromkeys(column.name for column in _columns(self.root)))


def renamed(predicate: Predicate, names: Mapping[str, str]) -> Predicate:
    """The same predicate over columns of other names."""
    return Predicate(predicate.text, _renamed(predicate.root, names))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    if isinstance(node, And | Or):
        return type(node)(tuple(_renamed(part, names) for part in node.parts))
    if isinstance(node, Not):
        return Not(_renamed(node.part, names))
    if isinstance(node, Constant):
        return node
    return replace(node, column=replace(node.column, name=names.get(node.column.name, node.column.name)))


def _columns(node: Node) -> Iterator[Column]:
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from _columns(part)
    elif isinstance(node, Not):
        yield from _columns(node.part)
    elif not isinstance(node, Constant):
        yield node.column
