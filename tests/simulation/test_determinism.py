"""One seed is one run, of either workload, whatever ran before it and wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.simulator.workload import Workload
from tests.simulation.workloads import WORKLOADS

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
EACH_WORKLOAD = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


@EACH_WORKLOAD
@pytest.mark.parametrize("seed", [1, 9])
def test_seed_run_twice_gives_the_identical_trace(workload: Workload, seed: int) -> None:
    """One seed run twice gives the identical trace."""
    first, second = workload.run_seed(seed), workload.run_seed(seed)
    assert first.lines > 100
    assert (first.digest, first.events, first.lines) == (second.digest, second.events, second.lines)


@EACH_WORKLOAD
@pytest.mark.parametrize("seed", [9, 19])
def test_trace_does_not_depend_on_the_process(workload: Workload, seed: int) -> None:
    """Another hash seed, so another order of sets: the same trace."""
    here = workload.run_seed(seed)
    run = f"WORKLOADS[{workload.name!r}].run_seed({seed})"
    code = f"from tests.simulation.workloads import WORKLOADS; print({run}.digest)"
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


@EACH_WORKLOAD
def test_seeds_differ(workload: Workload) -> None:
    """Two seeds are two runs."""
    assert workload.run_seed(2).digest != workload.run_seed(9).digest
