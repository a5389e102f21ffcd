"""Who is at an address where no broker answered as one: ZooKeeper, Kafka, a web server, nobody …

Each kind of server is spoken to in its own words, all at once over a connection each, and named by its answer; that is
over within `LIMIT_S`. Rule: a broker is never taken for a stranger. What answers as gRPC does may be a broker that has
no time, and what takes connections and says nothing may be one that is frozen: neither is named.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from broker_runtime.contract.errors import BrokerUnavailableError, NotAPylogBrokerError, PylogError
from broker_runtime.contract.settings import Address

LIMIT_S: Final = 0.8
"""How long strangers have to answer: more than a round trip to anywhere, and too short to annoy."""

_TLS_LIMIT_S = 0.2  # what answered as a web server may still turn out to want TLS
_DEFAULT_PORT = 9192
_ANSWER_BYTES = 512
_KAFKA_CORRELATION_ID = b"pyl0"
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_HTTP2_SETTINGS = b"\x04"


class Peer(Enum):
    """What was found out about an address."""

    UNKNOWN_NAME = "unknown name"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"  # nothing came back, not even a refusal
    GRPC = "gRPC"  # a broker, most likely
    SILENT = "silent"  # a frozen broker looks like that
    CLOSED = "closed"
    OTHER = "other"
    TLS = "TLS"
    ZOOKEEPER = "ZooKeeper"
    KAFKA = "Kafka"
    SSH = "SSH"
    HTTP = "HTTP"


_WHAT_IT_IS: Mapping[Peer, str] = {
    Peer.TLS: "expects TLS, which pylog does not speak",
    Peer.ZOOKEEPER: f"is ZooKeeper. Clients talk to brokers, which listen on port {_DEFAULT_PORT} by default",
    Peer.KAFKA: f"is Kafka, not pylog, whose brokers listen on port {_DEFAULT_PORT} by default",
    Peer.SSH: "is an SSH server, not a pylog broker",
    Peer.HTTP: "is a web server, not a pylog broker",
}


@dataclass(frozen=True, slots=True)
class _Question:
    """What is said to a server, and which answers tell what it is."""

    words: bytes
    answers: Mapping[bytes, Peer]


def who_is_at(address: Address, *, limit_s: float = LIMIT_S) -> Peer:
    """Looks, for ``limit_s`` and the time that looking up the name takes."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        # A resolver that is away for the moment is no proof that there is no such name.
        return Peer.UNREACHABLE if error.errno == socket.EAI_AGAIN else Peer.UNKNOWN_NAME
    except OSError:
        return Peer.UNREACHABLE
    seen: set[Peer] = set()
    for family, _, _, _, place in infos:
        seen |= _ask(family, place, min(limit_s, LIMIT_S))
        if seen - {Peer.REFUSED, Peer.UNREACHABLE}:
            break
    # Whoever speaks gRPC is that, whatever it says to other words; a TLS port answers plain HTTP as well.
    for peer in (Peer.GRPC, Peer.ZOOKEEPER, Peer.KAFKA, Peer.SSH, Peer.TLS, Peer.HTTP, Peer.OTHER, Peer.CLOSED):
        if peer in seen:
            return peer
    return next((peer for peer in (Peer.SILENT, Peer.REFUSED) if peer in seen), Peer.UNREACHABLE)


def is_certain(peer: Peer) -> bool:
    """Whether trying again would change nothing."""
    return peer in _WHAT_IT_IS or peer is Peer.UNKNOWN_NAME


def error_for(peer: Peer, address: Address, tried_s: float) -> PylogError:
    """What to tell who has tried for so long."""
    if peer in _WHAT_IT_IS:
        return NotAPylogBrokerError(f"{address} {_WHAT_IT_IS[peer]}")
    if peer in {Peer.CLOSED, Peer.OTHER}:
        return NotAPylogBrokerError(f"{address} answers, but not as pylog. Is it Kafka?")
    if peer is Peer.UNKNOWN_NAME:
        return BrokerUnavailableError(f"host name not found: {address.host}")
    if peer is Peer.REFUSED:
        return BrokerUnavailableError(f"{address} refused for {tried_s:.3g} s. Start one: pylog up")
    if peer is Peer.SILENT:
        return BrokerUnavailableError(
            f"{address} takes connections but said nothing for {tried_s:.3g} s: a broker that hangs, or another service"
        )
    if peer is Peer.GRPC:
        return BrokerUnavailableError(f"{address} is there, but did not answer within {tried_s:.3g} s: overloaded?")
    return BrokerUnavailableError(f"no answer from {address} within {tried_s:.3g} s")


def _questions(host: str) -> list[_Question]:
    # An ApiVersions request (key 18, version 0) without a client id.
    kafka = b"\0\x12\0\0" + _KAFKA_CORRELATION_ID + b"\xff\xff"
    return [
        _Question(_HTTP2_PREFACE, {}),
        _Question(b"srvr", {b"Zookeeper version": Peer.ZOOKEEPER, b"srvr is not executed": Peer.ZOOKEEPER}),
        _Question(len(kafka).to_bytes(4, "big") + kafka, {}),
        _Question(_client_hello(host), dict.fromkeys(_TLS_RECORDS, Peer.TLS)),
        _Question(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(), {}),
    ]


def _client_hello(host: str) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    hello = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def _ask(family: int, place: tuple[Any, ...], limit_s: float) -> set[Peer]:
    """All questions at once, until all are answered or one answer leaves no doubt."""
    seen: set[Peer] = set()
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for question in _questions(str(place[0])):
            connection = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            connection.setblocking(False)
            refused = connection.connect_ex(place)
            if refused not in {0, errno.EINPROGRESS}:
                return {Peer.REFUSED if refused == errno.ECONNREFUSED else Peer.UNREACHABLE}
            selector.register(connection, selectors.EVENT_WRITE, question)
        end_s = time.monotonic() + limit_s
        while selector.get_map() and (left_s := end_s - time.monotonic()) > 0:
            for key, events in selector.select(left_s):
                asked = key.fileobj
                assert isinstance(asked, socket.socket)
                try:
                    if events & selectors.EVENT_WRITE:
                        asked.sendall(key.data.words)
                        selector.modify(asked, selectors.EVENT_READ, key.data)
                        seen.add(Peer.SILENT)
                        continue
                    seen.add(_named(key.data, asked.recv(_ANSWER_BYTES)))
                except OSError as error:
                    if error.errno == errno.ECONNREFUSED:
                        return {Peer.REFUSED}
                    seen.add(Peer.CLOSED if isinstance(error, ConnectionError) else Peer.UNREACHABLE)
                selector.unregister(asked)
            if seen & {Peer.GRPC, Peer.ZOOKEEPER, Peer.KAFKA, Peer.SSH, Peer.TLS}:
                break
            if Peer.HTTP in seen:
                end_s = min(end_s, time.monotonic() + _TLS_LIMIT_S)
    return seen


def _named(question: _Question, answer: bytes) -> Peer:
    for beginning, peer in question.answers.items():
        if answer.startswith(beginning):
            return peer
    if not answer:
        return Peer.CLOSED
    if answer.startswith(b"SSH-"):
        return Peer.SSH
    if answer.startswith(b"HTTP/"):
        return Peer.HTTP
    if question.words is _HTTP2_PREFACE and answer[3:4] == _HTTP2_SETTINGS:
        return Peer.GRPC
    if answer[4:8] == _KAFKA_CORRELATION_ID:
        return Peer.KAFKA
    return Peer.OTHER
