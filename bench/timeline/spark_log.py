"""Spark's own account of a run, as spans: tasks from its event log, the phases of micro-batches from their progress.

Rule: Spark gives whole milliseconds of the wall clock; they are shown on CLOCK_MONOTONIC by the difference of the two
clocks at the end of the run. Phases are reported with their durations only, and drawn in the order in which Spark goes
through them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.timeline.recording import Span, Window

SUBMIT_ARGUMENTS = (
    "--conf spark.eventLog.enabled=true --conf spark.eventLog.compress=false "
    "--conf spark.eventLog.rolling.enabled=false --conf spark.eventLog.dir=file:{directory} "
    "--conf spark.python.authenticate.socketTimeout=120s pyspark-shell"  # by default 15 s, too short on a busy machine
)
_PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitBatch", "commitOffsets")
_ROUNDING_NS = 1_000_000  # a task's last span may end in the millisecond after the one that Spark says


@dataclass(frozen=True, slots=True)
class Task:
    """A task as the scheduler saw it, from its launch to its end."""

    job: int
    window: Window
    span: Span


def to_monotonic_ns(wall_ms: float) -> int:
    """A moment of the wall clock."""
    return int(wall_ms * 1e6) - (time.time_ns() - time.monotonic_ns())


def tasks(directory: Path) -> list[Task]:
    """All tasks in the event log, in the order of their launch. Call it when the session has been stopped."""
    found: list[Task] = []
    jobs: dict[int, int] = {}
    for event in _events(directory):
        if event["Event"] == "SparkListenerJobStart":
            jobs |= dict.fromkeys(event["Stage IDs"], event["Job ID"])
        elif event["Event"] == "SparkListenerTaskEnd":
            info = event["Task Info"]
            begin_ns = to_monotonic_ns(info["Launch Time"])
            end_ns = to_monotonic_ns(info["Finish Time"]) + _ROUNDING_NS
            span = Span("Spark (JVM)", "executor", "task", "spark", begin_ns, end_ns)
            found.append(Task(jobs[event["Stage ID"]], Window(begin_ns, end_ns), span))
    return sorted(found, key=lambda task: task.window.begin_ns)


def micro_batch(progress: Mapping[str, Any]) -> tuple[Window, list[Span]]:
    """The micro-batch of a progress report: its window, and its phases."""
    begin_ns = to_monotonic_ns(datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp() * 1e3)
    durations: Mapping[str, int] = progress["durationMs"]
    phases, at_ns = [], begin_ns
    for name in _PHASES:
        took_ns = durations.get(name, 0) * 1_000_000
        if took_ns:
            phases.append(Span("Spark (JVM)", "driver", name, "spark", at_ns, at_ns + took_ns))
            at_ns += took_ns
    return Window(begin_ns, begin_ns + durations["triggerExecution"] * 1_000_000), phases


def _events(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(each for each in directory.iterdir() if each.is_file()):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
