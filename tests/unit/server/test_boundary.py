"""What a peer's bytes make Arrow raise becomes an error of ours that says whose fault it is."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from foreign_names import FOREIGN_SCHEMAS, foreign_schema
from pyarrow import flight

from broker_runtime.contract.errors import BrokerOverloadedError, InvalidRequestError, NotSupportedError
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
        self._call = None if header is None else SimpleNamespace(client_id=header)

    def peer(self) -> str:
        return self._peer

    def get_middleware(self, name: str) -> Any:
        assert name == MIDDLEWARE
        return self._call


class Reader:
    """Flight's reader, with what it has or raises."""

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
def test_schema_with_names_that_are_no_text_is_refused_when_it_arrives(kind: str) -> None:
    """Arrow decodes names when they are first asked for: nobody behind the boundary meets bytes that are not UTF-8."""
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        read_schema(Reader(foreign_schema(kind)))


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_schema_with_names_that_are_text_is_taken_as_it_is(kind: str) -> None:
    """The same shapes are fine when their names are."""
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
def test_whatever_arrow_raises_of_a_message_is_the_peers_fault(
    read: Any, raised: BaseException, seen: type[Exception]
) -> None:
    """A defect of ours is only what no peer can cause."""
    with pytest.raises(seen):
        read(Reader(raises=raised))


def test_lack_of_memory_for_a_message_to_the_peer_is_no_peer_that_is_gone() -> None:
    """It is told that the broker is overloaded, like for whatever else there is no memory."""

    class Writer:
        def write(self, _: object) -> None:
            raise pa.ArrowMemoryError("malloc of size 62914560 failed")

        write_metadata = write

    for call in (lambda: write(Writer(), None, pa.py_buffer(b"")), lambda: write_put_metadata(Writer(), b"")):
        with pytest.raises(flight.FlightUnavailableError, match="BROKER_OVERLOADED"), answering("get", Context()):
            call()


@pytest.mark.parametrize("raised", [pa.ArrowInvalid("x"), OSError("x"), _decode_error(), pa.ArrowIndexError("x")])
def test_whatever_arrow_raises_of_a_batch_is_the_peers_fault(raised: BaseException) -> None:
    """The same when its buffers are checked."""

    class Batch:
        def validate(self, *, full: bool) -> None:
            assert full
            raise raised

    batch: Any = Batch()
    with pytest.raises(InvalidRequestError, match="does not hold together"):
        validated(batch)


# --- who is calling -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7:4711"),
        ("ipv6:%5B2001:db8::1%5D:4711", "[2001:db8::1]:4711"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:4711", "10.0.0.7:4711"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
    ],
)
def test_caller_has_the_address_that_its_connection_comes_from(peer: str, address: str) -> None:
    with answering("get", Context(peer)) as call:
        assert (call.caller.client_id, call.caller.address, call.caller.principal) == ("", address, "ANONYMOUS")


@pytest.mark.parametrize(
    ("header", "told", "client_id"),
    [(None, "app", "app"), ("header", "app", "app"), ("header", "", "header"), (None, "", "")],
)
def test_caller_has_the_client_id_of_the_message_or_else_of_the_header(
    header: str | None, told: str, client_id: str
) -> None:
    """Messages of the plain dialect have no room for one."""
    with answering("put", Context(header=header)) as call:
        assert call.made_by(told) is call.caller
        assert (call.caller.client_id, call.caller.address) == (client_id, "10.0.0.7:4711")


def _fail(kind: str, client_id: str, error: Exception) -> None:
    with pytest.raises(flight.FlightError), answering(kind, Context()) as call:  # noqa: PT012 - the client comes first
        call.made_by(client_id)
        raise error


def test_failed_call_is_one_line_that_names_the_client(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the client calls itself; what it was refused for is told to it, and to the log only at DEBUG."""
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
