"""What gRPC holds of messages that are still coming in: found by looking, and bounded by cutting connections.

gRPC gathers a message of any length before anybody sees it, and nothing in Flight limits that. But how many bytes came
on a connection is the kernel's to tell, and how many of them were in messages that were taken from it is ours:

    the process's memory has grown? ─ yes ─▶ each connection: bytes that came, without those that were taken
                                              more than any message of ours has ─▶ cut
                                              the process near its limit: those with the most ─▶ cut

Near: its memory and the untaken bytes of all together, as each message is copied once when its end has come.

Rule: costs one small read every `_STEP_S` while nothing grows. Only connections to this broker's port are cut. Does
nothing where the system does not tell (not Linux).
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker_runtime.contract.settings.table import MAX_MESSAGE_BYTES_LIMIT
from broker_runtime.server import connections
from broker_runtime.server.connections import PeerAddress

MAX_UNTAKEN_BYTES: Final = 2 * MAX_MESSAGE_BYTES_LIMIT
"""The largest frame, with its envelope and what gRPC reads ahead, is well below."""
_STEP_S: Final = 0.05
_URGENT_STEP_S: Final = 0.01
_GROWTH_BYTES: Final = 64 << 20  # less is no reason to look
_QUIET_S: Final = 0.5  # for so long nothing much comes: the growth has another cause
_QUIET_BYTES: Final = 4 << 20  # of one connection
_QUIET_BYTES_OF_ALL: Final = 32 << 20
_UNKNOWN_BYTES_PER_S: Final = 64 << 10  # what else a client sends: acknowledgements of what it reads, refused calls
_PAUSE_S: Final = 1.0  # where memory is short and no connection is the cause
_MARGIN_BYTES: Final = 256 << 20  # what may come between two looks
_LEAST_BYTES: Final = 1 << 20  # who sent less is not the cause
_FREED_WITHIN_S: Final = 0.1  # the memory of a connection that was cut
_STATM: Final = Path("/proc/self/statm")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """A connection at the last look."""

    accounted_bytes: int  # of those received: taken, or not known
    taken_bytes: int


class MemoryWatch:
    """`start` once, `stop` once. `step` is the thread's, or a test's."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        taken_bytes: Callable[[], Mapping[PeerAddress, int]],
        memory_bytes: Callable[[], int | None] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``taken_bytes``: of messages that were taken from each peer, as far as that is known; absent is 0."""
        self._limit_bytes = limit_bytes
        self._taken_bytes = taken_bytes
        self._memory_bytes = memory_bytes or _anonymous_bytes
        self._monotonic_s = monotonic_s
        self._calm_bytes: int | None = None  # the least since the last look at the connections
        self._looked_s = 0.0
        self._cut: list[tuple[float, int]] = []  # when, and how many bytes, of late
        self._may_look_s = 0.0
        self._noise_s = 0.0  # when more than a little was untaken, or nobody looked
        self._is_looking = False
        self._is_urgent = False
        self._seen: dict[PeerAddress, _Seen] = {}
        self._port = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def start(self, port: int) -> None:
        """Begins to look at connections to ``port``."""
        self._port = port
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; waits up to a second for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def step(self) -> int:
        """One look; returns how many connections it cut."""
        memory_bytes, now_s = self._memory_bytes(), self._monotonic_s()
        if memory_bytes is None:
            return 0
        is_tight = memory_bytes > self._limit_bytes - _MARGIN_BYTES and now_s >= self._may_look_s
        self._calm_bytes = memory_bytes if self._calm_bytes is None else min(self._calm_bytes, memory_bytes)
        has_grown = memory_bytes - self._calm_bytes > _GROWTH_BYTES
        self._is_looking = is_tight or has_grown
        if not self._is_looking:
            if now_s >= self._may_look_s:
                self._noise_s = now_s
            return 0
        cut, is_quiet = self._look(memory_bytes, now_s)
        if not is_quiet:
            self._noise_s = now_s
        elif now_s - self._noise_s > _QUIET_S:
            self._calm_bytes = memory_bytes  # the growth is not theirs
            if is_tight:
                self._may_look_s = now_s + _PAUSE_S
                _give_back()
        return cut

    def _look(self, memory_bytes: int, now_s: float) -> tuple[int, bool]:
        """Cuts what is to be cut; how many, and whether little is untaken."""
        found = connections.idle_connections(self._port, 0.0)
        taken = self._taken_bytes()  # read first, bytes of messages taken meanwhile would seem untaken
        untaken = self._untaken(found, taken, now_s)
        self._cut = [(cut_s, size_bytes) for cut_s, size_bytes in self._cut if now_s - cut_s < _FREED_WITHIN_S]
        freed_bytes = sum(size_bytes for _, size_bytes in self._cut)
        all_bytes = sum(size_bytes for size_bytes, _ in untaken)
        excess_bytes = memory_bytes + all_bytes - freed_bytes - (self._limit_bytes - _MARGIN_BYTES)
        cut = 0
        for size_bytes, address in untaken:
            is_near = excess_bytes > 0 and size_bytes > _LEAST_BYTES
            if not is_near and size_bytes <= MAX_UNTAKEN_BYTES:
                break
            log.warning("cut peer=%s:%d untaken_bytes=%d", address.host, address.port, size_bytes)
            connections.cut(found[address])
            self._cut.append((now_s, size_bytes))
            excess_bytes -= 2 * size_bytes
            cut += 1
        for connection in found.values():
            connection.close()
        self._is_urgent = memory_bytes + all_bytes > self._limit_bytes // 2
        return cut, all_bytes < _QUIET_BYTES_OF_ALL and (not untaken or untaken[0][0] < _QUIET_BYTES)

    def _untaken(
        self, found: Mapping[PeerAddress, socket.socket], taken: Mapping[PeerAddress, int], now_s: float
    ) -> list[tuple[int, PeerAddress]]:
        """How many bytes came on each connection in messages that are not taken yet; the most first."""
        untaken: list[tuple[int, PeerAddress]] = []
        seen: dict[PeerAddress, _Seen] = {}
        unknown_bytes = int((now_s - self._looked_s) * _UNKNOWN_BYTES_PER_S)
        self._looked_s = now_s
        for address, connection in found.items():
            received_bytes = connections.bytes_received(connection)
            if received_bytes is None:
                continue
            before, taken_bytes = self._seen.get(address), taken.get(address, 0)
            if before is None:
                # Without a message so far, all that came is one; else where the present one began is not known.
                accounted_bytes = received_bytes if taken_bytes else 0
            else:
                # No message accounts for more than it can have been sent in, or an endless one could hide behind it.
                more_bytes = unknown_bytes + max(0, taken_bytes - before.taken_bytes)
                accounted_bytes = min(received_bytes, before.accounted_bytes + more_bytes)
            seen[address] = _Seen(accounted_bytes, taken_bytes)
            untaken.append((received_bytes - accounted_bytes, address))
        self._seen = seen
        return sorted(untaken, reverse=True)

    def _run(self) -> None:
        while not self._stop.wait(_URGENT_STEP_S if self._is_looking and self._is_urgent else _STEP_S):
            try:
                self.step()
            except OSError as error:  # no descriptor left to look with: there may be one soon
                log.warning("watch error=%s", error)


def _anonymous_bytes() -> int | None:
    """The process's memory without mapped files; None where the system does not tell."""
    try:
        resident, shared = _STATM.read_text().split()[1:3]
    except OSError:
        return None
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _give_back() -> None:
    """Lets the C library return what it keeps for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
