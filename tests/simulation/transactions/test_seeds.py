"""Three hundred seeds: what `checker` lists holds after every step of each, and in the end each row is there once."""

from __future__ import annotations

from tests.simulation.simulator.pool import run_seeds
from tests.simulation.simulator.situations import never_happened
from tests.simulation.transactions.run import TRANSACTIONS

FIRST, COUNT = 1, 300
FAULTS_AT_LEAST = 2_000


def test_transactions_keep_their_promises_in_three_hundred_seeds() -> None:
    """Invariants 4, 9 and 10, and those of partitions; and no situation was missed."""
    summary = run_seeds(TRANSACTIONS, range(FIRST, FIRST + COUNT), processes=2)
    failures = "\n\n".join(
        f"seed {each.seed} (make simulate-transactions SEED={each.seed}): {each.failure}\n{each.trace}"
        for each in summary.failures[:3]
    )
    assert not summary.failures, f"{len(summary.failures)} of {COUNT} seeds\n{failures}"
    assert summary.seeds == COUNT
    assert sum(count for what, count in summary.counts.items() if what.startswith("fault ")) >= FAULTS_AT_LEAST
    assert summary.counts["transactions committed"] >= 5 * COUNT
    assert summary.counts["rows of transactions read"] >= 20 * COUNT
    assert never_happened(TRANSACTIONS.situations, summary.counts) == []
