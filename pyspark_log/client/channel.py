"""One broker as one client sees it: actions with a time limit, and the openings of streams.

Rule: everything that Flight raises is translated here, and in the streams, into the tree of `errors`, once. Actions
share one connection; each stream has a connection of its own (`broker_runtime.contract.flight` says why). A
connection that broke is thrown away and made anew by the next call, so a broker that restarts is back at once.

Thread-safe. `close` ends what is under way.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from pyarrow import flight

from broker_runtime.contract.connection import FLIGHT_ERRORS, location_of, translate
from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    InvalidRequestError,
    NetworkError,
    NotAPylogBrokerError,
    RequestTimedOutError,
)
from broker_runtime.contract.flight import (
    CONNECTION_OPTIONS,
    decode_result,
    encode_action,
)
from broker_runtime.contract.requests import Message
from broker_runtime.contract.settings import Address
from pyspark_log.client import forking

_M = TypeVar("_M", bound=Message)
_CONNECTION_BROKE = (NetworkError, BrokerUnavailableError, RequestTimedOutError, NotAPylogBrokerError)
_abandoned: list[Any] = []  # Flight objects of a parent process: ending them in the child would hang


def abandon(flight_object: Any) -> None:
    """Keeps a Flight object that belongs to a parent process alive for ever, in the child."""
    if flight_object is not None:
        _abandoned.append(flight_object)


class Channel:
    """The connection to one broker for actions. Streams are opened by their own classes from `address`."""

    def __init__(self, address: Address, *, client_id: str) -> None:
        self.address = address
        self.client_id = client_id
        self._lock = threading.Lock()
        self._client: Any = None
        self._is_closed = False
        forking.register(self)

    def call(self, name: str, request: Message, response: type[_M], *, timeout_s: float) -> _M:
        """Does one action and waits for its response, at most ``timeout_s``.

        Raises what the broker answered, `BrokerUnavailableError` (refused: nothing was sent), `NetworkError` and
        `RequestTimedOutError` (it may have been carried out), `NotAPylogBrokerError`, `ClosedError`.
        """
        with forking.flight_use():
            self._connect()
            try:
                body = self._only_result(name, request, timeout_s)
            except FLIGHT_ERRORS as error:
                translated = translate(error, self.address)
            else:
                answer = _decode(name, body, self.address)
                assert isinstance(answer, response)
                return answer
            if isinstance(translated, _CONNECTION_BROKE):
                self._disconnect()
            raise translated

    def close(self) -> None:
        """Ends the connection. Calls after it raise `ClosedError`. May be called again."""
        self._is_closed = True
        self._disconnect()
        forking.unregister(self)

    def interrupt_for_fork(self) -> None:
        """See `forking`: calls have time limits of their own."""

    def drop_for_fork(self) -> None:
        """See `forking`."""
        self._disconnect()

    def after_fork_in_child(self) -> None:
        """See `forking`."""
        self._lock = threading.Lock()
        abandon(self._client)
        self._client = None

    def _only_result(self, name: str, request: Message, timeout_s: float) -> Any:
        options = flight.FlightCallOptions(timeout=max(timeout_s, 0.001))
        client = self._client
        if client is None:
            raise BrokerUnavailableError(f"{self.address}: another call found the connection broken; nothing was sent")
        try:
            bodies = [r.body for r in client.do_action(encode_action(name, request, client_id=self.client_id), options)]
        finally:
            del client  # see `forking`: no traceback may hold it
        return bodies[0] if len(bodies) == 1 else None

    def _connect(self) -> None:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client was closed")
            if self._client is None:
                self._client = flight.FlightClient(location_of(self.address), generic_options=CONNECTION_OPTIONS)

    def _disconnect(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


def _decode(name: str, body: Any, address: Address) -> Message:
    try:
        return decode_result(name, body)
    except InvalidRequestError:
        raise NotAPylogBrokerError(f"{address} answers as Arrow Flight, but not as pylog") from None
