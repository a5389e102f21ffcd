"""Other services at the address that a client was given are named where possible, within about a second."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from broker_runtime.contract.settings import Address, parse_address
from pyspark_log import Admin, errors
from pyspark_log.client.connection import cluster as module
from pyspark_log.client.connection.strangers import Peer, who_is_at
from pyspark_log.testing import LocalCluster

Serve = Callable[..., Address]
Answer = Callable[[bytes], bytes | None]

MYSQL = b"\x4a\0\0\0\x0a8.0.36\0" + bytes(66)
MYSQL_REFUSAL = b"\x16\0\0\0\xff\x6a\x04Host is not allowed"
SETTINGS = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that greets and answers the first bytes of each connection; None: it is silent and keeps the
    connection open.
    """
    servers: list[socket.socket] = []
    kept: list[socket.socket] = []

    def start(answer: Answer, greeting: bytes = b"") -> Address:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                    connection.sendall(greeting)
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
    """Answers ApiVersions; closes on anything it does not understand."""
    return b"\0\0\0\x06" + words[8:12] + b"\0\0" if words[4:6] == b"\0\x12" else b""


def tls(words: bytes) -> bytes:
    """Answers with an alert (handshake failure, or unexpected message)."""
    return b"\x15\x03\x03\0\x02\x02\x28" if words.startswith(b"\x16\x03") else b"\x15\x03\x01\0\x02\x02\x0a"


def postgresql(words: bytes) -> bytes:
    """Answers a request for TLS; closes if the first message is too long."""
    return b"N" if words == b"\0\0\0\x08\x04\xd2\x16\x2f" else b""


def old_postgresql(words: bytes) -> bytes:
    """Takes other bytes for an unsupported protocol version."""
    return b"E\0\0\0\x26SFATAL\0C0A000\0Munsupported\0\0" if words[4:6] == b"\0\x12" else b""


def nothing(_: bytes) -> bytes:
    """Closes, whatever it receives."""
    return b""


@pytest.mark.parametrize(
    ("answer", "greeting", "peer", "message"),
    [
        (kafka, b"", Peer.KAFKA, "is Kafka"),
        (tls, b"", Peer.TLS, "expects TLS"),
        (nothing, b"SSH-2.0-OpenSSH_9.6\r\n", Peer.SSH, "is an SSH server"),
        (lambda words: b"Zookeeper version: 3.9.3\n" if words == b"srvr" else b"", b"", Peer.ZOOKEEPER, "is ZooKeeper"),
        (lambda _: b"srvr is not executed because it is not in the whitelist.\n", b"", Peer.ZOOKEEPER, "is ZooKeeper"),
        (nothing, MYSQL, Peer.MYSQL, "is MySQL or MariaDB"),
        (nothing, MYSQL_REFUSAL, Peer.MYSQL, "is MySQL or MariaDB"),
        (postgresql, b"", Peer.POSTGRESQL, "is PostgreSQL"),
        (old_postgresql, b"", Peer.POSTGRESQL, "is PostgreSQL"),
        (lambda _: b"-ERR unknown command 'PRI'\r\n", b"", Peer.REDIS, "is Redis"),
        (nothing, b"-DENIED Redis is running in protected mode\r\n", Peer.REDIS, "is Redis"),
        (lambda _: b"500 what?\r\n", b"220 mail.example.com ESMTP\r\n", Peer.MAIL, "is a mail or FTP server"),
        (lambda _: b"who are you?\r\n", b"", Peer.OTHER, "is another service, not a pylog broker"),
        (lambda _: b'<!DOCTYPE HTML>\n<html lang="en">', b"", Peer.HTTP, "is a web server, not a pylog broker"),
        (nothing, b"", Peer.CLOSED_TO_HTTP2, "is another service, not a pylog broker"),
    ],
)
def test_foreign_service_is_named_within_a_second(
    serve: Serve, answer: Answer, greeting: bytes, peer: Peer, message: str
) -> None:
    """A service that greets or answers in its own protocol is named; one that only closes is "another service"."""
    address = serve(answer, greeting)
    assert who_is_at(address) is peer
    began_s = time.monotonic()
    with Admin(str(address)) as admin, pytest.raises(errors.NotAPylogBrokerError, match=message):
        admin.list_topics()
    assert time.monotonic() - began_s < 8, "of which all but one are for a busy machine"


@pytest.mark.parametrize("greeting", [SETTINGS, SETTINGS[:9], SETTINGS[:4], SETTINGS[:2]])
def test_peer_that_begins_as_a_broker_may_be_one(serve: Serve, greeting: bytes) -> None:
    """A broker is recognised even before it speaks HTTP/2, and when it answers other bytes in the same way."""
    assert who_is_at(serve(lambda words: None if words.startswith(b"PRI") else greeting)) is Peer.GRPC
    assert who_is_at(serve(nothing, greeting)) is Peer.GRPC


