"""Finds the TCP connection of a peer among this process's sockets: to see whether it moves, to bound it, to close it.

Why: nothing in Flight's or gRPC's Python server frees a thread that writes to a stopped process, or waits for one.
Shutting the socket down does (measured: the blocked call fails within a millisecond, read or write). gRPC does not
expose its sockets, so they are found by the peer's address, through duplicates of their descriptors.

Rule: never closes or reads a descriptor that is not its own duplicate (`traffic` only asks the kernel about others,
which does not affect them), and affects only the sockets of given peers.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import resource
import socket
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

_DESCRIPTORS = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
_TCP_INFO_BYTES = 136
# In struct tcp_info (linux/tcp.h):
_LAST_DATA_RECEIVED_AT = 52  # __u32 tcpi_last_data_recv, ms
_BYTES_ACKED_AT = 120  # __u64 tcpi_bytes_acked
# directly behind it: __u64 tcpi_bytes_received


# Python's own calls release the interpreter's lock, and may wait long to get it back when the processors are busy.
_system = ctypes.PyDLL(None) if sys.platform == "linux" else None
_system_that_may_block = ctypes.CDLL(None)
_STATUS = b"/proc/self/status"
_STATUS_BYTES = 4096
_ADDRESS_BYTES = 28  # struct sockaddr_in6, the larger one
_NOWHERE = struct.pack("=H14x", socket.AF_UNSPEC)  # struct sockaddr
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_SO_MEMINFO, _SO_COOKIE = 55, 57
_MEMINFO_BYTES, _REFUSED_AT = 36, 32  # SK_MEMINFO_DROPS, a __u32
_TCP_SAVE_SYN, _TCP_SAVED_SYN = 27, 28
_SYN_BYTES = 256  # IP's header and TCP's
_TCP = 6  # IPPROTO_TCP
_SMALL_BYTES = 1 << 10  # an opening of HTTP/2, a call's headers, an ordinary request
# Of TCP's sequence numbers: those before the base are retransmissions, which go back no further than that.
_HALF_OF_HALF = 1 << 30
BETWEEN_BARRIERS_BYTES = 4 << 20  # a power of two
_BARRIER_BYTES = 64 << 10  # the largest segment: none reaches across

# Classic BPF, which needs no rights: struct sock_filter is (operation, jump if true, jump if false, operand). On a TCP
# socket a program begins at TCP's header. What it refuses counts as lost: the peer sends it again, ever more slowly.
_PAYLOAD_SIZE = (
    (0x30, 0, 0, 12),  # A = the byte with the header's size
    (0x74, 0, 0, 4),  # A >>= 4
    (0x64, 0, 0, 2),  # A <<= 2
    (0x07, 0, 0, 0),  # X = A
    (0x80, 0, 0, 0),  # A = the segment's size
    (0x1C, 0, 0, 0),  # A -= X
)
_REFUSE, _TAKE = (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF_FFFF)


class Filter:
    """A program for a socket, in which segments are taken or refused before they are received."""

    def __init__(self, *instructions: tuple[int, int, int, int]) -> None:
        packed = b"".join(struct.pack("=HBBI", *each) for each in instructions)
        self._program = ctypes.create_string_buffer(packed)  # struct sock_filter[]
        self.packed = struct.pack("@HP", len(instructions), ctypes.addressof(self._program))  # struct sock_fprog


def _takes_to_barrier(begins_at: int, *, small_only: bool = False) -> Filter:
    """Refuses the segments that begin in a barrier: the last 64 KiB before sequence numbers that are ``begins_at``
    modulo `BETWEEN_BARRIERS_BYTES`. Segments without payload are always taken."""
    rest = (
        (0x20, 0, 0, 4),  # A = its sequence number
        (0x14, 0, 0, begins_at),
        (0x54, 0, 0, BETWEEN_BARRIERS_BYTES - 1),  # A &=
        (0x35, 1, 0, BETWEEN_BARRIERS_BYTES - _BARRIER_BYTES),
        _TAKE,
        _REFUSE,
    )
    larger = ((0x25, len(rest) - 1, 0, _SMALL_BYTES),) if small_only else ()
    return Filter(*_PAYLOAD_SIZE, (0x15, len(larger) + len(rest) - 2, 0, 0), *larger, *rest)


TAKES_NOTHING = Filter(_REFUSE)
TAKES_TO_BARRIER = tuple(_takes_to_barrier(BETWEEN_BARRIERS_BYTES * number // 16) for number in range(16))
"""Filters for connections whose first sequence number is not known, such as one that the kernel has just made: it
receives 2 MiB on average and never more than 4, wherever it began; one in 64 has to send its first bytes again. Where
one filter stops it the others do not, so that a change to any of them lets it go on."""
TAKES_SMALL = _takes_to_barrier(0, small_only=True)
"""As the first of `TAKES_TO_BARRIER`, in segments of up to 1 KiB: enough to connect and to ask for something."""


def takes_until(first_sequence: int, received_bytes: int, credit_bytes: int) -> Filter:
    """Takes ``credit_bytes`` (below 1 GiB) more on a connection that has received ``received_bytes``, and the rest of
    the segment in which they end: 64 KiB at most. Segments without payload are always taken: acknowledgements, the end
    of the connection."""
    base = (first_sequence + received_bytes - _HALF_OF_HALF) % (1 << 32)
    return Filter(
        *_PAYLOAD_SIZE,
        (0x15, 3, 0, 0),  # no payload: take it
        (0x20, 0, 0, 4),  # A = its sequence number
        (0x14, 0, 0, base),
        (0x35, 1, 0, _HALF_OF_HALF + credit_bytes),
        _TAKE,
        _REFUSE,
    )


_filtering_new = threading.Lock()
_held: set[tuple[int, str]] = set()  # ports, and why, as `hold_new` says
_bounded: set[int] = set()  # ports, as `bound_new` says
_confined: set[int] = set()  # ports, as `confine_new` says
_keeping = threading.Lock()
_kept: list[int] = []  # two descriptors, as `keep_descriptor` says


class PeerAddress(NamedTuple):
    """A peer's end of a TCP connection."""

    host: str
    port: int


