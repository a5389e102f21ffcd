"""Costs along an axis: the shape that each should have, where it bends, how that is printed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

Shape = Literal["flat", "linear"]
PROCESSOR = "processor"
_PER_S = {"s": 1.0, "ms": 1e3, "µs": 1e6}
BEND = 2.0
"""A cost beyond this many times what its shape predicts bends."""


@dataclass(slots=True)
class Cost:
    """One cost along an axis. ``points``: by number of whatever the axis counts, in ``unit``.

    ``floor``: differences below this, in ``unit``, are noise.
    """

    name: str
    unit: str
    shape: Shape
    floor: float = 0.0
    points: dict[float, float] = field(default_factory=dict)

    def predicted(self, at: float) -> float | None:
        """What the shape predicts from the smaller points, the cheapest of them for its size; None for the first. A
        linear cost is not predicted from points within the noise."""
        before = [(n, value) for n, value in self.points.items() if n < at]
        if self.shape == "flat":
            return min((value for _, value in before), default=None)
        return min((at * value / n for n, value in before if value > self.floor), default=None)

    def bends(self) -> list[tuple[float, float]]:
        """The points where it bends, and how many times the prediction it is there."""
        found = []
        for at, value in self.points.items():
            predicted = self.predicted(at)
            if predicted is not None and value > BEND * predicted and value - predicted > self.floor:
                found.append((at, value / max(predicted, 1e-9)))
        return found

    def relative(self) -> dict[float, float]:
        """Each point by the first one; of a linear cost, the cost of one of the n by that at the first point."""
        if not self.points:
            return {}
        per = {n: value / (n if self.shape == "linear" else 1) for n, value in self.points.items()}
        first = next(iter(per.values()))
        return {n: value / first if first else 0.0 for n, value in per.items()}


class Axis:
    """The costs along one axis, in the order in which they were first measured."""

    def __init__(self, name: str, counts: str) -> None:
        """``counts``: what a point is a number of."""
        self.name = name
        self.counts = counts
        self.costs: dict[str, Cost] = {}
        self.notes: list[str] = []

    def add(self, at: float, name: str, value: float, *, unit: str, shape: Shape, floor: float = 0.0) -> None:
        """A measurement."""
        self.costs.setdefault(name, Cost(name, unit, shape, floor)).points[at] = value

    @property
    def numbers(self) -> list[float]:
        return sorted({at for cost in self.costs.values() for at in cost.points})

    def measure(
        self,
        at: float,
        name: str,
        once: Callable[[], object],
        *,
        times: int,
        unit: str,
        shape: Shape,
        per: float = 1.0,
        floor: float = 0.0,
    ) -> None:
        """Calls ``once`` so often: adds what ``per``-th of the fastest call took, and how much processor time that of
        an average call was, of this process and all that it has started."""
        scale = _PER_S[unit] / per
        used_s, took_s = processor_s(), []
        for _ in range(times):
            began_s = time.perf_counter()
            once()
            took_s.append(time.perf_counter() - began_s)
        used_s = processor_s() - used_s
        self.add(at, name, min(took_s) * scale, unit=unit, shape=shape, floor=floor)
        self.add(at, f"{name}: {PROCESSOR}", used_s / times * scale, unit=unit, shape=shape, floor=floor)


def fastest_s(once: Callable[[], object], times: int) -> float:
    """How long the fastest of so many calls takes, in s."""
    took_s = []
    for _ in range(times):
        began_s = time.perf_counter()
        once()
        took_s.append(time.perf_counter() - began_s)
    return min(took_s)


def processor_s(root: int | None = None) -> float:
    """The processor time of a process (None: this one) and of all that it started and they started, those that have
    ended and were waited for included. Steps of 10 ms, this process's own finer. Linux; elsewhere this process's own.
    """
    own_s = time.process_time() if root is None else 0.0
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        return own_s
    children: dict[int, list[int]] = {}
    used: dict[int, tuple[int, int]] = {}
    for path in proc.iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(path.name))
                used[int(path.name)] = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    first = os.getpid() if root is None else root
    ticks, waiting = 0, [first]
    while waiting:
        pid = waiting.pop()
        own, ended = used.get(pid, (0, 0))
        ticks += ended + (0 if root is None and pid == first else own)
        waiting += children.get(pid, [])
    return own_s + ticks / os.sysconf("SC_CLK_TCK")


def show(axis: Axis, console: Console) -> None:
    """Prints the axis: a row per cost, a column per point, what it is of its first point, where it bends."""
    numbers = axis.numbers
    table = Table(title=f"{axis.name}: {axis.counts}", header_style="bold", title_justify="left")
    table.add_column("cost")
    table.add_column("unit")
    table.add_column("should be")
    for number in numbers:
        table.add_column(f"{number:,g}", justify="right")
    table.add_column("last by first")
    table.add_column("bends at")
    for cost in axis.costs.values():
        values = [cost.points.get(number) for number in numbers]
        last = list(cost.relative().values())[-1]
        bends = ", ".join(f"{at:,g} ({times:.1f}x)" for at, times in cost.bends())
        table.add_row(
            cost.name,
            cost.unit,
            cost.shape,
            *("" if value is None else _figure(value) for value in values),
            f"{last:.2g}x" + (" each" if cost.shape == "linear" else ""),
            f"[red]{bends}[/]" if bends else "[green]nowhere[/]",
        )
    console.print(table)
    for note in axis.notes:
        console.print(f"[dim]{note}[/]", highlight=False)


def write_json(path: Path, axes: Sequence[Axis], failures: Mapping[str, str], *, size: str) -> None:
    """Writes all costs with what their shapes predict."""
    document = {
        "size": size,
        "axes": [
            {
                "axis": axis.name,
                "counts": axis.counts,
                "notes": axis.notes,
                "costs": [
                    {
                        "name": cost.name,
                        "unit": cost.unit,
                        "shape": cost.shape,
                        "points": [
                            {"at": at, "value": value, "predicted": cost.predicted(at), "relative": cost.relative()[at]}
                            for at, value in cost.points.items()
                        ],
                        "bends": [{"at": at, "times": times} for at, times in cost.bends()],
                    }
                    for cost in axis.costs.values()
                ],
            }
            for axis in axes
        ],
        "failures": dict(failures),
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
