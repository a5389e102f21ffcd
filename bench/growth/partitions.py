"""1 to 1,000 partitions of one topic, at one broker: its creation, metadata, the broker's start, Spark.

The work of Spark is the same at each point: 100,000 rows of 100 bytes, spread over the partitions, and for the
micro-batch one row.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from bench import data
from bench.growth.table import PROCESSOR, Axis, processor_s
from bench.source import micro_batches, to_nothing
from bench.workspace import Workspace

_ROWS = 100_000
_TURNS = 2
_MICRO_BATCHES = 6


def partitions(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import Admin

    axis.notes.append(f"Spark reads and writes {_ROWS:,} rows at each point; a micro-batch has one row.")
    for name, walk in (("broker", _walk_broker), ("spark", _walk_spark)):
        for count in (1, 10) if workspace.quick else (1, 10, 100, 1_000):
            with (
                workspace.cluster_of(f"partitions-{name}-{count}") as cluster,
                Admin(cluster.bootstrap_servers, request_timeout_ms=120_000) as admin,
            ):
                walk(workspace, axis, cluster, admin, count)
            print(f"  {name}: {count:,} done", file=sys.stderr, flush=True)


def _walk_broker(workspace: Workspace, axis: Axis, cluster: Any, admin: Any, count: int) -> None:
    def linear(name: str, once: Callable[[], object], times: int, floor_ms: float) -> None:
        axis.measure(count, name, once, times=times, unit="ms", shape="linear", floor=floor_ms)

    linear("create_topic", lambda: admin.create_topic("many", partitions=count), 1, 50)
    linear("send_batch to each, flush", lambda: _fill(cluster, count), 3, 50)
    linear("describe_topics", admin.describe_topics, 30, 2)
    all_of = {("many", number): "latest" for number in range(count)}
    linear("list_offsets of all", lambda: admin.list_offsets(all_of), 30, 2)
    for what, end in (("a clean stop", cluster.stop), ("kill -9", cluster.kill)):
        add_start(axis, count, f"start after {what}", cluster, end, 3)


def _walk_spark(workspace: Workspace, axis: Axis, cluster: Any, admin: Any, count: int) -> None:
    admin.create_topic("many", partitions=count)
    admin.create_topic("sunk", partitions=count)
    _fill(cluster, count)
    source = {"subscribe": "many", "pylog.bootstrap.servers": cluster.bootstrap_servers, "startingOffsets": "earliest"}
    sink = {"topic": "sunk", "pylog.bootstrap.servers": cluster.bootstrap_servers}
    for what, job in (("source", _reading(workspace, source)), ("sink", _writing(workspace, sink))):
        job()  # the first one starts workers
        axis.measure(count, f"Spark {what}, batch", job, times=_TURNS, unit="ms", shape="flat", floor=200)
    _one_by_one(cluster)
    used_s = processor_s()
    took_ms = sorted(took for took, _ in _micro_batches(workspace, cluster))
    used_ms = (processor_s() - used_s) * 1e3 / len(took_ms)
    name = "Spark micro-batch of 1 row"
    axis.add(count, name, took_ms[0], unit="ms", shape="flat", floor=50)
    axis.add(count, f"{name}: {PROCESSOR}", used_ms, unit="ms", shape="flat", floor=100)


def _fill(cluster: Any, count: int) -> None:
    """`_ROWS` rows in all, the same number to each partition, each partition's in one batch."""
    from pyspark_log import Producer

    batch = data.values_batch(_ROWS // count)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.send_batch("many", batch, partition=number)
        producer.flush(timeout=300)


def _reading(workspace: Workspace, options: dict[str, str]) -> Callable[[], None]:
    return lambda: to_nothing(workspace.spark.read.format("pylog").options(**options).load())


def _writing(workspace: Workspace, options: dict[str, str]) -> Callable[[], None]:
    frame = workspace.spark.range(0, _ROWS, 1, 2).selectExpr("unhex(repeat('5a', 100)) as value")
    return lambda: frame.write.format("pylog").options(**options).mode("append").save()


def _one_by_one(cluster: Any) -> None:
    """One row to one partition, so often as there are to be micro-batches."""
    from pyspark_log import Producer

    with Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        for _ in range(_MICRO_BATCHES):
            producer.send_batch("many", data.values_batch(1), partition=0)
        producer.flush(timeout=60)


def _micro_batches(workspace: Workspace, cluster: Any) -> list[tuple[int, int]]:
    """Begins where all partitions but the first have been read to their ends."""
    from pyspark_log import Admin, TopicPartition

    with Admin(cluster.bootstrap_servers, request_timeout_ms=120_000) as admin:
        count = len(next(topic for topic in admin.describe_topics() if topic.name == "many").partitions)
        latest = admin.list_offsets({TopicPartition("many", number): "latest" for number in range(count)})
    starts = {str(at.partition): found.offset for at, found in latest.items()}
    starts["0"] -= _MICRO_BATCHES
    options = {"subscribe": "many", "pylog.bootstrap.servers": cluster.bootstrap_servers, "maxOffsetsPerTrigger": "1"}
    text = ", ".join(f'"{partition}": {offset}' for partition, offset in starts.items())
    options["startingOffsets"] = f'{{"many": {{{text}}}}}'
    return micro_batches(workspace, "pylog", options, _MICRO_BATCHES)[2:]


def add_start(axis: Axis, at: float, name: str, cluster: Any, end: Callable[[int], None], times: int) -> None:
    """Ends broker 1 by ``end`` and starts it, so often: adds the fastest start, and its least processor time."""
    took_s, used_s = [], []
    for _ in range(times):
        end(1)
        began_s = time.perf_counter()
        cluster.start(1)  # returns when it serves and leads its partitions
        took_s.append(time.perf_counter() - began_s)
        used_s.append(processor_s(cluster.pid(1)))
    axis.add(at, name, min(took_s) * 1e3, unit="ms", shape="flat", floor=300)
    axis.add(at, f"{name}: {PROCESSOR}", min(used_s) * 1e3, unit="ms", shape="flat", floor=200)
