"""A range of offsets of one partition, as the broker streams it (DoGet): frames and the range they cover.

Rule: one thread reads; any thread may `cancel`. A stream that ends before ``end`` was reached means nothing but that
the reader must ask again from where it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.flight import CONNECTION_OPTIONS, frames_of, message_of, read_ticket
from broker_runtime.contract.link import Connection, Link
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ReadRequest, ReadResponse


class FramesRead(NamedTuple):
    """One message of a read: buffers of frames back to back, and what they cover."""

    buffers: list[pa.Buffer]
    response: ReadResponse


class FrameStream:
    """One DoGet, on a connection of its own. When the process forks it is cancelled: its reader asks for the rest."""

    def __init__(self, address: Address, request: ReadRequest, *, uses_proxy: bool = False) -> None:
        """Opens the stream, which blocks for the broker's first word. Raises what the broker answers at once, or a
        network error. ``uses_proxy``: see `open_client`."""
        self.address = address
        self._link = Link(address, CONNECTION_OPTIONS, what="read", uses_proxy=uses_proxy)
        self._link.open(lambda connection: _get(connection, request))

    def read(self) -> FramesRead | None:
        """Blocks for the next message; None at the stream's end (also after `cancel`). Raises what broke it."""
        try:
            chunk = None if self._link.is_ended else self._link.read(_next_chunk)
        except PylogError:
            if self._link.is_ended:
                return None
            raise
        if chunk is None:
            return None
        return FramesRead(frames_of(chunk.data), message_of(chunk.app_metadata, ReadResponse))

    def cancel(self) -> None:
        """Ends the stream; a blocked `read` returns None. Any thread, never blocks."""
        self._link.end()

    def close(self) -> None:
        """Ends the stream and lets its connection go. Any thread. Idempotent."""
        self._link.close()


def _next_chunk(connection: Connection) -> Any:
    return connection.reader.read_chunk()


def _get(connection: Connection, request: ReadRequest) -> None:
    connection.reader = connection.client.do_get(read_ticket(request))
