"""A range of offsets of one partition, as the broker streams it (DoGet): frames and the range they cover.

Rule: one thread reads; any thread may `cancel`. A stream that ends before ``end`` was reached means nothing but that
the reader must ask again from where it is.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.flight import frames_of, message_of, read_ticket
from broker_runtime.contract.link import Connection, Link
from broker_runtime.contract.streams import ReadRequest, ReadResponse


class FramesRead(NamedTuple):
    """One message of a read: buffers of frames back to back, and what they cover."""

    buffers: list[pa.Buffer]
    response: ReadResponse


class FrameStream:
    """One DoGet, on a connection that has no other. When the process forks it is cancelled: its reader asks for the
    rest."""

    def __init__(self, link: Link, request: ReadRequest, *, reused_limit_s: float) -> None:
        """Opens the stream, which blocks for the broker's first word, and closes the link with it. Raises what the
        broker answers at once, or a network error; the link is closed then.

        ``reused_limit_s``: of the whole stream on a connection that had another before, then it ends with
        `RequestTimedOutError`. Nothing else ends the wait for the first word: a new connection to a broker that is
        frozen fails by itself, an old one to it never does.
        """
        limit_s = reused_limit_s if link.is_connected else None
        self._lock = threading.Lock()
        self._link: Link | None = link  # None: it was given away; guarded by the lock
        try:
            link.open(lambda connection: _get(connection, request, limit_s))
        except BaseException:
            link.close()
            raise

    def read(self) -> FramesRead | None:
        """Blocks for the next message; None at the stream's end (also after `cancel`). Raises what broke it."""
        link = self._link
        if link is None:
            return None
        try:
            chunk = None if link.is_ended else link.read(_next_chunk)
        except PylogError:
            if link.is_ended:
                return None
            raise
        if chunk is None:
            return None
        return FramesRead(frames_of(chunk.data), message_of(chunk.app_metadata, ReadResponse))

    def finish(self) -> Link | None:
        """Reads the end of a stream whose last message was read, and gives its link away, for another stream. None:
        it can have none, and is closed. Blocks for the broker's last word; by the thread that reads."""
        try:
            is_at_end = self.read() is None
        except PylogError:
            is_at_end = False  # all that was asked for is here: why the stream broke afterwards does not matter
        with self._lock:
            link, self._link = self._link, None
        if link is None or (is_at_end and link.let_go()):
            return link
        link.close()
        return None

    def cancel(self) -> None:
        """Ends the stream; a blocked `read` returns None. Any thread, never blocks."""
        with self._lock:  # or the link might have another stream by then
            if self._link is not None:
                self._link.end()

    def close(self) -> None:
        """Ends the stream and lets its connection go, if it has it still. Any thread. Idempotent."""
        with self._lock:  # taken, so that `finish` cannot give it away meanwhile
            link, self._link = self._link, None
        if link is not None:
            link.close()


def _next_chunk(connection: Connection) -> Any:
    return connection.reader.read_chunk()


def _get(connection: Connection, request: ReadRequest, limit_s: float | None) -> None:
    options = flight.FlightCallOptions(timeout=limit_s)
    connection.reader = connection.client.do_get(read_ticket(request), options)
