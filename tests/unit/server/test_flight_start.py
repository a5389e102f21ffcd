"""What a server does before it takes its first connection."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.errors import PortInUseError
from broker_runtime.contract.flight import CONNECTION_OPTIONS, FRAMES_SCHEMA
from broker_runtime.contract.link import open_client
from broker_runtime.contract.settings import Address
from broker_runtime.ports import choose_port
from broker_runtime.security.quotas import NO_QUOTAS
from broker_runtime.server import connections
from broker_runtime.server.flight import ListenerPlan, PylogFlightServer, Services
from tests.waiting import wait_until

HOST = "127.0.0.1"


class Noting(PylogFlightServer):
    """Notes whether anybody could connect when the watches were started; ``fails``: then they are not."""

    fails = False
    could_connect: bool | None = None
    stopped = 0

    def _start_watches(self, ports: connections.Ports) -> None:
        (port,) = ports
        with socket.socket() as peer:
            self.could_connect = peer.connect_ex((HOST, port)) == 0
        if self.fails:
            raise PortInUseError("a reason not to start")
        super()._start_watches(ports)

    def _stop_watches(self) -> None:
        type(self).stopped += 1
        super()._stop_watches()


def start(kind: type[Noting], port: int) -> Noting:
    checks: dict[str, Any] = {"is_broker": lambda headers: False, "is_current": lambda caller: True}
    services = SimpleNamespace(quotas=NO_QUOTAS, actions={"metadata": None}, plain=None, **checks)
    plan = ListenerPlan(address=Address(HOST, port))
    return kind([plan], services=cast(Services, cast(Any, services)), max_streams=10, memory_bytes=1 << 30)


def serve_for_a_moment(port: int) -> None:
    """For a process of its own: a server keeps gRPC's threads until its process ends."""
    server = start(Noting, port)
    try:
        assert server.could_connect is (port == 0)
        assert keeps_beginnings(server.port)
    finally:
        assert server.stop(5)


def begin_a_stream_of_records() -> None:
    """For a process of its own, likewise: the server looks at its connections before it takes the first record."""
    server = start(Noting, 0)
    looked: list[list[str]] = []
    server._memory_watch.renew_credits_for_stream = lambda: looked.append(server.open_streams)  # type: ignore[method-assign]
    client = open_client(Address(HOST, server.port), CONNECTION_OPTIONS)
    try:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("t"), FRAMES_SCHEMA)
        wait_until(lambda: looked, "the server looks", limit_s=10)
        assert looked == [[]]
        with contextlib.suppress(flight.FlightError, pa.ArrowException):  # there is nothing behind this server
            writer.close()
    finally:
        client.close()
        assert server.stop(5)


def keeps_beginnings(port: int) -> bool:
    """Whether the kernel tells of each connection where its bytes begin, and lets none send without a bound."""
    if sys.platform != "linux":
        return True
    with socket.create_connection((HOST, port), 5):
        wait_until(lambda: connections.traffic(frozenset({port})), "the server accepts", limit_s=10)
        listening = list(connections._listening_at(frozenset({port})))
        for descriptor in listening:
            with socket.socket(fileno=os.dup(descriptor)) as own:
                if not own.getsockopt(socket.IPPROTO_TCP, connections._TCP_SAVE_SYN):
                    return False
    return bool(listening)


@pytest.mark.parametrize("is_given", [True, False])
def test_connections_are_watched_before_there_can_be_any(is_given: bool) -> None:
    """A broker may start in the middle of a flood, on the port that it was given. Once it listens, connections are
    bounded by what is known of their beginning: one of unknown beginning can send only 30 MB/s."""
    port = choose_port(HOST) if is_given else 0
    program = f"from {__name__} import serve_for_a_moment; serve_for_a_moment({port})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_watches_are_stopped_where_a_server_does_not_start() -> None:
    class Failing(Noting):
        fails = True
        stopped = 0

    with pytest.raises(PortInUseError, match="a reason not to start"):
        start(Failing, choose_port(HOST))
    assert Failing.stopped == 1


def test_connection_gets_its_credit_when_a_stream_of_records_begins_on_it() -> None:
    """Not at the next regular look: what is sent beyond the first 4 MiB until then would be held up by 0.2 s."""
    program = f"from {__name__} import begin_a_stream_of_records; begin_a_stream_of_records()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
