"""What Spark's settings, and the connector's options, bring on either side: each alone, and together, beside none.

    arrow        ``spark.sql.execution.arrow.maxRecordsPerBatch=100000``: larger batches to Python
    sockets      ``spark.python.unix.domain.socket.enabled=true``: Unix sockets between Java and Python
    checkpoint   ``spark.sql.streaming.checkpointFileManagerClass``: the one that writes by Hadoop's ``FileSystem``;
                 Spark's default starts a process (``stat``) for each file that it renames on a local disk
    options      the connector's, from `bench.kafka.settings`

Each is measured in a session of its own, after a run that is discarded: a batch read and a batch write of 1 M 100-byte
values, and a micro-batch of one row. Only the checkpoint's setting and the connector's options can matter to Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from bench import data
from bench.harness import Figure, compared, in_turns
from bench.kafka.in_spark import PARTITIONS, fill_values, kafka_sink, kafka_source, pylog_sink, pylog_source
from bench.kafka.settings import SPARK_READS, SPARK_WRITES, UNSYNCED
from bench.kafka.workspace import KafkaWorkspace
from bench.micro_batch import median_micro_batch_ms
from bench.sink import VALUE, numbers
from bench.source import batch_speed
from bench.topics import fill
from bench.workspace import CHECKPOINTS_BY_FILE_SYSTEM

ROWS = 1_000_000
MICRO_BATCHES = 20
WARMUPS = 3
SETTINGS = {
    "arrow": {"spark.sql.execution.arrow.maxRecordsPerBatch": "100000"},
    "sockets": {"spark.python.unix.domain.socket.enabled": "true"},
    "checkpoint": CHECKPOINTS_BY_FILE_SYSTEM,
}
NONE = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.python.unix.domain.socket.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": "",
}
MEASURED = (("source, batch", "M rows/s"), ("sink, batch", "M rows/s"), ("a micro-batch of 1 row", "ms"))


def run(workspace: KafkaWorkspace) -> Iterator[Figure]:
    rows = workspace.scaled(ROWS)
    micro_rows = 10 if workspace.quick else MICRO_BATCHES
    one = data.values_batch(1)
    with (
        workspace.topic(partitions=PARTITIONS, prefix="settings", config=UNSYNCED) as ours,
        workspace.kafka.topic(partitions=PARTITIONS, prefix="settings") as theirs,
        workspace.topic(partitions=1, prefix="settings-rows", config=UNSYNCED) as our_rows,
        workspace.kafka.topic(prefix="settings-rows") as their_rows,
    ):
        fill_values(workspace, ours, theirs, rows)
        fill(workspace.cluster, our_rows, one, rows=micro_rows, partitions=1)
        workspace.kafka.fill(their_rows, one.column("value").to_pylist(), copies=micro_rows)

        def written(sink: str, options: Mapping[str, str]) -> float:
            started = time.perf_counter()
            numbers(workspace, VALUE, rows).write.format(sink).options(**options).mode("append").save()
            return rows / 1e6 / (time.perf_counter() - started)

        def pylog_speeds() -> Sequence[float]:
            slowly = pylog_source(workspace, our_rows, maxOffsetsPerTrigger="1")
            read = batch_speed(workspace, "pylog", pylog_source(workspace, ours), rows)
            with workspace.topic(partitions=PARTITIONS, prefix="settings-sink", config=UNSYNCED) as topic:
                wrote = written("pylog", pylog_sink(workspace, topic))
            return read, wrote, median_micro_batch_ms(workspace, "pylog", slowly, micro_rows)

        def kafka_speeds(*, options: bool) -> Sequence[float]:
            without = () if options else (*SPARK_READS, *SPARK_WRITES)
            slowly = _less(kafka_source(workspace, their_rows, maxOffsetsPerTrigger="1"), without)
            read = batch_speed(workspace, "kafka", _less(kafka_source(workspace, theirs), without), rows)
            with workspace.kafka.topic(partitions=PARTITIONS, prefix="settings-sink") as topic:
                wrote = written("kafka", _less(kafka_sink(workspace, topic), without))
            return read, wrote, median_micro_batch_ms(workspace, "kafka", slowly, micro_rows)

        together = {name: value for settings in SETTINGS.values() for name, value in settings.items()}
        yield from _beside_none(workspace, "pylog", {**SETTINGS, "all three": together}, pylog_speeds, pylog_speeds)
        yield from _beside_none(
            workspace,
            "Kafka",
            {"checkpoint": CHECKPOINTS_BY_FILE_SYSTEM, "options": {}, "both": CHECKPOINTS_BY_FILE_SYSTEM},
            lambda: kafka_speeds(options=False),
            lambda: kafka_speeds(options=True),
        )
    workspace.restart_spark()


def _less(options: Mapping[str, str], without: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in without}


def _beside_none(
    workspace: KafkaWorkspace,
    side: str,
    variants: Mapping[str, Mapping[str, str]],
    plain: Callable[[], Sequence[float]],
    with_options: Callable[[], Sequence[float]],
) -> Iterator[Figure]:
    """Every variant of the settings beside a session with none of them. ``with_options``: what those run whose name
    says that the connector's options are theirs."""

    def measured(settings: Mapping[str, str], speeds: Callable[[], Sequence[float]]) -> Sequence[float]:
        configured = {name: value for name, value in {**NONE, **settings}.items() if value}
        workspace.restart_spark(configured)
        speeds()
        return speeds()

    contestants: list[Callable[[], Sequence[float]]] = [
        partial(measured, settings, plain if name == "checkpoint" else with_options)
        for name, settings in variants.items()
    ]
    contestants.append(lambda: measured({}, plain))
    workspace.restart_spark({name: value for name, value in NONE.items() if value})  # the JVM keeps the first ones
    for _ in range(WARMUPS):  # or the first session would be compared with others in a JVM that it has warmed
        plain()
    *results, none = in_turns(f"Spark settings, {side}", contestants, rounds=workspace.rounds, warmups=0)
    for name, with_them in zip(variants, results, strict=True):
        for place, (what, unit) in enumerate(MEASURED):
            yield compared(
                f"{side}, {what}: {name}",
                [each[place] for each in with_them],
                [each[place] for each in none],
                unit=unit,
                peer_is="the same with none of the settings",
                note="lower is better" if unit == "ms" else "",
            )
