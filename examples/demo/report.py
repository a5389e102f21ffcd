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
    rows: tuple[Counter[str], Counter[str]] | None = None,
) -> bool:
    """Prints the table and the verdict. Returns whether every figure of every carrier is the same, to the last bit.
    ``rows``: how often a carrier's row was written, and how often it can be read."""
    table = Table(
        title="Per carrier, what came through pylog and Spark (and what the file itself says); delays in minutes"
    )
    table.add_column("carrier")
    for heading in ("flights", "mean delay", "cancelled"):
        table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("(file)", justify="right", style="dim", no_wrap=True)
    table.add_column("")
    if rows is not None:
        for heading in ("rows written", "aborted", "counted"):
            table.add_column(heading, justify="right")
    counts: list[str] = []
    for carrier in sorted(found.keys() | expected.keys()):
        ours, theirs = found.get(carrier), expected.get(carrier)
        cells = [text for pair in zip(_cells(ours), _cells(theirs), strict=True) for text in pair]
        if rows is not None:
            written, readable = rows[0][carrier], rows[1][carrier]
            counts = [str(written), str(written - readable), str(readable)]
        table.add_row(carrier, *cells, "=" if ours == theirs else "[bold red]DIFFERS[/]", *counts)
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
