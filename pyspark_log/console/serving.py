"""Where the console listens, who may reach it, and its HTTP server.

Rule: without a login, everybody who reaches the port may do what the console may. So it then listens on loopback
addresses only, unless the caller explicitly allows more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from broker_runtime.contract.errors import InvalidConfigError, PortInUseError
from pyspark_log.console import DEFAULT_PORT
from pyspark_log.console.app import make_app
from pyspark_log.console.connection import Entrance

_BACKLOG: Final = 128
_MOST_CONNECTIONS: Final = 500
_LONGEST_REQUEST_S: Final = 60.0
"""From a connection's opening, or the end of its last response, to the end of the next response."""
_STARTING_LIMIT_S: Final = 10.0
_STOPPING_LIMIT_S: Final = 3


class ConsoleServer:
    """A console at an address. Making it listens; `serve` answers, and so does a thread after `start`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        allowed_hosts: Sequence[str] = (),
        allow_anyone: bool = False,
        certfile: Path | None = None,
        keyfile: Path | None = None,
    ) -> None:
        """``settings``: of a client, by dotted name. ``port`` 0: a free one. Raises `PortInUseError`, and
        `InvalidConfigError` for a combination that `check_listening` refuses."""
        entrance = Entrance(settings)
        if (certfile is None) != (keyfile is None):
            raise InvalidConfigError("--ssl-certfile and --ssl-keyfile give both or neither")
        is_encrypted = certfile is not None
        check_listening(host, has_login=entrance.has_login, is_encrypted=is_encrypted, allow_anyone=allow_anyone)
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]
        names = {"localhost", socket.gethostname(), host, *allowed_hosts}
        self.app = make_app(entrance, hosts=names, port=self.port, is_encrypted=is_encrypted)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{'https' if is_encrypted else 'http'}://{shown}:{self.port}/"
        try:
            config = uvicorn.Config(
                self.app,
                log_config=None,
                log_level=logging.ERROR,  # a line for each request that is none is what strangers fill disks with
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="on",
                http=_BoundedProtocol,
                ws="none",
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=_STOPPING_LIMIT_S,
                ssl_certfile=certfile,
                ssl_keyfile=keyfile,
            )
            if is_encrypted:
                config.load()
        except (OSError, ValueError) as error:
            self._socket.close()
            raise InvalidConfigError(f"--ssl-certfile {certfile}, --ssl-keyfile {keyfile}: {error}") from None
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def serve(self) -> None:
        """Answers until the process is told to stop (SIGINT, SIGTERM)."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def start(self) -> None:
        """Answers from a thread of its own, until `close`."""
        self._thread = threading.Thread(target=self.serve, name="pylog-console", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops. May be called again. Blocks a bounded time."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STOPPING_LIMIT_S + _STARTING_LIMIT_S)
        self._socket.close()


class _BoundedProtocol(H11Protocol):
    """Closes a connection that takes too long to send a request or to read its response. Uvicorn waits forever:
    browsers that open connections in advance and then sleep would take all `_MOST_CONNECTIONS` in time."""

    _ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def on_response_complete(self) -> None:
        self._begin()
        super().on_response_complete()

    def shutdown(self) -> None:
        super().shutdown()
        # With TLS, closing waits for the other side: a browser's idle connection would hold up the console's end.
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._stop()
        self._ending = self.loop.call_later(_LONGEST_REQUEST_S, self.transport.abort)

    def _stop(self) -> None:
        if self._ending is not None:
            self._ending.cancel()


def check_listening(host: str, *, has_login: bool, is_encrypted: bool, allow_anyone: bool) -> None:
    """Raises `InvalidConfigError` where strangers could do what the console may, or read passwords on their way."""
    if allow_anyone or is_loopback(host):
        return
    if not has_login:
        raise InvalidConfigError(
            f"--host {host}: these brokers ask users for no password, so anybody who reaches that address could "
            "do all that the console may. Listen on 127.0.0.1, or add --allow-anyone if that is intended"
        )
    if not is_encrypted:
        raise InvalidConfigError(
            f"--host {host}: passwords would cross the network in clear text. Give --ssl-certfile and --ssl-keyfile, "
            "or add --allow-anyone if a proxy in front of the console terminates TLS"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if isinstance(error, socket.gaierror):
            raise InvalidConfigError(f"--host {host}: is not an address of this machine: {error.strerror}") from None
        raise PortInUseError(f"cannot listen on {host}:{port} ({error.strerror}). Port 0 means a free one") from None
    return listener
