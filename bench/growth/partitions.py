"""1 to 1,000 partitions of one topic, at one broker: its creation, metadata, the broker's start, Spark.

The work of Spark is the same at each point: 100,000 rows of 100 bytes, spread over the partitions, and for the
micro-batch one row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench import data
from bench.growth.table import Axis, fastest_s
from bench.source import micro_batches, to_nothing
from bench.workspace import Workspace

_ROWS = 100_000
_TURNS = 3
_MICRO_BATCHES = 8


def partitions(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import Admin

    axis.notes.append(f"Spark reads and writes {_ROWS:,} rows at each point; a micro-batch has one row.")
    for count in (1, 10) if workspace.quick else (1, 10, 100, 1_000):
        with (
            workspace.cluster_of(f"partitions-{count}") as cluster,
            Admin(cluster.bootstrap_servers, request_timeout_ms=120_000) as admin,
        ):
            _walk(workspace, axis, cluster, admin, count)


def _walk(workspace: Workspace, axis: Axis, cluster: Any, admin: Any, count: int) -> None:
    def add(name: str, seconds: float, *, flat: bool, floor_ms: float) -> None:
        axis.add(count, name, seconds * 1e3, unit="ms", shape="flat" if flat else "linear", floor=floor_ms)

    began_s = time.perf_counter()
    admin.create_topic("many", partitions=count)
    add("create_topic", time.perf_counter() - began_s, flat=False, floor_ms=20)
    filled_s = _fill(cluster, count)
    add("send_batch to each, flush", filled_s, flat=False, floor_ms=50)
    add("describe_topics", fastest_s(admin.describe_topics, 10), flat=False, floor_ms=2)
    all_of = {("many", number): "latest" for number in range(count)}
    add("list_offsets of all", fastest_s(lambda: admin.list_offsets(all_of), 10), flat=False, floor_ms=2)

    source = {"subscribe": "many", "pylog.bootstrap.servers": cluster.bootstrap_servers, "startingOffsets": "earliest"}
    sink = {"topic": "sunk", "pylog.bootstrap.servers": cluster.bootstrap_servers}
    admin.create_topic("sunk", partitions=count)
    add("Spark source, batch", fastest_s(_reading(workspace, source), _TURNS + 1), flat=True, floor_ms=100)
    add("Spark sink, batch", fastest_s(_writing(workspace, sink), _TURNS + 1), flat=True, floor_ms=100)
    _one_by_one(cluster)
    took_ms = sorted(took for took, _ in _micro_batches(workspace, cluster))
    add("Spark micro-batch of 1 row", took_ms[len(took_ms) // 2] / 1e3, flat=True, floor_ms=50)

    add("start after a clean stop", _start_s(cluster, cluster.stop), flat=True, floor_ms=300)
    add("start after kill -9", _start_s(cluster, cluster.kill), flat=True, floor_ms=300)


def _fill(cluster: Any, count: int) -> float:
    """`_ROWS` rows in all, the same number to each partition, each partition's in one batch; returns the seconds."""
    from pyspark_log import Producer

    batch = data.values_batch(_ROWS // count)
    with Producer(cluster.bootstrap_servers) as producer:
        producer.partitions_for("many")
        began_s = time.perf_counter()
        for number in range(count):
            producer.send_batch("many", batch, partition=number)
        producer.flush(timeout=300)
        return time.perf_counter() - began_s


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


def _start_s(cluster: Any, end: Callable[[int], None]) -> float:
    """The fastest start of three, after that end."""
    took_s = []
    for _ in range(3):
        end(1)
        began_s = time.perf_counter()
        cluster.start(1)  # returns when it serves and leads its partitions
        took_s.append(time.perf_counter() - began_s)
    return min(took_s)
