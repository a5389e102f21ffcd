"""The option ``where``: 4 GB of rows of 20 eight-byte columns and a ``day``, the same in all rows of a frame.

    1 % match     beside reading everything; promised: at least 20 times as fast
    none match    beside a read of no records, which only asks for the offsets; promised: at most twice as long
    all match     beside the same read without ``where``; promised: at most 5 % slower

By `read`, which collects nothing, and by Spark, whose own start of a job is in both sides. The client counts the rows
of each read, so a frame that is missing, or one too many, ends the comparison.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from bench import data
from bench.harness import Figure, Promise, at_least, paired
from bench.topics import BATCH_ROWS
from bench.workspace import Workspace

ROWS = 24_000_000
PARTITIONS = 2
SCHEMA = pa.schema([("day", pa.int32()), *data.WIDE])
AT_MOST_TWICE = Promise(text="≥ 50%", at_least=0.5)


def run(workspace: Workspace) -> Iterator[Figure]:
    rows = workspace.scaled(ROWS)
    days = rows // BATCH_ROWS
    with workspace.topic(partitions=PARTITIONS, schema=SCHEMA, prefix="where") as topic:
        _fill(workspace, topic, days)
        workspace.warm_logs()
        hundredth = f"day BETWEEN {days // 2} AND {days // 2 + days // 100 - 1}"
        few = (hundredth, days // 100 * BATCH_ROWS)
        none = (f"day > {days}", 0)
        every = ("day >= 0", rows)
        shared = {"unit": "reads/s", "rounds": workspace.rounds}
        for by, reads in (("read", _reads_per_s), ("Spark", _spark_reads_per_s)):
            judged = by == "read"
            yield paired(
                f"where, 1 % of the frames match, {by}",
                lambda reads=reads: reads(workspace, topic, *few),
                lambda reads=reads: reads(workspace, topic, None, rows),
                peer_is="everything is read",
                promises=(at_least(20),) if judged else (),
                **shared,
            )
            yield paired(
                f"where, nothing matches, {by}",
                lambda reads=reads: reads(workspace, topic, *none),
                lambda reads=reads: reads(workspace, topic, "_metadata.offset < 0", 0, is_empty=True),
                peer_is="a read of no offsets",
                promises=(AT_MOST_TWICE,) if judged else (),
                **shared,
            )
            yield paired(
                f"where, everything matches, {by}",
                lambda reads=reads: reads(workspace, topic, *every),
                lambda reads=reads: reads(workspace, topic, None, rows),
                peer_is="the same without where",
                promises=(at_least(0.95),),
                **shared,
            )


def _fill(workspace: Workspace, topic: str, days: int) -> None:
    from pyspark_log import Producer

    batch = data.wide_batch(BATCH_ROWS)
    with Producer(workspace.cluster.bootstrap_servers) as producer:
        for day in range(days):
            column = pa.repeat(pa.scalar(day, pa.int32()), BATCH_ROWS)
            made = pa.RecordBatch.from_arrays([column, *batch.columns], schema=SCHEMA)
            producer.send_batch(topic, made, partition=day % PARTITIONS)
        producer.flush(timeout=600)


def _reads_per_s(
    workspace: Workspace, topic: str, where: str | None, expected: int, *, is_empty: bool = False
) -> float:
    from pyspark_log import read

    began = time.perf_counter()
    reader = read(
        topic,
        start="latest" if is_empty else "earliest",
        where=where,
        bootstrap_servers=workspace.cluster.bootstrap_servers,
    )
    found = sum(batch.num_rows for batch in reader)
    took = time.perf_counter() - began
    assert found == expected, f"{found:,} rows instead of {expected:,}"
    return 1 / took


def _spark_reads_per_s(
    workspace: Workspace, topic: str, where: str | None, expected: int, *, is_empty: bool = False
) -> float:
    options = {"subscribe": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
    if where is not None:
        options["where"] = where
    began = time.perf_counter()
    rows = workspace.spark.read.format("pylog").options(**options).load()
    (found,) = rows.selectExpr("count(c07)").first()
    took = time.perf_counter() - began
    assert found == expected, f"{found:,} rows instead of {expected:,}"
    return 1 / took
