"""What the controller decides each time it looks at the cluster, one thing after the other:

    deletions that are marked · leaders and in-sync sets · who leads after a power loss · moves that have arrived
    · leaderships that return

Rule: pure functions of the cluster as read decide (`election`, `reassignment`, `preferred`, and `unproven`, which asks
brokers first), and decisions are written by compare-and-set. What another writer changed meanwhile is left alone: its
announcement triggers the next look.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from broker_runtime.controller.controller import Controller
from broker_runtime.controller.election import Electorate
from broker_runtime.controller.movement import MovementWriter
from broker_runtime.controller.preferred import PreferredLeaders
from broker_runtime.controller.reassignment import finish
from broker_runtime.controller.suspicion import Suspicions
from broker_runtime.controller.topics import TopicWriter
from broker_runtime.controller.unproven import AskLogEnds, RunAll, UnprovenReplicas
from broker_runtime.zookeeper.cluster_state import ClusterState, read_deleted_logs, read_topics
from broker_runtime.zookeeper.session import BadVersionError, ZooKeeperClient


class Decisions:
    """One broker's decisions while it is the controller. Used under the member's lock."""

    def __init__(
        self,
        client: ZooKeeperClient,
        controller: Controller,
        topics: TopicWriter,
        movements: MovementWriter,
        suspicions: Suspicions,
        *,
        ask_log_ends: AskLogEnds,
        run_all: RunAll,
        rebalances_leaders: bool,
    ) -> None:
        self._client = client
        self._controller = controller
        self._topics = topics
        self._movements = movements
        self._suspicions = suspicions
        self._unproven = UnprovenReplicas(ask_log_ends, run_all)
        self._preferred = PreferredLeaders() if rebalances_leaders else None

    def make(self, cluster: ClusterState, brokers: Electorate, now_ms: int) -> tuple[ClusterState, int | None]:
        """Decides and writes; returns the cluster as it is then, and when there will be something to decide although
        nothing changes.

        Raises as `Controller.write`.
        """
        for name in sorted(cluster.deletions):
            self._topics.finish_deletion(name)
        if cluster.deletions:
            cluster = replace(cluster, deletions=frozenset(), deleted_logs=read_deleted_logs(self._client))
        cluster = self._controller.elect_all(cluster, brokers)
        if self._suspicions.dead:
            self._suspicions.left_in_sync(in_sync_with_others(cluster))
        epoch = self._controller.require_claim().epoch
        decided, unproven_due_ms = self._unproven.decide(cluster, brokers, epoch, now_ms)
        cluster = self._finish_moves(self._controller.carry_out(cluster, decided), brokers, epoch)
        if self._preferred is None:
            return cluster, unproven_due_ms
        decided, due_ms = self._preferred.decide(cluster, brokers, epoch, now_ms)
        dues = [due for due in (unproven_due_ms, due_ms) if due is not None]
        return self._controller.carry_out(cluster, decided), min(dues, default=None)

    def _finish_moves(self, cluster: ClusterState, brokers: Electorate, controller_epoch: int) -> ClusterState:
        written: list[str] = []
        for name, topic in sorted(cluster.topics.items()):
            step = finish(topic, brokers, controller_epoch) if topic.record.reassignments else None
            if step is not None:
                written.append(name)
                with contextlib.suppress(BadVersionError):
                    self._movements.write(topic, step)
        read = {topic.name: topic for topic in read_topics(self._client, written, known=cluster.topics)}
        return replace(cluster, topics={**cluster.topics, **read})


def in_sync_with_others(cluster: ClusterState) -> frozenset[int]:
    """The brokers that are in some in-sync set that has other members."""
    return frozenset(
        broker_id
        for topic in cluster.topics.values()
        for present in topic.partitions
        if present is not None and len(present.state.isr) > 1
        for broker_id in present.state.isr
    )
