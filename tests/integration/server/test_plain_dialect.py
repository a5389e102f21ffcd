"""Any Flight client can write and read ordinary record batches, with nothing of pylog on its side."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from foreign_names import FOREIGN_SCHEMAS, foreign_batch
from pyarrow import flight

from broker_runtime.contract import errors
from broker_runtime.contract.flight import from_flight_error
from tests.integration.server.serving import TYPED, Server, serving

_OPTIONS = flight.FlightCallOptions(timeout=60)
_ROWS = pa.record_batch({"carrier": ["UA", "AA", None, "DL", "B6"], "delay": pa.array([1, None, 3, 4, 5], pa.int32())})
_NO_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"UA\xff"]).buffers())


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with empty logs."""
    with serving(tmp_path_factory.mktemp("plain") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that append nothing."""
    with serving(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server


def _put(client: flight.FlightClient, path: tuple[str, ...], *batches: pa.RecordBatch) -> None:
    writer, reader = client.do_put(flight.FlightDescriptor.for_path(*path), batches[0].schema, _OPTIONS)
    for batch in batches:
        writer.write_batch(batch)
        if reader.read() is None:
            break
    writer.close()


def _get(client: flight.FlightClient, topic: str) -> list[pa.Table]:
    info = client.get_flight_info(flight.FlightDescriptor.for_path(topic), _OPTIONS)
    assert all(len(endpoint.locations) == 1 for endpoint in info.endpoints)
    return [client.do_get(endpoint.ticket, _OPTIONS).read_all() for endpoint in info.endpoints]


def test_ordinary_batches_go_in_and_come_out_in_order_over_all_partitions(server: Server) -> None:
    """DoGet yields ordinary record batches and DoPut takes them, so any Flight client works without our code."""
    with server.connect() as client:
        _put(client, ("typed",), _ROWS)
        _put(client, ("typed",), _ROWS.select(["delay"]))
        info = client.get_flight_info(flight.FlightDescriptor.for_path("typed"), _OPTIONS)
        assert (info.schema, len(info.endpoints), info.total_records) == (TYPED.arrow, 2, 10)
        first, second = _get(client, "typed")
        assert first.schema == TYPED.arrow
        assert first["delay"].to_pylist() + second["delay"].to_pylist() == [1, None, 1, None, 3, 4, 5, 3, 4, 5]
        assert first["carrier"].to_pylist() == ["UA", "AA", None, None]


def test_partition_in_the_path_is_obeyed_and_types_are_cast(server: Server) -> None:
    """W8: a producer may name the partition itself."""
    batch = pa.record_batch(
        {"carrier": pa.array(["UA", "UA"], pa.large_string()), "delay": pa.array([1, 2], pa.int64())}
    )
    with server.connect() as client:
        _put(client, ("typed", "1"), batch)
        first, second = _get(client, "typed")
        assert (first.num_rows, second.to_pylist()) == (
            0,
            [{"carrier": "UA", "delay": 1}, {"carrier": "UA", "delay": 2}],
        )


@pytest.mark.parametrize(
    ("path", "batch", "text"),
    [
        (("typed",), pa.record_batch({"carrier": ["UA"], "plane": [1]}), "plane"),
        (("typed",), pa.record_batch({"delay": ["soon"]}), "delay"),
        (("typed",), pa.record_batch({"carrier": pa.array(["UA"]).dictionary_encode()}), "takes no dictionaries"),
        (("typed",), pa.record_batch({"carrier": _NO_TEXT}), r"SCHEMA_MISMATCH.*'carrier' is string.*b'UA.xff'.*UTF-8"),
        (("typed", "2"), _ROWS, "partitions 0 to 1"),
        (("typed", "x"), _ROWS, "partition number"),
        (("nope",), _ROWS, "nope"),
        (("elsewhere",), pa.record_batch({"value": [b"v"]}), "not on this broker"),
        (("untyped",), pa.record_batch({"key": [b"k"], "value": [b"v"]}), "equal keys belong into one partition"),
    ],
)
def test_refused_batch_is_a_typed_error_and_appends_nothing(
    shared: Server, path: tuple[str, ...], batch: pa.RecordBatch, text: str
) -> None:
    """The typed errors cover schemas that do not fit, and unknown topics and partitions."""
    with shared.connect() as client:
        with pytest.raises(flight.FlightError, match=text):
            _put(client, path, batch)
        assert shared.stored_bytes() == {}


def test_topics_are_listed_and_described(shared: Server) -> None:
    """ListFlights and GetSchema work."""
    with shared.connect() as client:
        assert [info.descriptor.path for info in client.list_flights()] == [[b"elsewhere"], [b"typed"], [b"untyped"]]
        assert client.get_schema(flight.FlightDescriptor.for_path("typed"), _OPTIONS).schema == TYPED.arrow
        with pytest.raises(flight.FlightError, match="no topic 'x'"):
            client.get_flight_info(flight.FlightDescriptor.for_path("x"), _OPTIONS)
        assert {action.type for action in client.list_actions()} >= {"metadata", "create_topic"}


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_names_that_are_not_utf8_are_the_clients_fault(shared: Server, kind: str) -> None:
    """The client gets a typed error, and the broker's log shows no defect."""
    with shared.connect() as client:
        with pytest.raises(flight.FlightError, match="UTF-8") as refused:
            _put(client, ("untyped", "0"), foreign_batch(kind))
        assert isinstance(from_flight_error(refused.value, shared.address), errors.InvalidRequestError)
    assert "fail call " not in shared.log.read_text()
    assert shared.stored_bytes() == {}
