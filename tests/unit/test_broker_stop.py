"""What `Broker.stop` says of its data directories, and that none takes another's time."""

import threading

import pytest

from broker_runtime.broker import Broker
from broker_runtime.contract.settings import resolve
from broker_runtime.log.directory import CLEAN_NAME
from tests.unit.standing_disk import LIMIT_S


@pytest.fixture
def broker(tmp_path):
    made = Broker(resolve("broker", {"broker.id": 1, "log.dirs": str(tmp_path), "zookeeper.connect": "127.0.0.1:1"}))
    made.opened = [made._open_directory(tmp_path / name, "c") for name in ("a", "b", "c")]
    return made


def is_clean(directory):
    return (directory.path / CLEAN_NAME).exists()


def test_stop_closes_all_directories_with_the_clean_mark(broker):
    """A broker that has the time leaves every directory clean."""
    assert broker.stop(LIMIT_S)
    assert [is_clean(each) for each in broker.opened] == [True] * 3


def test_stop_says_that_a_directory_was_left_and_closes_the_others(broker, monkeypatch):
    """One that stands still costs the others nothing, whichever it is, and the stop was not complete."""
    goes_on = threading.Event()
    monkeypatch.setattr(broker.opened[2], "close", lambda: goes_on.wait(LIMIT_S))
    try:
        assert not broker.stop(4.0)
        assert [is_clean(each) for each in broker.opened] == [True, True, False]
    finally:
        goes_on.set()


def test_stop_says_that_a_directory_could_not_be_closed(broker, monkeypatch, caplog):
    """Its error is told, and the others are closed."""

    def fails():
        raise OSError("no such device")

    monkeypatch.setattr(broker.opened[0], "close", fails)
    assert not broker.stop(LIMIT_S)
    assert [is_clean(each) for each in broker.opened] == [False, True, True]
    assert "no such device" in caplog.text


def test_stop_gives_a_directory_all_the_time_there_is(broker, monkeypatch):
    """One that takes as long as others together is closed all the same: they are closed at once."""
    others = threading.Barrier(3)
    for directory in broker.opened:
        close = directory.close

        def close_together(close=close):
            others.wait(LIMIT_S)
            close()

        monkeypatch.setattr(directory, "close", close_together)
    assert broker.stop(LIMIT_S)
    assert [is_clean(each) for each in broker.opened] == [True] * 3
