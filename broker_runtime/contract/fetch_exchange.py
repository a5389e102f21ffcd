"""A fetch session as the side that fetches holds it (DoExchange): it asks for several partitions at once and waits for
news of any of them.

Rule: requests and responses go in lockstep, from one thread; any thread may `cancel`. The broker says something each
second while a request waits, so `silent_for_s` above `PEER_SILENCE_LIMIT_S` means that it is gone, and whoever watches
the session cancels it. (The connection's keepalive, too, notices a broker whose whole process is stopped.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    STREAM_OPTIONS,
    fetch_descriptor,
    frames_of,
    message_of,
    metadata,
)
from broker_runtime.contract.link import Connection, Link
from broker_runtime.contract.security import UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchHello, FetchRequest, FetchResponse


class Fetched(NamedTuple):
    """A response and the buffers that its partitions' ``row`` names."""

    response: FetchResponse
    buffers: list[pa.Buffer]


class FetchExchange:
    """One open session, on a connection of its own. A process may fork while it is open: it is cancelled then."""

    def __init__(self, address: Address, hello: FetchHello, *, access: Access = UNPROTECTED) -> None:
        """Opens it. A broker that is not there shows here or at the first `fetch`, by a network error.
        ``access``: see `open_client`."""
        self.address = address
        self._link = Link(address, STREAM_OPTIONS, what="fetch session", access=access)
        self._waits = False
        self._link.open(lambda connection: _exchange(connection, hello))

    @property
    def silent_for_s(self) -> float:
        """How long the broker has owed a word; 0 while it owes none."""
        return self._link.silent_for_s if self._waits else 0.0

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` or `close` was called, or the process forked."""
        return self._link.is_ended

    def fetch(self, request: FetchRequest, *, meanwhile: Callable[[], None] = lambda: None) -> Fetched:
        """Asks and waits for the answer, as long as the broker waits for data. Raises what broke the session, and
        `NetworkError` if it is cancelled.

        A ``heartbeat`` request is answered at once, by a response with id -1. ``meanwhile`` is called when the request
        is on its way; what it raises is the caller's.
        """
        self._link.heard()
        self._waits = True
        try:
            self._link.write(lambda connection: connection.writer.write_metadata(metadata(request)))
            meanwhile()
            while True:
                chunk = self._link.read(lambda connection: connection.reader.read_chunk())
                if chunk is None:
                    raise NetworkError("the fetch session was cancelled")
                response = message_of(chunk.app_metadata, FetchResponse)
                if response.request_id == request.request_id or (request.heartbeat and response.request_id == -1):
                    return Fetched(response, frames_of(chunk.data))
        finally:
            self._waits = False

    def cancel(self) -> None:
        """Ends the session; a blocked `fetch` raises `NetworkError`. Any thread, never blocks."""
        self._link.end()

    def close(self) -> None:
        """Ends the session and lets its connection go. Any thread. Idempotent."""
        self._link.close()


def _exchange(connection: Connection, hello: FetchHello) -> None:
    connection.writer, connection.reader = connection.client.do_exchange(fetch_descriptor(hello))
    with suppress(flight.FlightError, pa.ArrowException):  # it has ended already: `fetch` finds out why
        connection.writer.begin(FRAMES_SCHEMA)
