"""A produce stream to one broker (DoPut): frames go out, acknowledgements come back in the same order.

Rule: one thread writes, another reads; each blocks only in Flight. The broker answers every frame (save with
``acks=0``) and every heartbeat, so `silent_for_s` above `PEER_SILENCE_LIMIT_S` means that it is gone. Flight cannot
cancel this kind of call: a thread blocked on a stopped broker is freed by the connection's keepalive, within 8 s.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    STREAM_OPTIONS,
    frames_batch,
    message_of,
    metadata,
    produce_descriptor,
)
from broker_runtime.contract.link import Connection, Link
from broker_runtime.contract.security import UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ProduceHello, ProduceRequest, ProduceResponse

_HEARTBEAT: Final = metadata(ProduceRequest(request_id=-1, heartbeat=True))


class ProduceStream:
    """One open stream, on a connection of its own. When the process forks it is ended, and its owner opens another."""

    def __init__(self, address: Address, hello: ProduceHello, *, access: Access = UNPROTECTED) -> None:
        """Opens it; raises `BrokerUnavailableError` and the like if they show already. ``access``: see
        `open_client`."""
        self.address = address
        self._link = Link(address, STREAM_OPTIONS, what="produce stream", access=access)
        self._link.open(lambda connection: _put(connection, hello))

    @property
    def silent_for_s(self) -> float:
        """How long nothing has come from the broker."""
        return self._link.silent_for_s

    def write(self, request: ProduceRequest, frame: pa.Buffer) -> None:
        """Sends one frame. Blocks while the broker takes nothing. Raises a network error."""
        self._link.write(
            lambda connection: connection.writer.write_with_metadata(frames_batch([frame]), metadata(request))
        )

    def write_heartbeat(self) -> None:
        """Says that this client lives; the broker answers."""
        self._link.write(lambda connection: connection.writer.write_metadata(_HEARTBEAT))

    def read(self) -> ProduceResponse | None:
        """Blocks for the next answer, heartbeats left out. None: the stream is over, after `end`. Raises what broke it,
        or why the broker ended it."""
        while (body := self._link.read(_next_body)) is not None:
            response = message_of(body, ProduceResponse)
            if response.request_id >= 0:
                return response
        return None

    def end(self) -> None:
        """No more writes: the broker answers what it has and ends, and `read` returns None. Any thread."""
        self._link.end()

    def close(self) -> None:
        """Ends the stream and lets its connection go. What the broker still answers is lost: `read` to the end first.
        Idempotent."""
        self._link.close()


def _put(connection: Connection, hello: ProduceHello) -> None:
    connection.writer, connection.reader = connection.client.do_put(produce_descriptor(hello), FRAMES_SCHEMA)


def _next_body(connection: Connection) -> Any:
    body = connection.reader.read()
    if body is None:
        raise StopIteration
    return body
