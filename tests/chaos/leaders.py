"""How long partitions were without a leader, according to their states in ZooKeeper and to the running processes.

A partition has a leader while its state in ZooKeeper names a broker whose process runs and is not frozen. So the time
in which a dead broker is still named counts; a broker that is merely cut off counts as a leader. While ZooKeeper does
not answer, the last known states count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.znodes import PartitionState, from_json, partition_state_path
from tests.chaos.history import Partition

log = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_ANSWER_LIMIT_S: Final = 0.5
_SESSION_MS: Final = 10_000
_CONNECT_LIMIT_S: Final = 5.0
_END_LIMIT_S: Final = 30.0


class LeaderGaps:
    """The longest times without a leader. Pure. ``longest_s``: for each partition that was ever without one."""

    def __init__(self) -> None:
        self.longest_s: dict[Partition, float] = {}
        self._since_s: dict[Partition, float] = {}

    def observe(self, now_s: float, leaders: Mapping[Partition, int | None], serving: Collection[int]) -> None:
        """Records that at this moment these lead, and these brokers can serve."""
        for at, leader in leaders.items():
            since_s = self._since_s.setdefault(at, now_s)
            if since_s < now_s:
                self.longest_s[at] = max(self.longest_s.get(at, 0.0), now_s - since_s)
            if leader in serving:
                del self._since_s[at]


class LeaderWatch:
    """A thread that looks ten times a second. Started and stopped once."""

    def __init__(
        self, zookeeper_connect: str, topic: str, partitions: int, serving: Callable[[], Collection[int]]
    ) -> None:
        """``serving``: the brokers that run and are not frozen; called on the thread."""
        self.gaps = LeaderGaps()
        self._connect = zookeeper_connect
        self._paths = {(topic, number): partition_state_path(topic, number) for number in range(partitions)}
        self._serving = serving
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leaders", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._ended.set()
        self._thread.join(_END_LIMIT_S)

    def _connected(self) -> KazooZooKeeper | None:
        """Tries until it succeeds, since the first fault may have stopped ZooKeeper. None: the watch is over."""
        while not self._ended.is_set():
            try:
                return KazooZooKeeper.connect(
                    self._connect,
                    session_timeout_ms=_SESSION_MS,
                    connect_timeout_s=_CONNECT_LIMIT_S,
                    operation_limit_s=_ANSWER_LIMIT_S,
                )
            except ZooKeeperUnavailableError as error:
                log.debug("no connection error=%s", error)
                self._ended.wait(_POLL_S)
        return None

    def _run(self) -> None:
        client = self._connected()
        if client is None:
            return
        leaders: dict[Partition, int | None] = {}
        try:
            while not self._ended.wait(_POLL_S):
                try:
                    found = client.find_all(list(self._paths.values()))
                except ZooKeeperUnavailableError as error:
                    log.debug("no states error=%s", error)
                else:
                    for (at, path), znode in zip(self._paths.items(), found, strict=True):
                        leaders[at] = None if znode is None else from_json(znode.data, PartitionState, path).leader
                self.gaps.observe(time.monotonic(), leaders, self._serving())
        finally:
            client.close()
