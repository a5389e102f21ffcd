"""The state machine of a group: who may join, static members, Spark queries, members that are removed."""

from __future__ import annotations

import time

import pytest

from broker_runtime.contract.errors import (
    FencedInstanceIdError,
    GroupInUseError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    UnknownMemberIdError,
)
from broker_runtime.contract.requests import LEAVES_FOR_A_WHILE
from broker_runtime.groups.group import Limits
from tests.unit.groups.group_world import SESSION_MS, Client, World

# --- static members -------------------------------------------------------------------------------------------------


def test_static_member_that_comes_back_keeps_its_partitions():
    world = World()
    a, b = world.client("a"), world.client("b1", instance_id="b")
    world.settle(a, b)
    had = set(b.held)
    b.leave(LEAVES_FOR_A_WHILE)
    world.now_ms += SESSION_MS - 1
    a.beat()
    world.settle(a)
    assert len(a.held) == 2, "the partitions of an absent member wait for it"
    again = world.client("b2", instance_id="b")
    world.settle(a, again)
    assert again.held == had


def test_static_member_that_stays_away_is_given_up():
    world = World()
    a, b = world.client("a"), world.client("b1", instance_id="b")
    world.settle(a, b)
    b.leave(LEAVES_FOR_A_WHILE)
    world.now_ms += SESSION_MS // 2
    a.beat()
    world.now_ms += SESSION_MS // 2
    a.beat()
    world.settle(a)
    assert a.held == {0, 1, 2, 3}


def test_killed_static_member_gets_its_partitions_when_its_former_lease_has_ended():
    """Kafka reassigns them at once, and two processes may hold them then; here the former one must have ended."""
    world = World()
    a, b = world.client("a"), world.client("b1", instance_id="b")
    world.settle(a, b)
    had = set(b.held)
    again = world.client("b2", instance_id="b")
    with pytest.raises(FencedInstanceIdError, match="'b'"):
        b.beat()
    world.settle(a, again)
    assert again.held == set()
    world.now_ms += SESSION_MS // 2
    a.beat()
    again.beat()
    b.held = set()
    world.now_ms += SESSION_MS // 2
    world.settle(a, again)
    assert again.held == had
    assert len(a.held) == 2


def test_fenced_static_member_that_leaves_frees_its_partitions_at_once():
    world = World()
    b = world.client("b1", instance_id="b")
    world.settle(b)
    again = world.client("b2", instance_id="b")
    b.leave(LEAVES_FOR_A_WHILE)
    world.settle(again)
    assert again.held == {0, 1, 2, 3}


def test_only_static_members_leave_temporarily():
    world = World()
    a = world.client("a")
    with pytest.raises(InvalidRequestError, match="instance id"):
        a.beat(LEAVES_FOR_A_WHILE)


# --- who may join ---------------------------------------------------------------------------------------------------


def test_invalid_joins_are_refused():
    world = World()
    with pytest.raises(InvalidSessionTimeoutError, match="1000 to 60000"):
        world.client("a", session_timeout_ms=999)
    with pytest.raises(InvalidRequestError, match="topics"):
        Client(world, "a").beat(topics=None)
    for number in range(5):
        world.client(str(number))
    with pytest.raises(GroupMaxSizeReachedError, match="5 members"):
        world.client("6")
    assert len(world.group.members(0, {})) == 5


def test_spark_query_has_its_group_for_itself():
    """S5: of two running queries with one id the second is refused; a killed one frees it within its session."""
    world = World()
    query = world.client("q", kind="spark")
    world.settle(query)
    assert query.held == set()
    (member,) = world.group.members(world.now_ms, world.topics)
    assert [each.partitions for each in member.assignment] == [(0, 1, 2, 3)]
    for kind in ("spark", "consumer"):
        with pytest.raises(GroupInUseError, match="member q"):
            world.client("r", kind=kind)
    assert query.commit(0, 3) == [None, None]
    query.end_commit(0, 3)
    world.now_ms += SESSION_MS
    world.client("r", kind="spark")


def test_spark_query_cannot_join_a_group_of_consumers():
    world = World()
    a = world.client("a")
    with pytest.raises(GroupInUseError, match="a consumer"):
        world.client("q", kind="spark")
    a.leave()
    world.client("q", kind="spark")


def test_members_removed_by_an_administrator_keep_their_partitions_until_their_lease_ends():
    world = World()
    a, b = world.client("a"), world.client("b1", instance_id="b")
    world.settle(a, b)
    with pytest.raises(UnknownMemberIdError, match="'x'"):
        world.group.remove(["a", "x"])
    a.beat()
    world.group.remove(["b"])
    with pytest.raises(UnknownMemberIdError):
        b.beat()
    world.settle(a)
    assert len(a.held) == 2
    world.now_ms += SESSION_MS // 2
    a.beat()
    world.now_ms += SESSION_MS // 2
    b.held = set()
    a.beat()
    world.settle(a)
    assert len(a.held) == 4


def test_members_named_many_times_are_removed_once_and_quickly():
    """The group's lock is held meanwhile, and the broker's loop waits for it."""
    world = World(limits=Limits(min_session_ms=1_000, max_session_ms=60_000, max_members=500))
    for number in range(500):
        world.client(f"m{number}")
    began_s = time.process_time()
    world.group.remove([f"m{number}" for number in range(400)] * 500)
    assert time.process_time() - began_s < 1.0
    assert [member.state for member in world.group.members(world.now_ms, world.topics)].count("fenced") == 400
