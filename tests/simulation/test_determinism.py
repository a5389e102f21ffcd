"""One seed is one run, of the cluster or of groups, whatever ran before it and wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.groups import run as of_groups
from tests.simulation.partitions import run as of_the_cluster
from tests.simulation.partitions.run import Outcome

ROOT = Path(__file__).parents[2]
Runner = Callable[[int], Outcome]
RUNNERS = pytest.mark.parametrize("run_seed", [of_the_cluster.run_seed, of_groups.run_seed], ids=["cluster", "groups"])


@RUNNERS
@pytest.mark.parametrize("seed", [1, 9])
def test_seed_run_twice_gives_the_identical_trace(run_seed: Runner, seed: int) -> None:
    """One seed run twice gives the identical trace."""
    first, second = run_seed(seed), run_seed(seed)
    assert first.lines > 100
    assert (first.digest, first.events, first.lines) == (second.digest, second.events, second.lines)


@RUNNERS
def test_trace_does_not_depend_on_the_process(run_seed: Runner) -> None:
    """Another hash seed, so another order of sets: the same trace."""
    here = run_seed(9)
    code = f"from {run_seed.__module__} import run_seed; print(run_seed(9).digest)"
    for hash_seed in ("1", "2"):
        answer = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert answer.stdout.strip() == here.digest


@RUNNERS
def test_seeds_differ(run_seed: Runner) -> None:
    """Two seeds are two runs."""
    assert run_seed(2).digest != run_seed(9).digest
