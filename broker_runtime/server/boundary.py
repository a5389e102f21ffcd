"""Where errors of every kind become what the wire may see: a code and a sentence, never a traceback.

Rule: this is the one place where any exception at all is caught. What is not a `PylogError` here is a defect of
ours: the broker's log gets the traceback, the peer `UnknownServerError`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
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
from broker_runtime.contract.flight import to_flight_error
from broker_runtime.contract.schema import check_text
from broker_runtime.contract.threads import is_out_of_threads

NO_MEMORY = "the broker has no memory left for this (memory.max.bytes); others may be done with theirs soon"

_log = logging.getLogger(__name__)


class PeerGoneError(Exception):
    """The peer's connection ended, or its call was cancelled: there is nobody to answer."""


@contextmanager
def answering(call: str, peer: str) -> Iterator[None]:
    """Around everything a call does: raises only Flight exceptions that the peer may see."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the boundary: a defect must not show a peer our insides
        raise wire_error(error, call, peer) from None


def wire_error(error: Exception, call: str, peer: str) -> Any:
    """The Flight exception that the peer of ``call`` may see instead of ``error``; logs it if it is a defect."""
    if isinstance(error, PylogError):
        return to_flight_error(error)
    if isinstance(error, PeerGoneError):
        return flight.FlightCancelledError("the peer is gone")
    if isinstance(error, flight.FlightError):
        return error
    if isinstance(error, MemoryError):
        return to_flight_error(BrokerOverloadedError(NO_MEMORY))
    if is_out_of_threads(error):
        return to_flight_error(BrokerOverloadedError("the system has no thread left for this call"))
    return defect(error, call, peer)


def defect(error: Exception, call: str, peer: str) -> Any:
    """Logs an unexpected error with its traceback; returns the Flight exception that stands for it."""
    _log.error("fail call=%s peer=%s error=%s", call, peer, type(error).__name__, exc_info=error)
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
    """The stream's next message; None at its end (which means nothing: a killed client's stream ends the same way).

    Raises `InvalidRequestError` for a message that Arrow cannot make sense of, `PeerGoneError`.
    """
    with _sense_of("not an Arrow stream"):
        try:
            return reader.read_chunk()
        except StopIteration:
            return None


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, if its buffers hold together. Raises `InvalidRequestError`."""
    with _sense_of("a batch that does not hold together"):
        batch.validate(full=True)
    return batch


@contextmanager
def _sense_of(what_else: str) -> Iterator[None]:
    """Around what Arrow makes of a peer's bytes: all it may raise then is the peer's fault, or its going away."""
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
