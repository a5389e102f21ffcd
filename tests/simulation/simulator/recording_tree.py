"""ZooKeeper's tree, with what it was lately: for reads of a server that lags behind the others."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.session import Operation
from tests.simulation.simulator.scheduler import SECOND

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
