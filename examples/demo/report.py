"""The end of the demo: the figures that came through pylog beside those computed straight from the data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from examples.demo.flights import CarrierStats


def show(
    console: Console,
    found: Mapping[str, CarrierStats],
    expected: Mapping[str, CarrierStats],
) -> bool:
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


def show_rows(console: Console, written: Counter[str], readable: Counter[str], micro_batches: int) -> bool:
    """Prints how often rows of figures were written, aborted and can be read, by carrier (``written``: by all attempts
    of all tasks). Returns whether each micro-batch can be read once.

    Each micro-batch writes one row for each carrier it has met so far, so a carrier that is in all of them has one row
    for each, and none has more.
    """
    aborted = written - readable
    is_once = max(readable.values(), default=0) == micro_batches and not readable - written
    verdict = "each of them once" if is_once else "[bold red]which is not each of them once[/]"
    table = Table(title="Rows of figures in the topic, which the job wrote before and after it was killed")
    for heading in ("written by all attempts", "aborted", "can be read", "micro-batches"):
        table.add_column(heading, justify="right")
    table.add_row(*map(str, (written.total(), aborted.total(), readable.total(), micro_batches)))
    console.print(table)
    console.print(
        f"Rows of figures in the topic: {written.total()} written by all attempts, {aborted.total()} of them aborted, "
        f"{readable.total()} can be read; {micro_batches} micro-batches, {verdict}.",
        soft_wrap=True,
    )
    return is_once


def _cells(stats: CarrierStats | None) -> tuple[str, str, str]:
    if stats is None:
        return "-", "-", "-"
    return f"{stats.flights:,}", f"{stats.mean_dep_delay:.4f}", f"{stats.cancelled_share:.4%}"
