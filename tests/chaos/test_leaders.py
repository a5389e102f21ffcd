"""Times without a leader: what counts as one."""

from __future__ import annotations

from typing import Any

import pytest

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from tests.chaos import leaders
from tests.chaos.leaders import LeaderGaps, LeaderWatch
from tests.waiting import wait_until

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


@pytest.mark.parametrize("failures", [2, 1_000_000])
def test_watch_tries_to_connect_until_zookeeper_is_back_or_the_watch_is_over(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first fault may stop ZooKeeper before the watch has connected."""
    attempts: list[str] = []

    class Connected:
        def find_all(self, paths: list[str]) -> list[Any]:
            return [None] * len(paths)

        def close(self) -> None:
            attempts.append("closed")

    def connect(*_: Any, **__: Any) -> Connected:
        attempts.append("tried")
        if len(attempts) <= failures:
            raise ZooKeeperUnavailableError("stopped")
        return Connected()

    monkeypatch.setattr(leaders.KazooZooKeeper, "connect", connect)
    watch = LeaderWatch("127.0.0.1:1", "t", 1, lambda: {1})
    watch.start()
    if failures == 2:
        wait_until(lambda: _AT in watch.gaps.longest_s, "the watch looks")
    else:
        wait_until(lambda: len(attempts) > 2, "the watch tries")
    watch.stop()
    assert ("closed" in attempts) == (failures == 2)
