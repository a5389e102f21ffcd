"""A gRPC client of bytes: HTTP/2 by hand, so that a test can send what no client library would.

One connection per `Connection`, any number of calls on it, all sent before answers are awaited. Sends no more than the
server's initial window (65,535 bytes) per connection; the caller closes it and makes the next.
"""

from __future__ import annotations

import socket
import struct
import time

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_SERVICE = "/arrow.flight.protocol.FlightService/"
WINDOW_BYTES = 60_000


class Connection:
    """One HTTP/2 connection."""

    def __init__(self, port: int, *, window_bytes: int = 2**31 - 1) -> None:
        """``window_bytes``: how much of an answer each call takes."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.sent_bytes = 0
        self.is_broken = False
        self._next_stream = 1
        self._open: set[int] = set()
        self._received = b""
        window = struct.pack(">HI", 4, window_bytes)  # INITIAL_WINDOW_SIZE
        self._send(_PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))

    def call(self, method: str, messages: list[bytes], *, prefixed: bool = True, end: bool = True) -> None:
        """Begins a call with all its messages. ``prefixed=False``: they carry their own gRPC length prefix.

        Such calls, and those with ``end=False``, may stay unanswered, so `drain` does not wait for them.
        """
        stream = self._next_stream
        self._next_stream += 2
        headers = b"".join(
            _literal(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", _SERVICE + method),
                (":authority", "fuzz"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            )
        )
        parts = [_frame(_HEADERS, _END_HEADERS, stream, headers)]
        body = b"".join(_prefixed(message) if prefixed else message for message in messages)
        parts += [_frame(_DATA, 0, stream, body[start : start + 16_384]) for start in range(0, len(body), 16_384)]
        if end:
            parts.append(_frame(_DATA, _END_STREAM, stream, b""))
        self.sent_bytes += len(body)
        if end and prefixed:
            self._open.add(stream)
        self._send(b"".join(parts))

    def send_raw(self, data: bytes) -> None:
        """Sends bytes as they are, in the middle of the connection."""
        self._send(data)

    def drain(self, timeout_s: float) -> int:
        """Reads until all calls are answered, the connection ends or time is up; returns the unanswered calls."""
        deadline = time.monotonic() + timeout_s
        while self._open and not self.is_broken and (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                break
            if not data:
                self.is_broken = True
            self._received += data
            self._take_frames()
        return len(self._open)

    def close(self) -> None:
        self.socket.close()

    def _take_frames(self) -> None:
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], "big") & 0x7FFFFFFF
            if len(self._received) < 9 + length:
                return
            payload = self._received[9 : 9 + length]
            self._received = self._received[9 + length :]
            if (kind in {_DATA, _HEADERS} and flags & _END_STREAM) or kind == _RST_STREAM:
                self._open.discard(stream)
            elif kind == _GOAWAY:
                self.is_broken = True
            elif kind == _SETTINGS and not flags & _ACK:
                self._send(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._send(_frame(_PING, _ACK, 0, payload))

    def _send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            self.is_broken = True


def bytes_field(number: int, value: bytes) -> bytes:
    """A protobuf field of bytes, a string or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint_field(number: int, value: int) -> bytes:
    """A protobuf field of an int or an enum."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _prefixed(message: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", len(message)) + message


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
