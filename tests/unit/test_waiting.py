"""The wait of the tests: what it returns, and what it says when time is up."""

from __future__ import annotations

import pytest

from tests.waiting import comes_true, wait_until


def test_wait_returns_the_first_answer_that_is_true() -> None:
    """Callers use what they waited for."""
    answers = iter([None, [], [7], [8]])
    assert wait_until(lambda: next(answers), "something", pause_s=0) == [7]


def test_wait_looks_at_least_once_and_fails_after_its_limit() -> None:
    """A machine that stood still between the beginning and the first look makes no test fail."""
    assert wait_until(lambda: 3, "three", limit_s=0) == 3
    with pytest.raises(AssertionError, match=r"^not within 0 s: nothing; last seen: \[\]$"):
        wait_until(list, "nothing", limit_s=0)


def test_wait_that_fails_says_what_its_condition_compared() -> None:
    """`False` alone would tell nobody what was wrong."""
    held, wanted = {1: "a"}, {2}
    with pytest.raises(AssertionError, match=r"last seen: set\(held\) = \{1\}, wanted = \{2\}, len\(held\) = 1$"):
        wait_until(lambda: set(held) == wanted and not len(held) > 3, "they are the same", limit_s=0)
    with pytest.raises(AssertionError, match=r"last seen: \[each for each in wanted if each in extra\] = \[\]$"):
        wait_until(
            lambda extra=(3,): (
                [each for each in wanted if each in extra]  # what its lines compare is found, however many they are
                == [2]
            ),
            "they are the same",
            limit_s=0,
        )


def test_wait_takes_a_look_that_raises_again_only_if_it_may() -> None:
    """An error nobody expects ends the wait at once; one that may be for a moment is named at the end."""

    def refused() -> bool:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        wait_until(refused, "an answer")
    with pytest.raises(AssertionError, match=r"an answer; last seen: ConnectionError\('refused'\)"):
        wait_until(refused, "an answer", limit_s=0, ignoring=(OSError,))


def test_what_may_not_come_is_told_and_does_not_fail() -> None:
    """For callers that have an answer to that too."""
    answers = iter([0, 1])
    assert comes_true(lambda: next(answers), pause_s=0)
    assert not comes_true(lambda: False, limit_s=0)
