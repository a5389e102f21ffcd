"""How a partition moves to other brokers: pure functions of its replicas, its state and the brokers.

KIP-455's way, in three steps, each one compare-and-set, so that a crash between them does no harm:

    begin     the assignment becomes target + removing: the new replicas (adding) begin to follow
    finish    as soon as all of the target are in sync, and surely have all that is committed: the leader is one of the
              target, the assignment is the target
    cancel    the assignment becomes what it was before: the replicas that were being added are dropped

Wherever a replica is dropped, the leader epoch rises.

Rules: the leader and the in-sync set never have a member outside the assignment; no step removes the last in-sync
replica, nor one that may have what those that stay lack: they may be unproven, their logs may have failed, or the only
one of them that has all may be dead, and come back unproven. A later request for a partition that is moving replaces
the earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from broker_runtime.contract.errors import (
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.controller.assignment import BrokerLoad
from broker_runtime.controller.election import Electorate
from broker_runtime.zookeeper.cluster_state import TopicState
from broker_runtime.zookeeper.znodes import PartitionState, ReassignmentRecord, TopicRecord

MOVES_PER_STEP: Final = 200
"""So that one transaction stays far below what ZooKeeper takes in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentStep:
    """A topic's record and the states of some of its partitions, to be written together."""

    record: TopicRecord
    states: Mapping[int, PartitionState]  # by partition; only those that change


def begin(
    topic: TopicState,
    targets: Mapping[int, Sequence[int]],
    brokers: Electorate,
    controller_epoch: int,
    *,
    after: ReassignmentStep | None = None,
) -> ReassignmentStep:
    """Begins to move partitions to these replicas, by partition number, the preferred leader first. ``after``: what
    other partitions of the topic change in the same step.

    Nothing changes for a partition that already has them. Raises `UnknownTopicOrPartitionError` for a partition that
    does not exist, `InvalidReplicaAssignmentError` for a broker that does not exist, for brokers named twice, for no
    brokers, or where replicas of a move under way would be dropped as `cancel` must not.
    """
    plan = _Plan(topic, brokers, controller_epoch, after)
    for number, target in targets.items():
        wanted = _checked(topic, number, target, brokers.live)
        original = _original(topic.record, number)
        plan.change(
            number,
            replicas=wanted + tuple(broker_id for broker_id in original if broker_id not in wanted),
            reassignment=None if set(wanted) == set(original) else ReassignmentRecord(target=wanted, original=original),
        )
    return plan.step()


def cancel(topic: TopicState, numbers: Collection[int], brokers: Electorate, controller_epoch: int) -> ReassignmentStep:
    """Returns these partitions to the replicas they had.

    Raises `NoReassignmentInProgressError` if one is not moving; `InvalidReplicaAssignmentError` if none of the replicas
    it had is in sync any more, or if a replica would be dropped that counts, and none of those that stay is up, in sync
    and surely has all that is committed.
    """
    plan = _Plan(topic, brokers, controller_epoch)
    for number in numbers:
        running = topic.record.reassignments.get(number)
        if running is None:
            raise NoReassignmentInProgressError(f"{topic.name}-{number} is not being moved, so there is nothing to end")
        plan.change(number, replicas=_original(topic.record, number), reassignment=None)
    return plan.step()


def finish(topic: TopicState, brokers: Electorate, controller_epoch: int) -> ReassignmentStep | None:
    """Finishes moves whose targets are all in sync, `MOVES_PER_STEP` at most; None if there are none.

    A move waits while a target is unproven, or its log failed: it may have less than those that would be removed. It
    waits for a leader, and until that one has ruled out the ``eligible`` that would be removed, as it does when its log
    is open and sound. And one of the target is to be up, or those that kept their power would be removed for one that
    may have lost it.
    """
    plan = _Plan(topic, brokers, controller_epoch)
    for number, running in topic.record.reassignments.items():
        if plan.changes == MOVES_PER_STEP:
            break
        present = topic.partitions[number] if number < len(topic.partitions) else None
        if present is not None and _may_finish(topic.name, number, present.state, running.target, brokers):
            plan.change(number, replicas=running.target, reassignment=None)
    return plan.step() if plan.changes else None


