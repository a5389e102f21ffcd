"""What a newcomer meets first: an address with no broker, or with another service."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pyarrow import flight

from pyspark_log import Admin, Producer, errors
from pyspark_log.client.connection import cluster


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "BOOTSTRAP_LIMIT_S", 1.0)


@pytest.fixture
def closing_port() -> Iterator[int]:
    """Accepts connections and closes them silently on input it does not understand, as Kafka does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(64)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        stop.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.usefixtures("short")
def test_client_says_that_a_broker_refused_and_how_to_start_one(unused_port: int) -> None:
    """The error names the address, the time spent and the command that starts a broker."""
    expected = rf"^\[BROKER_UNAVAILABLE\] 127\.0\.0\.1:{unused_port} refused for 1 s\. Start one: pylog up$"
    with Admin(f"127.0.0.1:{unused_port}") as admin, pytest.raises(errors.BrokerUnavailableError, match=expected):
        admin.list_topics()
    producer = Producer([f"127.0.0.1:{unused_port}"])
    with pytest.raises(errors.BrokerUnavailableError, match=expected):
        producer.send("t", b"x")
    producer.close()


def test_client_says_that_the_address_is_not_pylog(closing_port: int) -> None:
    """Another service at the address is named regardless of the time limit."""
    with (
        Admin(f"127.0.0.1:{closing_port}") as admin,
        pytest.raises(
            errors.NotAPylogBrokerError,
            match=rf"^\[NOT_A_PYLOG_BROKER\] 127\.0\.0\.1:{closing_port} is another service, not a pylog broker$",
        ),
    ):
        admin.list_topics()


def test_client_says_so_of_http_and_other_flight_servers() -> None:
    """A web server and a foreign Flight server are not mistaken for a broker."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with Admin(f"127.0.0.1:{web.server_port}") as admin, pytest.raises(errors.NotAPylogBrokerError):
            admin.list_topics()
        web.shutdown()
        thread.join(5)
    with flight.FlightServerBase("grpc://127.0.0.1:0") as foreign:
        with Admin(f"127.0.0.1:{foreign.port}") as admin, pytest.raises(errors.NotAPylogBrokerError):
            admin.list_topics()
        foreign.shutdown()


def test_client_finds_the_broker_among_dead_addresses(bootstrap: str, unused_port: int) -> None:
    """One address that answers is enough."""
    with Admin(f"127.0.0.1:{unused_port},{bootstrap}") as admin:
        assert admin.describe_cluster().controller_id == 1


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
