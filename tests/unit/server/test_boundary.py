"""Arrow's exceptions about a peer's bytes become errors of ours that say whose fault it is."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from foreign_names import FOREIGN_SCHEMAS, foreign_schema
from pyarrow import flight

from broker_runtime.contract.errors import BrokerOverloadedError, InvalidRequestError, NotSupportedError
from broker_runtime.security.credentials import NO_PROOF
from broker_runtime.server.boundary import (
    PeerGoneError,
    answering,
    read_chunk,
    read_schema,
    validated,
    write,
    write_put_metadata,
)
from broker_runtime.server.openings import MIDDLEWARE


class Context:
    """Flight's call, as its handler sees it."""

    def __init__(self, peer: str = "ipv4:10.0.0.7:4711", header: str | None = None) -> None:
        self._peer = peer
        self._call = None if header is None else SimpleNamespace(client_id=header, proof=NO_PROOF)

    def peer(self) -> str:
        return self._peer

    def peer_identity(self) -> bytes:
        return b""

    def get_middleware(self, name: str) -> Any:
        assert name == MIDDLEWARE
        return self._call


class Reader:
    """Flight's reader, with what it returns or raises."""

    def __init__(self, schema: pa.Schema | None = None, raises: BaseException | None = None) -> None:
        self._schema = schema
        self._raises = raises

    @property
    def schema(self) -> pa.Schema | None:
        if self._raises is not None:
            raise self._raises
        return self._schema

    def read_chunk(self) -> Any:
        assert self._raises is not None
        raise self._raises


def _decode_error() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte")


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_schema_with_names_that_are_not_utf8_is_refused_on_arrival(kind: str) -> None:
    """Arrow decodes names lazily: code behind the boundary never meets bytes that are not UTF-8."""
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        read_schema(Reader(foreign_schema(kind)))


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_schema_with_names_in_utf8_is_accepted(kind: str) -> None:
    """The same shapes are accepted with valid names."""
    schema = FOREIGN_SCHEMAS[kind]
    assert read_schema(Reader(schema)) is schema


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (pa.ArrowInvalid("bad\nmore"), InvalidRequestError),
        (pa.ArrowKeyError("no such dictionary"), InvalidRequestError),
        (OSError("truncated"), InvalidRequestError),
        (pa.ArrowMemoryError("2 EiB"), BrokerOverloadedError),
        (_decode_error(), InvalidRequestError),
        (flight.FlightCancelledError("gone"), PeerGoneError),
        (pa.ArrowCancelled("gone"), PeerGoneError),
    ],
)
@pytest.mark.parametrize("read", [read_chunk, read_schema])
def test_any_arrow_exception_about_a_message_is_the_peers_fault(
    read: Any, raised: BaseException, seen: type[Exception]
) -> None:
    """Only an error that no peer can cause is a defect of ours."""
    with pytest.raises(seen):
        read(Reader(raises=raised))


def test_lack_of_memory_for_a_message_is_not_a_gone_peer() -> None:
    """The error says that the broker is overloaded, as for any other lack of memory."""

    class Writer:
        def write(self, _: object) -> None:
            raise pa.ArrowMemoryError("malloc of size 62914560 failed")

        write_metadata = write

    for call in (lambda: write(Writer(), None, pa.py_buffer(b"")), lambda: write_put_metadata(Writer(), b"")):
        with pytest.raises(flight.FlightUnavailableError, match="BROKER_OVERLOADED"), answering("get", Context()):
            call()


@pytest.mark.parametrize("raised", [pa.ArrowInvalid("x"), OSError("x"), _decode_error(), pa.ArrowIndexError("x")])
def test_any_arrow_exception_about_a_batch_is_the_peers_fault(raised: BaseException) -> None:
    """The same holds for the validation of its buffers."""

    class Batch:
        columns = ()
        schema = ()

        def validate(self, *, full: bool) -> None:
            assert full
            raise raised

    batch: Any = Batch()
    with pytest.raises(InvalidRequestError, match="does not hold together"):
        validated(batch)


# --- the caller ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7:4711"),
        ("ipv6:%5B2001:db8::1%5D:4711", "[2001:db8::1]:4711"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:4711", "10.0.0.7:4711"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
    ],
)
def test_caller_has_the_address_of_its_connection(peer: str, address: str) -> None:
    with answering("get", Context(peer)) as call:
        assert (call.caller.client_id, call.caller.address, call.caller.principal) == ("", address, "ANONYMOUS")


@pytest.mark.parametrize(
    ("header", "message_id", "client_id"),
    [(None, "app", "app"), ("header", "app", "app"), ("header", "", "header"), (None, "", "")],
)
def test_caller_has_the_client_id_of_the_message_or_else_of_the_header(
    header: str | None, message_id: str, client_id: str
) -> None:
    """Messages of the plain dialect have no room for a client id."""
    with answering("put", Context(header=header)) as call:
        assert call.made_by(message_id) is call.caller
        assert (call.caller.client_id, call.caller.address) == (client_id, "10.0.0.7:4711")


def _fail(kind: str, client_id: str, error: Exception) -> None:
    with pytest.raises(flight.FlightError), answering(kind, Context()) as call:  # noqa: PT012 - the client comes first
        call.made_by(client_id)
        raise error


def test_failed_call_is_one_line_that_names_the_client(caplog: pytest.LogCaptureFixture) -> None:
    """The client id does not matter; the peer gets the reason, and the log only at DEBUG."""
    with caplog.at_level(logging.DEBUG):
        _fail("put", "a\nERROR broker_runtime fail call", ZeroDivisionError("a defect"))
        _fail("get", "app", NotSupportedError("not yet"))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "ERROR",
            r'fail call kind=put client_id="a\nERROR broker_runtime fail call" address=10.0.0.7:4711 '
            "error=ZeroDivisionError",
        ),
        ("DEBUG", 'refuse call kind=get client_id=app address=10.0.0.7:4711 error="[NOT_SUPPORTED] not yet"'),
    ]
