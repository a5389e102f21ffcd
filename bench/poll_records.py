"""``Consumer.poll``, records as Python objects, beside confluent-kafka's ``consume`` of the same records from Kafka.

Each reads 2 M records of 100 bytes of one partition and touches every value; both brokers run on this machine, each
filled by its own producer before. The logs are in the page cache, and the time begins with the first records: the speed
of disks and the start of a client are other questions. confluent-kafka has the settings that make it fast
(`bench.kafka.settings`). Promised: as fast; ``poll_batches`` of the same records ten times as fast.
"""

from __future__ import annotations

from functools import partial

from bench import data
from bench.harness import Figure, at_least, paired
from bench.kafka.in_python import AT_ONCE, batches_speed, kafka_consumed_speed, polled_speed
from bench.kafka.peer import KafkaPeer
from bench.topics import BATCH_ROWS, fill
from bench.workspace import Workspace

ROWS = 2_000_000


def run(workspace: Workspace) -> list[Figure]:
    rows = workspace.scaled(ROWS)
    batch = data.values_batch(BATCH_ROWS)
    with (
        KafkaPeer(workspace.directory / "kafka") as kafka,
        kafka.topic(prefix="records") as theirs,
        workspace.topic(partitions=1, prefix="records") as ours,
    ):
        kafka.fill(theirs, batch.column("value").to_pylist(), copies=rows // BATCH_ROWS)
        fill(workspace.cluster, ours, batch, rows=rows, partitions=1)
        return [
            paired(
                name,
                partial(speed, workspace, ours, rows),
                lambda: kafka_consumed_speed(workspace, kafka, theirs, rows),
                unit="M records/s",
                peer_is=f"confluent-kafka's consume() of {AT_ONCE:,}, from Kafka",
                rounds=workspace.rounds,
                promises=(at_least(ratio),),
            )
            for name, speed, ratio in (
                ("poll, 100-byte records", polled_speed, 1.0),
                ("poll_batches", batches_speed, 10.0),
            )
        ]
