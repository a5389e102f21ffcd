"""What signals do to a command that runs until somebody stops it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pyspark_log.local.foreground import TerminatedError, ending_between, terminable


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test leaves is put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_first_signal_takes_effect_where_it_does_no_harm(number: int, raised: type[BaseException]) -> None:
    """Not in the middle of what the command does."""
    with terminable(), ending_between() as end_if_asked:
        end_if_asked()
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt) as caught:
            end_if_asked()
    assert caught.type is raised


def test_second_signal_takes_effect_at_once() -> None:
    """Somebody does not want to wait until what is under way is done."""
    with terminable(), ending_between():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_signals_mean_outside_what_they_meant_before() -> None:
    """While a command closes what it has open, too."""
    with terminable():
        with ending_between():
            pass
        with pytest.raises(TerminatedError):
            os.kill(os.getpid(), signal.SIGTERM)


def test_signal_that_is_ignored_stays_so() -> None:
    """A shell starts what runs in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ending_between() as end_if_asked:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGINT)
        end_if_asked()
