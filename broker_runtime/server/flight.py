"""The Flight server: which service answers which call. It translates, and does nothing else.

Rule: every call runs inside `boundary.answering`, every stream is in the `StreamTable` while it is open. No call
does anything before its opening has been decoded, its version checked and its stream admitted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract import streams, thread_limit
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.errors import (
    BrokerOverloadedError,
    BrokerUnavailableError,
    InvalidConfigError,
    InvalidRequestError,
    NotSupportedError,
    SetupError,
    TooManyStreamsError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    PLAIN_PAUSE_LIMIT_S,
    READER_PAUSE_LIMIT_S,
    Opening,
    check_action,
    decode_opening,
    envelope_of,
    frames_batch,
    metadata,
)
from broker_runtime.contract.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from broker_runtime.contract.requests import decode
from broker_runtime.contract.security import LoadedPem, PemFiles
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import Backoff, Deadline
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.ports import require_free_port
from broker_runtime.security.quotas import NO_QUOTAS, UNLIMITED, Allowance, ProcessorTime, Quotas
from broker_runtime.server import connections
from broker_runtime.server.authentication import OPEN, Authenticator
from broker_runtime.server.boundary import Call, answering, read_schema, wire_error
from broker_runtime.server.connection_watch import ConnectionWatch
from broker_runtime.server.connections import Ports, allow_open_files
from broker_runtime.server.fetch_session import FetchSession
from broker_runtime.server.memory_watch import MemoryWatch
from broker_runtime.server.openings import MIDDLEWARE, Headers, Openings, Patience, opened
from broker_runtime.server.plain_dialect import PlainDialect, parse_path
from broker_runtime.server.produce_stream import ProduceStream
from broker_runtime.server.streams import OpenStream, StreamTable
from broker_runtime.server.thread_watch import ThreadWatch
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.caller import BrokerCaller, Caller
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.plain import PlainService
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.read import ReadRange, ReadService

_MAX_ACTIONS = 200  # at once
_ACTION_BYTES = 16 << 20  # of large requests of actions under way: each takes several times as much
_SMALL_ACTION_BYTES = 64 << 10  # such an action does not wait for room
_ROOM_WAIT_S = 5.0
_OTHER_THREADS = 150  # the broker's own, and refused calls'
_OPEN_FILES_BESIDES = 4096  # logs, ZooKeeper
_CONNECTIONS_PER_STREAM = 4  # for each stream allowed: clients have others for actions, and idle ones
_FEWEST_CONNECTIONS = 64
_MORE_OPEN_FILES = 8192  # connections that come between two checks
_NOT_RIGHT = (InvalidConfigError, SetupError, pa.ArrowException, OSError, ValueError)  # of files, or of a port
_REBIND_S = 5.0
_REBIND_PAUSE_S = 0.01
_GRACE_S = 0.5  # for answers under way, when the broker stops

_PRODUCER_LIMITS = (PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE)
_CONSUMER_LIMITS = (CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services behind the calls. ``actions``: by name in `ACTIONS`, from caller and request to response.

    ``admit_replica``: the broker that sent a hello with a replica id; raises `StaleBrokerEpochError` if it is none.
    ``cluster_id``: the cluster that this broker belongs to.
    """

    cluster_id: str
    produce: ProduceService
    fetch: FetchService
    read: ReadService
    plain: PlainService
    actions: Mapping[str, Callable[[Caller, Any], Any]]
    admit_replica: Callable[[Caller, streams.FetchHello], BrokerCaller]
    produce_budget: ByteBudget  # for frames between their arrival and the end of their append
    meters: Meters = NO_METERS
    is_broker: Callable[[Headers], bool] = lambda headers: False  # whether a call's headers prove that it is a broker's
    is_current: Callable[[Caller], bool] = lambda caller: (
        True
    )  # whether what the caller proved itself with still counts
    quotas: Quotas = NO_QUOTAS


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerPlan:
    """A listener that is to be: where, who asks its callers for what, and its certificates where it speaks TLS."""

    address: Address
    authenticator: Authenticator = OPEN
    tls: PemFiles | None = None


