"""The simulated ZooKeeper with servers that lag: a client's reads show what the tree was a while ago.

As ZooKeeper promises: never older than what the client has read before, than its own last write (so a write of checks
alone brings it up to date), or than the change that a watch fired for. The watches of such a server are late, too.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TypeVar

from broker_runtime.zookeeper.memory import MemoryClient, MemoryZooKeeper
from broker_runtime.zookeeper.session import NoNodeError, Operation, SessionState, Watch, ZNode
from tests.simulation.simulator.scheduler import SECOND, Scheduler
from tests.simulation.simulator.trace import Trace
from tests.simulation.simulator.zookeeper import SimClient, SimZooKeeper, ZooKeeperWeather

_T = TypeVar("_T")
_REMEMBERED_US = 10 * SECOND
_PRUNED_EVERY = 500


class RecordingTree(MemoryZooKeeper):
    """The tree, with what it was lately. ``versions`` and ``times_us`` go together; the last one is the present."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        super().__init__()
        self._now_us = now_us
        self.times_us = [0]
        self.versions = [self._tree.nodes]
        self.forgotten = 0  # versions that are not kept any more: the number of the first that is

    @property
    def newest(self) -> int:
        """The number of the present version."""
        return self.forgotten + len(self.versions) - 1

    def number_at(self, time_us: int) -> int:
        """The number of the version that was there then."""
        return self.forgotten + max(0, bisect.bisect_right(self.times_us, time_us) - 1)

    def as_it_was(self, number: int) -> MemoryZooKeeper:
        """A tree to be read only."""
        then = MemoryZooKeeper()
        then._tree.nodes = self.versions[max(0, number - self.forgotten)]
        return then

    def _apply(self, operations: Sequence[Operation], session: int) -> list[int]:
        results = super()._apply(operations, session)
        self.times_us.append(self._now_us())
        self.versions.append(self._tree.nodes)
        if len(self.versions) >= 2 * _PRUNED_EVERY:
            old = min(_PRUNED_EVERY, bisect.bisect_left(self.times_us, self._now_us() - _REMEMBERED_US))
            del self.times_us[:old], self.versions[:old]
            self.forgotten += old
        return results


class LaggingZooKeeper(SimZooKeeper):
    """See the module. ``on_stale_read`` is called whenever a client is shown what is no longer so."""

    tree: RecordingTree

    def __init__(self, scheduler: Scheduler, trace: Trace, weather: ZooKeeperWeather) -> None:
        super().__init__(scheduler, trace, weather)
        self.tree = RecordingTree(lambda: scheduler.now_us)
        self.on_stale_read: Callable[[], None] = lambda: None
        self._reader = self.tree.client()

    def connect(self, actor: str) -> LaggingClient:
        client = LaggingClient(self, actor)
        self._clients.append(client)
        return client

    def lag(self, actor: str, lag_us: int, duration_us: int) -> None:
        """For so long the actor's server shows what was ``lag_us`` ago."""
        for client in self._of(actor):
            assert isinstance(client, LaggingClient)
            client.lag_us, client.lags_until_us = lag_us, self.scheduler.now_us + duration_us

    def heal(self, actor: str) -> None:
        super().heal(actor)
        self.lag(actor, 0, 0)


class LaggingClient(SimClient):
    """A `SimClient` of one server of the ensemble."""

    def __init__(self, server: LaggingZooKeeper, actor: str) -> None:
        super().__init__(server, actor)
        self.lag_us = 0
        self.lags_until_us = 0
        self._ensemble = server
        self._floor = server.tree.newest  # the number of the version that it has seen: it is shown none before
        self._session_seen = self.session_id
        self.listen(self._on_session)

    # --- ZooKeeperClient ------------------------------------------------------------------------------------------

    def get(self, path: str, *, watch: Watch | None = None) -> ZNode:
        if watch is None:
            return self._call(path, lambda raw: self._seen(raw).get(path))
        return self._read_watched("data", path, watch, MemoryClient.get)

    def find(self, path: str) -> ZNode | None:
        return self._call(path, lambda raw: self._seen(raw).find(path))

    def find_all(self, paths: Sequence[str], *, are_small: bool = False) -> list[ZNode | None]:
        return self._call(paths[0], lambda raw: self._seen(raw).find_all(paths)) if paths else []

    def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        if watch is None:
            return self._call(path, lambda raw: self._seen(raw).children(path))
        return self._read_watched("children", path, watch, MemoryClient.children)

    # --- within ---------------------------------------------------------------------------------------------------

    def _read_watched(self, kind: str, path: str, watch: Watch, read: Callable[..., _T]) -> _T:
        def seen(raw: MemoryClient) -> _T:
            then = self._seen(raw)
            if then is raw:
                return self._watched(kind, path, watch, lambda fired: read(raw, path, watch=fired))
            answer = read(then, path)
            try:
                has_changed = self._watched(kind, path, watch, lambda fired: read(raw, path, watch=fired)) != answer
            except NoNodeError:
                has_changed = True
            if has_changed:  # since what was read: its server will fire the watch
                self._deliver_later(watch, path)
            return answer

        return self._call(path, seen)

    def _call(
        self, path: str, apply: Callable[[MemoryClient], _T], *, session: int | None = None, is_write: bool = False
    ) -> _T:
        def applied(raw: MemoryClient) -> _T:
            try:
                return apply(raw)
            finally:
                if is_write:  # also one that was refused: its server knows why
                    self._floor = self._ensemble.tree.newest

        return super()._call(path, applied, session=session, is_write=is_write)

    def _seen(self, raw: MemoryClient) -> MemoryClient:
        """What reads go to."""
        tree, now_us = self._ensemble.tree, self._scheduler.now_us
        if now_us >= self.lags_until_us:
            self._floor = tree.newest
            return raw
        self._floor = max(self._floor, tree.number_at(now_us - self.lag_us))
        if self._floor == tree.newest:
            return raw
        self._ensemble.on_stale_read()
        return tree.as_it_was(self._floor).client()

    def _deliver_later(self, watch: Watch, path: str) -> None:
        if self._scheduler.now_us >= self.lags_until_us:
            super()._deliver_later(watch, path)
        else:
            later = super()._deliver_later
            self._after(self.lag_us, lambda: later(watch, path))

    def _deliver(self, watch: Watch, path: str) -> None:
        self._floor = self._ensemble.tree.newest
        super()._deliver(watch, path)

    def _on_session(self, news: SessionState) -> None:
        if news is SessionState.CONNECTED and self._session_seen != self.session_id:
            self._session_seen = self.session_id  # a session is made by a write
            self._floor = self._ensemble.tree.newest
