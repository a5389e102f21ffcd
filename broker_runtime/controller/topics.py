"""Creating, changing and deleting topics: the controller's writes to ZooKeeper, such that a crash anywhere is harmless.

    create      topic, settings and the parent of its partitions in one transaction; then the partitions' states, 200 at
                a time. A topic without some of them is completed by the next election.
    delete      a mark in ``/admin/delete_topics`` decides it: from then on the topic is not served any more. Then these
                are removed: its partitions' states; topic and settings, in one transaction that also notes which
                brokers have logs of it (each removes its own when it is back); its groups' offsets (commits no longer
                find the topic); and last the mark. After a crash the next controller continues from the mark, so each
                step is idempotent.

Rules: nothing is decided here that `topic_plans` could decide; everything is written through `Controller.write`, and
announced with the topic's name.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence

from broker_runtime.contract.errors import CorruptRecordError, TopicAlreadyExistsError
from broker_runtime.contract.events import event
from broker_runtime.controller.controller import Controller
from broker_runtime.controller.topic_plans import TopicPlan
from broker_runtime.zookeeper.cluster_state import TopicState
from broker_runtime.zookeeper.guarded import in_parts
from broker_runtime.zookeeper.session import (
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    ZNode,
    ZooKeeperClient,
)
from broker_runtime.zookeeper.znodes import (
    BROKER_EPOCHS,
    CONSUMERS,
    DeletedLogs,
    DeletionRecord,
    TopicConfig,
    TopicRecord,
    announcing,
    deleted_logs_path,
    from_json,
    group_offsets_path,
    partition_path,
    partition_state_path,
    partitions_path,
    to_json,
    topic_config_path,
    topic_deletion_path,
    topic_path,
)

_logger = logging.getLogger(__name__)


def record_change(topic: TopicState, record: TopicRecord) -> list[Operation]:
    """The operations that replace the topic's record; for `Controller.change_topic`."""
    return [Set(topic_path(topic.name), to_json(record), topic.version), announcing([topic.name])]


def config_change(topic: TopicState, config: Mapping[str, str]) -> list[Operation]:
    """The operations that replace the topic's settings; for `Controller.change_topic`."""
    path = topic_config_path(topic.name)
    data = to_json(TopicConfig(topic_id=topic.record.topic_id, config=dict(config)))
    operation = Create(path, data) if topic.config_version < 0 else Set(path, data, topic.config_version)
    return [operation, announcing([topic.name])]


class TopicWriter:
    """Writes topics. The caller lets one change through at a time."""

    def __init__(self, client: ZooKeeperClient, controller: Controller) -> None:
        self._client = client
        self._controller = controller

    def create(self, plan: TopicPlan) -> None:
        """Creates the topic; its partitions have no states yet. Raises `TopicAlreadyExistsError`, and as
        `Controller.write`."""
        if self._exists(topic_deletion_path(plan.name)):
            raise TopicAlreadyExistsError(f"topic {plan.name!r} is still being deleted; try again later")
        operations: list[Operation] = [Create(topic_path(plan.name), to_json(plan.record))]
        operations.append(Create(partitions_path(plan.name)))
        config = TopicConfig(topic_id=plan.record.topic_id, config=dict(plan.config))
        leftover = self._client.find(topic_config_path(plan.name))
        if leftover is None:
            operations.append(Create(topic_config_path(plan.name), to_json(config)))
        else:
            operations.append(Set(topic_config_path(plan.name), to_json(config), leftover.version))
        operations.append(announcing([plan.name]))
        try:
            self._controller.write(operations, is_done=lambda: self._has_id(plan.name, plan.record.topic_id))
        except NodeExistsError:
            raise TopicAlreadyExistsError(
                f"topic {plan.name!r} already exists; to accept that, use --if-not-exists (exist_ok=True)"
            ) from None

    def mark_for_deletion(self, topic: TopicState) -> None:
        """Decides that the topic is deleted. Raises as `Controller.write`."""
        operation = Create(topic_deletion_path(topic.name), to_json(DeletionRecord(topic_id=topic.record.topic_id)))
        with contextlib.suppress(NodeExistsError):  # decided earlier and not finished: the caller continues it
            self._write([operation], topic.name)

    def finish_deletion(self, name: str) -> None:
        """Finishes a deletion that was decided; the logs are left to the brokers that have them.

        Raises as `Controller.write`; it can be called again then.
        """
        mark = self._client.find(topic_deletion_path(name))
        if mark is None:
            return
        topic_id = from_json(mark.data, DeletionRecord, topic_deletion_path(name)).topic_id
        self._remove_partitions(name)
        self._remove_topic(name, topic_id)
        self._forget_group_offsets(name)
        with contextlib.suppress(NoNodeError):
            self._write([Delete(topic_deletion_path(name))], name)
        event(_logger, "finish deletion", topic=name, topic_id=topic_id.hex())

    def _remove_partitions(self, name: str) -> None:
        try:
            numbers = sorted(int(number) for number in self._client.children(partitions_path(name)))
        except NoNodeError:
            return
        for part in in_parts(numbers):
            # A partition and its state are created in one transaction, so both exist.
            self._delete([path for p in part for path in (partition_state_path(name, p), partition_path(name, p))])
        self._delete([partitions_path(name)])

    def _remove_topic(self, name: str, topic_id: bytes) -> None:
        # In one transaction: settings without their topic would pass to a new topic of the same name, and logs that no
        # broker is asked to remove would stay.
        operations: list[Operation] = [
            Delete(path) for path in (topic_config_path(name), topic_path(name)) if self._exists(path)
        ]
        node = self._client.find(topic_path(name))
        if node is not None and not self._exists(deleted_logs_path(topic_id)):
            brokers = self._brokers_of(name, node)
            operations.insert(0, Create(deleted_logs_path(topic_id), to_json(DeletedLogs(name=name, brokers=brokers))))
        if operations:
            self._write(operations, name)

    def _forget_group_offsets(self, name: str) -> None:
        paths = [group_offsets_path(group, name) for group in self._client.children(CONSUMERS)]
        for path, node in zip(paths, self._client.find_all(paths), strict=True):
            if node is not None:
                self._delete([path])

    def _brokers_of(self, name: str, node: ZNode) -> tuple[int, ...]:
        """The brokers that have logs of the topic; every broker there ever was, if the topic cannot be read."""
        try:
            record = from_json(node.data, TopicRecord, topic_path(name))
        except CorruptRecordError:
            return tuple(sorted(int(broker_id) for broker_id in self._client.children(BROKER_EPOCHS)))
        return tuple(sorted({broker_id for replicas in record.assignment for broker_id in replicas}))

    def _delete(self, paths: Sequence[str]) -> None:
        """Writes to znodes that nobody reads any more: not announced."""
        operations = [Delete(path) for path in paths]
        with contextlib.suppress(NoNodeError):  # already gone
            self._controller.write(operations)

    def _write(self, operations: Sequence[Operation], name: str) -> None:
        self._controller.write([*operations, announcing([name])])

    def _exists(self, path: str) -> bool:
        return self._client.find(path) is not None

    def _has_id(self, name: str, topic_id: bytes) -> bool:
        node = self._client.find(topic_path(name))
        return node is not None and from_json(node.data, TopicRecord, topic_path(name)).topic_id == topic_id
