"""Spark's sink: 4 M rows into 2 partitions, acknowledged and fdatasynced, beside a Python sink that drops its batches.

Both in one session, `local[2]`, fed by the same cheap DataFrame (numbers made in the JVM). Promised: 60 % of the
dropping sink for rows of 100 bytes, 80 % for five typed columns. The topic has ``flush.mode=ack``, the default.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from bench import bare_spark, data
from bench.harness import Figure, at_least, paired
from bench.workspace import Workspace

ROWS = 4_000_000
PARTITIONS = 2
VALUE = ("unhex(repeat('5a', 100)) as value",)
FIVE_COLUMNS = (
    "elt(cast(id % 4 as int) + 1, 'UA', 'AA', 'DL', 'B6') as carrier",
    "cast(id % 9000 as int) as flight",
    "id as distance",
    "id * 0.25D as delay",
    "timestamp_millis(1700000000000 + id) as at",
)


def run(workspace: Workspace) -> Iterator[Figure]:
    yield _compare(workspace, "sink, 100-byte rows", VALUE, None, 0.6)
    yield _compare(workspace, "sink, 5 typed columns", FIVE_COLUMNS, data.TYPED, 0.8)


def _compare(
    workspace: Workspace, name: str, expressions: tuple[str, ...], schema: pa.Schema | None, promise: float
) -> Figure:
    rows = workspace.scaled(ROWS)

    def into_pylog() -> float:
        return write_speed(workspace, expressions, schema, rows)

    def dropped() -> float:
        started = time.perf_counter()
        numbers(workspace, expressions, rows).write.format(bare_spark.SINK).mode("append").save()
        return rows / 1e6 / (time.perf_counter() - started)

    return paired(
        name,
        into_pylog,
        dropped,
        unit="M rows/s",
        peer_is="a Python sink that drops its Arrow batches",
        rounds=workspace.rounds,
        warmups=2,
        promises=(at_least(promise),),
    )


def write_speed(workspace: Workspace, expressions: tuple[str, ...], schema: pa.Schema | None, rows: int) -> float:
    """Millions of rows per second of one batch write into a new topic. ``expressions``: of each row's ``id``."""
    with workspace.topic(partitions=PARTITIONS, schema=schema, prefix="sink") as topic:
        options = {"topic": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
        frame = numbers(workspace, expressions, rows)
        started = time.perf_counter()
        frame.write.format("pylog").options(**options).mode("append").save()
        took = time.perf_counter() - started
        check_count(workspace, topic, rows)
    return rows / 1e6 / took


def numbers(workspace: Workspace, expressions: tuple[str, ...], rows: int) -> DataFrame:
    """Rows made of numbers in the JVM, in two partitions. ``expressions``: of each row's ``id``."""
    return workspace.spark.range(0, rows, 1, 2).selectExpr(*expressions)


def check_count(workspace: Workspace, topic: str, rows: int) -> None:
    """Raises `AssertionError` unless the topic has so many rows."""
    from pyspark_log import read

    stored = sum(batch.num_rows for batch in read(topic, bootstrap_servers=workspace.cluster.bootstrap_servers))
    assert stored == rows, f"{stored:,} rows are in the log, {rows:,} were written"
