"""Signals in a command that runs until it is stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_PATIENCE_S: Final = 1.0


class TerminatedError(KeyboardInterrupt):
    """SIGTERM was received. Raised in the main thread like `KeyboardInterrupt`, so that the same code cleans up."""


@contextmanager
def terminable() -> Iterator[None]:
    """In the ``with`` block, SIGTERM raises `TerminatedError`. Must be called in the main thread."""
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Ending:
    """Whether SIGINT or SIGTERM came: see `ending_between`. Called, it raises the signal's exception if so."""

    def __init__(self) -> None:
        self.at_once = False
        """Set while nothing is under way that must not be interrupted: a signal raises at once."""
        self._noted: int | None = None

    def __call__(self) -> None:
        if self._noted is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _raise(self._noted, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_second, self._noted = self._noted is not None, self._noted or number
        if self.at_once or is_second:
            self()
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)

    def _is_overdue(self, number: int, frame: FrameType | None) -> None:
        self()


@contextmanager
def ending_between() -> Iterator[Ending]:
    """Delays SIGINT and SIGTERM to safe places.

    In the ``with`` block, the first signal takes effect at the next call of what this yields, which raises the signal's
    exception; or at once while its ``at_once`` is set; or after a second, when whatever is under way is blocked. A
    second signal raises at once, as outside. Ignored signals stay ignored. Uses SIGALRM. Must be called in the main
    thread.

    The reason: an exception that is raised anywhere, also between acquiring a lock and releasing it, can leave the lock
    held, and how far the interrupted work has come is unknown.
    """
    ending = Ending()
    heeded = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, ending._note) for each in heeded}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, ending._is_overdue)
    try:
        yield ending
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt
