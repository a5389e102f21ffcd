"""Bytes that are not UTF-8, wherever a Flight call has text, are the peer's fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.errors import InvalidRequestError
from broker_runtime.contract.flight import FRAMES_SCHEMA, from_flight_error
from tests.integration.server.serving import Server, serving

_OPTIONS = flight.FlightCallOptions(timeout=60)
_FOREIGN = b"N\xff\xfeE"
_TEXT = bytes([0xA0 + len(_FOREIGN)]) + _FOREIGN  # a string as MessagePack encodes it


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("foreign") / "data") as server:
        yield server


def _put(client: flight.FlightClient, descriptor: flight.FlightDescriptor, app_metadata: bytes = b"") -> None:
    writer, reader = client.do_put(descriptor, FRAMES_SCHEMA, _OPTIONS)
    try:
        if app_metadata:
            writer.write_metadata(pa.py_buffer(app_metadata))
        writer.done_writing()
        reader.read()
    finally:
        writer.close()


def _exchange(client: flight.FlightClient, command: bytes, app_metadata: bytes = b"") -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command), _OPTIONS)
    try:
        writer.begin(FRAMES_SCHEMA)
        if app_metadata:
            writer.write_metadata(pa.py_buffer(app_metadata))
        writer.done_writing()
        reader.read_chunk()
    finally:
        writer.close()


def _act(client: flight.FlightClient, name: bytes | str, body: bytes) -> None:
    list(client.do_action(flight.Action(name, body), _OPTIONS))


_FIELD = b"\x81\xa9client_id" + _TEXT
_TOPIC = b"\x81\xa5topic" + _TEXT

TEXTS_OF_OURS: dict[str, Callable[[flight.FlightClient], object]] = {
    "get: ticket": lambda client: client.do_get(flight.Ticket(_FOREIGN), _OPTIONS).read_all(),
    "get: read": lambda client: client.do_get(flight.Ticket(b"pylog.read.1" + _TOPIC), _OPTIONS).read_all(),
    "get: plain": lambda client: client.do_get(flight.Ticket(b"pylog.plain.1" + _TOPIC), _OPTIONS).read_all(),
    "put: command": lambda client: _put(client, flight.FlightDescriptor.for_command(_FOREIGN)),
    "put: hello": lambda client: _put(client, flight.FlightDescriptor.for_command(b"pylog.produce.1" + _FIELD)),
    "put: request": lambda client: _put(client, flight.FlightDescriptor.for_command(b"pylog.produce.1\x80"), _TOPIC),
    "exchange: command": lambda client: _exchange(client, _FOREIGN),
    "exchange: hello": lambda client: _exchange(client, b"pylog.fetch.1" + _FIELD),
    "exchange: request": lambda client: _exchange(
        client, b"pylog.fetch.1\x80", _FIELD.replace(b"client_id", b"isolation")
    ),
    "action: body": lambda client: _act(client, "metadata", _FIELD),
    "action: request": lambda client: _act(
        client, "metadata", msgspec.msgpack.encode({"body": msgspec.Raw(b"\x81\xa6topics\x91" + _TEXT)})
    ),
    "info: command": lambda client: client.get_flight_info(flight.FlightDescriptor.for_command(_FOREIGN), _OPTIONS),
}
"""Flight treats these as bytes, we as text."""

TEXTS_OF_FLIGHTS: dict[str, Callable[[flight.FlightClient], object]] = {
    "put: path": lambda client: _put(client, flight.FlightDescriptor.for_path(_FOREIGN)),
    "info: path": lambda client: client.get_flight_info(flight.FlightDescriptor.for_path(_FOREIGN), _OPTIONS),
    "schema: path": lambda client: client.get_schema(flight.FlightDescriptor.for_path(_FOREIGN), _OPTIONS),
    "action: type": lambda client: _act(client, _FOREIGN, b""),
    "handshake": lambda client: client.authenticate_basic_token(_FOREIGN, _FOREIGN, _OPTIONS),
}
"""Flight treats these as text and refuses them before our code sees them."""


@pytest.mark.parametrize("call", TEXTS_OF_OURS)
def test_text_that_is_not_utf8_is_an_invalid_request(server: Server, call: str) -> None:
    """The client gets a typed error, and the broker's log shows no defect."""
    with server.connect() as client:
        with pytest.raises((flight.FlightError, pa.ArrowException, OSError)) as refused:
            TEXTS_OF_OURS[call](client)
        assert isinstance(from_flight_error(refused.value, server.address), InvalidRequestError)
    assert "fail call " not in server.log.read_text()


@pytest.mark.parametrize("call", TEXTS_OF_FLIGHTS)
def test_text_that_flight_itself_refuses_never_shows_our_internals(server: Server, call: str) -> None:
    """The error is not typed, but shows nothing of Python's either."""
    with server.connect() as client:
        with pytest.raises((flight.FlightError, pa.ArrowException, OSError)) as refused:
            TEXTS_OF_FLIGHTS[call](client)
        assert "UnicodeDecodeError" not in str(refused.value)
        assert "Python exception" not in str(refused.value)
    assert "fail call " not in server.log.read_text()


def test_criteria_of_a_list_are_bytes(server: Server) -> None:
    """The criteria are ignored."""
    with server.connect() as client:
        assert len(list(client.list_flights(_FOREIGN, _OPTIONS))) == 3
