"""What is at an address where no broker has answered: ZooKeeper, Kafka, a web server, nothing …

Each kind of server is asked in its own protocol, all at once, each over a connection of its own, and recognised by its
answer or its greeting. This takes at most `LIMIT_S`. Rule: a broker is never taken for another service. A server that
answers as gRPC may be a busy broker; one that accepts connections and is silent may be a broker that hangs; one that
closes them at once may be a broker that is stopping, or a proxy whose broker has not started yet. Another service is
one that answers anything else, or that closes only the connection on which HTTP/2 is spoken: a broker answers there,
and keeps the connection open on which nothing is sent.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from broker_runtime.contract import DEFAULT_PORT
from broker_runtime.contract.errors import BrokerUnavailableError, NotAPylogBrokerError, PylogError
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import Deadline

LIMIT_S: Final = 0.8
"""How long other services have to answer: more than a round trip to anywhere, and too short to annoy."""

_TLS_LIMIT_S = 0.2  # a server that answered plain HTTP may still turn out to expect TLS
_CLOSED_LIMIT_S = 0.3  # a server that closes the HTTP/2 connection may close all, or answer in another protocol
_ANSWER_BYTES = 512
_KAFKA_CORRELATION_ID = b"pyl0"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_HTTP2_BEGINNINGS = (b"\x04\0\0\0\0\0", b"\x07\0\0\0\0\0")  # after the length: SETTINGS or GOAWAY of the connection
_SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"  # PostgreSQL's; the answer is a letter


class Peer(Enum):
    """What was found out about an address."""

    UNKNOWN_NAME = "unknown name"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"  # nothing came back, not even a refusal
    GRPC = "gRPC"  # a broker, most likely
    SILENT = "silent"  # as a broker that hangs
    CLOSED = "closed"  # as a broker that is stopping, or a proxy without one
    CLOSED_TO_HTTP2 = "closed to HTTP/2"
    OTHER = "other"
    TLS = "TLS"
    ZOOKEEPER = "ZooKeeper"
    KAFKA = "Kafka"
    SSH = "SSH"
    MYSQL = "MySQL"
    POSTGRESQL = "PostgreSQL"
    REDIS = "Redis"
    MAIL = "mail"
    HTTP = "HTTP"


_WHAT_IT_IS: Mapping[Peer, str] = {
    Peer.TLS: "expects TLS: security.protocol=SSL, or SASL_SSL with a user",
    Peer.ZOOKEEPER: f"is ZooKeeper. Clients talk to brokers, which listen on port {DEFAULT_PORT} by default",
    Peer.KAFKA: f"is Kafka, not pylog, whose brokers listen on port {DEFAULT_PORT} by default",
    Peer.SSH: "is an SSH server, not a pylog broker",
    Peer.MYSQL: "is MySQL or MariaDB, not a pylog broker",
    Peer.POSTGRESQL: "is PostgreSQL, not a pylog broker",
    Peer.REDIS: "is Redis, not a pylog broker",
    Peer.MAIL: "is a mail or FTP server, not a pylog broker",
    Peer.HTTP: "is a web server, not a pylog broker",
    Peer.OTHER: "is another service, not a pylog broker",
    Peer.CLOSED_TO_HTTP2: "is another service, not a pylog broker",
}

# A server that speaks gRPC is one, whatever it answers to other protocols; a TLS port also answers plain HTTP.
_LEAVES_NO_DOUBT = (
    Peer.GRPC, Peer.ZOOKEEPER, Peer.KAFKA, Peer.SSH, Peer.MYSQL, Peer.POSTGRESQL, Peer.REDIS, Peer.MAIL, Peer.TLS,
)  # fmt: skip
_BY_WEIGHT = (
    *_LEAVES_NO_DOUBT, Peer.HTTP, Peer.OTHER, Peer.CLOSED_TO_HTTP2, Peer.CLOSED, Peer.SILENT, Peer.REFUSED,
)  # fmt: skip

# How answers begin, whatever was sent: greetings, and answers to a protocol that is not understood.
_BEGINNINGS: Mapping[bytes, Peer] = {
    b"SSH-": Peer.SSH,
    b"HTTP/": Peer.HTTP,
    b"<!DOCTYPE ": Peer.HTTP,  # without a status line: an answer to what it takes for HTTP/0.9
    b"<!doctype ": Peer.HTTP,
    b"<HTML": Peer.HTTP,
    b"<html": Peer.HTTP,
    b"\x15\x03": Peer.TLS,  # an alert
    b"\x16\x03": Peer.TLS,  # a handshake
    b"-ERR ": Peer.REDIS,
    b"-NOAUTH ": Peer.REDIS,
    b"-DENIED ": Peer.REDIS,
    b"220 ": Peer.MAIL,
    b"220-": Peer.MAIL,
    b"+OK": Peer.MAIL,
    b"* OK": Peer.MAIL,
}


@dataclass(frozen=True, slots=True)
class _Question:
    """What is sent to a server, and the answers by which it is recognised."""

    words: bytes
    answers: Mapping[bytes, Peer]


_NOTHING = _Question(b"", {})


def who_is_at(address: Address, *, limit_s: float = LIMIT_S) -> Peer:
    """Examines an address, for ``limit_s`` and the time that the name lookup takes; twice if only HTTP/2 is closed."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        # A resolver that fails for the moment does not prove that there is no such name.
        return Peer.UNREACHABLE if error.errno == socket.EAI_AGAIN else Peer.UNKNOWN_NAME
    except OSError:
        return Peer.UNREACHABLE
    limit_s = min(limit_s, LIMIT_S)
    peer = _look(infos, limit_s)
    # A broker that is stopping, or busy, may look like that once.
    return _look(infos, limit_s) if peer is Peer.CLOSED_TO_HTTP2 else peer


