"""Which schemas a topic can have, and the normal form that each is kept in.

| Arrow type                                                        | in a topic                                   |
|-------------------------------------------------------------------|----------------------------------------------|
| bool, int8–int64, float32, float64, string, binary, date32, null  | as it is                                     |
| decimal32, 64, 128, 256 of up to 38 digits                        | decimal128                                   |
| timestamp of any unit without a zone                              | timestamp[us]            (TIMESTAMP_NTZ)     |
| timestamp of any unit with a zone                                 | timestamp[us, tz=UTC]    (TIMESTAMP)         |
| time32, time64                                                    | time64[ns]               (TIME)              |
| duration of any unit                                              | duration[us]             (INTERVAL DAY …)    |
| date64; large, view and fixed-size string, binary and list        | date32; the plain type                       |
| list, map, struct                                                 | with fields named as Spark names them        |
| dictionary, run-end encoded, extension                            | their values' type                           |
| unsigned integers, float16, unions, other intervals               | refused: the message says what to use        |

Rule: a topic has exactly the types that Spark's Arrow reader takes. A time zone says how a time is shown, not which
time it is, so only whether there is one is kept. Year-month intervals are missing because pyarrow has no arrays of
them and no Python source can declare one.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import InvalidSchemaError

MAX_COLUMNS = 4096
MAX_DEPTH = 32
_RESERVED_NAMES = frozenset({"_metadata"})
_UNSIGNED = {"uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "int64 or decimal(20, 0)"}
_KEY_TYPES = "a string, binary or integer column"


def check_topic_schema(schema: pa.Schema, key: str | None = None) -> pa.Schema:
    """The normal form of ``schema``; ``key`` names the column whose value chooses the partition.

    Raises `InvalidSchemaError` for a type that no topic can have, a repeated name (ignoring case, as Spark does), no
    columns or too many, and a key that is not a column or whose type cannot choose a partition.
    """
    if len(schema) == 0 or len(schema) > MAX_COLUMNS:
        raise InvalidSchemaError(f"a topic's schema has 1 to {MAX_COLUMNS} columns, not {len(schema)}")
    fields = [_normal_field(field, field.name, 0) for field in schema]
    _check_names([field.name for field in fields], "column")
    for field in fields:
        if field.name in _RESERVED_NAMES:
            raise InvalidSchemaError(
                f"column name {field.name!r} is reserved for the records' metadata; choose another"
            )
    normal = pa.schema(fields)
    if key is not None:
        if key not in normal.names:
            raise InvalidSchemaError(f"the key {key!r} is not one of the columns {', '.join(normal.names)}")
        kind = normal.field(key).type
        if not (pt.is_string(kind) or pt.is_binary(kind) or pt.is_integer(kind)):
            raise InvalidSchemaError(f"the key {key!r} is {kind}; it must be {_KEY_TYPES}")
    return normal


def check_new_columns(schema: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """The normal form of ``schema`` with ``columns`` appended.

    Raises `InvalidSchemaError` as `check_topic_schema`, and for a new column that allows no nulls: the records that are
    already in the topic have no value for it.
    """
    for field in columns:
        if not field.nullable:
            raise InvalidSchemaError(
                f"new column {field.name!r} must allow nulls: the topic's records have no value for it"
            )
    if len(columns) == 0:
        raise InvalidSchemaError("no columns to add")
    return check_topic_schema(pa.schema([*schema, *columns]))


def plain_type(kind: pa.DataType, path: str, depth: int = 0) -> pa.DataType:
    """The type that a column of type ``kind`` has in a topic; ``path`` is the column's name in errors."""
    if depth > MAX_DEPTH:
        raise InvalidSchemaError(f"column {path!r} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type, path, depth)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return plain_type(kind.value_type, path, depth)
    if pt.is_map(kind):
        return pa.map_(
            make_field("key", plain_type(kind.key_type, f"{path}.key", depth + 1), nullable=False),
            _renamed(kind.item_field, "value", f"{path}.value", depth + 1),
        )
    if (
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    ):
        return pa.list_(_renamed(kind.value_field, "element", f"{path}.element", depth + 1))
    if pt.is_struct(kind):
        members = [kind.field(i) for i in range(kind.num_fields)]
        _check_names([member.name for member in members], f"field of {path!r}")
        return pa.struct([_normal_field(member, f"{path}.{member.name}", depth + 1) for member in members])
    return _plain_leaf(kind, path)


def make_field(
    name: str, kind: pa.DataType, nullable: bool = True, metadata: dict[bytes, bytes] | None = None
) -> pa.Field:
    """An Arrow field. Raises `InvalidSchemaError` for a void column that allows no nulls: it could have no value."""
    if pt.is_null(kind) and not nullable:
        raise InvalidSchemaError(f"{name!r} is void, so all its values are null: it must allow nulls")
    return pa.field(name, kind, nullable, metadata)


def _plain_leaf(kind: Any, path: str) -> pa.DataType:
    if pt.is_boolean(kind) or pt.is_signed_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind):
        return kind
    if pt.is_date32(kind) or pt.is_null(kind):
        return kind
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_decimal(kind):
        if kind.precision > 38 or not 0 <= kind.scale <= kind.precision:
            raise InvalidSchemaError(
                f"column {path!r} is {kind}; a decimal has up to 38 digits, 0 to all of them after the point"
            )
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pt.is_date64(kind):
        return pa.date32()
    if pt.is_time(kind):
        return pa.time64("ns")
    if pt.is_duration(kind):
        return pa.duration("us")
    instead = _UNSIGNED.get(str(kind)) or ("float" if pt.is_float16(kind) else None)
    if instead is None and "interval" in str(kind):
        instead = "duration[us], or int32 for months"
    if instead is None:
        instead = "a struct of the alternatives" if pt.is_union(kind) else "one of Spark's types"
    raise InvalidSchemaError(f"column {path!r} is {kind}, which Spark does not have; use {instead}")


def _normal_field(field: pa.Field, path: str, depth: int) -> pa.Field:
    if not field.name:
        raise InvalidSchemaError(f"a column without a name in {path!r}" if path else "a column without a name")
    return make_field(field.name, plain_type(field.type, path, depth), field.nullable, _own_metadata(field))


def _renamed(field: pa.Field, name: str, path: str, depth: int) -> pa.Field:
    return make_field(name, plain_type(field.type, path, depth), field.nullable, _own_metadata(field))


def _own_metadata(field: pa.Field) -> dict[bytes, bytes] | None:
    """The field's metadata without Arrow's own entries. It must be kept: Spark recognises variants by it."""
    kept = {
        name: value for name, value in (field.metadata or {}).items() if not name.startswith((b"ARROW:", b"PARQUET:"))
    }
    return kept or None


def _check_names(names: list[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        folded = name.lower()
        if folded in seen:
            raise InvalidSchemaError(f"{what} {name!r} appears twice (as {seen[folded]!r}); Spark ignores case")
        seen[folded] = name
