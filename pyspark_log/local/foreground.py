"""A command that runs until somebody stops it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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


def _raise(number: int, frame: FrameType | None) -> None:
    raise TerminatedError