Ports = frozenset[int]
"""Those of this process's listeners that are meant."""


class Traffic(NamedTuple):
    """A connection at one moment. ``descriptor`` belongs to gRPC, and may soon be another connection's."""

    descriptor: int
    received_bytes: int  # from the peer
    acknowledged_bytes: int  # by the peer, of those sent to it
    cookie: int = 0  # the kernel's, of this connection alone


def allow_open_files(wanted: int) -> int:
    """Raises this process's limit of open files to ``wanted`` where it is lower and the system allows it; returns it.

    A stream is a socket, and the usual soft limit of 1,024 is below ``max.connections`` and the log's files together.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # the real limit of macOS is below the one it reports
        return soft
    return wanted


def open_file_count(few: int) -> int | None:
    """How many files this process has open; 0 where there are at most ``few``, which is cheaper to find out, or where
    the system does not say (not Linux). None: there is no descriptor left to count with."""
    if _system is None or _descriptor_limit() <= few:
        return 0
    try:
        return sum(1 for _ in _DESCRIPTORS.iterdir())
    except OSError:
        return None


def keep_descriptor() -> None:
    """Keeps a descriptor with which `reset`, `reset_now` and `set_filter` work when no other is left (and one more, to
    set it free again): for the whole process."""
    with _keeping:
        while len(_kept) < 2:
            _kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


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


def idle_connections(ports: Ports, idle_s: float) -> dict[PeerAddress, socket.socket]:
    """Connections that peers made to ``ports`` and on which they have sent nothing for ``idle_s``. Close them.

    Empty where the system does not say (not Linux).
    """
    found: dict[PeerAddress, socket.socket] = {}
    for descriptor in _open_descriptors() if hasattr(socket, "TCP_INFO") else ():
        duplicate = _duplicate(descriptor)
        if duplicate is None:
            continue
        address = _peer_of(duplicate)
        # One of the numbers listed was that of the listing itself; a duplicate of this loop may have it by now.
        if address is not None and address not in found and duplicate.getsockname()[1] in ports:
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
    """How many bytes the peer's kernel has taken so far; None where the system does not say (not Linux)."""
    info = _tcp_info(connection)
    if info is None:
        return None
    acknowledged: int = struct.unpack_from("=Q", info, _BYTES_ACKED_AT)[0]
    return acknowledged


def traffic(ports: Ports, *, ends_twins: bool = False) -> dict[PeerAddress, Traffic]:
    """What was received and sent on each connection that a peer made to ``ports``. Empty where the system does not
    say (not Linux).

    A peer may connect to two of this machine's addresses from one port of its own. Calls are known by the peer's end
    alone, so such twins cannot be told apart: one is left out, and ended where ``ends_twins``.

    Needs no descriptor and does not release the interpreter's lock: 2 µs for each open file, 10 µs for each connection.
    """
    found: dict[PeerAddress, Traffic] = {}
    if _system is None:
        return found
    info, info_size = ctypes.create_string_buffer(_TCP_INFO_BYTES), ctypes.c_uint32()
    get, size = _system.getsockopt, ctypes.byref(info_size)
    cookie = ctypes.c_uint64()
    for descriptor in range(_descriptor_limit()):
        info_size.value = _TCP_INFO_BYTES
        if get(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, info, size) or info_size.value != _TCP_INFO_BYTES:
            continue
        address = _peer_at(descriptor, ports)
        if address is not None:
            info_size.value, cookie.value = 8, 0
            get(descriptor, socket.SOL_SOCKET, _SO_COOKIE, ctypes.byref(cookie), size)
            if address in found:
                if ends_twins and found[address].cookie != cookie.value:  # else a duplicate
                    reset_now(descriptor, ports, address)
                continue
            acknowledged_bytes, received_bytes = struct.unpack_from("=QQ", info, _BYTES_ACKED_AT)
            found[address] = Traffic(descriptor, received_bytes, acknowledged_bytes, cookie.value)
    return found


