"""``http.listener``: pages, and peers that are slow, silent, too many or no web clients."""

from __future__ import annotations

import io
import itertools
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from broker_runtime.contract.errors import SetupError
from broker_runtime.contract.settings import Address
from broker_runtime.metrics import http_listener as module
from broker_runtime.metrics.http_listener import HttpListener
from tests.waiting import wait_until

LIMIT_S = 20.0
WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Broker:
    reason: str | None = "it is starting"


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def listener(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpListener]:
    monkeypatch.setattr(module, "_MOST_REQUESTS", 3)
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    listener = HttpListener(Address("127.0.0.1", 0), registry, not_ready=lambda: broker.reason)
    listener.start()
    yield listener
    listener.stop()


def ask(listener: HttpListener, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{listener.address}{path}", method=method)
    try:
        with WITHOUT_PROXY.open(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_pages(listener: HttpListener, broker: Broker) -> None:
    """Alive from the first moment, ready when the broker says so, and what Prometheus reads."""
    assert ask(listener, "/healthz") == (200, "alive\n")
    assert ask(listener, "/readyz") == (503, "not ready: it is starting\n")
    broker.reason = None
    assert ask(listener, "/readyz") == (200, "ready\n")
    status, text = ask(listener, "/metrics")
    assert status == 200
    assert [(each.name, each.samples[0].value) for each in text_string_to_metric_families(text)] == [("answer", 42)]
    assert ask(listener, "/healthz", "HEAD") == (200, "")
    assert ask(listener, "/metrics", "HEAD") == (200, "")


@pytest.mark.parametrize(
    "accept", ["text/plain;version=1.x", "application/openmetrics-text;version=abc", "\xff", "*/*"]
)
def test_metrics_do_not_depend_on_what_is_asked_for(listener: HttpListener, accept: str) -> None:
    """One format, whole, for whoever asks however."""
    request = urllib.request.Request(f"http://{listener.address}/metrics?name[]=none", headers={"Accept": accept})
    with WITHOUT_PROXY.open(request, timeout=LIMIT_S) as answer:
        assert "answer 42.0" in answer.read().decode()


def test_headers_are_bounded(listener: HttpListener) -> None:
    """All together: fifteen requests of 6 MB each took 400 MB from a broker, for good. What comes after is not read."""
    reader = module._BoundedReader(io.BytesIO(b"X: y\r\n" * 100_000))
    lines = list(iter(lambda: reader.readline(65_537), b""))
    assert sum(map(len, lines)) == module._MOST_REQUEST_BYTES
    headers = b"".join(b"X%d: %s\r\n" % (number, b"a" * 1000) for number in range(30))
    with socket.create_connection(listener.address, LIMIT_S) as peer, suppress(ConnectionError):
        peer.settimeout(LIMIT_S)
        peer.sendall(b"GET /healthz HTTP/1.0\r\n" + headers)  # and no end
        assert b"200 OK" in peer.recv(1 << 16)


def test_without_file_descriptors_the_listening_thread_rests(
    listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot be taken stays there, and would be tried again at once."""
    tries: list[float] = []

    def refused(*_: object) -> None:
        tries.append(time.monotonic())
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "_ACCEPT_PAUSE_S", 0.05)
    with monkeypatch.context() as broken:
        broken.setattr(module.WSGIServer, "get_request", refused)
        with socket.create_connection(listener.address, LIMIT_S):
            wait_until(lambda: len(tries) > 4, "it is tried again", LIMIT_S)
    assert min(later - earlier for earlier, later in itertools.pairwise(tries)) >= 0.05
    assert ask(listener, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/metrics/../healthz", "GET", 404), ("/%00", "GET", 404), ("/metrics", "POST", 405)],
)
def test_anything_else_is_refused(listener: HttpListener, path: str, method: str, status: int) -> None:
    """With a sentence that names what there is."""
    found, text = ask(listener, path, method)
    assert found == status
    assert text.strip() in ("there are /metrics, /healthz and /readyz", "GET and HEAD are allowed")


def test_silent_peer_is_cut(listener: HttpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds a thread for no longer than a piece of a request may take."""
    monkeypatch.setattr(module._Handler, "timeout", 0.1)
    with socket.create_connection(listener.address, LIMIT_S) as silent:
        assert silent.recv(1) == b""


GARBAGE = [b"\x16\x03\x01\x02\x00\x01\x00", b"GET /" + b"a" * 100_000, b"\r\n\r\n", b"\xff" * 99]


@pytest.mark.parametrize("sent", GARBAGE)
def test_garbage_ends_its_own_connection_only(listener: HttpListener, sent: bytes) -> None:
    """TLS, an endless line, nothing at all."""
    with socket.create_connection(listener.address, LIMIT_S) as peer, suppress(ConnectionError):
        peer.settimeout(LIMIT_S)
        peer.sendall(sent + b"\r\n\r\n")
        with suppress(OSError):  # it may have been cut already
            peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
    assert ask(listener, "/healthz")[0] == 200


def test_peers_that_drip_do_not_keep_others_out(listener: HttpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all places taken the next one is cut, and so is whoever has had his time."""
    monkeypatch.setattr(module._Handler, "timeout", 3 * LIMIT_S)  # as if each piece came in time
    peers = [socket.create_connection(listener.address, LIMIT_S) for _ in range(3)]
    try:
        for peer in peers:
            peer.sendall(b"GET /healthz HTTP/1.0\r\nX: ")  # and never the rest

        def is_served() -> bool:
            try:
                return ask(listener, "/healthz")[0] == 200
            except OSError:
                return False

        wait_until(lambda: not is_served(), "all places are taken", LIMIT_S)
        monkeypatch.setattr(module, "_REQUEST_LIMIT_S", 0.0)
        wait_until(is_served, "one is free again", LIMIT_S)
    finally:
        for peer in peers:
            peer.close()


def test_address_that_is_taken_is_named(listener: HttpListener) -> None:
    """Before the broker joins its cluster."""
    with pytest.raises(SetupError, match=rf"http.listener={listener.address}: Address already in use"):
        HttpListener(listener.address, CollectorRegistry(), not_ready=lambda: None)


def test_nobody_is_answered_after_the_stop(listener: HttpListener) -> None:
    """And it may be stopped twice, or without having been started."""
    listener.stop()
    listener.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.address, LIMIT_S)
    HttpListener(Address("127.0.0.1", 0), CollectorRegistry(), not_ready=lambda: None).stop()
