"""Creating, changing and deleting topics, as requests.

Rule: a request is planned by pure functions, written through the controller, and answered when this broker hosts the
result: after `create_topic` the topic's partitions here are led and take records. One change at a time.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from broker_runtime.contract.errors import (
    LeaderNotAvailableError,
    NotControllerError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.model import check_topic_name
from broker_runtime.contract.requests import (
    AddColumnsRequest,
    AddColumnsResponse,
    AlterConfigRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    Empty,
    TopicResponse,
)
from broker_runtime.contract.settings import BrokerSettings
from broker_runtime.controller.assignment import loads
from broker_runtime.controller.topic_plans import plan_columns, plan_config, plan_partitions, plan_topic
from broker_runtime.controller.topics import config_change, record_change
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.services.caller import Caller, logged_change, some_of
from broker_runtime.services.metadata import planned_topic_info, topic_info
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState
from broker_runtime.zookeeper.session import Operation

_logger = logging.getLogger(__name__)


class TopicService:
    """Topics, where this broker is the controller. Thread-safe; every call blocks for ZooKeeper, in bounded time.

    Every method raises `NotControllerError` where another broker is the controller, and `ZooKeeperUnavailableError`.
    """

    def __init__(
        self,
        member: ClusterMember,
        settings: BrokerSettings,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._member = member
        self._settings = settings
        self._now_ms = now_ms
        self._new_id = new_id

    def create_topic(self, caller: Caller, request: CreateTopicRequest) -> TopicResponse:
        """Creates a topic, or with ``validate_only`` describes what it would be.

        Raises `TopicAlreadyExistsError`, `LeaderNotAvailableError` (it was created, but some partition has no leader
        yet, or cannot be opened here) and as `plan_topic`.
        """
        if request.validate_only:
            return self._create(request)
        with logged_change(_logger, "create topic", caller, topic=request.name):
            return self._create(request)

    def _create(self, request: CreateTopicRequest) -> TopicResponse:
        check_topic_name(request.name)
        with self._member.changing() as cluster:
            if request.name in cluster.topics:
                raise TopicAlreadyExistsError(
                    f"topic {request.name!r} already exists; to accept that, use --if-not-exists (exist_ok=True)"
                )
            plan = plan_topic(
                request,
                topic_id=self._new_id().bytes,
                brokers=loads(cluster.placeable, (topic.record.assignment for topic in cluster.topics.values())),
                default_partitions=self._settings.num_partitions,
                default_replication_factor=self._settings.default_replication_factor,
                now_ms=self._now_ms(),
                suspects=self._member.electorate.suspects,
            )
            if request.validate_only:
                return TopicResponse(topic=planned_topic_info(plan.name, plan.record, dict(plan.config)))
            self._member.topics.create(plan)
            created = self._changed(plan.name)
            failures = self._member.failures(plan.name)
            if failures:
                number, reason = next(iter(failures.items()))
                raise LeaderNotAvailableError(
                    f"{plan.name} exists, but {len(failures)} of its partitions cannot be opened on this broker yet "
                    f"(partition {number}: {reason}); the broker keeps trying"
                )
            return TopicResponse(topic=topic_info(created))

    def delete_topic(self, caller: Caller, request: DeleteTopicRequest) -> Empty:
        """Deletes a topic with its records and its groups' offsets.

        Raises `PolicyViolationError` if the broker forbids it, `UnknownTopicOrPartitionError`. After any other error
        the topic may be invisible already; the deletion then continues by itself, and the request may be repeated.
        """
        with logged_change(_logger, "delete topic", caller, topic=request.name):
            self._delete(request.name)
        return Empty()

    def create_partitions(self, caller: Caller, request: CreatePartitionsRequest) -> Empty:
        """Adds partitions; none moves. Raises `InvalidPartitionsError` unless their number grows."""

        def plan(topic: TopicState, cluster: ClusterState) -> list[Operation]:
            brokers = loads(cluster.placeable, (other.record.assignment for other in cluster.topics.values()))
            suspects = self._member.electorate.suspects
            record = plan_partitions(topic.name, topic.record, request.total, brokers, suspects=suspects)
            return record_change(topic, record)

        with logged_change(_logger, "add partitions", caller, topic=request.name, total=request.total):
            self._change(request.name, plan)
        return Empty()

    def add_columns(self, caller: Caller, request: AddColumnsRequest) -> AddColumnsResponse:
        """Adds nullable columns as a new version of the schema. Raises `InvalidSchemaError`."""

        def plan(topic: TopicState, cluster: ClusterState) -> list[Operation]:
            return record_change(topic, plan_columns(topic.name, topic.record, request.schema))

        with logged_change(_logger, "add columns", caller, topic=request.name):
            changed = self._change(request.name, plan)
        return AddColumnsResponse(schema_id=changed.record.schemas[-1].schema_id)

    def alter_config(self, caller: Caller, request: AlterConfigRequest) -> Empty:
        """Sets and removes the topic's own settings; they act at once. Raises `InvalidConfigError`."""

        def plan(topic: TopicState, cluster: ClusterState) -> list[Operation]:
            config = plan_config(topic.config, request)
            return [] if config == dict(topic.config) else config_change(topic, config)

        named = some_of(sorted(request.changes))
        with logged_change(_logger, "alter config", caller, topic=request.topic, settings=named):
            self._change(request.topic, plan)
        return Empty()

    def _delete(self, name: str) -> None:
        if not self._settings.delete_topic_enable:
            raise PolicyViolationError(f"{name} cannot be deleted: the broker has delete.topic.enable=false")
        with self._member.changing() as cluster:
            if name not in cluster.deletions:
                self._member.topics.mark_for_deletion(_existing(cluster, name))
            try:
                self._member.finish_deletion(name)
            except NotControllerError as error:
                raise ZooKeeperUnavailableError(
                    f"{name} is being deleted, and the next controller will finish that: {error.message}"
                ) from None

    def _change(self, name: str, plan: Callable[[TopicState, ClusterState], list[Operation]]) -> TopicState:
        with self._member.changing() as cluster:
            self._member.controller.change_topic(
                _existing(cluster, name),
                lambda topic: (plan(topic, cluster), None),
                refreshed=lambda: self._refreshed(name),
            )
            return self._changed(name)

    def _changed(self, name: str) -> TopicState:
        """As `_refreshed`, after a change."""
        try:
            return self._refreshed(name)
        except NotControllerError as error:
            # Not the same error: it means that nothing was changed.
            raise LeaderNotAvailableError(f"{name} was changed, but is not served yet: {error.message}") from None

    def _refreshed(self, name: str) -> TopicState:
        topic = self._member.refresh_topic(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"no topic {name!r}: it was deleted meanwhile")
        leaderless = [number for number, state in enumerate(topic.partitions) if state is None]
        if leaderless:
            raise LeaderNotAvailableError(f"{name} exists, but partitions {leaderless[:10]} have no leader yet")
        return topic


def _existing(cluster: ClusterState, name: str) -> TopicState:
    topic = cluster.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"no topic {name!r}")
    return topic
