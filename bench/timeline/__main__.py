"""``python -m bench.timeline [scenario…] [--quick] [--quantile Q]``: records, prints tables, draws figures.

Each scenario runs in a process of its own with a cluster of its own, so that its recording has nothing of the others.
Exit: 0, 1 if a scenario failed, 2 usage.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.timeline.recorder import DIRECTORY_VARIABLE, SITE, install_from_environment

FIGURES = Path(__file__).absolute().parent / "figures"
NAMES = ("acknowledgement", "produced_to_consumed", "micro_batch", "sink_task", "source_task")
_ROOT = Path(__file__).absolute().parent.parent.parent
_END_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.timeline", description="Where the time goes, by thread.")
    parser.add_argument("names", nargs="*", metavar="scenario", help=f"{', '.join(NAMES)} (all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--figures", type=Path, default=FIGURES, metavar="DIRECTORY", help="where the drawings go")
    parser.add_argument(
        "--quantile",
        type=float,
        default=0.5,
        metavar="Q",
        help="which repetition is drawn: 0.5, that with the median time; on a busy machine 0.1 waits less for a core",
    )
    parser.add_argument("--recording", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"no scenario {', '.join(unknown)}. There are: {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options.figures.mkdir(parents=True, exist_ok=True)
    if options.recording is not None:
        _record(options.names[0], options)
        return 0
    if not 0 <= options.quantile < 1:
        parser.error(f"--quantile {options.quantile:g} is not in 0 … 1")
    failed = [name for name in options.names or NAMES if not _run_alone(name, options)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_alone(name: str, options: argparse.Namespace) -> bool:
    """Runs a scenario in a process of its own; returns whether it succeeded."""
    from bench.timeline.spark_log import SUBMIT_ARGUMENTS

    print(f"{name} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="pylog-timeline-", ignore_cleanup_errors=True) as directory:
        events = Path(directory) / "events"
        events.mkdir()
        paths = (str(SITE), str(_ROOT), os.environ.get("PYTHONPATH", ""))
        environment = {
            **os.environ,
            DIRECTORY_VARIABLE: directory,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGUMENTS.format(directory=events),
        }
        command = [sys.executable, "-m", "bench.timeline", name, "--recording", directory]
        command += ["--figures", str(options.figures), "--quantile", str(options.quantile)]
        with subprocess.Popen([*command, *(["--quick"] if options.quick else [])], env=environment) as process:
            try:
                return process.wait() == 0
            finally:
                process.terminate()
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _record(name: str, options: argparse.Namespace) -> None:
    install_from_environment()

    from bench.timeline.figure import draw, rows_of
    from bench.timeline.recording import without_idle_lanes
    from bench.timeline.scenarios import SCENARIOS
    from bench.workspace import Workspace

    with Workspace(quick=options.quick, rounds=1) as workspace:
        recorded = SCENARIOS[name](workspace, options.recording)
    window = recorded.at(options.quantile)
    shown = without_idle_lanes(window.cut(recorded.spans), window)
    medians: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in recorded.windows:
        for row in rows_of(without_idle_lanes(each.cut(recorded.spans), each), each):
            medians[row.lane, row.label].append(row.total_ms)
    fastest, slowest = min(each.ms for each in recorded.windows), max(each.ms for each in recorded.windows)
    note = (
        f"{window.ms:.2f} ms: {_which(options.quantile)} of {len(recorded.windows)} repetitions "
        f"({fastest:.2f} to {slowest:.2f} ms, median {recorded.at(0.5).ms:.2f})"
    )
    (options.figures / f"{name}.svg").write_text(draw(recorded.what, note, shown, window), encoding="utf-8")
    table = Table(title=f"{recorded.what}: {note}", header_style="bold", title_justify="left")
    for heading in ("thread", "span", "times", "begins ms", "together ms", "median of all ms"):
        table.add_column(heading, justify="left" if heading in {"thread", "span"} else "right")
    for row in rows_of(shown, window):
        median = statistics.median(medians[row.lane, row.label])
        cells = (row.lane, row.label, str(row.count), f"{row.begin_ms:.3f}", f"{row.total_ms:.3f}", f"{median:.3f}")
        table.add_row(*cells)
    console = Console()
    (console if console.is_terminal else Console(width=150)).print(table)


def _which(quantile: float) -> str:
    return "the one with the median time" if quantile == 0.5 else f"the one that {quantile:.0%} are faster than, out"


if __name__ == "__main__":
    sys.exit(main())
