"""What signals do to a command that runs until it is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pyspark_log.local import foreground
from pyspark_log.local.foreground import TerminatedError, ending_between, terminable


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the handlers that a test leaves behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_first_signal_takes_effect_at_a_safe_point(number: int, raised: type[BaseException]) -> None:
    """It does not interrupt the command's work."""
    with terminable(), ending_between() as end_if_asked:
        end_if_asked()
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt) as caught:
            end_if_asked()
    assert caught.type is raised


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_signal_interrupts_what_is_blocked(
    monkeypatch: pytest.MonkeyPatch, number: int, raised: type[BaseException]
) -> None:
    """Python takes up a blocked read or write again when a handler returns."""
    monkeypatch.setattr(foreground, "_PATIENCE_S", 0.05)
    reader, writer = os.pipe()
    try:
        with terminable(), ending_between():
            os.kill(os.getpid(), number)
            with pytest.raises(KeyboardInterrupt) as caught:
                os.read(reader, 1)
        assert caught.type is raised
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_no_alarm_comes_after_the_signal_took_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows, a report of what was done, is not interrupted."""
    monkeypatch.setattr(foreground, "_PATIENCE_S", 0.05)
    with ending_between() as end_if_asked:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(TerminatedError):
            end_if_asked()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_signal_raises_at_once_where_nothing_is_under_way() -> None:
    with ending_between() as ending:
        ending.at_once = True
        with pytest.raises(TerminatedError):
            os.kill(os.getpid(), signal.SIGTERM)


def test_second_signal_takes_effect_at_once() -> None:
    """The user does not want to wait until the work is done."""
    with terminable(), ending_between():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_signal_handlers_are_restored_outside() -> None:
    """This includes the time when a command closes what it has open."""
    with terminable():
        with ending_between():
            pass
        with pytest.raises(TerminatedError):
            os.kill(os.getpid(), signal.SIGTERM)


def test_ignored_signal_stays_ignored() -> None:
    """A shell starts background commands with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ending_between() as end_if_asked:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGINT)
        end_if_asked()
