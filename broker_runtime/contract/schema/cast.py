"""Casts data to a topic's schema: columns by name, safe casts only, errors that name the column.

Rule: a value is never changed, truncated or guessed; one that does not fit is refused. Types that differ only in how
they are stored (dictionary, run-end encoded, view, large, extension, other time units) are decoded here, at the edge,
so that frames hold plain types only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from broker_runtime.contract.errors import InvalidSchemaError, SchemaMismatchError
from broker_runtime.contract.schema.normal_form import plain_type
from broker_runtime.contract.schema.topic import TopicSchema
from broker_runtime.contract.schema.validity import check_values
from broker_runtime.contract.suggestion import suggestion

_INT64_DIGITS = 19


def cast_to_topic(data: pa.Table | pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
    """``data`` as one batch of ``schema``'s columns, in its order and exactly its types; rows keep their order.

    Nullable columns that ``data`` lacks are left out. Columns that have the right type already are not copied. Raises
    `SchemaMismatchError` that names the column: it is unknown (with the nearest known one), repeated, missing or null
    although it allows no nulls, or its type or one of its values does not fit.
    """
    names = data.schema.names
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise SchemaMismatchError(f"column {repeated!r} appears twice")
    schema.column_ids(names)
    given = set(names)
    fields, arrays = [], []
    for field in schema.arrow:
        if field.name in given:
            fields.append(field)
            arrays.append(cast_column(_as_array(data.column(field.name)), field))
        elif not field.nullable:
            raise SchemaMismatchError(f"column {field.name!r} allows no nulls and is missing")
    if not arrays:
        raise SchemaMismatchError(f"no columns; the topic has {', '.join(schema.arrow.names)}")
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def cast_column(array: pa.Array, field: pa.Field) -> pa.Array:
    """``array`` as exactly ``field``'s type, every value one of that type. Raises `SchemaMismatchError`."""
    if array.type != field.type:
        array = _cast(array, field)
    try:
        check_values(array, field)
    except (pa.ArrowException, OSError) as error:
        raise SchemaMismatchError(f"the values of column {field.name!r} are damaged: {error}") from None
    check_nulls(array, field)
    return array


def check_nulls(array: pa.Array, field: pa.Field) -> None:
    """Raises `SchemaMismatchError` if ``array`` has a null where ``field``, or a field nested in it, allows none.

    Takes constant time unless a nested field allows none.
    """
    if not field.nullable and array.null_count:
        raise SchemaMismatchError(f"column {field.name!r} allows no nulls and has {array.null_count}")
    if has_required_inside(field.type):
        _check_nulls_inside(array, field.type, field.name)


def _check_nulls_inside(array: pa.Array, kind: pa.DataType, path: str) -> None:
    children: list[tuple[pa.Field, pa.Array]] = []
    if pt.is_struct(kind):
        valid = array.drop_null() if array.null_count else array
        children = [(kind.field(i), valid.field(i)) for i in range(kind.num_fields)]
        # field() returns the whole child, whatever slice of the struct this is.
        children = [
            (child, values.slice(valid.offset, len(valid)) if len(values) != len(valid) else values)
            for child, values in children
        ]
    elif pt.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))).flatten()
        children = [(kind.item_field, entries.field(1))]
    elif pt.is_list(kind):
        children = [(kind.value_field, array.flatten())]
    for child, values in children:
        if not child.nullable and values.null_count:
            raise SchemaMismatchError(
                f"column {path!r}: {child.name!r} in it allows no nulls and has {values.null_count}"
            )
        if has_required_inside(child.type):
            _check_nulls_inside(values, child.type, f"{path}.{child.name}")


