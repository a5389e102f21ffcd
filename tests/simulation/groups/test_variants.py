"""The checker of groups is checked: what is broken on purpose is found out, and what is not is not."""

from __future__ import annotations

import pytest

from tests.simulation.groups.run import GROUPS
from tests.simulation.simulator.pool import first_violation, run_limited

pytestmark = pytest.mark.alone

SEEDS = 300


@pytest.mark.parametrize("name", GROUPS.variants.names())
def test_broken_variant_is_caught(name: str) -> None:
    """Each breaks an invariant, not just liveness, within 300 seeds; most within the first ten."""
    caught = first_violation(GROUPS, range(1, SEEDS + 1), variant=name)
    assert caught is not None
    assert caught.invariant is not None
    assert caught.invariant > 0, f"a defect of the variant itself, not an invariant: {caught.failure}"


def test_what_catches_the_deposed_coordinator_finds_nothing_without_it() -> None:
    """What is caught is the variant, and no other thing that its faults show."""
    faults = GROUPS.variants.faults("deposed_coordinator_goes_on")
    assert [run_limited(GROUPS, seed, faults=faults).failure for seed in range(75, 85)] == [None] * 10
