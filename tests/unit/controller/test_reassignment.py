"""Moving partitions: the outcome of each step, as pure functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_runtime.contract.errors import (
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.controller.assignment import BrokerLoad
from broker_runtime.controller.election import Electorate
from broker_runtime.controller.reassignment import (
    MOVES_PER_STEP,
    ReassignmentStep,
    begin,
    cancel,
    finish,
    plan_decommission,
)
from broker_runtime.zookeeper.cluster_state import TopicState, VersionedState
from broker_runtime.zookeeper.znodes import DiskTroubles, PartitionState, ReassignmentRecord, TopicRecord

_LIVE = {1: 11, 2: 12, 3: 13, 4: 14}
_BROKERS = Electorate(_LIVE)


def _topic(
    replicas: tuple[int, ...],
    *,
    isr: tuple[int, ...] | None = None,
    leader: int | None = -1,
    moving: ReassignmentRecord | None = None,
    unproven: tuple[int, ...] = (),
    eligible: tuple[int, ...] = (),
) -> TopicState:
    in_sync = replicas if isr is None else isr
    leads = (in_sync[0] if in_sync else None) if leader == -1 else leader
    state = PartitionState(
        leader=leads, leader_epoch=5, isr=in_sync, controller_epoch=1, leader_broker_epoch=_LIVE.get(leads or 0, -1),
        unproven=unproven, eligible=eligible,
    )  # fmt: skip
    record = TopicRecord(
        topic_id=bytes(16), assignment=(replicas,), reassignments={} if moving is None else {0: moving}
    )
    return TopicState(name="flights", record=record, version=3, partitions=(VersionedState(state=state, version=7),))


def _applied(topic: TopicState, step: ReassignmentStep) -> TopicState:
    present = topic.partitions[0]
    assert present is not None
    state = step.states.get(0, present.state)
    return TopicState(
        name=topic.name, record=step.record, version=4, partitions=(VersionedState(state=state, version=8),)
    )


def test_begin_adds_the_target_and_keeps_the_others_until_it_is_in_sync() -> None:
    """W14: partitions move to another broker."""
    step = begin(_topic((1, 2)), {0: (3, 2)}, _BROKERS, 9)
    assert step.record.assignment == ((3, 2, 1),)
    assert step.record.reassignments == {0: ReassignmentRecord(target=(3, 2), original=(1, 2))}
    assert step.states == {}


def test_begin_changes_nothing_but_the_order_for_the_same_replicas() -> None:
    """Another preferred leader is not a move."""
    step = begin(_topic((1, 2)), {0: (2, 1)}, _BROKERS, 9)
    assert step.record.assignment == ((2, 1),)
    assert step.record.reassignments == {}


def test_finish_waits_until_all_of_the_target_are_in_sync() -> None:
    """W14: no replica is dropped before its data is elsewhere."""
    topic = _applied(_topic((1, 2)), begin(_topic((1, 2)), {0: (3, 4)}, _BROKERS, 9))
    assert finish(topic, _BROKERS, 9) is None
    half = _topic((3, 4, 1, 2), isr=(1, 2, 3), moving=topic.record.reassignments[0])
    assert finish(half, _BROKERS, 9) is None


def test_finish_moves_the_leadership_to_the_target_and_drops_the_rest() -> None:
    """W14: the new brokers lead in a new epoch."""
    moving = ReassignmentRecord(target=(3, 4), original=(1, 2))
    step = finish(_topic((3, 4, 1, 2), isr=(1, 2, 3, 4), leader=1, moving=moving), _BROKERS, 9)
    assert step is not None
    assert step.record.assignment == ((3, 4),)
    assert step.record.reassignments == {}
    assert step.states[0] == PartitionState(
        leader=3, leader_epoch=6, isr=(3, 4), controller_epoch=9, leader_broker_epoch=13
    )


def test_finish_waits_for_a_target_whose_log_failed() -> None:
    """It may come back with less than those that would be removed."""
    topic = _topic((3, 1, 2), isr=(1, 2, 3), moving=ReassignmentRecord(target=(3,), original=(1, 2)))
    assert finish(topic, replace(_BROKERS, disks={3: DiskTroubles(epoch=13, failed={"flights": (0,)})}), 9) is None
    assert finish(topic, replace(_BROKERS, disks={3: DiskTroubles(epoch=13, failed={"flights": (1,)})}), 9) is not None


@pytest.mark.parametrize("leader", [1, None], ids=["led by a proven one", "the proven one is away"])
def test_finish_waits_for_a_target_whose_machine_lost_power(leader: int | None) -> None:
    """It may lack what those have that would be removed."""
    moving = ReassignmentRecord(target=(3, 4), original=(1, 2))
    topic = _topic((3, 4, 1, 2), isr=(1, 2, 3, 4), leader=leader, moving=moving, unproven=(3,))
    assert finish(topic, _BROKERS, 9) is None


def test_finish_waits_for_a_leader() -> None:
    """Whoever in sync comes back first leads, and may be one of those that would be removed."""
    topic = _topic((3, 1), isr=(1, 3), leader=None, moving=ReassignmentRecord(target=(3,), original=(1,)))
    assert finish(topic, _BROKERS, 9) is None


@pytest.mark.parametrize(
    "brokers",
    [Electorate({1: 11}), replace(_BROKERS, suspects=frozenset({3}))],
    ids=["gone", "probably dead"],
)
def test_finish_waits_until_one_of_the_target_is_up(brokers: Electorate) -> None:
    """The target may come back without its power's last seconds, and then it is too late."""
    topic = _topic((3, 1), isr=(1, 3), moving=ReassignmentRecord(target=(3,), original=(1,)))
    assert finish(topic, brokers, 9) is None


