"""How the messages of `requests` travel over Arrow Flight: descriptors, tickets, actions, metadata, errors.

Rule: only translation between Flight's values and ours, the same functions for both sides; no sockets, no threads.
Everything a peer sent is checked here before other code sees it, batches included (`frames_of`): pyarrow does not
validate what comes in, and a mutated batch would otherwise be read out of bounds.

An *opening* (a descriptor's command, a ticket) is ``pylog.<kind>.<protocol version>`` and then the MessagePack bytes
of the hello or request. The version is in plain sight, so that a peer of another version can be refused by name,
whatever its messages look like.

    exchange        Flight call      opening                                then
    ------------    -------------    -----------------------------------    -----------------------------------------
    action          DoAction         type = name in `ACTIONS`,              one `Result`: the encoded response
                                     body = `ActionRequest`
    produce         DoPut            command pylog.produce.1 ProduceHello   see below
    fetch           DoExchange       command pylog.fetch.1 FetchHello       see below
    read            DoGet            ticket pylog.read.1 ReadRequest        see below
    plain dialect   GetFlightInfo    path [topic]                           an endpoint per partition, at its leader;
                    ListFlights                                             schema = the topic's columns
                    DoGet            ticket pylog.plain.1 PlainTicket       ordinary record batches, no metadata
                    DoPut            path [topic] or [topic, "3"]           ordinary record batches, answered by one
                                                                            metadata message per batch: `PlainPutResult`
Names. Openings and actions have a field for what the client calls itself (``client_id``); calls of the plain dialect
may say it in the header `CLIENT_HEADER`. It is for the broker's log.

Produce stream. The client calls ``do_put(produce_descriptor(hello), FRAMES_SCHEMA)``. Each request is
``write_with_metadata(frames_batch([frame]), metadata(ProduceRequest))``: ONE frame in one row. The server answers in
the order of the requests with ``metadata(ProduceResponse)`` (``read()`` on the metadata reader), save for ``acks=0``,
which has no answer. A refused request is answered with ``error`` set and the stream stays open; what cannot be decoded
at all ends the stream with a typed error. ``read()`` returns None at the stream's end: ``close()`` on the writer then
raises the reason, if there is one. A client with nothing to send writes ``write_metadata(metadata(
ProduceRequest(request_id=-1, heartbeat=True)))`` each `HEARTBEAT_INTERVAL_S`. The server answers each heartbeat, and
says something (``request_id=-1``) each second while a request waits for its acknowledgement.

Fetch session. The client calls ``do_exchange(fetch_descriptor(hello))`` and ``begin(FRAMES_SCHEMA)``, and sends
``write_metadata(metadata(FetchRequest))``, never a batch; then reads until the response with its ``request_id``. While
a request waits for data the server writes a heartbeat (``FetchResponse(request_id=-1)``, no batch) each second. The
response comes as one message: with a batch of `FRAMES_SCHEMA` whose rows `FetchedPartition.row` names, or without a
batch (``chunk.data is None``) when no partition has data. Between requests the client sends ``heartbeat=True``
requests, each answered by a heartbeat. A request sent before the last was answered is answered after it. Long polls
wait at most `MAX_SERVER_WAIT_S`, however long ``max_wait_ms`` is, then the (empty) response comes: ask again.

Read. ``do_get(read_ticket(request))``: batches of one row (frames back to back) with ``ReadResponse`` as metadata;
always at least one message: a read of an empty range gives one batch without rows.

Silence. A peer that says nothing for `PEER_SILENCE_LIMIT_S` where it should, or that does not take what is written
to it for that long, is cut off: its whole TCP connection is closed. So a client keeps a connection of its own for
each stream (one `FlightClient` per stream, ``generic_options=STREAM_OPTIONS`` or `CONNECTION_OPTIONS`), or a reader
that stalls takes its neighbours with it. A read's reader may pause for `READER_PAUSE_LIMIT_S` (our client then
continues at the next offset), one of the plain dialect for `PLAIN_PAUSE_LIMIT_S`.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract import errors, requests, streams
from broker_runtime.contract.actions import ACTIONS, Action
from broker_runtime.contract.errors import InvalidRequestError, PylogError, UnsupportedVersionError
from broker_runtime.contract.requests import PROTOCOL_VERSION, ErrorInfo, decode, encode

FRAMES_SCHEMA = pa.schema([pa.field("frames", pa.binary(), nullable=False)])
"""What streams of frames look like: each cell holds one frame (produce) or several back to back (fetch, read)."""

READER_PAUSE_LIMIT_S = 15.0
"""A read whose reader takes nothing for this long is cut off; the reader continues where it was.

