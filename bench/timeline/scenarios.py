"""What is run, many times each, and the window of each repetition.

    acknowledgement       `send` of one record until its future has a result; linger_ms=0, one at a time
    produced_to_consumed  the same until another process's `poll` has returned it
    micro_batch           one row from a topic to a topic, as Spark's `triggerExecution` counts it
    sink_task             one task of a batch write: 200,000 rows of 100 bytes into one partition
    source_task           one task of a batch read: the same rows out of one partition, into nothing

Rule: everything that is started ends with its scenario. The first repetitions are left out: they start workers,
connections and the JVM's compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import data
from bench.timeline import spark_log
from bench.timeline.recording import Span, Window, read_spans
from bench.topics import fill
from bench.workspace import Workspace

ROWS = 200_000
_CLIENT = "client"


@dataclass(slots=True)
class Recorded:
    """The repetitions of a scenario and all spans of its run. ``what``: the figure's heading."""

    what: str
    windows: list[Window] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def at(self, quantile: float) -> Window:
        """The repetition that so large a part of them was faster than."""
        ordered = sorted(self.windows, key=lambda window: window.ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]


def acknowledgement(workspace: Workspace, directory: Path) -> Recorded:
    from pyspark_log import Producer

    recorded = Recorded("One record until it is acknowledged (one broker, flush.mode=ack, linger_ms=0)")
    value = bytes(100)
    with (
        workspace.topic(partitions=1, prefix="timeline") as topic,
        Producer(workspace.cluster.bootstrap_servers, linger_ms=0) as producer,
    ):
        for number in range(workspace.scaled(1_000) + 50):
            begin_ns = time.monotonic_ns()
            producer.send(topic, value).result(10)
            if number >= 50:
                recorded.windows.append(Window(begin_ns, time.monotonic_ns()))
    recorded.spans = read_spans(directory, os.getpid(), _CLIENT)
    return recorded


def produced_to_consumed(workspace: Workspace, directory: Path) -> Recorded:
    from pyspark_log import Producer

    recorded = Recorded("One record until another process has polled it (one broker, flush.mode=ack, linger_ms=0)")
    servers = workspace.cluster.bootstrap_servers
    with workspace.topic(partitions=1, prefix="timeline") as topic, Producer(servers, linger_ms=0) as producer:
        command = [sys.executable, "-m", "bench.timeline.consumer", servers, topic]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdin is not None
            assert consumer.stdout is not None
            try:
                assert consumer.stdout.readline() == "ready\n", "the consumer's process ended early"
                for number in range(workspace.scaled(1_000) + 50):
                    begin_ns = time.monotonic_ns()
                    future = producer.send(topic, str(number).encode())
                    got, got_ns = map(int, consumer.stdout.readline().split())
                    assert got == number, f"record {got} came instead of {number}"
                    if number >= 50:
                        recorded.windows.append(Window(begin_ns, got_ns))
                    future.result(10)
                    time.sleep(0.002)  # the consumer's next fetch waits at the broker by then, as it mostly does
            finally:
                consumer.stdin.close()
                try:
                    consumer.wait(30)
                except subprocess.TimeoutExpired:
                    consumer.kill()
    recorded.spans = read_spans(directory, os.getpid(), _CLIENT)
    return recorded


def micro_batch(workspace: Workspace, directory: Path) -> Recorded:
    recorded = Recorded("One micro-batch of one row, from a topic to a topic (local[2])")
    rows = max(12, workspace.scaled(40))
    with (
        workspace.topic(partitions=1, prefix="timeline") as topic,
        workspace.topic(partitions=1, prefix="timeline-copy") as copy,
    ):
        fill(workspace.cluster, topic, data.values_batch(1), rows=rows, partitions=1)
        servers = {"pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
        source = {**servers, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
        query = (
            workspace.spark.readStream.format("pylog")
            .options(**source)
            .load()
            .writeStream.format("pylog")
            .options(**servers, topic=copy)
            .option("checkpointLocation", str(workspace.directory / f"checkpoint-{uuid.uuid4().hex}"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300), "the query did not come to its end in 300 s"
        finally:
            query.stop()
        batches = [
            spark_log.micro_batch({"timestamp": each.timestamp, "durationMs": each.durationMs})
            for each in query.recentProgress
            if each.numInputRows
        ]
        workspace.spark.stop()
    phases = [phase for _, spans in batches for phase in spans]
    recorded.windows = [window for window, _ in batches][5:]
    jvm = [task.span for task in spark_log.tasks(directory / "events")]
    recorded.spans = [*phases, *jvm, *read_spans(directory, os.getpid(), _CLIENT)]
    return recorded


def sink_task(workspace: Workspace, directory: Path) -> Recorded:
    rows = workspace.scaled(ROWS)
    recorded = Recorded(f"One task of Spark's sink: {rows:,} rows of 100 bytes into one partition")

    def write() -> None:
        with workspace.topic(partitions=1, prefix="timeline") as topic:
            options = {"topic": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
            frame = workspace.spark.range(0, rows, 1, 1).selectExpr("unhex(repeat('5a', 100)) as value")
            frame.write.format("pylog").options(**options).mode("append").save()

    return _tasks(workspace, directory, recorded, write)


def source_task(workspace: Workspace, directory: Path) -> Recorded:
    rows = workspace.scaled(ROWS)
    recorded = Recorded(f"One task of Spark's source: {rows:,} rows of 100 bytes out of one partition")
    with workspace.topic(partitions=1, prefix="timeline") as topic:
        fill(workspace.cluster, topic, data.values_batch(10_000), rows=rows, partitions=1)
        options = {"subscribe": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}

        def read() -> None:
            frame = workspace.spark.read.format("pylog").options(**options, startingOffsets="earliest").load()
            frame.write.format("noop").mode("overwrite").save()

        return _tasks(workspace, directory, recorded, read)


def _tasks(workspace: Workspace, directory: Path, recorded: Recorded, job: Callable[[], None]) -> Recorded:
    """Runs the job repeatedly; the windows are those of its task, the longest while it ran."""
    began: list[Window] = []
    for _ in range(max(8, workspace.scaled(15))):
        begin_ns = time.monotonic_ns()
        job()
        began.append(Window(begin_ns, time.monotonic_ns()))
    workspace.spark.stop()
    found = spark_log.tasks(directory / "events")
    for one in began[4:]:
        inside = [task.window for task in found if one.begin_ns <= task.window.begin_ns < one.end_ns]
        recorded.windows.append(max(inside, key=lambda window: window.ms))
    recorded.spans = [*(task.span for task in found), *read_spans(directory, os.getpid(), _CLIENT)]
    return recorded


SCENARIOS: dict[str, Callable[[Any, Path], Recorded]] = {
    "acknowledgement": acknowledgement,
    "produced_to_consumed": produced_to_consumed,
    "micro_batch": micro_batch,
    "sink_task": sink_task,
    "source_task": source_task,
}
