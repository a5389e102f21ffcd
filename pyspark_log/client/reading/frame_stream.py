"""A range of offsets of one partition, as the broker streams it (DoGet): frames and the range they cover.

Rule: one thread reads; any thread may `cancel`. The stream's end before ``end`` was reached means nothing but that
the reader must ask again from where it is.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from broker_runtime.contract.connection import FLIGHT_ERRORS, StreamConnection, translate
from broker_runtime.contract.flight import CONNECTION_OPTIONS, frames_of, message_of, read_ticket
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ReadRequest, ReadResponse
from pyspark_log.client.connection import forking
from pyspark_log.client.connection.channel import abandon


class FramesRead(NamedTuple):
    """One message of a read: buffers of frames back to back, and what they cover."""

    buffers: list[pa.Buffer]
    response: ReadResponse


class FrameStream:
    """One DoGet on a connection of its own."""

    def __init__(self, address: Address, request: ReadRequest, *, uses_proxy: bool = False) -> None:
        """Opens the stream; raises what the broker answers at once, or a network error. ``uses_proxy``: as for
        `connect`."""
        self.address = address
        self._connection = StreamConnection(address, CONNECTION_OPTIONS, uses_proxy=uses_proxy)
        forking.register(self)
        with forking.flight_use():
            self._connection.open(lambda client: (None, client.do_get(read_ticket(request))))

    def read(self) -> FramesRead | None:
        """Blocks for the next message; None at the stream's end (also after `cancel`). Raises what broke it."""
        connection = self._connection
        with forking.flight_use():
            try:
                if connection.is_cancelled:
                    return None
                chunk = connection.reader.read_chunk()
                return FramesRead(frames_of(chunk.data), message_of(chunk.app_metadata, ReadResponse))
            except StopIteration:
                return None
            except FLIGHT_ERRORS as error:
                translated = None if connection.is_cancelled else translate(error, self.address)
            if translated is None:
                return None
            raise translated

    def cancel(self) -> None:
        """Ends the stream; a blocked `read` returns None. Any thread."""
        self._connection.cancel()

    def close(self) -> None:
        """Ends the stream and its connection. Not while another thread reads: `cancel`, and let it end, first."""
        self._connection.cancel()
        self._connection.drop()
        forking.unregister(self)

    def _interrupt_for_fork(self) -> None:
        """See `forking`: ends the stream; whoever reads asks for the rest."""
        self._connection.cancel()

    def _drop_for_fork(self) -> None:
        """See `forking`."""
        self._connection.drop()

    def _after_fork_in_child(self) -> None:
        """See `forking`."""
        abandon(self._connection)
        self._connection = StreamConnection(self.address, CONNECTION_OPTIONS)
        self._connection.cancel()