def refused_count(descriptor: int) -> int:
    """How many segments were refused on the connection that `traffic` found, by its filter or otherwise."""
    if _system is None:
        return 0
    text, size = ctypes.create_string_buffer(_MEMINFO_BYTES), ctypes.c_uint32(_MEMINFO_BYTES)
    _system.getsockopt(descriptor, socket.SOL_SOCKET, _SO_MEMINFO, text, ctypes.byref(size))
    return int(struct.unpack_from("=I", text, _REFUSED_AT)[0])


def reset(descriptor: int, ports: Ports, address: PeerAddress) -> bool:
    """Ends the connection that `traffic` found, for both sides, at once, and drops what the kernel has received on it
    and nobody has read: after `cut` that would still be read, up to tens of megabytes. False: it no longer exists.

    Blocks while a thread reads from it.
    """
    return _system is not None and _reset(_system_that_may_block, descriptor, ports, address)


def reset_now(descriptor: int, ports: Ports, address: PeerAddress) -> bool:
    """As `reset`, without releasing the interpreter's lock: for connections from which only little is read at a time,
    and where thousands of threads wait for that lock."""
    return _system is not None and _reset(_system, descriptor, ports, address)


def _reset(system: ctypes.CDLL, descriptor: int, ports: Ports, address: PeerAddress) -> bool:
    assert _system is not None
    own = _system.dup(descriptor)
    if own < 0:
        return _with_kept(descriptor, ports, address, lambda kept: _system.connect(kept, _NOWHERE, len(_NOWHERE)) == 0)
    is_there = _peer_at(own, ports) == address
    if is_there:
        # As connect(2) says: with AF_UNSPEC a connection is dissolved.
        system.connect(own, _NOWHERE, len(_NOWHERE))
    system.close(own)
    return is_there


def _with_kept(descriptor: int, ports: Ports, address: PeerAddress, do: Callable[[int], bool]) -> bool:
    """Does that with the descriptor that is kept, made a duplicate of this one. False: the connection does not exist,
    none is kept, or it failed."""
    assert _system is not None
    with _keeping:
        if not _kept or _system.dup2(descriptor, _kept[0]) < 0:
            return False
        is_done = _peer_at(_kept[0], ports) == address and do(_kept[0])
        _system.dup2(_kept[1], _kept[0])  # the connection must not last as long as this
        return is_done


def hold_new(ports: Ports, is_held: bool, *, why: str) -> None:
    """While held, no connection to ``ports`` is accepted: the kernel drops the packets that would open one, and
    peers try again after a second, then after two more, and so on. Held for as long as there is any reason (``why``).
    Does nothing where the system cannot (not Linux)."""
    with _filtering_new:
        for port in ports:
            (_held.add if is_held else _held.discard)((port, why))
            _filter_new(port)


def bound_new(ports: Ports, is_bounded: bool) -> None:
    """While bounded, connections to ``ports`` begin with the first of `TAKES_TO_BARRIER`, and keep it until they
    get another filter; and the kernel keeps the packet that begins each, for `first_sequence`. Does nothing where the
    system cannot (not Linux)."""
    with _filtering_new:
        for port in ports:
            (_bounded.add if is_bounded else _bounded.discard)(port)
            _filter_new(port)
        for descriptor in _listening_at(ports):
            assert _system is not None
            value = ctypes.byref(ctypes.c_uint32(is_bounded))
            _system.setsockopt(descriptor, socket.IPPROTO_TCP, _TCP_SAVE_SYN, value, 4)


def confine_new(ports: Ports, is_confined: bool) -> None:
    """While confined, connections to ``ports`` begin with `TAKES_SMALL`, and keep it until they get another
    filter. Does nothing where the system cannot (not Linux)."""
    with _filtering_new:
        for port in ports:
            (_confined.add if is_confined else _confined.discard)(port)
            _filter_new(port)


