"""The checker of transactions is checked: what is broken on purpose is found out, and what is not is not."""

from __future__ import annotations

import pytest

from tests.simulation.simulator.pool import first_violation, run_limited
from tests.simulation.transactions.run import TRANSACTIONS

pytestmark = pytest.mark.alone

SEEDS = 300
TRIED_FIRST = {
    "commits_offsets_outside_of_the_decision": [6],
    "commits_what_was_aborted_for_its_age": [4],
    "decides_in_any_epoch": [8],
    "decides_without_compare_and_set": [9],
    "keeps_the_index_when_the_log_is_cut": [14],
    "leaves_batches_without_rows_undecided": [60],
}
"""Seeds that caught it when they were last searched for; if they do no more, all are tried."""


def test_seeds_are_tried_for_variants_that_there_are() -> None:
    """None of the names is that of a variant that is gone, and no seed is beyond those that all are tried with."""
    assert set(TRANSACTIONS.variants.names()) >= set(TRIED_FIRST)
    assert all(0 < seed <= SEEDS for seeds in TRIED_FIRST.values() for seed in seeds)


@pytest.mark.parametrize("name", TRANSACTIONS.variants.names())
def test_broken_variant_is_caught(name: str) -> None:
    """Each breaks an invariant, not just liveness, within 300 seeds; most within the first ten."""
    caught = first_violation(TRANSACTIONS, [*TRIED_FIRST.get(name, ()), *range(1, SEEDS + 1)], variant=name)
    assert caught is not None
    assert caught.invariant is not None
    assert caught.invariant > 0, f"a defect of the variant itself, not an invariant: {caught.failure}"


@pytest.mark.parametrize("name", ["decides_without_compare_and_set", "keeps_the_index_when_the_log_is_cut"])
def test_what_catches_variants_finds_nothing_without_them(name: str) -> None:
    """What is caught is the variant, and no other thing that its faults show."""
    faults = TRANSACTIONS.variants.faults(name)
    outcomes = [run_limited(TRANSACTIONS, seed, faults=faults) for seed in TRIED_FIRST[name]]
    assert [outcome.failure for outcome in outcomes] == [None]
