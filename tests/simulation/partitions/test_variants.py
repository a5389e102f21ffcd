"""The checker is checked: brokers that are broken on purpose are found out, and those that are not are not."""

from __future__ import annotations

import pytest

from tests.simulation.partitions.run import PARTITIONS
from tests.simulation.simulator.pool import first_violation, run_limited

pytestmark = [pytest.mark.alone, pytest.mark.slow]

SEEDS = 300
TRIED_FIRST = {
    "changes_in_sync_sets_in_any_session": [9, 39],
    "compares_offsets_and_no_epochs": [213],
    "counts_the_in_sync_set_as_written": [66, 142],
    "elects_anybody_after_a_power_loss": [109, 139],
    "follows_from_its_logs_end": [13],
    "in_sync_without_broker_epoch": [4],
    "keeps_epochs_at_truncation": [50, 52],
    "leaves_sets_to_members_that_are_gone": [40, 73],
    "looks_at_nothing_behind_a_bad_frame": [50],
    "rolls_with_a_snapshot_of_before": [181, 192],
    "saves_a_high_watermark_that_is_not_durable": [5, 7],
    "takes_a_copy_for_the_disk": [26, 56],
    "takes_any_disk_for_its_own": [23],
    "takes_every_log_for_flushed": [40, 70],
    "trusts_what_a_failed_fsync_left": [24, 58],
    "unclean_restart_stays_in_sync": [9],
    "waits_for_nobody_who_may_leave": [71, 131],
    "waits_for_what_was_cut": [33, 154],
    "writes_as_a_controller_without_a_check": [90, 150],
}
"""Seeds that caught it when they were last searched for; if they do no more, all are tried."""


def test_seeds_are_tried_for_variants_that_there_are() -> None:
    """None of the names is that of a variant that is gone, and no seed is beyond those that all are tried with."""
    assert set(PARTITIONS.variants.names()) >= set(TRIED_FIRST)
    assert all(0 < seed <= SEEDS for seeds in TRIED_FIRST.values() for seed in seeds)


@pytest.mark.parametrize("name", PARTITIONS.variants.names())
def test_broken_variant_is_caught(name: str) -> None:
    """Each breaks an invariant, not just liveness, within 300 seeds; most within the first ten."""
    caught = first_violation(PARTITIONS, [*TRIED_FIRST.get(name, ()), *range(1, SEEDS + 1)], variant=name)
    assert caught is not None
    assert caught.invariant is not None
    assert caught.invariant > 0, f"a defect of the variant itself, not an invariant: {caught.failure}"
    assert f"seed {caught.seed}" in caught.trace or caught.lines > 400


def test_seeds_that_catch_variants_are_clean_without_them() -> None:
    """What is caught is the variant, and no other thing that these seeds show."""
    outcomes = [run_limited(PARTITIONS, seed) for seed in range(1, 4)]
    assert [outcome.failure for outcome in outcomes] == [None, None, None]
