"""Descriptions put together from several brokers: a leader knows its partitions' offsets, each broker its own disks.

Rule: there is a description even if a broker does not answer; only what that broker knows is missing from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import msgspec

from broker_runtime.contract.errors import NotAPylogBrokerError, RetriableError
from broker_runtime.contract.model import TopicDescription
from broker_runtime.contract.requests import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirInfo,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
)
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic, as_one, portions_of_names

_OFFSETS_LIMIT_S = 5.0
_ANSWER_LIMIT_S = 2.0


def topics_with_offsets(cluster: Cluster, names: Iterable[str] | None = None) -> list[Topic]:
    """The topics (None: all) with the log start and high watermark of each partition, as its leader tells them.

    A partition that has no leader, or whose leader does not answer within seconds, has -1 for both. Raises as
    `Cluster.fetch_topics`.
    """
    deadline, backoff = cluster.deadline(_OFFSETS_LIMIT_S), Backoff()
    wanted = None if names is None else tuple(names)
    found: dict[tuple[bytes, int], PartitionInfo] = {}
    while True:
        topics = cluster.fetch_topics(wanted)
        unasked: dict[int, set[str]] = {}
        for topic in topics:
            for partition in topic.partitions:
                if partition.leader is not None and (topic.topic_id, partition.partition) not in found:
                    unasked.setdefault(partition.leader, set()).add(topic.name)
        for leader, of_leader in unasked.items():
            found.update(_ask_leader(cluster, leader, of_leader, deadline))
        if _has_all_that_are_led(topics, found) or deadline.expired:
            return [_with_offsets(topic, found) for topic in topics]
        deadline.sleep(backoff.next_s())


def as_new(topic: TopicDescription) -> TopicDescription:
    """A topic that was created just now, with its partitions' first offsets, for which no leader has to be asked."""
    partitions = tuple(dataclasses.replace(each, log_start=0, high_watermark=0) for each in topic.partitions)
    return dataclasses.replace(topic, partitions=partitions)


def log_dirs(cluster: Cluster) -> dict[int, tuple[LogDirInfo, ...]]:
    """Each registered broker's data directories; for one that does not answer, one without a path that says why."""
    found: dict[int, tuple[LogDirInfo, ...]] = {}
    for broker_id in sorted(cluster.describe().brokers):
        try:
            found[broker_id] = cluster.call(
                "describe_log_dirs",
                DescribeLogDirsRequest(),
                DescribeLogDirsResponse,
                to=broker_id,
                timeout_s=_OFFSETS_LIMIT_S,
            ).log_dirs
        except (RetriableError, NotAPylogBrokerError) as error:
            silent = LogDirInfo(path="", total_bytes=0, usable_bytes=0, partitions={}, error=str(error))
            found[broker_id] = (silent,)
    return found


def _ask_leader(
    cluster: Cluster, leader: int, names: Iterable[str], deadline: Deadline
) -> dict[tuple[bytes, int], PartitionInfo]:
    try:
        response = as_one(
            cluster.call(
                "metadata",
                MetadataRequest(topics=some, with_offsets=True),
                MetadataResponse,
                to=leader,
                timeout_s=deadline.remaining_s(_ANSWER_LIMIT_S),
            )
            for some in portions_of_names(sorted(names))
        )
    except (RetriableError, NotAPylogBrokerError):
        return {}
    return {
        (topic.topic_id, partition.partition): partition
        for topic in response.topics
        for partition in topic.partitions
        if partition.high_watermark >= 0
    }


def _has_all_that_are_led(topics: Iterable[Topic], found: Mapping[tuple[bytes, int], PartitionInfo]) -> bool:
    return all(
        partition.leader is None or (topic.topic_id, partition.partition) in found
        for topic in topics
        for partition in topic.partitions
    )


def _with_offsets(topic: Topic, found: Mapping[tuple[bytes, int], PartitionInfo]) -> Topic:
    """A leader's description of its partition replaces that of other brokers."""
    partitions = tuple(found.get((topic.topic_id, each.partition), each) for each in topic.partitions)
    return dataclasses.replace(topic, info=msgspec.structs.replace(topic.info, partitions=partitions))
