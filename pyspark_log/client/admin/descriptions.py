"""Descriptions put together from several brokers: a leader knows its partitions' offsets, each broker its own disks.

Rule: there is a description even if a broker does not answer; only what that broker knows is missing from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TypeAlias

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
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.leaders import ask_leaders
from pyspark_log.client.connection.topics import Topic, as_one, portions_of_names

_OFFSETS_LIMIT_S = 5.0
_ANSWER_LIMIT_S = 2.0

_Place: TypeAlias = tuple[bytes, int]  # a partition: the id of its topic, which no other topic ever has, and its number


def topics_with_offsets(cluster: Cluster, names: Iterable[str] | None = None) -> list[Topic]:
    """The topics (None: all) with the log start and high watermark of each partition, as its leader gives them.

    A partition that has no leader, or whose leader does not answer within seconds, has -1 for both. Raises as
    `Cluster.fetch_topics`.
    """
    deadline = cluster.deadline(_OFFSETS_LIMIT_S)
    wanted = None if names is None else tuple(names)
    topics: list[Topic] = []

    def find_leaders(found: Mapping[_Place, PartitionInfo]) -> dict[_Place, int | None]:
        topics[:] = cluster.fetch_topics(wanted)
        return {
            (topic.topic_id, each.partition): each.leader
            for topic in topics
            for each in topic.partitions
            if each.leader is not None and (topic.topic_id, each.partition) not in found
        }

    def ask(leader: int, led: list[_Place]) -> Iterable[tuple[_Place, PartitionInfo]]:
        topic_ids = {topic_id for topic_id, _ in led}
        of_leader = [topic.name for topic in topics if topic.topic_id in topic_ids]
        return _offsets_told_by(cluster, leader, of_leader, deadline).items()

    found, failure = ask_leaders(find_leaders, ask, deadline)
    if failure is not None and not topics:
        raise failure
    return [_with_offsets(topic, found) for topic in topics]


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


def _offsets_told_by(
    cluster: Cluster, leader: int, names: Iterable[str], deadline: Deadline
) -> dict[_Place, PartitionInfo]:
    """The partitions of these topics that the broker leads."""
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
    except NotAPylogBrokerError:  # another service has its port: as good as no answer
        return {}
    return {
        (topic.topic_id, partition.partition): partition
        for topic in response.topics
        for partition in topic.partitions
        if partition.high_watermark >= 0
    }


def _with_offsets(topic: Topic, found: Mapping[_Place, PartitionInfo]) -> Topic:
    """What a leader says of its partition replaces what the others believe."""
    partitions = tuple(found.get((topic.topic_id, each.partition), each) for each in topic.partitions)
    return dataclasses.replace(topic, info=msgspec.structs.replace(topic.info, partitions=partitions))
