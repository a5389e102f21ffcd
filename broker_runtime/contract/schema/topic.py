"""One version of a topic's schema. A column's id is its position: columns are only appended, never reused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.suggestion import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSchema:
    """``arrow`` has the user's columns in normal form (untyped: ``key`` and ``value``, binary).

    ``required``: the ids of the columns that allow no nulls. ``key``: the column whose value chooses the partition.
    """

    schema_id: int
    arrow: pa.Schema
    is_typed: bool = True
    key: str | None = None
    required: frozenset[int] = field(init=False, compare=False, repr=False)
    _ids: dict[str, int] = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", frozenset(i for i, f in enumerate(self.arrow) if not f.nullable))
        object.__setattr__(self, "_ids", {name: i for i, name in enumerate(self.arrow.names)})
        object.__setattr__(self, "_hash", hash((self.schema_id, self.is_typed, self.key, self.arrow)))

    def __hash__(self) -> int:
        # Computed once: schemas are keys of caches that are asked for every frame.
        return self._hash

    def __reduce__(self) -> tuple[Callable[[int, pa.Schema, bool, str | None], TopicSchema], tuple[Any, ...]]:
        # The hash of a string differs between processes, so it must not be pickled.
        return _rebuilt, (self.schema_id, self.arrow, self.is_typed, self.key)

    @classmethod
    def untyped(cls) -> TopicSchema:
        """The schema of topics that were created without one: binary ``key`` and ``value``."""
        return UNTYPED

    def column_ids(self, names: Sequence[str]) -> tuple[int, ...]:
        """The ids of ``names``, in order. Raises `SchemaMismatchError` for an unknown one, naming the nearest known."""
        try:
            return tuple([self._ids[name] for name in names])
        except KeyError:
            unknown = next(name for name in names if name not in self._ids)
            raise SchemaMismatchError(f"no column {unknown!r}; {suggestion(unknown, self.arrow.names)}") from None


def _rebuilt(schema_id: int, arrow: pa.Schema, is_typed: bool, key: str | None) -> TopicSchema:
    return TopicSchema(schema_id=schema_id, arrow=arrow, is_typed=is_typed, key=key)


UNTYPED = TopicSchema(
    schema_id=0,
    arrow=pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())]),
    is_typed=False,
)
