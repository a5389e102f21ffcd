"""The checker of groups is checked: what is broken on purpose is found out, and what is not is not."""

from __future__ import annotations

import pytest

from tests.simulation.groups.run import GROUPS
from tests.simulation.simulator.pool import first_violation, run_limited

pytestmark = pytest.mark.alone

SEEDS = 300
TRIED_FIRST = {
    "deposed_coordinator_goes_on": [52],
    "resets_before_it_is_written_that_members_have_left": [28],
}
"""Seeds that caught it when they were last searched for; if they do no more, all are tried."""


def test_seeds_are_tried_for_variants_that_there_are() -> None:
    """None of the names is that of a variant that is gone, and no seed is beyond those that all are tried with."""
    assert set(GROUPS.variants.names()) >= set(TRIED_FIRST)
    assert all(0 < seed <= SEEDS for seeds in TRIED_FIRST.values() for seed in seeds)


@pytest.mark.parametrize("name", GROUPS.variants.names())
def test_broken_variant_is_caught(name: str) -> None:
    """Each breaks an invariant, not just liveness, within 300 seeds; most within the first ten."""
    caught = first_violation(GROUPS, [*TRIED_FIRST.get(name, ()), *range(1, SEEDS + 1)], variant=name)
    assert caught is not None
    assert caught.invariant is not None
    assert caught.invariant > 0, f"a defect of the variant itself, not an invariant: {caught.failure}"


def test_what_catches_the_deposed_coordinator_finds_nothing_without_it() -> None:
    """What is caught is the variant, and no other thing that its faults show."""
    faults = GROUPS.variants.faults("deposed_coordinator_goes_on")
    assert [run_limited(GROUPS, seed, faults=faults).failure for seed in range(75, 85)] == [None] * 10
