"""The wait of the tests: what it returns, and what it reports when time is up."""

from __future__ import annotations

import pytest

from tests.waiting import comes_true, wait_until


def test_wait_returns_the_first_true_answer() -> None:
    """Callers use what they waited for."""
    answers = iter([None, [], [7], [8]])
    assert wait_until(lambda: next(answers), "something", pause_s=0) == [7]


def test_wait_looks_at_least_once_and_fails_after_its_limit() -> None:
    """A machine that was frozen between the start and the first look fails no test."""
    assert wait_until(lambda: 3, "three", limit_s=0) == 3
    with pytest.raises(AssertionError, match=r"^not within 0 s: nothing; last seen: \[\]$"):
        wait_until(list, "nothing", limit_s=0)


def test_failed_wait_shows_what_its_condition_compared() -> None:
    """`False` alone would not explain the failure."""
    held, wanted = {1: "a"}, {2}
    with pytest.raises(AssertionError, match=r"last seen: set\(held\) = \{1\}, wanted = \{2\}, len\(held\) = 1$"):
        wait_until(lambda: set(held) == wanted and not len(held) > 3, "they are the same", limit_s=0)
    with pytest.raises(AssertionError, match=r"last seen: \[each for each in wanted if each in extra\] = \[\]$"):
        wait_until(
            lambda extra=(3,): (
                [
                    each for each in wanted if each in extra
                ]  # the comparison in its lines is found, however many they are
                == [2]
            ),
            "they are the same",
            limit_s=0,
        )


def test_wait_repeats_a_raising_look_only_if_it_may() -> None:
    """An unexpected error ends the wait at once; a transient one is named at the end."""

    def refused() -> bool:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        wait_until(refused, "an answer")
    with pytest.raises(AssertionError, match=r"an answer; last seen: ConnectionError\('refused'\)"):
        wait_until(refused, "an answer", limit_s=0, ignoring=(OSError,))


def test_optional_wait_reports_a_timeout_and_does_not_fail() -> None:
    """Some callers handle that case as well."""
    answers = iter([0, 1])
    assert comes_true(lambda: next(answers), pause_s=0)
    assert not comes_true(lambda: False, limit_s=0)
