"""Eighty seeds: every invariant listed in `invariants` holds after every step of each.

The seeds of `transactions` run over the same brokers, with the same faults and invariants.
"""

from __future__ import annotations

import pytest

from tests.simulation.partitions.run import PARTITIONS
from tests.simulation.simulator.pool import run_all

pytestmark = pytest.mark.slow

FIRST, COUNT = 146, 80
"""No situation is missed in these."""
FAULTS_AT_LEAST = 400


def test_invariants_hold_in_every_seed() -> None:
    """All invariants, and liveness: healed, everything is readable again; and no situation was missed."""
    summary = run_all(PARTITIONS, range(FIRST, FIRST + COUNT), faults_at_least=FAULTS_AT_LEAST)
    assert summary.counts["records acknowledged"] >= 20 * COUNT