def is_certain(peer: Peer) -> bool:
    """Whether another attempt would find the same."""
    return peer in _WHAT_IT_IS or peer is Peer.UNKNOWN_NAME


def error_for(peer: Peer, address: Address, tried_s: float) -> PylogError:
    """The error for a caller that has tried for ``tried_s``."""
    if peer in _WHAT_IT_IS:
        return NotAPylogBrokerError(f"{address} {_WHAT_IT_IS[peer]}")
    if peer is Peer.UNKNOWN_NAME:
        return BrokerUnavailableError(f"host name not found: {address.host}")
    if peer is Peer.REFUSED:
        return BrokerUnavailableError(f"{address} refused for {tried_s:.3g} s. Start one: pylog up")
    if peer is Peer.SILENT:
        return BrokerUnavailableError(
            f"{address} takes connections but said nothing for {tried_s:.3g} s: a broker that hangs, or another service"
        )
    if peer is Peer.CLOSED:
        return BrokerUnavailableError(
            f"{address} closed each connection for {tried_s:.3g} s: a proxy without a broker, or another service"
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
        _Question(_client_hello(host), {}),
        _Question(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(), {}),
        _Question(_SSL_REQUEST, {}),
        _NOTHING,  # the last: a server that serves one connection after the other waits there
    ]


def _client_hello(host: str) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # only the first message is made here: there is nothing to verify
    hello = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def _look(infos: Sequence[tuple[Any, ...]], limit_s: float) -> Peer:
    seen: set[Peer] = set()
    for family, _, _, _, place in infos:
        seen |= _ask(family, place, limit_s)
        if seen - {Peer.REFUSED, Peer.UNREACHABLE}:
            break
    return next((peer for peer in _BY_WEIGHT if peer in seen), Peer.UNREACHABLE)


def _ask(family: int, place: tuple[Any, ...], limit_s: float) -> set[Peer]:
    """Asks all questions at once, until all are answered or one answer leaves no doubt."""
    seen: set[Peer] = set()
    closed: Deadline | None = None  # since it closed where HTTP/2 was spoken
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for question in _questions(str(place[0])):
            connection = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            connection.setblocking(False)
            refused = connection.connect_ex(place)
            if refused not in {0, errno.EINPROGRESS}:
                return {Peer.REFUSED if refused == errno.ECONNREFUSED else Peer.UNREACHABLE}
            selector.register(connection, selectors.EVENT_WRITE, question)
        deadline = Deadline(limit_s)
        while selector.get_map() and not deadline.expired:
            for key, events in selector.select(deadline.remaining_s()):
                peer = _step(selector, key, events)
                if peer is Peer.REFUSED:
                    return {peer}
                seen.add(peer)
                if peer is Peer.CLOSED and key.data.words is _HTTP2_PREFACE:
                    closed = Deadline(_CLOSED_LIMIT_S)
            if seen.intersection(_LEAVES_NO_DOUBT):
                break
            if Peer.HTTP in seen:
                deadline = Deadline(deadline.remaining_s(_TLS_LIMIT_S))
            if closed is not None:
                deadline = Deadline(deadline.remaining_s(closed.remaining_s()))
            elif Peer.OTHER in seen:
                deadline = Deadline(deadline.remaining_s(_CLOSED_LIMIT_S))
        if closed is not None and closed.expired and _is_open(selector):
            seen.add(Peer.CLOSED_TO_HTTP2)
    return seen


def _step(selector: selectors.BaseSelector, key: selectors.SelectorKey, events: int) -> Peer:
    """Sends the question on a connection that has been established, or reads the answer."""
    asked = key.fileobj
    assert isinstance(asked, socket.socket)
    try:
        if events & selectors.EVENT_WRITE:
            asked.sendall(key.data.words)
            selector.modify(asked, selectors.EVENT_READ, key.data)
            return Peer.SILENT
        peer = _named(key.data, asked.recv(_ANSWER_BYTES))
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return Peer.REFUSED
        peer = Peer.CLOSED if isinstance(error, ConnectionError) else Peer.UNREACHABLE
    selector.unregister(asked)
    return peer


def _is_open(selector: selectors.BaseSelector) -> bool:
    """Whether the connection on which nothing is sent was established and is still open."""
    return any(key.data is _NOTHING and key.events == selectors.EVENT_READ for key in selector.get_map().values())


def _named(question: _Question, answer: bytes) -> Peer:
    if not answer:
        return Peer.CLOSED
    if answer[:1] == b"\0" and any(begin.startswith(answer[3:9]) for begin in _HTTP2_BEGINNINGS):
        return Peer.GRPC  # also if the question was not HTTP/2, or the answer is not complete yet
    for beginning, peer in (*question.answers.items(), *_BEGINNINGS.items()):
        if answer.startswith(beginning):
            return peer
    if answer[4:8] == _KAFKA_CORRELATION_ID:
        return Peer.KAFKA
    if answer[3:5] == b"\0\x0a" and answer[5:6].isdigit():
        return Peer.MYSQL  # the first packet: protocol 10, and a version
    if answer[3:5] == b"\0\xff" and int.from_bytes(answer[:3], "little") == len(answer) - 4:
        return Peer.MYSQL  # the first packet: an error
    is_postgresql = question.words is _SSL_REQUEST and answer in {b"S", b"N"}
    is_postgresql |= answer.startswith(b"E\0") and b"FATAL\0" in answer
    return Peer.POSTGRESQL if is_postgresql else Peer.OTHER
