"""What `Broker.stop` reports of its data directories, that none uses up another's time, and which loops end a
broker.
"""

import logging
import threading

import pytest

from broker_runtime.broker import Broker
from broker_runtime.contract.errors import SetupError
from broker_runtime.contract.settings import resolve
from broker_runtime.log.directory import CLEAN_NAME
from tests.unit.standing_disk import LIMIT_S
from tests.waiting import wait_until

SETTINGS = {"broker.id": 1, "zookeeper.connect": "127.0.0.1:1"}


@pytest.fixture
def broker(tmp_path):
    made = Broker(resolve("broker", {**SETTINGS, "log.dirs": str(tmp_path)}))
    made.opened = [made._open_directory(tmp_path / name, "c") for name in ("a", "b", "c")]
    return made


def is_clean(directory):
    return (directory.path / CLEAN_NAME).exists()


def test_stop_closes_all_directories_with_the_clean_mark(broker):
    """A broker with enough time leaves every directory clean."""
    assert broker.stop(LIMIT_S)
    assert [is_clean(each) for each in broker.opened] == [True] * 3


def test_stop_reports_an_abandoned_directory_and_closes_the_others(broker, monkeypatch):
    """A stalled directory costs the others nothing, whichever it is, and the stop was not complete."""
    goes_on = threading.Event()
    monkeypatch.setattr(broker.opened[2], "close", lambda: goes_on.wait(LIMIT_S))
    try:
        assert not broker.stop(4.0)
        assert [is_clean(each) for each in broker.opened] == [True, True, False]
    finally:
        goes_on.set()


def test_stop_reports_a_directory_that_could_not_be_closed(broker, monkeypatch, caplog):
    """Its error is reported, and the others are closed."""

    def fails():
        raise OSError("no such device")

    monkeypatch.setattr(broker.opened[0], "close", fails)
    assert not broker.stop(LIMIT_S)
    assert [is_clean(each) for each in broker.opened] == [False, True, True]
    assert "no such device" in caplog.text


def test_stop_gives_each_directory_all_the_time(broker, monkeypatch):
    """One that takes as long as several others is closed all the same: they are closed concurrently."""
    others = threading.Barrier(3)
    for directory in broker.opened:
        close = directory.close

        def close_together(close=close):
            others.wait(LIMIT_S)
            close()

        monkeypatch.setattr(directory, "close", close_together)
    assert broker.stop(LIMIT_S)
    assert [is_clean(each) for each in broker.opened] == [True] * 3


@pytest.fixture
def failures():
    """The failures reported by a broker whose loops a test runs."""
    return []


@pytest.fixture
def loops(tmp_path, failures):
    made = Broker(
        resolve("broker", {**SETTINGS, "log.dirs": str(tmp_path)}), on_failure=lambda: failures.append("failed")
    )
    yield made
    assert made.stop(LIMIT_S)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SetupError("another broker has the id"), "run broker broker=1 error="),
        (KeyError("a defect"), "end thread thread=loop error="),
    ],
    ids=["another broker has the id", "a defect"],
)
def test_loop_that_cannot_continue_ends_the_broker_and_reports_why_once(loops, failures, error, said, caplog):
    """A broker without one of its loops would look alive and neglect that loop's work."""
    steps = []

    def step(_):
        steps.append("stepped")
        raise error

    with caplog.at_level(logging.CRITICAL):
        loops._run("loop", step)
        assert wait_until(lambda: failures, "the broker fails", LIMIT_S)
        assert loops.stop(LIMIT_S)
    assert (steps, failures) == (["stepped"], ["failed"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(said)


def test_loop_whose_step_fails_while_the_broker_stops_is_no_failure(loops, failures):
    """Resources are closed under it; the stop has begun already."""
    begun, goes_on = threading.Event(), threading.Event()

    def step(_):
        begun.set()
        goes_on.wait(LIMIT_S)
        raise KeyError("closed")

    loops._run("loop", step, interrupt=goes_on.set)
    assert begun.wait(LIMIT_S)
    assert loops.stop(LIMIT_S)
    assert failures == []


def test_loop_continues_when_the_system_has_no_thread(loops, failures):
    """There may be a thread in a second."""
    steps = []

    def step(_):
        steps.append("stepped")
        if len(steps) == 1:
            raise RuntimeError("can't start new thread")
        return LIMIT_S

    loops._run("loop", step)
    assert wait_until(lambda: len(steps) > 1, "the loop continues", LIMIT_S)
    assert failures == []
