"""What a broker counts while it works: the seam between those that do the work and whoever watches it.

`Meters` counts nothing, which is what a broker without ``http.listener`` has. `broker_runtime.metrics` counts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from broker_runtime.contract.errors import PylogError


class Meters:
    """Takes note of what happened. Any thread; never blocks, and raises nothing."""

    def produced(self, topic: str, *, records: int, size_bytes: int) -> None:
        """A client's frame was checked and written into the log."""

    def read(self, topic: str, size_bytes: int, *, is_replica: bool = False) -> None:
        """Frames were sent to a client, or to a follower."""

    def copied(self, topic: str, size_bytes: int) -> None:
        """Frames of a leader's were written into this broker's log."""

    def answered(self, request: str, took_s: float, error: PylogError | None = None) -> None:
        """A request was answered; ``error``: with that. ``request``: an action's name, or ``produce``."""

    def answering(self, request: str) -> AbstractContextManager[None]:
        """Around a request: as `answered`, with the error that is raised within."""
        return nullcontext()

    def refused(self, request: str, error: PylogError) -> None:
        """A request, or a partition of one, was refused with ``error``; `answered` is not told of it."""

    def refusing(self, request: str) -> AbstractContextManager[None]:
        """Around a stream of requests: as `refused`, with the error that is raised within and ends it."""
        return nullcontext()

    def took(self, request: str, part: str, took_s: float) -> None:
        """A part of a produce or fetch request: ``queue`` (it waited for memory), ``local`` (log and disk), ``remote``
        (it waited for followers, or for records), ``response`` (writing to the peer)."""

    def synced(self, directory: str, took_s: float) -> None:
        """A data directory's disk has kept what it was given: an fsync or fdatasync."""

    def in_sync_changed(self, *, shrank: bool, grew: bool) -> None:
        """The in-sync set of a partition led here was written without a member that it had, or with a new one."""

    def elected(self, kind: str) -> None:
        """The controller, here, elected a leader; ``kind``: see `election_kind`."""

    def became_controller(self) -> None:
        """This broker is the controller from now on."""

    def login_refused(self) -> None:
        """A call proved nobody where proof is asked for."""

    def request_denied(self) -> None:
        """A request, or a part of one, is not allowed to who made it."""

    def throttled(self, limit: str, wait_s: float) -> None:
        """A client over this quota was held back for so long, before its next request."""

    def zookeeper_answered(self, took_s: float) -> None:
        """A request to ZooKeeper was answered, in whatever way."""

    def zookeeper_lost(self, *, is_expired: bool) -> None:
        """The connection to ZooKeeper broke; ``is_expired``: the session has ended."""


NO_METERS: Final = Meters()
