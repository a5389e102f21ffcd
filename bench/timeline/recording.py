"""Reads what the processes of a run have recorded: the spans of a window of time, by process and thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.timeline.hooks import HOOKS
from bench.timeline.recorder import MOST_SPANS, SPAN

_PROCESSES = (
    ("broker_runtime", "broker"),
    ("bench.timeline.consumer", "consumer"),
    ("python_streaming_source_runner", "source process"),
    ("python_streaming_sink_runner", "sink process"),
    ("create_data_source", "process that loads"),
    ("plan_data_source_read", "process that plans reads"),
    ("write_into_data_source", "process that plans writes"),
    ("commit_data_source_write", "process that commits"),
    ("pyspark.sql.worker", "planning process"),
    ("pyspark.daemon", "Python worker"),
    ("pyspark.worker", "Python worker"),
)
"""Parts of commands, and what processes with them are called."""


_IDLE = 0.0002
"""A thread that works for less than this part of a window is left out."""


@dataclass(frozen=True, slots=True)
class Span:
    """A call: half-open, ns of CLOCK_MONOTONIC. ``thread`` is unique in its process."""

    process: str
    thread: str
    label: str
    kind: str
    begin_ns: int
    end_ns: int

    @property
    def lane(self) -> str:
        return f"{self.process} · {self.thread}"


@dataclass(frozen=True, slots=True)
class Window:
    """A repetition: what happened from ``begin_ns`` to ``end_ns``."""

    begin_ns: int
    end_ns: int

    @property
    def ms(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e6

    def cut(self, spans: Iterable[Span]) -> list[Span]:
        """The spans that lie in it, at least in part, cut off at its ends, in the order in which they begin."""
        found = [
            replace(span, begin_ns=max(span.begin_ns, self.begin_ns), end_ns=min(span.end_ns, self.end_ns))
            for span in spans
            if span.begin_ns < self.end_ns and span.end_ns > self.begin_ns
        ]
        return sorted(found, key=lambda span: (span.begin_ns, -span.end_ns))


def read_spans(directory: Path, own_pid: int, own_name: str) -> list[Span]:
    """All spans of a run. ``own_name``: what the process ``own_pid`` is called.

    Raises `RuntimeError` if a process had more spans than its file takes.
    """
    found: list[Span] = []
    named: Counter[str] = Counter()
    for path in sorted(directory.glob("spans-*.bin")):
        pid = path.stem.partition("-")[2]
        command = (directory / f"command-{pid}.txt").read_text()
        process = next((name for part, name in _PROCESSES if part in command), own_name)
        if int(pid) == own_pid:
            process = own_name
        named[process] += 1
        if named[process] > 1:
            process = f"{process} {named[process]}"
        threads = _thread_names(directory / f"threads-{pid}.txt")
        details = ["", *_lines(directory / f"details-{pid}.txt")]
        content = path.read_bytes()
        spans = list(SPAN.iter_unpack(content))
        if spans[MOST_SPANS - 1][1]:
            raise RuntimeError(f"{process} had more than {MOST_SPANS:,} spans: run fewer repetitions")
        for begin_ns, end_ns, thread, number, _, detail in spans:
            if not end_ns:
                continue
            hook = HOOKS[number]
            label = f"{hook.label} {details[detail]}" if detail else hook.label
            found.append(Span(process, threads[thread], label, hook.kind, begin_ns, end_ns))
    return found


def without_idle_lanes(spans: Sequence[Span], window: Window) -> list[Span]:
    """Without threads that do nothing in the window, or hardly anything: streams that wait, and their heartbeats."""
    work_ns: Counter[str] = Counter()
    for span in spans:
        if span.kind != "wait":
            work_ns[span.lane] += span.end_ns - span.begin_ns
    return [span for span in spans if work_ns[span.lane] > _IDLE * window.ms * 1e6]


def _thread_names(path: Path) -> dict[int, str]:
    """What each thread is called, by number."""
    names: dict[int, str] = {}
    given: Counter[str] = Counter()
    for line in _lines(path):
        number, _, name = line.partition(" ")
        if name == "MainThread":
            name = "main thread"
        elif name.startswith("Dummy-"):
            name = "gRPC's thread"
        elif name.startswith("produce-ack-"):
            name = "produce-ack"
        elif name.startswith("pylog-read-"):
            name = "pylog-read"
        elif name.startswith("disk "):  # and the directory's path
            name = "disk"
        given[name] += 1
        names[int(number)] = name if given[name] == 1 else f"{name} {given[name]}"
    return names


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
