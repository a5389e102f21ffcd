"""Signals in a command that runs until it is stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


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


@contextmanager
def ending_between() -> Iterator[Callable[[], None]]:
    """Delays SIGINT and SIGTERM to safe places.

    In the ``with`` block, the first signal takes effect at the next call of the function that this yields, which raises
    the signal's exception. A second signal raises at once, as outside. Ignored signals stay ignored. Must be called in
    the main thread.

    The reason: an exception that is raised anywhere, also between acquiring a lock and releasing it, can leave the lock
    held, and how far the interrupted work has come is unknown.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            _raise(number, frame)
        noted.append(number)

    def end_if_asked() -> None:
        if noted:
            _raise(noted[0], None)

    heeded = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in heeded}
    try:
        yield end_if_asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt
