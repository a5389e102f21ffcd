"""``python -m bench.growth [axes…] [--quick] [--full] [--json FILE]``: walks the axes, prints a table for each.

``--quick`` walks the small points only: to see that everything runs. ``--full`` also walks those that take minutes.
Exit: 0 (bends are findings, not failures), 1 if an axis failed, 2 usage.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
import traceback
from pathlib import Path

from rich.console import Console

from bench.growth.table import Axis, show, write_json
from bench.workspace import Workspace

RESULTS = Path("build/growth.json")
AXES = {
    "rows_per_frame": ("bench.growth.frames", "1 to 100,000 rows in each frame"),
    "value_sizes": ("bench.growth.frames", "values of 10 bytes to 1 MB"),
    "columns": ("bench.growth.frames", "1 to 200 columns"),
    "partitions": ("bench.growth.partitions", "1 to 1,000 partitions of a topic"),
    "consumers": ("bench.growth.consumers", "1 to 300 consumers waiting at a broker, with --full 1,000"),
    "log_size": ("bench.growth.log_size", "1 to 5 GB of log in a partition, with --full 50"),
}
"""In the order in which they are walked: the module with the function of that name, and what it walks."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth",
        description="How costs grow with the work.",
        epilog="\n".join(f"  {name:16} {what}" for name, (_, what) in AXES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("axes", nargs="*", metavar="axis", help="axes to walk (all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="the small points only")
    size.add_argument("--full", action="store_true", help="also the points that take minutes")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where all costs go (%(default)s)")
    options = parser.parse_args()
    if unknown := [name for name in options.axes if name not in AXES]:
        parser.error(f"no axis {', '.join(unknown)}. There are: {', '.join(AXES)}")
    # When ended from outside, everything that was started still ends and the directory is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    walked: list[Axis] = []
    failures: dict[str, str] = {}
    walk = "quick" if options.quick else "full" if options.full else "default"
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    with Workspace(quick=options.quick, rounds=1) as workspace:
        for name in options.axes or AXES:
            module, what = AXES[name]
            print(f"{name}: {what}", file=sys.stderr, flush=True)
            began_s = time.monotonic()
            axis = Axis(name, what)
            walked.append(axis)
            try:
                getattr(importlib.import_module(module), name)(workspace, axis, is_full=options.full)
            except Exception as error:  # noqa: BLE001  one broken axis must not hide the others' costs
                traceback.print_exc()
                failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            finally:  # what was measured stays, also when the run is ended from outside
                if axis.costs:
                    show(axis, console)
                write_json(options.json, walked, failures, size=walk)
            print(f"{name} took {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    for name, failure in failures.items():
        console.print(f"[red]{name} failed:[/] {failure}", highlight=False)
    print(f"all costs: {options.json}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