class PylogFlightServer:
    """Serves from its construction on; `stop` ends it."""

    def __init__(
        self, listeners: Sequence[ListenerPlan], *, services: Services, max_streams: int, memory_bytes: int
    ) -> None:
        """Listens (port 0: at any free one, see `ports`). Raises `PortInUseError`, `SetupError`, and
        `InvalidConfigError` for certificates that are not right.

        ``memory_bytes``: what the process may take in all; connections that send more than fits are cut.
        """
        for plan in listeners:
            require_free_port(plan.address.host, plan.address.port)
            if plan.tls is not None:
                plan.tls.check()
        thread_limit.prepare()
        max_connections = _allow_connections(_CONNECTIONS_PER_STREAM * max_streams)
        unknown = set(services.actions) - set(ACTIONS)
        assert not unknown, f"actions that the protocol does not have: {sorted(unknown)}"
        self._services = services
        self._thread_watch = ThreadWatch(
            _OTHER_THREADS + _MAX_ACTIONS + Openings.limit_of(max_streams),
            stream_count=lambda: len(self._streams),
            streaming=lambda: self._streams.streaming(),
        )
        self._openings = Openings(max_streams, is_broker=services.is_broker, is_full=self._is_full)
        self._streams = StreamTable(
            max_streams,
            patience=lambda: Patience.least([self._openings.patience(), self._thread_watch.patience()]),
            is_current=services.is_current,
        )
        self._memory_watch = MemoryWatch(
            memory_bytes,
            taken_bytes=self._streams.taken_bytes,
            content_bytes=self._streams.content_bytes,
            acted_bytes=self._streams.acted_bytes,
            is_flooded=lambda: self._thread_watch.is_flooded,
        )
        self._action_slots = threading.Semaphore(_MAX_ACTIONS)
        self._action_budget = ByteBudget(_ACTION_BYTES)
        self._plain = PlainDialect(services.plain, services.actions["metadata"])
        self._connection_watch = ConnectionWatch(max_connections, streaming=lambda: self._streams.streaming())
        self._listeners: list[_Listener] = []
        self._ending: list[threading.Thread] = []  # of listeners whose certificate was renewed, and that have streams
        self._unusable = b""  # the files' contents that were found not to be right
        self._is_stopping = False
        known = frozenset(plan.address.port for plan in listeners)
        try:
            if 0 not in known:  # a flood may be waiting for these very ports
                self._start_watches(known)
            for plan in listeners:
                loaded = None if plan.tls is None else plan.tls.load()
                try:
                    self._listeners.append(_Listener(plan, loaded, calls=self, openings=self._openings))
                except pa.ArrowException as error:  # gRPC is stricter than what was checked, or the port is taken
                    raise SetupError(
                        f"listener {plan.authenticator.name} at {plan.address} does not start: {error}"
                    ) from None
            if 0 not in known:
                self._memory_watch.bound_new()
            else:
                self._start_watches(frozenset(self.ports.values()))
        except BaseException:
            for listener in self._listeners:
                listener.shutdown()
            self._stop_watches()
            raise

    @property
    def ports(self) -> dict[str, int]:
        """Where it listens, by the listeners' names."""
        return {listener.name: listener.port for listener in self._listeners}

    @property
    def port(self) -> int:
        """That of the first listener."""
        return int(self._listeners[0].port)

    def renew_certificates(self) -> list[str]:
        """Lets listeners whose certificate, key or CAs have other contents begin anew, on their ports; returns their
        names. Streams go on as they are; connections that come from now on see the new certificate. For about a
        millisecond nobody listens, and clients try again.

        Files that are not right change nothing, which is logged: a listener is tried with them before, at a port that
        nobody knows. Raises nothing of that kind; not thread-safe.
        """
        renewed = []
        for position, listener in enumerate(self._listeners):
            tls = listener.plan.tls
            if tls is None or self._is_stopping or tls.fingerprint() in (listener.fingerprint, self._unusable):
                continue
            loaded: LoadedPem | None = None
            try:
                loaded = tls.load()
                _Listener(listener.plan, loaded, calls=self, openings=self._openings, is_trial=True).shutdown()
            except _NOT_RIGHT as error:
                self._unusable = tls.fingerprint() if loaded is None else loaded.fingerprint
                event(_logger, "renew certificate", level=logging.ERROR, listener=listener.name, error=error)
                continue
            new = self._begun_anew(listener, loaded)
            if new is None:
                listener.fingerprint = b""  # so that it is tried again
                continue
            self._listeners[position] = new
            renewed.append(listener.name)
            event(_logger, "renew certificate", listener=listener.name)
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        return renewed

    def _begun_anew(self, old: _Listener, loaded: LoadedPem) -> _Listener | None:
        """The listener with the new certificate; None: its port could not be had again, which is logged."""
        port = old.port
        known = {each.cookie for each in connections.traffic(frozenset({port})).values()}
        # It stops to listen at once, and returns when its last stream has ended. The thread keeps it alive until then.
        ending = threading.Thread(target=old.shutdown, name="flight-end", daemon=True)
        self._ending.append(ending)
        ending.start()
        plan = replace(old.plan, address=Address(old.plan.address.host, port))
        deadline, backoff = Deadline(_REBIND_S), Backoff()
        while True:
            try:
                new = _Listener(plan, loaded, calls=self, openings=self._openings)
                break
            except _NOT_RIGHT as error:
                if deadline.expired:
                    event(_logger, "listen again", level=logging.CRITICAL, listener=old.name, error=error)
                    return None
                deadline.sleep(min(backoff.next_s(), _REBIND_PAUSE_S))
        self._memory_watch.bound_renewed(frozenset({port}), known)
        return new

    def _start_watches(self, ports: Ports) -> None:
        self._streams.start(ports)
        self._memory_watch.start(ports)
        self._thread_watch.start(ports)
        self._connection_watch.start(ports)

    def _stop_watches(self) -> None:
        self._streams.stop()
        self._memory_watch.stop()
        self._thread_watch.stop()
        self._connection_watch.stop()

    def _is_full(self) -> bool:
        """Whether a call that begins now is to be refused. Any of them may have to make a check of the watches."""
        is_full = self._thread_watch.is_full()
        self._memory_watch.step_if_late()
        return is_full

    @property
    def open_streams(self) -> list[str]:
        """The kinds of all open streams, sorted."""
        return self._streams.kinds()

    def stop(self, timeout_s: float) -> bool:
        """Refuses new streams, gives answers under way a moment, then closes all connections.

        Blocks up to ``timeout_s``. False: some call is still running then; its thread ends with the process.
        """
        deadline = Deadline(timeout_s)
        self._is_stopping = True
        self._streams.refuse_new()
        self._services.quotas.end_waits()
        ending = threading.Thread(target=self._shut_down, name="flight-shutdown", daemon=True)
        ending.start()
        ending.join(min(_GRACE_S, timeout_s))
        while ending.is_alive() and not deadline.expired:
            self._streams.cut_all()
            ending.join(0.2)
        self._stop_watches()
        if ending.is_alive():
            event(_logger, "stop server", level=logging.WARNING, calls_left=len(self._streams), waited_s=timeout_s)
        return not ending.is_alive()

    def _shut_down(self) -> None:
        """Ends all listeners at once: each waits for its calls."""
        ending = [
            threading.Thread(target=each.shutdown, name="flight-shutdown", daemon=True) for each in self._listeners
        ]
        for thread in ending:
            thread.start()
        for thread in (*ending, *self._ending):
            thread.join()

    def stream_kinds(self) -> list[str]:
        """The kind of every open stream, sorted."""
        return self._streams.kinds()

    # --- actions ---

    def list_actions(self, listener: Authenticator, context: Any) -> list[tuple[str, str]]:
        """Names of the actions, with what they take and give."""
        with answering("list actions", context, listener) as call:
            self._wait_if_over_quota(call.caller, context)
            return [(name, f"{kinds.request.__name__} → {kinds.response.__name__}") for name, kinds in ACTIONS.items()]

    def do_action(self, listener: Authenticator, context: Any, action: Any) -> list[Any]:
        """One request, one response."""
        name, body = action.type, action.body
        size_bytes = 0 if body is None else body.size
        with (
            answering(f"action {name[:64]}", context, listener) as call,
            self._streams.acting(call.peer, size_bytes),
        ):
            kinds = check_action(name, body)
            handler = self._services.actions.get(name)
            if handler is None:
                raise NotSupportedError(f"this broker does not serve the action {name!r}")
            with self._services.meters.answering(name):
                envelope = envelope_of(body)
                if envelope.cluster_id and envelope.cluster_id != self._services.cluster_id:
                    # Somebody's broker had this address before.
                    raise BrokerUnavailableError(
                        f"this is a broker of cluster {self._services.cluster_id}, not of {envelope.cluster_id[:64]}"
                    )
                caller = call.made_by(envelope.client_id)
                self._wait_if_over_quota(caller, context)
                with self._one_more_action(), self._room_for(size_bytes):
                    return [flight.Result(metadata(handler(caller, decode(envelope.body, kinds.request))))]

    def _wait_if_over_quota(self, caller: Caller, context: Any) -> None:
        """With nothing in hand. The call's processor time is spent when it has ended."""
        allowance = self._services.quotas.begin_action(caller.principal, caller.client_id, is_broker=caller.is_broker)
        opening = context.get_middleware(MIDDLEWARE)
        if opening is not None:
            opening.allowance = allowance

    @contextmanager
    def _one_more_action(self) -> Iterator[None]:
        """Bounds the threads that actions hold. Streams do not count: a broker full of them can still be asked why."""
        if not self._action_slots.acquire(blocking=False):
            raise TooManyStreamsError(f"{_MAX_ACTIONS} actions are under way on this broker")
        try:
            yield
        finally:
            self._action_slots.release()

    @contextmanager
    def _room_for(self, size_bytes: int) -> Iterator[None]:
        """Bounds the memory that large requests take."""
        held_bytes = size_bytes if size_bytes > _SMALL_ACTION_BYTES else 0
        if held_bytes and not self._action_budget.acquire(held_bytes, _ROOM_WAIT_S):
            raise BrokerOverloadedError(f"{_ACTION_BYTES >> 20} MiB of requests are under way on this broker")
        try:
            yield
        finally:
            self._action_budget.release(held_bytes)

    # --- streams ---

    def do_put(self, listener: Authenticator, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A produce stream, or ordinary batches for a topic."""
        opened(context)
        self._memory_watch.renew_credits_for_stream()
        with answering("put", context, listener) as call:
            if descriptor.descriptor_type == flight.DescriptorType.PATH:
                parse_path(descriptor.path)
                with self._open("plain-put", call, _PRODUCER_LIMITS, read_limit_s=PLAIN_PAUSE_LIMIT_S) as stream:
                    self._plain.put(descriptor.path, reader, writer, stream)
                return
            _, hello = decode_opening(descriptor.command, Opening.PRODUCE)
            assert isinstance(hello, streams.ProduceHello)
            call.made_by(hello.client_id)
            with self._open("produce", call, _PRODUCER_LIMITS) as stream:
                with stream.reading:
                    schema = read_schema(reader)
                if schema != FRAMES_SCHEMA:
                    raise InvalidRequestError("a produce stream's schema is one binary column 'frames', not null")
                ProduceStream(
                    reader,
                    writer,
                    service=self._services.produce,
                    budget=self._services.produce_budget,
                    stream=stream,
                    meters=self._services.meters,
                ).serve()

    def do_exchange(self, listener: Authenticator, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A fetch session, of a consumer or a follower."""
        opened(context)
        with answering("exchange", context, listener) as call:
            _, hello = decode_opening(descriptor.command, Opening.FETCH)
            assert isinstance(hello, streams.FetchHello)
            caller = call.made_by(hello.client_id)
            is_follower = hello.replica_id >= 0
            if is_follower:
                call.caller = self._services.admit_replica(caller, hello)
            # A broker that is full of clients still serves its followers: without them nothing is committed.
            with self._open(
                "follower" if is_follower else "fetch", call, _CONSUMER_LIMITS, is_limited=not is_follower
            ) as stream:
                with stream.reading:
                    schema = read_schema(reader)
                if schema != FRAMES_SCHEMA:
                    raise InvalidRequestError("a fetch session's schema is one binary column 'frames', not null")
                FetchSession(
                    reader, writer, service=self._services.fetch, stream=stream, meters=self._services.meters
                ).serve()

    def do_get(self, listener: Authenticator, context: Any, ticket: Any) -> Any:
        """A read, or a partition as ordinary batches."""
        with answering("get", context, listener) as call:
            kind, request = decode_opening(ticket.ticket, Opening.READ, Opening.PLAIN)
            if isinstance(request, streams.ReadRequest):
                caller = call.made_by(request.client_id)
                allowance = self._allowance(caller, _CONSUMER_LIMITS)
                with self._services.meters.refusing("read"), _spending(allowance):
                    pieces = self._read_pieces(caller, self._services.read.plan(caller, request), allowance)
                return flight.GeneratorStream(
                    FRAMES_SCHEMA, self._watched("read", call, READER_PAUSE_LIMIT_S, pieces, allowance)
                )
            assert isinstance(request, streams.PlainTicket), kind
            allowance = self._allowance(call.caller, _CONSUMER_LIMITS)
            with self._services.meters.refusing("plain-get"), _spending(allowance):
                schema, batches = self._services.plain.read(call.caller, request, allowance)
            return flight.GeneratorStream(
                schema, self._watched("plain-get", call, PLAIN_PAUSE_LIMIT_S, batches, allowance)
            )

    @contextmanager
    def _open(self, kind: str, call: Call, quotas: Sequence[str] | Allowance, **limits: Any) -> Iterator[OpenStream]:
        """A stream of the call's caller, in the table while it is open; ``limits``: see `StreamTable.open`. ``quotas``:
        those of which it takes."""
        caller = call.caller
        if isinstance(quotas, Allowance):
            allowance = quotas
        else:  # who only opens streams takes processor time, too
            opening = self._services.quotas.begin_action(caller.principal, caller.client_id, is_broker=caller.is_broker)
            opening.spend(REQUEST_PERCENTAGE, call.used_ms)
            allowance = self._allowance(caller, quotas)
        with (
            self._services.meters.refusing(kind),
            self._services.quotas.streaming(caller.principal, caller.client_id, is_broker=caller.is_broker),
        ):
            stream = self._streams.open(kind, caller, call.peer, allowance=allowance, **limits)
            try:
                yield stream
            except Exception as error:
                self._streams.close(stream, error)
                raise
            finally:
                self._streams.close(stream)

    def _allowance(self, caller: Caller, limits: Sequence[str]) -> Allowance:
        """What a stream of the caller's may take. Brokers have no quotas."""
        return UNLIMITED if caller.is_broker else self._services.quotas.of(caller.principal, caller.client_id, limits)

    def _read_pieces(self, caller: Caller, plan: ReadRange, allowance: Allowance) -> Generator[Any, None, None]:
        with closing(self._services.read.pieces(caller, plan, allowance)) as pieces:
            for response, frames in pieces:
                yield frames_batch([] if frames is None else [frames]), metadata(response)

    def _watched(
        self, kind: str, call: Call, pause_limit_s: float, items: Generator[Any, None, None], allowance: Allowance
    ) -> Iterator[Any]:
        """``items``, as a stream under watch. Flight asks for the next when the peer has taken the last."""
        began_s = time.monotonic()
        try:
            with self._open(kind, call, allowance, write_limit_s=pause_limit_s) as stream:
                while True:
                    timer = ProcessorTime(allowance)  # each piece may be made on another thread
                    item = next(items, None)
                    timer.spend()
                    if item is None:
                        break
                    with stream.writing:
                        yield item
                    del item
        except Exception as error:  # noqa: BLE001 - the boundary, for a generator
            raise wire_error(error, kind, call.caller) from None
        finally:
            items.close()
            self._services.meters.answered(kind, time.monotonic() - began_s)

    # --- the plain dialect's descriptions ---

    def list_flights(self, listener: Authenticator, context: Any, criteria: bytes) -> Iterator[Any]:
        """All topics."""
        with answering("list flights", context, listener) as call, self._services.meters.answering("list-flights"):
            self._wait_if_over_quota(call.caller, context)
            return iter(list(self._plain.list_topics(call.caller, uses_tls=listener.protocol.uses_tls)))

    def get_flight_info(self, listener: Authenticator, context: Any, descriptor: Any) -> Any:
        """A topic's columns, and an endpoint for each partition."""
        with answering("flight info", context, listener) as call, self._services.meters.answering("flight-info"):
            self._wait_if_over_quota(call.caller, context)
            return self._plain.describe(call.caller, _topic_of(descriptor), uses_tls=listener.protocol.uses_tls)

    def get_schema(self, listener: Authenticator, context: Any, descriptor: Any) -> Any:
        """A topic's columns."""
        with answering("schema", context, listener) as call, self._services.meters.answering("schema"):
            self._wait_if_over_quota(call.caller, context)
            return flight.SchemaResult(self._services.plain.schema(call.caller, _topic_of(descriptor)))


class _Listener(flight.FlightServerBase):
    """One port. Which calls come in, and from whom, is for it to say; what is done is the same for all."""

    def __init__(
        self,
        plan: ListenerPlan,
        loaded: LoadedPem | None,
        *,
        calls: PylogFlightServer,
        openings: Openings,
        is_trial: bool = False,
    ) -> None:
        """Listens from now on. ``loaded``: what is in ``plan.tls``. ``is_trial``: at any port, for this machine alone.
        Raises `SetupError`, and what Flight raises."""
        self.plan = plan
        self.fingerprint = b"" if loaded is None else loaded.fingerprint
        self._calls = calls
        self._authenticator = plan.authenticator
        host, port = ("127.0.0.1", 0) if is_trial else plan.address
        arguments: dict[str, Any] = {"middleware": {MIDDLEWARE: _Beginnings(openings, plan.authenticator)}}
        scheme = "grpc"
        if loaded is not None:
            scheme = "grpc+tls"  # without it Flight would ignore the certificates, and say nothing
            arguments["tls_certificates"] = [(loaded.chain, loaded.key)]
            if plan.authenticator.asks_for_certificates:
                if loaded.roots is None:  # Flight would begin, and take everybody or nobody
                    raise SetupError(f"listener {self.name} asks for certificates, and has no CA")
                arguments |= {"verify_client": True, "root_certificates": loaded.roots}
        elif plan.authenticator.protocol.uses_tls:
            raise SetupError(f"listener {self.name} speaks {plan.authenticator.protocol.value}, and has no certificate")
        bracketed = f"[{host}]" if ":" in host else host
        super().__init__(f"{scheme}://{bracketed}:{port}", **arguments)

    @property
    def name(self) -> str:
        return self._authenticator.name

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return self._calls.list_actions(self._authenticator, context)

    def do_action(self, context: Any, action: Any) -> list[Any]:
        return self._calls.do_action(self._authenticator, context, action)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._calls.do_put(self._authenticator, context, descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._calls.do_exchange(self._authenticator, context, descriptor, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> Any:
        return self._calls.do_get(self._authenticator, context, ticket)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        return self._calls.list_flights(self._authenticator, context, criteria)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        return self._calls.get_flight_info(self._authenticator, context, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return self._calls.get_schema(self._authenticator, context, descriptor)


class _Beginnings(flight.ServerMiddlewareFactory):
    """The calls that begin at one listener."""

    def __init__(self, openings: Openings, authenticator: Authenticator) -> None:
        super().__init__()
        self._openings = openings
        self._authenticator = authenticator

    def start_call(self, info: Any, headers: Headers) -> Any:
        return self._openings.start_call(info, headers, self._authenticator.authenticate)


@contextmanager
def _spending(allowance: Allowance) -> Iterator[None]:
    """Around what is done for a stream before it is open. Its first piece waits."""
    timer = ProcessorTime(allowance)
    try:
        yield
    finally:
        timer.spend()


def _topic_of(descriptor: Any) -> str:
    if descriptor.descriptor_type != flight.DescriptorType.PATH:
        raise InvalidRequestError("topics are described by a path: [topic]")
    return parse_path(descriptor.path)[0]


def _allow_connections(wanted: int) -> int:
    """Raises the limit of open files for so many connections beside the logs; returns how many the system allows."""
    # Twice: the watchdog duplicates the descriptors that it checks.
    granted = allow_open_files(_OPEN_FILES_BESIDES + 2 * wanted + _MORE_OPEN_FILES)
    return max(_FEWEST_CONNECTIONS, min(wanted, (granted - min(_OPEN_FILES_BESIDES, granted // 2)) // 2))