def plan_decommission(
    broker_id: int,
    topics: Mapping[str, TopicState],
    brokers: Mapping[int, BrokerLoad],
    *,
    suspects: Collection[int] = (),
) -> dict[TopicPartition, tuple[int, ...]]:
    """Where each partition of the broker goes: to the least loaded of ``brokers`` that does not have it yet.

    ``brokers``: those that may take partitions, and what they hold; the ``suspects`` among them, which are probably
    dead, take only what nobody else can. A partition that is already moving goes to its target, without the broker.
    Raises `InvalidReplicaAssignmentError` if no broker is left for a partition.
    """
    held = {candidate: load.replicas for candidate, load in brokers.items() if candidate != broker_id}
    leads = {candidate: load.leaders for candidate, load in brokers.items() if candidate != broker_id}
    moves: dict[TopicPartition, tuple[int, ...]] = {}
    for name, topic in sorted(topics.items()):
        for number, replicas in enumerate(topic.record.assignment):
            running = topic.record.reassignments.get(number)
            wanted = replicas if running is None else running.target
            if broker_id not in wanted:
                continue
            candidates = [candidate for candidate in held if candidate not in wanted]
            if not candidates:
                raise InvalidReplicaAssignmentError(
                    f"broker {broker_id} cannot be emptied: {name}-{number} has {len(wanted)} replicas, and besides it "
                    f"only {len(held)} brokers can take partitions ({', '.join(map(str, sorted(held))) or 'none'})"
                )
            is_first = wanted[0] == broker_id
            taker = min(candidates, key=lambda c: (c in suspects, leads[c] if is_first else 0, held[c], c))
            held[taker] += 1
            leads[taker] += is_first
            moves[TopicPartition(name, number)] = tuple(taker if b == broker_id else b for b in wanted)
    return moves


def fitted(
    state: PartitionState, replicas: Sequence[int], brokers: Electorate, controller_epoch: int
) -> PartitionState | None:
    """The state restricted to ``replicas``: all other members leave it, and lose the leadership. ``brokers``: as they
    count for the partition (`Electorate.at`).

    None if nobody in sync would be left.
    """
    in_sync = tuple(broker_id for broker_id in replicas if broker_id in state.isr)
    if not in_sync:
        return None
    lost = tuple(broker_id for broker_id in state.lost if broker_id in replicas)
    kept = msgspec.structs.replace(state.with_in_sync(in_sync), controller_epoch=controller_epoch, lost=lost)
    kept = kept.with_eligible([broker_id for broker_id in kept.eligible if broker_id in replicas])
    kept = kept.with_last_known_eligible([each for each in kept.last_known_eligible if each in replicas])
    if state.leader in in_sync:
        return kept
    without = {*lost, *kept.unproven}
    candidates = brokers.of([broker_id for broker_id in in_sync if broker_id not in without])
    leader = brokers.first(candidates) if candidates else None
    return msgspec.structs.replace(
        kept,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        leader_broker_epoch=-1 if leader is None else brokers.live[leader],
    )


class _Plan:
    """Gathers the changes of one topic."""

    def __init__(
        self,
        topic: TopicState,
        brokers: Electorate,
        controller_epoch: int,
        after: ReassignmentStep | None = None,
    ) -> None:
        self._topic = topic
        self._brokers = brokers
        self._controller_epoch = controller_epoch
        record = topic.record if after is None else after.record
        self._assignment = list(record.assignment)
        self._reassignments = dict(record.reassignments)
        self._states: dict[int, PartitionState] = {} if after is None else dict(after.states)
        self.changes = 0

    def change(self, number: int, *, replicas: Sequence[int], reassignment: ReassignmentRecord | None) -> None:
        present = self._topic.partitions[number]
        if present is not None:
            there = self._brokers.at(self._topic.name, number)
            state = fitted(present.state, replicas, there, self._controller_epoch)
            if state is None:
                raise InvalidReplicaAssignmentError(
                    f"{self._topic.name}-{number} would keep no replica in sync: in sync are "
                    f"{sorted(present.state.isr)}, the replicas would be {list(replicas)}"
                )
            _require_whole(self._topic.name, number, present.state, replicas, self._brokers)
            is_same = (set(state.isr), state.leader) == (set(present.state.isr), present.state.leader)
            is_dropping = not set(self._assignment[number]) <= set(replicas)
            if is_dropping and state.leader_epoch == present.state.leader_epoch:
                # A broker that loses its replica deletes its log. If it becomes a replica again, with an empty one,
                # what it has reported before must not count: its requests were made in the leader epoch before, and
                # the leader forgets what it knows of followers when its epoch rises. And a leader that takes that
                # broker into the in-sync set at this moment, over the version known here, is refused.
                state = msgspec.structs.replace(state, leader_epoch=state.leader_epoch + 1)
            if not is_same or is_dropping:
                self._states[number] = state
        self.changes += 1
        self._assignment[number] = tuple(replicas)
        self._reassignments.pop(number, None)
        if reassignment is not None:
            self._reassignments[number] = reassignment

    def step(self) -> ReassignmentStep:
        record = msgspec.structs.replace(
            self._topic.record, assignment=tuple(self._assignment), reassignments=self._reassignments
        )
        return ReassignmentStep(record=record, states=self._states)


