"""Python, without Spark: records and batches into a producer and out of a consumer, beside confluent-kafka's.

One partition, 100-byte values, nobody syncs. Each producer's time ends when every record is acknowledged; a consumer's
begins with its first records, and it touches every value. confluent-kafka knows records only, so pylog's batches stand
beside whichever of its calls was faster in the same round: one record each, or a list of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import data
from bench.harness import Figure, compared, in_turns
from bench.kafka.peer import KafkaPeer
from bench.kafka.settings import UNSYNCED
from bench.kafka.workspace import KafkaWorkspace
from bench.topics import BATCH_ROWS, earliest_consumer, fill

PRODUCED = 1_000_000
CONSUMED = 2_000_000
AT_ONCE = 5_000
"""Records of one call, where it returns several."""
UNIT = "M records/s"

Speed = Callable[[], float]


def run(workspace: KafkaWorkspace) -> Iterator[Figure]:
    yield from _produce(workspace)
    yield from _consume(workspace)


# --- produce -----------------------------------------------------------------------------------------------------


def _produce(workspace: KafkaWorkspace) -> Iterator[Figure]:
    records = workspace.scaled(PRODUCED)
    batch = data.values_batch(BATCH_ROWS)
    values = batch.column("value").to_pylist()
    messages = [{"value": value} for value in values]
    copies = records // BATCH_ROWS

    def by_pylog(send: Callable[[Any, str], None]) -> float:
        from pyspark_log import Producer

        with (
            workspace.topic(partitions=1, prefix="produce", config=UNSYNCED) as topic,
            Producer(workspace.cluster.bootstrap_servers) as producer,
        ):
            producer.send(topic, values[0]).result(60)
            started = time.perf_counter()
            for _ in range(copies):
                send(producer, topic)
            producer.flush(timeout=300)
            return records / 1e6 / (time.perf_counter() - started)

    def send_each(producer: Any, topic: str) -> None:
        for value in values:
            producer.send(topic, value)

    def send_batch(producer: Any, topic: str) -> None:
        producer.send_batch(topic, batch)

    def by_kafka(produce: Callable[..., None], what: list[Any]) -> float:
        with workspace.kafka.topic(prefix="produce") as topic:
            producer = workspace.kafka.producer()
            producer.produce(topic, values[0])
            workspace.kafka.flush(producer)
            started = time.perf_counter()
            for _ in range(copies):
                produce(producer, topic, what)
            workspace.kafka.flush(producer)
            took_s = time.perf_counter() - started
            workspace.kafka.check_count(topic, records + 1)
            return records / 1e6 / took_s

    sent, batches, each, lists = _measured(
        workspace,
        "Python, produce",
        lambda: by_pylog(send_each),
        lambda: by_pylog(send_batch),
        lambda: by_kafka(workspace.kafka.produce_each, values),
        lambda: by_kafka(workspace.kafka.produce_list, messages),
    )
    yield compared("Python, one record a call: produce", sent, each, unit=UNIT, peer_is="confluent-kafka's produce()")
    fastest = [max(pair) for pair in zip(each, lists, strict=True)]
    peer_is = "confluent-kafka's produce() or produce_batch(), the faster"
    yield compared("Python, batches: produce", batches, fastest, unit=UNIT, peer_is=peer_is)


# --- consume -----------------------------------------------------------------------------------------------------


def _consume(workspace: KafkaWorkspace) -> Iterator[Figure]:
    records = workspace.scaled(CONSUMED)
    batch = data.values_batch(BATCH_ROWS)
    with (
        workspace.topic(partitions=1, prefix="consume", config=UNSYNCED) as ours,
        workspace.kafka.topic(prefix="consume") as theirs,
    ):
        fill(workspace.cluster, ours, batch, rows=records, partitions=1)
        workspace.kafka.fill(theirs, batch.column("value").to_pylist(), copies=records // BATCH_ROWS)
        each, lists, batches, polled, consumed = _measured(
            workspace,
            "Python, consume",
            lambda: iterated_speed(workspace, ours, records),
            lambda: polled_speed(workspace, ours, records),
            lambda: batches_speed(workspace, ours, records),
            lambda: kafka_polled_speed(workspace, workspace.kafka, theirs, records),
            lambda: kafka_consumed_speed(workspace, workspace.kafka, theirs, records),
        )
    yield compared("Python, one record a call: consume", each, polled, unit=UNIT, peer_is="confluent-kafka's poll()")
    peer_is = f"confluent-kafka's consume() of {AT_ONCE:,}"
    yield compared(f"Python, {AT_ONCE:,} records a call: consume", lists, consumed, unit=UNIT, peer_is=peer_is)
    fastest = [max(pair) for pair in zip(polled, consumed, strict=True)]
    peer_is = "confluent-kafka's poll() or consume(), the faster"
    yield compared("Python, batches: consume", batches, fastest, unit=UNIT, peer_is=peer_is)


def iterated_speed(workspace: Any, topic: str, records: int) -> float:
    """Millions of records per second out of a loop over pylog's consumer."""
    workspace.warm_logs()
    with earliest_consumer(workspace.cluster, topic) as consumer:
        size, started = 0, 0.0
        for number, record in enumerate(consumer, 1):
            started = started or time.perf_counter()
            size += len(record.value)
            if number == records:
                break
        return (records - 1) / 1e6 / (time.perf_counter() - started)


