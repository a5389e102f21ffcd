"""Times without a leader: what counts as one."""

from __future__ import annotations

import pytest

from tests.chaos.leaders import LeaderGaps

_AT = ("t", 0)


@pytest.mark.parametrize("leader", [None, 1])
def test_time_without_a_leader_lasts_until_a_serving_one_is_observed(leader: int | None) -> None:
    """No broker is named, or one that does not run."""
    gaps = LeaderGaps()
    gaps.observe(10.0, {_AT: 1}, {1, 2})
    gaps.observe(11.0, {_AT: leader}, {2})
    gaps.observe(12.0, {_AT: leader}, {2})
    gaps.observe(14.5, {_AT: 2}, {2})
    gaps.observe(20.0, {_AT: 2}, {2})
    assert gaps.longest_s == {_AT: 3.5}


def test_longest_of_several_gaps_is_kept() -> None:
    """Each partition has its own."""
    gaps, other = LeaderGaps(), ("t", 1)
    for now_s, leader in ((1.0, None), (4.0, 1), (5.0, None), (6.0, None)):
        gaps.observe(now_s, {_AT: leader, other: 1}, {1})
    assert gaps.longest_s == {_AT: 3.0}
    gaps.observe(9.0, {_AT: None, other: 1}, {1})
    assert gaps.longest_s == {_AT: 4.0}
