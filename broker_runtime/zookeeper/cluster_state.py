"""The cluster as ZooKeeper has it, read into frozen values; decisions are functions of these.

Rules: reading never writes. It is not a snapshot: what changes meanwhile is caught by versions at the next write, or
announced in ``/changes`` afterwards. Knowledge never goes back: of two versions of a znode the higher one counts. Reads
share requests, so 1,000 partitions cost a few round trips.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.events import event
from broker_runtime.zookeeper.guarded import Planned, change
from broker_runtime.zookeeper.session import Delete, NoNodeError, Set, Watch, ZNode, ZooKeeperClient
from broker_runtime.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_UNWRITABLE,
    CHANGES,
    CONTROLLER,
    DELETED_LOGS,
    DRAINING,
    TOPIC_DELETIONS,
    TOPICS,
    BrokerRegistration,
    ChangeNews,
    ControllerClaim,
    DeletedLogs,
    DiskTroubles,
    PartitionState,
    Record,
    TopicConfig,
    TopicRecord,
    broker_path,
    broker_unwritable_path,
    deleted_logs_path,
    from_json,
    partition_state_path,
    to_json,
    topic_config_path,
    topic_deletion_path,
    topic_path,
)

_logger = logging.getLogger(__name__)

_K = TypeVar("_K", int, bytes, str)
_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedState:
    """A partition's state and the version to change it by."""

    state: PartitionState
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. ``partitions``: by number; None where the state was not written yet."""

    name: str
    record: TopicRecord
    version: int
    partitions: tuple[VersionedState | None, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    config_version: int = -1  # -1: no znode

    def replication_factor(self, number: int) -> int:
        """How many replicas the partition has, or will have when it has moved."""
        moving = self.record.reassignments.get(number)
        return len(self.record.assignment[number] if moving is None else moving.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Live brokers by id, the controller, topics by name, and the names of those that are being deleted.

    A topic that is being deleted is not in ``topics``. ``draining``: the brokers that are being emptied.
    ``deleted_logs``: logs that brokers still have to remove, by the topic's id. ``disks``: what live
    brokers report of disks that take no records at present, and of logs that are damaged, or kept as diverged.
    """

    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    controller: ControllerClaim | None = None
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    deletions: frozenset[str] = frozenset()
    draining: frozenset[int] = frozenset()
    deleted_logs: Mapping[bytes, DeletedLogs] = field(default_factory=dict)
    disks: Mapping[int, DiskTroubles] = field(default_factory=dict)

    @property
    def placeable(self) -> dict[int, BrokerRegistration]:
        """The brokers that new replicas may go to: those that are neither stopping nor being emptied. A broker
        that is found dead before its session ends is still among them: an `Electorate` knows it, and `assign` takes it
        last."""
        return {
            broker_id: broker
            for broker_id, broker in self.brokers.items()
            if not broker.is_stopping and broker_id not in self.draining
        }

    def with_topic(self, topic: TopicState) -> ClusterState:
        """This, with the topic as it is now."""
        return replace(self, topics={**self.topics, topic.name: topic})

    def without_topic(self, name: str) -> ClusterState:
        """This, without the topic."""
        return replace(self, topics={known: topic for known, topic in self.topics.items() if known != name})


