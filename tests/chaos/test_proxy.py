"""The proxy between processes, on which the chaos runs rely."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import Network

_LIMIT_S = 10.0
_SILENCE_S = 0.2


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that echoes what it receives."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_echo, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(_LIMIT_S)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(lambda: {"me": os.getpid(), "other": 1})
    yield network
    network.close()


def _echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(1024):
            connection.sendall(data)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S)


def test_cut_link_holds_bytes_back_and_delivers_them_when_it_heals(network: Network, echo_port: int) -> None:
    """A lost network loses no connection."""
    with _connect(network.add("echo", echo_port)) as connection:
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        network.cut("me", "echo")
        connection.sendall(b"during")
        connection.settimeout(_SILENCE_S)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        connection.settimeout(_LIMIT_S)
        network.heal("me", "echo")
        assert connection.recv(100) == b"during"


def test_cut_concerns_only_the_source_it_names(network: Network, echo_port: int) -> None:
    """A broker can be cut off from its peers and not from clients."""
    network.cut("other", "echo")
    with _connect(network.add("echo", echo_port)) as connection:
        connection.sendall(b"through")
        assert connection.recv(100) == b"through"


def test_new_connection_over_a_cut_link_hangs_until_it_heals(network: Network, echo_port: int) -> None:
    """It behaves like a lost network."""
    port = network.add("echo", echo_port)
    network.cut("me", "echo")
    with _connect(port) as connection:
        connection.sendall(b"late")
        connection.settimeout(_SILENCE_S)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        network.heal("me", "echo")
        connection.settimeout(_LIMIT_S)
        assert connection.recv(100) == b"late"


def test_refusing_target_is_a_refused_port_until_it_listens_again(network: Network, echo_port: int) -> None:
    """It behaves like the port of a dead process."""
    port = network.add("echo", echo_port)
    network.refuse("echo", True)
    with pytest.raises(ConnectionRefusedError):
        _connect(port)
    network.refuse("echo", False)
    with _connect(port) as connection:
        connection.sendall(b"again")
        assert connection.recv(100) == b"again"


def test_storm_of_connections_is_attributed_and_gets_through(network: Network, echo_port: int) -> None:
    """After a fault everybody connects at once: finding the sources must not cost so much that nobody gets through."""
    network.cut("other", "echo")
    port = network.add("echo", echo_port)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connect(port)) for _ in range(200)]
        for connection in connections:
            connection.sendall(b"through")
        assert [connection.recv(100) for connection in connections] == [b"through"] * 200


def test_first_answer_of_a_target_is_remembered(network: Network, echo_port: int) -> None:
    """ZooKeeper's first answer has the session's id and password."""
    with _connect(network.add("echo", echo_port, source="someone")) as connection:
        for data in (b"first", b"second"):
            connection.sendall(data)
            assert connection.recv(100) == data
    assert network.first_answers == {("someone", "echo"): b"first"}
