"""What topics, partitions and offsets there are now, and what a group has committed: asked from the brokers.

One request per broker that leads something and per 2,000 topics, however many partitions: a streaming query asks every
few milliseconds while it is idle. It is asked each time, not answered from a cache, because `processAllAvailable` and
`availableNow` promise what was there when they were called. Only which topics match a pattern is kept, for a second.

After a transient error (a broker that restarts, a partition without a leader) the brokers are asked again for up to
``patience_s``, since any exception ends the query. Offsets from a leader of an older epoch than one already seen are
not believed: that broker does not know yet that another one leads. Questions about the group go to its coordinator.
Thread-safe are only those and `topics`, which the threads of the query's progress and of its membership use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from broker_runtime.contract.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.model import GroupDescription, TopicPartition
from broker_runtime.contract.requests import (
    DescribeConfigRequest,
    DescribeConfigResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)
from broker_runtime.contract.schema import TopicSchema, schema_history_from_info
from broker_runtime.contract.settings import parse_duration
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.admin import groups
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from pyspark_log.client.connection.leaders import ask_leaders
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
    """How long the load of a source waits for an answer: `LOAD_PATIENCE_S`, or less by ``request.timeout.ms``."""
    return min(LOAD_PATIENCE_S, options.settings().request_timeout_ms / 1000)


class BrokerLogView:
    """The partitions that a source selects. Connects when first asked; `close` ends the connections."""

    def __init__(self, options: SourceOptions, *, patience_s: float, cluster: Cluster | None = None) -> None:
        """``cluster``: the caller's, who also closes it; None: one of its own."""
        self._selection = options.selection
        self._group_id = options.group_id
        self._patience_s = patience_s
        self._is_owner = cluster is None
        self._cluster = cluster or Cluster.from_settings(options.settings())
        self._matching: tuple[tuple[str, ...], Deadline] | None = None  # topics, and until when nobody looks for more
        self.topics: tuple[str, ...] = tuple(sorted(self._selection.named_topics or ()))
        """The topics that are read, as last seen; those that a pattern matches are known after the first snapshot."""
        self._epochs: dict[tuple[bytes, int], int] = {}  # the leader epochs of the newest offsets, by topic id

    def schemas(self) -> dict[str, TopicSchema]:
        """The selected topics' latest schemas. Raises `UnknownTopicOrPartitionError` for one that does not exist."""
        deadline = self._cluster.deadline(self._patience_s)
        response = self._ask(self._selection.named_topics, deadline, with_offsets=False)
        for name, error in response.errors.items():
            if error.code == UnknownTopicOrPartitionError.code:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}. Topics are not made by reading them")
            raise error_of(error)
        return {info.name: schema_history_from_info(info).latest for info in self._selected(response.topics)}

    def snapshot(self) -> LogSnapshot:
        """See `LogView`. Raises the last `RetriableError` when ``patience_s`` is over."""
        deadline = self._cluster.deadline(self._patience_s)
        response: MetadataResponse | None = None
        infos: list[TopicInfo] = []
        spans: dict[TopicPartition, PartitionInfo] = {}

        def find_leaders(found: Mapping[TopicPartition, PartitionInfo]) -> dict[TopicPartition, int | None]:
            """Any broker is asked first: it speaks for what it leads. Each round begins again, with one state."""
            nonlocal response
            response = self._ask(self._names_to_ask(), deadline, with_offsets=True)
            for error in response.errors.values():
                if error.code != UnknownTopicOrPartitionError.code:
                    raise error_of(error)
            infos[:] = self._selected(response.topics)
            spans.clear()
            spans.update(self._spans(infos))
            return {at: span.leader for at, span in spans.items() if span.high_watermark < 0}

        def ask(leader: int, led: list[TopicPartition]) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
            names = sorted({at.topic for at in led})
            answer = self._fetch(names, deadline, to=leader, with_offsets=True, limit_s=_LEADER_LIMIT_S)
            for at, span in self._spans(answer.topics).items():
                if at in spans and span.high_watermark >= 0:
                    spans[at] = span
                    yield at, span

        _, failure = ask_leaders(find_leaders, ask, deadline)
        if failure is not None:
            silent = [str(at) for at in sorted(spans) if spans[at].high_watermark < 0]
            if silent and isinstance(failure, LeaderNotAvailableError):
                raise LeaderNotAvailableError(f"{', '.join(silent)}: no leader answers; is a broker down?")
            raise failure
        assert response is not None
        self.topics = tuple(sorted(info.name for info in infos))
        return LogSnapshot(
            topic_ids={info.name: info.topic_id for info in infos},
            earliest={at: spans[at].log_start for at in sorted(spans)},
            latest={at: spans[at].committed_end for at in sorted(spans)},
            missing=self._missing(response, infos, spans),
        )

    def committed(self, partitions: Iterable[TopicPartition]) -> SourceOffset:
        """See `LogView`."""
        assert self._group_id is not None
        asked = tuple(partitions)
        return offsets.committed(
            self._cluster,
            self._group_id,
            asked,
            topic_ids=dict.fromkeys(asked, None),
            timeout_s=self._patience_s,
        )

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> SourceOffset:
        """See `LogView`. Raises `UnknownTopicOrPartitionError`, or the last `RetriableError`."""
        found = offsets.list_offsets(self._cluster, times, timeout_s=self._patience_s)
        return {at: each.offset for at, each in found.items() if each.offset >= 0}

    def commit(
        self, offset: SourceOffset, only_forward: bool, signature: offsets.Signature, topic_ids: Mapping[str, bytes]
    ) -> None:
        """Makes ``offset`` the group's committed offsets, in ZooKeeper. ``signature``: the query's, as its one member.
        ``topic_ids``: of the topics that ``offset`` is about, where they are known.

        Blocks at most 10 s. Thread-safe. Partitions of topics that no longer exist, or were recreated, are left out.
        Raises the first other error: `FencedError` when the membership is over.
        """
        assert self._group_id is not None
        offsets.commit(
            self._cluster,
            self._group_id,
            offset,
            only_forward=only_forward,
            topic_ids={at: topic_ids.get(at.topic) for at in offset},
            signature=signature,
            missing_ok=True,
            timeout_s=_COMMIT_LIMIT_S,
        )

    def heartbeat(self, request: GroupHeartbeatRequest, *, timeout_s: float) -> GroupHeartbeatResponse:
        """See `query_member.GroupCalls`. Thread-safe."""
        return self._cluster.call(
            "group_heartbeat", request, GroupHeartbeatResponse, to=Coordinator(request.group_id), timeout_s=timeout_s
        )

    def forget_coordinator(self) -> None:
        """See `query_member.GroupCalls`. Thread-safe."""
        assert self._group_id is not None
        self._cluster.forget_coordinator(Coordinator(self._group_id))

    def describe_group(self) -> GroupDescription:
        """See `query_member.GroupCalls`. Thread-safe."""
        assert self._group_id is not None
        return groups.describe_group(self._cluster, self._group_id, timeout_s=_GROUP_LIMIT_S)

    def session_limits_ms(self) -> tuple[int, int]:
        """See `query_member.GroupCalls`. Thread-safe."""
        broker_id = min(self._cluster.describe(timeout_s=_GROUP_LIMIT_S).brokers)
        response = self._cluster.call(
            "describe_config",
            DescribeConfigRequest(broker_id=broker_id),
            DescribeConfigResponse,
            to=broker_id,
            timeout_s=_GROUP_LIMIT_S,
        )
        least, most = (response.entries[f"group.{which}.session.timeout.ms"].value for which in ("min", "max"))
        return parse_duration(least), parse_duration(most)

    def close(self) -> None:
        """Closes the connections, unless the cluster is the caller's."""
        if self._is_owner:
            self._cluster.close()

    def _spans(self, infos: Iterable[TopicInfo]) -> dict[TopicPartition, PartitionInfo]:
        """The selected partitions with their offsets, where those can be believed."""
        return {
            at: self._believed(info, each)
            for info in infos
            for each in info.partitions
            if self._selection.selects(at := TopicPartition(info.name, each.partition))
        }

    def _missing(
        self, response: MetadataResponse, infos: Iterable[TopicInfo], spans: Collection[TopicPartition]
    ) -> tuple[str, ...]:
        missing = [f"topic {name!r}" for name in response.errors if name in (self._selection.named_topics or ())]
        known = {info.name for info in infos}
        assigned = self._selection.partitions or ()
        missing += [f"partition {at}" for at in assigned if at.topic in known and at not in spans]
        return tuple(missing)

    def _believed(self, info: TopicInfo, one: PartitionInfo) -> PartitionInfo:
        """The partition as described; without its offsets if they are from an older leader than those seen before."""
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
        names, fresh = self._matching or ((), None)
        return names if names and fresh is not None and not fresh.expired else None

    def _ask(self, names: Sequence[str] | None, deadline: Deadline, *, with_offsets: bool) -> MetadataResponse:
        """Asks any broker about these topics (None: all, and remembers which of them are selected)."""
        response = self._fetch(names, deadline, to="any", with_offsets=with_offsets)
        if names is None:
            names_now = tuple(info.name for info in self._selected(response.topics))
            self._matching = names_now, self._cluster.deadline(_PATTERN_AGE_S)
        return response

    def _fetch(
        self,
        names: Sequence[str] | None,
        deadline: Deadline,
        *,
        to: int | str,
        with_offsets: bool,
        limit_s: float | None = None,
    ) -> MetadataResponse:
        """Asks one broker. ``limit_s``: of each request."""
        return as_one(
            self._cluster.call(
                "metadata",
                MetadataRequest(topics=some, with_offsets=with_offsets),
                MetadataResponse,
                to=to,
                timeout_s=deadline.remaining_s(limit_s),
            )
            for some in portions_of_names(names)
        )

    def _selected(self, infos: Iterable[TopicInfo]) -> list[TopicInfo]:
        return [
            info
            for info in infos
            if any(self._selection.selects(TopicPartition(info.name, one.partition)) for one in info.partitions)
            or info.name in (self._selection.named_topics or ())
        ]