def first_sequence(descriptor: int, address: PeerAddress) -> int | None:
    """The sequence number of the first byte on the connection that `traffic` found. The kernel gives it once; None: it
    was given, or it is not known (the kernel does not save it while it is flooded with connections)."""
    if _system is None:
        return None
    packet, size = ctypes.create_string_buffer(_SYN_BYTES), ctypes.c_uint32(_SYN_BYTES)
    # Another connection may have the descriptor by now: what is read of that one is lost, and it is not known then.
    if _port_at(descriptor, of_peer=True) != address.port:
        return None
    if _system.getsockopt(descriptor, socket.IPPROTO_TCP, _TCP_SAVED_SYN, packet, ctypes.byref(size)):
        return None
    ip = packet.raw[: size.value]
    if len(ip) < 40:
        return None
    if ip[0] >> 4 == 4:
        header_bytes = (ip[0] & 0xF) * 4
    elif ip[6] == _TCP:  # IPv6, and nothing between the headers
        header_bytes = 40
    else:
        return None
    if len(ip) < header_bytes + 8:
        return None
    peer_port, syn = struct.unpack_from("!HxxI", ip, header_bytes)
    # Another connection may have the descriptor by now.
    return (int(syn) + 1) % (1 << 32) if peer_port == address.port else None


def set_filter(descriptor: int, ports: Ports, address: PeerAddress, wanted: Filter | None) -> bool:
    """Gives the connection that `traffic` found this filter, or none. False: it no longer exists, or the system
    refused it.

    Does not release the interpreter's lock, and blocks while a thread reads from the connection.
    """
    if _system is None:
        return False
    own = _system.dup(descriptor)
    if own < 0:
        return _with_kept(descriptor, ports, address, lambda kept: _attach(kept, wanted))
    is_set = _peer_at(own, ports) == address and _attach(own, wanted)
    _system.close(own)
    return is_set


def _attach(descriptor: int, wanted: Filter | None) -> bool:
    assert _system is not None
    option = _SO_DETACH_FILTER if wanted is None else _SO_ATTACH_FILTER
    packed = TAKES_NOTHING.packed if wanted is None else wanted.packed
    failed: int = _system.setsockopt(descriptor, socket.SOL_SOCKET, option, packed, len(packed))
    return wanted is None or not failed


def _filter_new(port: int) -> None:
    is_held = any(held == port for held, _ in _held)
    bounded = TAKES_TO_BARRIER[0] if port in _bounded else None
    new = TAKES_SMALL if port in _confined else bounded
    for descriptor in _listening_at(frozenset({port})):
        _attach(descriptor, TAKES_NOTHING if is_held else new)


def _listening_at(ports: Ports) -> Iterator[int]:
    """The descriptors of sockets that listen on ``ports``."""
    if _system is None:
        return
    listens, size = ctypes.c_uint32(), ctypes.c_uint32()
    for descriptor in range(_descriptor_limit()):
        size.value, listens.value = 4, 0
        argument = (socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(listens), ctypes.byref(size))
        if not _system.getsockopt(descriptor, *argument) and listens.value and _port_at(descriptor) in ports:
            yield descriptor


def _descriptor_limit() -> int:
    """A number above all open descriptors."""
    assert _system is not None
    status = _system.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
    if status < 0:  # no descriptor is left
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    text = ctypes.create_string_buffer(_STATUS_BYTES)
    _system.read(status, text, _STATUS_BYTES - 1)
    _system.close(status)
    return int(text.value[text.value.index(b"FDSize:") + 7 :].split(None, 1)[0])


def _peer_at(descriptor: int, ports: Ports) -> PeerAddress | None:
    """The peer of a connection to ``ports``; None if it is none."""
    assert _system is not None
    if _port_at(descriptor) not in ports:
        return None
    name, name_size = ctypes.create_string_buffer(_ADDRESS_BYTES), ctypes.c_uint32(_ADDRESS_BYTES)
    if _system.getpeername(descriptor, name, ctypes.byref(name_size)):
        return None  # listening, or ended
    (family,), (port,) = struct.unpack_from("=H", name), struct.unpack_from("!H", name, 2)
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    packed = name.raw[4:8] if family == socket.AF_INET else name.raw[8:24]
    return PeerAddress(_host_of(packed), port)


def _port_at(descriptor: int, *, of_peer: bool = False) -> int | None:
    """The port of this end, or of the peer's; None if it is no socket, or has no peer."""
    assert _system is not None
    name, name_size = ctypes.create_string_buffer(_ADDRESS_BYTES), ctypes.c_uint32(_ADDRESS_BYTES)
    if (_system.getpeername if of_peer else _system.getsockname)(descriptor, name, ctypes.byref(name_size)):
        return None
    port: int = struct.unpack_from("!H", name, 2)[0]
    return port


@lru_cache(1024)
def _host_of(packed: bytes) -> str:
    return _plain_host(str(ipaddress.ip_address(packed)))


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
