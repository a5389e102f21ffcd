"""Idle connections are cut, logs remain usable, and other clients are served."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from pathlib import Path

import pytest
from pyarrow import flight

from broker_runtime.contract.errors import PylogError
from broker_runtime.server.connections import allow_open_files
from tests.integration.server.serving import serving, untyped_frame
from tests.integration.server.streams import ProduceStream
from tests.waiting import wait_until

_MAX_STREAMS = 50
_ALLOWED = 4 * _MAX_STREAMS
_CONNECTIONS = 2_000


@pytest.mark.parametrize("limit_of_files", [None, 700])
def test_silent_connections_are_cut_and_logs_remain_usable(tmp_path: Path, limit_of_files: int | None) -> None:
    """This also holds where the system allows so few open files that they are used up between two looks."""
    silent: list[socket.socket] = []
    is_over = threading.Event()
    count = min(_CONNECTIONS, allow_open_files(2 * _CONNECTIONS) // 2)  # which are this process's, too

    def connect(port: int) -> None:
        while len(silent) < count and not is_over.is_set():
            with contextlib.suppress(OSError):
                silent.append(socket.create_connection(("127.0.0.1", port), timeout=0.2))

    with serving(tmp_path / "data", max_streams=_MAX_STREAMS) as server, contextlib.ExitStack() as stack:
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        if limit_of_files is not None:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit_of_files, limit_of_files))
        client = stack.enter_context(server.connect())
        produce = stack.enter_context(ProduceStream(client))
        assert produce.produce([untyped_frame([b"before"])]).error is None
        before = len(list(descriptors.iterdir()))
        flood = threading.Thread(target=connect, args=(server.port,))
        flood.start()
        stack.callback(lambda: [each.close() for each in silent])
        stack.callback(flood.join)
        stack.callback(is_over.set)
        for number in range(200):
            assert produce.produce([untyped_frame([b"%d" % number] * 1_000)]).error is None
        wait_until(lambda: len(list(descriptors.iterdir())) <= before + _ALLOWED, "few are left", limit_s=30)
        is_over.set()
        flood.join()

        def serves() -> bool:
            try:
                with server.connect() as other, ProduceStream(other) as stream:
                    return stream.produce([untyped_frame([b"after"])]).error is None
            except (PylogError, flight.FlightError, OSError):
                return False

        wait_until(serves, "new clients are served", limit_s=30)
        assert produce.produce([untyped_frame([b"still"])]).error is None
        text = server.log.read_text()
        assert "offline" not in text
        assert "Traceback" not in text
        assert server.is_alive