def test_finish_waits_until_the_leader_has_ruled_out_the_eligible_ones() -> None:
    """It does so when its log is known to be sound; before that, they have what a damaged log lacks."""
    moving = ReassignmentRecord(target=(1,), original=(1, 2))
    assert finish(_topic((1, 2), isr=(1,), moving=moving, eligible=(2,)), _BROKERS, 9) is None
    assert finish(_topic((1, 2), isr=(1,), moving=moving), _BROKERS, 9) is not None


def test_finish_lets_none_lead_whose_disk_takes_no_records_if_another_can() -> None:
    """As in any election."""
    full = DiskTroubles(epoch=13, directories={"/data": "full"}, partitions={"flights": (0,)})
    topic = _topic((3, 4, 1), isr=(1, 3, 4), leader=1, moving=ReassignmentRecord(target=(3, 4), original=(1,)))
    step = finish(topic, replace(_BROKERS, disks={3: full}), 9)
    assert step is not None
    assert (step.states[0].leader, step.states[0].leader_broker_epoch) == (4, 14)


def test_finish_keeps_a_leader_that_stays() -> None:
    """A leader in the target continues, in the next epoch: what the dropped replica reports no longer counts."""
    moving = ReassignmentRecord(target=(3, 2), original=(1, 2))
    step = finish(_topic((3, 2, 1), isr=(1, 2, 3), leader=2, moving=moving), _BROKERS, 9)
    assert step is not None
    assert (step.states[0].leader, step.states[0].leader_epoch, step.states[0].isr) == (2, 6, (3, 2))


def test_finish_raises_the_leader_epoch_when_a_replica_is_dropped() -> None:
    """The leader may add the dropped replica to the in-sync set at that very moment: then the state is newer."""
    moving = ReassignmentRecord(target=(1, 2), original=(1, 3))
    step = finish(_topic((1, 2, 3), isr=(1, 2), moving=moving), _BROKERS, 9)
    assert step is not None
    assert step.record.assignment == ((1, 2),)
    assert (step.states[0].leader, step.states[0].leader_epoch, step.states[0].isr) == (1, 6, (1, 2))


def test_finish_ends_many_moves_in_steps() -> None:
    """One transaction never has more operations than ZooKeeper accepts."""
    moving = ReassignmentRecord(target=(3, 4), original=(1, 2))
    one = _topic((3, 4, 1, 2), isr=(1, 2, 3, 4), leader=1)
    count = MOVES_PER_STEP + 1
    record = TopicRecord(
        topic_id=bytes(16),
        assignment=one.record.assignment * count,
        reassignments=dict.fromkeys(range(count), moving),
    )
    step = finish(TopicState(name="flights", record=record, version=3, partitions=one.partitions * count), _BROKERS, 9)
    assert step is not None
    assert len(step.states) == MOVES_PER_STEP
    assert list(step.record.reassignments) == [count - 1]


