"""``python -m tests.chaos.hostile_clients bombs|silence HOST:PORT``: attacks a broker until it is ended.

    bombs     record batches of zeros, a few kilobytes on the wire and hundreds of megabytes in memory
    silence   calls that are opened and send nothing: thousands on one connection

It needs no secret and no knowledge but the address: anyone who reaches the port can do this. It ignores the
answers; it reconnects as often as it is cut off, and prints a line each time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import socket
import struct
import sys
import time
from typing import Final

import pyarrow as pa
import pyarrow.flight as flight

log = logging.getLogger("hostile_clients")

BOMB_BYTES: Final = 768 << 20
CALLS: Final = 4_000
_PARTITIONS: Final = 6
_METHODS: Final = ("DoPut", "DoExchange", "DoGet", "DoAction")
_PAUSE_S: Final = 0.2
_LIMIT_S: Final = 5.0

# HTTP/2 (RFC 9113, RFC 7541): only the part that opens calls.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _END_HEADERS = 0x1, 0x4, 0x4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    """A literal that is not indexed; both parts are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def opened_call(method: str, stream: int) -> bytes:
    """The bytes that open a Flight call on a connection and send no more. ``stream``: odd, rising."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/arrow.flight.protocol.FlightService/" + method.encode(),
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    block = b"".join(_header(name, value) for name, value in fields.items())
    return _frame(_HEADERS, _END_HEADERS, stream, block)


def open_silent_calls(host: str, port: int, count: int, *, methods: tuple[str, ...] = _METHODS) -> socket.socket:
    """Opens one connection with that many silent calls. The caller closes it. Raises `OSError`."""
    connection = socket.create_connection((host, port), timeout=_LIMIT_S)
    try:
        connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
        for number in range(count):
            connection.sendall(opened_call(methods[number % len(methods)], 2 * number + 1))
    except OSError:
        connection.close()
        raise
    return connection


def throw_bomb(client: flight.FlightClient, descriptor: flight.FlightDescriptor, size_bytes: int) -> None:
    """Sends one compressed batch of that many zeros. Raises the broker's answer."""
    batch = pa.record_batch({"value": pa.array([bytes(size_bytes)], pa.large_binary())})
    options = flight.FlightCallOptions(timeout=60.0, write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, _ = client.do_put(descriptor, batch.schema, options=options)
    with writer:
        writer.write_batch(batch)
        writer.done_writing()


def _bombs(host: str, port: int) -> None:
    """Throws bombs at one partition after the other: a broker refuses those it does not lead before it reads
    anything.
    """
    options = [("grpc.enable_http_proxy", 0)]
    for number in itertools.count():
        at = flight.FlightDescriptor.for_path("chaos", str(number % _PARTITIONS))
        with (
            contextlib.suppress(flight.FlightError, pa.ArrowException, OSError),
            flight.connect(f"grpc://{host}:{port}", generic_options=options) as client,
        ):
            throw_bomb(client, at, BOMB_BYTES)
        print("thrown", flush=True)
        time.sleep(_PAUSE_S)


def _silence(host: str, port: int) -> None:
    while True:
        with contextlib.suppress(OSError), open_silent_calls(host, port, CALLS) as connection:
            print("opened", flush=True)
            connection.settimeout(_LIMIT_S)
            while connection.recv(1 << 16):
                pass
        time.sleep(_PAUSE_S)


_KINDS: Final = {"bombs": _bombs, "silence": _silence}


def main() -> None:
    """Continues until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument("address", help="HOST:PORT of a broker")
    arguments = parser.parse_args()
    host, _, port = arguments.address.rpartition(":")
    _KINDS[arguments.kind](host, int(port))


if __name__ == "__main__":
    sys.exit(main())
