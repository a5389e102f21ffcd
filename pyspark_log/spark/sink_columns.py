"""Which column of a DataFrame becomes which part of a record, for topics without a schema.

The rules and messages are those of Spark's Kafka sink: ``value`` is required; ``key``, ``topic``, ``partition`` and
``headers`` are optional; the option ``topic`` wins over the column; other columns are left out, which is said once.
Names count in any case, as in Spark; the exact one, which is all that Kafka's sink knows, first.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.events import event

_TEXT_OR_BYTES = (StringType, BinaryType)
_PARTS = ("value", "key", "headers", "partition", "topic")

_logger = logging.getLogger(__name__)
_said: set[tuple[str, ...]] = set()  # a streaming query makes a writer for each micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Positions of a record's parts among the DataFrame's columns; None: it has none. ``topic`` None: the option's."""

    value: int
    key: int | None
    headers: int | None
    partition: int | None
    topic: int | None


def find_record_columns(schema: StructType, topic_option: str | None) -> RecordColumns:
    """Raises `SchemaMismatchError` for a missing column or one of a wrong type, before a row is looked at."""
    positions: dict[str, int] = {}
    for position, name in sorted(enumerate(schema.names), key=lambda each: each[1] not in _PARTS):
        positions.setdefault(name.lower(), position)
    if topic_option is None and "topic" not in positions:
        raise SchemaMismatchError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in positions:
        raise SchemaMismatchError(
            f"Required attribute 'value' not found. The DataFrame has {', '.join(schema.names) or 'no columns'}"
        )
    kinds = {name: schema.fields[position].dataType for name, position in positions.items()}
    if topic_option is None:
        _require("topic", kinds["topic"], isinstance(kinds["topic"], StringType), "string")
    for name in ("value", "key"):
        if name in kinds:
            _require(name, kinds[name], isinstance(kinds[name], _TEXT_OR_BYTES), "string or binary")
    if "headers" in kinds:
        _require("headers", kinds["headers"], _are_headers(kinds["headers"]), "array<struct<key:string,value:binary>>")
    if "partition" in kinds:
        _require("partition", kinds["partition"], isinstance(kinds["partition"], IntegerType), "int")
    _warn_of_others(schema, positions)
    return RecordColumns(
        value=positions["value"],
        key=positions.get("key"),
        headers=positions.get("headers"),
        partition=positions.get("partition"),
        topic=None if topic_option is not None else positions["topic"],
    )


def _warn_of_others(schema: StructType, positions: dict[str, int]) -> None:
    """Says which columns no record gets, once in this process."""
    kept = {positions[name] for name in _PARTS if name in positions}
    others = tuple([name for position, name in enumerate(schema.names) if position not in kept])
    if others and others not in _said:
        _said.add(others)
        event(_logger, "leave out columns", columns=",".join(others), taken=",".join(_PARTS), level=logging.WARNING)


def _require(name: str, given: DataType, is_right: bool, allowed: str) -> None:
    if not is_right:
        raise SchemaMismatchError(
            f"{name} attribute unsupported type {given.simpleString()}. {name} must be a(n) {allowed}"
        )


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    parts = kind.elementType.fields
    return (
        [part.name for part in parts] == ["key", "value"]
        and isinstance(parts[0].dataType, StringType)
        and isinstance(parts[1].dataType, BinaryType)
    )
