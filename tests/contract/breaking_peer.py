"""A Flight server in this process that answers or is silent, and a relay to it that can break the connections
through it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract.errors import (
    PylogError,
)
from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    decode_action,
    frames_batch,
    message_of,
    metadata,
    to_flight_error,
)
from broker_runtime.contract.requests import FindCoordinatorResponse
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import (
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
    ReadResponse,
)

LIMIT_S = 20.0
FRAME = pa.py_buffer(b"a frame")
ANSWER = FindCoordinatorResponse(broker_id=7)
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Server(flight.FlightServerBase):
    """Sends one message on each stream and answers each action while it `speaks`; otherwise it is silent."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(f"grpc://127.0.0.1:{port}")
        self.speaks = threading.Event()
        self.is_over = threading.Event()
        self.refusal: PylogError | None = None
        self.asked = 0
        self.client_ids: list[str] = []  # the clients that sent actions
        self.reads = threading.Semaphore(0)  # how many messages of a read were requested
        self.read_length: int | None = None  # after how many messages a read ends; None: never

    def fall_silent(self) -> None:
        """Holds back further messages until the server ends."""
        self.speaks.clear()

    def stop(self) -> None:
        self.is_over.set()
        self.speaks.set()
        self.reads.release()
        self.shutdown()

    def do_action(self, context: Any, action: Any) -> list[Any]:
        self.client_ids.append(decode_action(action.type, action.body).client_id)
        self._say()
        return [metadata(ANSWER)]

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for chunk in reader:
            request = message_of(chunk.app_metadata, ProduceRequest)
            self._say()
            writer.write(metadata(ProduceResponse(request_id=request.request_id)))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(FRAMES_SCHEMA)
        for chunk in reader:
            request = message_of(chunk.app_metadata, FetchRequest)
            self._say()
            writer.write_metadata(metadata(FetchResponse(request_id=request.request_id)))

    def do_get(self, context: Any, ticket: Any) -> Any:
        def words() -> Iterator[Any]:
            sent = 0
            while sent != self.read_length and self.reads.acquire(timeout=LIMIT_S) and not self.is_over.is_set():
                sent += 1
                self._say()
                yield frames_batch([FRAME]), metadata(ReadResponse(next_offset=1, start=0, end=1))

        return flight.GeneratorStream(FRAMES_SCHEMA, words())

    def _say(self) -> None:
        self.asked += 1
        self.speaks.wait(LIMIT_S)
        if self.refusal is not None:
            raise to_flight_error(self.refusal)


class Relay:
    """Forwards bytes to a port, as a peer that can die: `cut` resets all connections, and refuses new ones.

    It can freeze, too: nothing passes while `flows` is not set.
    """

    def __init__(self, port: int, own_port: int = 0) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", own_port))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self.accepted = 0
        self.flows = threading.Event()
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def open(self) -> int:
        """The current number of connections."""
        with self._lock:
            return len(self._open)

    def cut(self) -> None:
        """The peer dies."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def reset(self) -> None:
        """Breaks the connections; the peer accepts new ones."""
        with self._lock:
            pairs = list(self._open)
        for pair in pairs:
            self._end(pair)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                pair = (near, far)
                with self._lock:
                    self.accepted += 1
                    self._open.add(pair)
                for one, other in (pair, pair[::-1]):
                    threading.Thread(target=self._pass_on, args=(pair, one, other), daemon=True).start()

    def _pass_on(self, pair: tuple[socket.socket, socket.socket], one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.flows.wait(LIMIT_S)
                other.sendall(data)
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            if pair not in self._open:
                return
            self._open.discard(pair)
        for each in pair:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                each.shutdown(socket.SHUT_RDWR)
            each.close()
