"""What the kernel accepts on a connection with a receive credit, and on a new one, with real sockets."""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from broker_runtime.server import connections
from broker_runtime.server.connections import BETWEEN_BARRIERS_BYTES, PeerAddress
from broker_runtime.server.receive_credits import ReceiveCredits
from tests.integration.server.test_connections import _HAS_IPV6
from tests.waiting import SOON_S, wait_until

_MIB = 1 << 20
_SEGMENT_BYTES = 64 << 10
_CREDIT_BYTES = 2 * _MIB  # the least
_TOTAL_RETRANSMISSIONS_AT = 100  # in struct tcp_info: __u32 tcpi_total_retrans
_DATA = bytes(range(256)) * (4 * _MIB // 256)


class Served:
    """A listening socket, and credits for its connections."""

    def __init__(self, listener: socket.socket, host: str) -> None:
        self.listener = listener
        self.host = host
        self.port: int = listener.getsockname()[1]
        self.credits = ReceiveCredits()

    @contextmanager
    def connected(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        """Connects; returns the client's end and the server's."""
        with socket.create_connection((self.host, self.port), timeout=10) as client:
            server, _ = self.listener.accept()
            server.settimeout(10)
            with server:
                yield client, server

    def renew(self, credit_bytes: int = _CREDIT_BYTES, *, is_crowded: bool = False) -> None:
        """Grants a credit to each connection."""
        found = self.traffic()
        budget_bytes = credit_bytes * 4 // 3 * len(found)
        self.credits.renew(found, dict.fromkeys(found, 0.0), budget_bytes, is_crowded=is_crowded)

    def traffic(self) -> dict[PeerAddress, connections.Traffic]:
        return connections.traffic(frozenset({self.port}))

    def received_bytes(self, client: socket.socket) -> int:
        host, port = client.getsockname()[:2]
        return self.traffic()[PeerAddress(host, port)].received_bytes


_FAMILIES = ["127.0.0.1", "::1", "mapped"] if _HAS_IPV6 else ["127.0.0.1"]


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server on the address family that a test names; mapped: both, as gRPC listens."""
    family = getattr(request, "param", _FAMILIES[-1])
    is_mapped = family == "mapped"
    with socket.socket(socket.AF_INET if family == "127.0.0.1" else socket.AF_INET6) as listener:
        if is_mapped:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::" if is_mapped else family, 0))
        listener.listen()
        made = Served(listener, "127.0.0.1" if is_mapped else family)
        made.credits.start(frozenset({made.port}))
        yield made
        made.credits.stop()


@contextmanager
def sending(client: socket.socket, data: bytes = _DATA) -> Iterator[None]:
    thread = threading.Thread(target=client.sendall, args=(data,), daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def retransmissions(client: socket.socket) -> int:
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANSMISSIONS_AT + 4)
    return int(struct.unpack_from("=I", info, _TOTAL_RETRANSMISSIONS_AT)[0])


def wait_until_refused(client: socket.socket, times: int = 1) -> None:
    before = retransmissions(client)
    wait_until(lambda: retransmissions(client) >= before + times, "the client sends again", SOON_S)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with suppress(OSError):
            while True:
                opened.append(os.dup(0))
        assert len(opened) < 512
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in opened:
            os.close(descriptor)


def read_until_nothing_comes(server: socket.socket) -> bytes:
    """Reads until nothing more arrives: a client whose segment was dropped sends it again after 0.2 s, 0.4 s, 0.8
    s…, so one with credit has done so by then.
    """
    received = bytearray()
    while select.select([server], [], [], 1.0)[0]:
        piece = server.recv(_MIB)
        assert piece, "the connection has ended"
        received += piece
    return bytes(received)


def read(server: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = server.recv(size_bytes - len(received))
        assert piece, "the connection has ended"
        received += piece
    return bytes(received)


@pytest.mark.parametrize("served", _FAMILIES, indirect=True)
def test_no_more_than_the_credit_arrives_and_nothing_is_lost(served: Served) -> None:
    """A late renewal loses nothing; the peer continues where it stopped."""
    with served.connected() as (client, server):
        served.renew()
        with sending(client):
            received = read(server, _CREDIT_BYTES)
            wait_until_refused(client)
            assert served.received_bytes(client) <= _CREDIT_BYTES + _SEGMENT_BYTES
            while len(received) < len(_DATA):
                served.renew()
                received += server.recv(_MIB)
    assert received == _DATA


def test_earlier_bytes_do_not_use_up_the_credit(served: Served) -> None:
    """Connections are old when a flood begins."""
    with served.connected() as (client, server):
        served.renew(2 * len(_DATA))
        with sending(client):
            assert read(server, len(_DATA)) == _DATA
        served.renew()
        with sending(client):
            received = read(server, _CREDIT_BYTES)
            wait_until_refused(client)
            assert len(_DATA) + _CREDIT_BYTES <= served.received_bytes(client)
            assert served.received_bytes(client) <= len(_DATA) + _CREDIT_BYTES + _SEGMENT_BYTES
            served.renew(2 * len(_DATA))
            assert received + read(server, len(_DATA) - _CREDIT_BYTES) == _DATA


def test_peer_without_credit_still_acknowledges_and_is_seen_to_end(served: Served) -> None:
    """The peer continues to read, and its connection does not stay after it was given up."""
    with served.connected() as (client, server):
        served.renew()
        client.setblocking(False)
        sent = 0
        while sent < 2 * _CREDIT_BYTES:
            with suppress(BlockingIOError):
                sent += client.send(_DATA)
            with suppress(TimeoutError):
                server.settimeout(0.01)
                server.recv(_MIB)
        wait_until_refused(client)
        client.settimeout(10)
        server.sendall(b"answer")
        assert read(client, 6) == b"answer"
        wait_until(
            lambda: all(each.acknowledged_bytes >= 6 for each in served.traffic().values()),
            "taken",
            SOON_S,
        )
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # a reset
        server.settimeout(10)
        with pytest.raises(ConnectionResetError):
            read(server, len(_DATA))


@pytest.mark.parametrize("served", _FAMILIES, indirect=True)
def test_new_connection_sends_some_until_it_has_a_credit(served: Served) -> None:
    """Otherwise a flood could arrive on connections that no watch has seen yet; and nothing is lost."""
    with served.connected() as (client, server), sending(client, 2 * _DATA):
        received = read_until_nothing_comes(server)
        assert len(received) <= BETWEEN_BARRIERS_BYTES
        assert served.received_bytes(client) == len(received)
        served.renew(3 * len(_DATA))
        assert received + read(server, 2 * len(_DATA) - len(received)) == 2 * _DATA


def test_new_connections_begin_at_once(served: Served) -> None:
    """One in 64 has to send its first bytes again; the others wait for no check."""
    again = 0
    for _ in range(200):
        with served.connected() as (client, server):
            client.sendall(b"small")
            if not select.select([server], [], [], 0.15)[0]:
                again += 1
                served.renew()
            assert read(server, 5) == b"small"
    assert again < 20


def test_new_connection_sends_little_while_connections_are_crowded(served: Served) -> None:
    """Small requests are served as before."""
    served.renew(is_crowded=True)
    for _ in range(10):
        with served.connected() as (client, server):
            client.sendall(b"small")
            if not select.select([server], [], [], 1.0)[0]:
                continue  # one connection in 64 waits for the next look, which grants it more
            assert read(server, 5) == b"small"
            with sending(client):
                wait_until_refused(client)
                assert served.received_bytes(client) == 5
                served.renew(2 * len(_DATA))
                assert read(server, len(_DATA)) == _DATA
            return
    pytest.fail("ten connections, one after the other, sent nothing")


def test_nothing_is_bounded_when_credits_have_stopped(served: Served) -> None:
    """The port may have another owner next."""
    served.renew(is_crowded=True)
    served.credits.stop()
    with served.connected() as (client, server), sending(client, 4 * _DATA):
        assert read(server, 4 * len(_DATA)) == 4 * _DATA


def test_connection_that_is_to_be_cut_receives_nothing(served: Served) -> None:
    """The one that cuts it may have to wait."""
    with served.connected() as (client, server):
        served.renew()
        (address, each), *_ = served.traffic().items()
        served.credits.take_nothing(address, each.descriptor)
        thread = threading.Thread(target=client.sendall, args=(b"x" * 100,), daemon=True)
        thread.start()
        wait_until_refused(client)
        assert served.received_bytes(client) == 0
        assert connections.reset(each.descriptor, frozenset({served.port}), address)
        with pytest.raises(ConnectionResetError):
            server.recv(1)


@pytest.mark.parametrize("is_crowded", [False, True])
def test_connection_whose_first_packet_is_not_known_sends_some_between_two_renewals(
    served: Served, *, is_crowded: bool
) -> None:
    """The kernel reports the first packet only once, and keeps none of a flood of connections."""
    with served.connected() as (client, server):
        (address, each), *_ = served.traffic().items()
        assert connections.first_sequence(each.descriptor, PeerAddress(address.host, 1)) is None
        assert connections.first_sequence(each.descriptor, address) is not None
        assert connections.first_sequence(each.descriptor, address) is None
        served.renew(is_crowded=is_crowded)
        with sending(client, 4 * _DATA):
            received = read_until_nothing_comes(server)
            assert len(received) <= BETWEEN_BARRIERS_BYTES
            until_s = time.monotonic() + SOON_S
            while len(received) < 4 * len(_DATA) and time.monotonic() < until_s:
                served.renew(is_crowded=is_crowded)
                if select.select([server], [], [], 0.05)[0]:
                    received += server.recv(_MIB)
    assert received == 4 * _DATA


def test_new_connections_are_held_and_confined_independently(served: Served) -> None:
    """Two watches look for different floods, and one may end before the other."""
    served.renew(is_crowded=True)
    connections.hold_new(frozenset({served.port}), True, why="test")
    connections.hold_new(frozenset({served.port}), False, why="test")
    with served.connected() as (client, server), sending(client):
        wait_until_refused(client)
        assert served.received_bytes(client) == 0
        connections.hold_new(frozenset({served.port}), True, why="test")
        served.renew(2 * len(_DATA))
        assert read(server, len(_DATA)) == _DATA
        with pytest.raises(TimeoutError):
            socket.create_connection((served.host, served.port), timeout=0.2)
        connections.hold_new(frozenset({served.port}), False, why="test")


def test_credits_are_renewed_though_no_descriptor_is_left(served: Served) -> None:
    """Otherwise nobody could send until there is one again. The connection ends with its own descriptor."""
    connections.keep_descriptor()
    with served.connected() as (client, server):
        served.renew()
        with sending(client):
            received = read(server, _CREDIT_BYTES)
            wait_until_refused(client)
            with no_descriptor_left():
                served.renew()
            assert received + read(server, len(_DATA) - _CREDIT_BYTES) == _DATA
        server.close()
        assert client.recv(1) == b""


def test_of_two_connections_from_one_port_of_a_peer_one_is_ended() -> None:
    """They cannot be told apart, and one of them would never be seen; their peer connects again."""
    with socket.socket() as listener, socket.socket() as other:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        other.bind(("127.0.0.2", port))  # of the same machine, as a broker that listens on all addresses has several
        for each in (listener, other):
            each.listen()
        with socket.socket() as one, socket.socket() as two:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            two.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
            two.bind(one.getsockname())
            one.connect(("127.0.0.1", port))
            two.connect(("127.0.0.2", port))
            accepted = [each.accept()[0] for each in (listener, other)]
            assert len(connections.traffic(frozenset({port}))) == 1
            assert len(connections.traffic(frozenset({port}), ends_twins=True)) == 1
            ended = 0
            for each in (one, two):
                each.settimeout(0.5)
                try:
                    each.recv(1)
                except ConnectionResetError:
                    ended += 1
                except TimeoutError:
                    pass
            assert ended == 1
            for each in accepted:
                each.close()


def test_second_descriptor_of_a_connection_is_no_second_connection() -> None:
    """Whoever looks for a connection to end holds duplicates of them all for a moment."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.connect(listener.getsockname())
        accepted = listener.accept()[0]
        with accepted, accepted.dup():
            assert len(connections.traffic(frozenset({listener.getsockname()[1]}), ends_twins=True)) == 1
            accepted.sendall(b"still here")
            client.settimeout(5)
            assert client.recv(10) == b"still here"