class Proxy:
    """A proxy in front of a broker. Until ``is_open`` is set it closes each connection, as if there were no broker."""

    def __init__(self, broker: Address) -> None:
        self.is_open = threading.Event()
        self._broker = broker
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._server.getsockname())
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Accepts no more connections."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                if not self.is_open.is_set():
                    connection.close()
                    continue
                broker = socket.create_connection(self._broker)
                for pair in ((connection, broker), (broker, connection)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                to.sendall(piece)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


def test_broker_that_starts_behind_a_proxy_is_waited_for(pylog_cluster: LocalCluster) -> None:
    """A port that closes each connection until the broker is up does not prove that there is none."""
    proxy = Proxy(parse_address(pylog_cluster.bootstrap_servers.split(",")[0]))
    assert who_is_at(proxy.address) is Peer.CLOSED
    timer = threading.Timer(1.5, proxy.is_open.set)
    timer.start()
    with Admin(str(proxy.address)) as admin:
        assert admin.describe_cluster().brokers
    timer.join(5)
    proxy.close()


def test_port_that_closes_each_connection_may_be_a_broker(
    pylog_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final error says what was observed."""
    monkeypatch.setattr(module, "BOOTSTRAP_LIMIT_S", 1.0)
    proxy = Proxy(parse_address(pylog_cluster.bootstrap_servers.split(",")[0]))
    message = "closed each connection for 1 s: a proxy without a broker, or another service"
    with Admin(str(proxy.address)) as admin, pytest.raises(errors.BrokerUnavailableError, match=message):
        admin.list_topics()
    proxy.close()


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    """A cluster whose broker tests may stop; each leaves it running."""
    with LocalCluster() as cluster:
        yield cluster


def test_broker_that_starts_ends_or_is_killed_is_recognised(own_cluster: LocalCluster) -> None:
    """A broker that starts, ends or is killed is recognised at any moment."""
    seen: set[Peer] = set()
    is_over = threading.Event()
    address = parse_address(own_cluster.bootstrap_servers)

    def look() -> None:
        while not is_over.is_set():
            seen.add(who_is_at(address))

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    for end in (own_cluster.stop, own_cluster.kill):
        end(1)
        own_cluster.start(1)
    is_over.set()
    for looker in lookers:
        looker.join(10)
    assert {Peer.GRPC, Peer.REFUSED} <= seen <= {Peer.GRPC, Peer.REFUSED, Peer.CLOSED, Peer.SILENT, Peer.UNREACHABLE}


def test_web_server_is_named() -> None:
    """A real web server waits for more when it does not understand the first bytes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"127.0.0.1:{web.server_port}"
        with Admin(address) as admin, pytest.raises(errors.NotAPylogBrokerError, match=f"{address} is a web server"):
            admin.list_topics()
        web.shutdown()
        thread.join(5)


def test_name_that_does_not_resolve_fails_at_once() -> None:
    """The error is raised at once and not after ten seconds of retries."""
    began_s = time.monotonic()
    with (
        Admin("nosuchhost.invalid:9192") as admin,
        pytest.raises(errors.BrokerUnavailableError, match=r"^\[BROKER_UNAVAILABLE\] host name not found: nosuchhost"),
    ):
        admin.list_topics()
    assert time.monotonic() - began_s < 8


def test_silent_port_may_be_a_broker(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent port may be a hanging broker, so it is not called another service."""
    monkeypatch.setattr(module, "BOOTSTRAP_LIMIT_S", 1.0)
    address = serve(lambda _: None)
    with (
        Admin(str(address), request_timeout_ms=1_000) as admin,
        pytest.raises(errors.BrokerUnavailableError, match="takes connections but said nothing for 1 s"),
    ):
        admin.list_topics()


def test_real_brokers_and_a_real_zookeeper_are_distinguished(pylog_cluster: LocalCluster) -> None:
    """A serving broker is never taken for another service."""
    broker = parse_address(pylog_cluster.bootstrap_servers.split(",")[0])
    zookeeper = parse_address(pylog_cluster.zookeeper_connect.split("/")[0].split(",")[0])
    assert (who_is_at(broker), who_is_at(zookeeper)) == (Peer.GRPC, Peer.ZOOKEEPER)
    with Admin(str(zookeeper)) as admin, pytest.raises(errors.NotAPylogBrokerError, match="is ZooKeeper"):
        admin.list_topics()


def test_wrong_address_beside_a_right_one_is_only_a_warning(
    pylog_cluster: LocalCluster, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A list of brokers may contain a name that is gone, or a port of another service."""
    stranger = serve(kafka)
    servers = f"nosuchhost.invalid:9192,{stranger},{pylog_cluster.bootstrap_servers}"
    with Admin(servers) as admin:
        assert admin.describe_cluster().brokers
    assert len([record for record in caplog.records if "skip bootstrap server" in record.message]) <= 2


def test_frozen_broker_is_not_called_another_service(
    own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen broker's kernel still accepts connections, and the broker is back when it resumes."""
    monkeypatch.setattr(module, "BOOTSTRAP_LIMIT_S", 1.0)
    own_cluster.pause(1)
    try:
        with (
            Admin(own_cluster.bootstrap_servers, request_timeout_ms=1_000) as admin,
            pytest.raises(errors.BrokerUnavailableError, match="a broker that hangs, or another service"),
        ):
            admin.list_topics()
    finally:
        own_cluster.resume(1)
