"""The simulated ZooKeeper as coordinators of groups meet it at its worst, on top of `zookeeper`:

- a client is connected to one server, which may lag: its reads show the tree as it was a while ago, never older than
  what the client has read before or than its own last write (so a write of checks alone brings it up to date);
- a thread may stand still right before a write, while the rest of its process goes on (`Client.hold`);
- a process that stands still does so in the middle of a call too, and goes on from there.

Rule: reads that set a watch are not old here; nobody who coordinates groups sets one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broker_runtime.zookeeper.memory import MemoryClient
from broker_runtime.zookeeper.session import BadVersionError, Operation, SessionState, Watch, ZNode
from tests.simulation.groups import situations
from tests.simulation.simulator.recording_tree import RecordingTree
from tests.simulation.simulator.scheduler import MAX_NESTING, MS, Scheduler
from tests.simulation.simulator.trace import Trace
from tests.simulation.simulator.zookeeper import SimClient, SimZooKeeper, ZooKeeperWeather

_T = TypeVar("_T")
_LOOK_US = 20 * MS


class Ensemble(SimZooKeeper):
    """See the module."""

    def __init__(self, scheduler: Scheduler, trace: Trace, weather: ZooKeeperWeather) -> None:
        super().__init__(scheduler, trace, weather)
        self.tree: RecordingTree = RecordingTree(lambda: scheduler.now_us)
        self._reader = self.tree.client()

    def connect(self, actor: str) -> Client:
        client = Client(self, actor)
        self._clients.append(client)
        return client


@dataclass(slots=True)
class Hold:
    """A thread stands still before a write: the next one that ``picks`` says, once ``began`` was told of it, and until
    ``is_over`` or the limit."""

    picks: Callable[[Sequence[Operation]], bool]
    began: Callable[[Sequence[Operation]], None]
    is_over: Callable[[], bool]
    limit_us: int


class Client(SimClient):
    """A `SimClient` of one server of the ensemble."""

    def __init__(self, server: Ensemble, actor: str) -> None:
        super().__init__(server, actor)
        self.hold: Hold | None = None
        self._ensemble = server
        self._floor = server.tree.newest
        self._lag_us = 0
        self._lags_until_us = 0
        self._session_seen = 0
        self.listen(self._on_session)

    def lag(self, lag_us: int, duration_us: int) -> None:
        """For so long the client's server shows what was ``lag_us`` ago."""
        self._lag_us, self._lags_until_us = lag_us, self._scheduler.now_us + duration_us

    def stop_lagging(self) -> None:
        """The server is up to date again."""
        self._lags_until_us = 0

    # --- ZooKeeperClient ------------------------------------------------------------------------------------------

    def get(self, path: str, *, watch: Watch | None = None) -> ZNode:
        if watch is not None:
            return super().get(path, watch=watch)
        return self._call(path, lambda raw: self._seen(raw).get(path))

    def find(self, path: str) -> ZNode | None:
        return self._call(path, lambda raw: self._seen(raw).find(path))

    def find_all(self, paths: Sequence[str], *, are_small: bool = False) -> list[ZNode | None]:
        return self._call(paths[0], lambda raw: self._seen(raw).find_all(paths)) if paths else []

    def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        if watch is not None:
            return super().children(path, watch=watch)
        return self._call(path, lambda raw: self._seen(raw).children(path))

    def transaction(self, operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        hold = self.hold
        if hold is not None and self._scheduler.nesting < MAX_NESTING and hold.picks(operations):
            self.hold = None
            hold.began(operations)
            end_us = self._scheduler.now_us + hold.limit_us
            while self._scheduler.now_us < end_us and not hold.is_over():
                self._scheduler.block(_LOOK_US, whole_actor=False)
        try:
            return super().transaction(operations, session=session)
        except BadVersionError as refusal:
            if situations.is_commit(operations) and refusal.path.endswith(situations.CLAIM):
                self._ensemble.trace.counts[situations.CLAIM_LOST_ON_THE_WAY] += 1
            raise

    # --- within ---------------------------------------------------------------------------------------------------

    def _call(
        self, path: str, apply: Callable[[MemoryClient], _T], *, session: int | None = None, is_write: bool = False
    ) -> _T:
        def applied(raw: MemoryClient) -> _T:
            try:
                return apply(raw)
            finally:
                if is_write:  # also one that was refused: its server knows why
                    self._floor = self._ensemble.tree.newest

        self._stand_still()
        answer = super()._call(path, applied, session=session, is_write=is_write)
        self._stand_still()
        return answer

    def _stand_still(self) -> None:
        scheduler = self._scheduler
        if scheduler.is_paused(self.actor) and scheduler.nesting < MAX_NESTING:
            self._ensemble.trace.counts[situations.STOOD_STILL] += 1
            while scheduler.is_paused(self.actor):
                scheduler.block(_LOOK_US, whole_actor=False)

    def _seen(self, raw: MemoryClient) -> MemoryClient:
        """What reads go to."""
        tree, now_us = self._ensemble.tree, self._scheduler.now_us
        if now_us >= self._lags_until_us:
            self._floor = tree.newest
            return raw
        self._floor = max(self._floor, tree.number_at(now_us - self._lag_us))
        if self._floor < tree.newest:
            self._ensemble.trace.counts[situations.READ_BEHIND] += 1
        return tree.as_it_was(self._floor).client()

    def _on_session(self, news: SessionState) -> None:
        if news is SessionState.CONNECTED and self._session_seen != self.session_id:
            self._session_seen = self.session_id  # a session is made by a write
            self._floor = self._ensemble.tree.newest
