"""The end of the demo: the figures that came through pylog beside those computed straight from the data set."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from examples.demo.flights import CarrierStats


def show(console: Console, found: Mapping[str, CarrierStats], expected: Mapping[str, CarrierStats]) -> bool:
    """Prints the table and the verdict. Returns whether every figure of every carrier is the same, to the last bit."""
    table = Table(
        title="Per carrier, what came through pylog and Spark (and what the file itself says); delays in minutes"
    )
    table.add_column("carrier")
    for heading in ("flights", "mean delay", "cancelled"):
        table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("(file)", justify="right", style="dim", no_wrap=True)
    table.add_column("")
    for carrier in sorted(found.keys() | expected.keys()):
        ours, theirs = found.get(carrier), expected.get(carrier)
        cells = [text for pair in zip(_cells(ours), _cells(theirs), strict=True) for text in pair]
        table.add_row(carrier, *cells, "=" if ours == theirs else "[bold red]DIFFERS[/]")
    console.print(table)
    same = dict(found) == dict(expected)
    flights = sum(stats.flights for stats in found.values())
    if same:
        console.print(f"[bold green]identical[/]: {len(found)} carriers, {flights:,} flights, every figure the same.")
    else:
        console.print("[bold red]different[/]: the figures above that differ should not.")
    return same


def _cells(stats: CarrierStats | None) -> tuple[str, str, str]:
    if stats is None:
        return "-", "-", "-"
    return f"{stats.flights:,}", f"{stats.mean_dep_delay:.4f}", f"{stats.cancelled_share:.4%}"