def _as_array(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        combined = column.combine_chunks()
        if isinstance(combined, pa.ChunkedArray):
            if combined.num_chunks != 1:
                raise SchemaMismatchError("more than 2 GiB in one column; send it in parts")
            return combined.chunk(0)
        return combined
    return column


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    given = array.type
    try:
        plain = plain_type(given, field.name) if not _is_unsigned(given) else given
    except InvalidSchemaError as error:
        raise SchemaMismatchError(error.message) from None
    if not _fits(plain, field.type):
        raise SchemaMismatchError(
            f"column {field.name!r} is {given}, the topic's is {field.type}{_hint(plain, field.type, field.name)}"
        )
    try:
        if isinstance(given, pa.BaseExtensionType):
            array = array.storage
        if pt.is_dictionary(array.type):
            # Not by a cast: Arrow cannot decode a dictionary of views, which is what Polars' categories are.
            array = pc.cast(array.dictionary, plain_type(array.type.value_type, field.name)).take(array.indices)
        if pt.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        if pt.is_decimal(field.type) and pt.is_integer(array.type):
            digits = min(38, _INT64_DIGITS + 1 + field.type.scale)
            array = pc.cast(array, pa.decimal128(digits, field.type.scale))
        cast = pc.cast(array, field.type, safe=True)
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise SchemaMismatchError(
            f"column {field.name!r} is {given} and does not fit into the topic's {field.type}: {error}"
        ) from None
    if _has_float32(field.type) and _infinite(cast) != _infinite(array):
        raise SchemaMismatchError(f"column {field.name!r} has values out of the range of {pa.float32()}")
    return cast


@lru_cache(maxsize=1024)
def _has_float32(kind: pa.DataType) -> bool:
    return bool(pt.is_float32(kind)) or any(_has_float32(kind.field(i).type) for i in range(kind.num_fields))


def _infinite(array: pa.Array) -> int:
    """How many infinite numbers ``array`` has, at any depth."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _infinite(array.storage)
    if pt.is_floating(kind):
        return pc.sum(pc.is_inf(array)).as_py() or 0
    if pt.is_dictionary(kind):
        return _infinite(pc.cast(array, kind.value_type))
    if pt.is_struct(kind):
        return sum(map(_infinite, array.flatten()))
    if pt.is_map(kind):
        return _infinite(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if pt.is_nested(kind):
        return _infinite(array.flatten())
    return 0


def _is_unsigned(kind: pa.DataType) -> bool:
    return bool(pt.is_unsigned_integer(kind))


@lru_cache(maxsize=1024)
def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether ``given``, a plain type, may be cast to ``wanted``; a single value may still turn out not to fit."""
    if given == wanted or pt.is_null(given):
        return True
    if pt.is_integer(wanted):
        return bool(pt.is_integer(given) or pt.is_floating(given))
    if pt.is_floating(wanted):
        return bool(pt.is_integer(given) or pt.is_floating(given))
    if pt.is_decimal(wanted):
        return bool(pt.is_decimal(given) or pt.is_integer(given))
    if pt.is_binary(wanted):
        return bool(pt.is_binary(given) or pt.is_string(given))
    if pt.is_timestamp(wanted):
        return bool(pt.is_timestamp(given)) and (given.tz is None) == (wanted.tz is None)
    if pt.is_map(wanted):
        return (
            bool(pt.is_map(given))
            and _fits(given.key_type, wanted.key_type)
            and _fits(given.item_type, wanted.item_type)
        )
    if pt.is_list(wanted):
        return bool(pt.is_list(given)) and _fits(given.value_type, wanted.value_type)
    if pt.is_struct(wanted):
        if not pt.is_struct(given):
            return False
        ours = {wanted.field(i).name: wanted.field(i) for i in range(wanted.num_fields)}
        theirs = {given.field(i).name: given.field(i) for i in range(given.num_fields)}
        return all(name in ours and _fits(field.type, ours[name].type) for name, field in theirs.items()) and all(
            name in theirs or field.nullable for name, field in ours.items()
        )
    return bool(given.id == wanted.id)


def _hint(given: pa.DataType, wanted: pa.DataType, path: str) -> str:
    """What to do about a type that does not fit, or where in a nested type the mistake is."""
    if pt.is_timestamp(wanted) and pt.is_timestamp(given):
        return "; give it a time zone" if given.tz is None else "; remove its time zone"
    if pt.is_map(wanted) and pt.is_map(given):
        for side in ("key", "value"):
            ours_type, theirs_type = (k.key_type if side == "key" else k.item_type for k in (wanted, given))
            if not _fits(theirs_type, ours_type):
                return _hint_inside(theirs_type, ours_type, f"{path}.{side}")
    elif pt.is_list(wanted) and pt.is_list(given):
        return _hint_inside(given.value_type, wanted.value_type, f"{path}.element")
    elif pt.is_struct(wanted) and pt.is_struct(given):
        ours = {wanted.field(i).name: wanted.field(i) for i in range(wanted.num_fields)}
        theirs = {given.field(i).name: given.field(i) for i in range(given.num_fields)}
        for name, field in theirs.items():
            if name not in ours:
                return f": there is no field {f'{path}.{name}'!r}; {suggestion(name, ours)}"
            if not _fits(field.type, ours[name].type):
                return _hint_inside(field.type, ours[name].type, f"{path}.{name}")
        missing = [name for name in ours if name not in theirs and not ours[name].nullable]
        if missing:
            return f": {f'{path}.{missing[0]}'!r} allows no nulls and is missing"
    return ""


def _hint_inside(given: pa.DataType, wanted: pa.DataType, path: str) -> str:
    return _hint(given, wanted, path) if pt.is_nested(given) else f": {path!r} must be {wanted}, not {given}"


@lru_cache(maxsize=1024)
def has_required_inside(kind: pa.DataType) -> bool:
    """Whether a field nested in ``kind`` allows no nulls. Map keys do not count: Arrow itself refuses null keys."""
    if pt.is_map(kind):
        return not kind.item_field.nullable or has_required_inside(kind.item_type)
    return any(not kind.field(i).nullable or has_required_inside(kind.field(i).type) for i in range(kind.num_fields))
