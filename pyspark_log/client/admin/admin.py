"""`Admin`: topics, settings, offsets, groups, brokers and replicas.

Rule: each method is one request to a broker (or one per leader), which is answered when it is carried out: a topic that
``create_topic`` returned is in ZooKeeper. Descriptions are frozen values. Thread-safe; keeps no state but connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Unpack

import pyarrow as pa

from broker_runtime.contract.acls import Acl, AclFilter
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
    OpenTransactionDescription,
    Reassignment,
    TopicDescription,
    TopicPartition,
    TransactionListing,
    check_topic_name,
)
from broker_runtime.contract.quotas import Quota, QuotaEntity
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
from pyspark_log.client.admin import descriptions, groups, health, movement, overview, security, transactions
from pyspark_log.client.admin.health import ClusterHealth
from pyspark_log.client.admin.overview import ClusterOverview, GroupLag
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading import record_times


class Admin:
    """Creates, describes and changes what a cluster holds. As a context manager it is closed at the end.

    All methods block at most ``request_timeout_ms``, and raise `BrokerUnavailableError` or a similar error if no broker
    answers; further errors are named at each method.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[AdminKeywords],
    ) -> None:
        """Connects to nothing yet. Raises `InvalidConfigError`."""
        resolved = resolve("admin", config, {"bootstrap_servers": bootstrap_servers, **settings})
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
        """Creates a topic. Returns its description when all live brokers that answer within seconds know it.

        ``partitions``, ``replication_factor``: None, the brokers' defaults. ``schema``: Arrow's or text (``'carrier
        string, delay int32'``), None: Kafka's columns. ``key``: the column whose value chooses the partition.
        ``config``: the topic's settings. ``replica_assignment``: broker ids per partition. ``exist_ok``: an existing
        topic of that name is returned, even if it differs. ``validate_only``: nothing is created.

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

    def describe_topics(
        self, names: Iterable[str] | None = None, *, with_offsets: bool = False
    ) -> list[TopicDescription]:
        """The topics (None: all) with their partitions, by name. ``with_offsets``: as the leaders know them, each of
        which is asked once (-1 if one does not answer); else -1. Raises `UnknownTopicOrPartitionError`."""
        wanted = None if names is None else [check_topic_name(name) for name in names]
        if with_offsets:
            topics = descriptions.topics_with_offsets(self._cluster, wanted)
        else:
            topics = self._cluster.fetch_topics(wanted)
        return [topic.describe() for topic in sorted(topics, key=lambda topic: topic.name)]

    def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(topic.name for topic in self._cluster.fetch_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """The topic with its partitions and their offsets, from the leaders (-1 if a leader does not answer).

        Raises `UnknownTopicOrPartitionError`.
        """
        check_topic_name(name)
        return descriptions.topics_with_offsets(self._cluster, [name])[0].describe()

    def create_partitions(self, name: str, total: int) -> None:
        """Adds partitions, so that there are ``total``. A key may belong to another partition afterwards.

        Raises `InvalidPartitionsError` unless there are fewer, `UnknownTopicOrPartitionError`.
        """
        check_topic_name(name)
        request = CreatePartitionsRequest(name=name, total=total)
        if (
            self._cluster.call("create_partitions", request, Empty, to="controller", done_if=InvalidPartitionsError)
            is None
        ):
            check_partitions(self._cluster, name, total)

    def add_columns(self, topic: str, fields: pa.Schema | str | Iterable[pa.Field]) -> int:
        """Adds nullable columns to a typed topic; older records are null there. Returns the new schema's id.

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
        """Sets a topic's settings; None removes one. Raises `InvalidConfigError`, `UnknownTopicOrPartitionError`."""
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
        """For each partition the offset of ``"earliest"``, ``"latest"`` (after the last record), ``"max_timestamp"``,
        or of the first record at or after a time (aware datetime or ms); offset -1 if there is no such record.
        """
        return offsets.list_offsets(self._cluster, {_tp(at): offsets.wire_timestamp(w) for at, w in wanted.items()})

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Moves the start of each log to an offset (-1: to its end); returns the new starts. Cannot be undone.

        Raises `OffsetOutOfRangeError` for an offset beyond the end.
        """
        return offsets.delete_records(self._cluster, {_tp(at): offset for at, offset in before.items()})

    def timestamps_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, datetime | None]:
        """For each partition the time (UTC) of the first record at or after an offset; None: there is none (yet).

        The inverse of `list_offsets`. Reads one frame per partition.
        """
        return record_times.timestamps_at(self._cluster, {_tp(at): offset for at, offset in wanted.items()})

    # --- groups -----------------------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupListing]:
        """All consumer groups by id, including those that have only offsets."""
        return groups.list_groups(self._cluster)

    def describe_group(self, group_id: str) -> GroupDescription:
        """The group's state and members, and which partitions each has. Raises `GroupIdNotFoundError`."""
        return groups.describe_group(self._cluster, group_id)

    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, GroupOffset]:
        """A group's committed offsets, the ends of the partitions, and the lag (-1 if no leader answers); empty for an
        unknown group."""
        return groups.list_group_offsets(self._cluster, group_id)

    def list_group_lags(self) -> tuple[list[GroupLag], int]:
        """How far each group is behind, the furthest first; and how many more groups there are, whose offsets nobody
        told within seconds. Asks once for each group, and the leaders for all of them."""
        return overview.group_lags(self._cluster)

    def alter_group_offsets(self, group_id: str, new: Mapping[TopicPartition, int]) -> None:
        """Sets the group's next offsets, forward or back; the group is created if it does not exist.

        Raises `NonEmptyGroupError` while it has members, `InvalidGroupIdError`, `UnknownTopicOrPartitionError`,
        `InvalidRequestError` for values that are not offsets.
        """
        if not isinstance(new, Mapping):
            raise InvalidRequestError(f"new offsets are a mapping of partition to offset, not {type(new).__name__}")
        groups.alter_group_offsets(self._cluster, group_id, {_tp(at): offset for at, offset in new.items()})

    def delete_group(self, group_id: str) -> None:
        """Deletes a group and its offsets. Raises `NonEmptyGroupError` while it has members, `GroupIdNotFoundError`."""
        groups.delete_group(self._cluster, group_id)

    def remove_group_members(self, group_id: str, ids: Iterable[str]) -> None:
        """Removes members from a group, by member id or instance id: all of them, or none.

        Their partitions go to other members when they have noticed, or when their sessions have ended. A process that
        is still running may join again. Raises `UnknownMemberIdError`, `GroupIdNotFoundError`.
        """
        groups.remove_group_members(self._cluster, group_id, ids)

    # --- transactions -----------------------------------------------------------------------------------------

    def list_transactions(self) -> list[TransactionListing]:
        """All transactional ids, sorted: who has each, and the last batch that was decided."""
        return transactions.list_transactions(self._cluster)

    def list_open_transactions(self, transactional_id: str = "") -> tuple[list[OpenTransactionDescription], list[int]]:
        """What has begun and not ended, the oldest first ("": of all ids); and the brokers that did not answer, which
        may have more."""
        return transactions.open_transactions(self._cluster, transactional_id)

    def abort_transactions(self, transactional_id: str) -> None:
        """Aborts what is open of the id; whoever has it cannot commit any more. What was decided stays. Raises
        `InvalidTxnStateError` if the id is unknown."""
        transactions.abort_transactions(self._cluster, transactional_id)

    # --- users and access control lists -------------------------------------------------------------------------

    def create_acls(self, acls: Iterable[Acl]) -> list[Acl]:
        """Adds these rules; they are in force within a second. Returns those that are new. Raises
        `InvalidRequestError` for one that could mean nothing; then none is added."""
        return security.create_acls(self._cluster, acls)

    def delete_acls(self, *filters: AclFilter) -> list[Acl]:
        """Removes the rules that match any of these; returns them."""
        return security.delete_acls(self._cluster, filters)

    def describe_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """The rules that match (None: all), sorted."""
        return security.describe_acls(self._cluster, AclFilter() if wanted is None else wanted)

    def set_password(self, user: str, password: str) -> None:
        """Makes the user, or gives it another password: what the old one opened ends within a second. Only a salted
        hash leaves this process. Raises `InvalidRequestError`."""
        security.set_password(self._cluster, user, password)

    def delete_user(self, user: str) -> None:
        """Removes the user, if there is one of that name: what it has open ends within a second."""
        security.delete_user(self._cluster, user)

    def list_users(self) -> list[str]:
        """The names of the users that have passwords, sorted."""
        return security.list_users(self._cluster)

    def create_token(self, lifetime_s: float = 3_600.0) -> str:
        """A token that stands for the caller for so long (at most a day): whoever has it is taken for that user. It
        ends with the user, or with the user's password. Raises `NotSupportedError` for a caller without a password."""
        return security.create_token(self._cluster, lifetime_s)

    # --- quotas -----------------------------------------------------------------------------------------------

    def alter_quotas(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> None:
        """Sets limits of these users and client ids, or removes them (None); in force within a second, at each broker
        by itself. Limits that are not named stay. Raises `InvalidRequestError`; then nothing is changed.

        ``producer_byte_rate``, ``consumer_byte_rate``: bytes a second. ``request_percentage``: processor time of
        requests, in percent of one core. ``max_connections``: streams that are open at once.
        """
        security.alter_quotas(self._cluster, changes)

    def describe_quotas(self) -> list[Quota]:
        """All quotas, sorted by user and client id."""
        return security.describe_quotas(self._cluster)

    # --- the cluster ------------------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, controller and live brokers."""
        return self._cluster.describe()

    def check_health(self) -> ClusterHealth:
        """Whether there is a controller, which partitions lack a leader or replicas, which logs brokers know to be
        damaged, and which transactions hang. Reads no data: damage that no broker has met is not reported."""
        return health.check(self._cluster)

    def overview(self, *, with_groups: bool = True) -> ClusterOverview:
        """`check_health`, and what each broker, the controller and the groups say: versions, ZooKeeper, room on disks,
        moves, lag. Takes some seconds where brokers do not answer, and ``with_groups`` asks once for each group; what
        is not said in time is unknown."""
        return overview.overview(self._cluster, with_groups=with_groups)

    # --- replicas and leaders -----------------------------------------------------------------------------------

    def reassign_partitions(self, moves: Mapping[TopicPartition | tuple[str, int], Sequence[int] | None]) -> None:
        """Starts to move each partition to the brokers named, the preferred leader first; None cancels its move.

        Returns when the moves have started; they continue by themselves (`list_reassignments`). All moves are checked
        first; one call takes at most 10,000.
        Raises `InvalidReplicaAssignmentError` (unknown or repeated brokers), `UnknownTopicOrPartitionError`,
        `NoReassignmentInProgressError`.
        """
        movement.reassign(self._cluster, {_tp(at): replicas for at, replicas in moves.items()})

    def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The partitions being moved, and how many records their new replicas lack. Empty when all moves are done."""
        return movement.reassignments(self._cluster)

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        election: movement.Election = "preferred",
    ) -> dict[TopicPartition, int]:
        """Elects leaders (None: wherever one is needed); returns the new ones by partition.

        ``"preferred"``: the first replica, which must be in sync. ``"unclean"``: where there is no leader and no
        in-sync replica is live, the first live one; records that only others have are lost. Raises, for partitions that
        were named, `PreferredLeaderNotAvailableError`, `ElectionNotNeededError`, `UnknownTopicOrPartitionError`.
        """
        if election not in ("preferred", "unclean"):
            raise InvalidRequestError(f"election={election!r}: allowed are 'preferred' and 'unclean'")
        named = None if partitions is None else [_tp(at) for at in partitions]
        return movement.elect(self._cluster, named, election)

    def decommission_broker(self, broker_id: int, *, cancel: bool = False) -> int:
        """Starts to move all replicas of a broker to the others; it gets no new ones. ``cancel`` ends this.

        Returns how many partitions start to move. When `list_reassignments` is empty, the broker has none left and can
        be stopped. Raises `InvalidReplicaAssignmentError` if the others are too few for the replicas.
        """
        return movement.decommission(self._cluster, broker_id, cancel=cancel)

    def describe_log_dirs(self) -> dict[int, tuple[LogDirInfo, ...]]:
        """Each live broker's data directories: sizes in bytes, in total and by partition. For a broker that does not
        answer, one without a path, whose ``error`` says why."""
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
    """A topic's settings as they are sent: checked, as text. Raises `InvalidConfigError`."""
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
            f"key={key!r} names a column, but the topic has no schema; its records have keys anyway"
        )
    return key


def _tp(at: TopicPartition | tuple[str, int]) -> TopicPartition:
    if not isinstance(at, tuple) or len(at) != 2 or not isinstance(at[0], str) or not isinstance(at[1], int):
        raise InvalidRequestError(f"{at!r} is not a TopicPartition(topic, partition)")
    return TopicPartition(*at)


def made_topic(cluster: Cluster, request: CreateTopicRequest) -> Topic:
    """The topic that ``request`` asks for. Raises `TopicAlreadyExistsError` if the existing one differs."""
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
        raise TopicAlreadyExistsError(f"topic {request.name!r} already exists, and differs from the one requested")
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
            f"the columns of topic {name!r} were changed by another client meanwhile: it has "
            f"{', '.join(schemas.latest.arrow.names)}; requested were {', '.join(wanted.arrow.names)}"
        )
    return wanted.schema_id


def _as_the_controller_knows(cluster: Cluster, name: str) -> Topic:
    return cluster.fetch_topics([name], to="controller")[0]