Measured: a stopped reader and one that merely pauses look the same to the broker (window, send queue, window updates).
"""
PLAIN_PAUSE_LIMIT_S = 60.0
"""The same for streams of the plain dialect, whose clients cannot continue where they were."""

CONNECTION_OPTIONS: list[tuple[str, int]] = [
    ("grpc.use_local_subchannel_pool", 1),  # a TCP connection per FlightClient, shared with no other
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),  # retries are ours: gRPC's would hide them
]
"""For ``FlightClient(generic_options=…)`` of actions and reads (DoGet)."""

STREAM_OPTIONS: list[tuple[str, int]] = [
    *CONNECTION_OPTIONS,
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
]
"""The same for a produce stream or fetch session: a stopped broker is noticed in 8 s even by a blocked write.

Only where the broker says something each second: gRPC's server closes a connection (too_many_pings) that pings it
while it has nothing to say, as under a reader that pauses.
"""

BROKER_HEADER = "pylog-broker"
"""A broker's calls to others carry it: its id, a colon, its registration's secret."""

CLIENT_HEADER = "pylog-client-id"
"""What a client calls itself, in calls whose messages have no room for it: those of the plain dialect. Optional."""

_OPENING = re.compile(rb"pylog\.([a-z]{1,16})\.([0-9]{1,9})")
_MAX_OPENING_BYTES = 1 << 20
_MAX_FOREIGN_CHARS = 300
_ELLIPSIS = " …"

_TLS_FAILURES = (
    ("certificate has expired", "shows a certificate that has expired"),
    ("certificate verify failed", "shows a certificate that ssl.cafile does not vouch for"),
    ("is not in peer certificate", "shows a certificate for another name"),
    ("wrong version number", "does not speak TLS; see security.protocol"),
)
"""gRPC's words in the text of a connection that failed, and what is said of the peer instead."""

_M = TypeVar("_M", bound=msgspec.Struct)


class Opening(Enum):
    """The kinds of opening: the word on the wire and the message that follows it."""

    PRODUCE = ("produce", streams.ProduceHello)
    FETCH = ("fetch", streams.FetchHello)
    READ = ("read", streams.ReadRequest)
    PLAIN = ("plain", streams.PlainTicket)

    def __init__(self, word: str, message: type[requests.Request]) -> None:
        self.word = word
        self.message = message


# --- openings -------------------------------------------------------------------------------------------------


def encode_opening(kind: Opening, message: requests.Message) -> bytes:
    """The bytes of a command or ticket of ``kind``."""
    return b"pylog.%s.%d" % (kind.word.encode(), PROTOCOL_VERSION) + encode(message)


def decode_opening(data: bytes | None, *allowed: Opening) -> tuple[Opening, requests.Message]:
    """The kind and message of a command or ticket.

    Raises `UnsupportedVersionError` for another protocol version (naming both) and `InvalidRequestError` for
    anything that is not one of the ``allowed`` kinds.
    """
    names = " or ".join(f"pylog.{kind.word}.{PROTOCOL_VERSION}" for kind in allowed)
    match = _OPENING.match(data or b"")
    if data is None or match is None or len(data) > _MAX_OPENING_BYTES:
        shown = bytes((data or b"")[:24])
        raise InvalidRequestError(f"{shown!r} ({len(data or b'')} bytes) opens nothing here. Allowed: {names}")
    check_protocol_version(int(match[2]))
    for kind in allowed:
        if kind.word.encode() == match[1]:
            message = decode(memoryview(data)[match.end() :], kind.message)
            check_protocol_version(getattr(message, "protocol_version", PROTOCOL_VERSION))
            return kind, message
    raise InvalidRequestError(f"{match[0].decode()!r} cannot open this kind of call. Allowed: {names}")


