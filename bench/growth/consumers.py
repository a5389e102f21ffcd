"""1 to 300 consumers, with --full 1,000, that wait at one broker, in processes of 125.

memory, processor   of the broker while they wait, less what it has without them (Linux only)
acknowledgement     of a record of another topic, while they wait
all have a record   from `send` of a record of their topic until the last of them has it
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Self

from bench.growth.table import PROCESSOR, Axis, fastest_s, processor_s
from bench.memory import status_mb
from bench.workspace import Workspace

_EACH = 125
_IDLE_S = 5.0
_RECORDS = 5
_SETTINGS = {"max.connections": "2000"}  # by default a broker serves 1,000 streams, and the producers need some


def consumers(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import Admin

    axis.notes.append(
        "max.connections=2000: by default a broker serves 1,000 streams, so the last of 1,000 consumers beside a "
        "producer would be refused."
    )
    for count in (1, 10) if workspace.quick else (1, 10, 100, 300, 1_000) if is_full else (1, 10, 100, 300):
        with (
            workspace.cluster_of(f"consumers-{count}", settings=_SETTINGS) as cluster,
            Admin(cluster.bootstrap_servers) as admin,
        ):
            for name in ("theirs", "other"):
                admin.create_topic(name, partitions=1)
            _measure(cluster.bootstrap_servers, cluster.pid(1), axis, count)


def _measure(servers: str, broker: int, axis: Axis, count: int) -> None:
    from pyspark_log import Producer

    with Producer(servers, linger_ms=0) as producer:
        for topic in ("theirs", "other"):
            producer.send(topic, b"first").result(30)
        before_mb, before_percent = status_mb(broker, "RssAnon"), _percent(broker)
        began_s = time.monotonic()
        with ExitStack() as stack:
            sizes = [min(_EACH, count - first) for first in range(0, count, _EACH)]
            processes: list[_Process] = []
            for size in sizes:  # one process after the other: they are to wait, not to arrive all at once
                processes.append(stack.enter_context(_Process(servers, size)))
                processes[-1].reported("ready")
            ready_s = time.monotonic() - began_s
            seen = 1
            _all_have(processes, seen)
            time.sleep(1)
            grown_mb = max(0.0, status_mb(broker, "RssAnon") - before_mb)
            percent = max(0.0, _percent(broker) - before_percent)
            acknowledged_s = fastest_s(lambda: producer.send("other", b"value").result(30), 200)
            took_s = []
            used_s = processor_s()
            for _ in range(_RECORDS):
                seen += 1
                sent_ns = time.monotonic_ns()
                producer.send("theirs", b"value").result(60)
                took_s.append((_all_have(processes, seen) - sent_ns) / 1e9)
            used_s = processor_s() - used_s
    axis.add(count, "all have begun to wait", ready_s, unit="s", shape="linear", floor=1.0)
    axis.add(count, "broker's own memory", grown_mb, unit="MB", shape="linear", floor=40.0)
    axis.add(count, "broker's processor", percent, unit="% of a core", shape="linear", floor=2.0)
    axis.add(count, "acknowledgement of another topic", acknowledged_s * 1e3, unit="ms", shape="flat", floor=0.5)
    name = "all have a record"
    axis.add(count, name, min(took_s) * 1e3, unit="ms", shape="linear", floor=10.0)
    axis.add(count, f"{name}: {PROCESSOR}", used_s / _RECORDS * 1e3, unit="ms", shape="linear", floor=20.0)


class _Process:
    """A process of so many consumers; a context manager."""

    def __init__(self, servers: str, count: int) -> None:
        command = [sys.executable, "-m", "bench.growth.many_consumers", servers, "theirs", str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reported: dict[str, int] = {}  # the first record may be reported before "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()  # it has nothing to keep, and hundreds of threads take long to end in order
        self._process.wait()

    def reported(self, what: str) -> int:
        """Waits until it has printed a line that begins with ``what``; the number behind that, 0 without one."""
        assert self._process.stdout is not None
        while what not in self._reported:
            line = self._process.stdout.readline()
            assert line, "a process of consumers ended early"
            first, _, number = line.strip().partition(" ")
            self._reported[first] = int(number or 0)
        return self._reported[what]


def _all_have(processes: list[_Process], record: int) -> int:
    """When the last consumer had that record, ns of CLOCK_MONOTONIC."""
    return max(process.reported(str(record)) for process in processes)


def _percent(pid: int) -> float:
    used_s = processor_s(pid)
    time.sleep(_IDLE_S)
    return (processor_s(pid) - used_s) / _IDLE_S * 100
