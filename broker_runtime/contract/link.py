"""A link: one Flight connection to a peer, and what is done on it. Clients and brokers make every connection here.

    a stream    `open` it, then `read` and `write`; `end` it from this side; `close` the link. After one that was only
                read, and came to its end, `let_go` makes the link ready for another
    actions     `act`, from several threads at once; a connection that broke is thrown away, the next call makes another

Rules:

- Everything that Flight raises is translated here, once, into the tree of `errors`.
- Flight objects are attributes of a `Connection`, which sets them to None when it closes. They are never local
  variables: a traceback would hold them, and an object that is still referred to keeps its connection, and the
  connection's threads, alive.
- The last user closes. A Flight client that is closed while another thread is in a call on it takes the process down
  (SIGSEGV), so a connection is given up first, and closed when the last call on it has ended. Calls end by themselves,
  because the stream was ended, or at their time limit.
- A link survives a fork, as `forking` demands: its connection does not, in the parent as in the child. A stream has
  then ended, and its user opens another; an action makes a new connection.
- `open_client` is the one place where an address becomes a Flight client, and Flight is given what encrypts the
  connection and proves who connects (`security.Access`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract import forking
from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    InvalidRequestError,
    NetworkError,
    NotAPylogBrokerError,
    PylogError,
    RequestTimedOutError,
)
from broker_runtime.contract.flight import decode_result, encode_action, from_flight_error
from broker_runtime.contract.requests import Message
from broker_runtime.contract.security import UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.thread_limit import allowing_threads
from broker_runtime.contract.waiting import CLOCK, Clock

# gRPC reads it when it starts. Otherwise each handshake that fails is a line on the user's stderr, beside the error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)

_NO_PROXY: Final[list[tuple[str, int | str]]] = [
    ("grpc.enable_http_proxy", 0),  # grpc_proxy, https_proxy, http_proxy
    ("grpc.address_http_proxy_enabled_addresses", ""),  # GRPC_ADDRESS_HTTP_PROXY
]
_FLIGHT_ERRORS: Final = (flight.FlightError, pa.ArrowException, OSError, StopIteration, ValueError)
"""All that pyarrow raises from a Flight call (ArrowInvalid is a ValueError, ArrowIOError an OSError)."""
_CONNECTION_BROKE: Final = (NetworkError, BrokerUnavailableError, RequestTimedOutError, NotAPylogBrokerError)
_SHORTEST_LIMIT_S: Final = 0.001  # Flight takes a negative limit for none
_NO_LIMIT_S: Final = -1.0


def open_client(address: Address, options: Sequence[tuple[str, int]], access: Access = UNPROTECTED) -> Any:
    """A Flight client of ``address``, which connects at its first call. Raises `NetworkError` for no address at all,
    `ClientStateError` in a child that cannot have one (`forking.check_child`), `InvalidConfigError` for certificates
    that are no longer right.

    ``options``: `CONNECTION_OPTIONS` or `STREAM_OPTIONS`. A proxy that the environment names is used only where
    ``access`` says so: machines that need one for the web have it in every process's environment, where gRPC would send
    even connections to this machine through it.
    """
    forking.check_child()
    proxy = [] if access.uses_proxy else _NO_PROXY
    arguments = access.client_arguments()
    try:
        with allowing_threads():
            return flight.FlightClient(f"{access.scheme}://{address}", generic_options=[*options, *proxy], **arguments)
    except _FLIGHT_ERRORS as error:
        translated = _translate(error, address)
    raise translated


class Connection:
    """The Flight objects of a link, as a call on them gets them. ``writer`` and ``reader`` are those of its stream."""

    __slots__ = ("client", "has_done_writing", "reader", "users", "writer")

    def __init__(self, client: Any) -> None:
        self.client = client
        self.writer: Any = None
        self.reader: Any = None
        self.has_done_writing = False
        self.users = 1  # the link, and each call that is under way; guarded by the link's lock

    def close(self) -> None:
        """Lets the Flight objects go. Called once, by the last user."""
        try:
            if self.writer is not None:
                with suppress(*_FLIGHT_ERRORS):  # its user has learned already why it broke
                    self.writer.close()  # or its destructor complains on stderr
        finally:
            self.writer = self.reader = None
            self.client.close()
            self.client = None


class Link(forking.Forkable):
    """A connection to one peer. Thread-safe, but for `open`; `read` is for one thread at a time, as Flight demands."""

    def __init__(
        self,
        address: Address,
        options: Sequence[tuple[str, int]],
        *,
        what: str = "connection",
        access: Access = UNPROTECTED,
        clock: Clock = CLOCK,
    ) -> None:
        """Connects to nothing yet. ``options`` and ``access``: see `open_client`. ``what``: what errors call it."""
        self.address = address
        self._what = what
        self._options = tuple(options)
        self._access = access
        self._clock = clock
        self._lock = threading.Lock()  # guards the next three; never held in a call that may block
        self._connection: Connection | None = None
        self._is_ended = False
        self._is_closed = False
        self._write_lock = threading.Lock()  # a stream is ended between two writes
        self._heard_s = clock.now_s()
        forking.register(self)

    # --- actions ------------------------------------------------------------------------------------------------

    def act(
        self, name: str, request: Message, response: type[_M], *, client_id: str, timeout_s: float, cluster_id: str = ""
    ) -> _M:
        """Does one action and waits for its response, at most ``timeout_s``. ``client_id``: who asks, for the peer's
        log. ``cluster_id``: the cluster that the peer must belong to; empty: any.

        Raises what the peer answered, `BrokerUnavailableError` (refused: nothing was sent), `NetworkError` and
        `RequestTimedOutError` (it may have been carried out), `NotAPylogBrokerError`, `ClosedError`.
        """
        action = encode_action(name, request, client_id=client_id, cluster_id=cluster_id)
        options = flight.FlightCallOptions(timeout=max(timeout_s, _SHORTEST_LIMIT_S))

        def ask(connection: Connection) -> list[Any]:
            try:
                return [result.body for result in connection.client.do_action(action, options)]
            except BaseException as error:
                if isinstance(_translate(error, self.address), _CONNECTION_BROKE):
                    self._give_up(connection)
                raise

        bodies = self._use(ask, opens=True)
        if bodies is not None and len(bodies) == 1:
            with suppress(InvalidRequestError):
                answer = decode_result(name, bodies[0])
                assert isinstance(answer, response)
                return answer
        raise NotAPylogBrokerError(f"{self.address} answers as Arrow Flight, but not as pylog")

    # --- a stream -----------------------------------------------------------------------------------------------

    def open(self, begin: Callable[[Connection], object]) -> None:
        """Opens a stream: ``begin`` sets the connection's ``reader`` and, where there is one, its ``writer``. Once, or
        again after `let_go`.

        Raises what the peer answers at once, or a network error; a peer that is not there may show at the first use.
        """

        def begin_or_give_up(connection: Connection) -> None:
            try:
                begin(connection)
            except BaseException:
                self._give_up(connection)
                raise

        self._use(begin_or_give_up, opens=True)

    def read(self, call: Callable[[Connection], _T]) -> _T | None:
        """What ``call`` reads from the connection. It may block for as long as the peer says nothing, see `end`.

        None: ``call`` raised StopIteration, the stream is over, and that is as it should be: this side ended it, or
        the stream is one that is only read. Otherwise raises why the peer ended it, what broke it, or `NetworkError`
        after `close`.
        """
        found = self._use(call)
        self.heard()
        return found

    def write(self, call: Callable[[Connection], object]) -> None:
        """Lets ``call`` write to the connection, one thread at a time. Blocks while the peer takes nothing.

        Raises what broke the stream, and `NetworkError` after `end`.
        """

        def write(connection: Connection) -> None:
            with self._write_lock:
                if self._is_ended:
                    raise self._ended()
                call(connection)

        self._use(write)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection already, which a call would use; the peer may be gone all the same."""
        return self._connection is not None

    @property
    def is_ended(self) -> bool:
        """Whether this side ended the stream: by `end`, `close`, or a fork."""
        return self._is_ended

    def end(self, limit_s: float = _NO_LIMIT_S) -> None:
        """Ends the stream from this side. Any thread. Idempotent.

        Reads and exchanges are cancelled: a call that is blocked in the stream raises, at once. Flight cannot cancel
        a DoPut: it says that nothing more comes, the peer answers what it has and ends the stream. Only that blocks:
        for a write that is under way, at most ``limit_s`` (negative: as long as it takes). Not to be called from inside
        a call on the connection.
        """
        with forking.flight_use():
            with self._lock:
                self._is_ended = True
                connection = self._connection
                if connection is None or connection.reader is None:
                    return
                if hasattr(connection.reader, "cancel"):
                    connection.reader.cancel()
                    return
                connection.users += 1
            try:
                if self._write_lock.acquire(timeout=limit_s):
                    try:
                        self._done_writing(connection)
                    finally:
                        self._write_lock.release()
            finally:
                self._release(connection)

    def let_go(self) -> bool:
        """After a stream that was read to its end: makes the link ready to `open` another on the same connection.

        By the thread that read. False: this side has ended the stream, or the connection broke: close the link.
        """
        with forking.flight_use(), self._lock:
            if self._is_ended or self._connection is None:
                return False
            self._connection.reader = None
            return True

    # --- silence ------------------------------------------------------------------------------------------------

    @property
    def silent_for_s(self) -> float:
        """Seconds since `read` last brought something, or since `heard`. Whether the peer owed a word is known to the
        user of the link: actions, for one, have their time limits."""
        return self._clock.now_s() - self._heard_s

    def heard(self) -> None:
        """Counts silence from now on, because the peer begins to owe a word."""
        self._heard_s = self._clock.now_s()

    # --- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the stream and lets the connection go, at the end of calls that are under way. Idempotent."""
        self.end()
        with forking.flight_use():
            with self._lock:
                self._is_closed = True
                connection = self._connection
            self._give_up(connection)
        forking.unregister(self)

    def _interrupt_for_fork(self) -> None:
        """See `forking`. Actions have time limits of their own."""
        self.end(forking.FORK_WAIT_S)

    def _drop_for_fork(self) -> None:
        """See `forking`."""
        self._give_up(self._connection)

    def _after_fork_in_child(self) -> None:
        """See `forking`."""
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        connection, self._connection = self._connection, None
        forking.abandon(connection)

    # --- private ------------------------------------------------------------------------------------------------

    def _use(self, call: Callable[[Connection], _T], *, opens: bool = False) -> _T | None:
        """``call`` on the connection, which is not closed meanwhile. Raises and returns None as `read` does."""
        with forking.flight_use():
            connection = self._hold(opens=opens)
            try:
                return call(connection)
            except StopIteration:
                failure = self._reason(connection)
            except _FLIGHT_ERRORS as error:
                failure = _translate(error, self.address)
            finally:
                self._release(connection)
        if failure is not None:
            raise failure
        return None

    def _hold(self, *, opens: bool) -> Connection:
        with self._lock:
            if self._connection is None:
                if not opens:
                    raise self._ended()
                if self._is_closed:
                    raise ClosedError("the client was closed")
                self._connection = Connection(open_client(self.address, self._options, self._access))
            self._connection.users += 1
            return self._connection

    def _release(self, connection: Connection) -> None:
        with self._lock:
            connection.users -= 1
            is_last = connection.users == 0
        if is_last:
            connection.close()

    def _give_up(self, connection: Connection | None) -> None:
        """The next action makes another one, a stream is over. Does nothing if somebody has given it up already."""
        with self._lock:
            if connection is None or self._connection is not connection:
                return
            self._connection = None
        self._release(connection)

    def _done_writing(self, connection: Connection) -> None:
        if not connection.has_done_writing:
            connection.has_done_writing = True
            with suppress(*_FLIGHT_ERRORS):  # it broke already: the reader learns why
                connection.writer.done_writing()

    def _reason(self, connection: Connection) -> PylogError | None:
        """Why the peer ended the stream. None: see `read`."""
        if connection.writer is None:
            return None
        try:
            connection.writer.close()
        except _FLIGHT_ERRORS as error:
            return _translate(error, self.address)
        return None if self._is_ended else NetworkError(f"{self.address} ended the {self._what}")

    def _ended(self) -> NetworkError:
        return NetworkError(f"the {self._what} was ended")


def _translate(error: BaseException, address: Address) -> PylogError:
    """The pylog error behind what Flight raised. Never keeps ``error``: its traceback would hold the connection."""
    return from_flight_error(error, str(address))
