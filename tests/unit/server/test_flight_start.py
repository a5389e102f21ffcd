"""What a server does before it takes its first connection."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_runtime.contract.errors import PortInUseError
from broker_runtime.ports import choose_port
from broker_runtime.server.flight import PylogFlightServer, Services

HOST = "127.0.0.1"


class Noting(PylogFlightServer):
    """Notes whether anybody could connect when the watches were started; ``fails``: then they are not."""

    fails = False
    could_connect: bool | None = None
    stopped = 0

    def _start_watches(self, port: int) -> None:
        with socket.socket() as peer:
            self.could_connect = peer.connect_ex((HOST, port)) == 0
        if self.fails:
            raise PortInUseError("a reason not to start")
        super()._start_watches(port)

    def _stop_watches(self) -> None:
        type(self).stopped += 1
        super()._stop_watches()


def start(kind: type[Noting], port: int) -> Noting:
    services = SimpleNamespace(actions={"metadata": None}, plain=None, is_broker=lambda headers: False)
    return kind(HOST, port, services=cast(Services, cast(Any, services)), max_streams=10, memory_bytes=1 << 30)


def serve_for_a_moment() -> None:
    """For a process of its own: a server keeps gRPC's threads until its process ends."""
    server = start(Noting, choose_port(HOST))
    try:
        assert server.could_connect is False
    finally:
        assert server.stop(5)


def test_connections_are_watched_before_there_can_be_any() -> None:
    """A broker may start in the middle of a flood."""
    program = f"from {__name__} import serve_for_a_moment; serve_for_a_moment()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_watches_are_stopped_where_a_server_does_not_start() -> None:
    class Failing(Noting):
        fails = True
        stopped = 0

    with pytest.raises(PortInUseError, match="a reason not to start"):
        start(Failing, choose_port(HOST))
    assert Failing.stopped == 1
