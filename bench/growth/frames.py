"""What a frame costs by its rows, by the size of its values, by its columns; one partition, one broker.

rows_per_frame  one column of 8 bytes, so that even 100,000 rows are one frame (1 MiB is where frames are cut)
value_sizes     `send` and `poll` of single records, batched as they come; and one record to its acknowledgement
columns         1,000 rows of 8 bytes in each column
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.growth.table import Axis, fastest_s
from bench.topics import earliest_consumer, poll_rows
from bench.workspace import Workspace

_TURNS = 5


def rows_per_frame(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import read

    servers = workspace.cluster.bootstrap_servers
    schema = pa.schema([("n", pa.int64())])
    for rows in (1, 10, 100, 1_000) if workspace.quick else (1, 10, 100, 1_000, 10_000, 100_000):
        batch = pa.RecordBatch.from_arrays([pa.array(np.arange(rows, dtype=np.int64))], schema=schema)
        frames = max(20, min(500, 2_000_000 // rows))
        with workspace.topic(partitions=1, schema=schema, prefix="growth") as topic:
            produced_s = fastest_s(lambda: _send(servers, topic, batch, frames), _TURNS)  # noqa: B023
            every = rows * frames * _TURNS
            polled_s = fastest_s(lambda: _poll(workspace, topic, every), 3)  # noqa: B023
            read_s = fastest_s(lambda: _count(read(topic, bootstrap_servers=servers), every), 3)  # noqa: B023
        for name, value_s in (
            ("send_batch, a frame", produced_s / frames),
            ("poll_batches, a frame", polled_s / frames / _TURNS),
            ("read, a frame", read_s / frames / _TURNS),
        ):
            axis.add(rows, name, value_s * 1e6, unit="µs", shape="linear", floor=20.0)


def value_sizes(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import Producer

    servers = workspace.cluster.bootstrap_servers
    for size in (10, 100, 1_000, 10_000) if workspace.quick else (10, 100, 1_000, 10_000, 100_000, 1 << 20):
        value = bytes(size)
        records = max(40, min(50_000, 40_000_000 // size))
        with workspace.topic(partitions=1, prefix="growth") as topic:
            sent_s = fastest_s(lambda: _send_records(servers, topic, value, records), 3)  # noqa: B023
            polled_s = fastest_s(lambda: _poll_records(workspace, topic, records * 3), 3)  # noqa: B023
        with workspace.topic(partitions=1, prefix="growth") as topic, Producer(servers, linger_ms=0) as producer:
            producer.send(topic, value).result(10)
            acknowledged_s = fastest_s(lambda: producer.send(topic, value).result(10), 200)  # noqa: B023
        axis.add(size, "send, a record", sent_s / records * 1e6, unit="µs", shape="linear", floor=2.0)
        axis.add(size, "poll, a record", polled_s / records / 3 * 1e6, unit="µs", shape="linear", floor=2.0)
        axis.add(size, "acknowledgement", acknowledged_s * 1e3, unit="ms", shape="linear", floor=0.5)


def columns(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import read

    rows, frames = 1_000, 40
    servers = workspace.cluster.bootstrap_servers
    for count in (1, 10) if workspace.quick else (1, 10, 50, 100, 200):
        schema = pa.schema([(f"c{number:03}", pa.int64()) for number in range(count)])
        values = np.random.default_rng(1).integers(0, 1 << 40, (count, rows))
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in values], schema=schema)
        began_s = time.perf_counter()
        with workspace.topic(partitions=1, schema=schema, prefix="growth") as topic:
            axis.add(count, "create_topic", (time.perf_counter() - began_s) * 1e3, unit="ms", shape="flat", floor=10.0)
            produced_s = fastest_s(lambda: _send(servers, topic, batch, frames), _TURNS)  # noqa: B023
            every = rows * frames * _TURNS
            polled_s = fastest_s(lambda: _poll(workspace, topic, every), 3)  # noqa: B023
            all_s = fastest_s(lambda: _count(read(topic, bootstrap_servers=servers), every), 3)  # noqa: B023
            one_s = fastest_s(
                lambda: _count(read(topic, columns=["c000"], bootstrap_servers=servers), every),  # noqa: B023
                3,
            )
        for name, value_s in (
            ("send_batch, a frame", produced_s / frames),
            ("poll_batches, a frame", polled_s / frames / _TURNS),
            ("read all columns, a frame", all_s / frames / _TURNS),
        ):
            axis.add(count, name, value_s * 1e6, unit="µs", shape="linear", floor=20.0)
        axis.add(count, "read 1 column, a frame", one_s / frames / _TURNS * 1e6, unit="µs", shape="flat", floor=20.0)


def _send(servers: str, topic: str, batch: pa.RecordBatch, frames: int) -> None:
    from pyspark_log import Producer

    with Producer(servers) as producer:
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


def _count(reader: Any, rows: int) -> None:
    seen = sum(batch.num_rows for batch in reader)
    assert seen == rows, f"{seen:,} rows instead of {rows:,}"
