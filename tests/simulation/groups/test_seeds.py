"""Seventy-five seeds: what `checker` lists holds after every step of each, and in the end all is read."""

from __future__ import annotations

from tests.simulation.groups.run import GROUPS
from tests.simulation.simulator.pool import run_all

FIRST, COUNT = 1, 75
FAULTS_AT_LEAST = 500


def test_groups_keep_their_promises_in_every_seed() -> None:
    """W19, W21 to W24: no two members have one partition, no offset goes back, no record is left out."""
    summary = run_all(GROUPS, range(FIRST, FIRST + COUNT), faults_at_least=FAULTS_AT_LEAST)
    assert summary.counts["records finished"] >= 300 * COUNT
    assert summary.counts["leases lost"] >= COUNT
    assert summary.counts["offsets rewound"] >= COUNT // 10