def test_cancel_restores_the_replicas_and_their_order() -> None:
    """A move can be cancelled."""
    topic = _topic((1, 2))
    moved = _applied(topic, begin(topic, {0: (4, 3)}, _BROKERS, 9))
    assert cancel(moved, [0], _BROKERS, 9).record.assignment == ((1, 2),)


def test_cancel_takes_the_leadership_from_a_dropped_replica() -> None:
    """The leader is always one of the replicas."""
    moving = ReassignmentRecord(target=(3,), original=(1, 2))
    step = cancel(_topic((3, 1, 2), isr=(3, 2), leader=3, moving=moving), [0], _BROKERS, 9)
    assert (step.states[0].leader, step.states[0].leader_epoch, step.states[0].isr) == (2, 6, (2,))


def test_cancel_is_refused_when_nothing_moves() -> None:
    """Bad input: one clear error."""
    with pytest.raises(NoReassignmentInProgressError, match="flights-0 is not being moved"):
        cancel(_topic((1, 2)), [0], _BROKERS, 9)


def test_cancel_is_refused_when_it_would_leave_no_replica_in_sync() -> None:
    """Nothing acknowledged is given up."""
    moving = ReassignmentRecord(target=(3,), original=(1,))
    with pytest.raises(InvalidReplicaAssignmentError, match="would keep no replica in sync"):
        cancel(_topic((3, 1), isr=(3,), leader=3, moving=moving), [0], _BROKERS, 9)


FAILED = {1: DiskTroubles(epoch=11, failed={"flights": (0,)})}


@pytest.mark.parametrize(
    ("unproven", "brokers", "reason"),
    [
        ((1,), _BROKERS, "broker 1: it may lack records since its machine lost power"),
        ((), replace(_BROKERS, disks=FAILED), "broker 1: its log failed, restart the broker"),
        ((), Electorate({3: 13, 4: 14}), "broker 1: it is not up"),
        ((), replace(_BROKERS, suspects=frozenset({1})), "broker 1: it is not up"),
    ],
)
def test_only_replica_that_surely_has_all_is_not_dropped(
    unproven: tuple[int, ...], brokers: Electorate, reason: str
) -> None:
    """Neither by cancelling a move nor by another one that replaces it."""
    moving = ReassignmentRecord(target=(3,), original=(1,))
    topic = _topic((3, 1), isr=(3, 1), leader=3, moving=moving, unproven=unproven)
    message = rf"flights-0 cannot do without its replicas on \[3\] now.*{reason}.*Try again when one of \[1\] is up"
    with pytest.raises(InvalidReplicaAssignmentError, match=message):
        cancel(topic, [0], brokers, 9)
    with pytest.raises(InvalidReplicaAssignmentError, match=message):
        begin(topic, {0: (4,)}, brokers, 9)


def test_cancel_drops_what_does_not_count_even_if_nobody_is_up() -> None:
    """The new replica is not in sync yet."""
    topic = _topic((3, 1), isr=(1,), leader=None, moving=ReassignmentRecord(target=(3,), original=(1,)))
    assert cancel(topic, [0], Electorate({3: 13}), 9).record.assignment == ((1,),)


def test_cancel_does_not_drop_an_eligible_replica_while_the_others_are_down() -> None:
    """It may have to lead for them."""
    topic = _topic((3, 1), isr=(1,), leader=None, moving=ReassignmentRecord(target=(3,), original=(1,)), eligible=(3,))
    with pytest.raises(InvalidReplicaAssignmentError, match="cannot do without"):
        cancel(topic, [0], Electorate({3: 13}), 9)


def test_cancel_gives_the_leadership_to_no_unproven_replica() -> None:
    """One that surely has all leads, even if it is not the first."""
    moving = ReassignmentRecord(target=(3,), original=(1, 2))
    step = cancel(_topic((3, 1, 2), isr=(3, 1, 2), leader=3, moving=moving, unproven=(1,)), [0], _BROKERS, 9)
    state = step.states[0]
    assert (state.leader, state.leader_epoch, state.isr, state.unproven) == (2, 6, (1, 2), (1,))


