"""What a broker counts while it works: the seam between those that do the work and whoever watches it.

`Meters` counts nothing, which is what a broker without ``http.listener`` has. `broker_runtime.metrics` counts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from broker_runtime.contract.errors import PylogError


class Meters:
    """Takes note of what happened. Any thread; never blocks, and raises nothing."""

    def produced(self, topic: str, *, records: int, size_bytes: int, took_s: float) -> None:
        """A client's frame was checked and written into the log, which took so long."""

    def read(self, topic: str, size_bytes: int, *, is_replica: bool = False) -> None:
        """Frames were sent to a client, or to a follower."""

    def copied(self, topic: str, size_bytes: int) -> None:
        """Frames of a leader's were written into this broker's log."""

    def answered(self, request: str, took_s: float, error: PylogError | None = None) -> None:
        """A request was answered; ``error``: with that. ``request``: an action's name, or ``produce``."""

    def answering(self, request: str) -> AbstractContextManager[None]:
        """Around a request: as `answered`, with the error that is raised within."""
        return nullcontext()

    def synced(self, directory: str, took_s: float) -> None:
        """A data directory's disk has kept what it was given: an fsync or fdatasync."""


NO_METERS: Final = Meters()
