"""Calls without a first message: threads stay bounded, open streams continue, and all clients are served again soon."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.errors import BrokerOverloadedError, TooManyStreamsError
from tests.integration.server.raw_grpc import Connection
from tests.integration.server.serving import serving, untyped_frame
from tests.integration.server.streams import ProduceStream
from tests.waiting import wait_until

_MAX_STREAMS = 200
_CALLS = 3_000


@pytest.mark.parametrize("method", ["DoPut", "DoExchange", "DoAction", "DoGet", "Handshake"])
@pytest.mark.parametrize("connections", [1, 300])
def test_flood_of_silent_calls_holds_few_threads_and_passes(tmp_path: Path, method: str, connections: int) -> None:
    """A stream that was open before continues throughout, with one connection and with many."""
    with serving(tmp_path / "data", max_streams=_MAX_STREAMS) as server:
        with server.connect() as client, ProduceStream(client) as produce:
            assert produce.produce([untyped_frame([b"before"])]).error is None
            before = server.threads
            flood = [Connection(server.port) for _ in range(connections)]
            for number in range(_CALLS):
                flood[number % connections].call(method, [], end=False)
                if number % 200 == 0:
                    assert produce.produce([untyped_frame([b"meanwhile"])]).error is None
            # A refused call holds a thread until its refusal is sent.
            wait_until(lambda: server.threads - before < _MAX_STREAMS // 2, "few threads are held", limit_s=30)
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                assert produce.produce([untyped_frame([b"during"])]).error is None

            def serves() -> bool:
                try:
                    with server.connect() as other, ProduceStream(other) as stream:
                        return stream.produce([untyped_frame([b"after"])]).error is None
                except (BrokerOverloadedError, TooManyStreamsError, flight.FlightUnavailableError, pa.ArrowInvalid):
                    return False

            wait_until(serves, "new streams are served again", limit_s=20)
            wait_until(lambda: server.threads < before + 60, "the threads are free again", limit_s=20)
            assert produce.produce([untyped_frame([b"still"])]).error is None
        for connection in flood:
            connection.close()
        assert "Traceback" not in server.log.read_text()
