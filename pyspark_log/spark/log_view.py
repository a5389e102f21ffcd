"""What topics, partitions and offsets there are now, and what a group has committed: asked from the brokers.

One request per broker that leads something and per 2,000 topics, however many partitions: a streaming query asks every
few milliseconds while it is idle. It is asked each time, not answered from a cache, because `processAllAvailable` and
`availableNow` promise what was there when they were called. Only which topics match a pattern is kept, for a second.

Transient errors (a broker that restarts, a partition without a leader) are tried again for as long as ``patience_s``,
since any exception ends the query. Offsets of a leader of an older epoch than one already seen are not believed: it
does not know yet that it leads no more. What is asked about the group goes to its coordinator. Not thread-safe but
for that and for `topics`, which the threads of the query's progress and of its membership ask.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence

from broker_runtime.contract.errors import (
    LeaderNotAvailableError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.model import GroupDescription, TopicPartition
from broker_runtime.contract.requests import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    DescribeConfigRequest,
    DescribeConfigResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
    PartitionKey,
    TopicInfo,
    portions,
)
from broker_runtime.contract.schema import TopicSchema, schema_history_from_info
from broker_runtime.contract.settings import parse_duration
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.admin import groups
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from pyspark_log.client.connection.topics import as_one, portions_of_names
from pyspark_log.spark.offsets import SourceOffset
from pyspark_log.spark.options import SourceOptions
from pyspark_log.spark.query_offsets import LogSnapshot

LOAD_PATIENCE_S = 30.0
"""For `load()` and batch reads: a user waits in front of it."""
QUERY_PATIENCE_S = 120.0
"""For a running query."""

_PATTERN_AGE_S = 1.0
_COMMIT_LIMIT_S = 10.0
_GROUP_LIMIT_S = 3.0  # one try at the group's coordinator
_LEADER_LIMIT_S = 5.0  # one try at one leader: if it is frozen, another will lead


def load_patience_s(options: SourceOptions) -> float:
    """How long whoever loads a source waits for an answer: `LOAD_PATIENCE_S`, or less by ``request.timeout.ms``."""
    return min(LOAD_PATIENCE_S, options.settings().request_timeout_ms / 1000)


class BrokerLogView:
    """The partitions that a source selects. Connects when first asked; `close` ends the connections."""

    def __init__(self, options: SourceOptions, *, patience_s: float, cluster: Cluster | None = None) -> None:
        """``cluster``: somebody else's, who also closes it; None: one of its own."""
        self._selection = options.selection
        self._group_id = options.group_id
        self._patience_s = patience_s
        self._is_owner = cluster is None
        self._cluster = cluster or Cluster.from_settings(options.settings())
        self._matching: tuple[str, ...] | None = None
        self._matched_at_s = 0.0
        self._sequence = itertools.count()  # of commits
        self.topics: tuple[str, ...] = tuple(sorted(self._selection.named_topics or ()))
        """The topics that are read, as last seen; those that a pattern matches are known after the first snapshot."""
        self._epochs: dict[tuple[bytes, int], int] = {}  # the leader epochs of the newest offsets, by topic id

    def schemas(self) -> dict[str, TopicSchema]:
        """The selected topics' latest schemas. Raises `UnknownTopicOrPartitionError` for one that does not exist."""
        response = self._ask(self._selection.named_topics, with_offsets=False)
        for name, error in response.errors.items():
            if error.code == UnknownTopicOrPartitionError.code:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}. Topics are not made by reading them")
            raise error_of(error)
        return {info.name: schema_history_from_info(info).latest for info in self._selected(response.topics)}

    def snapshot(self) -> LogSnapshot:
        """See `LogView`. Raises the last `RetriableError` when ``patience_s`` is over."""
        deadline = Deadline(self._patience_s)
        backoff = Backoff()
        while True:
            try:
                return self._try_snapshot(deadline)
            except RetriableError:
                if deadline.expired:
                    raise
            deadline.sleep(backoff.next_s())

    def committed(self, partitions: Iterable[TopicPartition]) -> SourceOffset:
        """See `LogView`."""
        assert self._group_id is not None
        keys = tuple(PartitionKey(topic=one.topic, partition=one.partition) for one in partitions)
        deadline = Deadline(self._patience_s)
        found: SourceOffset = {}
        for some in portions(keys):
            response = self._cluster.call(
                "fetch_offsets",
                FetchOffsetsRequest(group_id=self._group_id, partitions=some),
                FetchOffsetsResponse,
                to=Coordinator(self._group_id),
                timeout_s=deadline.remaining_s(),
            )
            found.update({TopicPartition(one.at.topic, one.at.partition): one.offset for one in response.offsets})
        return found

    def commit(self, offset: SourceOffset, only_forward: bool, member: tuple[str, int]) -> None:
        """Makes ``offset`` the group's committed offsets, in ZooKeeper, as its ``member`` (id, epoch).

        Blocks at most 10 s. Thread-safe. Partitions of topics that no longer exist are left out. Raises the first other
        error: `FencedError` when the membership is over.
        """
        assert self._group_id is not None
        deadline, sequence = Deadline(_COMMIT_LIMIT_S), next(self._sequence)
        failures: list[PylogError] = []
        for some in portions(offset.items()):
            response = self._cluster.call(
                "commit_offsets",
                CommitOffsetsRequest(
                    group_id=self._group_id,
                    offsets=tuple(
                        CommittedOffset(at=PartitionKey(topic=one.topic, partition=one.partition), offset=position)
                        for one, position in some
                    ),
                    member_id=member[0],
                    member_epoch=member[1],
                    sequence=sequence,
                    only_forward=only_forward,
                ),
                CommitOffsetsResponse,
                to=Coordinator(self._group_id),
                timeout_s=deadline.remaining_s(),
            )
            failures += [error_of(error) for error in response.errors if error is not None]
        for failure in failures:
            if not isinstance(failure, UnknownTopicOrPartitionError):
                raise failure

    def heartbeat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        """See `query_member.GroupCalls`. Thread-safe."""
        return self._cluster.call(
            "group_heartbeat",
            request,
            GroupHeartbeatResponse,
            to=Coordinator(request.group_id),
            timeout_s=_GROUP_LIMIT_S,
        )

    def describe_group(self) -> GroupDescription:
        """See `query_member.GroupCalls`. Thread-safe."""
        assert self._group_id is not None
        return groups.describe_group(self._cluster, self._group_id, timeout_s=_GROUP_LIMIT_S)

    def session_limits_ms(self) -> tuple[int, int]:
        """See `query_member.GroupCalls`. Thread-safe."""
        broker_id = min(self._cluster.describe(timeout_s=_GROUP_LIMIT_S).brokers)
        told = self._cluster.call(
            "describe_config",
            DescribeConfigRequest(broker_id=broker_id),
            DescribeConfigResponse,
            to=broker_id,
            timeout_s=_GROUP_LIMIT_S,
        )
        least, most = (told.entries[f"group.{which}.session.timeout.ms"].value for which in ("min", "max"))
        return parse_duration(least), parse_duration(most)

    def close(self) -> None:
        """Ends the connections that are its own."""
        if self._is_owner:
            self._cluster.close()

    def _try_snapshot(self, deadline: Deadline) -> LogSnapshot:
        response = self._ask(self._names_to_ask(), with_offsets=True)
        for error in response.errors.values():
            if error.code != UnknownTopicOrPartitionError.code:
                raise error_of(error)
        infos = self._selected(response.topics)
        spans = {
            TopicPartition(info.name, one.partition): self._believed(info, one)
            for info in infos
            for one in info.partitions
            if self._selection.selects(TopicPartition(info.name, one.partition))
        }
        self._ask_other_leaders(infos, spans, deadline)
        missing = [f"topic {name!r}" for name in response.errors if name in (self._selection.named_topics or ())]
        if self._selection.partitions is not None:
            known = {info.name for info in infos}
            missing += [
                f"partition {one}" for one in self._selection.partitions if one.topic in known and one not in spans
            ]
        without_leader = [str(one) for one in sorted(spans) if spans[one].high_watermark < 0]
        if without_leader:
            raise LeaderNotAvailableError(f"{', '.join(without_leader)}: no leader answers; is a broker down?")
        self.topics = tuple(sorted(info.name for info in infos))
        return LogSnapshot(
            topic_ids={info.name: info.topic_id for info in infos},
            earliest={one: spans[one].log_start for one in sorted(spans)},
            latest={one: spans[one].high_watermark for one in sorted(spans)},
            missing=tuple(missing),
        )

    def _ask_other_leaders(
        self, infos: Sequence[TopicInfo], spans: dict[TopicPartition, PartitionInfo], deadline: Deadline
    ) -> None:
        """Fills ``spans`` from the leaders that the first broker could not speak for."""
        unknown = [one for one in spans if spans[one].high_watermark < 0]
        leaders = {leader for one in unknown if (leader := spans[one].leader) is not None}
        names = tuple(sorted({one.topic for one in unknown}))
        for leader in sorted(leaders):
            answer = as_one(
                self._cluster.call(
                    "metadata",
                    MetadataRequest(topics=some, with_offsets=True),
                    MetadataResponse,
                    to=leader,
                    timeout_s=deadline.remaining_s(_LEADER_LIMIT_S),
                )
                for some in portions_of_names(names)
            )
            for info in answer.topics:
                for one in info.partitions:
                    partition, believed = TopicPartition(info.name, one.partition), self._believed(info, one)
                    if partition in spans and believed.high_watermark >= 0:
                        spans[partition] = believed

    def _believed(self, info: TopicInfo, one: PartitionInfo) -> PartitionInfo:
        """The partition as it was told; without offsets, if they are of an older leader than those seen before."""
        if one.high_watermark < 0:
            return one
        key = info.topic_id, one.partition
        if one.leader_epoch < self._epochs.get(key, -1):
            return PartitionInfo(
                partition=one.partition,
                leader=one.leader,
                leader_epoch=one.leader_epoch,
                replicas=one.replicas,
                isr=one.isr,
            )
        self._epochs[key] = one.leader_epoch
        return one

    def _names_to_ask(self) -> tuple[str, ...] | None:
        if self._selection.named_topics is not None:
            return self._selection.named_topics
        is_fresh = time.monotonic() - self._matched_at_s < _PATTERN_AGE_S
        return self._matching if self._matching and is_fresh else None

    def _ask(self, names: Sequence[str] | None, *, with_offsets: bool) -> MetadataResponse:
        deadline = Deadline(self._patience_s)
        response = as_one(
            self._cluster.call(
                "metadata",
                MetadataRequest(topics=some, with_offsets=with_offsets),
                MetadataResponse,
                timeout_s=deadline.remaining_s(),
            )
            for some in portions_of_names(names)
        )
        if names is None:
            self._matching = tuple(info.name for info in self._selected(response.topics))
            self._matched_at_s = time.monotonic()
        return response

    def _selected(self, infos: Iterable[TopicInfo]) -> list[TopicInfo]:
        return [
            info
            for info in infos
            if any(self._selection.selects(TopicPartition(info.name, one.partition)) for one in info.partitions)
            or info.name in (self._selection.named_topics or ())
        ]
