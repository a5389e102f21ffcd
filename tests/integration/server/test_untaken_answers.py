"""Clients that ask and take no answers hold a thread for each; they may not lock others out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract.errors import BrokerOverloadedError, TooManyStreamsError
from broker_runtime.contract.flight import encode_action
from broker_runtime.contract.requests import MetadataRequest
from tests.integration.server.raw_grpc import Connection, bytes_field
from tests.integration.server.serving import serving, untyped_frame
from tests.integration.server.streams import ProduceStream
from tests.waiting import wait_until

_CONNECTIONS = 24
_CALLS = 45  # on each: too few to be noticed by their bytes


def test_connections_that_take_no_answers_are_cut_within_seconds(tmp_path: Path) -> None:
    """A stream that was open before continues, and new clients are served."""
    action = encode_action("metadata", MetadataRequest(topics=()))
    message = bytes_field(1, action.type.encode()) + bytes_field(2, bytes(action.body))
    with serving(tmp_path / "data") as server:
        with server.connect() as client, ProduceStream(client) as produce:
            assert produce.produce([untyped_frame([b"before"])]).error is None
            before = server.threads
            idle = [Connection(server.port, window_bytes=0) for _ in range(_CONNECTIONS)]
            for _ in range(_CALLS):
                for connection in idle:
                    connection.call("DoAction", [message])
            wait_until(lambda: server.threads > before + 150, "answers that nobody takes hold threads", limit_s=10)

            def serves() -> bool:
                assert produce.produce([untyped_frame([b"meanwhile"])]).error is None
                try:
                    with server.connect() as other, ProduceStream(other) as stream:
                        return stream.produce([untyped_frame([b"after"])]).error is None
                except (BrokerOverloadedError, TooManyStreamsError, flight.FlightUnavailableError, pa.ArrowInvalid):
                    return False

            wait_until(lambda: server.threads < before + 60, "the threads are free again", limit_s=15)
            wait_until(serves, "new clients are served again", limit_s=10)
            assert produce.produce([untyped_frame([b"still"])]).error is None
        for connection in idle:
            connection.close()
        assert "Traceback" not in server.log.read_text()
