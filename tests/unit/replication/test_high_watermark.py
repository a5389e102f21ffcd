"""The high watermark as a function of the replicas' ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_runtime.replication import advanced_high_watermark

_BROKERS = st.integers(1, 5)


def test_high_watermark_is_the_minimum_over_the_in_sync_replicas() -> None:
    """It is the minimum durable end over the maximal in-sync set, the leader included."""
    assert advanced_high_watermark(0, {1: 10, 2: 7, 3: 9}, {1, 2, 3}) == 7
    assert advanced_high_watermark(0, {1: 10, 2: 7, 3: 9}, {1, 3}) == 9
    assert advanced_high_watermark(0, {1: 10}, {1}) == 10


def test_high_watermark_stays_when_a_replica_has_not_reported_its_end() -> None:
    """No member of the in-sync set is left out."""
    assert advanced_high_watermark(3, {1: 10}, {1, 2}) == 3


def test_high_watermark_stays_when_nobody_is_in_sync() -> None:
    """The minimum over nobody is no reason to advance."""
    assert advanced_high_watermark(3, {1: 10}, set()) == 3


@given(st.integers(0, 100), st.dictionaries(_BROKERS, st.integers(0, 100)), st.sets(_BROKERS))
def test_high_watermark_never_falls_and_never_passes_an_in_sync_replica(
    current: int, ends: dict[int, int], in_sync: set[int]
) -> None:
    """It never falls, and no advance passes the durable end of an in-sync replica."""
    after = advanced_high_watermark(current, ends, in_sync)
    assert after >= current
    if after > current:
        assert in_sync
        assert all(ends[broker] >= after for broker in in_sync)
