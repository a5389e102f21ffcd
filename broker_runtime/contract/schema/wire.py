"""A schema as bytes: Arrow's IPC schema message, both on the wire and in ZooKeeper."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import InvalidSchemaError

MAX_SCHEMA_BYTES = 256 << 10
"""The bound that keeps a topic's whole description below what one request to ZooKeeper may carry."""


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """The schema's bytes. Raises `InvalidSchemaError` above `MAX_SCHEMA_BYTES`."""
    data: bytes = schema.serialize().to_pybytes()
    if len(data) > MAX_SCHEMA_BYTES:
        raise InvalidSchemaError(f"the schema has {len(data)} bytes, at most {MAX_SCHEMA_BYTES} are allowed")
    return data


def schema_from_bytes(data: bytes) -> pa.Schema:
    """The schema in ``data``. Raises `InvalidSchemaError` for bytes that are not a schema.

    Whether a topic can have it is not checked here: `check_topic_schema` does that.
    """
    if len(data) > MAX_SCHEMA_BYTES:
        raise InvalidSchemaError(f"the schema has {len(data)} bytes, at most {MAX_SCHEMA_BYTES} are allowed")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidSchemaError(f"these {len(data)} bytes are not an Arrow schema: {error}") from None
    check_text(schema)
    return schema


def check_text(schema: pa.Schema) -> None:
    """Raises `InvalidSchemaError` unless every name and time zone in a schema that came from outside is UTF-8.

    Arrow keeps them as bytes and decodes them on first access. After this check no access fails.
    """
    for index, field in enumerate(schema):
        try:
            _read_text(field)
        except UnicodeDecodeError:
            raise InvalidSchemaError(
                f"column {index} has a name or time zone that is not UTF-8: {field!r:.200}"
            ) from None


def _read_text(field: pa.Field) -> None:
    field.name.encode()
    _read_text_of_type(field.type)


def _read_text_of_type(kind: Any) -> None:
    getattr(kind, "tz", None)
    if isinstance(kind, pa.BaseExtensionType):
        _read_text_of_type(kind.storage_type)
    elif pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        _read_text_of_type(kind.value_type)
    else:
        for i in range(kind.num_fields):
            _read_text(kind.field(i))
