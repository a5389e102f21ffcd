"""All that a person on call must know of a cluster: its health, and what each broker, the controller and the groups'
coordinators say.

Rule: reads only, and in bounded time. What nobody says in time, or an older broker cannot say, is unknown (None), and
makes nothing else unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import GroupListing, Reassignment, TopicPartition
from broker_runtime.contract.requests import (
    DescribeConfigRequest,
    DescribeConfigResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    MetadataRequest,
    MetadataResponse,
)
from broker_runtime.contract.settings import find_setting
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.admin import descriptions, groups, health, movement
from pyspark_log.client.admin.health import ClusterHealth
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster

NEARLY_FULL_SHARE: Final = 0.1
"""A directory is nearly full when less than this share of what its logs may take is left."""
_ANSWER_LIMIT_S: Final = 3.0
_GROUPS_LIMIT_S: Final = 5.0
_AT_ONCE: Final = 8  # a coordinator mostly waits for ZooKeeper
_MIN_FREE: Final = "log.dir.min.free.bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRoom:
    """A data directory: what its logs take, how much room its disk has, and with how much it takes no appends
    (``min_free_bytes``; None: unknown)."""

    path: str
    log_bytes: int
    usable_bytes: int
    min_free_bytes: int | None

    @property
    def left_bytes(self) -> int:
        """How much can still be appended."""
        return max(0, self.usable_bytes - (self.min_free_bytes or 0))

    @property
    def is_nearly_full(self) -> bool:
        """Whether somebody should make room soon."""
        return self.left_bytes < NEARLY_FULL_SHARE * (self.log_bytes + self.left_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """What a registered broker says of itself. ``silent``: why it says nothing; None: it answered. ``directories``:
    None: it did not say in time; ``unreadable``: those that it cannot look into, each with the reason."""

    broker_id: int
    silent: str | None = None
    software_version: str | None = None
    reaches_zookeeper: bool | None = None
    directories: tuple[DirectoryRoom, ...] | None = None
    unreadable: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a group is behind. ``lag``: in all partitions whose leaders answered; ``worst``: where it is furthest
    behind, None: nowhere."""

    group_id: str
    lag: int
    worst: TopicPartition | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOverview:
    """``groups``: the furthest behind first; None: nobody told which there are. ``unread_groups``: how many more there
    are, whose offsets nobody told in time."""

    health: ClusterHealth
    brokers: Mapping[int, BrokerState]
    moves: Mapping[TopicPartition, Reassignment] | None
    draining: tuple[int, ...] | None
    groups: tuple[GroupLag, ...] | None
    unread_groups: int

    @property
    def silent_brokers(self) -> tuple[int, ...]:
        """Those that are registered and do not answer."""
        return tuple(each.broker_id for each in self.brokers.values() if each.silent is not None)

    @property
    def without_zookeeper(self) -> tuple[int, ...]:
        """Those that say that they do not reach ZooKeeper."""
        return tuple(each.broker_id for each in self.brokers.values() if each.reaches_zookeeper is False)

    @property
    def unreadable_directories(self) -> tuple[str, ...]:
        """The data directories that brokers cannot look into, each with its broker and the reason."""
        return tuple(
            f"broker {each.broker_id}: {path}: {error}"
            for each in self.brokers.values()
            for path, error in (each.unreadable or {}).items()
        )

    @property
    def is_healthy(self) -> bool:
        """Whether `health` is, and every broker answers, reaches ZooKeeper and can look into its directories. Lag,
        moves and disks that are nearly full are no illness."""
        is_whole = not (self.silent_brokers or self.without_zookeeper or self.unreadable_directories)
        return self.health.is_healthy and is_whole


def overview(cluster: Cluster, *, with_groups: bool = True) -> ClusterOverview:
    """Asks all brokers. Without ``with_groups`` the groups are unknown. Raises as `health.check`."""
    brokers = {broker_id: _state_of(cluster, broker_id) for broker_id in sorted(cluster.describe().brokers)}
    silent = {broker_id for broker_id, state in brokers.items() if state.silent is not None}
    found = health.check(cluster, without=silent)  # who says nothing to one question is not asked another
    moves, draining = (None, None) if found.cluster.controller_id in {None, *silent} else _moves(cluster)
    lags, unread = _group_lags(cluster, silent) if with_groups else (None, 0)
    return ClusterOverview(
        health=found, brokers=brokers, moves=moves, draining=draining, groups=lags, unread_groups=unread
    )


def group_lags(cluster: Cluster) -> tuple[list[GroupLag], int]:
    """The lags, the furthest behind first, and how many groups have none. Raises if nobody tells which there are."""
    lags, unread = _group_lags_of(cluster, groups.list_groups(cluster), (), cluster.deadline(_GROUPS_LIMIT_S))
    return list(lags), unread


