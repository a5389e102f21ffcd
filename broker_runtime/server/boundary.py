"""Where calls come in: each gets its `Caller`, and what it raises becomes what a peer may see: a code and a sentence,
never a traceback.

Rule: a `Caller` is made only here (`Call`), and only here is any exception at all caught. An exception that is not a
`PylogError` is a defect of the broker: its log gets the traceback, the peer gets `UnknownServerError`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract.errors import (
    BrokerOverloadedError,
    InvalidRequestError,
    InvalidSchemaError,
    PylogError,
    UnknownServerError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.flight import to_flight_error
from broker_runtime.contract.schema import check_text
from broker_runtime.contract.schema.validity import check_values
from broker_runtime.contract.settings import Address
from broker_runtime.contract.threads import is_out_of_threads
from broker_runtime.security.credentials import NO_PROOF, Proof
from broker_runtime.server.authentication import OPEN, Authenticator
from broker_runtime.server.connections import parse_peer
from broker_runtime.server.openings import MIDDLEWARE
from broker_runtime.services.caller import Caller

NO_MEMORY = "the broker has no memory left for this (memory.max.bytes); others may be done with theirs soon"

_logger = logging.getLogger(__name__)


class PeerGoneError(Exception):
    """The peer's connection ended, or its call was cancelled: nobody is left to answer."""


class Call:
    """One call of a peer, from its beginning to its end. Used by its own thread only."""

    def __init__(self, kind: str, peer: str, *, header: str = "", listener: str = "", proof: Proof = NO_PROOF) -> None:
        """``kind``: for the log. ``peer``: gRPC's name of it. ``header``: the client's own name in the call's headers
        (`CLIENT_HEADER`), "" if there is none. ``listener``: the name of the one that it came to. ``proof``: what its
        headers prove."""
        self._began_s = time.thread_time()
        self.kind = kind
        self.peer = parse_peer(peer)
        address = peer if self.peer is None else str(Address(*self.peer))
        self.caller = Caller(
            client_id=header,
            address=address,
            principal=proof.principal,
            listener=listener,
            is_broker=proof.is_broker,
            credential=proof.credential,
            expires_ms=proof.expires_ms,
        )

    @property
    def used_ms(self) -> float:
        """The processor time of its thread since it began."""
        return (time.thread_time() - self._began_s) * 1000

    def made_by(self, client_id: str) -> Caller:
        """The caller, once the call's first message is decoded, in which the client names itself ``client_id``."""
        if client_id:
            self.caller = replace(self.caller, client_id=client_id)
        return self.caller


@contextmanager
def answering(kind: str, context: Any, listener: Authenticator = OPEN) -> Iterator[Call]:
    """Around everything that a call does: raises only Flight exceptions that the peer may see.

    ``context``: Flight's `ServerCallContext`. ``listener``: who says who its callers are.
    """
    opening = context.get_middleware(MIDDLEWARE)
    header, proof = ("", NO_PROOF) if opening is None else (opening.client_id, opening.proof)
    call = Call(kind, context.peer(), header=header, listener=listener.name, proof=proof)
    try:
        if listener.takes_names_from_certificates:
            call.caller = replace(call.caller, principal=listener.principal_of(context.peer_identity()))
        yield call
    except Exception as error:  # noqa: BLE001 - the boundary: a peer must not see a traceback
        raise wire_error(error, call.kind, call.caller) from None


def wire_error(error: Exception, kind: str, caller: Caller) -> Any:
    """The Flight exception that ``caller`` may see instead of ``error``; logs it."""
    if isinstance(error, MemoryError):
        error = BrokerOverloadedError(NO_MEMORY)
    elif is_out_of_threads(error):
        error = BrokerOverloadedError("the system has no thread left for this call")
    if isinstance(error, PylogError):
        event(_logger, "refuse call", level=logging.DEBUG, kind=kind, **caller.log_fields, error=error)
        return to_flight_error(error)
    if isinstance(error, PeerGoneError):
        return flight.FlightCancelledError("the peer is gone")
    if isinstance(error, flight.FlightError):
        return error
    return defect(error, kind, caller)


def defect(error: Exception, kind: str, caller: Caller) -> Any:
    """Logs an unexpected error with its traceback; returns the Flight exception that stands for it."""
    kind_of_error = type(error).__name__  # its text is in the traceback
    event(
        _logger, "fail call", level=logging.ERROR, kind=kind, **caller.log_fields, error=kind_of_error, exc_info=error
    )
    return to_flight_error(UnknownServerError(f"a defect of the broker ({type(error).__name__}); see its log"))


def read_schema(reader: Any) -> pa.Schema:
    """The schema of the client's batches, its names and zones proper text; blocks until the client has sent it.

    Raises as `read_chunk`.
    """
    with _sense_of("not an Arrow stream"):
        schema = reader.schema
    try:
        check_text(schema)
    except InvalidSchemaError as error:
        raise InvalidRequestError(error.message) from None
    return schema


def refuse_dictionaries(schema: pa.Schema) -> None:
    """Call it before `read_chunk`: a message without a header where Arrow looks for a dictionary ends the process
    (`arrow::ipc::Message::Open`, pyarrow 26). Raises `InvalidRequestError` that names the column."""
    for field in schema:
        if _has_dictionary(field.type):
            raise InvalidRequestError(
                f"column {field.name!r} is {field.type}: a broker takes no dictionaries; send their values "
                "(Array.dictionary_decode)"
            )


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def read_chunk(reader: Any) -> Any | None:
    """The stream's next message; None at its end (which proves nothing: a killed client's stream ends the same way).

    Raises `InvalidRequestError` for a message that Arrow cannot read, `PeerGoneError`.
    """
    with _sense_of("not an Arrow stream"):
        try:
            return reader.read_chunk()
        except StopIteration:
            return None


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, if its buffers hold together, and every value is one of its type. Raises `InvalidRequestError`, and
    `SchemaMismatchError` for a value."""
    with _sense_of("a batch that does not hold together"):
        try:
            batch.validate(full=True)
        except (pa.ArrowException, OSError):
            for column, field in zip(batch.columns, batch.schema, strict=True):
                check_values(column, field)
            raise
    return batch


@contextmanager
def _sense_of(what_else: str) -> Iterator[None]:
    """Around Arrow's reading of a peer's bytes: whatever it raises is the peer's fault, or the peer is gone."""
    try:
        yield
    except (flight.FlightError, pa.ArrowCancelled) as error:
        raise PeerGoneError(str(error)) from None
    except MemoryError:
        raise BrokerOverloadedError(NO_MEMORY) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{what_else}: {_first_line(error)}") from None


def write(writer: Any, batch: pa.RecordBatch | None, app_metadata: pa.Buffer) -> None:
    """Writes one message of an exchange; blocks while the peer takes nothing. Raises `PeerGoneError`."""
    try:
        if batch is None:
            writer.write_metadata(app_metadata)
        else:
            writer.write_with_metadata(batch, app_metadata)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise PeerGoneError(str(error)) from None


def write_put_metadata(writer: Any, app_metadata: pa.Buffer) -> None:
    """The same for DoPut, whose answers are metadata alone."""
    try:
        writer.write(app_metadata)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise PeerGoneError(str(error)) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
