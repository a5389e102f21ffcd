"""A command that runs until somebody stops it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came. Raised in the main thread like `KeyboardInterrupt`, so the same code cleans up after both."""


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM raises `TerminatedError` in the main thread. Call it there."""
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ending_between() -> Iterator[Callable[[], None]]:
    """Within, the first SIGINT or SIGTERM takes effect where the function that this gives is called, which raises what
    it means; a second one raises at once, as outside. A signal that is ignored stays so. Call it in the main thread.

    An exception that a signal raises anywhere, also between a lock and its release, can leave a lock held or take one
    away that is not; and what was done by then is not known.
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
