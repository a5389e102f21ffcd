"""How messages and errors travel over Flight."""

from __future__ import annotations

import pyarrow as pa
import pytest
from foreign_names import FOREIGN_SCHEMAS, foreign_batch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from broker_runtime.contract import errors, requests, streams
from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    Opening,
    decode_action,
    decode_opening,
    encode_action,
    encode_opening,
    frames_batch,
    frames_of,
    from_flight_error,
    message_of,
    metadata,
    read_ticket,
    to_flight_error,
)


@pytest.mark.parametrize("kind", errors.all_error_classes())
def test_every_error_arrives_as_its_own_class(kind: type[errors.PylogError]) -> None:
    """Errors travel as codes in extra_info."""
    sent = kind("offset 5 is not in 0 to 3")
    arrived = from_flight_error(to_flight_error(sent), "h:1")
    expected = errors.UnknownServerError if kind is errors.PylogError else type(errors.error_from_code(kind.code, ""))
    assert type(arrived) is expected
    assert arrived.message == sent.message
    assert arrived.retriable == sent.retriable


def test_long_messages_are_cut_to_the_size_of_a_trailer() -> None:
    """gRPC refuses trailers above 8 KiB, and the error would be lost."""
    sent = to_flight_error(errors.SchemaMismatchError("é" * 100_000))
    assert len(sent.extra_info) + len(str(sent).encode()) * 3 < 8000
    assert isinstance(from_flight_error(sent, "h:1"), errors.SchemaMismatchError)


@pytest.mark.parametrize(
    ("foreign", "kind"),
    [
        (flight.FlightTimedOutError("Deadline Exceeded"), errors.RequestTimedOutError),
        (flight.FlightUnavailableError("failed to connect to all addresses; refused"), errors.BrokerUnavailableError),
        (flight.FlightUnavailableError("errors resolving nohost:1: not found"), errors.BrokerUnavailableError),
        (flight.FlightUnavailableError("failed to connect: Failed parsing HTTP/2"), errors.NotAPylogBrokerError),
        (pa.ArrowNotImplementedError("NotImplementedError"), errors.NotAPylogBrokerError),
        (flight.FlightServerError("x", extra_info=b"other"), errors.NotAPylogBrokerError),
        (flight.FlightUnavailableError("Socket closed"), errors.NetworkError),
        (flight.FlightCancelledError("CANCELLED"), errors.NetworkError),
        (OSError("broken pipe"), errors.NetworkError),
    ],
)
def test_foreign_exceptions_are_translated_and_name_the_address(foreign: Exception, kind: type) -> None:
    """Foreign exceptions are translated once, at the edge that meets them."""
    error = from_flight_error(foreign, "h:9092")
    assert type(error) is kind
    assert "h:9092" in error.message


def test_openings_have_kind_and_version_in_plain_text() -> None:
    """Peers recognise another protocol version by name."""
    request = streams.ReadRequest(topic="t", partition=1, start=5)
    ticket = read_ticket(request).ticket
    assert ticket.startswith(b"pylog.read.1")
    assert decode_opening(ticket, Opening.PLAIN, Opening.READ) == (Opening.READ, request)
    with pytest.raises(errors.UnsupportedVersionError, match="version 2, this side 1"):
        decode_opening(ticket.replace(b"read.1", b"read.2", 1), Opening.READ)
    later = encode_opening(Opening.FETCH, streams.FetchHello(protocol_version=3))
    with pytest.raises(errors.UnsupportedVersionError, match="version 3, this side 1"):
        decode_opening(later, Opening.FETCH)


@pytest.mark.parametrize(
    "data", [None, b"", b"x", b"pylog.", b"pylog.read.", b"pylog.read.1", b"pylog.read.1\x93", b"\0" * 10]
)
def test_invalid_opening_is_refused_with_the_allowed_ones(data: bytes | None) -> None:
    """The typed error says what is allowed."""
    with pytest.raises(errors.InvalidRequestError, match=r"pylog\.read\.1|ReadRequest"):
        decode_opening(data, Opening.READ)


