"""A proxy in the environment that nobody may use: it counts connections, and serves none."""

from __future__ import annotations

import os
import socket
import threading
from types import TracebackType
from typing import Final

VARIABLES: Final = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_EXCEPTIONS: Final = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
_END_LIMIT_S: Final = 10.0


class ProxyTrap:
    """While entered, the environment of this process and its children names it as every kind of proxy.

    ``visitors``: the number of connections. Enter it once.
    """

    def __init__(self) -> None:
        self.visitors = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._before: dict[str, str | None] = {}
        self._thread = threading.Thread(target=self._run, name="proxy-trap", daemon=True)

    def __enter__(self) -> ProxyTrap:
        host, port = self._listener.getsockname()
        for name in (*VARIABLES, *_EXCEPTIONS):
            self._before[name] = os.environ.pop(name, None)
        os.environ.update(dict.fromkeys(VARIABLES, f"http://{host}:{port}"))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join(_END_LIMIT_S)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            self.visitors += 1
            visitor.close()