def check_protocol_version(version: int) -> None:
    """Raises `UnsupportedVersionError` unless the peer speaks this module's protocol."""
    if version != PROTOCOL_VERSION:
        raise UnsupportedVersionError(f"the peer speaks protocol version {version}, this side {PROTOCOL_VERSION}")


def produce_descriptor(hello: streams.ProduceHello) -> Any:
    """The descriptor that opens a produce stream."""
    return flight.FlightDescriptor.for_command(encode_opening(Opening.PRODUCE, hello))


def fetch_descriptor(hello: streams.FetchHello) -> Any:
    """The descriptor that opens a fetch session."""
    return flight.FlightDescriptor.for_command(encode_opening(Opening.FETCH, hello))


def read_ticket(request: streams.ReadRequest) -> Any:
    """The ticket of a read."""
    return flight.Ticket(encode_opening(Opening.READ, request))


# --- actions --------------------------------------------------------------------------------------------------


def encode_action(name: str, request: requests.Message, *, client_id: str = "", cluster_id: str = "") -> Any:
    """The Flight action ``name`` of `ACTIONS` with its request."""
    envelope = requests.ActionRequest(client_id=client_id, cluster_id=cluster_id, body=msgspec.Raw(encode(request)))
    return flight.Action(name, encode(envelope))


def check_action(name: str, body: Any) -> Action:
    """The action's kinds. Raises `InvalidRequestError` if there is none of that name, or its body is too large."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequestError(f"no action {name[:64]!r}. Allowed: {', '.join(sorted(ACTIONS))}")
    if body is not None:
        requests.check_size(memoryview(body), action.request)
    return action


class ActionCall(NamedTuple):
    """What an action's body holds. ``client_id``: what the client calls itself. ``cluster_id``: the cluster that it
    means; empty: it does not say."""

    client_id: str
    request: requests.Message
    cluster_id: str = ""


def decode_action(name: str, body: Any) -> ActionCall:
    """The call in an action's body (a `pa.Buffer`, or None). Raises as `decode_opening`."""
    action = check_action(name, body)
    envelope = envelope_of(body)
    return ActionCall(envelope.client_id, decode(envelope.body, action.request), envelope.cluster_id)


def envelope_of(body: Any) -> requests.ActionRequest:
    """Whose action it is; the request in it is not decoded yet. Raises as `decode_opening`."""
    envelope = message_of(body, requests.ActionRequest)
    check_protocol_version(envelope.protocol_version)
    return envelope


def decode_result(name: str, body: Any) -> requests.Message:
    """The response in the body of an action's only result."""
    return message_of(body, ACTIONS[name].response)


# --- messages and frames in streams ---------------------------------------------------------------------------


def metadata(message: requests.Message) -> pa.Buffer:
    """The message as a stream's ``app_metadata``."""
    return pa.py_buffer(encode(message))


def message_of(app_metadata: Any, kind: type[_M]) -> _M:
    """The message in ``app_metadata`` (a `pa.Buffer`, or None: `InvalidRequestError`)."""
    if app_metadata is None:
        raise InvalidRequestError(f"a message without metadata, where a {kind.__name__} is expected")
    return decode(memoryview(app_metadata), kind)


def frames_batch(cells: Sequence[pa.Buffer]) -> pa.RecordBatch:
    """A batch of `FRAMES_SCHEMA` with one row per buffer. A single buffer is used as it is, several are copied once.

    The cells together must stay under 2 GiB.
    """
    ends = [0]
    for cell in cells:
        ends.append(ends[-1] + cell.size)
    offsets = pa.py_buffer(array("i", ends))
    values = cells[0] if len(cells) == 1 else pa.py_buffer(b"".join(memoryview(cell) for cell in cells))
    column = pa.Array.from_buffers(pa.binary(), len(cells), [None, offsets, values], null_count=0)
    return pa.RecordBatch.from_arrays([column], schema=FRAMES_SCHEMA)


