"""A TCP proxy that loses answers: it drops what the broker sends for a moment, then resets the connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from tests.waiting import comes_true

_CHUNK_BYTES = 64 << 10
_LIMIT_S = 30.0


class LossyProxy:
    """Listens on a free port of 127.0.0.1 and forwards connections to ``target()``. ``close`` ends all threads."""

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost_bytes = 0
        self._is_losing = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept_all)

    def lose_answers(self) -> bool:
        """Drops what the broker sends until something was dropped, then resets every connection.

        Returns False if the broker sent nothing (it is dead, or has nothing to answer).
        """
        before = self.lost_bytes
        self._is_losing = True
        comes_true(lambda: self.lost_bytes > before, 1.0, pause_s=0.001)
        self.reset()
        self._is_losing = False
        return self.lost_bytes > before

    def reset(self) -> None:
        """Resets every connection on both sides."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.shutdown(socket.SHUT_RD)
                one.close()

    def close(self) -> None:
        """Ends everything."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(_LIMIT_S)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, name="lossy-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept_all(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target(), timeout=_LIMIT_S)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs.append((client, server))
            self._start(self._pump, client, server, False)
            self._start(self._pump, server, client, True)

    def _pump(self, source: socket.socket, sink: socket.socket, are_answers: bool) -> None:
        while True:
            try:
                data = source.recv(_CHUNK_BYTES)
                if data and are_answers and self._is_losing:
                    self.lost_bytes += len(data)
                    continue
                if data:
                    sink.sendall(data)
                    continue
            except OSError:
                data = b""
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            return
