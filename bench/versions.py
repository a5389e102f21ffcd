"""One version of pylog in a process of its own, measured in turns with another: ``python -m bench.versions QUICK``.

The process has a cluster, a Spark session and topics of its own. It reads the name of a measurement a line from its
standard input, writes the figure as a line, and ends when its input does. Its packages are links in a directory: this
``bench``, beside ``pyspark_log`` and ``broker_runtime`` of the version; so both versions are measured by the same code,
which therefore uses only what both have.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from bench import data
from bench.latency import acknowledged_ms
from bench.send import send_speed
from bench.send_batch import send_batch_speed
from bench.sink import FIVE_COLUMNS, VALUE, write_speed
from bench.source import micro_batches
from bench.topics import BATCH_ROWS, fill
from bench.workspace import ROOT, Workspace

ROWS: Final = 4_000_000
SENT: Final = 500_000
MICRO_BATCHES: Final = 40
MEASUREMENTS: Final = (
    "send", "send_batch", "acknowledged", "poll", "read", "source", "sink", "typed_sink", "micro_batch",
)  # fmt: skip
_END_S: Final = 60.0


class Version:
    """A version's process, as a context manager. ``checkout`` None: this version."""

    def __init__(self, checkout: Path | None, workspace: Workspace) -> None:
        self._checkout = ROOT if checkout is None else checkout.absolute()
        self._workspace = workspace

    def __enter__(self) -> Self:
        packages = Path(tempfile.mkdtemp(prefix="version-", dir=self._workspace.directory))
        for name, where in (("bench", ROOT), ("pyspark_log", self._checkout), ("broker_runtime", self._checkout)):
            if not (where / name / "__init__.py").is_file():
                raise FileNotFoundError(f"{where} is no checkout of pylog: it has no {name}")
            (packages / name).symlink_to(where / name, target_is_directory=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.versions", "quick" if self._workspace.quick else "full"],
            cwd=packages,
            env={**os.environ, "PYTHONPATH": str(packages)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def measure(self, what: str) -> float:
        """One of `MEASUREMENTS`: millions of rows a second, or milliseconds. Raises `RuntimeError` if the process
        failed; what it failed with is on its standard error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._checkout}: {what} failed")
        return float(answer)


def main(*, quick: bool) -> None:
    # When ended from outside, everything that was started still ends and the directory is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with os.fdopen(os.dup(1), "w", buffering=1) as answers, Workspace(quick=quick, rounds=1) as workspace:
        os.dup2(2, 1)  # Spark prints what is no answer
        with ExitStack() as stack:
            measurements = _measurements(workspace, stack)
            for line in sys.stdin:
                answers.write(f"{measurements[line.strip()]()}\n")


def _measurements(workspace: Workspace, stack: ExitStack) -> Mapping[str, Callable[[], float]]:
    from bench.transactions import poll_speed, read_speed, spark_speed

    rows = workspace.scaled(ROWS)
    micro_rows = 10 if workspace.quick else MICRO_BATCHES
    topic = stack.enter_context(workspace.topic(partitions=2, prefix="version"))
    fill(workspace.cluster, topic, data.values_batch(BATCH_ROWS), rows=rows, partitions=2)
    one_by_one = stack.enter_context(workspace.topic(partitions=1, prefix="version-rows"))
    fill(workspace.cluster, one_by_one, data.values_batch(1), rows=micro_rows, partitions=1)
    return {
        "send": lambda: send_speed(workspace, workspace.scaled(SENT)),
        "send_batch": lambda: send_batch_speed(workspace, ROWS),
        "acknowledged": lambda: acknowledged_ms(workspace),
        "sink": lambda: write_speed(workspace, VALUE, None, rows),
        "typed_sink": lambda: write_speed(workspace, FIVE_COLUMNS, data.TYPED, rows),
        "micro_batch": lambda: _micro_batch_ms(workspace, one_by_one, micro_rows),
        "poll": lambda: poll_speed(workspace, topic, rows),
        "read": lambda: read_speed(workspace, topic, rows),
        "source": lambda: spark_speed(workspace, topic, rows),
    }


def _micro_batch_ms(workspace: Workspace, topic: str, rows: int) -> float:
    """The median of a query's micro-batches from ``topic`` into a new one, a row each."""
    servers = {"pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
    source = {**servers, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
    with workspace.topic(partitions=1, prefix="version-copy") as copy:
        found = micro_batches(workspace, "pylog", source, rows, sink="pylog", into={**servers, "topic": copy})
    return statistics.median([took for took, _ in found][1:])  # the first one starts workers


if __name__ == "__main__":
    main(quick=sys.argv[1] == "quick")