def test_second_request_replaces_the_first() -> None:
    """KIP-455: replicas that were being added for the first are dropped at once."""
    topic = _topic((1, 2))
    first = _applied(topic, begin(topic, {0: (3, 2)}, _BROKERS, 9))
    second = begin(first, {0: (4, 1)}, _BROKERS, 9)
    assert second.record.assignment == ((4, 1, 2),)
    assert second.record.reassignments == {0: ReassignmentRecord(target=(4, 1), original=(1, 2))}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ((), "no broker at all"),
        ((1, 1), "two replicas on one broker"),
        ((1, 9), r"cannot be moved to \[9\]: live brokers are \[1, 2, 3, 4\]"),
    ],
)
def test_begin_refuses_an_impossible_target(target: tuple[int, ...], message: str) -> None:
    """Bad input: moving to a broker that does not exist."""
    with pytest.raises(InvalidReplicaAssignmentError, match=message):
        begin(_topic((1, 2)), {0: target}, _BROKERS, 9)


def test_begin_refuses_an_unknown_partition() -> None:
    """Bad input."""
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5, only 0 to 0"):
        begin(_topic((1, 2)), {5: (1,)}, _BROKERS, 9)


@given(
    original=st.permutations([1, 2, 3, 4]).map(lambda order: tuple(order[:2])),
    first=st.permutations([1, 2, 3, 4]).map(lambda order: tuple(order[:2])),
    second=st.permutations([1, 2, 3, 4]).map(lambda order: tuple(order[:3])),
    joined=st.sets(st.sampled_from([1, 2, 3, 4])),
)
def test_no_step_puts_leader_or_in_sync_outside_the_replicas(
    original: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...], joined: set[int]
) -> None:
    """Invariant: leader ∈ isr ⊆ replicas, and the isr is never empty."""
    topic = _topic(original)
    topic = _applied(topic, begin(topic, {0: first}, _BROKERS, 9))
    topic = _topic(
        topic.record.assignment[0],
        isr=original + tuple(b for b in topic.record.assignment[0] if b in joined and b not in original),
        leader=original[0],
        moving=topic.record.reassignments.get(0),
    )
    for step in (
        begin(topic, {0: second}, _BROKERS, 9),
        finish(topic, _BROKERS, 9),
        cancel(topic, [0], _BROKERS, 9) if topic.record.reassignments else None,
    ):
        if step is None:
            continue
        after = _applied(topic, step)
        present = after.partitions[0]
        assert present is not None
        assert present.state.isr
        assert set(present.state.isr) <= set(after.record.assignment[0])
        assert present.state.leader in present.state.isr


def test_decommission_spreads_the_brokers_replicas() -> None:
    """Its replicas go to the least loaded brokers, never to one that has the partition."""
    topics = {
        "a": _topic((3, 1)),
        "b": _topic((1, 3)),
        "c": _topic((3, 2)),
    }
    loads = {broker_id: BrokerLoad(leaders=0, replicas=broker_id) for broker_id in (1, 2, 3, 4)}
    moves = plan_decommission(3, topics, loads)
    assert set(moves) == {TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)}
    for at, target in moves.items():
        assert 3 not in target
        assert len(set(target)) == 2
        kept = [b for b in topics[at.topic].record.assignment[0] if b != 3]
        assert set(kept) <= set(target)


def test_decommission_moves_to_suspects_last() -> None:
    """A broker that was just found dead gets no replicas while others can take them."""
    loads = {1: BrokerLoad(), 2: BrokerLoad(), 4: BrokerLoad(replicas=9)}
    moves = plan_decommission(3, {"a": _topic((3, 1))}, loads, suspects={2})
    assert moves == {TopicPartition("a", 0): (4, 1)}
    del loads[4]
    assert plan_decommission(3, {"a": _topic((3, 1))}, loads, suspects={2}) == {TopicPartition("a", 0): (2, 1)}


def test_decommission_is_refused_without_room_for_the_replicas() -> None:
    """Bad input: a cluster of two cannot keep two replicas on one broker."""
    with pytest.raises(InvalidReplicaAssignmentError, match="broker 2 cannot be emptied: a-0 has 2 replicas"):
        plan_decommission(2, {"a": _topic((1, 2))}, {1: BrokerLoad(), 2: BrokerLoad()})
