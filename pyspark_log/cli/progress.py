"""The progress of a command, on standard error: a bar if the total is known, else a count and the elapsed time.

Rule: only people see it. It is shown if standard error is a terminal, without -q, and without `-o json` or another
format for programs. It disappears when the work ends. Rich, which draws it, is imported only then.
"""

from __future__ import annotations

import os
import stat
import sys
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

from pyspark_log.cli.output import OutputFormat

if TYPE_CHECKING:
    from pyspark_log.cli.invocation import Invocation

Unit = Literal["records", "bytes", "steps"]

_FOR_PEOPLE = {None, OutputFormat.TABLE, OutputFormat.WIDE}


class Progress:
    """One piece of work, for the length of a ``with`` statement. Its calls cost little where nothing is shown.

    ``total`` None: the end is not known. ``is_wanted``: the caller's own condition, beside `is_for_people`. What the
    command prints to standard error meanwhile goes above the bar. Meanwhile nothing may be written to standard output
    if that is a terminal. Not thread-safe.
    """

    def __init__(
        self,
        invocation: Invocation,
        text: str,
        *,
        total: int | None = None,
        unit: Unit = "steps",
        is_wanted: bool = True,
    ) -> None:
        self._text = text
        self._total = total
        self._unit = unit
        self._done = 0
        self._bar: Any = None
        self._task: Any = None
        self.is_shown = is_wanted and is_for_people(invocation)

    def __enter__(self) -> Progress:
        if self.is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
            if self._total is not None:
                columns.append(BarColumn())
            if self._unit == "bytes":
                columns.append(DownloadColumn())
            elif self._unit == "records":
                columns.append(TextColumn("{task.completed:,.0f} records"))
            # Standard output is left alone: rich would send it here.
            self._bar = Bar(
                *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True, redirect_stdout=False
            )
            self._task = self._bar.add_task(self._text, total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, count: int = 1) -> None:
        """Adds to what is done."""
        self.reach(self._done + count)

    def reach(self, done: int, text: str | None = None, *, total: int | None = None) -> None:
        """Sets how much is done in all. ``text`` and ``total``: new ones, None for no change."""
        self._done = done
        self._text = self._text if text is None else text
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=self._text, total=total)

    def say(self, text: str) -> None:
        """Changes the text."""
        self.reach(self._done, text)


def is_file(stream: IO[Any], *, without_descriptor: bool = False) -> bool:
    """Whether ``stream`` is an ordinary file: no terminal, no pipe. ``without_descriptor``: the answer for an object
    that has none."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return without_descriptor


def is_for_people(invocation: Invocation) -> bool:
    """Whether a person is watching: standard error is a terminal that can move its cursor, and the command was asked
    neither to be quiet nor for data in a format for programs."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
    return is_terminal and not invocation.quiet and invocation.output in _FOR_PEOPLE
