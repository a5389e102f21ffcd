"""The Spark schema of a source's rows, and which columns of the log they need.

A topic without a schema has Kafka's columns; a topic with one has its own. ``_metadata`` (`includeMetadata`) is a
struct of what Kafka's columns say beside key and value. Several topics may be read together when all are untyped, or
all have the same columns; where `columns` names some, only these must be the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_metadata, from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.predicate import Predicate
from broker_runtime.contract.schema import UNTYPED, TopicSchema
from broker_runtime.contract.suggestion import suggestion
from pyspark_log.client.reading.rows import topic_predicate
from pyspark_log.spark.options import SourceOptions

METADATA = "_metadata"
HEADERS = "headers"

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_POSITION = (
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_KAFKA_COLUMNS = (StructField("key", BinaryType()), StructField("value", BinaryType()), *_POSITION)
METADATA_TYPE = StructType([*_POSITION, StructField(HEADERS, HEADERS_TYPE)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """What rows a source gives. ``schema`` is Spark's; its last field is ``_metadata`` where that was asked for.
    ``where``: only rows that match."""

    is_typed: bool
    schema: StructType
    where: Predicate | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The rows' columns in order, ``_metadata`` included."""
        return tuple(self.schema.names)

    def arrow_schema(self) -> pa.Schema:
        """The exact schema that Spark demands of the record batches: types, order, nullability."""
        return to_arrow_schema(self.schema, timezone="UTC")


def lay_out_rows(topics: Mapping[str, TopicSchema], options: SourceOptions) -> RowLayout:
    """The layout for these topics (names → latest schemas; none: Kafka's columns).

    Raises `OptionError` when the topics cannot be read together, a column is unknown, an option does not fit the
    topics, or a column has a type that Spark lacks.
    """
    typed = {name: schema for name, schema in topics.items() if schema.is_typed}
    if typed and len(typed) < len(topics):
        untyped = sorted(topics.keys() - typed.keys())
        raise OptionError(
            f"Topics with a schema ({', '.join(sorted(typed))}) and without one ({', '.join(untyped)}) "
            "cannot be read by one source. Use a source for each and unite them"
        )
    fields = _typed_fields(typed, options) if typed else _kafka_fields(options)
    if options.include_metadata:
        fields = [*fields, StructField(METADATA, METADATA_TYPE)]
    return RowLayout(is_typed=bool(typed), schema=StructType(fields), where=_parse_where(topics, options))


def _parse_where(topics: Mapping[str, TopicSchema], options: SourceOptions) -> Predicate | None:
    """The predicate, which must mean the same for every topic. Raises `InvalidPredicateError`, `OptionError`."""
    if options.where is None:
        return None
    schemas = dict(sorted(topics.items())) or {"": UNTYPED}
    found = {name: topic_predicate(options.where, schema) for name, schema in schemas.items()}
    first, *others = found
    for name in others:
        if found[name] != found[first]:
            raise OptionError(f"where: its columns have other types in topic {name} than in {first}")
    return found[first]


def _kafka_fields(options: SourceOptions) -> list[StructField]:
    fields = list(_KAFKA_COLUMNS)
    if options.include_headers:
        fields.append(StructField(HEADERS, HEADERS_TYPE))
    return _chosen(fields, options.columns)


def _typed_fields(topics: Mapping[str, TopicSchema], options: SourceOptions) -> list[StructField]:
    if options.include_headers:
        raise OptionError(
            "includeHeaders is for topics without a schema; with one, use includeMetadata: _metadata has the headers"
        )
    first, *others = [(name, _chosen_fields(topics[name].arrow, name, options.columns)) for name in sorted(topics)]
    for name, fields in others:
        if not _same_rows(fields, first[1]):
            raise OptionError(
                f"Topics {first[0]} and {name} have different schemas ({_text(first[1])}; {_text(fields)}). Use a "
                "source for each, or name columns that both have with .option('columns', …)"
            )
    return [
        StructField(
            field.name,
            _spark_type(field),
            field.nullable or any(fields[index].nullable for _, fields in others),
            from_arrow_metadata(field.metadata),
        )
        for index, field in enumerate(first[1])
    ]


def _same_rows(one: Sequence[pa.Field], other: Sequence[pa.Field]) -> bool:
    return [(f.name, f.type, f.metadata) for f in one] == [(f.name, f.type, f.metadata) for f in other]


def _chosen(fields: Sequence[StructField], columns: tuple[str, ...] | None) -> list[StructField]:
    if columns is None:
        return list(fields)
    by_name = {field.name: field for field in fields}
    for name in columns:
        if name not in by_name:
            hint = "it needs includeHeaders=true" if name == HEADERS else suggestion(name, by_name)
            raise OptionError(f"columns: no column {name!r}; {hint}")
    return [by_name[name] for name in columns]


def _chosen_fields(schema: pa.Schema, topic: str, columns: tuple[str, ...] | None) -> list[pa.Field]:
    for name in columns or ():
        if name not in schema.names:
            raise OptionError(f"columns: topic {topic} has no column {name!r}; {suggestion(name, schema.names)}")
    return [schema.field(name) for name in (schema.names if columns is None else columns)]


def _spark_type(field: pa.Field) -> DataType:
    try:
        return from_arrow_type(field.type)
    except PySparkException:
        raise OptionError(
            f"Column {field.name!r} is of type {field.type}, which Spark does not have; leave it out with `columns`"
        ) from None


def _text(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in fields)
