"""A wait for durability ends by an fsync, at its time limit, or when there is nothing left to wait for.

Events during a wait are triggered from within the wait, so that no test needs a second thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from broker_runtime.contract.errors import LogStorageError, RequestTimedOutError
from broker_runtime.log.group_commit import GroupCommit


class Meanwhile(threading.Condition):
    """A condition whose first wait runs something instead of waiting; a second wait fails."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act: Callable[[], object] | None = act

    def wait(self, timeout: float | None = None) -> bool:
        assert self._act is not None, "it continues to wait"
        act, self._act = self._act, None
        act()
        return True


def behind_an_fsync(meanwhile: Callable[[GroupCommit], object], wait: Callable[[GroupCommit], object]) -> object:
    """The outcome of ``wait``, begun during an fsync; ``meanwhile`` runs while it waits."""
    results: list[object] = []

    def sync(timeout_s: float, is_over: Callable[[], bool]) -> int:
        if not results:
            results.append(None)
            results[0] = wait(commit)
        return 10

    commit = GroupCommit(sync, 5)
    commit._condition = Meanwhile(lambda: meanwhile(commit))
    commit.wait_durable(10, 1.0)
    return results[0]


def test_wait_ends_when_an_fsync_of_the_whole_log_does_not_reach_its_offset():
    """The log was truncated between the look at its end and the wait: no fsync will ever reach that offset."""
    syncs: list[int] = []

    def sync(timeout_s: float, is_over: Callable[[], bool]) -> int:
        syncs.append(1)
        assert len(syncs) == 1, "it spins"
        return 5

    assert GroupCommit(sync, 5).wait_durable(8, 60.0) == 5


def test_wait_behind_an_fsync_ends_when_the_log_is_cut_below_it():
    """Truncated records never become durable."""
    cut = behind_an_fsync(lambda commit: commit.truncated(6), lambda commit: commit.wait_durable(7, 60.0))
    restarted = behind_an_fsync(lambda commit: commit.begin_at(6), lambda commit: commit.wait_durable(7, 60.0))
    assert (cut, restarted) == (5, 6)


def test_wait_behind_an_fsync_continues_when_the_log_is_cut_above_it():
    """Remaining records become durable."""

    def cut(commit: GroupCommit) -> None:
        commit.truncated(8)
        commit._durable_end_offset = 8

    assert behind_an_fsync(cut, lambda commit: commit.wait_durable(7, 60.0)) == 8


def test_wait_behind_an_fsync_ends_at_once_when_nobody_is_interested_any_more():
    """A leader that lost its role answers all waiters, whatever the disk does."""
    is_over = False

    def lose_the_role(commit: GroupCommit) -> None:
        nonlocal is_over
        is_over = True
        commit.wake()

    wait = behind_an_fsync(lose_the_role, lambda commit: commit.wait_durable(7, 60.0, is_over=lambda: is_over))
    assert wait == 5


def test_wait_behind_an_fsync_ends_at_its_time_limit():
    """An own fsync cannot be interrupted, but another's is not waited for longer."""

    def wait(commit: GroupCommit) -> None:
        with pytest.raises(RequestTimedOutError, match="offset 7 was not on the device"):
            commit.wait_durable(7, 0.0)

    behind_an_fsync(lambda commit: None, wait)


def test_failed_or_ended_wait_leaves_nothing_behind():
    """Waits are forgotten when they end."""

    def fail(timeout_s: float, is_over: Callable[[], bool]) -> int:
        raise LogStorageError("broken")

    commit = GroupCommit(fail, 5)
    with pytest.raises(LogStorageError):
        commit.wait_durable(8, 1.0)
    assert commit.wait_durable(8, 1.0, is_over=lambda: True) == 5
    assert not commit._waits
    commit.fail(LogStorageError("broken for good"))
    with pytest.raises(LogStorageError, match="for good"):
        commit.wait_durable(5, 1.0)


def test_wait_that_cannot_lock_the_log_leaves_the_fsync_to_the_next():
    """Its time is up, or nobody is interested; the next waiter may get the log."""
    given: list[float] = []

    def sync(timeout_s: float, is_over: Callable[[], bool]) -> int:
        given.append(timeout_s)
        if len(given) < 3:
            states.append("over")
            raise RequestTimedOutError("busy")
        return 10

    states: list[str] = []
    commit = GroupCommit(sync, 5)
    with pytest.raises(RequestTimedOutError, match="busy"):
        commit.wait_durable(7, 0.0)
    states.clear()
    assert commit.wait_durable(7, 60.0, is_over=lambda: bool(states)) == 5
    assert commit.wait_durable(7, 60.0) == 10
    assert given[0] <= 0
    assert 0 < given[1] <= 60


def test_wait_that_cannot_lock_the_log_ends_when_the_log_is_cut_below_it():
    """Truncated records never become durable, whoever holds the log."""

    def sync(timeout_s: float, is_over: Callable[[], bool]) -> int:
        commit.begin_at(6)
        raise RequestTimedOutError("busy")

    commit = GroupCommit(sync, 5)
    assert commit.wait_durable(7, 60.0) == 6
