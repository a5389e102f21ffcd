"""The state machine of a group: whose commits count, what a successor knows, and the table of states."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from broker_runtime.contract.requests import LEAVES_FOR_A_WHILE, GroupHeartbeatRequest
from broker_runtime.groups.group import Group
from broker_runtime.groups.member import Event, Member, MemberState
from tests.unit.groups.group_world import LIMITS, SESSION_MS, Client, World, partitions

# --- commits --------------------------------------------------------------------------------------------------------


def test_commit_counts_for_partitions_held_in_its_epoch():
    """W18: it also counts while the member is about to release the partition."""
    world = World()
    a = world.client("a")
    world.settle(a)
    old = a.epoch
    b = world.client("b")
    world.plan()
    a.beat()
    releasing = a.held - a.assigned
    assert a.commit(*releasing) == [None, None]
    a.end_commit(*releasing)
    assert a.commit(*releasing, epoch=old) == [None, None], "the answer may still be on its way"
    a.end_commit(*releasing)
    a.carry_out()
    world.settle(a, b)
    refused = a.commit(*releasing, min(a.held))
    a.end_commit(*releasing, min(a.held))
    assert [type(each) for each in refused] == [StaleMemberEpochError, StaleMemberEpochError, type(None)]
    assert [type(each) for each in b.commit(*releasing, epoch=old)] == [StaleMemberEpochError] * 2
    b.end_commit(*releasing)


def test_late_commit_is_refused():
    world = World()
    a = world.client("a")
    world.settle(a)
    assert a.commit(0, sequence=2) == [None]
    assert a.commit(0, sequence=2) == [None], "the same commit, sent again"
    assert isinstance(a.commit(0, sequence=1)[0], StaleMemberEpochError)


def test_partition_is_not_reassigned_while_a_commit_of_its_last_owner_is_in_flight():
    """Otherwise the next owner could begin before the commit, and be set back by it afterwards."""
    world = World()
    a = world.client("a")
    world.settle(a)
    assert a.commit(0) == [None]
    a.leave()
    b = world.client("b")
    world.settle(b)
    assert b.held == set()
    with pytest.raises(UnknownMemberIdError):
        a.commit(0)
    a.end_commit(0)
    world.settle(b)
    assert b.held == {0, 1, 2, 3}


def test_released_partition_is_not_reassigned_while_its_commit_is_in_flight():
    """The caller gave up the commit before it released the partition; its other commits delay nothing."""
    world = World()
    a = world.client("a")
    world.settle(a)
    b = world.client("b")
    world.plan()
    a.beat()
    kept, (released, other) = min(a.assigned), sorted(a.held - a.assigned)
    assert a.commit(kept, released) == [None, None]
    assert a.commit(released, sequence=0) == [None], "sent again"
    a.carry_out()
    a.end_commit(kept, released)
    for _ in range(3):
        world.settle(a, b)
        assert b.held == set()
        assert not a.beat().is_settled, "it is asked again soon"
    a.end_commit(released)
    assert a.commit(kept) == [None]
    world.settle(a, b)
    assert b.held == {released, other}
    assert [type(each) for each in a.commit(released)] == [StaleMemberEpochError]


def test_static_member_may_leave_temporarily_with_a_commit_in_flight():
    world = World()
    a = world.client("a1", instance_id="a")
    world.settle(a)
    a.commit(0)
    a.leave(LEAVES_FOR_A_WHILE)
    again = world.client("a2", instance_id="a")
    world.settle(again)
    assert again.held == set()
    a.end_commit(0)
    world.settle(again)
    assert again.held == {0, 1, 2, 3}


def test_non_member_commits_only_while_there_are_no_members():
    world = World()
    assert world.commit_without_membership(0) == [None]
    a = world.client("a")
    world.settle(a)
    assert a.held == set(), "a non-member's commit is in flight"
    world.group.end_commit("", partitions(0))
    world.settle(a)
    assert a.held == {0, 1, 2, 3}
    with pytest.raises(NonEmptyGroupError, match="members"):
        world.commit_without_membership(0)


def test_non_member_waits_until_the_leave_of_members_is_persisted():
    """Otherwise a reset could be acknowledged and then undone by an earlier commit of a member: a successor would
    still regard it as a member.
    """
    world = World()
    a = world.client("a")
    world.settle(a)
    assert a.commit(0) == [None]
    a.leave()
    with pytest.raises(CoordinatorNotAvailableError, match="left"):
        world.commit_without_membership(0)
    a.end_commit(0)
    with pytest.raises(CoordinatorNotAvailableError, match="left"):
        world.commit_without_membership(0)
    world.plan()
    assert world.written.members == ()
    assert world.commit_without_membership(0) == [None]


# --- successors -----------------------------------------------------------------------------------------------------


def successor(world: World) -> None:
    """The coordinator died after its last write; another one knows what is in ZooKeeper."""
    world.group = Group.restore("g", LIMITS, world.written, world.now_ms, 5_000)


def test_successor_keeps_members_epochs_and_partitions_and_waits_for_the_silent():
    world = World()
    a, b = world.client("a"), world.client("b")
    world.settle(a, b)
    before = (a.epoch, set(a.held))
    lost = set(b.held)
    successor(world)
    assert a.beat().assignment is None
    world.settle(a)
    assert (a.epoch, a.held) == before
    world.now_ms += SESSION_MS + 4_999
    # a sends heartbeats now and then, b never
    world.group._members["a"].heard(world.now_ms)
    world.settle(a)
    assert a.held.isdisjoint(lost)
    world.now_ms += 1
    b.held = set()
    a.beat()
    world.settle(a)
    assert a.held == {0, 1, 2, 3}


def test_successor_does_not_reassign_partitions_that_its_predecessor_was_revoking():
    world = World()
    a = world.client("a")
    world.settle(a)
    b = world.client("b")
    world.plan()
    a.beat()
    successor(world)
    world.settle(b)
    assert b.held == set()
    a.beat()
    a.carry_out()
    a.beat()
    world.settle(a, b)
    assert len(a.held) == len(b.held) == 2


def test_members_that_only_the_predecessor_knew_join_again():
    world = World()
    a = world.client("a")
    world.settle(a)
    Client(world, "b").beat()
    successor(world)
    assert [member.member_id for member in world.group.members(0, {})] == ["a"]


@pytest.mark.parametrize("state", list(MemberState))
@pytest.mark.parametrize("event", list(Event))
def test_transitions_that_are_not_in_the_table_cannot_happen(state, event):
    member = Member.joining(GroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, topics=("t",)), now_ms=0)
    member.state = state
    is_dead = state in (MemberState.GONE, MemberState.FENCED)
    may = {
        Event.ASSIGNED: state in (MemberState.JOINING, MemberState.RECONCILING, MemberState.STABLE),
        Event.ACKNOWLEDGED: state in (MemberState.RECONCILING, MemberState.STABLE),
        Event.LEFT_FOR_A_WHILE: not is_dead and state is not MemberState.AWAY,
        Event.FENCED: state is not MemberState.GONE,
        Event.GONE: True,
    }[event]
    if may:
        member.happens(event)
    else:
        with pytest.raises(ValueError, match="cannot be"):
            member.happens(event)
    assert may or member.state is state
