"""What a frame costs by its rows, by the size of its values, by its columns; one partition, one broker.

rows_per_frame  one column of 8 bytes, so that even 100,000 rows are one frame (1 MiB is where frames are cut)
value_sizes     `send` and `poll` of single records, batched as they come; and one record to its acknowledgement
columns         1,000 rows of 8 bytes in each column
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from bench.growth.table import Axis
from bench.topics import earliest_consumer, poll_rows
from bench.workspace import Workspace

_TURNS = 5


def rows_per_frame(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    schema = pa.schema([("n", pa.int64())])
    for rows in (1, 10, 100, 1_000) if workspace.quick else (1, 10, 100, 1_000, 10_000, 100_000):
        batch = pa.RecordBatch.from_arrays([pa.array(np.arange(rows, dtype=np.int64))], schema=schema)
        with workspace.topic(partitions=1, schema=schema, prefix="growth") as topic:
            _produce_and_consume(workspace, axis, rows, topic, batch, frames=max(100, min(500, 5_000_000 // rows)))


def value_sizes(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import Producer

    servers = workspace.cluster.bootstrap_servers
    for size in (10, 100, 1_000, 10_000) if workspace.quick else (10, 100, 1_000, 10_000, 100_000, 1_000_000):
        value = bytes(size)
        records = max(80, min(50_000, 80_000_000 // size))
        with workspace.topic(partitions=1, prefix="growth") as topic:
            for name, once, per, turns in (
                ("send, a record", partial(_send_records, servers, topic, value, records), records, _TURNS),
                ("poll, a record", partial(_poll_records, workspace, topic, records * _TURNS), records * _TURNS, 2),
            ):
                axis.measure(size, name, once, times=turns, per=per, unit="µs", shape="linear", floor=2.0)
        with workspace.topic(partitions=1, prefix="growth") as topic, Producer(servers, linger_ms=0) as producer:

            def acknowledged(topic: str = topic, value: bytes = value, producer: Producer = producer) -> None:
                producer.send(topic, value).result(10)

            acknowledged()
            axis.measure(size, "acknowledgement", acknowledged, times=200, unit="ms", shape="linear", floor=0.5)


def columns(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    rows, frames = 10_000, 4
    for count in (1, 10) if workspace.quick else (1, 10, 50, 100, 200):
        schema = pa.schema([(f"c{number:03}", pa.int64()) for number in range(count)])
        values = np.random.default_rng(1).integers(0, 1 << 40, (count, rows))
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in values], schema=schema)
        with workspace.topic(partitions=1, schema=schema, prefix="growth") as topic:
            _produce_and_consume(workspace, axis, count, topic, batch, frames, "10,000 rows")
            one = partial(_read, workspace, topic, rows * frames * _TURNS, ["c000"])
            per = frames * _TURNS
            axis.measure(
                count, "read of 1 column, 10,000 rows", one, times=3, per=per, unit="µs", shape="flat", floor=20.0
            )


def _produce_and_consume(
    workspace: Workspace, axis: Axis, at: float, topic: str, batch: pa.RecordBatch, frames: int, of: str = "a frame"
) -> None:
    """Sends the batch so often, `_TURNS` times, and gets all of them back."""
    rows, every = batch.num_rows * frames * _TURNS, frames * _TURNS
    for name, once, per, turns in (
        (f"send_batch, {of}", partial(_send, workspace, topic, batch, frames), frames, _TURNS),
        (f"poll_batches, {of}", partial(_poll, workspace, topic, rows), every, 3),
        (f"read, {of}", partial(_read, workspace, topic, rows), every, 3),
    ):
        axis.measure(at, name, once, times=turns, per=per, unit="µs", shape="linear", floor=20.0)


def _send(workspace: Workspace, topic: str, batch: pa.RecordBatch, frames: int) -> None:
    from pyspark_log import Producer

    with Producer(workspace.cluster.bootstrap_servers) as producer:
        for _ in range(frames):
            producer.send_batch(topic, batch, partition=0)
        producer.flush(timeout=300)


def _send_records(servers: str, topic: str, value: bytes, records: int) -> None:
    from pyspark_log import Producer

    with Producer(servers) as producer:
        for _ in range(records):
            producer.send(topic, value)
        producer.flush(timeout=300)


def _poll(workspace: Workspace, topic: str, rows: int) -> None:
    with earliest_consumer(workspace.cluster, topic) as consumer:
        poll_rows(consumer, rows)


def _poll_records(workspace: Workspace, topic: str, records: int) -> None:
    with earliest_consumer(workspace.cluster, topic) as consumer:
        seen = 0
        while seen < records:
            polled = consumer.poll(timeout=30, max_records=10_000)
            assert polled, f"nothing more after {seen:,} of {records:,} records"
            seen += len(polled)


def _read(workspace: Workspace, topic: str, rows: int, columns: list[str] | None = None) -> None:
    from pyspark_log import read

    found = read(topic, columns=columns, bootstrap_servers=workspace.cluster.bootstrap_servers)
    seen = sum(batch.num_rows for batch in found)
    assert seen == rows, f"{seen:,} rows instead of {rows:,}"
