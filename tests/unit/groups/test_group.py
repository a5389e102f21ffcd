"""The machine of a group: members come and go, and nobody is given what another may hold."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import (
    FencedInstanceIdError,
    GroupInUseError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    PylogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from broker_runtime.contract.requests import LEAVES, LEAVES_FOR_A_WHILE, GroupHeartbeatRequest, GroupHeartbeatResponse
from broker_runtime.groups.group import SOON_MS, Group, Limits
from broker_runtime.groups.member import Event, Member, MemberState
from broker_runtime.groups.shares import TopicShape
from broker_runtime.zookeeper.znodes import GroupMembers

ID, OTHER_ID = b"\x01" * 16, b"\x02" * 16
SESSION_MS = 10_000
LIMITS = Limits(min_session_ms=1_000, max_session_ms=60_000, max_members=5)


class Client:
    """A member's client: it remembers the last epoch it was told and carries out what it is told when asked to."""

    def __init__(self, world: World, name: str, **settings: object) -> None:
        self.world = world
        self.name = name
        self.settings = settings
        self.epoch = self.told_epoch = 0
        self.held: set[int] = set()
        self.told: set[int] = set()

    def beat(self, epoch: int | None = None, topics: tuple[str, ...] | None = ("t",)) -> GroupHeartbeatResponse:
        request = GroupHeartbeatRequest(
            group_id="g",
            member_id=self.name,
            member_epoch=self.epoch if epoch is None else epoch,
            topics=topics,
            **{"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 30_000, **self.settings},  # type: ignore[arg-type]
        )
        answer = self.world.group.heartbeat(request, self.world.now_ms)
        if answer.assignment is not None:
            self.told_epoch = answer.member_epoch
            self.told = {number for each in answer.assignment for number in each.partitions}
            self.held |= self.told
        return answer

    def carry_out(self) -> None:
        self.held = set(self.told)
        self.epoch = self.told_epoch

    def leave(self, epoch: int = LEAVES) -> None:
        self.held = set()
        self.beat(epoch)

    def commit(self, *numbers: int, epoch: int | None = None, sequence: int = -1) -> list[PylogError | None]:
        return self.world.group.begin_commit(
            self.name,
            self.told_epoch if epoch is None else epoch,
            sequence,
            [("t", None, number) for number in numbers],
            self.world.now_ms,
        )


class World:
    """A group, its topic, and the time. After `settle` everybody has carried out what he was told."""

    def __init__(self, partitions: int = 4) -> None:
        self.group = Group("g", LIMITS)
        self.topics = {"t": TopicShape(ID, partitions)}
        self.now_ms = 1_000
        self.clients: list[Client] = []
        self.written = GroupMembers(epoch=0)

    def client(self, name: str, **settings: object) -> Client:
        client = Client(self, name, **settings)
        self.clients.append(client)
        client.beat()
        return client

    def plan(self) -> None:
        for _ in range(10):
            plan = self.group.plan(self.topics, self.now_ms)
            if plan is None:
                return
            self.written = plan.record
            self.group.adopt(plan)
            self.check()
        pytest.fail("plans do not come to an end")

    def settle(self, *clients: Client) -> None:
        for _ in range(6):
            self.plan()
            for client in clients:
                client.beat()
                client.carry_out()
        self.plan()

    def check(self) -> None:
        """W24: no partition is held by two."""
        held = [number for client in self.clients for number in client.held]
        assert len(held) == len(set(held)), {client.name: client.held for client in self.clients}


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
    """W22, W24: and the first keeps the rest all the while."""
    world = World()
    a = world.client("a")
    world.settle(a)
    b = world.client("b")
    world.plan()
    b.beat()
    assert b.told == set()
    a.beat()
    assert len(a.told) == 2
    world.plan()
    b.beat()
    b.carry_out()
    assert b.held == set(), "a has not said yet that it released anything"
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


def test_member_that_is_heard_of_too_late_is_refused_although_nobody_has_planned_yet():
    world = World()
    a = world.client("a")
    world.settle(a)
    world.now_ms += SESSION_MS
    with pytest.raises(UnknownMemberIdError):
        a.beat()


def test_answer_that_was_lost_is_given_again():
    world = World()
    a = world.client("a")
    world.plan()
    first = a.beat()
    assert a.beat() == first
    assert first.assignment is not None
    a.carry_out()
    assert a.beat().assignment is None


def test_join_that_is_repeated_late_takes_nothing_away_and_makes_nobody_a_member_again():
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
    assert world.group.is_empty


def test_leave_that_overtakes_the_join_wins():
    world = World()
    a = Client(world, "a")
    a.leave()
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=0)


def test_epoch_that_was_never_told_is_refused():
    world = World()
    a = world.client("a")
    world.settle(a)
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=a.epoch + 1)
    with pytest.raises(UnknownMemberIdError):
        a.beat(epoch=-7)


def test_partitions_and_topics_that_come_and_go_are_shared_anew():
    world = World(partitions=1)
    a, b = world.client("a"), world.client("b")
    world.settle(a, b)
    world.topics = {"t": TopicShape(ID, 4)}
    world.settle(a, b)
    assert len(a.held) == len(b.held) == 2
    world.topics = {"t": TopicShape(OTHER_ID, 2)}  # deleted and made anew
    world.settle(a, b)
    assert sorted([*a.held, *b.held]) == [0, 1]
    assert {each.topic_id for m in world.group.members(0, {}) for each in m.assignment} == {OTHER_ID}
    world.topics = {}
    world.settle(a, b)
    assert a.held == b.held == set()


def test_subscription_that_changes_is_shared_anew():
    world = World()
    a = world.client("a")
    world.settle(a)
    a.beat(topics=("u",))
    world.plan()
    a.beat(topics=None)
    assert a.told == set()


