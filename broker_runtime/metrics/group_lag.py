"""How far groups are behind, in records and in time, asked for now and then and kept for whoever reads the metrics.

    every 15 s   what the groups have committed ─▶ the leaders of these partitions ─▶ kept until the next round

Rule: whoever reads the metrics waits for none of this. A round takes at most a twentieth of the time, so a broker with
many groups looks less often. What is older than `KEPT_S` is not said any more: no series, rather than a wrong one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import Metric

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import (
    DescribeLagRequest,
    DescribeLagResponse,
    LagAnswer,
    LagQuery,
    PartitionKey,
    portions,
)
from broker_runtime.contract.waiting import CLOCK, Clock
from broker_runtime.groups.positions import Positions
from broker_runtime.metrics.table import gauge
from broker_runtime.zookeeper.cluster_state import ClusterState
from broker_runtime.zookeeper.session import ZNodeError

EVERY_S: Final = 15.0
KEPT_S: Final = 60.0
_MOST_OF_THE_TIME: Final = 1 / 20

_logger = logging.getLogger(__name__)

At = tuple[str, ...]
"""Group, topic, partition."""


@dataclass(frozen=True, slots=True)
class _Round:
    """What the last round found. ``omitted``: partitions that are in neither dictionary."""

    groups: int = 0
    omitted: int = 0
    records: dict[At, float] = field(default_factory=dict)
    seconds: dict[At, float] = field(default_factory=dict)


class GroupLag:
    """`step` on one thread, `collect` on any."""

    def __init__(
        self,
        *,
        most: int,
        positions: Callable[[], Positions],
        cluster: Callable[[], ClusterState],
        ask: Callable[[int, DescribeLagRequest], DescribeLagResponse],
        clock: Clock = CLOCK,
    ) -> None:
        """``most``: ``metrics.max.group.partitions``. ``positions``: see `GroupPositions.read`. ``ask``: asks a leader,
        by its id, this broker too."""
        self._most = most
        self._positions = positions
        self._cluster = cluster
        self._ask = ask
        self._clock = clock
        self._last = _Round()
        self._kept_until_s = clock.now_s()

    def step(self) -> float:
        """One round. Blocks on ZooKeeper and on leaders, in bounds; returns the pause after it in seconds. What fails
        is tried again by the next one."""
        began_s = self._clock.now_s()
        try:
            self._last = self._look()
            self._kept_until_s = self._clock.now_s() + KEPT_S
        except (PylogError, ZNodeError) as error:
            event(_logger, "look at groups' lag", level=logging.WARNING, error=error)
        took_s = self._clock.now_s() - began_s
        pause_s = max(EVERY_S, took_s / _MOST_OF_THE_TIME)
        self._kept_until_s += max(0.0, pause_s - EVERY_S)
        return pause_s

    def collect(self) -> Iterator[Metric]:
        """The metrics, without a wait."""
        if self._clock.now_s() > self._kept_until_s:
            return
        last = self._last
        yield gauge("groups", {(): last.groups})
        yield gauge("group_partitions_omitted", {(): last.omitted})
        yield gauge("group_lag_records", last.records)
        yield gauge("group_lag_seconds", last.seconds)

    # --- private ----------------------------------------------------------------------------------------------

    def _look(self) -> _Round:
        positions, cluster = self._positions(), self._cluster()
        wanted: dict[int | None, list[tuple[At, LagQuery]]] = {}
        count = 0
        for group, topics in sorted(positions.items()):
            for name, stored in sorted(topics.items()):
                topic = cluster.topics.get(name)
                if topic is None or topic.record.topic_id != stored.topic_id:
                    continue  # offsets of a topic that is gone
                for number, committed in sorted(stored.offsets.items()):
                    count += 1
                    if number < len(topic.partitions) and count <= self._most:
                        state = topic.partitions[number]
                        key = PartitionKey(topic=name, partition=number, topic_id=stored.topic_id)
                        query = LagQuery(at=key, offset=committed.offset)
                        leader = None if state is None else state.state.leader
                        wanted.setdefault(leader, []).append(((group, name, str(number)), query))
        records: dict[At, float] = {}
        seconds: dict[At, float] = {}
        for leader, queries in wanted.items():
            for (at, _), answer in zip(queries, self._answers(leader, [query for _, query in queries]), strict=False):
                if answer.error is None:
                    records[at], seconds[at] = answer.records, answer.waiting_ms / 1_000
        return _Round(len(positions), count - len(records), records, seconds)

    def _answers(self, leader: int | None, queries: Sequence[LagQuery]) -> list[LagAnswer]:
        """As many as the leader gave: none after one that it did not give."""
        found: list[LagAnswer] = []
        if leader is None:
            return found
        for some in portions(queries):
            try:
                found += self._ask(leader, DescribeLagRequest(queries=some)).answers
            except PylogError as error:
                event(_logger, "ask for lag", level=logging.DEBUG, broker=leader, error=error)
                break
        return found
