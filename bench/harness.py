"""Alternation, figures, promises: how two things are measured against each other.

Rule: a ratio is the median of the ratios of neighbours in time, never of two medians taken apart, so that a machine
that slows down for a minute affects both sides. The order within a pair alternates (peer, pylog, pylog, peer, …),
because the second of two runs finds warmer caches.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """``at_least`` and ``at_most`` bound the judged number of a figure; None: not bounded on that side."""

    text: str
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table. ``ours`` and ``peer`` are medians in ``unit``; ``judged`` is what the promises bound.

    For a comparison ``judged`` is the ratio ours/peer (``is_difference``: ours - peer, in ``unit``) and ``spread`` the
    lowest and highest pair; for a plain bound (memory, processor time) there is no peer and ``judged`` is ``ours``.
    """

    name: str
    unit: str
    ours: float
    peer: float | None = None
    peer_is: str = ""
    judged: float
    is_difference: bool = False
    spread: tuple[float, float] | None = None
    promises: Sequence[Promise] = ()
    note: str = ""
    pairs: Sequence[tuple[float, float]] = field(default=())

    @property
    def kept(self) -> bool:
        return all(promise.holds(self.judged) for promise in self.promises)


def at_least(ratio: float) -> Promise:
    """A ratio's lower bound, written as users read it."""
    return Promise(text=f"≥ {ratio:.0%}" if ratio < 1 else f"≥ {ratio:g} times", at_least=ratio)


def at_most(ratio: float) -> Promise:
    return Promise(text=f"≤ {ratio:g} times", at_most=ratio)


def at_most_more(value: float, unit: str) -> Promise:
    """A difference's upper bound."""
    return Promise(text=f"≤ {value:g} {unit} more", at_most=value)


def below(value: float, unit: str) -> Promise:
    return Promise(text=f"< {value:g} {unit}", at_most=value)


def bound(name: str, value: float, limit: float, unit: str, *, note: str = "") -> Figure:
    """A figure without a peer: ``value`` must stay below ``limit``."""
    return Figure(name=name, unit=unit, ours=value, judged=value, promises=(below(limit, unit),), note=note)


def in_turns(
    name: str,
    contestants: Sequence[Callable[[], Sequence[float]]],
    *,
    rounds: int,
    warmups: int = 1,
) -> list[list[Sequence[float]]]:
    """Runs each contestant once a round, in alternating order; returns each one's results by round.

    The first contestant is pylog, the others its peers. ``warmups`` rounds are discarded first: JVM compilation,
    workers that fork, connections.
    """
    for _ in range(warmups):
        for once in reversed(contestants):
            once()
    results: list[list[Sequence[float]]] = [[] for _ in contestants]
    for turn in range(rounds):
        order = range(len(contestants)) if turn % 2 else reversed(range(len(contestants)))
        for place in order:
            results[place].append(contestants[place]())
        said = " / ".join(", ".join(f"{value:.3g}" for value in each[-1]) for each in results)
        print(f"  {name} {turn + 1}/{rounds}: {said}", file=sys.stderr, flush=True)
    return results


def compared(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    unit: str,
    peer_is: str,
    promises: Sequence[Promise] = (),
    note: str = "",
    is_difference: bool = False,
) -> Figure:
    """The figure of what was measured in the same rounds (both in ``unit``), by ratio or difference."""
    pairs = list(zip(ours, peer, strict=True))
    judged = [mine - other if is_difference else mine / other for mine, other in pairs]
    return Figure(
        name=name,
        unit=unit,
        ours=statistics.median(ours),
        peer=statistics.median(peer),
        peer_is=peer_is,
        judged=statistics.median(judged),
        is_difference=is_difference,
        spread=(min(judged), max(judged)),
        promises=promises,
        note=note,
        pairs=pairs,
    )


def paired(
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    *,
    unit: str,
    peer_is: str,
    rounds: int,
    warmups: int = 1,
    promises: Sequence[Promise] = (),
    note: str = "",
    is_difference: bool = False,
) -> Figure:
    """Runs ``ours`` and ``peer`` alternately and compares what they return (both in ``unit``), by ratio or difference.

    ``warmups``: as `in_turns`.
    """
    mine, others = in_turns(name, [lambda: (ours(),), lambda: (peer(),)], rounds=rounds, warmups=warmups)
    return compared(
        name,
        [value for (value,) in mine],
        [value for (value,) in others],
        unit=unit,
        peer_is=peer_is,
        promises=promises,
        note=note,
        is_difference=is_difference,
    )


def median_ms(once: Callable[[], object], times: int) -> float:
    """How long one call takes, of so many after each other: the median, in ms."""
    took_s = []
    for _ in range(times):
        started = time.perf_counter()
        once()
        took_s.append(time.perf_counter() - started)
    return statistics.median(took_s) * 1e3


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of them do not exceed; 100 values at least for p99."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def show(
    figures: Sequence[Figure],
    failures: Sequence[tuple[str, str]],
    console: Console,
    *,
    title: str,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Prints the table, and below it the notes, the settings and the comparisons that failed."""
    table = Table(title=title, header_style="bold", title_justify="left")
    for heading in ("what", "pylog", "peer", "unit"):
        table.add_column(heading, justify="left" if heading in {"what", "unit"} else "right")
    table.add_column("ratio or difference", justify="right")
    table.add_column("pairs", justify="right")
    table.add_column("promised", justify="right")
    table.add_column("kept")
    for figure in figures:
        verdict = "" if not figure.promises else "[green]yes[/]" if figure.kept else "[red]no[/]"
        judged = "{:+.1f}" if figure.is_difference else "{:.2f}"
        spread = " … ".join(judged.format(each) for each in figure.spread) if figure.spread else ""
        table.add_row(
            figure.name,
            f"{figure.ours:.3g}",
            "" if figure.peer is None else f"{figure.peer:.3g}",
            figure.unit,
            "" if figure.peer is None else judged.format(figure.judged),
            spread,
            ", ".join(promise.text for promise in figure.promises),
            verdict,
        )
    console.print(table)
    for figure in figures:
        described = "; ".join(
            part for part in (f"peer: {figure.peer_is}" if figure.peer_is else "", figure.note) if part
        )
        if described:
            console.print(f"[dim]{figure.name}: {described}[/]")
    for side, text in (settings or {}).items():
        console.print(f"{side}: {text}", highlight=False)
    for name, error in failures:
        console.print(f"[red]{name} failed:[/] {error}", highlight=False)


def write_json(
    path: Path,
    figures: Sequence[Figure],
    failures: Sequence[tuple[str, str]],
    *,
    quick: bool,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Writes everything in the table and every pair, for a program."""
    document = {
        "quick": quick,
        "settings": dict(settings or {}),
        "machine": {
            "processors": _usable_processors(),
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "figures": [{**asdict(figure), "kept": figure.kept} for figure in figures],
        "failures": [{"comparison": name, "error": error} for name, error in failures],
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _usable_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
