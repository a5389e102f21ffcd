"""`Producer.send` is the same for records that take its fast paths as for all others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from broker_runtime.contract.errors import RecordTooLargeError
from pyspark_log import Producer
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.partitioner import partition_for_key
from pyspark_log.client.producer.topic_queues import TopicQueues
from tests.unit.client.consumer_samples import make_topic

PARTITIONS = 3


@pytest.fixture
def producer_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Producer]:
    """A producer of a topic without leaders: what is sent stays in its queues."""
    monkeypatch.setattr(Cluster, "topic", lambda _, name, **__: make_topic(name, leaders=[-1] * PARTITIONS))

    def made(**settings: Any) -> Producer:
        return Producer("127.0.0.1:1", linger_ms=600_000, **settings)

    return made


def queues_of(producer: Producer) -> TopicQueues:
    return producer._sender.queues_of("t")


def records_of(producer: Producer) -> list[list[tuple[object, bytes | None]]]:
    """Values and keys of each partition, in order."""
    queues = queues_of(producer).partitions
    return [list(itertools.zip_longest(queue.values, [] if queue.keys is None else queue.keys)) for queue in queues]


def test_records_of_a_key_keep_their_order_and_partition_on_every_path(producer_of: Callable[..., Producer]) -> None:
    """W8: a key that was seen before, one in another form, headers, a callback and records without a key."""
    producer = producer_of()
    try:
        for number in range(20):
            value = b"%d" % number
            given = [{"key": b"k"}, {"key": "k"}, {"key": bytearray(b"k")}, {"key": b"k", "headers": [("h", b"1")]}]
            future = producer.send("t", value, **given[number % 4])
            delivery, index = future
            assert (delivery.partition, index) == (partition_for_key(b"k", PARTITIONS), number)
        chosen = partition_for_key(b"k", PARTITIONS)
        assert records_of(producer)[chosen] == [(b"%d" % number, b"k") for number in range(20)]
        for _ in range(2 * PARTITIONS):
            producer.send("t", b"plain")
        assert [len(records) for records in records_of(producer)] == [22 if p == chosen else 2 for p in range(3)]
        assert records_of(producer)[chosen][-1] == (b"plain", None)
    finally:
        producer.abandon()


def test_memory_of_a_batch_is_that_of_its_records_on_every_path(producer_of: Callable[..., Producer]) -> None:
    """``batch.size`` and ``buffer.memory`` count a record alike, with a known key and with a new one."""
    producer = producer_of()
    try:
        rooms = []
        for _ in range(4):
            producer.send("t", bytes(100), b"key")
            rooms.append(queues_of(producer).partitions[partition_for_key(b"key", PARTITIONS)].room)
        assert {before - after for before, after in itertools.pairwise(rooms)} == {64 + 100 + 3}
    finally:
        producer.abandon()


def test_key_serializer_is_asked_for_every_key(producer_of: Callable[..., Producer]) -> None:
    """Also where the bytes that it is given are those of a key that was seen before."""
    producer = producer_of(key_serializer=lambda key: key[::-1])
    try:
        for key in (b"ab", b"ba", b"ba", b"ab"):
            producer.send("t", b"v", key)
        stored = [record for records in records_of(producer) for record in records]
        assert sorted(stored) == [(b"v", b"ab"), (b"v", b"ab"), (b"v", b"ba"), (b"v", b"ba")]
    finally:
        producer.abandon()


def test_large_record_with_a_known_key_is_refused(producer_of: Callable[..., Producer]) -> None:
    """As with any other."""
    producer = producer_of()
    try:
        producer.send("t", b"v", b"key")
        with pytest.raises(RecordTooLargeError):
            producer.send("t", bytes(queues_of(producer).max_message_bytes), b"key")
    finally:
        producer.abandon()


def test_known_keys_move_when_partitions_are_added(producer_of: Callable[..., Producer]) -> None:
    """W27: as in Kafka."""
    producer = producer_of()
    try:
        keys = [b"%d" % number for number in range(50)]
        for partitions in (PARTITIONS, PARTITIONS + 4):
            queues_of(producer).grow(make_topic("t", leaders=[-1] * partitions))
            for _ in range(2):
                for key in keys:
                    delivery, _index = producer.send("t", b"v", key)
                    assert delivery.partition == partition_for_key(key, partitions)
    finally:
        producer.abandon()
