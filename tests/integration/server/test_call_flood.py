"""More calls than can be served cost their connection, but neither the process nor its other clients."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.errors import BrokerOverloadedError, TooManyStreamsError
from tests.integration.server.serving import MEMORY_BYTES, serving, untyped_frame
from tests.integration.server.streams import ProduceStream
from tests.waiting import wait_until

_CALLS = 40_000
_HALF_OPEN_CALLS = 200_000  # would hold 1.6 GiB
_MAX_THREADS = 3_000
_MAX_WAIT_S = 10.0


@pytest.mark.parametrize("kind", ["served", "given-up"])
def test_flood_of_calls_on_one_connection_costs_that_connection_alone(tmp_path: Path, kind: str) -> None:
    """Threads and memory stay bounded, an open stream continues, and new clients are served soon afterwards."""
    with serving(tmp_path / "data") as server:
        with server.connect() as client, ProduceStream(client) as produce:
            assert produce.produce([untyped_frame([b"before"])]).error is None
            before, most_threads, longest_s = server.threads, 0, 0.0
            command = [sys.executable, "-m", "tests.integration.server.flood", str(server.port), "1", str(_CALLS), kind]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
                while flood.poll() is None:
                    began_s = time.monotonic()
                    assert produce.produce([untyped_frame([b"meanwhile"])]).error is None
                    longest_s = max(longest_s, time.monotonic() - began_s)
                    most_threads = max(most_threads, server.threads)
                    assert most_threads < _MAX_THREADS, "stop before the machine has no thread left"
                assert flood.stdout is not None
                _, cuts = map(int, flood.stdout.read().split())
            assert cuts
            assert longest_s < _MAX_WAIT_S

            def serves() -> bool:
                try:
                    with server.connect() as other, ProduceStream(other) as stream:
                        return stream.produce([untyped_frame([b"after"])]).error is None
                except (BrokerOverloadedError, TooManyStreamsError, flight.FlightUnavailableError, pa.ArrowInvalid):
                    return False

            wait_until(serves, "new clients are served again", limit_s=20)
            wait_until(lambda: server.threads < before + 60, "the threads are free again", limit_s=20)
            assert produce.produce([untyped_frame([b"still"])]).error is None
        assert server.rss_bytes < MEMORY_BYTES
        log = server.log.read_text()
        assert "Traceback" not in log
        assert "thread_watch:cut" in log


@pytest.mark.parametrize("method", ["DoAction", "Handshake"])
def test_calls_without_content_from_many_connections_keep_to_the_memory_limit(tmp_path: Path, method: str) -> None:
    """Each holds 8 KiB, and a thread where it has begun or is cut; whoever is cut comes back with others."""
    with serving(tmp_path / "data") as server:
        with server.connect() as client, ProduceStream(client) as produce:
            assert produce.produce([untyped_frame([b"before"])]).error is None
            before, most_threads = server.threads, 0
            command = [sys.executable, "-m", "tests.integration.server.flood", str(server.port), "25"]
            with subprocess.Popen(
                [*command, str(_HALF_OPEN_CALLS), method], stdout=subprocess.PIPE, text=True
            ) as flood:
                while flood.poll() is None:
                    assert produce.produce([untyped_frame([b"meanwhile"])]).error is None
                    most_threads = max(most_threads, server.threads)
                assert flood.stdout is not None
                sent, cuts = map(int, flood.stdout.read().split())
            wait_until(lambda: server.threads < before + 60, "the threads are free again", limit_s=20)
            assert produce.produce([untyped_frame([b"still"])]).error is None
        assert server.most_rss_bytes < MEMORY_BYTES
        log = server.log.read_text()
        assert "Traceback" not in log
        assert len(log) < sent, "refused calls leave no lines in it"
        assert sent * 8192 > MEMORY_BYTES // 2 or cuts
    assert most_threads < _MAX_THREADS
