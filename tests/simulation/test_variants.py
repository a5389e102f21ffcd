"""The checker is checked: brokers that are broken on purpose are found out, and those that are not are not."""

from __future__ import annotations

import pytest

from tests.simulation import variants
from tests.simulation.pool import run_limited

SEEDS = 1_000
TRIED_FIRST = {"counts_the_in_sync_set_as_last_read": [470]}
"""A seed that caught it when it was last searched for; if it does no more, all are tried."""


@pytest.mark.parametrize("name", variants.names())
def test_broken_variant_is_caught(name: str) -> None:
    """Each breaks an invariant, not just liveness, within 1,000 seeds; most within the first ten."""
    with variants.broken(name):
        outcomes = (run_limited(seed) for seed in [*TRIED_FIRST.get(name, ()), *range(1, SEEDS + 1)])
        caught = next((outcome for outcome in outcomes if outcome.failure and outcome.invariant), None)
    assert caught is not None
    assert caught.invariant is not None
    assert caught.invariant > 0, f"a defect of the variant itself, not an invariant: {caught.failure}"
    assert f"seed {caught.seed}" in caught.trace or caught.lines > 400


def test_seeds_that_catch_variants_are_clean_without_them() -> None:
    """What is caught is the variant, and no other thing that these seeds show."""
    outcomes = [run_limited(seed) for seed in range(1, 4)]
    assert [outcome.failure for outcome in outcomes] == [None, None, None]
