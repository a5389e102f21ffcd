"""Calls that are run at once, on threads of their own, within a limit."""

import threading
import time

from broker_runtime.contract.threads import run_within
from tests.unit.standing_disk import LIMIT_S


def test_run_within_names_what_failed_and_what_has_not_ended():
    """What ended in order is not named; the others' time is not taken by one that stands still."""
    goes_on, done, error = threading.Event(), [], OSError("x")

    def fails():
        raise error

    try:
        failed = run_within(
            1.0, {"stands": lambda: goes_on.wait(LIMIT_S), "fails": fails, "ends": lambda: done.append(1)}
        )
    finally:
        goes_on.set()
    assert failed == {"stands": None, "fails": error}
    assert done == [1]


def test_run_within_runs_all_at_once():
    """Each may wait for another."""
    barrier = threading.Barrier(3)
    began_s = time.monotonic()
    assert run_within(LIMIT_S, {name: lambda: barrier.wait(LIMIT_S) for name in "abc"}) == {}
    assert time.monotonic() - began_s < LIMIT_S


def test_run_within_runs_in_line_what_no_thread_can_be_started_for(monkeypatch):
    """Nothing is left out where the system has no thread to give."""

    def refuses(thread):
        raise RuntimeError("can't start new thread")

    done, error = [], OSError("x")

    def fails():
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        assert run_within(1.0, {"ends": lambda: done.append(1), "fails": fails}) == {"fails": error}
    assert done == [1]
