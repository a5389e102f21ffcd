"""A topic's schema: which Arrow types it can have, how it is written and sent, and how data is cast to it."""

from broker_runtime.contract.schema.cast import cast_column, cast_to_topic
from broker_runtime.contract.schema.ddl import parse_schema
from broker_runtime.contract.schema.history import SchemaHistory, schema_history_from_info
from broker_runtime.contract.schema.normal_form import check_new_columns, check_topic_schema
from broker_runtime.contract.schema.topic import UNTYPED, TopicSchema
from broker_runtime.contract.schema.wire import MAX_SCHEMA_BYTES, check_text, schema_from_bytes, schema_to_bytes

__all__ = [
    "MAX_SCHEMA_BYTES",
    "UNTYPED",
    "SchemaHistory",
    "TopicSchema",
    "cast_column",
    "cast_to_topic",
    "check_new_columns",
    "check_text",
    "check_topic_schema",
    "parse_schema",
    "schema_from_bytes",
    "schema_history_from_info",
    "schema_to_bytes",
]
