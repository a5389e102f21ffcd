"""What clients ask about the cluster: brokers, topics, partitions, and where the data is on the disks.

Rule: answers from the cluster as this broker last read it; never waits for ZooKeeper.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import PylogError, RequestTimedOutError, UnknownTopicOrPartitionError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    PROTOCOL_VERSION,
    BrokerInfo,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ErrorInfo,
    LogDirInfo,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
    SchemaVersion,
    TopicInfo,
)
from broker_runtime.log import LogDirectory
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.caller import Caller
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState
from broker_runtime.zookeeper.znodes import BrokerRegistration, DiskTroubles, TopicRecord

_BUSY_S: Final = 1.0  # so long an answer waits for the first partition in use on a disk
_AGAIN_BUSY_S: Final = 0.01  # and for each further one there: the disk may stand still


class MetadataService:
    """Describes the cluster. Thread-safe."""

    def __init__(
        self,
        registry: PartitionRegistry,
        cluster: Callable[[], ClusterState],
        *,
        cluster_id: str,
        broker_id: int,
        directories: Sequence[LogDirectory],
        is_zookeeper_connected: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._cluster = cluster
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._directories = tuple(directories)
        self._is_zookeeper_connected = is_zookeeper_connected

    def metadata(self, caller: Caller, request: MetadataRequest) -> MetadataResponse:
        """The cluster, and all its topics or those asked for. Brokers are where the caller's listener has them: those
        that have no such listener are left out."""
        cluster = self._cluster()
        names = sorted(cluster.topics) if request.topics is None else list(dict.fromkeys(request.topics))
        errors = {
            name: ErrorInfo.saying(UnknownTopicOrPartitionError, f"no topic {name!r}")
            for name in names
            if name not in cluster.topics
        }
        return MetadataResponse(
            protocol_version=PROTOCOL_VERSION,
            software_version=software_version(),
            cluster_id=self._cluster_id,
            controller_id=None if cluster.controller is None else cluster.controller.broker_id,
            brokers=tuple(
                _broker(broker_id, broker, at, cluster.disks.get(broker_id))
                for broker_id, broker in sorted(cluster.brokers.items())
                if (at := broker.address_at(caller.listener)) is not None
            ),
            topics=tuple(
                self._topic(cluster.topics[name], cluster.disks, with_offsets=request.with_offsets)
                for name in names
                if name in cluster.topics
            ),
            errors=errors,
            zookeeper_connected=self._is_zookeeper_connected(),
        )

    def describe_log_dirs(self, caller: Caller, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """The data directories of this broker, what is in them and how much room is left."""
        return DescribeLogDirsResponse(
            broker_id=self._broker_id, log_dirs=tuple(_log_dir(directory) for directory in self._directories)
        )

    def _topic(self, topic: TopicState, disks: Mapping[int, DiskTroubles], *, with_offsets: bool) -> TopicInfo:
        info = topic_info(topic, disks)
        if not with_offsets:
            return info
        waited_for: set[Path] = set()
        partitions = tuple(self._with_offsets(topic, partition, waited_for) for partition in info.partitions)
        return TopicInfo(
            name=info.name,
            topic_id=info.topic_id,
            partitions=partitions,
            schemas=info.schemas,
            key=info.key,
            config=info.config,
        )

    def _with_offsets(self, topic: TopicState, info: PartitionInfo, waited_for: set[Path]) -> PartitionInfo:
        """``waited_for``: the disks on which a busy partition was waited for already; once is enough for one answer."""
        try:
            partition = self._registry.find(topic.name, info.partition, topic.record.topic_id)
            partition.require_leader(info.leader_epoch)
            disk = partition.log.data_directory
            busy_s = _AGAIN_BUSY_S if disk in waited_for else _BUSY_S
            try:
                # As `list_offsets`: to readers that got an end from the earlier leader, a lower one would mean loss.
                log_start, latest = partition.log_start, partition.latest_offsets(busy_s)
            except RequestTimedOutError:
                waited_for.add(disk)
                return info
        except PylogError:
            return info  # another leads it, or what is committed is not known yet, or the log is offline: no offsets
        return PartitionInfo(
            partition=info.partition,
            leader=info.leader,
            leader_epoch=info.leader_epoch,
            replicas=info.replicas,
            isr=info.isr,
            log_start=log_start,
            high_watermark=latest.high_watermark,
            last_stable_offset=latest.last_stable_offset,
            lost=info.lost,
            eligible=info.eligible,
            damaged=info.damaged,
        )


def topic_info(topic: TopicState, disks: Mapping[int, DiskTroubles] | None = None) -> TopicInfo:
    """A topic as clients see it, without offsets. ``disks``: as `ClusterState.disks`."""
    damaged = _damaged(topic, disks or {})
    partitions = []
    for number, replicas in enumerate(topic.record.assignment):
        present = topic.partitions[number] if number < len(topic.partitions) else None
        partitions.append(
            PartitionInfo(
                partition=number,
                leader=None if present is None else present.state.leader,
                leader_epoch=-1 if present is None else present.state.leader_epoch,
                replicas=replicas,
                isr=() if present is None else present.state.isr,
                lost=() if present is None else present.state.lost,
                eligible=() if present is None else present.state.eligible,
                damaged=damaged.get(number, ()),
            )
        )
    return _info(topic.name, topic.record, tuple(partitions), dict(topic.config))


def _broker(broker_id: int, broker: BrokerRegistration, at: tuple[str, int], disks: DiskTroubles | None) -> BrokerInfo:
    """``at``: where the caller reaches it."""
    return BrokerInfo(
        broker_id=broker_id,
        host=at[0],
        port=at[1],
        epoch=broker.epoch,
        disks={} if disks is None else disks.directories,
        diverged=() if disks is None else disks.diverged,
    )


def _damaged(topic: TopicState, disks: Mapping[int, DiskTroubles]) -> dict[int, tuple[int, ...]]:
    """By partition of the topic, the replicas whose logs are damaged, where there are any."""
    found: dict[int, tuple[int, ...]] = {}
    for broker_id, troubles in sorted(disks.items()):
        for number in troubles.damaged.get(topic.name, ()):
            if number < len(topic.record.assignment) and broker_id in topic.record.assignment[number]:
                found[number] = (*found.get(number, ()), broker_id)
    return found


def planned_topic_info(name: str, record: TopicRecord, config: dict[str, str]) -> TopicInfo:
    """A topic that is not created yet: its partitions have no leaders."""
    return topic_info(
        TopicState(name=name, record=record, version=-1, partitions=(None,) * len(record.assignment), config=config)
    )


@functools.cache
def software_version() -> str:
    """The version of the installed distribution; "unknown" in a tree that was never installed."""
    try:
        return importlib.metadata.version("pyspark-log")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _info(name: str, record: TopicRecord, partitions: tuple[PartitionInfo, ...], config: dict[str, str]) -> TopicInfo:
    return TopicInfo(
        name=name,
        topic_id=record.topic_id,
        partitions=partitions,
        schemas=tuple(SchemaVersion(schema_id=version.schema_id, arrow=version.arrow) for version in record.schemas),
        key=record.key,
        config=config,
    )


def _log_dir(directory: LogDirectory) -> LogDirInfo:
    try:
        sizes = {str(at): _size(directory, at) for at in directory.partitions}
        usable = directory.usable_bytes
    except OSError as error:
        return LogDirInfo(
            path=str(directory.path), total_bytes=0, usable_bytes=0, partitions={}, error=error.strerror or str(error)
        )
    return LogDirInfo(path=str(directory.path), total_bytes=sum(sizes.values()), usable_bytes=usable, partitions=sizes)


def _size(directory: LogDirectory, at: TopicPartition) -> int:
    """The size of the segment files, from the disk, so that no log is loaded; 0 for one that was just deleted."""
    size = 0
    for segment in (directory.path / str(at)).glob("*.log"):
        try:
            size += segment.stat().st_size
        except FileNotFoundError:
            continue
    return size
