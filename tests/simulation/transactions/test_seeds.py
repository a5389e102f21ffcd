"""Seventy-five seeds: what `checker` lists holds after every step of each; in the end each row is there once."""

from __future__ import annotations

import pytest

from tests.simulation.simulator.pool import run_all
from tests.simulation.transactions.run import TRANSACTIONS

pytestmark = pytest.mark.slow

FIRST, COUNT = 1, 75
FAULTS_AT_LEAST = 500


def test_transactions_keep_their_promises_in_every_seed() -> None:
    """Invariants 4, 9 and 10, and those of partitions; and no situation was missed."""
    summary = run_all(TRANSACTIONS, range(FIRST, FIRST + COUNT), faults_at_least=FAULTS_AT_LEAST)
    assert summary.counts["transactions committed"] >= 5 * COUNT
    assert summary.counts["rows of transactions read"] >= 20 * COUNT
