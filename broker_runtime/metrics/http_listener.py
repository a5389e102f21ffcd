"""Over HTTP: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for whoever starts and stops brokers.

Rule: knows nothing of brokers. A peer that is slow, silent or one of too many is cut; none keeps another waiting.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from broker_runtime.contract.errors import SetupError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import Address

_MOST_REQUESTS: Final = 16  # at a time
_PEER_LIMIT_S: Final = 5.0  # for each piece of a request or an answer
_REQUEST_LIMIT_S: Final = 10.0  # for all of it, when others want to be served
_STOP_LIMIT_S: Final = 2.0
_ACCEPT_PAUSE_S: Final = 0.1
_MOST_REQUEST_BYTES: Final = 16 << 10  # its line and headers; 7 MB by the rules of Python's http.server
_POLL_S: Final = 0.1

_logger = logging.getLogger(__name__)


class HttpListener:
    """Listens from `start` to `stop`."""

    def __init__(self, at: Address, registry: CollectorRegistry, *, not_ready: Callable[[], str | None]) -> None:
        """``not_ready``: why the broker does not serve at present; None: it does.

        Raises `SetupError` if the address cannot be used."""
        pages = _Pages(registry, not_ready)
        family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
        try:
            self._server = _Server((at.host, at.port), _Handler, family=family)
        except OSError as error:
            raise SetupError(f"http.listener={at}: {error.strerror or error}") from None
        self._server.set_app(pages.answer)
        self.address = Address(at.host, self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="http-listener", daemon=True
        )

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answers nobody any more. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_STOP_LIMIT_S)
        self._server.server_close()


class _Pages:
    def __init__(self, registry: CollectorRegistry, not_ready: Callable[[], str | None]) -> None:
        self._registry = registry
        self._not_ready = not_ready

    def answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text(start_response, "405 Method Not Allowed", "GET and HEAD are allowed", Allow="GET, HEAD")
        body = self._page(environ, start_response)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else body

    def _page(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            # Whatever is asked for: everybody who reads metrics reads this format.
            metrics = generate_latest(self._registry)
            start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST), ("Content-Length", str(len(metrics)))])
            return [metrics]
        if path == "/healthz":
            return _text(start_response, "200 OK", "alive")
        if path == "/readyz":
            reason = self._not_ready()
            if reason is None:
                return _text(start_response, "200 OK", "ready")
            return _text(start_response, "503 Service Unavailable", f"not ready: {reason}")
        return _text(start_response, "404 Not Found", "there are /metrics, /healthz and /readyz")


def _text(start_response: Callable[..., Any], status: str, text: str, **headers: str) -> Iterable[bytes]:
    body = f"{text}\n".encode()
    kind = ("Content-Type", "text/plain; charset=utf-8")
    start_response(status, [kind, ("Content-Length", str(len(body))), *headers.items()])
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, at: tuple[str, int], handler: type[WSGIRequestHandler], *, family: socket.AddressFamily) -> None:
        self.address_family = family
        self._open: dict[Any, float] = {}  # requests that are being answered, and since when; guarded by the lock
        self._open_lock = threading.Lock()
        super().__init__(at, handler)

    def server_bind(self) -> None:
        """As the parent's, which also asks a name server for this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), port
        self.setup_environ()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no file descriptor is free: without a pause the listening thread would try again at once
            time.sleep(_ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        now_s = time.monotonic()
        with self._open_lock:
            is_full = len(self._open) >= _MOST_REQUESTS
            overdue = [each for each, since_s in self._open.items() if now_s - since_s > _REQUEST_LIMIT_S]
            if not is_full:
                self._open[request] = now_s
        if is_full:
            for each in overdue:
                _cut(each)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread: the request was not begun
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that is gone, or too slow, is nobody's business."""

    def _ended(self, request: Any) -> None:
        with self._open_lock:
            self._open.pop(request, None)


def _cut(request: socket.socket) -> None:
    """Its thread, if it has one, sees the end, and closes it."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _BoundedReader:
    """The first bytes of a request; then it seems to be over."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._left_bytes = _MOST_REQUEST_BYTES

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._reader.readline(min(limit if limit >= 0 else self._left_bytes, self._left_bytes))
        self._left_bytes -= len(line)
        return line

    def close(self) -> None:
        self._reader.close()


class _Handler(WSGIRequestHandler):
    timeout = _PEER_LIMIT_S

    def setup(self) -> None:
        super().setup()
        self.rfile = _BoundedReader(self.rfile)  # type: ignore[assignment]

    def log_message(self, format: str, *args: Any) -> None:
        event(_logger, "answer http", level=logging.DEBUG, address=self.client_address[0], text=format % args)
