"""Leaderships that return to the first replica once it is in sync again (``auto.leader.rebalance.enable``).

Rule: they return promptly, but each partition at most once per `INTERVAL_MS`, so that a broker that comes and goes does
not take its leaderships along each time. Those that become ready within `TOGETHER_MS` return together: a broker that
recovers its logs one after the other would cause a change for each of them. Time is an argument.
"""

from __future__ import annotations

from typing import Final

from broker_runtime.controller.controller import Decision
from broker_runtime.controller.election import Electorate, prefer
from broker_runtime.zookeeper.cluster_state import ClusterState

INTERVAL_MS: Final = 5_000
TOGETHER_MS: Final = 500


class PreferredLeaders:
    """When this controller last gave each partition back. Used under the member's lock."""

    def __init__(self) -> None:
        self._given_back_ms: dict[tuple[str, int], int] = {}
        self._not_before_ms: int | None = None

    def decide(
        self, cluster: ClusterState, brokers: Electorate, controller_epoch: int, now_ms: int
    ) -> tuple[list[Decision], int | None]:
        """What is given back now, and when the next is due; None: none is waiting."""
        self._given_back_ms = {at: ms for at, ms in self._given_back_ms.items() if now_ms - ms < INTERVAL_MS}
        decided: list[Decision] = []
        waiting: list[int] = []
        for name, topic in sorted(cluster.topics.items()):
            for number, replicas in enumerate(topic.record.assignment):
                present = topic.partitions[number]
                there = brokers.at(name, number)
                state = None if present is None else prefer(present.state, replicas, there, controller_epoch)
                if state is None:
                    continue
                before_ms = self._given_back_ms.get((name, number))
                due_ms = now_ms if self._not_before_ms is None else self._not_before_ms
                if before_ms is not None:
                    due_ms = max(due_ms, before_ms + INTERVAL_MS)
                if due_ms > now_ms:
                    waiting.append(due_ms)
                    continue
                decided.append(Decision(name, number, present, state))
        if decided:
            self._given_back_ms.update(((each.topic, each.partition), now_ms) for each in decided)
            self._not_before_ms = now_ms + TOGETHER_MS
        return decided, min(waiting, default=None)
