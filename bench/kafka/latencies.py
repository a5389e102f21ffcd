"""One record's time, p50 and p99 of 1,000 one after the other: to its acknowledgement, and to a waiting consumer.

    unsynced   acknowledged when the broker has it in memory (pylog: ``flush.mode=os``; Kafka: its default)
    synced     acknowledged when it is on the disk (pylog: its default; Kafka: ``flush.messages=1``)
    consumed   from the call of the producer until a consumer that waits has the record; unsynced

Values of 100 bytes, one partition, ``linger.ms=0`` on both sides, so that the path is measured and not the time in
which a producer waits for more records. Producer and consumer are in one process on either side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from bench.harness import Figure, compared, in_turns, percentile
from bench.kafka.peer import KafkaPeer
from bench.kafka.settings import KAFKA_SYNCED, SYNCED, UNSYNCED
from bench.kafka.workspace import KafkaWorkspace

RECORDS = 1_000
WARM = 100
PAUSE_S = 0.002
"""So long after a record has come, the consumer waits for the next one."""
VALUE = bytes(100)
PERCENTS = (50, 99)


def run(workspace: KafkaWorkspace) -> Iterator[Figure]:
    yield from both_percentiles(
        workspace,
        "a record to its acknowledgement, nobody syncs",
        lambda: pylog_acknowledged_ms(workspace, UNSYNCED),
        lambda: kafka_acknowledged_ms(workspace, {}),
    )
    yield from both_percentiles(
        workspace,
        "a record to its acknowledgement, each synced",
        lambda: pylog_acknowledged_ms(workspace, SYNCED),
        lambda: kafka_acknowledged_ms(workspace, KAFKA_SYNCED),
    )
    yield from both_percentiles(
        workspace,
        "a record from its producer to a waiting consumer",
        lambda: _pylog_consumed_ms(workspace),
        lambda: _kafka_consumed_ms(workspace),
    )


def both_percentiles(
    workspace: KafkaWorkspace, name: str, ours: Callable[[], list[float]], kafka: Callable[[], list[float]]
) -> Iterator[Figure]:
    """p50 and p99 of what both return, in ms, as a figure each."""

    def percentiles(times: Callable[[], list[float]]) -> list[float]:
        taken = times()
        return [percentile(taken, percent) for percent in PERCENTS]

    contestants = [lambda: percentiles(ours), lambda: percentiles(kafka)]
    mine, theirs = in_turns(name, contestants, rounds=workspace.rounds)
    for place, percent in enumerate(PERCENTS):
        yield compared(
            f"{name}, p{percent}",
            [each[place] for each in mine],
            [each[place] for each in theirs],
            unit="ms",
            peer_is="Kafka with confluent-kafka",
            note="lower is better",
        )


def pylog_acknowledged_ms(workspace: KafkaWorkspace, config: Mapping[str, str]) -> list[float]:
    """The times from ``send`` to the acknowledgement."""
    with workspace.topic(partitions=1, prefix="latency", config=config) as topic:
        return pylog_times_ms(workspace.cluster.bootstrap_servers, topic, workspace.scaled(RECORDS))


def pylog_times_ms(servers: str, topic: str, records: int) -> list[float]:
    from pyspark_log import Producer

    with Producer(servers, linger_ms=0) as producer:
        return _times_ms(lambda: producer.send(topic, VALUE).result(30), records)


def kafka_acknowledged_ms(workspace: KafkaWorkspace, config: Mapping[str, str]) -> list[float]:
    """The times from ``produce`` to the report of its delivery."""
    with workspace.kafka.topic(prefix="latency", config=config) as topic:
        return kafka_times_ms(workspace.kafka, topic, workspace.scaled(RECORDS))


def kafka_times_ms(kafka: KafkaPeer, topic: str, records: int) -> list[float]:
    producer = kafka.producer(linger_ms=0)
    reports: list[object] = []

    def once() -> None:
        reports.clear()
        producer.produce(topic, VALUE, on_delivery=lambda error, message: reports.append(error))
        while not reports:
            producer.poll(1)
        assert reports == [None], reports

    return _times_ms(once, records)


def _pylog_consumed_ms(workspace: KafkaWorkspace) -> list[float]:
    from pyspark_log import Consumer, Producer

    servers = workspace.cluster.bootstrap_servers
    with (
        workspace.topic(partitions=1, prefix="consumed", config=UNSYNCED) as topic,
        Producer(servers, linger_ms=0) as producer,
        Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):

        def once() -> None:
            producer.send(topic, VALUE)
            while not consumer.poll(1):
                pass

        return _times_ms(once, workspace.scaled(RECORDS), pause_s=PAUSE_S)


def _kafka_consumed_ms(workspace: KafkaWorkspace) -> list[float]:
    with workspace.kafka.topic(prefix="consumed") as topic:
        producer, consumer = workspace.kafka.producer(linger_ms=0), workspace.kafka.consumer(topic)

        def once() -> None:
            producer.produce(topic, VALUE)
            while consumer.poll(1) is None:
                pass

        try:
            return _times_ms(once, workspace.scaled(RECORDS), pause_s=PAUSE_S)
        finally:
            consumer.close()


def _times_ms(once: Callable[[], object], records: int, *, pause_s: float = 0.0) -> list[float]:
    """How long each call took, after `WARM` others."""
    times = []
    for number in range(WARM + records):
        started = time.perf_counter()
        once()
        if number >= WARM:
            times.append((time.perf_counter() - started) * 1e3)
        if pause_s:
            time.sleep(pause_s)
    return times