def read_cluster(
    client: ZooKeeperClient,
    *,
    known: ClusterState | None = None,
    changed: Collection[str] | None = None,
    watch: Watch | None = None,
) -> ClusterState:
    """The cluster; ``watch`` is called when brokers or the controller come or go after this.

    ``changed``: of the topics, only these are read, and the others are as in ``known``; None: all are read. A znode
    that cannot be decoded leaves out what it describes, with an error in the log: one damaged topic must not affect the
    others. Raises `ZooKeeperUnavailableError`.
    """
    known = known or ClusterState()
    broker_ids = _numbers(client.children(BROKER_IDS, watch=watch))
    controller = _read_controller(client, watch)
    brokers = _find_records(client, {broker_id: broker_path(broker_id) for broker_id in broker_ids}, BrokerRegistration)
    paths = {broker_id: broker_unwritable_path(broker_id) for broker_id in _numbers(client.children(BROKER_UNWRITABLE))}
    disks = _find_records(client, paths, DiskTroubles) if paths else {}
    deletions = frozenset(client.children(TOPIC_DELETIONS))
    names = client.children(TOPICS) if changed is None else sorted(changed)
    read = {
        topic.name: topic
        for topic in read_topics(client, [name for name in names if name not in deletions], known=known.topics)
    }
    if changed is not None:
        read = {
            name: topic for name, topic in known.topics.items() if name not in changed and name not in deletions
        } | read
    return ClusterState(
        brokers=brokers,
        controller=controller,
        topics=read,
        deletions=deletions,
        draining=frozenset(_numbers(client.children(DRAINING))),
        # Read after the topics: if a name was used again, the logs of the earlier topic are known to be left over.
        deleted_logs=read_deleted_logs(client),
        disks={
            broker_id: of
            for broker_id, of in disks.items()
            if broker_id in brokers and brokers[broker_id].epoch == of.epoch
        },
    )


def read_topics(
    client: ZooKeeperClient, names: Sequence[str], *, known: Mapping[str, TopicState] | None = None
) -> list[TopicState]:
    """The topics that exist and can be decoded, never older than in ``known``.

    Raises `ZooKeeperUnavailableError`.
    """
    nodes = client.find_all([topic_path(name) for name in names])
    configs = client.find_all([topic_config_path(name) for name in names])
    found: list[TopicState] = []
    for name, node, config_node in zip(names, nodes, configs, strict=True):
        if node is None:
            continue
        try:
            record = from_json(node.data, TopicRecord, topic_path(name))
            config = None
            if config_node is not None:
                config = from_json(config_node.data, TopicConfig, topic_config_path(name))
        except CorruptRecordError as error:
            event(_logger, "skip topic", level=logging.ERROR, topic=name, error=error)
            continue
        # Settings of an earlier topic of the name, left by a deletion that is not finished, are not this one's.
        is_own = config is not None and config.topic_id == record.topic_id
        found.append(
            TopicState(
                name=name,
                record=record,
                version=node.version,
                partitions=(),
                config=config.config if config is not None and is_own else {},
                config_version=-1 if config_node is None else config_node.version,
            )
        )
    return [_newest((known or {}).get(topic.name), topic) for topic in _with_partitions(client, found)]


def read_topic(client: ZooKeeperClient, name: str, *, known: TopicState | None = None) -> TopicState | None:
    """One topic, None if it does not exist; never older than ``known``. Raises `ZooKeeperUnavailableError`."""
    found = read_topics(client, [name], known={} if known is None else {name: known})
    return found[0] if found else None


def read_topic_records(client: ZooKeeperClient, names: Sequence[str]) -> dict[str, TopicRecord]:
    """Of these topics those that exist, are not being deleted and can be decoded, without the states of their
    partitions. Raises `ZooKeeperUnavailableError`."""
    marks = client.find_all([topic_deletion_path(name) for name in names], are_small=True)
    paths = {name: topic_path(name) for name, mark in zip(names, marks, strict=True) if mark is None}
    return _find_records(client, paths, TopicRecord, are_small=False)


def read_deleted_logs(client: ZooKeeperClient) -> dict[bytes, DeletedLogs]:
    """The logs that brokers still have to remove, by the topic's id. Raises `ZooKeeperUnavailableError`."""
    paths = {bytes.fromhex(name): f"{DELETED_LOGS}/{name}" for name in client.children(DELETED_LOGS)}
    return _find_records(client, paths, DeletedLogs)


def _newest(known: TopicState | None, read: TopicState) -> TopicState:
    if known is None or known.record.topic_id != read.record.topic_id:
        return read
    if known == read:
        return known
    topic = read if read.version >= known.version else known
    config = read if read.config_version >= known.config_version else known
    return replace(
        topic,
        partitions=tuple(
            max(
                (of.partitions[number] for of in (known, read) if number < len(of.partitions)),
                key=lambda present: -1 if present is None else present.version,
            )
            for number in range(len(topic.record.assignment))
        ),
        config=config.config,
        config_version=config.config_version,
    )


