"""Which partitions this broker hosts, and the typed refusals for all others.

Rule: looking up never blocks and never asks the network; the broker tells the registry what the cluster is.
Thread-safe: lookups read one dictionary, changes replace entries under a lock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import SchemaHistory
from broker_runtime.replication.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """A topic as the cluster has it, wherever its partitions are."""

    topic_id: bytes
    partition_count: int
    schemas: SchemaHistory


class PartitionRegistry:
    """The partitions hosted here, and the names and ids of all topics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, KnownTopic] = {}
        self._hosted: dict[TopicPartition, Partition] = {}

    # --- changes ---

    def know_topic(self, name: str, topic: KnownTopic) -> None:
        """The topic exists, or has more partitions or columns than before."""
        with self._lock:
            self._topics[name] = topic

    def forget_topic(self, name: str) -> list[Partition]:
        """The topic is gone. Its hosted partitions step down, are no longer served, and are returned (still open)."""
        with self._lock:
            self._topics.pop(name, None)
            gone = [self._hosted.pop(key) for key in sorted(self._hosted) if key.topic == name]
        for partition in gone:
            partition.step_down()
        return gone

    def host(self, partition: Partition) -> None:
        """Serves the partition from now on. Its topic must be known. A partition that it replaces steps down."""
        key = TopicPartition(partition.topic, partition.partition)
        with self._lock:
            assert key.topic in self._topics, f"{key} hosted before its topic is known"
            before = self._hosted.get(key)
            self._hosted[key] = partition
        if before is not None and before is not partition:
            before.step_down()

    def drop(self, at: TopicPartition) -> Partition | None:
        """Stops serving the partition. It steps down and is returned (still open); None if it was not hosted."""
        with self._lock:
            partition = self._hosted.pop(at, None)
        if partition is not None:
            partition.step_down()
        return partition

    def step_down_all(self) -> None:
        """Before the broker stops: every waiting reader and writer of every partition gets its answer now."""
        for partition in self.hosted():
            partition.step_down()

    # --- look-ups ---

    def hosted(self) -> list[Partition]:
        """All hosted partitions, in order."""
        with self._lock:
            return [self._hosted[key] for key in sorted(self._hosted)]

    def topic(self, name: str, topic_id: bytes | None = None) -> KnownTopic:
        """The topic. Raises `UnknownTopicOrPartitionError`, and `InconsistentTopicIdError` for another topic's id."""
        known = self._topics.get(name)
        if known is None:
            raise UnknownTopicOrPartitionError(f"no topic {name!r}")
        if topic_id is not None and topic_id != known.topic_id:
            raise InconsistentTopicIdError(
                f"topic {name!r} now has the id {known.topic_id.hex()}, not {topic_id.hex()}: it was recreated"
            )
        return known

    def topic_names(self) -> list[str]:
        """The names of all topics, sorted."""
        with self._lock:
            return sorted(self._topics)

    def find(self, topic: str, partition: int, topic_id: bytes | None = None) -> Partition:
        """The hosted partition, whether or not it leads.

        Raises as `topic`; `UnknownTopicOrPartitionError` for a number that the topic does not have, and
        `NotLeaderOrFollowerError` for a partition that another broker hosts.
        """
        known = self.topic(topic, topic_id)
        found = self._hosted.get(TopicPartition(topic, partition))
        if found is not None and found.topic_id == known.topic_id:
            return found
        if not 0 <= partition < known.partition_count:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {partition}, only 0 to {known.partition_count - 1}"
            )
        raise NotLeaderOrFollowerError(f"{topic}-{partition} is not on this broker")
