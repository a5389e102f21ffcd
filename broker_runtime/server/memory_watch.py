"""What gRPC holds of messages that are still coming in: found by looking, and bounded by cutting connections.

gRPC gathers a message of any length before anybody sees it, and nothing in Flight limits that. But how many bytes came
on a connection is the kernel's to tell, and how many messages were taken from it is ours:

    the process's memory has grown? ─ yes ─▶ each connection: bytes since its last message was taken
                                              more than any message of ours has ─▶ cut
                                              the process near its limit: the one with the most ─▶ cut

Rule: costs one small read every `_STEP_S` while nothing grows. Only connections to this broker's port are cut. Does
nothing where the system does not tell (not Linux).
"""

from __future__ import annotations

import ctypes
import logging
import os
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
_GROWTH_BYTES: Final = 64 << 20  # less is no reason to look
_FORGET_S: Final = 1.0
_PAUSE_S: Final = 1.0  # where memory is short and no connection is the cause
_MARGIN_BYTES: Final = 256 << 20  # what may come between two looks
_LEAST_BYTES: Final = 4 << 20  # who sent less is not the cause
_STATM: Final = Path("/proc/self/statm")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """A connection at an earlier look: bytes received in all, when ``taken`` messages had been taken from it."""

    received_bytes: int
    taken: int


class MemoryWatch:
    """`start` once, `stop` once. `step` is the thread's, or a test's."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        taken: Callable[[], Mapping[PeerAddress, int]],
        memory_bytes: Callable[[], int | None] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``taken``: how many messages were taken from each peer, as far as that is known; absent is 0."""
        self._limit_bytes = limit_bytes
        self._taken = taken
        self._memory_bytes = memory_bytes or _anonymous_bytes
        self._monotonic_s = monotonic_s
        self._calm_bytes: int | None = None  # the least since the last look at the connections
        self._looked_s = 0.0
        self._may_look_s = 0.0
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
        if not (is_tight or has_grown):
            if now_s - self._looked_s > _FORGET_S:
                self._seen = {}
            return 0
        if now_s - self._looked_s > _FORGET_S:
            self._seen = {}  # what came long ago says nothing of now
        self._looked_s = now_s
        cut, largest_bytes = self._look(is_tight=is_tight)
        if largest_bytes < _LEAST_BYTES:
            self._calm_bytes = memory_bytes  # the growth is not theirs
            if is_tight:
                self._may_look_s = now_s + _PAUSE_S
                _give_back()
        return cut

    def _look(self, *, is_tight: bool) -> tuple[int, int]:
        """Cuts what is to be cut; how many, and the most bytes that any had sent."""
        taken = self._taken()
        found = connections.idle_connections(self._port, 0.0)
        untaken: list[tuple[int, PeerAddress]] = []
        seen: dict[PeerAddress, _Seen] = {}
        for address, connection in found.items():
            received_bytes = connections.bytes_received(connection)
            if received_bytes is None:
                continue
            before, count = self._seen.get(address), taken.get(address, 0)
            if before is None or before.taken != count:
                # Without a message so far, all that came is one; else where the present one began is not known.
                before = _Seen(received_bytes if count else 0, count)
            seen[address] = before
            untaken.append((received_bytes - before.received_bytes, address))
        self._seen = seen
        untaken.sort(reverse=True)
        cut = [(size_bytes, address) for size_bytes, address in untaken if size_bytes > MAX_UNTAKEN_BYTES]
        if is_tight and not cut and untaken and untaken[0][0] > _LEAST_BYTES:
            cut = untaken[:1]
        for size_bytes, address in cut:
            log.warning("cut peer=%s:%d untaken_bytes=%d", address.host, address.port, size_bytes)
            connections.cut(found[address])
        for connection in found.values():
            connection.close()
        return len(cut), untaken[0][0] if untaken else 0

    def _run(self) -> None:
        while not self._stop.wait(_STEP_S):
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
