"""Three hundred seeds: every invariant listed in `invariants` holds after every step of each."""

from __future__ import annotations

from tests.simulation.partitions.run import PARTITIONS
from tests.simulation.simulator.pool import run_seeds
from tests.simulation.simulator.situations import never_happened

FIRST, COUNT = 1, 300
FAULTS_AT_LEAST = 1_000


def test_invariants_hold_in_three_hundred_seeds() -> None:
    """All invariants, and liveness: healed, everything is readable again; and no situation was missed."""
    summary = run_seeds(PARTITIONS, range(FIRST, FIRST + COUNT), processes=2)
    failures = "\n\n".join(
        f"seed {each.seed} (make simulate SEED={each.seed}): {each.failure}\n{each.trace}"
        for each in summary.failures[:3]
    )
    assert not summary.failures, f"{len(summary.failures)} of {COUNT} seeds\n{failures}"
    assert summary.seeds == COUNT
    assert sum(count for what, count in summary.counts.items() if what.startswith("fault ")) >= FAULTS_AT_LEAST
    assert summary.counts["records acknowledged"] >= 20 * COUNT
    assert never_happened(PARTITIONS.situations, summary.counts) == []
