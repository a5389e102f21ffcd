"""One broker as one client sees it: actions with a time limit, and the openings of streams.

Rule: everything that Flight raises is translated here, and in the streams, into the tree of `errors`, once. Actions
share one connection; each stream has a connection of its own (`broker_runtime.contract.flight` says why). A
connection that broke is thrown away and made anew by the next call, so a broker that restarts is back at once.

Thread-safe. A Flight client that is closed while another thread is in a call of it takes the process down with it
(SIGSEGV), so the last one who uses it closes it; calls that are under way end by themselves, or by their time limits.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from pyarrow import flight

from broker_runtime.contract.connection import FLIGHT_ERRORS, connect, translate
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
from broker_runtime.contract.waiting import CLOCK, Clock
from pyspark_log.client.connection import forking
from pyspark_log.client.connection.strangers import Peer, who_is_at

_M = TypeVar("_M", bound=Message)
_CONNECTION_BROKE = (NetworkError, BrokerUnavailableError, RequestTimedOutError, NotAPylogBrokerError)
_abandoned: list[Any] = []  # Flight objects of a parent process: ending them in the child would hang


def abandon(flight_object: Any) -> None:
    """Keeps a Flight object that belongs to a parent process alive for ever, in the child."""
    if flight_object is not None:
        _abandoned.append(flight_object)


class _Connection:
    """A Flight client and how many calls are under way on it. Guarded by the channel's lock."""

    __slots__ = ("calls", "client", "is_given_up")

    def __init__(self, client: Any) -> None:
        self.client = client
        self.calls = 0
        self.is_given_up = False

    def close_if_unused(self) -> None:
        """Once it was given up and the last call has ended."""
        if self.is_given_up and not self.calls and self.client is not None:
            self.client.close()
            self.client = None


class Channel:
    """The connection to one broker for actions. Streams are opened by their own classes from `address`."""

    def __init__(self, address: Address, *, client_id: str, uses_proxy: bool = False) -> None:
        """Connects to nothing yet. ``uses_proxy``: as for `connect`."""
        self.address = address
        self.client_id = client_id
        self._uses_proxy = uses_proxy
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._is_closed = False
        forking.register(self)

    def call(self, name: str, request: Message, response: type[_M], *, timeout_s: float) -> _M:
        """Does one action and waits for its response, at most ``timeout_s``.

        Raises what the broker answered, `BrokerUnavailableError` (refused: nothing was sent), `NetworkError` and
        `RequestTimedOutError` (it may have been carried out), `NotAPylogBrokerError`, `ClosedError`.
        """
        with forking.flight_use():
            connection = self._begin_call()
            try:
                body = _only_result(connection, encode_action(name, request, client_id=self.client_id), timeout_s)
            except FLIGHT_ERRORS as error:
                translated = translate(error, self.address)
            else:
                answer = _decode(name, body, self.address)
                assert isinstance(answer, response)
                return answer
            finally:
                self._end_call(connection)
            if isinstance(translated, _CONNECTION_BROKE):
                self._give_up(connection)
            raise translated

    def close(self) -> None:
        """Ends the connection when no call is under way any more. Calls after it raise `ClosedError`. May be called
        again."""
        self._is_closed = True
        self._give_up(self._connection)
        forking.unregister(self)

    def _interrupt_for_fork(self) -> None:
        """See `forking`: calls have time limits of their own."""

    def _drop_for_fork(self) -> None:
        """See `forking`."""
        self._give_up(self._connection)

    def _after_fork_in_child(self) -> None:
        """See `forking`."""
        self._lock = threading.Lock()
        connection, self._connection = self._connection, None
        if connection is not None:
            abandon(connection.client)

    def _begin_call(self) -> _Connection:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client was closed")
            if self._connection is None:
                self._connection = _Connection(connect(self.address, CONNECTION_OPTIONS, uses_proxy=self._uses_proxy))
            self._connection.calls += 1
            return self._connection

    def _end_call(self, connection: _Connection) -> None:
        with self._lock:
            connection.calls -= 1
            connection.close_if_unused()

    def _give_up(self, connection: _Connection | None) -> None:
        """The next call makes another one."""
        if connection is None:
            return
        with self._lock:
            if self._connection is connection:
                self._connection = None
            connection.is_given_up = True
            connection.close_if_unused()


class Network:
    """All that a `Cluster` reaches the world by: channels, a look at who is at an address, and the clock.

    The seam that tests put a network of their own into.
    """

    clock: Clock = CLOCK

    def channel(self, address: Address, *, client_id: str, uses_proxy: bool) -> Channel:
        """A new channel to a broker. Connects to nothing yet."""
        return Channel(address, client_id=client_id, uses_proxy=uses_proxy)

    def who_is_at(self, address: Address, *, limit_s: float) -> Peer:
        """Looks who is at an address where no broker answers, at most so long."""
        return who_is_at(address, limit_s=limit_s)


def _only_result(connection: _Connection, action: Any, timeout_s: float) -> Any:
    options = flight.FlightCallOptions(timeout=max(timeout_s, 0.001))
    # The client in an attribute only: see `forking`, no traceback may hold it.
    bodies = [result.body for result in connection.client.do_action(action, options)]
    return bodies[0] if len(bodies) == 1 else None


def _decode(name: str, body: Any, address: Address) -> Message:
    try:
        return decode_result(name, body)
    except InvalidRequestError:
        raise NotAPylogBrokerError(f"{address} answers as Arrow Flight, but not as pylog") from None
