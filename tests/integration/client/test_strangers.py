"""Other services at the address that a client was given: named where they can be, and within a second or so."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from broker_runtime.contract.settings import Address, parse_address
from pyspark_log import Admin, errors
from pyspark_log.client import cluster as module
from pyspark_log.client.strangers import Peer, who_is_at
from pyspark_log.testing import LocalCluster

Serve = Callable[[Callable[[bytes], bytes | None]], Address]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers the first words of each connection; None: it says nothing and keeps it open."""
    servers: list[socket.socket] = []
    kept: list[socket.socket] = []

    def start(answer: Callable[[bytes], bytes | None]) -> Address:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                    said = answer(connection.recv(4096))
                    if said is None:
                        kept.append(connection)
                        continue
                    connection.sendall(said)
                    connection.close()
                except OSError:
                    if server.fileno() < 0:
                        return

        threading.Thread(target=run, daemon=True).start()
        return Address(*server.getsockname())

    yield start
    for each in (*servers, *kept):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            assert each in servers or each.fileno() >= 0
        each.close()


def kafka(words: bytes) -> bytes:
    """Answers ApiVersions; closes at what it does not understand."""
    return b"\0\0\0\x06" + words[8:12] + b"\0\0" if words[4:6] == b"\0\x12" else b""


def tls(words: bytes) -> bytes:
    """An alert (handshake failure, or unexpected message)."""
    return b"\x15\x03\x03\0\x02\x02\x28" if words.startswith(b"\x16\x03") else b"\x15\x03\x01\0\x02\x02\x0a"


@pytest.mark.parametrize(
    ("answer", "peer", "told"),
    [
        (kafka, Peer.KAFKA, "is Kafka"),
        (tls, Peer.TLS, "expects TLS"),
        (lambda _: b"SSH-2.0-OpenSSH_9.6\r\n", Peer.SSH, "is an SSH server"),
        (lambda words: b"" if words != b"srvr" else b"Zookeeper version: 3.9.3\n", Peer.ZOOKEEPER, "is ZooKeeper"),
        (lambda words: b"srvr is not executed because it is not in the whitelist.\n", Peer.ZOOKEEPER, "is ZooKeeper"),
    ],
)
def test_stranger_is_named_within_a_second(
    serve: Serve, answer: Callable[[bytes], bytes | None], peer: Peer, told: str
) -> None:
    """What answers in its own words is called by its name."""
    address = serve(answer)
    assert who_is_at(address) is peer
    began_s = time.monotonic()
    with Admin(str(address)) as admin, pytest.raises(errors.NotAPylogBrokerError, match=told):
        admin.list_topics()
    assert time.monotonic() - began_s < 8, "of which all but one are for a busy machine"


def test_web_server_is_named() -> None:
    """A real one, which waits for more where it does not understand."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"127.0.0.1:{web.server_port}"
        with Admin(address) as admin, pytest.raises(errors.NotAPylogBrokerError, match=f"{address} is a web server"):
            admin.list_topics()
        web.shutdown()
        thread.join(5)


def test_name_that_does_not_resolve_is_said_at_once() -> None:
    """Not after ten seconds of trying."""
    began_s = time.monotonic()
    with (
        Admin("nosuchhost.invalid:9192") as admin,
        pytest.raises(errors.BrokerUnavailableError, match=r"^\[BROKER_UNAVAILABLE\] host name not found: nosuchhost"),
    ):
        admin.list_topics()
    assert time.monotonic() - began_s < 8


def test_port_that_takes_connections_and_says_nothing_may_be_a_broker(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell it from a broker that hangs, so it is not called another service."""
    monkeypatch.setattr(module, "BOOTSTRAP_LIMIT_S", 1.0)
    address = serve(lambda _: None)
    with (
        Admin(str(address), request_timeout_ms=1_000) as admin,
        pytest.raises(errors.BrokerUnavailableError, match="takes connections but said nothing for 1 s"),
    ):
        admin.list_topics()


def test_real_brokers_and_a_real_zookeeper_are_told_apart(pylog_cluster: LocalCluster) -> None:
    """A broker that serves is never a stranger."""
    broker = parse_address(pylog_cluster.bootstrap_servers.split(",")[0])
    zookeeper = parse_address(pylog_cluster.zookeeper_connect.split("/")[0].split(",")[0])
    assert (who_is_at(broker), who_is_at(zookeeper)) == (Peer.GRPC, Peer.ZOOKEEPER)
    with Admin(str(zookeeper)) as admin, pytest.raises(errors.NotAPylogBrokerError, match="is ZooKeeper"):
        admin.list_topics()


def test_wrong_address_beside_a_right_one_is_only_warned_of(
    pylog_cluster: LocalCluster, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A list of brokers may have a name that is gone, or a port that is another's."""
    stranger = serve(kafka)
    servers = f"nosuchhost.invalid:9192,{stranger},{pylog_cluster.bootstrap_servers}"
    with Admin(servers) as admin:
        assert admin.describe_cluster().brokers
    assert len([record for record in caplog.records if "other brokers are asked" in record.message]) <= 2


def test_frozen_broker_is_not_called_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, as its kernel does that, and is back when it goes on."""
    monkeypatch.setattr(module, "BOOTSTRAP_LIMIT_S", 1.0)
    with LocalCluster() as cluster:
        cluster.pause(1)
        try:
            with (
                Admin(cluster.bootstrap_servers, request_timeout_ms=1_000) as admin,
                pytest.raises(errors.BrokerUnavailableError, match="a broker that hangs, or another service"),
            ):
                admin.list_topics()
        finally:
            cluster.resume(1)
