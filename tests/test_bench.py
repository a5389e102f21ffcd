"""What the measurements themselves rest on: hooks that exist, spans that are read as they were written, bends."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.growth.table import Cost
from bench.timeline.figure import draw, rows_of
from bench.timeline.hooks import HOOKS, Hook
from bench.timeline.recording import Span, Window, read_spans, without_idle_lanes

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.where)
def test_hook_names_a_function_that_exists(hook: Hook) -> None:
    """A function that is renamed would be missing in the timelines."""
    module, _, inside = hook.where.partition(":")
    *owners, last = inside.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    assert callable(vars(owner)[last])


def test_spans_are_read_as_they_were_recorded_in_another_process(tmp_path: Path) -> None:
    """A wrapped function records its calls, with thread and detail, and still does what it did."""
    program = (
        "from bench.timeline.recorder import install_from_environment; install_from_environment()\n"
        "from pyspark_log.client.consumer.fetcher import Fetcher\n"
        "assert Fetcher.wanted.__wrapped__.__name__ == 'wanted'\n"
        "import pathlib; from broker_runtime.log.files import RealFiles\n"
        "files = RealFiles(); at = files.open(pathlib.Path('file'), create=True)\n"
        "files.write(at, [b'abc'], 0); files.sync(at); files.close(at)\n"
        "assert pathlib.Path('file').read_bytes() == b'abc'"
    )
    environment = {"PYLOG_BENCH_TIMELINE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, timeout=60, check=True)
    found = read_spans(tmp_path, own_pid=0, own_name="client")  # its command names broker_runtime
    assert [(span.lane, span.label) for span in found] == [
        ("broker · main thread", "write file"),
        ("broker · main thread", "fdatasync"),
    ]
    assert all(span.begin_ns < span.end_ns for span in found)


def test_figure_is_a_drawing_with_each_span_of_the_window() -> None:
    """Spans are cut off at the window's ends; threads that only wait are left out."""
    window = Window(1_000_000, 3_000_000)
    spans = [
        Span("a", "main thread", "work <1>", "work", 500_000, 1_500_000),
        Span("a", "main thread", "inside", "disk", 1_100_000, 1_200_000),
        Span("a", "other", "wait", "wait", 0, 9_000_000),
        Span("a", "main thread", "later", "work", 3_000_001, 4_000_000),
    ]
    shown = without_idle_lanes(window.cut(spans), window)
    rows = rows_of(shown, window)
    assert [(row.label, row.begin_ms, row.total_ms) for row in rows] == [("work <1>", 0.0, 0.5), ("inside", 0.1, 0.1)]
    drawing = ElementTree.fromstring(draw("title", "note", shown, window))
    assert len([each for each in drawing.iter() if each.tag.endswith("title")]) == 2


def test_cost_bends_where_it_is_more_than_twice_what_its_shape_predicts() -> None:
    """Flat costs are compared with the cheapest smaller point, linear ones by what each of the n costs."""
    flat = Cost("flat", "ms", "flat", floor=1.0, points={1: 10.0, 10: 8.0, 100: 17.0})
    assert flat.bends() == [(100, 17 / 8)]
    linear = Cost("linear", "ms", "linear", points={1: 10.0, 10: 20.0, 100: 200.0, 1_000: 4_100.0})
    assert linear.bends() == [(1_000, 4_100 / 2_000)]
    assert linear.relative()[10] == pytest.approx(0.2)


def test_cost_does_not_bend_by_noise() -> None:
    """Differences below its floor do not count."""
    assert Cost("tiny", "ms", "flat", floor=1.0, points={1: 0.1, 10: 0.9}).bends() == []
    small = {1: 0.0, 10: 1.6, 100: 11.0}
    assert Cost("nothing", "%", "linear", floor=2.0, points={**small, 300: 28.8}).bends() == []
    assert Cost("nothing", "%", "linear", floor=2.0, points={**small, 300: 70.0}).bends() == [(300, 70 / 33)]