def _read_controller(client: ZooKeeperClient, watch: Watch | None) -> ControllerClaim | None:
    try:
        node = client.get(CONTROLLER, watch=watch)
    except NoNodeError:
        return None
    return from_json(node.data, ControllerClaim, CONTROLLER)


def _find_records(
    client: ZooKeeperClient, paths: Mapping[_K, str], kind: type[_R], *, are_small: bool = True
) -> dict[_K, _R]:
    """The znodes that exist and can be decoded. ``are_small``: as for `ZooKeeperClient.find_all`."""
    found: dict[_K, _R] = {}
    nodes = client.find_all(list(paths.values()), are_small=are_small)
    for (key, path), node in zip(paths.items(), nodes, strict=True):
        if node is None:
            continue
        try:
            found[key] = from_json(node.data, kind, path)
        except CorruptRecordError as error:
            event(_logger, "skip znode", level=logging.ERROR, znode=path, error=error)
    return found


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(name) for name in names if name.isdecimal()]


def _with_partitions(client: ZooKeeperClient, topics: Iterable[TopicState]) -> list[TopicState]:
    topics = list(topics)
    paths = [partition_state_path(t.name, p) for t in topics for p in range(len(t.record.assignment))]
    nodes = iter(zip(paths, client.find_all(paths, are_small=True), strict=True))
    complete: list[TopicState] = []
    for topic in topics:
        read = [next(nodes) for _ in topic.record.assignment]
        try:
            partitions = tuple(None if node is None else _versioned_state(path, node) for path, node in read)
        except CorruptRecordError as error:
            event(_logger, "skip topic", level=logging.ERROR, topic=topic.name, error=error)
        else:
            complete.append(replace(topic, partitions=partitions))
    return complete


def _versioned_state(path: str, node: ZNode) -> VersionedState:
    return VersionedState(state=from_json(node.data, PartitionState, path), version=node.version)


class ChangeFeed:
    """Which topics changed since one broker last looked. Used under its lock.

    One data watch on ``/changes`` takes the place of one per znode.

    Rule: what was missed is never guessed. Unless the version rose by exactly one since the last look, everything
    counts as changed. The changes are taken before the znodes they name are read, so none is missed.
    """

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._seen: int | None = None

    def take(self, watch: Watch) -> tuple[str, ...] | None:
        """The names of the topics that changed since the last call; None: any of them may have. ``watch`` is called at
        the next change. A caller that fails to deal with the answer has to read everything the next time. Raises
        `ZooKeeperUnavailableError`, `NoNodeError`; then nothing is taken.
        """
        node = self._client.get(CHANGES, watch=watch)
        seen, self._seen = self._seen, node.version
        if seen == node.version:
            return ()
        if seen is None or seen + 1 != node.version:
            return None
        try:
            return from_json(node.data, ChangeNews, CHANGES).topics
        except CorruptRecordError:
            return None


def logs_are_removed(client: ZooKeeperClient, topic_id: bytes, broker_id: int) -> None:
    """Notes that a broker has removed the logs of a topic that is gone. Raises `ZooKeeperUnavailableError`.

    Rule: the broker removes itself from the list by compare-and-set, after the logs are removed; the last one removes
    the znode. So a deletion also reaches brokers that were away.
    """
    path = deleted_logs_path(topic_id)

    def plan() -> Planned[None]:
        node = client.find(path)
        record = None if node is None else from_json(node.data, DeletedLogs, path)
        if node is None or record is None or broker_id not in record.brokers:
            return Planned(None)
        left = tuple(other for other in record.brokers if other != broker_id)
        if not left:
            return Planned(None, [Delete(path, node.version)])
        return Planned(None, [Set(path, to_json(msgspec.structs.replace(record, brokers=left)), node.version)])

    change(client, plan, what=path)
