"""The state machine of a group: members share partitions, and none gets a partition that another may hold."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import UnknownMemberIdError
from broker_runtime.groups.group import SOON_MS
from broker_runtime.groups.shares import TopicShape
from tests.unit.groups.group_world import ID, OTHER_ID, SESSION_MS, Client, World


def test_one_member_has_every_partition():
    """W22."""
    world = World()
    a = world.client("a")
    assert not a.beat().is_settled
    world.settle(a)
    assert a.held == {0, 1, 2, 3}
    answer = a.beat()
    assert answer.is_settled
    assert answer.assignment is None
    assert answer.heartbeat_interval_ms > SOON_MS
    assert world.group.state == "stable"


def test_second_member_gets_a_partition_only_when_the_first_has_released_it():
    """W22, W24: the first member keeps the rest throughout."""
    world = World()
    a = world.client("a")
    world.settle(a)
    b = world.client("b")
    world.plan()
    b.beat()
    assert b.assigned == set()
    a.beat()
    assert len(a.assigned) == 2
    world.plan()
    b.beat()
    b.carry_out()
    assert b.held == set(), "a has not acknowledged a release yet"
    assert a.beat().heartbeat_interval_ms == SOON_MS
    a.carry_out()
    a.beat()
    world.settle(a, b)
    assert a.held | b.held == {0, 1, 2, 3}
    assert len(a.held) == len(b.held) == 2


def test_members_beyond_the_partitions_wait_and_take_over_when_one_leaves():
    """W23."""
    world = World(partitions=2)
    members = [world.client(name) for name in "abc"]
    world.settle(*members)
    assert sorted(len(member.held) for member in members) == [0, 1, 1]
    waiting = next(member for member in members if not member.held)
    assert waiting.beat().is_settled
    leaving = next(member for member in members if member.held)
    gone = set(leaving.held)
    leaving.leave()
    members.remove(leaving)
    world.settle(*members)
    assert waiting.held == gone


def test_silent_member_keeps_its_partitions_until_its_session_has_ended():
    world = World()
    a, b = world.client("a"), world.client("b")
    world.settle(a, b)
    lost = set(b.held)
    world.now_ms += SESSION_MS - 1
    a.beat()
    world.settle(a)
    assert a.held.isdisjoint(lost)
    world.now_ms += 1
    assert world.group.is_due(world.now_ms)
    b.held = set()  # its lease has ended, too
    a.beat()
    world.settle(a)
    assert a.held == {0, 1, 2, 3}
    with pytest.raises(UnknownMemberIdError):
        b.beat()


def test_late_member_is_refused_even_before_the_next_plan():
    world = World()
    a = world.client("a")
    world.settle(a)
    world.now_ms += SESSION_MS
    with pytest.raises(UnknownMemberIdError):
        a.beat()


def test_lost_answer_is_repeated():
    world = World()
    a = world.client("a")
    world.plan()
    first = a.beat()
    assert a.beat() == first
    assert first.assignment is not None
    a.carry_out()
    assert a.beat().assignment is None


def test_late_repeated_join_revokes_nothing_and_readmits_nobody():
    world = World()
    a = world.client("a")
    world.settle(a)
    assert a.beat(epoch=0).assignment is not None
    world.settle(a)
    assert a.held == {0, 1, 2, 3}
    a.leave()
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=0)
    world.plan()
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=0)
    assert world.group.size == 0


def test_leave_that_overtakes_the_join_wins():
    world = World()
    a = Client(world, "a")
    a.leave()
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=0)


def test_epoch_that_was_never_assigned_is_refused():
    world = World()
    a = world.client("a")
    world.settle(a)
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=a.epoch + 1)
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=-7)


def test_added_and_deleted_partitions_and_topics_are_reassigned():
    world = World(partitions=1)
    a, b = world.client("a"), world.client("b")
    world.settle(a, b)
    world.topics = {"t": TopicShape(ID, 4)}
    world.settle(a, b)
    assert len(a.held) == len(b.held) == 2
    world.topics = {"t": TopicShape(OTHER_ID, 2)}  # deleted and recreated
    world.settle(a, b)
    assert sorted([*a.held, *b.held]) == [0, 1]
    assert {each.topic_id for m in world.group.members(0, {}) for each in m.assignment} == {OTHER_ID}
    world.topics = {}
    world.settle(a, b)
    assert a.held == b.held == set()


def test_changed_subscription_is_reassigned():
    world = World()
    a = world.client("a")
    world.settle(a)
    a.beat(topics=("u",))
    world.plan()
    a.beat(topics=None)
    assert a.assigned == set()


def test_slow_release_costs_the_membership_and_nothing_is_reassigned_before_the_lease_ends():
    """The member continues to send heartbeats and never releases."""
    world = World(partitions=2)
    a = world.client("a", rebalance_timeout_ms=3_000)
    world.settle(a)
    b = world.client("b")
    world.plan()
    for _ in range(3):
        a.beat()
        heard_ms = world.now_ms
        b.beat()
        world.now_ms += 1_000
        world.plan()
    with pytest.raises(UnknownMemberIdError):
        a.beat()
    world.now_ms = heard_ms + SESSION_MS - 1
    b.beat()
    world.settle(b)
    assert b.held == set()
    world.now_ms += 1
    a.held = set()  # its lease
    world.settle(b)
    assert b.held == {0, 1}


def test_plan_that_was_not_written_changes_nothing():
    world = World()
    a = world.client("a")
    assert world.group.plan(world.topics, world.now_ms) is not None
    assert a.beat().assignment is None
    assert world.group.plan(world.topics, world.now_ms) == world.group.plan(world.topics, world.now_ms)
    world.settle(a)
    b = world.client("b")
    assert world.group.plan(world.topics, world.now_ms) is not None
    a.beat()
    assert a.assigned == {0, 1, 2, 3}
    world.settle(a, b)
    assert len(a.held) == 2


def test_member_that_leaves_between_plan_and_adoption_gets_no_assignment():
    world = World()
    a, b = world.client("a"), world.client("b")
    plan = world.group.plan(world.topics, world.now_ms)
    assert plan is not None
    b.leave()
    world.group.adopt(plan)
    world.settle(a)
    assert a.held == {0, 1, 2, 3}