def test_release_that_takes_too_long_costs_the_membership_and_nothing_is_given_on_before_the_lease_ends():
    """A member that goes on sending heartbeats and never releases."""
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
    assert a.told == {0, 1, 2, 3}
    world.settle(a, b)
    assert len(a.held) == 2


def test_member_that_leaves_between_plan_and_adoption_is_not_told_and_goes():
    world = World()
    a, b = world.client("a"), world.client("b")
    plan = world.group.plan(world.topics, world.now_ms)
    assert plan is not None
    b.leave()
    world.group.adopt(plan)
    world.settle(a)
    assert a.held == {0, 1, 2, 3}


# --- static members -------------------------------------------------------------------------------------------------


def test_static_member_that_comes_back_has_the_partitions_it_had():
    world = World()
    a, b = world.client("a"), world.client("b1", instance_id="b")
    world.settle(a, b)
    had = set(b.held)
    b.leave(LEAVES_FOR_A_WHILE)
    world.now_ms += SESSION_MS - 1
    a.beat()
    world.settle(a)
    assert len(a.held) == 2, "the share of one that is away waits for it"
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


def test_static_member_that_was_killed_gets_its_partitions_when_the_lease_of_its_former_life_has_ended():
    """Kafka gives them at once, and two processes may hold them then; here the former one has to be over."""
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


def test_static_member_that_is_fenced_and_says_that_it_left_frees_its_partitions_at_once():
    world = World()
    b = world.client("b1", instance_id="b")
    world.settle(b)
    again = world.client("b2", instance_id="b")
    b.leave(LEAVES_FOR_A_WHILE)
    world.settle(again)
    assert again.held == {0, 1, 2, 3}


def test_only_static_members_leave_for_a_while():
    world = World()
    a = world.client("a")
    with pytest.raises(InvalidRequestError, match="instance id"):
        a.beat(LEAVES_FOR_A_WHILE)


# --- who may join ---------------------------------------------------------------------------------------------------


def test_joins_that_are_not_allowed():
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
    """S5: two live queries with one id: the second is refused; a killed one frees it within its session."""
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
    world.group.end_commit("q")
    world.now_ms += SESSION_MS
    world.client("r", kind="spark")


def test_spark_query_gets_no_group_that_has_consumers():
    world = World()
    a = world.client("a")
    with pytest.raises(GroupInUseError, match="a consumer"):
        world.client("q", kind="spark")
    a.leave()
    world.client("q", kind="spark")


def test_members_that_an_administrator_removes_hold_what_they_hold_until_their_lease_ends():
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


# --- commits --------------------------------------------------------------------------------------------------------


def test_commit_counts_for_what_the_member_holds_in_the_epoch_it_says():
    """W18: also while it is about to release it."""
    world = World()
    a = world.client("a")
    world.settle(a)
    old = a.epoch
    b = world.client("b")
    world.plan()
    a.beat()
    releasing = a.held - a.told
    assert a.commit(*releasing) == [None, None]
    world.group.end_commit("a")
    assert a.commit(*releasing, epoch=old) == [None, None], "the answer may still be on its way"
    world.group.end_commit("a")
    a.carry_out()
    world.settle(a, b)
    refused = a.commit(*releasing, min(a.held))
    world.group.end_commit("a")
    assert [type(each) for each in refused] == [StaleMemberEpochError, StaleMemberEpochError, type(None)]
    assert [type(each) for each in b.commit(*releasing, epoch=old)] == [StaleMemberEpochError] * 2
    world.group.end_commit("b")


def test_commit_that_arrives_late_is_refused():
    world = World()
    a = world.client("a")
    world.settle(a)
    assert a.commit(0, sequence=2) == [None]
    assert a.commit(0, sequence=2) == [None], "the same, sent again"
    assert isinstance(a.commit(0, sequence=1)[0], StaleMemberEpochError)


def test_partition_is_not_given_on_while_a_commit_of_its_last_owner_is_under_way():
    """Else the next one could begin before it, and be set back by it afterwards."""
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
    world.group.end_commit("a")
    world.settle(b)
    assert b.held == {0, 1, 2, 3}


def test_static_member_that_left_for_a_while_with_a_commit_under_way():
    world = World()
    a = world.client("a1", instance_id="a")
    world.settle(a)
    a.commit(0)
    a.leave(LEAVES_FOR_A_WHILE)
    again = world.client("a2", instance_id="a")
    world.settle(again)
    assert again.held == set()
    world.group.end_commit("a1")
    world.settle(again)
    assert again.held == {0, 1, 2, 3}


def test_who_is_no_member_commits_only_while_there_are_none():
    world = World()
    assert world.group.begin_commit("", -1, -1, [("t", None, 0)], 0) == [None]
    a = world.client("a")
    world.settle(a)
    assert a.held == set(), "a commit of somebody else is under way"
    world.group.end_commit("")
    world.settle(a)
    assert a.held == {0, 1, 2, 3}
    with pytest.raises(NonEmptyGroupError, match="members"):
        world.group.begin_commit("", -1, -1, [("t", None, 0)], world.now_ms)


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
    # a is heard of now and then, b never
    world.group._members["a"].heard(world.now_ms)
    world.settle(a)
    assert a.held.isdisjoint(lost)
    world.now_ms += 1
    b.held = set()
    a.beat()
    world.settle(a)
    assert a.held == {0, 1, 2, 3}


def test_successor_does_not_give_on_what_its_predecessor_had_told_somebody_to_release():
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


def test_members_that_only_the_predecessor_knew_join_anew():
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
        Event.TOLD: state in (MemberState.JOINING, MemberState.RECONCILING, MemberState.STABLE),
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
