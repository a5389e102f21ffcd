"""What Spark's Python processes have imported is left out of the garbage collection that follows each task."""

from __future__ import annotations

import gc
import os
import sys
from types import SimpleNamespace

import pytest

from pyspark_log.spark import worker_memory
from pyspark_log.spark.worker_memory import keep_imports


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process of each time that `gc.freeze` was called."""
    frozen: list[int] = []
    monkeypatch.setattr(worker_memory, "_is_kept", {})
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(os.getpid()))
    return frozen


def run_as(monkeypatch: pytest.MonkeyPatch, module: str | None) -> None:
    spec = None if module is None else SimpleNamespace(name=module)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))  # type: ignore[arg-type]


def test_second_task_of_a_process_keeps_what_the_first_imported(
    monkeypatch: pytest.MonkeyPatch, frozen: list[int]
) -> None:
    """Once, after Spark has collected; a process forked from it begins anew."""
    run_as(monkeypatch, "pyspark.daemon")
    keep_imports()
    assert not frozen
    for _ in range(3):
        keep_imports()
    assert len(frozen) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    keep_imports()
    assert len(frozen) == 1
    keep_imports()
    assert frozen[1:] == [-1]


@pytest.mark.parametrize("module", [None, "pytest", "pyspark.worker"])
def test_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch, frozen: list[int], module: str | None) -> None:
    """Their garbage is theirs to collect: only Spark's daemon collects after each task."""
    run_as(monkeypatch, module)
    for _ in range(3):
        keep_imports()
    assert not frozen
