"""Calls that run concurrently, on threads of their own, within a time limit."""

import threading
import time

from broker_runtime.contract.threads import run_within
from tests.unit.standing_disk import LIMIT_S


def test_run_within_names_what_failed_and_what_has_not_ended():
    """Calls that ended in order are not named; a stuck one does not use up the others' time."""
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


def test_run_within_runs_all_concurrently():
    """Each may wait for another."""
    barrier = threading.Barrier(3)
    began_s = time.monotonic()
    assert run_within(LIMIT_S, {name: lambda: barrier.wait(LIMIT_S) for name in "abc"}) == {}
    assert time.monotonic() - began_s < LIMIT_S


def test_run_within_runs_calls_inline_when_no_thread_can_be_started(monkeypatch):
    """Nothing is left out when the system has no thread."""

    def refuses(thread):
        raise RuntimeError("can't start new thread")

    done, error = [], OSError("x")

    def fails():
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        assert run_within(1.0, {"ends": lambda: done.append(1), "fails": fails}) == {"fails": error}
    assert done == [1]