def _state_of(cluster: Cluster, broker_id: int) -> BrokerState:
    try:
        said = cluster.call(
            "metadata", MetadataRequest(topics=()), MetadataResponse, to=broker_id, timeout_s=_ANSWER_LIMIT_S
        )
    except PylogError as error:
        return BrokerState(broker_id=broker_id, silent=str(error))
    directories, unreadable = _directories(cluster, broker_id)
    return BrokerState(
        broker_id=broker_id,
        software_version=said.software_version,
        reaches_zookeeper=said.zookeeper_connected,
        directories=directories,
        unreadable=unreadable,
    )


def _directories(cluster: Cluster, broker_id: int) -> tuple[tuple[DirectoryRoom, ...] | None, dict[str, str] | None]:
    try:
        told = cluster.call(
            "describe_log_dirs",
            DescribeLogDirsRequest(),
            DescribeLogDirsResponse,
            to=broker_id,
            timeout_s=_ANSWER_LIMIT_S,
        ).log_dirs
    except PylogError:
        return None, None
    least = _min_free_bytes(cluster, broker_id)
    rooms = tuple(
        DirectoryRoom(path=each.path, log_bytes=each.total_bytes, usable_bytes=each.usable_bytes, min_free_bytes=least)
        for each in told
        if each.error is None
    )
    return rooms, {each.path: each.error for each in told if each.error is not None}


def _min_free_bytes(cluster: Cluster, broker_id: int) -> int | None:
    request = DescribeConfigRequest(broker_id=broker_id)
    try:
        said = cluster.call("describe_config", request, DescribeConfigResponse, to=broker_id, timeout_s=_ANSWER_LIMIT_S)
    except PylogError:
        return None
    entry = said.entries.get(_MIN_FREE)
    found = None if entry is None else find_setting("broker", _MIN_FREE).parse(entry.value)
    return found if isinstance(found, int) else None


def _moves(cluster: Cluster) -> tuple[dict[TopicPartition, Reassignment] | None, tuple[int, ...] | None]:
    try:
        draining = movement.draining(cluster, timeout_s=_ANSWER_LIMIT_S)
        return movement.reassignments(cluster, timeout_s=_ANSWER_LIMIT_S), draining
    except PylogError:
        return None, None


def _group_lags(cluster: Cluster, silent: Collection[int]) -> tuple[tuple[GroupLag, ...] | None, int]:
    """The lags, and how many groups have none. ``silent``: brokers that are not asked: one of them would take the time
    of all others."""
    deadline = cluster.deadline(_GROUPS_LIMIT_S)
    try:
        listed = groups.list_groups(cluster, timeout_s=deadline.remaining_s(_ANSWER_LIMIT_S))
        return _group_lags_of(cluster, listed, silent, deadline)
    except PylogError:
        return None, 0


def _group_lags_of(
    cluster: Cluster, listed: Sequence[GroupListing], silent: Collection[int], deadline: Deadline
) -> tuple[tuple[GroupLag, ...], int]:
    def committed_of(name: str) -> dict[TopicPartition, int] | None:
        limit_s = deadline.remaining_s(_ANSWER_LIMIT_S)
        if limit_s <= 0:
            return None
        try:
            return offsets.committed(cluster, name, None, timeout_s=limit_s)
        except PylogError:
            return None  # a group that is damaged, or whose coordinator is away, keeps no other from being shown

    names = [each.group_id for each in listed if each.coordinator not in silent]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pylog-groups") as threads:
        answers = zip(names, threads.map(committed_of, names), strict=True)
        committed = {name: found for name, found in answers if found is not None}
    ends = _ends(cluster, {at.topic for each in committed.values() for at in each})
    lags = [_lag_of(name, held, ends) for name, held in committed.items()]
    return tuple(sorted(lags, key=lambda each: (-each.lag, each.group_id))), len(listed) - len(committed)


def _ends(cluster: Cluster, names: set[str]) -> dict[TopicPartition, int]:
    there = names.intersection(topic.name for topic in cluster.fetch_topics()) if names else set()
    return {
        TopicPartition(topic.name, partition.partition): partition.committed_end
        for topic in (descriptions.topics_with_offsets(cluster, sorted(there)) if there else ())
        for partition in topic.partitions
        if partition.committed_end >= 0
    }


def _lag_of(group_id: str, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> GroupLag:
    behind = {at: ends[at] - offset for at, offset in committed.items() if ends.get(at, offset) > offset}
    worst = max(sorted(behind), key=lambda at: behind[at], default=None)
    return GroupLag(group_id=group_id, lag=sum(behind.values()), worst=worst)
