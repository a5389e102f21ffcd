"""`Admin`: topics, settings, offsets, groups, what the cluster is made of.

Rule: each method is one question to a broker (or one per leader), answered when it is done: a topic that
``create_topic`` returned is in ZooKeeper. Descriptions are frozen values. Thread-safe; keeps no state but connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Unpack

import pyarrow as pa

from broker_runtime.contract.errors import (
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidSchemaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import (
    ClusterDescription,
    GroupDescription,
    GroupListing,
    GroupOffset,
    OffsetAndTimestamp,
    Reassignment,
    TopicDescription,
    TopicPartition,
    check_topic_name,
)
from broker_runtime.contract.requests import (
    AddColumnsRequest,
    AddColumnsResponse,
    AlterConfigRequest,
    ConfigEntry,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeConfigRequest,
    DescribeConfigResponse,
    Empty,
    LogDirInfo,
    TopicResponse,
)
from broker_runtime.contract.schema import (
    TopicSchema,
    check_new_columns,
    check_topic_schema,
    parse_schema,
    schema_from_bytes,
    schema_to_bytes,
)
from broker_runtime.contract.settings import AdminKeywords, parse_given, resolve, settings_of
from pyspark_log.client.admin import descriptions, groups, health, movement
from pyspark_log.client.admin.health import ClusterHealth
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading import record_times
from pyspark_log.client.unsupported import without_later_settings


class Admin:
    """Creates, describes and changes what a cluster holds. As a context manager it is closed at the end.

    All methods block at most ``request_timeout_ms`` and raise `BrokerUnavailableError` and the like when no broker
    answers; further errors are said where they may come.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[AdminKeywords],
    ) -> None:
        """Connects to nothing yet. Raises `InvalidConfigError`, `NotSupportedError`."""
        own_config, keywords = without_later_settings(config, settings)
        resolved = resolve("admin", own_config, {"bootstrap_servers": bootstrap_servers, **keywords})
        self._cluster = Cluster.from_settings(resolved)

    # --- topics -----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        schema: pa.Schema | str | None = None,
        key: str | None = None,
        config: Mapping[str, Any] | None = None,
        replica_assignment: Sequence[Sequence[int]] | None = None,
        exist_ok: bool = False,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Makes a topic; returns it as it is, when all live brokers know it (those that answer within seconds).

        ``partitions``, ``replication_factor``: None, the brokers' defaults. ``schema``: Arrow's or text (``'carrier
        string, delay int32'``), None: Kafka's columns. ``key``: the column whose value chooses the partition.
        ``config``: the topic's settings. ``replica_assignment``: broker ids per partition. ``exist_ok``: a topic of
        that name is returned, whatever it is like. ``validate_only``: nothing is made.

        Raises `TopicAlreadyExistsError`, `InvalidTopicError`, `InvalidPartitionsError`, `InvalidSchemaError`,
        `InvalidConfigError`, `InvalidReplicationFactorError`, `InvalidReplicaAssignmentError`.
        """
        check_topic_name(name)
        request = CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            schema=None if schema is None else schema_to_bytes(check_topic_schema(_schema(schema), key)),
            key=_key(schema, key),
            config=topic_config(config or {}),
            replica_assignment=(
                None if replica_assignment is None else tuple(tuple(replicas) for replicas in replica_assignment)
            ),
            validate_only=validate_only,
        )
        try:
            response = self._cluster.call(
                "create_topic",
                request,
                TopicResponse,
                to="controller",
                done_if=None if validate_only else TopicAlreadyExistsError,
            )
            made = made_topic(self._cluster, request) if response is None else Topic.from_info(response.topic)
        except TopicAlreadyExistsError:
            if exist_ok:
                return self.describe_topic(name)
            raise
        return made.describe() if validate_only else descriptions.as_new(made.describe())

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Removes the topic and all its records. Raises `UnknownTopicOrPartitionError`, `PolicyViolationError`."""
        check_topic_name(name)
        try:
            self._cluster.call(
                "delete_topic",
                DeleteTopicRequest(name=name),
                Empty,
                to="controller",
                done_if=UnknownTopicOrPartitionError,
            )
        except UnknownTopicOrPartitionError:
            if not missing_ok:
                raise

    def describe_topics(self) -> list[TopicDescription]:
        """All topics with their partitions, by name; their offsets are not asked for (-1)."""
        topics = self._cluster.fetch_topics()
        return [topic.describe() for topic in sorted(topics, key=lambda topic: topic.name)]

    def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(topic.name for topic in self._cluster.fetch_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """The topic with its partitions and their offsets, as the leaders tell them (-1 where none answers).

        Raises `UnknownTopicOrPartitionError`.
        """
        check_topic_name(name)
        return descriptions.topics_with_offsets(self._cluster, [name])[0].describe()

    def create_partitions(self, name: str, total: int) -> None:
        """Adds partitions, so that there are ``total``. Keys may then belong to other partitions than before.

        Raises `InvalidPartitionsError` unless there were fewer, `UnknownTopicOrPartitionError`.
        """
        check_topic_name(name)
        request = CreatePartitionsRequest(name=name, total=total)
        if (
            self._cluster.call("create_partitions", request, Empty, to="controller", done_if=InvalidPartitionsError)
            is None
        ):
            check_partitions(self._cluster, name, total)

    def add_columns(self, topic: str, fields: pa.Schema | str | Iterable[pa.Field]) -> int:
        """Adds nullable columns to a typed topic; older records have nulls there. Returns the new schema's id.

        Raises `InvalidSchemaError`, `UnknownTopicOrPartitionError`.
        """
        check_topic_name(topic)
        known = self._cluster.fetch_topics([topic])[0]
        if not known.is_typed:
            raise InvalidSchemaError(f"topic {topic!r} has no schema to add columns to")
        new = _schema(fields if isinstance(fields, (pa.Schema, str)) else pa.schema(list(fields)))
        checked = check_new_columns(known.schema.arrow, new)
        added = pa.schema([field for field in checked if field.name not in known.schema.arrow.names])
        response = self._cluster.call(
            "add_columns",
            AddColumnsRequest(name=topic, schema=schema_to_bytes(added)),
            AddColumnsResponse,
            to="controller",
            done_if=InvalidSchemaError,
        )
        if response is None:
            wanted = TopicSchema(schema_id=known.schema.schema_id + 1, arrow=checked, key=known.key)
            return added_schema(self._cluster, topic, wanted)
        return response.schema_id

    def describe_config(self, resource: str | int) -> dict[str, ConfigEntry]:
        """The settings in force of a topic (its name) or a broker (its id): name → (value, source)."""
        if isinstance(resource, int):
            self._cluster.refresh()
            request = DescribeConfigRequest(broker_id=resource)
            response = self._cluster.call("describe_config", request, DescribeConfigResponse, to=resource)
        else:
            request = DescribeConfigRequest(topic=check_topic_name(resource))
            response = self._cluster.call("describe_config", request, DescribeConfigResponse)
        return dict(response.entries)

    def alter_config(self, topic: str, changes: Mapping[str, Any]) -> None:
        """Sets a topic's settings; None takes one away. Raises `InvalidConfigError`, `UnknownTopicOrPartitionError`."""
        check_topic_name(topic)
        for name in changes:
            parse_given("topic", {name: changes[name]})
        given = topic_config({name: value for name, value in changes.items() if value is not None})
        removed: dict[str, str | None] = dict.fromkeys(name for name, value in changes.items() if value is None)
        request = AlterConfigRequest(topic=topic, changes={**given, **removed})
        self._cluster.call("alter_config", request, Empty, to="controller")

    # --- offsets ----------------------------------------------------------------------------------------------

    def list_offsets(
        self, wanted: Mapping[TopicPartition, str | datetime | int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the offset of ``"earliest"``, ``"latest"`` (behind the last record), ``"max_timestamp"``,
        or of the first record at or after a time (aware datetime or ms); offset -1 if there is no such record.
        """
        return offsets.list_offsets(self._cluster, {_tp(at): offsets.wire_timestamp(w) for at, w in wanted.items()})

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Makes each log begin at an offset (-1: at its end); returns where they begin now. Not to be undone.

        Raises `OffsetOutOfRangeError` for an offset beyond the end.
        """
        return offsets.delete_records(self._cluster, {_tp(at): offset for at, offset in before.items()})

    def timestamps_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, datetime | None]:
        """For each partition the time (UTC) of the first record at or after an offset; None: there is none (yet).

        The other direction of `list_offsets`. Fetches a frame per partition.
        """
        return record_times.timestamps_at(self._cluster, {_tp(at): offset for at, offset in wanted.items()})

    # --- groups -----------------------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupListing]:
        """All consumer groups, those that only have offsets too, by id."""
        return groups.list_groups(self._cluster)

    def describe_group(self, group_id: str) -> GroupDescription:
        """The group's state and members, and which partitions each has. Raises `GroupIdNotFoundError`."""
        return groups.describe_group(self._cluster, group_id)

    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, GroupOffset]:
        """What a group acknowledged, where the partitions end, and the lag (-1 where no leader answers); empty for an
        unknown group."""
        return groups.list_group_offsets(self._cluster, group_id)

    def alter_group_offsets(self, group_id: str, new: Mapping[TopicPartition, int]) -> None:
        """Sets the group's next offsets, forward or back; the group is made if there is none.

        Raises `NonEmptyGroupError` while it has members, `InvalidGroupIdError`, `UnknownTopicOrPartitionError`,
        `InvalidRequestError` for what are no offsets.
        """
        if not isinstance(new, Mapping):
            raise InvalidRequestError(f"new offsets are a mapping of partition to offset, not {type(new).__name__}")
        groups.alter_group_offsets(self._cluster, group_id, {_tp(at): offset for at, offset in new.items()})

    def delete_group(self, group_id: str) -> None:
        """Forgets a group and its offsets. Raises `NonEmptyGroupError` while it has members, `GroupIdNotFoundError`."""
        groups.delete_group(self._cluster, group_id)

    def remove_group_members(self, group_id: str, ids: Iterable[str]) -> None:
        """Takes members out of a group, by member id or instance id: all of them, or none.

        What they hold is others' when they have noticed, or when their sessions have ended. A process that lives on
        may join anew. Raises `UnknownMemberIdError`, `GroupIdNotFoundError`.
        """
        groups.remove_group_members(self._cluster, group_id, ids)

    # --- the cluster ------------------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, controller and live brokers."""
        return self._cluster.describe()

    def check_health(self) -> ClusterHealth:
        """Whether there is a controller, which partitions lack a leader or replicas, and which logs brokers know to be
        damaged. Reads no data: damage that nobody met is not known."""
        return health.check(self._cluster)

    # --- replicas and leaders -----------------------------------------------------------------------------------

    def reassign_partitions(self, moves: Mapping[TopicPartition | tuple[str, int], Sequence[int] | None]) -> None:
        """Begins to move each partition to the brokers named, the preferred leader first; None ends its move.

        Returns when the moves are begun; they go on by themselves (`list_reassignments`). All are checked first,
        so that one call takes 10,000 at most.
        Raises `InvalidReplicaAssignmentError` (unknown or repeated brokers), `UnknownTopicOrPartitionError`,
        `NoReassignmentInProgressError`.
        """
        movement.reassign(self._cluster, {_tp(at): replicas for at, replicas in moves.items()})

    def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The partitions that move now, and how many records their new replicas still lack. Empty when all is moved."""
        return movement.reassignments(self._cluster)

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        election: movement.Election = "preferred",
    ) -> dict[TopicPartition, int]:
        """Chooses leaders anew (None: wherever it is needed); returns the new ones by partition.

        ``"preferred"``: the first replica, which must be in sync. ``"unclean"``: where there is no leader and no
        replica in sync is live, the first live one; records that only others have are given up. Raises, for partitions
        that were named, `PreferredLeaderNotAvailableError`, `ElectionNotNeededError`, `UnknownTopicOrPartitionError`.
        """
        if election not in ("preferred", "unclean"):
            raise InvalidRequestError(f"election={election!r}: allowed are 'preferred' and 'unclean'")
        named = None if partitions is None else [_tp(at) for at in partitions]
        return movement.elect(self._cluster, named, election)

    def decommission_broker(self, broker_id: int, *, cancel: bool = False) -> int:
        """Begins to move everything the broker holds to the others; it gets nothing new. ``cancel`` ends that.

        Returns how many partitions begin to move. When `list_reassignments` is empty the broker holds none and can be
        stopped. Raises `InvalidReplicaAssignmentError` where the others are too few for the replicas.
        """
        return movement.decommission(self._cluster, broker_id, cancel=cancel)

    def describe_log_dirs(self) -> dict[int, tuple[LogDirInfo, ...]]:
        """Each live broker's data directories: sizes in bytes, and what each partition takes. Of a broker that does not
        answer a nameless one, whose ``error`` says why."""
        return descriptions.log_dirs(self._cluster)

    def close(self) -> None:
        """Ends all connections. May be called again."""
        self._cluster.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def topic_config(given: Mapping[str, Any]) -> dict[str, str]:
    """A topic's settings as they travel: checked, as text. Raises `InvalidConfigError`."""
    known = settings_of("topic")
    return {name: known[name].show(value) for name, value in parse_given("topic", given).items()}


def _schema(given: pa.Schema | str) -> pa.Schema:
    if isinstance(given, str):
        return parse_schema(given)
    if not isinstance(given, pa.Schema):
        raise InvalidSchemaError(f"a schema is a pyarrow.Schema or text, not {type(given).__name__}")
    return given


def _key(schema: pa.Schema | str | None, key: str | None) -> str | None:
    if schema is None and key is not None:
        raise InvalidSchemaError(
            f"key={key!r} names a column, and the topic has no schema; its records have keys anyway"
        )
    return key


def _tp(at: TopicPartition | tuple[str, int]) -> TopicPartition:
    if not isinstance(at, tuple) or len(at) != 2 or not isinstance(at[0], str) or not isinstance(at[1], int):
        raise InvalidRequestError(f"{at!r} is no TopicPartition(topic, partition)")
    return TopicPartition(*at)


def made_topic(cluster: Cluster, request: CreateTopicRequest) -> Topic:
    """The topic that ``request`` asks for. Raises `TopicAlreadyExistsError` if it is another."""
    topic = _as_the_controller_knows(cluster, request.name)
    is_as_asked = (
        request.partitions in (None, len(topic.partitions))
        and request.replication_factor in (None, len(topic.partitions[0].replicas))
        and request.key == topic.key
        and topic.is_typed == (request.schema is not None)
        and (request.schema is None or topic.schemas.get(0).arrow.equals(schema_from_bytes(request.schema)))
        and request.config.items() <= topic.info.config.items()
    )
    if not is_as_asked:
        raise TopicAlreadyExistsError(f"topic {request.name!r} already exists, and differs from what was asked for")
    return topic


def check_partitions(cluster: Cluster, name: str, total: int) -> None:
    """Raises `InvalidPartitionsError` unless the topic has ``total`` partitions."""
    there = len(_as_the_controller_knows(cluster, name).partitions)
    if there != total:
        raise InvalidPartitionsError(f"topic {name!r} has {there} partitions, not {total}")


def added_schema(cluster: Cluster, name: str, wanted: TopicSchema) -> int:
    """The id of ``wanted``. Raises `InvalidSchemaError` if the topic has no such version, or another under its id."""
    schemas = _as_the_controller_knows(cluster, name).schemas
    if not schemas.knows(wanted.schema_id) or not schemas.get(wanted.schema_id).arrow.equals(wanted.arrow):
        raise InvalidSchemaError(
            f"the columns of topic {name!r} were changed by another meanwhile: it has "
            f"{', '.join(schemas.latest.arrow.names)}; wanted were {', '.join(wanted.arrow.names)}"
        )
    return wanted.schema_id


def _as_the_controller_knows(cluster: Cluster, name: str) -> Topic:
    return cluster.fetch_topics([name], to="controller")[0]
