"""``Consumer.poll``, records as Python objects, beside confluent-kafka's ``consume`` of the same records from Kafka.

Each reads 2 M records of 100 bytes of one partition and touches every value; both brokers run on this machine, each
filled by its own producer before. The logs are in the page cache, and the time begins with the first records: the speed
of disks and the start of a client are other questions. Promised: as fast; ``poll_batches`` of the same records ten
times as fast.
"""

from __future__ import annotations

import time

from bench import data
from bench.harness import Figure, at_least, paired
from bench.kafka_peer import KafkaPeer
from bench.topics import BATCH_ROWS, earliest_consumer, fill
from bench.workspace import Workspace

ROWS = 2_000_000
AT_ONCE = 5_000


def run(workspace: Workspace) -> list[Figure]:
    rows = workspace.scaled(ROWS)
    batch = data.values_batch(BATCH_ROWS)
    values = batch.column("value").to_pylist()
    with KafkaPeer(workspace.directory / "kafka") as kafka, workspace.topic(partitions=1, prefix="records") as topic:
        kafka.fill("records", values, rows // BATCH_ROWS)
        fill(workspace.cluster, topic, batch, rows=rows, partitions=1)

        def consumed() -> float:
            workspace.warm_logs()
            consumer = kafka.consumer("records")
            first = size = seen = len(consumer.consume(AT_ONCE, timeout=30))
            started = time.perf_counter()
            while seen < rows:
                messages = consumer.consume(AT_ONCE, timeout=30)
                for message in messages:
                    size += len(message.value())
                seen += len(messages)
            took_s = time.perf_counter() - started
            consumer.close()
            return (seen - first) / took_s / 1e6

        def polled() -> float:
            workspace.warm_logs()
            with earliest_consumer(workspace.cluster, topic) as consumer:
                first = size = seen = len(consumer.poll(30, max_records=AT_ONCE))
                started = time.perf_counter()
                while seen < rows:
                    records = consumer.poll(30, max_records=AT_ONCE)
                    for record in records:
                        size += len(record.value)
                    seen += len(records)
                return (seen - first) / (time.perf_counter() - started) / 1e6

        def batches() -> float:
            workspace.warm_logs()
            with earliest_consumer(workspace.cluster, topic) as consumer:
                first = seen = sum(each.batch.num_rows for each in consumer.poll_batches(30))
                started = time.perf_counter()
                while seen < rows:
                    seen += sum(each.batch.num_rows for each in consumer.poll_batches(30))
                return (seen - first) / (time.perf_counter() - started) / 1e6

        peer_is = "confluent-kafka's consume() of as many at once, from Kafka"
        return [
            paired(
                name, ours, consumed, unit="M records/s", peer_is=peer_is, rounds=workspace.rounds,
                promises=(at_least(ratio),),
            )
            for name, ours, ratio in (("poll, 100-byte records", polled, 1.0), ("poll_batches", batches, 10.0))
        ]  # fmt: skip
