"""The simulated ZooKeeper as coordinators of groups meet it at its worst, besides servers that lag:

- a thread may stand still right before a write, while the rest of its process goes on (`Client.hold`);
- a process that stands still does so in the middle of a call too, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broker_runtime.zookeeper.memory import MemoryClient
from broker_runtime.zookeeper.session import Operation
from tests.simulation.groups.situations import STOOD_STILL
from tests.simulation.simulator.lagging import LaggingClient, LaggingZooKeeper
from tests.simulation.simulator.scheduler import MAX_NESTING, MS

_T = TypeVar("_T")
_LOOK_US = 20 * MS


class Ensemble(LaggingZooKeeper):
    """See the module."""

    def connect(self, actor: str) -> Client:
        client = Client(self, actor)
        self._clients.append(client)
        return client


@dataclass(slots=True)
class Hold:
    """A thread stands still before a write: the next one for which ``picks`` is true. ``began`` is called then, and the
    thread goes on when ``is_over``, or at the limit."""

    picks: Callable[[Sequence[Operation]], bool]
    began: Callable[[Sequence[Operation]], None]
    is_over: Callable[[], bool]
    limit_us: int


class Client(LaggingClient):
    """See the module."""

    def __init__(self, server: Ensemble, actor: str) -> None:
        super().__init__(server, actor)
        self.hold: Hold | None = None

    def transaction(self, operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        hold = self.hold
        if hold is not None and self._scheduler.nesting < MAX_NESTING and hold.picks(operations):
            self.hold = None
            hold.began(operations)
            end_us = self._scheduler.now_us + hold.limit_us
            while self._scheduler.now_us < end_us and not hold.is_over():
                self._scheduler.block(_LOOK_US)
        return super().transaction(operations, session=session)

    def _call(
        self, path: str, apply: Callable[[MemoryClient], _T], *, session: int | None = None, is_write: bool = False
    ) -> _T:
        self._stand_still()
        answer = super()._call(path, apply, session=session, is_write=is_write)
        self._stand_still()
        return answer

    def _stand_still(self) -> None:
        scheduler = self._scheduler
        if scheduler.is_paused(self.actor) and scheduler.nesting < MAX_NESTING:
            self._server.trace.situation(STOOD_STILL)
            while scheduler.is_paused(self.actor):
                scheduler.block(_LOOK_US)
