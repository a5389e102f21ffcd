"""What a broker costs: processor time per GB in and out, bytes on disk per row, and the way back after kill -9.

    processor  the broker process's own time (user and system) for 0.5 GB of 100-byte values from ``send_batch`` beside
               confluent-kafka's ``produce``, and to ``poll_batches`` beside its ``consume``; a GB is 10^9 bytes of
               values. What one core can carry is the inverse. Linux only: it reads ``/proc``
    disk       the segments of five typed columns that Spark's sinks wrote (Kafka: JSON), per codec
    ready      a broker with 4 GB in two partitions is killed and started: until it has acknowledged a record in each.
               Once at once, and again whenever it gives up (Kafka's does while ZooKeeper still has its registration),
               once after its registration has expired

Nobody syncs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from bench import data
from bench.harness import Figure, compared, in_turns
from bench.kafka.in_spark import as_json, kafka_sink, pylog_sink
from bench.kafka.peer import KafkaPeer
from bench.kafka.settings import UNSYNCED
from bench.kafka.workspace import KafkaWorkspace
from bench.memory import processor_s
from bench.sink import FIVE_COLUMNS, numbers
from bench.topics import BATCH_ROWS, earliest_consumer, fill, poll_rows

ROWS = 5_000_000
DISK_ROWS = 1_000_000
CODECS = ("none", "lz4", "zstd")
FULL_VALUES = 4_000_000
FULL_VALUE_BYTES = 1_000
FULL_PARTITIONS = 2
AT_ONCE = 5_000
_SESSION = {"zookeeper.session.timeout.ms": "6000"}
_SESSION_S = 6
_LOOK_S = 0.1


def run(workspace: KafkaWorkspace) -> Iterator[Figure]:
    yield from _processor(workspace)
    yield from _disk(workspace)
    yield from _ready_again(workspace)


# --- processor ---------------------------------------------------------------------------------------------------


def _processor(workspace: KafkaWorkspace) -> Iterator[Figure]:
    rows = workspace.scaled(ROWS)
    batch = data.values_batch(BATCH_ROWS)
    values = batch.column("value").to_pylist()
    gigabytes = rows * data.VALUE_BYTES / 1e9

    def used(pid: int, work: Callable[[], object]) -> float:
        before = processor_s(pid)
        work()
        return (processor_s(pid) - before) / gigabytes

    def by_pylog() -> tuple[float, float]:
        pid = workspace.cluster.pid(1)
        with workspace.topic(partitions=1, prefix="cost", config=UNSYNCED) as topic:
            taken_in = used(pid, lambda: fill(workspace.cluster, topic, batch, rows=rows, partitions=1))
            with earliest_consumer(workspace.cluster, topic) as consumer:
                return taken_in, used(pid, lambda: poll_rows(consumer, rows))

    def by_kafka() -> tuple[float, float]:
        pid = workspace.kafka.pid(1)
        with workspace.kafka.topic(prefix="cost") as topic:
            taken_in = used(pid, lambda: workspace.kafka.fill(topic, values, copies=rows // BATCH_ROWS))
            consumer = workspace.kafka.consumer(topic)
            try:
                return taken_in, used(pid, lambda: _consume(consumer, rows))
            finally:
                consumer.close()

    mine, theirs = in_turns(
        "broker's processor s/GB, in and out", [by_pylog, by_kafka], rounds=workspace.rounds, warmups=2
    )
    for place, what in enumerate(("in", "out")):
        ours, kafka = [each[place] for each in mine], [each[place] for each in theirs]
        note = f"lower is better; one core carries {_per_s(ours)} GB/s, Kafka's {_per_s(kafka)}"
        yield compared(
            f"broker's processor time per GB {what}", ours, kafka, unit="s/GB", peer_is="Kafka's broker", note=note
        )


def _per_s(seconds: list[float]) -> str:
    return f"{1 / sorted(seconds)[len(seconds) // 2]:.2g}"


def _consume(consumer: Any, rows: int) -> None:
    seen = 0
    while seen < rows:
        seen += len(consumer.consume(min(AT_ONCE, rows - seen), timeout=30))


# --- disk --------------------------------------------------------------------------------------------------------


def _disk(workspace: KafkaWorkspace) -> Iterator[Figure]:
    rows = workspace.scaled(DISK_ROWS)
    frame = numbers(workspace, FIVE_COLUMNS, rows)
    for codec in CODECS:
        with (
            workspace.topic(schema=data.TYPED, prefix="disk", config=UNSYNCED) as ours,
            workspace.kafka.topic(partitions=2, prefix="disk") as theirs,
        ):
            for_pylog = {**pylog_sink(workspace, ours), "pylog.compression.type": codec}
            frame.write.format("pylog").options(**for_pylog).mode("append").save()
            for_kafka = {**kafka_sink(workspace, theirs), "kafka.compression.type": codec}
            as_json(frame).write.format("kafka").options(**for_kafka).mode("append").save()
            yield compared(
                f"disk per row of 5 typed columns, {codec}",
                [_log_bytes(workspace.cluster, ours) / rows],
                [workspace.kafka.log_bytes(theirs) / rows],
                unit="B",
                peer_is="Kafka: JSON",
                note="lower is better",
            )


def _log_bytes(cluster: Any, topic: str) -> int:
    return sum(path.stat().st_size for each in cluster.log_dirs(1) for path in each.glob(f"{topic}-*/*.log"))


# --- ready again -------------------------------------------------------------------------------------------------


def _ready_again(workspace: KafkaWorkspace) -> Iterator[Figure]:
    from pyspark_log import Admin

    values = workspace.scaled(FULL_VALUES)
    rows = 1_000
    batch = data.one_value_column(rows, FULL_VALUE_BYTES)
    with (
        workspace.cluster_of("ready", settings=_SESSION) as cluster,
        KafkaPeer(workspace.directory / "kafka-ready", settings=_SESSION) as kafka,
        kafka.topic(partitions=FULL_PARTITIONS) as theirs,
    ):
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("full", partitions=FULL_PARTITIONS, config=UNSYNCED)
        fill(cluster, "full", batch, rows=values, partitions=FULL_PARTITIONS)
        copies = values // rows
        kafka.fill(theirs, batch.column("value").to_pylist(), copies=copies, partitions=FULL_PARTITIONS)

        def by_pylog() -> tuple[float, float]:
            at_once, later = (_ready_s(cluster, lambda: _pylog_serves(cluster), waits) for waits in (False, True))
            return at_once, later

        def by_kafka() -> tuple[float, float]:
            at_once, later = (_ready_s(kafka, lambda: _kafka_serves(kafka, theirs), waits) for waits in (False, True))
            return at_once, later

        what = f"ready again after kill -9 over {values * FULL_VALUE_BYTES / 1e9:.2g} GB"
        mine, others = in_turns(what, [by_pylog, by_kafka], rounds=min(3, workspace.rounds))
    note = f"lower is better; zookeeper.session.timeout.ms={_SESSION_S * 1000} on both sides"
    for place, how in enumerate(("started at once", "started when its registration had expired")):
        yield compared(
            f"{what}, {how}",
            [each[place] for each in mine],
            [each[place] for each in others],
            unit="s",
            peer_is="Kafka's broker",
            note=note,
        )


def _ready_s(peer: Any, serves: Callable[[], None], waits: bool) -> float:
    """Kills broker 1; returns the seconds from its start until it serves all partitions."""
    serves()  # what it has to look through is no longer closed in order
    peer.kill(1)
    if waits:
        time.sleep(_SESSION_S + 2)
        while isinstance(peer, KafkaPeer) and peer.has_registration(1):
            time.sleep(_LOOK_S)
    started = time.perf_counter()
    while True:
        with suppress(RuntimeError):  # it gave up
            peer.start(1)
            break
    serves()
    return time.perf_counter() - started


def _pylog_serves(cluster: Any) -> None:
    """Returns when a record is acknowledged in each partition."""
    from pyspark_log import Producer

    with Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        for partition in range(FULL_PARTITIONS):
            producer.send("full", b"", partition=partition).result(120)


def _kafka_serves(kafka: KafkaPeer, topic: str) -> None:
    producer = kafka.producer(linger_ms=0)
    for partition in range(FULL_PARTITIONS):
        producer.produce(topic, b"", partition=partition)
    kafka.flush(producer)
