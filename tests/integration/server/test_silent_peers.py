"""Clients that are killed, frozen or do not read: their threads are freed in seconds, their memory is bounded."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyarrow import flight

from broker_runtime.contract.flight import STREAM_OPTIONS, read_ticket
from broker_runtime.contract.streams import FetchPartition, ReadRequest
from tests.integration.server.serving import TOPICS, Server, big_frame, serving, untyped_frame
from tests.integration.server.streams import FetchSession, ProduceStream
from tests.waiting import SOON_S, wait_until

_FREED_WITHIN_S = 25.0  # limits of 8 s (streams) and 15 s (reads), the watchdog's second, and a busy machine
_STORED_BYTES = 96 << 20
_MEMORY_BYTES = 200 << 20
_CLIENTS = {"produce": "produce", "produce without end": "produce", "fetch": "fetch", "wait": "fetch", "read": "read"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log is larger than all buffers between two processes."""
    with serving(tmp_path_factory.mktemp("silent") / "data") as server:
        with server.connect() as client, ProduceStream(client) as stream:
            frame = big_frame(4 << 20)
            for _ in range(_STORED_BYTES // frame.size):
                assert stream.produce([frame]).error is None
        yield server


@contextmanager
def _client(server: Server, what: str) -> Iterator[subprocess.Popen[str]]:
    """A client process that does ``what`` (see `_act`) and has reported that it is in the middle of it."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.integration.server.test_silent_peers", what, str(server.port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_peers_that_are_gone_or_frozen_free_their_threads(server: Server, how: signal.Signals) -> None:
    """A killed or frozen client costs bounded memory, and its threads are freed in seconds."""
    wait_until(lambda: not server.open_streams(), "no stream before", SOON_S)
    threads, memory = server.threads, server.rss_bytes
    with ExitStack() as stack:
        for what, kind in _CLIENTS.items():
            client = stack.enter_context(_client(server, what))
            wait_until(lambda kind=kind: kind in server.open_streams(), f"{kind} is open", SOON_S)
            client.send_signal(how)
        wait_until(lambda: not server.open_streams(), f"streams closed after {how.name}", _FREED_WITHIN_S)
        wait_until(lambda: server.threads <= threads + 2, "threads are gone", _FREED_WITHIN_S)
        assert server.rss_bytes - memory < _MEMORY_BYTES
    assert _still_serves(server)


def test_peer_that_does_not_read_is_cut_off(server: Server) -> None:
    """A client that stops reading costs bounded memory; heartbeats alone do not save it."""
    wait_until(lambda: not server.open_streams(), "no stream before", SOON_S)
    with server.connect() as client:
        session = FetchSession(client)
        for _ in range(8):  # more answers than fit into any buffer; none is read
            session.ask(_everything(), max_bytes=50 << 20)
        wait_until(lambda: bool(server.open_streams()), "the session is open", SOON_S)
        wait_until(lambda: not server.open_streams(), "the session is cut", _FREED_WITHIN_S)
    assert _still_serves(server)


def test_peer_that_is_slow_but_alive_is_not_cut_off(server: Server) -> None:
    """A reader that pauses between requests for longer than the limit stays connected while it sends heartbeats."""
    with server.connect() as client, FetchSession(client) as session:
        for _ in range(11):
            session.heartbeat()
            threading.Event().wait(1.0)  # the passing of time is what is tested
        response, cells = session.fetch(_everything(), max_bytes=1)
        assert len(cells) == 1
        assert response.partitions[0].error is None


def _everything() -> FetchPartition:
    return FetchPartition(
        topic="untyped", partition=0, topic_id=TOPICS["untyped"][0].bytes, offset=0, max_bytes=50 << 20
    )


def _still_serves(server: Server) -> bool:
    with server.connect() as client, ProduceStream(client) as stream:
        return stream.produce([untyped_frame([b"after"])], partition=1).error is None


def _act(what: str, port: int) -> None:
    """The client process: gets into the middle of something, reports so, and stays there."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{port}", generic_options=STREAM_OPTIONS)
    if what.startswith("produce"):
        stream = ProduceStream(client)
        stream.produce([untyped_frame([b"x"])], partition=1)
        print("under way", flush=True)
        while what == "produce without end":
            stream.produce([big_frame(1 << 20)], partition=1)
    elif what in {"fetch", "wait"}:
        session = FetchSession(client)
        if what == "wait":
            session.ask(FetchPartition(topic="typed", partition=1, topic_id=TOPICS["typed"][0].bytes, offset=0))
            print("under way", flush=True)
        else:
            session.fetch(_everything(), max_bytes=1)
            print("under way", flush=True)
            while True:
                session.fetch(_everything(), max_bytes=50 << 20)
    else:
        assert what == "read"
        reader = client.do_get(read_ticket(ReadRequest(topic="untyped", partition=0, start=0)))
        reader.read_chunk()
        print("under way", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    _act(sys.argv[1], int(sys.argv[2]))