@given(st.binary(max_size=60))
def test_random_openings_and_action_bodies_raise_only_typed_errors(data: bytes) -> None:
    """Decoding raises only `RequestError`."""
    for call in (
        lambda: decode_opening(b"pylog.read.1" + data, Opening.READ),
        lambda: decode_opening(data, Opening.FETCH, Opening.PLAIN),
        lambda: decode_action("create_topic", pa.py_buffer(data)),
    ):
        try:
            decoded = call()
        except errors.RequestError:
            continue
        assert isinstance(decoded[-1] if isinstance(decoded, tuple) else decoded, requests.Message)


def test_actions_and_metadata_round_trip() -> None:
    """The envelope carries protocol version, client id and the cluster that is meant."""
    request = requests.CreateTopicRequest(name="t", partitions=3)
    action = encode_action("create_topic", request, client_id="c", cluster_id="d")
    assert (action.type, decode_action("create_topic", action.body)) == ("create_topic", ("c", request, "d"))
    with pytest.raises(errors.InvalidRequestError, match="create_topic"):
        decode_action("nope", action.body)
    assert message_of(metadata(request), requests.CreateTopicRequest) == request
    with pytest.raises(errors.InvalidRequestError, match="without metadata"):
        message_of(None, requests.CreateTopicRequest)


def test_frames_travel_as_cells_and_one_cell_is_not_copied() -> None:
    """Frames are the cells of one binary column."""
    one = pa.py_buffer(b"frame")
    batch = frames_batch([one])
    batch.validate(full=True)
    (cell,) = frames_of(batch)
    assert (cell.address, cell.size) == (one.address, one.size)
    several = frames_batch([pa.py_buffer(b"a"), pa.py_buffer(b""), pa.py_buffer(b"ccc")])
    assert [cell.to_pybytes() for cell in frames_of(several)] == [b"a", b"", b"ccc"]
    assert [cell.to_pybytes() for cell in frames_of(several.slice(2))] == [b"ccc"]
    assert frames_of(frames_batch([])) == frames_of(None) == []


def test_offsets_that_end_with_a_partial_number_are_read_without_it() -> None:
    """Arrow accepts such a batch from a peer."""
    offsets = pa.py_buffer(bytes(4) + b"\x03\0\0\0" + b"??")
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(b"abc")], null_count=0)
    batch = pa.RecordBatch.from_arrays([column], schema=FRAMES_SCHEMA)
    assert [cell.to_pybytes() for cell in frames_of(batch)] == [b"abc"]


def test_inconsistent_batch_is_refused_before_it_is_read() -> None:
    """A mutated batch segfaulted readers 6 times of 6, never after validation."""
    offsets = bytearray(8)
    column = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(b"short")])
    mutated = pa.RecordBatch.from_arrays([column], schema=FRAMES_SCHEMA)
    offsets[4:] = (1 << 30).to_bytes(4, "little")  # as bytes from a peer may be: pyarrow validates only its own batches
    for batch in (
        mutated,
        pa.record_batch({"frames": ["text"]}),
        pa.record_batch({"a": [b"x"], "b": [b"y"]}),
        pa.record_batch({"frames": pa.array([b"x", None])}),
    ):
        with pytest.raises(errors.InvalidRequestError):
            frames_of(batch)


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_batch_whose_names_are_not_utf8_is_refused_like_any_other(kind: str) -> None:
    """The names in a peer's schema may be bytes that are not UTF-8."""
    with pytest.raises(errors.InvalidRequestError):
        frames_of(foreign_batch(kind))


def test_call_for_which_grpc_starts_no_thread_is_sent_again() -> None:
    """gRPC refuses it by itself, in its own words."""
    refused = pa.ArrowInvalid("Flight returned resource exhausted error, with message: Server Threadpool Exhausted")
    assert isinstance(from_flight_error(refused, "b:1"), errors.BrokerOverloadedError)
