"""Connections on which nothing happens. A console with no broker behind it: what is asked here needs none."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from pyspark_log import Admin
from pyspark_log.console import serving
from pyspark_log.console.serving import ConsoleServer

LIMIT_S = 10.0
LONGEST_S = 1.0
TRICKLE_S = 0.1
HEAD = b"GET /static/console.css HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleServer]:
    """With room for two connections, each of which may take a second."""
    monkeypatch.setattr(serving, "_LONGEST_REQUEST_S", LONGEST_S)
    monkeypatch.setattr(serving, "_MOST_CONNECTIONS", 3)  # uvicorn refuses the one that makes it full
    server = ConsoleServer({"bootstrap.servers": "127.0.0.1:1"}, port=0)
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("sent", "trickle"),
    [
        (b"", b""),
        (HEAD, b""),
        (HEAD, b"x"),
        (HEAD + b"\r\n", b"x"),  # a first answer, and then half a request, which ends the keep-alive's own limit
        (HEAD + b"Content-Length: 1000\r\n\r\n", b"x"),  # answered before its body is there
    ],
    ids=["silent", "half a head", "a slow head", "a slow second request", "a slow body"],
)
def test_connection_that_takes_too_long_gives_its_place_to_others(
    console: ConsoleServer, sent: bytes, trickle: bytes
) -> None:
    """Whatever it has sent so far, and however slowly it goes on."""
    is_over = threading.Event()
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", console.port), timeout=LIMIT_S))
            for _ in range(2)
        ]
        for each in held:
            each.sendall(sent)
        writer = threading.Thread(target=_trickle, args=(held, trickle, is_over))
        writer.start()
        try:
            deadline_s = time.monotonic() + LIMIT_S
            while _status(console) != 503:
                assert time.monotonic() < deadline_s, "the console was never full"
            while _status(console) != 200:
                assert time.monotonic() < deadline_s, "the console stays full"
                time.sleep(TRICKLE_S)
        finally:
            is_over.set()
            writer.join(LIMIT_S)


def _trickle(held: list[socket.socket], sent: bytes, is_over: threading.Event) -> None:
    while sent and not is_over.wait(TRICKLE_S):
        for each in held:
            with contextlib.suppress(OSError):  # it was cut off
                each.sendall(sent)


def _status(console: ConsoleServer) -> int:
    return httpx.get(f"{console.address}static/console.css", timeout=LIMIT_S).status_code


@pytest.mark.parametrize(
    "sent",
    [
        b"no request at all\r\n\r\n",
        HEAD.replace(b"\r\n", b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", 1) + b"\r\n",
        HEAD.replace(b"GET /static/console.css", b"POST /moves/start") + b"Content-Length: 1000\r\n\r\na=1",
        HEAD.replace(b"GET /static/console.css", b"POST /logout") + b"Content-Length: 1000\r\n\r\na=1",
    ],
    ids=["garbage", "a websocket", "half a form", "half a logout"],
)
def test_who_sends_garbage_and_goes_fills_no_log(
    console: ConsoleServer, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who reaches the port can do that as often as they like; a form that breaks off is no defect of pylog."""
    caplog.set_level(logging.WARNING)
    with socket.create_connection(("127.0.0.1", console.port), timeout=LIMIT_S) as client:
        client.sendall(sent)
        time.sleep(TRICKLE_S)  # the console is in the middle of reading it
    time.sleep(3 * TRICKLE_S)
    assert _status(console) == 200
    assert caplog.records == []


def test_who_waits_while_the_console_stops_is_told(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also whoever sent a form, which may have been carried out. It is nobody's defect, and no traceback."""
    monkeypatch.setattr(console._server.config, "timeout_graceful_shutdown", LONGEST_S / 10)
    begun, is_over = threading.Event(), threading.Event()

    def waits(*_: object, **__: object) -> None:
        begun.set()
        is_over.wait(LIMIT_S)

    monkeypatch.setattr(Admin, "elect_leaders", waits)
    answers: list[httpx.Response] = []

    def send() -> None:
        with httpx.Client(base_url=console.address, timeout=LIMIT_S) as client:
            found = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get("/topics-new").text)
            assert found is not None
            answers.append(client.post("/moves/elect", data={"csrf": found[1]}))

    sender, closer = threading.Thread(target=send), threading.Thread(target=console.close)
    sender.start()
    try:
        assert begun.wait(LIMIT_S)
        closer.start()
        sender.join(LIMIT_S)
    finally:
        is_over.set()
        console.close()
    (answer,) = answers
    assert answer.status_code == 503
    assert "not known" in answer.text
    assert "content-security-policy" in answer.headers
    assert not any(record.exc_info for record in caplog.records)
