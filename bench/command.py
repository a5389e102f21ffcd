"""The command of a group of comparisons: ``[names…] [--quick] [--rounds N] [--json FILE]``; a table and JSON.

Exit: 0 all promises kept, 1 one is not or a comparison failed, 2 usage. ``--quick`` takes a tenth of the rows: to see
that everything runs, not to judge by.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.harness import Figure, show, write_json
from bench.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """``comparisons``: what each compares, by name, which is also its module's in ``package``. ``results``: where the
    JSON goes unless the command line says otherwise."""

    package: str
    title: str
    comparisons: Mapping[str, str]
    results: Path

    def parser(self) -> argparse.ArgumentParser:
        made = argparse.ArgumentParser(
            prog=f"python -m {self.package}",
            description=f"{self.title}.",
            epilog="\n".join(f"  {name:16} {text}" for name, text in self.comparisons.items()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.add_argument("names", nargs="*", metavar="name", help="comparisons to run (all)")
        made.add_argument("--quick", action="store_true", help="a tenth of the rows")
        made.add_argument("--rounds", type=int, default=None, help="pairs per comparison (5; 2 with --quick)")
        made.add_argument(
            "--json", type=Path, default=self.results, metavar="FILE", help="where all figures go (%(default)s)"
        )
        return made

    def options(self, parser: argparse.ArgumentParser) -> argparse.Namespace:
        """The command line, with ``names`` and ``rounds`` filled in. An unknown name ends the process."""
        options = parser.parse_args()
        unknown = [name for name in options.names if name not in self.comparisons]
        if unknown:
            parser.error(f"no comparison {', '.join(unknown)}. There are: {', '.join(self.comparisons)}")
        options.names = options.names or list(self.comparisons)
        options.rounds = options.rounds or (2 if options.quick else 5)
        return options

    def run(
        self, options: argparse.Namespace, workspace: Workspace, *, settings: Mapping[str, str] | None = None
    ) -> int:
        """Runs the comparisons in ``workspace``, which is entered here; returns the exit code.

        ``settings``: what both sides ran with, for the table and the JSON.
        """
        figures: list[Figure] = []
        failures: list[tuple[str, str]] = []
        # When ended from outside, everything that was started still ends and the directory is removed.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            with workspace:
                for name in options.names:
                    print(f"{name}: {self.comparisons[name]}", file=sys.stderr, flush=True)
                    try:
                        for figure in importlib.import_module(f"{self.package}.{name}").run(workspace):
                            figures.append(figure)  # noqa: PERF402  what was measured stays when a later one breaks
                    except Exception as error:  # noqa: BLE001  one broken comparison must not hide the others' figures
                        traceback.print_exc()
                        failures.append((name, f"{type(error).__name__}: {error}".splitlines()[0]))
        finally:  # also when ended from outside
            console = Console()
            if not console.is_terminal:
                console = Console(width=160)
            show(figures, failures, console, title=self.title, settings=settings)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            write_json(options.json, figures, failures, quick=options.quick, settings=settings)
            print(f"all figures and pairs: {options.json}", file=sys.stderr)
        return 0 if not failures and all(figure.kept for figure in figures) else 1
