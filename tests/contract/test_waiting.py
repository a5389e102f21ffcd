"""Deadlines end, pauses grow to a limit, a signal is never lost, a worker's thread ends and reports why."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker_runtime.contract.waiting import Backoff, Deadline, Signal, Worker
from tests.unit.client.channels import FakeClock
from tests.waiting import LIMIT_S

_LONG_S = 1000.0


@contextmanager
def running(step: Callable[[], float | None], **arguments: Any) -> Iterator[Worker]:
    worker = Worker("test-worker", step, **arguments)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        assert worker.join(LIMIT_S)


def test_deadline_counts_down_to_zero() -> None:
    """The remaining time is never below zero nor above the requested limit."""
    clock = FakeClock()
    deadline = Deadline(5.0, clock=clock)
    assert (deadline.remaining_s(), deadline.remaining_s(2.0), deadline.expired) == (5.0, 2.0, False)
    clock.now += 5.0
    assert (deadline.remaining_s(), deadline.expired) == (0.0, True)
    assert not Deadline(None).expired


def test_deadline_ends_a_sleep() -> None:
    """A pause between two attempts is no reason to be late."""
    clock = FakeClock()
    deadline = Deadline(5.0, clock=clock)
    slept = []
    for seconds in (3.0, 3.0, 3.0):
        deadline.sleep(seconds)
        slept.append(clock.now)
    assert slept == [3.0, 5.0, 5.0]
    Deadline(None, clock=clock).sleep(2.0)
    assert clock.now == 7.0


def test_backoff_doubles_with_jitter_up_to_its_limit() -> None:
    """Each pause is between half and all of the step, the last ones of the limit."""
    backoff = Backoff(first_s=0.1, limit_s=1.0, rng=random.Random(1))
    pauses = [backoff.next_s() for _ in range(8)]
    for pause, full in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= pause <= full
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_signal_ends_one_wait_and_is_cleared_by_it() -> None:
    """This also holds if it was set before the wait; it ends one wait, however often it was set."""
    signal = Signal()
    signal.set()
    signal.set()
    assert signal.is_set
    assert signal.wait(_LONG_S)
    assert not signal.is_set
    assert not signal.wait(0.0)


def test_signal_is_not_lost_when_it_is_set_during_a_look() -> None:
    """A change during the reader's look is looked at after the next wait."""
    signal, seen = Signal(), []
    state = -1

    def change_all() -> None:
        nonlocal state
        while state < 999:
            state += 1
            signal.set()

    thread = threading.Thread(target=change_all, daemon=True)
    thread.start()
    while state < 999 or signal.is_set:
        assert signal.wait(LIMIT_S)
        seen.append(state)
    thread.join(LIMIT_S)
    assert seen[-1] == 999


