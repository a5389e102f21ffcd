"""Finding and closing TCP connections of this process by their peer, with real sockets."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_runtime.server import connections
from broker_runtime.server.connections import PeerAddress, parse_peer
from broker_runtime.server.streams import StreamTable
from tests.callers import CLIENT
from tests.waiting import SOON_S, wait_until


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


_HAS_IPV6 = _has_ipv6()


@dataclass
class Pair:
    """Both ends of one connection, and the port it was made to."""

    client: socket.socket
    server: socket.socket
    port: int

    @property
    def peer(self) -> PeerAddress:
        host, port = self.client.getsockname()[:2]
        return PeerAddress(host, port)

    def traffic(self) -> dict[PeerAddress, connections.Traffic]:
        return connections.traffic(frozenset({self.port}))


@pytest.fixture(params=["127.0.0.1", "::1", "mapped"] if _HAS_IPV6 else ["127.0.0.1"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A connection over each address family, and over both as gRPC listens."""
    host = request.param
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    with socket.socket(family) as listener:
        if host == "mapped":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::" if host == "mapped" else host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1" if host == "mapped" else host, port)) as client:
            server, _ = listener.accept()
            with server:
                yield Pair(client, server, port)


def test_connection_is_found_by_its_peer_and_cut_for_both_ends(pair: Pair) -> None:
    """A watchdog ends connections that Flight cannot end."""
    found = connections.connections_to({pair.peer, PeerAddress("127.0.0.9", 9)})
    assert list(found) == [pair.peer]
    with closing(found[pair.peer]) as connection:
        assert connections.bytes_acknowledged(connection) is not None
        connections.cut(connection)
        connections.cut(connection)
    pair.client.settimeout(5)
    assert pair.client.recv(1) == b""
    assert pair.server.recv(1) == b""


def test_look_leaves_no_descriptor_open(pair: Pair) -> None:
    """A watchdog that looks every second must not use up the process's descriptors."""
    with Path("/dev/null").open():
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(50):
            for connection in connections.connections_to({pair.peer}).values():
                connection.close()
            for connection in connections.idle_connections(frozenset({pair.port}), 0).values():
                connection.close()
        # Fifty looks might each leave some; another thread of this process may open or close a few.
        assert len(os.listdir("/proc/self/fd")) < before + 25  # noqa: PTH208


def test_acknowledged_bytes_rise_only_while_the_peer_takes_them(pair: Pair) -> None:
    """Acknowledged bytes distinguish a slow peer from a silent one."""
    (connection,) = connections.connections_to({pair.peer}).values()
    with closing(connection):
        before = connections.bytes_acknowledged(connection)
        assert before is not None
        pair.server.sendall(b"x" * 100)
        wait_until(lambda: connections.bytes_acknowledged(connection) == before + 100, "100 bytes are taken", SOON_S)


def test_traffic_counts_received_bytes_and_leaves_descriptors_alone(pair: Pair) -> None:
    """A watch looks again and again while memory grows."""
    pair.client.sendall(b"x" * 1000)
    pair.server.sendall(b"y" * 100)
    wait_until(
        lambda: pair.traffic()[pair.peer].received_bytes == 1000,
        "1,000 bytes have come",
        SOON_S,
    )
    wait_until(
        lambda: pair.traffic()[pair.peer].acknowledged_bytes >= 100,
        "100 bytes are taken",
        SOON_S,
    )
    assert pair.traffic()[pair.peer].descriptor == pair.server.fileno()
    assert list(pair.traffic()) == [pair.peer]
    assert pair.peer not in connections.traffic(frozenset({pair.peer.port}))
    assert pair.server.recv(2000) == b"x" * 1000


def test_reset_drops_received_bytes_and_ends_both_sides(pair: Pair) -> None:
    """After a mere shutdown the server would still read and keep everything in the kernel's buffers."""
    pair.client.sendall(b"x" * 1000)
    wait_until(
        lambda: pair.traffic()[pair.peer].received_bytes == 1000,
        "1,000 bytes have come",
        SOON_S,
    )
    descriptor = pair.server.fileno()
    assert not connections.reset(descriptor, frozenset({pair.port}), PeerAddress("127.0.0.9", 9))
    assert connections.reset(descriptor, frozenset({pair.port}), pair.peer)
    assert not connections.reset(descriptor, frozenset({pair.port}), pair.peer)
    pair.client.settimeout(5)
    for end in (pair.server, pair.client):
        with pytest.raises(ConnectionResetError):
            end.recv(2000)


def test_sweep_ends_idle_connections_but_not_those_of_open_streams(pair: Pair) -> None:
    """A connection that only holds a thread is closed after a while."""
    table = StreamTable(10)
    is_ipv6 = ":" in pair.peer.host
    host = f"ipv6:%5B{pair.peer.host}%5D" if is_ipv6 else f"ipv4:{pair.peer.host}"
    stream = table.open("fetch", CLIENT, parse_peer(f"{host}:{pair.peer.port}"))
    assert table.sweep(frozenset({pair.port}), 0.0) == 0
    table.close(stream)
    assert table.sweep(frozenset({pair.port}), 3600.0) == 0
    assert table.sweep(frozenset({pair.port}), 0.0) == 1
    pair.client.settimeout(5)
    assert pair.client.recv(1) == b""


def test_limit_of_open_files_is_raised_as_far_as_allowed_and_never_lowered() -> None:
    """``max.connections`` streams and the log's files need more than the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert connections.allow_open_files(600) == 600
        assert connections.allow_open_files(10) == 600
        if hard != resource.RLIM_INFINITY:
            assert connections.allow_open_files(hard + 1) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
