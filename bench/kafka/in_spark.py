"""Spark reads, writes and copies topics: pylog beside Kafka with Spark's own connector, in one session, in turns.

    source      2 M rows of 100 bytes from 2 partitions to ``noop``: a batch read, and one micro-batch; also beside a
                Python source that only yields the same batches
    typed       2 M rows of five columns (from Kafka: JSON, with ``from_json``), and the sum of one of the columns
    sink        2 M rows into 2 partitions: 100 bytes, and five columns (to Kafka: ``to_json``)
    copy        topic to topic, key and value, one micro-batch; the ceiling is a bare source into a sink that drops
    micro-batch of one row, to ``noop``: the median of 40; of rows that were there before the query, and of rows that
                come one by one, each after the micro-batch of the one before

Logs are in the page cache. A batch's time is the action's, a micro-batch's is Spark's own ``triggerExecution``. Both
sides get their typed rows from the same expressions, through their own sinks. pylog's sink writes each row once, in a
transaction; Kafka's connector has none.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench import bare_spark, data
from bench.harness import Figure, compared, in_turns, paired
from bench.kafka.settings import SPARK_READS, SPARK_WRITES, SYNCED, UNSYNCED
from bench.kafka.workspace import KafkaWorkspace
from bench.micro_batch import MICRO_BATCHES, median_micro_batch_ms
from bench.sink import FIVE_COLUMNS, VALUE, check_count, numbers
from bench.source import batch_speed, micro_batch_speed
from bench.topics import BATCH_ROWS, fill, rows_per_batch

ROWS = 2_000_000
PARTITIONS = 2
JSON_SCHEMA = "carrier string, flight int, distance bigint, delay double, at timestamp"
KAFKA = "Kafka with Spark's connector"
BARE = "a Python source that yields the same batches"
UNIT = "M rows/s"
_ARRIVAL_LIMIT_S = 120.0

Speed = Callable[[], float]


def run(workspace: KafkaWorkspace) -> Iterator[Figure]:
    rows = workspace.scaled(ROWS)
    with ExitStack() as stack:
        ours = stack.enter_context(workspace.topic(partitions=PARTITIONS, prefix="values", config=UNSYNCED))
        theirs = stack.enter_context(workspace.kafka.topic(partitions=PARTITIONS, prefix="values"))
        fill_values(workspace, ours, theirs, rows)
        yield from _source(workspace, ours, theirs, rows)
        yield from _copy(workspace, ours, theirs, rows)
    yield from _typed(workspace, rows)
    yield from _sink(workspace, "100-byte values", VALUE, None, rows)
    yield from _sink(workspace, "5 typed columns", FIVE_COLUMNS, data.TYPED, rows)
    yield from _micro_batch(workspace)


# --- options and topics ------------------------------------------------------------------------------------------


def pylog_source(workspace: KafkaWorkspace, topic: str, **options: str) -> dict[str, str]:
    servers = {"pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
    return {**servers, "subscribe": topic, "startingOffsets": "earliest", **options}


def kafka_source(workspace: KafkaWorkspace, topic: str, **options: str) -> dict[str, str]:
    servers = {"kafka.bootstrap.servers": workspace.kafka.bootstrap_servers}
    return {**servers, "subscribe": topic, "startingOffsets": "earliest", **SPARK_READS, **options}


def pylog_sink(workspace: KafkaWorkspace, topic: str) -> dict[str, str]:
    return {"pylog.bootstrap.servers": workspace.cluster.bootstrap_servers, "topic": topic}


def kafka_sink(workspace: KafkaWorkspace, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": workspace.kafka.bootstrap_servers, "topic": topic, **SPARK_WRITES}


def fill_values(workspace: KafkaWorkspace, ours: str, theirs: str, rows: int) -> None:
    """The same values of 100 bytes into a topic of each."""
    batch = data.values_batch(BATCH_ROWS)
    fill(workspace.cluster, ours, batch, rows=rows, partitions=PARTITIONS)
    copies = rows // BATCH_ROWS
    workspace.kafka.fill(theirs, batch.column("value").to_pylist(), copies=copies, partitions=PARTITIONS)


def as_json(frame: DataFrame) -> DataFrame:
    """One column ``value``, as users put rows into Kafka."""
    return frame.select(F.to_json(F.struct("*")).alias("value"))


def from_json(frame: DataFrame, schema: str = JSON_SCHEMA) -> DataFrame:
    return frame.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")


# --- comparisons -------------------------------------------------------------------------------------------------


def _with_ceiling(
    workspace: KafkaWorkspace, name: str, ours: Speed, kafka: Speed, bare: Speed, bare_is: str
) -> Iterator[Figure]:
    """pylog beside Kafka and beside a ceiling, in the same rounds."""
    contestants = [lambda: (ours(),), lambda: (kafka(),), lambda: (bare(),)]
    measured = in_turns(name, contestants, rounds=workspace.rounds)
    mine, theirs, ceiling = ([value for (value,) in each] for each in measured)
    yield compared(name, mine, theirs, unit=UNIT, peer_is=KAFKA)
    yield compared(f"{name}, beside the ceiling", mine, ceiling, unit=UNIT, peer_is=bare_is)
    yield compared(f"{name}, Kafka beside the ceiling", theirs, ceiling, unit=UNIT, peer_is=bare_is, note="ours: Kafka")


def _source(workspace: KafkaWorkspace, ours: str, theirs: str, rows: int) -> Iterator[Figure]:
    batch_rows = rows_per_batch(workspace.cluster, ours)
    bare = {"shape": "kafka", "rows": str(rows), "batchRows": str(batch_rows)}
    for name, speed in (("batch", batch_speed), ("micro-batch", micro_batch_speed)):
        yield from _with_ceiling(
            workspace,
            f"Spark source, 100-byte values, {name}",
            partial(speed, workspace, "pylog", pylog_source(workspace, ours), rows),
            partial(speed, workspace, "kafka", kafka_source(workspace, theirs), rows),
            partial(speed, workspace, bare_spark.SOURCE, bare, rows),
            f"{BARE} ({batch_rows:,} rows each)",
        )


def _copy(workspace: KafkaWorkspace, ours: str, theirs: str, rows: int) -> Iterator[Figure]:
    batch_rows = rows_per_batch(workspace.cluster, ours)
    bare = {"shape": "kafka", "rows": str(rows), "batchRows": str(batch_rows)}

    def copied(source: str, options: dict[str, str], sink: str, into: dict[str, str]) -> float:
        return micro_batch_speed(
            workspace, source, options, rows, columns=lambda frame: frame.select("key", "value"), sink=sink, into=into
        )

    def by_pylog() -> float:
        with workspace.topic(partitions=PARTITIONS, prefix="copy", config=UNSYNCED) as topic:
            speed = copied("pylog", pylog_source(workspace, ours), "pylog", pylog_sink(workspace, topic))
            check_count(workspace, topic, rows)
            return speed

    def by_kafka() -> float:
        with workspace.kafka.topic(partitions=PARTITIONS, prefix="copy") as topic:
            speed = copied("kafka", kafka_source(workspace, theirs), "kafka", kafka_sink(workspace, topic))
            workspace.kafka.check_count(topic, rows)
            return speed

    yield from _with_ceiling(
        workspace,
        "topic to Spark to topic, 100-byte values",
        by_pylog,
        by_kafka,
        lambda: copied(bare_spark.SOURCE, bare, bare_spark.SINK, {}),
        f"{BARE}, into a Python sink that drops them",
    )


def _typed(workspace: KafkaWorkspace, rows: int) -> Iterator[Figure]:
    with ExitStack() as stack:
        ours = stack.enter_context(
            workspace.topic(partitions=PARTITIONS, schema=data.TYPED, prefix="typed", config=UNSYNCED)
        )
        theirs = stack.enter_context(workspace.kafka.topic(partitions=PARTITIONS, prefix="typed"))
        frame = numbers(workspace, FIVE_COLUMNS, rows)
        _write(frame, "pylog", pylog_sink(workspace, ours))
        _write(as_json(frame), "kafka", kafka_sink(workspace, theirs))
        yield paired(
            "Spark source, 5 typed columns, batch",
            lambda: batch_speed(workspace, "pylog", pylog_source(workspace, ours), rows),
            lambda: batch_speed(workspace, "kafka", kafka_source(workspace, theirs), rows, columns=from_json),
            unit=UNIT,
            peer_is=f"{KAFKA}: JSON, from_json",
            rounds=workspace.rounds,
        )
        expected = sum(range(0, rows, 1)) * 0.25

        def summed(source: str, options: dict[str, str], columns: Callable[[DataFrame], DataFrame]) -> float:
            workspace.warm_logs()
            loaded = workspace.spark.read.format(source).options(**options).load()
            started = time.perf_counter()
            (row,) = columns(loaded).agg(F.sum("delay")).collect()
            took_s = time.perf_counter() - started
            assert row[0] == expected, f"{source}: the sum is {row[0]}, not {expected}"
            return rows / 1e6 / took_s

        yield paired(
            "Spark source, 1 of 5 typed columns, summed",
            lambda: summed("pylog", pylog_source(workspace, ours, columns="delay"), lambda frame: frame),
            lambda: summed("kafka", kafka_source(workspace, theirs), lambda frame: from_json(frame, "delay double")),
            unit=UNIT,
            peer_is=f"{KAFKA}: JSON, from_json of this column alone",
            rounds=workspace.rounds,
        )


def _sink(
    workspace: KafkaWorkspace, name: str, expressions: tuple[str, ...], schema: pa.Schema | None, rows: int
) -> Iterator[Figure]:
    frame = numbers(workspace, expressions, rows)
    for_kafka = frame if schema is None else as_json(frame)

    def by_pylog(config: dict[str, str]) -> float:
        with workspace.topic(partitions=PARTITIONS, schema=schema, prefix="sink", config=config) as topic:
            speed = rows / 1e6 / _write(frame, "pylog", pylog_sink(workspace, topic))
            check_count(workspace, topic, rows)
            return speed

    def by_kafka() -> float:
        with workspace.kafka.topic(partitions=PARTITIONS, prefix="sink") as topic:
            speed = rows / 1e6 / _write(for_kafka, "kafka", kafka_sink(workspace, topic))
            workspace.kafka.check_count(topic, rows)
            return speed

    contestants = [lambda: (by_pylog(UNSYNCED),), lambda: (by_pylog(SYNCED),), lambda: (by_kafka(),)]
    measured = in_turns(f"Spark sink, {name}", contestants, rounds=workspace.rounds)
    unsynced, synced, theirs = ([value for (value,) in each] for each in measured)
    peer_is = KAFKA if schema is None else f"{KAFKA}: to_json"
    yield compared(f"Spark sink, {name}", unsynced, theirs, unit=UNIT, peer_is=peer_is)
    yield compared(
        f"Spark sink, {name}, pylog synced", synced, theirs, unit=UNIT, peer_is=f"{peer_is}, which syncs nothing"
    )


def _write(frame: DataFrame, sink: str, options: dict[str, str]) -> float:
    """The seconds that a batch write takes."""
    started = time.perf_counter()
    frame.write.format(sink).options(**options).mode("append").save()
    return time.perf_counter() - started


def _micro_batch(workspace: KafkaWorkspace) -> Iterator[Figure]:
    rows = 10 if workspace.quick else MICRO_BATCHES
    shared = {"unit": "ms", "peer_is": KAFKA, "rounds": workspace.rounds, "note": "lower is better"}
    one = data.values_batch(1)
    (value,) = one.column("value").to_pylist()
    with (
        workspace.topic(partitions=1, prefix="micro-batch", config=UNSYNCED) as ours,
        workspace.kafka.topic(partitions=1, prefix="micro-batch") as theirs,
    ):
        fill(workspace.cluster, ours, one, rows=rows, partitions=1)
        workspace.kafka.fill(theirs, [value], copies=rows)
        slowly = {"maxOffsetsPerTrigger": "1"}
        yield paired(
            "Spark, a micro-batch of 1 row that was there before",
            lambda: median_micro_batch_ms(workspace, "pylog", pylog_source(workspace, ours, **slowly), rows),
            lambda: median_micro_batch_ms(workspace, "kafka", kafka_source(workspace, theirs, **slowly), rows),
            **shared,
        )

    def by_pylog() -> float:
        from pyspark_log import Producer

        with (
            workspace.topic(partitions=1, prefix="arriving", config=UNSYNCED) as topic,
            Producer(workspace.cluster.bootstrap_servers) as producer,
        ):
            options = pylog_source(workspace, topic)
            return _arriving_ms(workspace, "pylog", options, rows, lambda: producer.send(topic, value).result(30))

    def by_kafka() -> float:
        with workspace.kafka.topic(partitions=1, prefix="arriving") as topic:
            producer = workspace.kafka.producer()

            def send() -> None:
                workspace.kafka.produce_each(producer, topic, [value])
                workspace.kafka.flush(producer)

            return _arriving_ms(workspace, "kafka", kafka_source(workspace, topic), rows, send)

    yield paired("Spark, a micro-batch of 1 row that has just come", by_pylog, by_kafka, **shared)


def _arriving_ms(
    workspace: KafkaWorkspace, source: str, options: dict[str, str], rows: int, send: Callable[[], object]
) -> float:
    """The median ``triggerExecution`` of micro-batches of one row, without the first, which starts workers."""
    frame = workspace.spark.readStream.format(source).options(**options).load()
    checkpoint = workspace.directory / f"checkpoint-{uuid.uuid4().hex}"
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    took_ms: dict[int, float] = {}
    try:
        for number in range(rows):
            send()
            due_s = time.monotonic() + _ARRIVAL_LIMIT_S
            while len(took_ms) <= number:
                assert time.monotonic() < due_s, f"{source}: no micro-batch within {_ARRIVAL_LIMIT_S:g} s"
                time.sleep(0.005)
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        assert progress["numInputRows"] == 1, (
                            f"{source}: a micro-batch of {progress['numInputRows']} rows"
                        )
                        took_ms[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
    finally:
        query.stop()
    return statistics.median(list(took_ms.values())[1:])
