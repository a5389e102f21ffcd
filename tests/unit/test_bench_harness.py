"""How comparisons take turns, and what a figure is made of."""

from __future__ import annotations

import pytest

from bench.harness import compared, in_turns, paired, percentile


def test_turns_alternate_and_warmups_are_discarded() -> None:
    """The order within a round changes, so that no side always finds the warmer caches."""
    order: list[str] = []

    def contestant(name: str) -> tuple[float]:
        order.append(name)
        return (float(len(order)),)

    results = in_turns("x", [lambda: contestant("pylog"), lambda: contestant("peer")], rounds=3, warmups=1)
    assert order == ["peer", "pylog", "peer", "pylog", "pylog", "peer", "peer", "pylog"]
    assert results == [[(4.0,), (5.0,), (8.0,)], [(3.0,), (6.0,), (7.0,)]]


def test_ratio_is_the_median_of_neighbours_when_the_machine_slows_down() -> None:
    """A ratio is that of pairs, never of two medians taken apart."""
    figure = compared("x", [10.0, 1.0, 30.0], [5.0, 1.0, 10.0], unit="MB/s", peer_is="")
    assert figure.judged == 2.0
    assert figure.spread == (1.0, 3.0)
    assert (figure.ours, figure.peer) == (10.0, 5.0)


def test_difference_is_judged_when_asked_for() -> None:
    """Some figures are a difference in their unit."""
    figure = paired("x", lambda: 7.0, lambda: 4.0, unit="ms", peer_is="", rounds=2, is_difference=True)
    assert (figure.judged, figure.spread, figure.is_difference) == (3.0, (3.0, 3.0), True)


def test_percentile_is_the_value_that_so_many_do_not_exceed() -> None:
    """p50 and p99 of latencies."""
    values = [float(each) for each in range(1, 102)]
    assert percentile(values, 50) == pytest.approx(51)
    assert percentile(values, 99) == pytest.approx(100)
