"""What a request to create or change a topic results in, or why it is refused. Pure: nothing here reads or writes.

Rule: a refusal names the value and what is allowed; a plan is complete, so carrying it out decides nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from broker_runtime.contract.errors import InvalidPartitionsError, InvalidRequestError, InvalidSchemaError
from broker_runtime.contract.model import check_topic_name
from broker_runtime.contract.requests import AlterConfigRequest, CreateTopicRequest
from broker_runtime.contract.schema import (
    check_new_columns,
    check_topic_schema,
    schema_from_bytes,
    schema_to_bytes,
)
from broker_runtime.contract.settings import find_setting, resolve
from broker_runtime.controller.assignment import Assignment, BrokerLoad, assign, check_assignment
from broker_runtime.zookeeper.znodes import SchemaRecord, TopicRecord, to_json

MAX_PARTITIONS: Final = 10_000
"""Of one topic."""
MAX_RECORD_BYTES: Final = 448 << 10
"""Of a topic's znode, so that it and what is written with it fit into one request to ZooKeeper."""
MAX_SCHEMA_VERSIONS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic to be created."""

    name: str
    record: TopicRecord
    config: Mapping[str, str]


def plan_topic(
    request: CreateTopicRequest,
    *,
    topic_id: bytes,
    brokers: Mapping[int, BrokerLoad],
    default_partitions: int,
    default_replication_factor: int,
    now_ms: int,
    suspects: Collection[int] = (),
) -> TopicPlan:
    """The topic that ``request`` asks for. The caller checks that its name is free. ``suspects``: see `assign`;
    an assignment that the request gives may name them.

    Raises `InvalidTopicError`, `InvalidPartitionsError`, `InvalidReplicationFactorError`,
    `InvalidReplicaAssignmentError`, `InvalidSchemaError`, `InvalidConfigError`, `InvalidRequestError`.
    """
    name = check_topic_name(request.name)
    assignment = _assignment(request, brokers, default_partitions, default_replication_factor, suspects)
    schemas: tuple[SchemaRecord, ...] = ()
    if request.schema is not None:
        normal = check_topic_schema(schema_from_bytes(request.schema), request.key)
        schemas = (SchemaRecord(schema_id=0, arrow=schema_to_bytes(normal)),)
    elif request.key is not None:
        raise InvalidSchemaError(
            f"key={request.key!r} names a column, so the topic needs a schema; without one, records have a key anyway"
        )
    config = dict(request.config)
    resolve("topic", config)
    record = TopicRecord(
        topic_id=topic_id, assignment=assignment, schemas=schemas, key=request.key, created_at_ms=now_ms
    )
    return TopicPlan(name=name, record=check_record_size(name, record), config=config)


def plan_partitions(
    name: str,
    record: TopicRecord,
    total: int,
    brokers: Mapping[int, BrokerLoad],
    *,
    suspects: Collection[int] = (),
) -> TopicRecord:
    """The topic with ``total`` partitions; the new ones have as many replicas as the first. ``suspects``: see `assign`.

    Raises `InvalidPartitionsError` unless that is more than now, `InvalidReplicationFactorError`.
    """
    present = len(record.assignment)
    if not present < total <= MAX_PARTITIONS:
        raise InvalidPartitionsError(
            f"{name} has {present} partitions and cannot have {total}: allowed is {present + 1} to {MAX_PARTITIONS}"
        )
    more = assign(total - present, len(record.assignment[0]), brokers, first=present, suspects=suspects)
    return check_record_size(name, replace_record(record, assignment=record.assignment + more))


def plan_columns(name: str, record: TopicRecord, schema: bytes) -> TopicRecord:
    """The topic with a new schema version: the present columns, followed by the nullable ones of ``schema``.

    Raises `InvalidSchemaError`.
    """
    if not record.schemas:
        raise InvalidSchemaError(f"{name} has no schema, so no columns can be added")
    latest = record.schemas[-1]
    if len(record.schemas) >= MAX_SCHEMA_VERSIONS:
        raise InvalidSchemaError(f"{name} has had {len(record.schemas)} schemas, the most that are allowed")
    normal = check_new_columns(schema_from_bytes(latest.arrow), schema_from_bytes(schema))
    added = SchemaRecord(schema_id=latest.schema_id + 1, arrow=schema_to_bytes(normal))
    return check_record_size(name, replace_record(record, schemas=(*record.schemas, added)))


def plan_config(present: Mapping[str, str], request: AlterConfigRequest) -> dict[str, str]:
    """The topic's own settings after the request. Raises `InvalidConfigError`."""
    config = dict(present)
    for name, value in request.changes.items():
        find_setting("topic", name)
        if value is None:
            config.pop(name, None)
        else:
            config[name] = value
    resolve("topic", config)
    return config


def check_record_size(name: str, record: TopicRecord) -> TopicRecord:
    """Raises `InvalidRequestError` if the record is too large for its znode."""
    size = len(to_json(record))
    if size > MAX_RECORD_BYTES:
        raise InvalidRequestError(
            f"{name}'s description (partitions, replicas, schemas) would have {size} bytes, allowed: {MAX_RECORD_BYTES}"
        )
    return record


def replace_record(
    record: TopicRecord, *, assignment: Assignment | None = None, schemas: Iterable[SchemaRecord] | None = None
) -> TopicRecord:
    """The record with another assignment or other schemas."""
    return msgspec.structs.replace(
        record,
        assignment=record.assignment if assignment is None else assignment,
        schemas=record.schemas if schemas is None else tuple(schemas),
    )


def _assignment(
    request: CreateTopicRequest,
    brokers: Mapping[int, BrokerLoad],
    default_partitions: int,
    default_replication_factor: int,
    suspects: Collection[int],
) -> Assignment:
    if request.replica_assignment is not None:
        given = check_assignment(request.replica_assignment, brokers)
        for what, asked, has in (
            ("partitions", request.partitions, len(given)),
            ("replication_factor", request.replication_factor, len(given[0])),
        ):
            if asked is not None and asked != has:
                raise InvalidRequestError(
                    f"{what}={asked}, but the replica assignment has {has}: give only one of the two"
                )
        _check_partitions(len(given))
        return given
    partitions = default_partitions if request.partitions is None else request.partitions
    _check_partitions(partitions)
    factor = default_replication_factor if request.replication_factor is None else request.replication_factor
    return assign(partitions, factor, brokers, suspects=suspects)


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"a topic cannot have {partitions} partitions: allowed is 1 to {MAX_PARTITIONS}")
