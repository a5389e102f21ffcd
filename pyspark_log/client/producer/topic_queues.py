"""What a producer holds of one topic: a queue per partition, and where records without a key go next.

Rule: records without a key go round robin, exactly: two records over two partitions are one each. The rows of a record
batch are spread in contiguous slices whose sizes differ by at most one, and round robin continues behind the last of
them. With ``partitioner=sticky`` all records without a key go to the sticky partition, which changes with each batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.settings import parse_size, resolve
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.producer.partition_queue import PartitionQueue
from pyspark_log.client.producer.partitioner import (
    PartitionFunction,
    check_partition,
    partition_for_key,
    partitions_for_keys,
)
from pyspark_log.client.producer.row_check import RowCheck

_KEYS_REMEMBERED = 16_384
_FRAME_OVERHEAD_BYTES = 4 << 10  # header, directory and Arrow's own, of a frame of records


class TopicQueues:
    """One topic. Changed only under the accumulator's lock, except for `queue_of_key`."""

    def __init__(self, topic: Topic, partitioner: str | PartitionFunction, batch_bytes: int) -> None:
        self.topic = topic
        self.max_message_bytes = max_message_bytes(topic)
        self._wanted_bytes = batch_bytes
        self.partitions: list[PartitionQueue] = []
        self.unkeyed: Iterator[PartitionQueue] = iter(())  # of each next record without a key
        self.rows = RowCheck(topic.name, topic.schema) if topic.is_typed else None
        self._partitioner = partitioner
        self._next_partition = 0
        self._has_opened_batch = False  # sticky: the first batch is opened in the first partition
        self.queue_of_key: dict[bytes, PartitionQueue] = {}  # of keys that were seen before
        self.grow(topic)

    def grow(self, topic: Topic) -> list[PartitionQueue]:
        """Takes a newer description of the topic; returns the queues of added partitions. If the schema is new, the
        caller has sealed the open batches."""
        if topic.schema is not self.topic.schema and topic.is_typed:
            self.rows = RowCheck(topic.name, topic.schema)
        for queue in self.partitions:
            queue.schema = topic.schema
        self.topic = topic
        self.max_message_bytes = max_message_bytes(topic)
        batch_bytes = max(1, min(self._wanted_bytes, self.max_message_bytes - _FRAME_OVERHEAD_BYTES))
        for queue in self.partitions:
            queue.batch_bytes = batch_bytes
        new = [
            PartitionQueue(topic.name, topic.topic_id, partition, topic.schema, batch_bytes)
            for partition in range(len(self.partitions), len(topic.partitions))
        ]
        if new:
            self.partitions = [*self.partitions, *new]
            self.queue_of_key = {}
            self.continue_unkeyed_at(self._next_partition)
        return new

    @property
    def is_plain(self) -> bool:
        """Whether bytes without a key may be added to the next queue as they are."""
        return self.rows is None and self._partitioner == "round_robin"

    @property
    def is_given_up(self) -> bool:
        """Whether the topic is gone: another object stands for one that is created again."""
        return any(queue.given_up is not None for queue in self.partitions)

    def queue_of_new_batch(self, queue: PartitionQueue) -> PartitionQueue:
        """A batch of records without a key is about to be opened in ``queue``: the queue to open it in, which with
        sticky partitioning is that of the next partition."""
        if self._partitioner != "sticky":
            return queue
        self.continue_unkeyed_at(queue.partition + (1 if self._has_opened_batch else 0))
        self._has_opened_batch = True
        return self.partitions[self._next_partition]

    def continue_unkeyed_at(self, partition: int) -> None:
        """The next record without a key goes to this partition (sticky: all of them, until the next batch)."""
        count = len(self.partitions)
        self._next_partition = partition % count
        if self._partitioner == "sticky":
            self.unkeyed = itertools.repeat(self.partitions[self._next_partition])
        else:
            order = [*self.partitions[self._next_partition :], *self.partitions[: self._next_partition]]
            self.unkeyed = itertools.cycle(order)

    def partition_of(self, key: bytes | None, partition: int | None) -> PartitionQueue | None:
        """The queue of a record with this key or explicit partition; None: the next of `unkeyed`."""
        known = self.queue_of_key  # first: `grow` replaces it last, and none of the new one may be from before
        queues = self.partitions
        if partition is not None:
            return queues[check_partition(self.topic.name, partition, len(queues))]
        if callable(self._partitioner):
            chosen = self._partitioner(self.topic.name, key, len(queues))
            return queues[check_partition(self.topic.name, chosen, len(queues))]
        if key is None:
            return None
        found = known.get(key)
        if found is None:
            if len(known) >= _KEYS_REMEMBERED:
                known.clear()
            found = known[key] = queues[partition_for_key(key, len(queues))]
        return found

    def shares(
        self, batch: pa.RecordBatch, keys: pa.Array | None, partition: int | None
    ) -> list[tuple[PartitionQueue, np.ndarray | slice]]:
        """The rows of ``batch`` for each partition: indices, or a slice where they are contiguous."""
        queues, rows = self.partitions, batch.num_rows
        if partition is not None:
            return [(queues[check_partition(self.topic.name, partition, len(queues))], slice(0, rows))]
        if keys is not None and (callable(self._partitioner) or keys.null_count < rows):
            return [(queues[p], which) for p, which in self._by_key(keys, len(queues))]
        return [(queues[p], which) for p, which in self._slices(rows, len(queues))]

    def _by_key(self, keys: pa.Array, count: int) -> list[tuple[int, np.ndarray | slice]]:
        if callable(self._partitioner):
            name = self.topic.name
            chosen = [check_partition(name, self._partitioner(name, k, count), count) for k in keys.to_pylist()]
            found = np.array(chosen, np.int32)
        else:
            found = partitions_for_keys(keys, count)
            nulls = np.flatnonzero(found < 0)
            if len(nulls):
                found = found.copy()
                first = next(self.unkeyed).partition
                found[nulls] = (first + np.arange(len(nulls))) % count
                self.continue_unkeyed_at(first + len(nulls))
        order = np.argsort(found, kind="stable")  # stable: rows of one partition keep their order
        bounds = np.searchsorted(found[order], np.arange(count + 1))
        return [(p, order[bounds[p] : bounds[p + 1]]) for p in range(count) if bounds[p] < bounds[p + 1]]

    def _slices(self, rows: int, count: int) -> list[tuple[int, np.ndarray | slice]]:
        first = next(self.unkeyed).partition
        if self._partitioner == "sticky":
            self.continue_unkeyed_at(first + 1)
            return [(first, slice(0, rows))]
        each, over = divmod(rows, count)
        shared: list[tuple[int, np.ndarray | slice]] = []
        start = 0
        for i in range(count):
            length = each + (1 if i < over else 0)
            if length:
                shared.append(((first + i) % count, slice(start, start + length)))
            start += length
        self.continue_unkeyed_at(first + over)
        return shared


def key_column(batch: pa.RecordBatch, schema: TopicSchema) -> pa.Array | None:
    """The column that chooses partitions, if the batch has it."""
    name = schema.key if schema.is_typed else "key"
    return batch.column(name) if name is not None and name in batch.schema.names else None


def max_message_bytes(topic: Topic) -> int:
    """The largest frame that the topic takes: ``max.message.bytes``, and never more than a segment."""
    own, usual = topic.info.config, resolve("topic")
    largest = own.get("max.message.bytes", usual.max_message_bytes)
    return min(parse_size(largest), parse_size(own.get("segment.bytes", usual.segment_bytes)))
