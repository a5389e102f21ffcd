"""The topics of a simulated group: always there to be read, growing, now and then recreated. No log, no disk.

A partition is one of one topic id; its records are the numbers from 0 to its end. ZooKeeper has what brokers need to
know of a topic, and is changed at once, as if a controller had done it.
"""

from __future__ import annotations

import random

from broker_runtime.groups.member import Partition
from broker_runtime.zookeeper.memory import MemoryClient
from broker_runtime.zookeeper.session import ANY_VERSION, Create, Delete, Set
from broker_runtime.zookeeper.znodes import TopicRecord, announcing, to_json, topic_path


class Topics:
    """See the module. ``client`` writes without delay and without fail."""

    def __init__(self, client: MemoryClient, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self.ids: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}
        self._ends: dict[Partition, int] = {}

    def create(self, name: str, partitions: int) -> None:
        """A new topic, with a new id."""
        topic_id = self._rng.randbytes(16)
        self.ids[name], self.counts[name] = topic_id, 0
        self._client.transaction([Create(topic_path(name), self._record(name, 0)), announcing((name,))])
        self.add_partitions(name, partitions)

    def add_partitions(self, name: str, more: int) -> None:
        """The topic gets so many more, with a few records each."""
        for number in range(self.counts[name], self.counts[name] + more):
            self._ends[Partition(name, self.ids[name], number)] = self._rng.randrange(10)
        self.counts[name] += more
        data = self._record(name, self.counts[name])
        self._client.transaction([Set(topic_path(name), data, ANY_VERSION), announcing((name,))])

    def delete(self, name: str) -> None:
        """The topic is gone, with all its records."""
        self._client.transaction([Delete(topic_path(name)), announcing((name,))])
        for partition in self.of([name]):
            del self._ends[partition]
        del self.ids[name], self.counts[name]

    def of(self, names: list[str]) -> list[Partition]:
        """The partitions of those of the topics that are there."""
        return [
            Partition(name, self.ids[name], number)
            for name in names
            if name in self.ids
            for number in range(self.counts[name])
        ]

    def end(self, partition: Partition) -> int:
        """Where the partition's records end; 0 for one that is gone."""
        return self._ends.get(partition, 0)

    def append(self, records: int) -> None:
        """So many more records in one partition."""
        if self._ends:
            self._ends[self._rng.choice(list(self._ends))] += records

    def _record(self, name: str, partitions: int) -> bytes:
        return to_json(TopicRecord(topic_id=self.ids[name], assignment=((1,),) * partitions))
