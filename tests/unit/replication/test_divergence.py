"""Where logs diverge, by leader epochs: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_runtime.contract.errors import UnknownLeaderEpochError
from broker_runtime.replication.divergence import (
    NO_EPOCH,
    diverging_point,
    last_epoch,
    newest_epoch,
    truncation_offset,
)

EPOCHS = ((1, 0), (3, 10), (4, 25))  # of a leader in epoch 5 whose log ends at 40


def _answer(last_fetched_epoch: int, offset: int, epochs=EPOCHS, leader_epoch=5, log_end=40):
    return diverging_point(
        epochs, leader_epoch=leader_epoch, log_end=log_end, last_fetched_epoch=last_fetched_epoch, offset=offset
    )


@pytest.mark.parametrize(
    ("last_fetched_epoch", "offset"), [(NO_EPOCH, 0), (1, 0), (1, 10), (3, 10), (3, 25), (4, 25), (4, 40)]
)
def test_beginning_of_the_leaders_log_does_not_diverge(last_fetched_epoch, offset):
    """KIP-320: a follower whose last record is in the leader's log continues."""
    assert _answer(last_fetched_epoch, offset) is None


@pytest.mark.parametrize(
    ("last_fetched_epoch", "offset", "answer"),
    [
        (1, 11, (1, 10)),  # the leader of epoch 1 wrote more than the leader has
        (2, 12, (1, 10)),  # the leader never saw epoch 2
        (2, 5, (1, 10)),
        (3, 26, (3, 25)),
        (4, 41, (4, 40)),  # ended where the current epoch begins, though nothing is written in it yet
    ],
)
def test_records_unknown_to_the_leader_are_answered_with_the_end_of_its_own(last_fetched_epoch, offset, answer):
    """KIP-279: the answer has the leader's largest epoch up to the follower's, and its end."""
    assert _answer(last_fetched_epoch, offset) == answer


def test_epoch_without_a_record_yet_ends_the_one_before():
    """A leader's epoch begins at its log's end at the election, before anything is written in it."""
    assert _answer(4, 41, leader_epoch=5) == (4, 40)
    assert _answer(4, 41, epochs=(*EPOCHS, (5, 40)), leader_epoch=5, log_end=60) == (4, 40)
    assert _answer(4, 3, epochs=(), leader_epoch=5, log_end=0) == (4, 0)


def test_epoch_older_than_all_remaining_ones_ended_where_they_begin():
    """Records removed by retention prove nothing, and cost a follower at that very offset nothing."""
    assert _answer(2, 25, epochs=((4, 25),)) is None
    assert _answer(2, 30, epochs=((4, 25),)) == (2, 25)


def test_follower_from_the_future_is_not_truncated():
    """A stale leader that does not know it yet destroys no records."""
    with pytest.raises(UnknownLeaderEpochError, match="epoch 6, the leader is in 5"):
        _answer(6, 41)


def test_follower_truncates_to_the_earlier_of_both_ends():
    """KIP-101: the minimum of its own end of that epoch and the leader's."""
    assert truncation_offset(EPOCHS, log_end=40, diverging=(4, 30)) == 30
    assert truncation_offset(EPOCHS, log_end=40, diverging=(3, 20)) == 20
    assert truncation_offset(EPOCHS, log_end=40, diverging=(3, 33)) == 25


def test_follower_without_the_leaders_epoch_goes_back_to_its_previous_one():
    """KIP-279: it goes back and asks again."""
    assert truncation_offset(((1, 0), (4, 25)), log_end=40, diverging=(3, 30)) == 25


def test_follower_with_only_newer_epochs_gives_up_everything():
    """Otherwise leader and follower would repeat the same answers forever."""
    assert truncation_offset(((4, 25),), log_end=40, diverging=(3, 120)) == 25
    assert truncation_offset(((4, 25),), log_end=40, diverging=(3, 7)) == 7


def test_last_epoch_is_that_of_the_last_record():
    """An epoch that began at the end has no record."""
    assert [last_epoch(epochs, 40) for epochs in ((), ((1, 0),), ((1, 0), (2, 40)), ((2, 40),))] == [-1, 1, 1, -1]


def test_newest_epoch_may_have_begun_at_the_end_of_the_log():
    """All its records may have been deleted. An epoch behind the end is of records that are lost."""
    epochs = ((), ((1, 0),), ((1, 0), (2, 40)), ((2, 40),), ((1, 0), (2, 41)))
    assert [newest_epoch(each, 40) for each in epochs] == [-1, 1, 2, 2, 1]


# Two logs written by the same leaders up to some point each: the leader of epoch e wrote the records of epoch e.
_HISTORIES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6)


def _epochs(log):
    return [(epoch, at) for at, epoch in enumerate(log) if at == 0 or log[at - 1] != epoch]


@given(_HISTORIES, _HISTORIES, st.lists(st.integers(0, 6), max_size=6))
def test_repeated_truncation_ends_at_the_longest_common_prefix(first, second, common):
    """The follower ends with the common beginning, each step shortens it, and none cuts records that both have."""
    shared = sorted(common)
    top = max(shared, default=0)
    leader = shared + [top + 2 * step + 1 for step, (rows, _) in enumerate(first) for _ in range(rows)]
    follower = shared + [top + 2 * step + 2 for step, (rows, _) in enumerate(second) for _ in range(rows)]
    leader_epoch = max([*leader, *follower], default=0) + 1
    both = next(
        (at for at, (one, other) in enumerate(zip(leader, follower, strict=False)) if one != other),
        min(len(leader), len(follower)),
    )
    while True:
        answer = diverging_point(
            _epochs(leader),
            leader_epoch=leader_epoch,
            log_end=len(leader),
            last_fetched_epoch=last_epoch(_epochs(follower), len(follower)),
            offset=len(follower),
        )
        if answer is None:
            break
        shorter = truncation_offset(_epochs(follower), log_end=len(follower), diverging=answer)
        assert both <= shorter < len(follower)
        follower = follower[:shorter]
    assert follower == leader[: len(follower)]
    assert len(follower) == both