def _may_finish(topic: str, number: int, state: PartitionState, target: Sequence[int], brokers: Electorate) -> bool:
    if not set(target) <= set(state.isr) or not set(state.eligible) <= set(target) or not brokers.is_led(state):
        return False
    if not {*state.lost, *state.unproven, *_failed(topic, number, brokers)}.isdisjoint(target):
        return False
    return any(_is_up(broker_id, brokers) for broker_id in target)


def _require_whole(
    topic: str, number: int, state: PartitionState, replicas: Sequence[int], brokers: Electorate
) -> None:
    """Raises `InvalidReplicaAssignmentError` if a replica would be dropped that may have what ``replicas`` lack."""
    dropped = sorted({*state.isr, *state.eligible}.difference(replicas))
    failed = _failed(topic, number, brokers)
    kept = [broker_id for broker_id in replicas if broker_id in state.isr]
    doubts = {
        broker_id: "its log failed, restart the broker"
        if broker_id in failed
        else "it may lack records since its machine lost power"
        if broker_id in (*state.unproven, *state.lost)
        else "it is not up"
        for broker_id in kept
        if broker_id in (*failed, *state.unproven, *state.lost) or not _is_up(broker_id, brokers)
    }
    if dropped and len(doubts) == len(kept):
        reasons = "; ".join(f"broker {broker_id}: {doubt}" for broker_id, doubt in doubts.items())
        raise InvalidReplicaAssignmentError(
            f"{topic}-{number} cannot do without its replicas on {dropped} now, as they may have what the others in "
            f"sync lack ({reasons}). Try again when one of {kept} is up and has caught up with the leader"
        )


def _failed(topic: str, number: int, brokers: Electorate) -> set[int]:
    """The brokers whose log a disk error ended: it may have less when it is opened again."""
    return {broker_id for broker_id, disks in brokers.disks.items() if disks.has_failed(topic, number)}


def _is_up(broker_id: int, brokers: Electorate) -> bool:
    return broker_id in brokers.live and broker_id not in brokers.suspects


def _original(record: TopicRecord, number: int) -> tuple[int, ...]:
    """The replicas before the present move."""
    running = record.reassignments.get(number)
    return record.assignment[number] if running is None else running.original


def _checked(topic: TopicState, number: int, target: Sequence[int], live: Mapping[int, int]) -> tuple[int, ...]:
    at = f"{topic.name}-{number}"
    if not 0 <= number < len(topic.record.assignment):
        raise UnknownTopicOrPartitionError(
            f"{topic.name} has no partition {number}, only 0 to {len(topic.record.assignment) - 1}"
        )
    if not target:
        raise InvalidReplicaAssignmentError(f"{at} cannot be moved to no broker at all")
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignmentError(f"{at} cannot have two replicas on one broker: {list(target)}")
    held = topic.record.assignment[number]
    unknown = [broker_id for broker_id in target if broker_id not in live and broker_id not in held]
    if unknown:
        raise InvalidReplicaAssignmentError(f"{at} cannot be moved to {unknown}: live brokers are {sorted(live)}")
    return tuple(target)