def frames_of(batch: pa.RecordBatch | None) -> list[pa.Buffer]:
    """The cells of a received batch of `FRAMES_SCHEMA`, as slices of its memory (valid as long as they are held).

    Checks the batch first (one binary column without nulls, offsets in bounds): raises `InvalidRequestError`.
    None and a batch without rows give an empty list.
    """
    if batch is None:
        return []
    if batch.schema != FRAMES_SCHEMA:
        raise InvalidRequestError(f"batches here have one binary column 'frames', not {_show(batch.schema)}")
    column = batch.column(0)
    try:
        column.validate(full=True)
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise InvalidRequestError(f"a batch that does not hold together: {error}") from None
    if column.null_count:
        raise InvalidRequestError("a null where a frame should be")
    if not len(column):
        return []
    _, offsets, values = column.buffers()
    numbers = memoryview(offsets).cast("B")
    # A peer's buffer may end with a piece of a number, which belongs to no cell.
    ends = numbers[: len(numbers) // 4 * 4].cast("i")[column.offset : column.offset + len(column) + 1]
    if values is None:
        return [pa.py_buffer(b"")] * len(column)
    return [values.slice(start, end - start) for start, end in itertools.pairwise(ends)]


def _show(schema: pa.Schema) -> str:
    text = ", ".join(f"{field!r:.80}" for field in list(schema)[:4])  # a name may be bytes that are not UTF-8
    return f"({text[:200]}{_ELLIPSIS if len(schema) > 4 else ''})"


# --- errors ---------------------------------------------------------------------------------------------------


def error_of(info: ErrorInfo) -> PylogError:
    """The error that travelled."""
    return errors.error_from_code(info.code, info.message)


def to_flight_error(error: PylogError) -> Any:
    """The Flight exception that carries ``error`` to the peer (code in ``extra_info``, never a traceback)."""
    info = ErrorInfo.of(error)
    kind = flight.FlightServerError
    if isinstance(error, errors.RequestTimedOutError):
        kind = flight.FlightTimedOutError
    elif isinstance(error, errors.RetriableError):
        kind = flight.FlightUnavailableError
    elif isinstance(error, errors.AuthenticationError):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(error, errors.AuthorizationError):
        kind = flight.FlightUnauthorizedError
    return kind(f"[{info.code}] {info.message}", extra_info=encode(info))


def from_flight_error(exc: BaseException, address: str) -> PylogError:
    """The pylog error behind an exception of a Flight call to ``address`` (``host:port``).

    What a pylog broker raised comes back as the class it was. Else: refused connections, unknown hosts →
    `BrokerUnavailableError`; certificates that do not convince → `SslAuthenticationError`; a deadline →
    `RequestTimedOutError`; no thread for the call → `BrokerOverloadedError`; a peer that speaks something else, or
    Flight without pylog → `NotAPylogBrokerError`; everything else (a reset, a cancelled call) → `NetworkError`.
    """
    extra_info = getattr(exc, "extra_info", None)
    if extra_info:
        try:
            return error_of(decode(extra_info, ErrorInfo))
        except InvalidRequestError:
            return errors.NotAPylogBrokerError(f"{address} answers as Arrow Flight, but not as pylog")
    if isinstance(exc, PylogError):
        return exc
    text = _first_line(exc)
    if isinstance(exc, pa.ArrowNotImplementedError):
        return errors.NotAPylogBrokerError(f"{address} answers as Arrow Flight, but not as pylog")
    if "Threadpool Exhausted" in text:  # gRPC's words for a call for which the broker starts no thread
        return errors.BrokerOverloadedError(f"{address} has more calls than it can serve at present")
    if isinstance(exc, flight.FlightTimedOutError):
        return errors.RequestTimedOutError(f"{address} did not answer in time")
    if "Failed parsing HTTP/2" in text or "http1.x server" in text:
        return errors.NotAPylogBrokerError(f"{address} is another service, not a pylog broker")
    refusal = next((said for words, said in _TLS_FAILURES if words in text), None)
    if refusal is not None:
        _, separator, reason = text.rpartition("certificate verify failed: ")
        return errors.SslAuthenticationError(f"{address} {refusal}{f' ({reason})' if separator else ''}")
    if isinstance(exc, flight.FlightUnavailableError) and ("failed to connect" in text or "resolving" in text):
        return errors.BrokerUnavailableError(f"{address} cannot be reached: {text}")
    return errors.NetworkError(f"the connection to {address} broke: {text}")


def _first_line(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    text = lines[0].split(". gRPC client debug context")[0] if lines else type(exc).__name__
    return text if len(text) <= _MAX_FOREIGN_CHARS else text[: _MAX_FOREIGN_CHARS - len(_ELLIPSIS)] + _ELLIPSIS