def test_signal_that_is_set_as_a_wait_ends_is_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits again without a look, as between two heartbeats, misses nothing."""
    signal = Signal()
    wait = signal._event.wait

    def sets_late(timeout_s: float) -> bool:
        was_set = wait(timeout_s)
        signal.set()
        return was_set

    with monkeypatch.context() as patch:
        patch.setattr(signal._event, "wait", sets_late)
        assert not signal.wait(0.0)
    assert signal.wait(0.0)


def test_worker_steps_until_it_is_stopped() -> None:
    """A step that requests no pause is called again at once."""
    steps = 0
    enough = threading.Event()

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            enough.set()

    with running(step) as worker:
        assert enough.wait(LIMIT_S)
        assert worker.is_running
        assert not worker.is_stopping
    assert not worker.is_running
    before = steps
    assert worker.join(0.0)
    assert steps == before


def test_worker_pauses_until_it_is_woken_or_stopped() -> None:
    """A wake-up during the step is not lost: no pause follows."""
    stepped, woken = threading.Semaphore(0), threading.Event()

    def step() -> float:
        stepped.release()
        if not woken.is_set():
            woken.set()
            worker.wake()
        return _LONG_S

    worker = Worker("test-worker", step)
    worker.start()
    for _ in range(2):
        assert stepped.acquire(timeout=LIMIT_S)
    assert not stepped.acquire(timeout=0.05)
    worker.wake()
    assert stepped.acquire(timeout=LIMIT_S)
    worker.stop()
    assert worker.join(LIMIT_S)
    assert not stepped.acquire(blocking=False)


def test_worker_rests_when_woken_but_not_when_stopped() -> None:
    """A least time between two steps holds even if many wake it."""
    rested = []
    in_step = threading.Event()

    def step() -> None:
        in_step.set()
        rested.append(worker.rest(0.05 if not rested else _LONG_S))

    worker = Worker("test-worker", step)
    worker.wake()
    worker.start()
    worker.wake()
    assert in_step.wait(LIMIT_S)
    while not rested:
        worker.wake()
    worker.stop()
    assert worker.join(LIMIT_S)
    assert rested == [False, True]


def test_worker_interrupts_a_step_that_blocks_elsewhere() -> None:
    """The worker cannot end what a step waits for outside."""
    elsewhere = threading.Event()
    ended = []
    with running(
        lambda: ended.append(elsewhere.wait(LIMIT_S)), interrupt=elsewhere.set, at_end=lambda: ended.append("end")
    ):
        pass
    assert ended == [True, "end"]


def test_worker_reports_a_defect_with_its_traceback_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for a thread that died unnoticed; the step's resources are released first."""
    order: list[object] = []
    defect = KeyError("x")

    def step() -> None:
        raise defect

    with caplog.at_level(logging.CRITICAL), running(step, at_end=lambda: order.append("end"), on_defect=order.append):
        pass
    assert order == ["end", defect]
    (record,) = caplog.records
    assert record.getMessage().startswith("end thread thread=test-worker error=")
    assert record.exc_info is not None
    assert record.exc_info[1] is defect


@pytest.mark.parametrize("raised", [SystemExit(3), ValueError("at the end")], ids=["exit", "while ending"])
def test_worker_reports_any_exception_that_ends_it(raised: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """This includes an exit, which Python would not print for a thread, and a defect of the ending itself."""
    seen: list[BaseException] = []

    def fails() -> None:
        raise raised

    is_step = isinstance(raised, SystemExit)
    with caplog.at_level(logging.CRITICAL):
        worker = Worker(
            "test-worker",
            fails if is_step else lambda: worker.stop(),
            at_end=(lambda: None) if is_step else fails,
            on_defect=seen.append,
        )
        worker.start()
        assert worker.join(LIMIT_S)
    assert seen == [raised]


@pytest.mark.parametrize(
    "error", [OSError("no room"), RuntimeError("can't start new thread")], ids=["named", "no thread"]
)
def test_worker_continues_after_transient_errors(error: Exception) -> None:
    """The system may soon have the missing resource again; the pause keeps the log from filling."""
    tries = 0
    again = threading.Event()

    def step() -> float:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise error
        again.set()
        return _LONG_S

    with running(step, retried=(OSError,), again_s=0.01, on_defect=lambda _: pytest.fail("no defect")):
        assert again.wait(LIMIT_S)


def test_worker_that_was_not_started_needs_no_end() -> None:
    """A caller that failed halfway through its own start stops everything it has."""
    worker = Worker("test-worker", lambda: None)
    worker.stop()
    assert worker.join(0.0)
    assert not worker.is_running


def test_worker_may_be_started_later_when_the_system_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is no defect."""
    worker = Worker("test-worker", lambda: _LONG_S)

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        assert not worker.may_start()
    assert worker.may_start()
    worker.stop()
    assert worker.join(LIMIT_S)


def test_worker_does_not_wait_for_itself() -> None:
    """The thread that closes everything may be one of the workers."""
    joined = []

    def step() -> None:
        worker.stop()
        joined.append(worker.join(LIMIT_S))

    worker = Worker("test-worker", step)
    worker.start()
    assert worker.join(LIMIT_S)
    assert joined == [False]
