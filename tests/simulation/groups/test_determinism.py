"""One seed is one run of groups, whatever ran before it and wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.groups.run import run_seed

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("seed", [2, 7])
def test_seed_run_twice_gives_the_identical_trace(seed: int) -> None:
    """One seed run twice gives the identical trace."""
    first, second = run_seed(seed), run_seed(seed)
    assert first.lines > 100
    assert (first.digest, first.events, first.lines) == (second.digest, second.events, second.lines)


def test_trace_does_not_depend_on_the_process() -> None:
    """Another hash seed, so another order of sets: the same trace."""
    here = run_seed(7)
    code = "from tests.simulation.groups.run import run_seed; print(run_seed(7).digest)"
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


def test_seeds_differ() -> None:
    """Two seeds are two runs."""
    assert run_seed(2).digest != run_seed(7).digest
