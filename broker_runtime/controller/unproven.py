"""Who leads after a power loss, where a member's log may lack what was acknowledged (`PartitionState.unproven`).

    a proven one leads, and its log      the unproven members leave the in-sync set, and join when they have caught up
    is in its answer
    nobody leads, the set is complete    the one whose log goes furthest leads, at once: of the set, of the
                                         ``last_known_eligible``, which belong to the complete set here, and of the
                                         other replicas that answer, as the set may have lost what those have
    nobody leads, some are not back      the same among those that are back, after `PATIENCE_MS`, if one of the set is
                                         among them, even one that cannot open its log; a proven one that comes back
                                         meanwhile leads at once (`election.elect`)

This follows KIP-966's unclean recovery, which also asks replicas for the ends of their logs. Rules: an answer counts if
it comes from the registration that is known here. A leader must answer, because its registration may be that of a dead
process whose session has not timed out yet, and its log must be in the answer, because it may turn out to be damaged:
then the unproven ones have what is left of the partition. A broker that does not answer, or cannot open its log, is
waited for like one that is not back, and counts as having nothing when the time is over. The time runs from when this
controller first saw the partition in this condition; it is an argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

import msgspec

from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import LogEndsRequest, LogEndsResponse, PartitionKey, portions
from broker_runtime.controller.controller import Decision
from broker_runtime.controller.election import Electorate, LogReach, elect_most_complete
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import PartitionState

PATIENCE_MS: Final = 30_000
RETRY_MS: Final = 1_000

AskLogEnds = Callable[[int, LogEndsRequest], LogEndsResponse | None]
"""Asks a broker how far its logs go; None: it does not answer. Blocks, for another broker two seconds at most."""
RunAll = Callable[[Mapping[str, Callable[[], object]]], object]
"""Runs all of these, each under its name; returns when they have ended, or after two seconds: then some continue."""

_logger = logging.getLogger(__name__)


class UnprovenReplicas:
    """Partitions that wait for such a decision, and since when. Used under the member's lock."""

    def __init__(self, ask: AskLogEnds, run_all: RunAll) -> None:
        """``run_all``: see `in_line`."""
        self._ask = ask
        self._run_all = run_all
        self._since_ms: dict[TopicPartition, int] = {}

    def decide(
        self, cluster: ClusterState, brokers: Electorate, controller_epoch: int, now_ms: int
    ) -> tuple[list[Decision], int | None]:
        """What is decided now, and when to look again although nothing changes; None: nothing waits. Blocks for the
        brokers it asks, as ``run_all`` does."""
        found = {
            TopicPartition(name, number): present
            for name, topic in sorted(cluster.topics.items())
            for number, present in enumerate(topic.partitions)
            if present is not None and present.state.unproven
        }
        self._since_ms = {
            at: now_ms if brokers.is_led(present.state) else self._since_ms.get(at, now_ms)
            for at, present in found.items()
        }
        asked = {at: self._whom(at, present, _replicas(cluster, at), brokers, now_ms) for at, present in found.items()}
        answers = self._answers(asked, cluster)
        decided = [
            decision
            for at, present in found.items()
            if (decision := self._decide(at, present, cluster, brokers, answers, controller_epoch, now_ms))
        ]
        settled = {TopicPartition(each.topic, each.partition) for each in decided}
        waiting = [at for at in found if at not in settled]
        for at in waiting:
            if self._since_ms[at] == now_ms and not brokers.is_led(found[at].state):
                event(
                    _logger,
                    "wait for longest log",
                    level=logging.WARNING,
                    topic=at.topic,
                    partition=at.partition,
                    isr=found[at].state.isr,
                    unproven=found[at].state.unproven,
                    at_most_s=PATIENCE_MS // 1_000,
                )
        over_ms = [self._since_ms[at] + PATIENCE_MS for at in waiting if not self._is_over(at, now_ms)]
        return decided, min([now_ms + RETRY_MS, *over_ms]) if waiting else None

    def _is_over(self, at: TopicPartition, now_ms: int) -> bool:
        return now_ms - self._since_ms[at] >= PATIENCE_MS

    def _whom(
        self,
        at: TopicPartition,
        present: VersionedState,
        replicas: Collection[int],
        brokers: Electorate,
        now_ms: int,
    ) -> list[int]:
        """The brokers whose answers decide; none: others have to be waited for first."""
        state = present.state
        if state.leader is not None:
            return [state.leader] if brokers.is_led(state) and state.leader not in brokers.suspects else []
        members = _members(state)
        there = {*brokers.live} - brokers.suspects
        if not there.issuperset(members) and not self._is_over(at, now_ms):
            return []
        others = set(replicas).difference(members, state.lost)
        return sorted(there & {*state.unproven, *state.last_known_eligible, *others})

    def _answers(
        self, asked: Mapping[TopicPartition, Collection[int]], cluster: ClusterState
    ) -> dict[int, dict[TopicPartition, LogReach]]:
        """How far the logs of each broker go that answers."""
        answers: dict[int, dict[TopicPartition, LogReach]] = {}

        def ask(broker_id: int, epoch: int, keys: Collection[PartitionKey]) -> None:
            for some in portions(keys):
                response = self._ask(broker_id, LogEndsRequest(partitions=some))
                if response is None or response.broker_epoch != epoch:
                    return
                answers[broker_id] = answers.get(broker_id, {}) | {
                    TopicPartition(each.topic, each.partition): LogReach(
                        each.leader_epoch, each.log_end, each.log_start
                    )
                    for each in response.partitions
                }

        calls: dict[str, Callable[[], object]] = {}
        for broker_id in sorted({broker_id for ids in asked.values() for broker_id in ids}):
            registered = cluster.brokers.get(broker_id)
            if registered is None:
                continue
            keys = tuple(_key(cluster.topics[at.topic], at) for at, ids in asked.items() if broker_id in ids)
            calls[f"log-ends-{broker_id}"] = partial(ask, broker_id, registered.epoch, keys)
        if calls:
            self._run_all(calls)
        return dict(answers)  # one that comes too late changes nothing

    def _decide(
        self,
        at: TopicPartition,
        present: VersionedState,
        cluster: ClusterState,
        brokers: Electorate,
        answers: Mapping[int, Mapping[TopicPartition, LogReach]],
        controller_epoch: int,
        now_ms: int,
    ) -> Decision | None:
        state, members = present.state, _members(present.state)
        if state.leader is not None:
            if not brokers.is_led(state) or at not in answers.get(state.leader, {}):
                return None
            in_sync = tuple(member for member in state.isr if member not in state.unproven)
            left = msgspec.structs.replace(state.with_in_sync(in_sync), controller_epoch=controller_epoch)
            return Decision(at.topic, at.partition, present, left)
        ends = {broker_id: of[at] for broker_id, of in answers.items() if at in of}
        heard = ends.keys() & set(members)
        is_complete = len(heard) == len(members)
        if not is_complete and not (heard and self._is_over(at, now_ms) and answers.keys() & set(state.unproven)):
            return None
        there = brokers.at(at.topic, at.partition)
        chosen = elect_most_complete(state, _replicas(cluster, at), there, controller_epoch, ends)
        if chosen is None:
            return None
        event(
            _logger,
            "elect longest log",
            level=logging.WARNING,
            topic=at.topic,
            partition=at.partition,
            leader=chosen.leader,
            ends={broker_id: tuple(reach) for broker_id, reach in ends.items()},
            not_heard=[member for member in members if member not in heard],
        )
        return Decision(at.topic, at.partition, present, chosen)


def in_line(calls: Mapping[str, Callable[[], object]]) -> None:
    """`RunAll` on the caller's thread, one after the other: where nothing may depend on threads."""
    for call in calls.values():
        call()


def _members(state: PartitionState) -> list[int]:
    """Those whose logs may go furthest."""
    return [member for member in (*state.isr, *state.last_known_eligible) if member not in state.lost]


def _replicas(cluster: ClusterState, at: TopicPartition) -> tuple[int, ...]:
    return cluster.topics[at.topic].record.assignment[at.partition]


def _key(topic: TopicState, at: TopicPartition) -> PartitionKey:
    return PartitionKey(topic=at.topic, partition=at.partition, topic_id=topic.record.topic_id)
