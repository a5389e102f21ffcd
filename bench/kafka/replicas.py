"""Three brokers, three replicas, ``acks=all``, at least two in sync, nobody syncs: pylog beside Kafka.

Batches (beside confluent-kafka's records, as in `in_python`) and single records into one partition, 100-byte values;
and one record at a time until it is acknowledged, p50 and p99. On one machine, so every byte is written three times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import data
from bench.harness import Figure, compared, in_turns
from bench.kafka.latencies import RECORDS, both_percentiles, kafka_times_ms, pylog_times_ms
from bench.kafka.peer import KafkaPeer
from bench.kafka.settings import UNSYNCED
from bench.kafka.workspace import KafkaWorkspace
from bench.topics import BATCH_ROWS, temporary_topic

ROWS = 1_000_000
REPLICAS = 3
KAFKA_CONFIG = {"min.insync.replicas": "2"}
"""pylog's default for three replicas."""


def run(workspace: KafkaWorkspace) -> Iterator[Figure]:
    copies = workspace.scaled(ROWS) // BATCH_ROWS
    records = workspace.scaled(RECORDS)
    batch = data.values_batch(BATCH_ROWS)
    values = batch.column("value").to_pylist()
    settings = {"offsets.topic.replication.factor": str(REPLICAS)}
    with KafkaPeer(workspace.directory / "kafka-three", brokers=REPLICAS, settings=settings) as kafka:
        cluster, admin = workspace.three_brokers
        ours = {"partitions": 1, "replication_factor": REPLICAS, "config": UNSYNCED}

        def by_pylog(send: Callable[[Any, str], None]) -> float:
            from pyspark_log import Producer

            with (
                temporary_topic(admin, prefix="replicated", **ours) as topic,
                Producer(cluster.bootstrap_servers, acks="all") as producer,
            ):
                producer.send(topic, values[0]).result(60)
                started = time.perf_counter()
                for _ in range(copies):
                    send(producer, topic)
                producer.flush(timeout=300)
                return copies * BATCH_ROWS / 1e6 / (time.perf_counter() - started)

        def send_each(producer: Any, topic: str) -> None:
            for value in values:
                producer.send(topic, value)

        def by_kafka() -> float:
            with kafka.topic(replicas=REPLICAS, config=KAFKA_CONFIG) as topic:
                producer = kafka.producer(acks="all")
                producer.produce(topic, values[0])
                kafka.flush(producer)
                started = time.perf_counter()
                for _ in range(copies):
                    kafka.produce_each(producer, topic, values)
                kafka.flush(producer)
                return copies * BATCH_ROWS / 1e6 / (time.perf_counter() - started)

        contestants = [
            lambda: (by_pylog(lambda producer, topic: producer.send_batch(topic, batch)),),
            lambda: (by_pylog(send_each),),
            lambda: (by_kafka(),),
        ]
        measured = in_turns("3 replicas, produce", contestants, rounds=workspace.rounds)
        batches, each, theirs = ([value for (value,) in one] for one in measured)
        for what, results in (("batches", batches), ("one record a call", each)):
            yield compared(
                f"3 replicas, Python, {what}: produce",
                results,
                theirs,
                unit="M records/s",
                peer_is="confluent-kafka's produce(), acks=all",
            )

        def pylog_ms() -> list[float]:
            with temporary_topic(admin, prefix="replicated", **ours) as topic:
                return pylog_times_ms(cluster.bootstrap_servers, topic, records)

        def kafka_ms() -> list[float]:
            with kafka.topic(replicas=REPLICAS, config=KAFKA_CONFIG) as topic:
                return kafka_times_ms(kafka, topic, records)

        yield from both_percentiles(
            workspace, "3 replicas, a record to its acknowledgement, nobody syncs", pylog_ms, kafka_ms
        )