def polled_speed(workspace: Any, topic: str, records: int) -> float:
    """Millions of records per second out of pylog's ``poll`` of `AT_ONCE`."""
    workspace.warm_logs()
    with earliest_consumer(workspace.cluster, topic) as consumer:
        first = size = seen = len(consumer.poll(30, max_records=AT_ONCE))
        started = time.perf_counter()
        while seen < records:
            polled = consumer.poll(30, max_records=AT_ONCE)
            for record in polled:
                size += len(record.value)
            seen += len(polled)
        return (seen - first) / 1e6 / (time.perf_counter() - started)


def batches_speed(workspace: Any, topic: str, records: int) -> float:
    """Millions of records per second out of ``poll_batches``."""
    workspace.warm_logs()
    with earliest_consumer(workspace.cluster, topic) as consumer:
        first: int = sum(len(each) for each in consumer.poll_batches(30))
        seen = first
        started = time.perf_counter()
        while seen < records:
            seen += sum(len(each) for each in consumer.poll_batches(30))
        return (seen - first) / 1e6 / (time.perf_counter() - started)


def kafka_polled_speed(workspace: Any, kafka: KafkaPeer, topic: str, records: int) -> float:
    """Millions of records per second out of confluent-kafka's ``poll``."""
    workspace.warm_logs()
    consumer = kafka.consumer(topic)
    size = len(consumer.poll(30).value())
    started = time.perf_counter()
    for _ in range(records - 1):
        size += len(consumer.poll(30).value())
    took_s = time.perf_counter() - started
    consumer.close()
    return (records - 1) / 1e6 / took_s


def kafka_consumed_speed(workspace: Any, kafka: KafkaPeer, topic: str, records: int) -> float:
    """Millions of records per second out of confluent-kafka's ``consume`` of `AT_ONCE`."""
    workspace.warm_logs()
    consumer = kafka.consumer(topic)
    first = size = seen = len(consumer.consume(AT_ONCE, timeout=0.1)) or len(consumer.consume(1, timeout=30))
    started = time.perf_counter()
    while seen < records:
        messages = consumer.consume(min(AT_ONCE, records - seen), timeout=30)
        for message in messages:
            size += len(message.value())
        seen += len(messages)
    took_s = time.perf_counter() - started
    consumer.close()
    return (seen - first) / 1e6 / took_s


def _measured(workspace: KafkaWorkspace, name: str, *speeds: Speed) -> list[list[float]]:
    contestants = [lambda speed=speed: (speed(),) for speed in speeds]
    return [[value for (value,) in each] for each in in_turns(name, contestants, rounds=workspace.rounds)]
