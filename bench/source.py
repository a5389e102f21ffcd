"""Spark's source: 4 M rows from 2 partitions to ``noop``, beside a Python source that only yields the same batches.

Both in one session, `local[2]`, as a batch read and as one micro-batch (`availableNow`, an empty checkpoint). Promised:
80 % of the bare source, for Kafka's columns with 100-byte values and for five typed columns. The bare source's
batches have as many rows as pylog's, whose logs are in the page cache. A batch read's time is the action's; a
micro-batch's is Spark's own ``triggerExecution``, because starting a query costs both the same second.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from bench import bare_spark, data
from bench.harness import Figure, at_least, paired
from bench.topics import BATCH_ROWS, fill, rows_per_batch
from bench.workspace import Workspace

ROWS = 4_000_000
PARTITIONS = 2
PROMISE = at_least(0.8)
Columns = Callable[[DataFrame], DataFrame]


def run(workspace: Workspace) -> Iterator[Figure]:
    yield from _compare(workspace, "kafka", data.values_batch(BATCH_ROWS), None)
    yield from _compare(workspace, "typed", data.typed_batch(BATCH_ROWS), data.TYPED)


def _compare(workspace: Workspace, shape: str, batch: pa.RecordBatch, schema: pa.Schema | None) -> Iterator[Figure]:
    rows = workspace.scaled(ROWS)
    with workspace.topic(partitions=PARTITIONS, schema=schema, prefix=f"source-{shape}") as topic:
        fill(workspace.cluster, topic, batch, rows=rows, partitions=PARTITIONS)
        batch_rows = rows_per_batch(workspace.cluster, topic)
        bare = {"shape": shape, "rows": str(rows), "batchRows": str(batch_rows)}
        pylog = {"subscribe": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
        pylog["startingOffsets"] = "earliest"
        described = f"a Python source that yields the same batches ({batch_rows:,} rows each)"
        shared = {"unit": "M rows/s", "peer_is": described, "rounds": workspace.rounds, "promises": (PROMISE,)}
        name = "Kafka's columns, 100-byte values" if shape == "kafka" else "5 typed columns"
        yield paired(
            f"source, {name}, batch",
            lambda: batch_speed(workspace, "pylog", pylog, rows),
            lambda: batch_speed(workspace, bare_spark.SOURCE, bare, rows),
            warmups=2,
            **shared,
        )
        yield paired(
            f"source, {name}, micro-batch",
            lambda: micro_batch_speed(workspace, "pylog", pylog, rows),
            lambda: micro_batch_speed(workspace, bare_spark.SOURCE, bare, rows),
            **shared,
        )


def batch_speed(
    workspace: Workspace, source: str, options: dict[str, str], rows: int, *, columns: Columns | None = None
) -> float:
    """Millions of rows per second of one batch read into ``noop``. ``columns``: what is made of them; None: all."""
    workspace.warm_logs()
    frame = workspace.spark.read.format(source).options(**options).load()
    started = time.perf_counter()
    to_nothing(frame if columns is None else columns(frame))
    return rows / 1e6 / (time.perf_counter() - started)


def to_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def micro_batch_speed(
    workspace: Workspace,
    source: str,
    options: dict[str, str],
    rows: int,
    *,
    columns: Columns | None = None,
    sink: str = "noop",
    into: dict[str, str] | None = None,
) -> float:
    """Millions of rows per second of the one micro-batch that reads them all; otherwise as `micro_batches`."""
    batches = micro_batches(workspace, source, options, rows, columns=columns, sink=sink, into=into)
    milliseconds = [took for took, _ in batches]
    assert len(milliseconds) == 1, f"{source} took {len(milliseconds)} micro-batches, not one"
    return rows / 1e3 / milliseconds[0]


def micro_batches(
    workspace: Workspace,
    source: str,
    options: dict[str, str],
    rows: int,
    *,
    columns: Columns | None = None,
    sink: str = "noop",
    into: dict[str, str] | None = None,
) -> list[tuple[int, int]]:
    """Runs a query to the current end; returns (milliseconds, rows) of each micro-batch with rows.

    ``columns``: what is made of the source's columns; None: all. ``into``: the options of ``sink``.
    """
    workspace.warm_logs()
    checkpoint = workspace.directory / f"checkpoint-{uuid.uuid4().hex}"
    frame = workspace.spark.readStream.format(source).options(**options).load()
    query = (
        (frame if columns is None else columns(frame))
        .writeStream.format(sink)
        .options(**(into or {}))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(600), f"{source} did not come to its end in 600 s"
    finally:
        query.stop()
    batches = [
        (progress.durationMs["triggerExecution"], progress.numInputRows)
        for progress in query.recentProgress
        if progress.numInputRows
    ]
    read = sum(count for _, count in batches)
    assert read == rows, f"{source} gave {read:,} rows of {rows:,}"
    return batches
