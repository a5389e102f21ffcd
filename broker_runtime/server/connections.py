"""Finds the TCP connection of a peer among this process's sockets: to see whether it moves, and to close it.

Why: nothing in Flight's or gRPC's Python server frees a thread that writes to a stopped process, or waits for one.
Shutting the socket down does (measured: the blocked call fails within a millisecond, read or write). gRPC does not
hand its sockets out, so they are found by the peer's address, through duplicates of their descriptors.

Rule: never closes or reads a descriptor that is not its own duplicate; touches sockets of given peers only.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

_DESCRIPTORS = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
_TCP_INFO_BYTES = 136
# In struct tcp_info (linux/tcp.h):
_LAST_DATA_RECEIVED_AT = 52  # __u32 tcpi_last_data_recv, ms
_BYTES_ACKED_AT = 120  # __u64 tcpi_bytes_acked
_BYTES_RECEIVED_AT = 128  # __u64 tcpi_bytes_received


class PeerAddress(NamedTuple):
    """A peer's end of a TCP connection."""

    host: str
    port: int


def allow_open_files(wanted: int) -> int:
    """Raises this process's limit of open files to ``wanted`` where it is lower and the system lets us; returns it.

    A stream is a socket, and the usual soft limit of 1,024 is below ``max.connections`` and the log's files together.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a limit below the one it tells
        return soft
    return wanted


def parse_peer(peer: str) -> PeerAddress | None:
    """gRPC's name of a peer, ``ipv4:1.2.3.4:567`` or ``ipv6:%5B::1%5D:567``; None where it is not a TCP peer."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in {"ipv4", "ipv6"} or not port.isdecimal():
        return None
    return PeerAddress(_plain_host(host.strip("[]")), int(port))


def connections_to(peers: Collection[PeerAddress]) -> dict[PeerAddress, socket.socket]:
    """This process's established connections to ``peers``, as sockets on duplicated descriptors. Close them."""
    found: dict[PeerAddress, socket.socket] = {}
    for descriptor in _open_descriptors():
        duplicate = _duplicate(descriptor)
        if duplicate is None:
            continue
        address = _peer_of(duplicate)
        if address in peers and address is not None and address not in found:
            found[address] = duplicate
        else:
            duplicate.close()
    return found


def idle_connections(local_port: int, idle_s: float) -> dict[PeerAddress, socket.socket]:
    """Connections that peers made to ``local_port`` and have sent nothing on for ``idle_s``. Close them.

    Empty where the system does not tell (not Linux).
    """
    found: dict[PeerAddress, socket.socket] = {}
    for descriptor in _open_descriptors() if hasattr(socket, "TCP_INFO") else ():
        duplicate = _duplicate(descriptor)
        if duplicate is None:
            continue
        address = _peer_of(duplicate)
        # One of the numbers listed was the list's own; a duplicate made here may have it by now.
        if address is not None and address not in found and duplicate.getsockname()[1] == local_port:
            info = _tcp_info(duplicate)
            if info is not None and struct.unpack_from("=I", info, _LAST_DATA_RECEIVED_AT)[0] >= idle_s * 1000:
                found[address] = duplicate
                continue
        duplicate.close()
    return found


def cut(connection: socket.socket) -> None:
    """Ends the connection for both sides, at once, whatever is still to be sent."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it ended by itself
        return


def bytes_acknowledged(connection: socket.socket) -> int | None:
    """How many bytes the peer's kernel has taken so far; None where the system does not tell (not Linux)."""
    info = _tcp_info(connection)
    if info is None:
        return None
    acknowledged: int = struct.unpack_from("=Q", info, _BYTES_ACKED_AT)[0]
    return acknowledged


def bytes_received(connection: socket.socket) -> int | None:
    """How many bytes have come from the peer so far; None where the system does not tell (not Linux)."""
    info = _tcp_info(connection)
    if info is None:
        return None
    received: int = struct.unpack_from("=Q", info, _BYTES_RECEIVED_AT)[0]
    return received


def _tcp_info(connection: socket.socket) -> bytes | None:
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    return info if len(info) == _TCP_INFO_BYTES else None


def _open_descriptors() -> list[int]:
    return [int(entry.name) for entry in _DESCRIPTORS.iterdir() if entry.name.isdecimal()]


def _duplicate(descriptor: int) -> socket.socket | None:
    try:
        own = os.dup(descriptor)
    except OSError:  # closed meanwhile
        return None
    try:
        return socket.socket(fileno=own)
    except OSError:  # not a socket
        os.close(own)
        return None


def _peer_of(connection: socket.socket) -> PeerAddress | None:
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    try:
        host, port = connection.getpeername()[:2]
    except OSError:  # listening, or ended
        return None
    return PeerAddress(_plain_host(host), port)


def _plain_host(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
