"""Connections as the side that opens them holds them: how each is made, and one with a stream on it.

Rule: everything that Flight raises is translated here once, into the tree of `errors`. Flight's objects are in
attributes that are set to None, never in local variables that a traceback could hold: one that something still refers
to keeps its connection, and its threads, alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract.errors import NetworkError, PylogError
from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    STREAM_OPTIONS,
    fetch_call_options,
    fetch_descriptor,
    frames_of,
    from_flight_error,
    message_of,
    metadata,
)
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchHello, FetchRequest, FetchResponse

_T = TypeVar("_T")

_NO_PROXY: Final[list[tuple[str, int | str]]] = [
    ("grpc.enable_http_proxy", 0),  # grpc_proxy, https_proxy, http_proxy
    ("grpc.address_http_proxy_enabled_addresses", ""),  # GRPC_ADDRESS_HTTP_PROXY
]

FLIGHT_ERRORS = (flight.FlightError, pa.ArrowException, OSError, StopIteration, ValueError)
"""All that pyarrow raises from a Flight call (ArrowInvalid is a ValueError, ArrowIOError an OSError)."""


def location_of(address: Address) -> str:
    """The address as Flight wants it."""
    return f"grpc://{address}"


def connect(address: Address, options: Sequence[tuple[str, int]], *, uses_proxy: bool = False) -> Any:
    """A Flight client of ``address``; every connection of clients and brokers is made here. Connects at its first call.

    ``options``: `CONNECTION_OPTIONS` or `STREAM_OPTIONS`. A proxy that the environment names is used only with
    ``uses_proxy``: machines that need one for the web have it in every process's environment, where gRPC would send
    even connections to this machine through it.
    """
    return flight.FlightClient(location_of(address), generic_options=[*options, *([] if uses_proxy else _NO_PROXY)])


def translate(error: BaseException, address: Address) -> PylogError:
    """The pylog error behind what Flight raised. Never keeps ``error``: its traceback would hold the connection."""
    return from_flight_error(error, str(address))


class StreamConnection:
    """A connection with the one stream on it. `cancel` is any thread's; the rest its user's, one thread at a time."""

    def __init__(self, address: Address, options: Sequence[tuple[str, int]], *, uses_proxy: bool = False) -> None:
        """Connects to nothing yet. ``options`` and ``uses_proxy``: see `connect`."""
        self.address = address
        self.reader: Any = None
        self.writer: Any = None
        self.is_cancelled = False
        self._options = list(options)
        self._uses_proxy = uses_proxy
        self._lock = threading.Lock()
        self._client: Any = None

    def open(self, call: Callable[[Any], tuple[Any, Any]]) -> None:
        """Opens the stream: ``call`` makes of a Flight client a writer (or None) and a reader.

        Raises what the peer answers at once, or a network error; a peer that is not there may show at the first use.
        """
        try:
            self._client = connect(self.address, self._options, uses_proxy=self._uses_proxy)
            self.writer, self.reader = call(self._client)
            return
        except FLIGHT_ERRORS as error:
            translated = translate(error, self.address)
        self.drop()
        raise translated

    def cancel(self) -> None:
        """Ends the stream; whoever is blocked in it comes out with an error. Any thread, never blocks."""
        with self._lock:
            self.is_cancelled = True
            if self.reader is not None:
                self.reader.cancel()

    def drop(self) -> None:
        """Lets the stream and its connection go. Not while another thread is in a call on it: `cancel` first."""
        with self._lock:
            if self.writer is not None:
                try:
                    self.writer.close()  # or its destructor complains on stderr
                except FLIGHT_ERRORS:
                    self.is_cancelled = True
            self.reader = self.writer = None
            if self._client is not None:
                self._client.close()
                self._client = None

    def ending(self) -> PylogError:
        """Why the peer ended the stream."""
        try:
            self.writer.close()
        except FLIGHT_ERRORS as error:
            return translate(error, self.address)
        return NetworkError(f"{self.address} ended the stream")


class Fetched(NamedTuple):
    """A response and the buffers its partitions' ``row`` name."""

    response: FetchResponse
    buffers: list[pa.Buffer]


class FetchExchange:
    """A fetch session as its caller holds it (DoExchange): ask for several partitions, wait together for news of any.

    Requests and responses go in lockstep, from one thread; any thread may `cancel`. The broker says something each
    second while a request waits, so `silent_for_s` above `PEER_SILENCE_LIMIT_S` during a fetch means that it is gone,
    and whoever watches cancels. (A broker whose whole process is stopped is noticed by the connection's keepalive too.)
    """

    def __init__(self, address: Address, *, uses_proxy: bool = False) -> None:
        """Connects to nothing yet: `open` it. ``uses_proxy``: see `connect`."""
        self.address = address
        self._connection = StreamConnection(address, STREAM_OPTIONS, uses_proxy=uses_proxy)
        self._heard_s = time.monotonic()
        self._waits = False

    def open(self, hello: FetchHello) -> None:
        """Opens it; a broker that is not there is noticed by the first `fetch`, at the latest. Raises as that."""

        def exchange(client: flight.FlightClient) -> tuple[Any, Any]:
            writer, reader = client.do_exchange(fetch_descriptor(hello), fetch_call_options(hello))
            with suppress(flight.FlightError, pa.ArrowException):  # it ended already: `fetch` finds out why
                writer.begin(FRAMES_SCHEMA)
            return writer, reader

        self._connection.open(exchange)

    @property
    def silent_for_s(self) -> float:
        """How long the broker has owed us a word; 0 while it owes none."""
        return time.monotonic() - self._heard_s if self._waits else 0.0

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._connection.is_cancelled

    def fetch(self, request: FetchRequest, *, meanwhile: Callable[[], None] = lambda: None) -> Fetched:
        """Asks and waits for the answer: as long as the broker waits for data. Raises a typed error if it broke.

        A ``heartbeat`` request is answered at once, by a response with id -1. ``meanwhile`` is called when the request
        is on its way; what it raises is the caller's.
        """
        self._watched(lambda: self._ask(request))
        meanwhile()
        return self._watched(lambda: self._answer_to(request))

    def cancel(self) -> None:
        """Ends the session; a blocked `fetch` raises `NetworkError`. Any thread."""
        self._connection.cancel()

    def drop(self) -> None:
        """Lets the session and its connection go. By the thread that fetches, or after it ended."""
        self._connection.drop()

    def close(self) -> None:
        """Both."""
        self.cancel()
        self.drop()

    def _watched(self, call: Callable[[], _T]) -> _T:
        """``call``, while the broker owes us a word."""
        self._heard_s, self._waits = time.monotonic(), True
        try:
            return call()
        except StopIteration:
            translated = self._connection.ending()
        except FLIGHT_ERRORS as error:
            translated = translate(error, self.address)
        finally:
            self._waits = False
        raise translated

    def _ask(self, request: FetchRequest) -> None:
        if self._connection.is_cancelled:
            raise NetworkError("the fetch session was cancelled")
        self._connection.writer.write_metadata(metadata(request))

    def _answer_to(self, request: FetchRequest) -> Fetched:
        while True:
            chunk = self._connection.reader.read_chunk()
            self._heard_s = time.monotonic()
            response = message_of(chunk.app_metadata, FetchResponse)
            if response.request_id == request.request_id or (request.heartbeat and response.request_id == -1):
                return Fetched(response, frames_of(chunk.data))
