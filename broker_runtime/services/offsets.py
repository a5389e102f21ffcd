"""Offsets: of a partition's log (where it begins, ends, what was when), and those that groups acknowledged.

Rule: each of a request's entries has its own answer; one that fails takes no other with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    NotSupportedError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import EARLIEST, LATEST, MAX_TIMESTAMP, check_group_id
from broker_runtime.contract.requests import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ErrorInfo,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
    PartitionKey,
    RecordDeletion,
)
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState
from broker_runtime.zookeeper.znodes import StoredOffset

_HIGH_WATERMARK = -1
_DELETION_LIMIT_S = 10.0


class LogOffsetService:
    """Offsets of the logs this broker leads. Thread-safe."""

    def __init__(self, registry: PartitionRegistry) -> None:
        self._registry = registry

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Where a log begins, where its committed part ends, or the first record at or after a time."""
        return ListOffsetsResponse(answers=tuple(_answer(lambda q=q: self._look_up(q)) for q in request.queries))  # type: ignore[misc]

    def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Moves logs' starts. An answer without an error is durable, on all in-sync replicas."""
        return DeleteRecordsResponse(answers=tuple(_answer(lambda d=d: self._delete(d)) for d in request.deletions))  # type: ignore[misc]

    def _look_up(self, query: OffsetQuery) -> OffsetAnswer:
        at = query.at
        partition = self._registry.find(at.topic, at.partition, at.topic_id)
        with partition.refusing():
            return _look_up_in(partition, query)

    def _delete(self, deletion: RecordDeletion) -> OffsetAnswer:
        at = deletion.at
        partition = self._registry.find(at.topic, at.partition, at.topic_id)
        epoch = partition.require_leader()
        offset = None if deletion.offset == _HIGH_WATERMARK else deletion.offset
        start = partition.delete_records(offset, timeout_s=_DELETION_LIMIT_S)
        return OffsetAnswer(offset=start, leader_epoch=epoch)


class GroupOffsetService:
    """Groups' acknowledged offsets, in ZooKeeper. Thread-safe; blocks for ZooKeeper, in bounds."""

    def __init__(
        self,
        store: OffsetStore,
        cluster: Callable[[], ClusterState],
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._now_ms = now_ms

    def commit_offsets(self, request: CommitOffsetsRequest) -> CommitOffsetsResponse:
        """Writes the offsets. Raises `InvalidGroupIdError`, and `NotSupportedError` for a member of a group.

        An entry's error: `UnknownTopicOrPartitionError`, `InconsistentTopicIdError`, and as `OffsetStore.commit`.
        """
        group_id = check_group_id(request.group_id)
        if request.member_id or request.member_epoch != -1:
            raise NotSupportedError("this version has no group members: leave member_id empty and member_epoch at -1")
        now_ms = self._now_ms()
        errors: list[ErrorInfo | None] = [None] * len(request.offsets)
        topics: dict[str, TopicState] = {}
        by_topic: dict[str, dict[int, StoredOffset]] = {}
        entries: dict[str, list[int]] = {}
        cluster = self._cluster()
        for number, committed in enumerate(request.offsets):
            try:
                topic = _existing(cluster, committed.at)
            except PylogError as error:
                errors[number] = ErrorInfo.of(error)
                continue
            topics[topic.name] = topic
            entries.setdefault(topic.name, []).append(number)
            by_topic.setdefault(topic.name, {})[committed.at.partition] = StoredOffset(
                offset=committed.offset,
                leader_epoch=committed.leader_epoch,
                committed_at_ms=now_ms,
                metadata=committed.metadata,
            )
        for name, offsets in by_topic.items():
            try:
                self._store.commit(
                    group_id, name, topics[name].record.topic_id, offsets, only_forward=request.only_forward
                )
            except PylogError as error:
                for number in entries[name]:
                    errors[number] = ErrorInfo.of(error)
        return CommitOffsetsResponse(errors=tuple(errors))

    def fetch_offsets(self, request: FetchOffsetsRequest) -> FetchOffsetsResponse:
        """The offsets the group has, of topics that exist. Those of an earlier topic of the same name are none.

        Raises `InvalidGroupIdError`, `ZooKeeperUnavailableError`; `UnknownTopicOrPartitionError` and
        `InconsistentTopicIdError` for partitions asked for.
        """
        group_id = check_group_id(request.group_id)
        cluster = self._cluster()
        wanted: dict[str, set[int] | None] = {}
        if request.partitions is None:
            wanted = dict.fromkeys(name for name in self._store.topics_of(group_id) if name in cluster.topics)
        else:
            for at in request.partitions:
                partitions = wanted.setdefault(_existing(cluster, at).name, set())
                assert partitions is not None
                partitions.add(at.partition)
        found: list[CommittedOffset] = []
        for name, stored in self._store.fetch(group_id, sorted(wanted)).items():
            topic_id = cluster.topics[name].record.topic_id
            if stored.topic_id != topic_id:
                continue
            asked = wanted[name]
            found += [
                CommittedOffset(
                    at=PartitionKey(topic=name, partition=partition, topic_id=topic_id),
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                )
                for partition, offset in sorted(stored.offsets.items())
                if asked is None or partition in asked
            ]
        return FetchOffsetsResponse(offsets=tuple(found))


def _look_up_in(partition: Partition, query: OffsetQuery) -> OffsetAnswer:
    epoch = partition.require_leader(query.leader_epoch)
    if query.timestamp == EARLIEST:
        return OffsetAnswer(offset=partition.log_start, leader_epoch=epoch)
    if query.timestamp == LATEST:
        return OffsetAnswer(offset=partition.latest_offset(), leader_epoch=epoch)
    if query.timestamp < 0 and query.timestamp != MAX_TIMESTAMP:
        raise InvalidRequestError(
            f"timestamp {query.timestamp} is neither a time in ms nor one of -1 (latest), -2 (earliest), "
            "-3 (largest timestamp)"
        )
    end = partition.last_stable_offset
    timestamp = partition.log.max_timestamp_ms() if query.timestamp == MAX_TIMESTAMP else query.timestamp
    found = None if timestamp < 0 else partition.log.offset_for_timestamp(timestamp)
    # What is not committed yet is not there yet; but a new leader must know what is.
    if found is None or found[0] >= end:
        partition.latest_offset()
        return OffsetAnswer(leader_epoch=epoch)
    return OffsetAnswer(offset=found[0], timestamp=found[1], leader_epoch=epoch)


def _answer(look_up: Callable[[], OffsetAnswer]) -> OffsetAnswer:
    try:
        return look_up()
    except PylogError as error:
        return OffsetAnswer(error=ErrorInfo.of(error))


def _existing(cluster: ClusterState, at: PartitionKey) -> TopicState:
    topic = cluster.topics.get(at.topic)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"no topic {at.topic!r}")
    if at.topic_id is not None and at.topic_id != topic.record.topic_id:
        raise InconsistentTopicIdError(
            f"topic {at.topic!r} has the id {topic.record.topic_id.hex()}, not {at.topic_id.hex()}: it was made anew"
        )
    if at.partition >= len(topic.record.assignment):
        raise UnknownTopicOrPartitionError(
            f"topic {at.topic!r} has no partition {at.partition}, only 0 to {len(topic.record.assignment) - 1}"
        )
    return topic
