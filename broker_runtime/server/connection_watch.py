"""More connections than can be served: no new one is accepted until few connections without a stream are left.

Each connection is an open file, whatever is sent on it, and a log that cannot open a file goes offline. Nothing in
Flight or gRPC limits connections.

    connections beyond the limit ─▶ the kernel holds up new ones
                                    idle ones (without a stream) are cut, those that have sent least first, until
                                    three quarters of the limit are left

Rule: costs one small read every `_STEP_S` while few files are open. Connections with a stream are never cut. A client
whose idle connection was cut connects again for its next call. Does nothing where the system has no such counters (not
Linux).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from broker_runtime.contract.events import event
from broker_runtime.contract.waiting import Worker
from broker_runtime.server import connections
from broker_runtime.server.connections import PeerAddress

_STEP_S: Final = 0.1
_JOIN_LIMIT_S: Final = 1.0
_WHY_HELD: Final = "connections"

_logger = logging.getLogger(__name__)


class ConnectionWatch:
    """`start` once, `stop` once. `step` is the thread's, or a test's."""

    def __init__(
        self,
        limit: int,
        *,
        streaming: Callable[[], Collection[PeerAddress]],
        open_files: Callable[[int], int | None] = connections.open_file_count,
    ) -> None:
        """``limit``: of connections. ``streaming``: those that have streams; it must not block for long.
        ``open_files``: see `connections.open_file_count`."""
        self._limit = limit
        self._streaming = streaming
        self._open_files = open_files
        self._others = 0  # open files that were no connections, when connections were counted last
        self._is_held = False
        self._ports: connections.Ports = frozenset()
        # Retried: there was no descriptor or memory left to count with, and there may be soon.
        self._worker = Worker("connection-watch", self._watch, retried=(OSError, MemoryError), again_s=_STEP_S)

    def start(self, ports: connections.Ports) -> None:
        """Begins to watch the connections to ``ports``."""
        self._ports = ports
        connections.keep_descriptor()
        self._worker.start()

    def stop(self) -> None:
        """Ends the thread; waits up to a second for it."""
        self._worker.stop()
        self._worker.join(_JOIN_LIMIT_S)

    def step(self) -> int:
        """Counts the connections if they may be too many, and cuts; returns how many it cut."""
        open_files = self._open_files(self._limit)
        if open_files is not None and open_files - self._others <= self._limit and not self._is_held:
            return 0
        found = connections.traffic(self._ports)
        self._others = 0 if open_files is None else max(0, open_files - len(found))
        if len(found) <= self._limit:
            self._hold_new(False)
            return 0
        self._hold_new(True)
        streaming = self._streaming()
        idle = sorted((each.received_bytes, at) for at, each in found.items() if at not in streaming)
        cut = idle[: len(found) - self._limit * 3 // 4]
        for _, address in cut:
            connections.reset_now(found[address].descriptor, self._ports, address)
        if cut:
            hosts = sorted({address.host for _, address in cut})
            event(
                _logger,
                "cut idle connections",
                level=logging.WARNING,
                count=len(cut),
                of=len(found),
                limit=self._limit,
                hosts=",".join(hosts[:10]),
            )
        return len(cut)

    def _hold_new(self, is_held: bool) -> None:
        if is_held != self._is_held:
            connections.hold_new(self._ports, is_held, why=_WHY_HELD)
            self._is_held = is_held

    def _watch(self) -> float:
        self.step()
        return _STEP_S
