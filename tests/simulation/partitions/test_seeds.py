"""Three hundred seeds: every invariant listed in `invariants` holds after every step of each."""

from __future__ import annotations

import pytest

from tests.simulation.partitions.run import PARTITIONS
from tests.simulation.simulator.pool import run_all

pytestmark = pytest.mark.slow

FIRST, COUNT = 1, 300
FAULTS_AT_LEAST = 1_000


def test_invariants_hold_in_three_hundred_seeds() -> None:
    """All invariants, and liveness: healed, everything is readable again; and no situation was missed."""
    summary = run_all(PARTITIONS, range(FIRST, FIRST + COUNT), faults_at_least=FAULTS_AT_LEAST)
    assert summary.counts["records acknowledged"] >= 20 * COUNT
