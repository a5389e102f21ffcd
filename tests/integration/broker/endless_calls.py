"""Connections that send endless messages as fast as gRPC takes them, with small actions in between.

By hand, as a client library would hold in its own memory what it sends.
"""

from __future__ import annotations

import struct
import sys
import threading
import time

from broker_runtime.contract.flight import encode_action
from broker_runtime.contract.requests import MetadataRequest
from tests.integration.server.raw_grpc import Connection, bytes_field

_DATA, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 4, 6, 8
_ACK = 0x1
_PAYLOAD_BYTES = 16_384
_FRAMES = 16  # sent at once
_INITIAL_WINDOW_BYTES = 65_535
_SMALL_EVERY_S = 0.05


class EndlessCall(Connection):
    """A connection with one call whose message never ends, within the flow-control windows of the server."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._window_bytes = self._call_window_bytes = self._initial_bytes = _INITIAL_WINDOW_BYTES
        action = encode_action("metadata", MetadataRequest(topics=()))
        self._small = bytes_field(1, action.type.encode()) + bytes_field(2, bytes(action.body))
        self._act()
        self._call = self._next_stream
        self.call("DoAction", [b"\x00\xff\xff\xff\xff"], prefixed=False, end=False)
        frame = _PAYLOAD_BYTES.to_bytes(3, "big") + bytes([_DATA, 0]) + struct.pack(">I", self._call)
        self._frames = (frame + bytes(_PAYLOAD_BYTES)) * _FRAMES
        self._acted_s = time.monotonic()

    def _act(self) -> None:
        self.call("DoAction", [self._small])
        self._window_bytes -= len(self._small) + 5

    def send_some(self) -> int:
        """Sends what the windows allow, or waits until they allow more; returns the number of bytes sent."""
        if time.monotonic() - self._acted_s > _SMALL_EVERY_S and self._window_bytes > len(self._small) + 5:
            self._act()
            self._acted_s = time.monotonic()
        count = min(_FRAMES, min(self._window_bytes, self._call_window_bytes) // _PAYLOAD_BYTES)
        if count > 0:
            size_bytes = count * _PAYLOAD_BYTES
            self._window_bytes -= size_bytes
            self._call_window_bytes -= size_bytes
            self.send_raw(self._frames[: count * (_PAYLOAD_BYTES + 9)])
            return size_bytes
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        self.is_broken = self.is_broken or not data
        self._received += data
        self._read_frames()
        return 0

    def _read_frames(self) -> None:
        while len(self._received) >= 9 + (size := int.from_bytes(self._received[:3], "big")):
            kind, flags = self._received[3], self._received[4]
            call = int.from_bytes(self._received[5:9], "big")
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            if kind == _WINDOW_UPDATE and call == 0:
                self._window_bytes += int.from_bytes(payload, "big")
            elif kind == _WINDOW_UPDATE and call == self._call:
                self._call_window_bytes += int.from_bytes(payload, "big")
            elif kind == _SETTINGS and not flags & _ACK:
                for name, value in struct.iter_unpack(">HI", payload):
                    if name == 4:  # INITIAL_WINDOW_SIZE
                        self._call_window_bytes += value - self._initial_bytes
                        self._initial_bytes = value
                self.send_raw(b"\x00\x00\x00" + bytes([_SETTINGS, _ACK]) + bytes(4))
            elif kind == _PING and not flags & _ACK:
                self.send_raw(b"\x00\x00\x08" + bytes([_PING, _ACK]) + bytes(4) + payload)


def flood(port: int, *, connections: int, total_bytes: int, limit_s: float) -> int:
    """Keeps that many connections open, replacing those that are cut, until the given amount is sent or time is up.
    Returns the number of bytes sent.
    """
    until_s = time.monotonic() + limit_s
    sent = [0] * connections

    def run(number: int) -> None:
        while sum(sent) < total_bytes and time.monotonic() < until_s:
            try:
                connection = EndlessCall(port)
            except OSError:
                time.sleep(0.01)
                continue
            while not connection.is_broken and sum(sent) < total_bytes and time.monotonic() < until_s:
                sent[number] += connection.send_some()
            connection.close()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s + 30)
    return sum(sent)


if __name__ == "__main__":
    print(flood(int(sys.argv[1]), connections=40, total_bytes=int(sys.argv[2]), limit_s=60.0))
