"""`make demo` as a whole: it ends with `identical` and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from examples.demo import report
from examples.demo.flights import expected_stats, flights_table

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_demo_ends_with_identical_figures(tmp_path: Path) -> None:
    """A job and a broker are killed on the way, and nothing is lost or counted twice; all files of the demo are gone
    afterwards.
    """
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL to broker" in done.stdout
    assert "SIGKILL to the job" in done.stdout
    assert "every partition has three copies again" in done.stdout
    assert "identical: 16 carriers, 336,776 flights" in done.stdout
    counted = re.search(
        r"(\d+) written by all attempts, (\d+) of them aborted, (\d+) can be read; "
        r"(\d+) micro-batches, each of them once",
        done.stdout,
    )
    assert counted is not None, done.stdout
    written, aborted, readable, micro_batches = map(int, counted.groups())
    assert written == aborted + readable
    assert 0 < readable <= 16 * micro_batches
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("pylog")] == []


def test_report_says_identical_only_if_every_figure_is() -> None:
    """If one figure differs in its last bit, or there is a carrier too many, the verdict is different."""
    expected = expected_stats()
    console = Console(file=io.StringIO(), width=160)
    assert report.show(console, expected_stats(), expected)
    found = expected_stats()
    off = found["UA"].mean_dep_delay * (1 + 2**-52)
    assert off != found["UA"].mean_dep_delay
    assert not report.show(console, {**found, "UA": dataclasses.replace(found["UA"], mean_dep_delay=off)}, expected)
    assert not report.show(console, {**found, "XX": found["UA"]}, expected)
    assert not report.show(console, {}, expected)


def test_report_says_once_only_if_each_micro_batch_is_readable_once() -> None:
    """A micro-batch that is there twice, or not at all, is not; rows of an attempt that was aborted do not matter."""
    console = Console(file=io.StringIO(), width=160)
    readable = Counter(UA=8, OO=3)
    assert report.show_rows(console, readable + Counter(UA=1, OO=1), readable, 8)
    assert not report.show_rows(console, readable + Counter(UA=1), readable + Counter(UA=1), 8)
    assert not report.show_rows(console, readable, readable, 9)
    assert not report.show_rows(console, Counter(UA=8), readable, 8)


def test_flights_are_all_there_with_their_gaps() -> None:
    """There are 336,776 flights; pandas' NaN is null, and whole numbers are whole."""
    table = flights_table()
    assert table.num_rows == 336_776
    assert table["dep_delay"].null_count == 8_255
    assert str(table.schema.field("dep_delay").type) == "int32"
