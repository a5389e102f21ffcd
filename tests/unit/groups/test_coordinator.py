"""A broker's groups: claimed, restored, persisted before they are announced, given up; and what deposed coordinators
do.
"""

import os

import pytest

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    NonEmptyGroupError,
    NotCoordinatorError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.requests import LEAVES, GroupHeartbeatRequest
from broker_runtime.groups.group import Group
from broker_runtime.groups.hosted import GRACE_MS, IDLE_MS, STANDS_MS
from broker_runtime.zookeeper.session import BadVersionError, Set
from broker_runtime.zookeeper.znodes import (
    GroupMembers,
    GroupOffsets,
    StoredOffset,
    from_json,
    group_members_path,
    to_json,
)
from tests.unit.groups.coordinating import ID, World

SESSION_MS = 10_000


@pytest.fixture
def world():
    world = World()
    world.create_topic("t", partitions=4)
    return world


class Member:
    """A member that carries out each assignment at once."""

    def __init__(self, broker, member_id="m", group_id="g"):
        self.broker, self.member_id, self.group_id = broker, member_id, group_id
        self.epoch, self.held = 0, set()

    def beat(self, epoch=None):
        answer = self.broker.coordinator.heartbeat(
            GroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch if epoch is None else epoch,
                topics=("t",),
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
            )
        )
        if answer.assignment is not None:
            self.held = {number for part in answer.assignment for number in part.partitions}
            self.epoch = answer.member_epoch
        return answer

    def join(self):
        self.beat()
        self.broker.coordinator.step()
        self.beat()
        self.beat()
        return self


def settle(*members, rounds=6):
    for _ in range(rounds):
        for member in members:
            member.beat()
            member.broker.coordinator.step()


def commit(member, *numbers, epoch=None, sequence=-1):
    return member.broker.coordinator.committing(
        member.group_id,
        member.member_id,
        member.epoch if epoch is None else epoch,
        sequence,
        [("t", ID, number) for number in numbers],
    )


def written(world, group_id="g"):
    path = group_members_path(group_id)
    node = world.client.find(path)
    return None if node is None else from_json(node.data, GroupMembers, path)


def held_in(record):
    return {each.member_id: sorted(number for held in each.held for number in held.granted) for each in record.members}


def test_assignment_is_in_zookeeper_before_a_member_gets_it(world):
    member = Member(world.brokers[1])
    assert member.beat().assignment is None
    assert written(world) is None
    world.brokers[1].coordinator.step()
    assert held_in(written(world)) == {"m": [0, 1, 2, 3]}
    assert member.held == set()
    member.beat()
    assert member.held == {0, 1, 2, 3}


def test_heartbeats_make_no_zookeeper_requests(world):
    broker = world.brokers[1]
    member = Member(broker).join()
    broker.coordinator.step()
    broker.client.transactions.clear()
    broker.client.reads = 0
    for _ in range(100):
        member.beat()
        broker.coordinator.step()
    assert (broker.client.transactions, broker.client.reads) == ([], 0)


def test_members_that_join_together_are_planned_together(world):
    broker = world.brokers[1]
    members = [Member(broker, f"m{number}") for number in range(4)]
    for member in members:
        member.beat()
    broker.coordinator.step()
    settle(*members, rounds=2)
    assert [len(member.held) for member in members] == [1, 1, 1, 1]
    assert written(world).epoch == 1


def test_successor_knows_members_and_waits_for_the_sessions_of_dead_ones(world):
    """W24: no partition is reassigned before the last lease that the predecessor may have extended has ended."""
    first, second = world.brokers[1], world.brokers[2]
    one, two = Member(first, "one"), Member(first, "two")
    settle(one, two)
    assert (len(one.held), len(two.held)) == (2, 2)
    held, epoch = set(one.held), one.epoch
    first.die()
    world.now_ms += 1_000
    one.broker = second
    one.beat()
    assert (one.held, one.epoch) == (held, epoch)
    taken_ms = world.now_ms
    while world.now_ms < taken_ms + SESSION_MS + GRACE_MS - 500:
        world.now_ms += 500
        settle(one, rounds=1)
        assert one.held == held
    world.now_ms += 500
    settle(one)
    assert one.held == {0, 1, 2, 3}
    two.broker = second
    with pytest.raises(UnknownMemberIdError):
        two.beat()


def test_successor_waits_for_a_member_that_returns_to_the_deposed_coordinator(world):
    """W24: an answer of the successor may be lost, and one of the deposed coordinator extends the lease afterwards."""
    first, second = world.brokers[1], world.brokers[2]
    one, two = Member(first, "one"), Member(first, "two")
    settle(one, two)
    first.die()
    taken_ms = world.now_ms
    for member in (one, two):
        member.broker = second
        member.beat()
    held, epoch = set(one.held), one.epoch
    while world.now_ms < taken_ms + SESSION_MS + GRACE_MS - 500:
        world.now_ms += 500
        settle(one, rounds=1)
        assert (one.held, one.epoch) == (held, epoch), "the other one may have renewed its lease elsewhere"
    world.now_ms += 500
    settle(one)
    assert one.held == {0, 1, 2, 3}


def test_deposed_coordinator_extends_no_lease_longer_than_its_successor_waits(world):
    """A broker that does not know whether its claim stands says so, and does not answer."""
    first, second = world.brokers[1], world.brokers[2]
    member = Member(first).join()
    first.die()
    second.coordinator.heartbeat(GroupHeartbeatRequest(group_id="g", member_id="n", member_epoch=0, topics=("t",)))
    taken_ms = world.now_ms
    first.client._client.suspend()
    for _ in range(20):
        world.now_ms += 500
        first.coordinator.step()
        if world.now_ms - taken_ms <= STANDS_MS:
            member.beat()
        else:
            with pytest.raises(CoordinatorNotAvailableError):
                member.beat()
    assert GRACE_MS >= STANDS_MS
    first.client._client.resume()
    first.coordinator.step()
    with pytest.raises(NotCoordinatorError, match="broker 2"):
        member.beat()


def test_deposed_coordinator_writes_nothing_and_drops_the_group(world):
    first, second = world.brokers[1], world.brokers[2]
    Member(first).join()
    late = Member(first, "late")
    late.beat()
    first.die()
    second.groups.load("g", creates=False)
    before = written(world)
    first.coordinator.step()
    assert written(world) == before
    with pytest.raises(NotCoordinatorError):
        late.beat()


def test_invalid_claim_is_noticed_within_two_seconds(world):
    first, second = world.brokers[1], world.brokers[2]
    member = Member(first).join()
    first.coordinator.step()
    first.die()
    second.groups.load("g", creates=False)
    member.beat()
    world.now_ms += 2_000
    first.coordinator.step()
    with pytest.raises(NotCoordinatorError):
        member.beat()


def test_lost_session_ends_all_claims(world):
    broker = world.brokers[1]
    member = Member(broker).join()
    broker.restart()
    assert broker.groups.find("g") is None
    member.beat()
    assert (member.held, member.epoch) == ({0, 1, 2, 3}, 1), "claimed again, and restored"


def test_groups_of_an_ended_registration_hold_up_no_others(world):
    broker = world.brokers[1]
    Member(broker, group_id="a").join()
    late = Member(broker, "late", "a")
    late.beat()
    broker.restart()
    member = Member(broker, group_id="b")
    member.beat()
    broker.coordinator.step()
    member.beat()
    assert member.held == {0, 1, 2, 3}


def test_members_whose_reply_was_lost_are_read_back(world):
    broker = world.brokers[1]
    member = Member(broker)
    broker.coordinator.step()  # verifies, which is a write as well
    member.beat()
    broker.client.loses_replies = 1
    broker.coordinator.step()
    member.beat()
    assert (member.held, written(world).epoch) == ({0, 1, 2, 3}, 1)
    assert world.client.get(group_members_path("g")).version == 0


def test_members_that_were_not_written_are_planned_again(world):
    broker = world.brokers[1]
    one = Member(broker, "one")
    broker.coordinator.step()
    one.beat()
    broker.client.fails = 2  # the write, and the check whether it was written
    broker.coordinator.step()
    one.beat()
    assert (one.held, written(world)) == (set(), None)
    two = Member(broker, "two")
    world.now_ms += 500
    settle(one, two)
    assert (len(one.held), len(two.held)) == (2, 2)


def test_record_that_was_written_unnoticed_is_overwritten(world):
    """It was never announced to anybody."""
    broker = world.brokers[1]
    one, two = Member(broker, "one"), Member(broker, "two")
    broker.coordinator.step()
    one.beat()
    broker.client.loses_replies = 2  # the write's, and that of the check whether it was written
    broker.coordinator.step()
    assert held_in(written(world)) == {"one": [0, 1, 2, 3]}
    one.beat()
    assert one.held == set()
    two.beat()
    world.now_ms += 500
    settle(one, two)
    assert one.held | two.held == {0, 1, 2, 3}
    assert not one.held & two.held
    assert held_in(written(world)) == {"one": sorted(one.held), "two": sorted(two.held)}


def test_partitions_of_a_member_that_expires_during_its_commit_are_not_reassigned(world):
    """D8(11): a commit in flight never meets commits of the next owner."""
    broker = world.brokers[1]
    one, two = Member(broker, "one"), Member(broker, "two")
    settle(one, two)
    with commit(one, *one.held) as (refusals, _):
        assert refusals == [None, None]
        for _ in range(2 * SESSION_MS // 500):
            world.now_ms += 500
            settle(two, rounds=1)
        assert len(two.held) == 2
    settle(two)
    assert two.held == {0, 1, 2, 3}
    with pytest.raises(UnknownMemberIdError), commit(one, 0):
        pass


def test_commits_are_accepted_for_held_partitions_or_without_members(world):
    broker = world.brokers[1]
    nobody = Member(broker, "")
    with commit(nobody, 0) as (refusals, guard):
        assert (refusals, guard.check.path) == ([None], "/consumers/g/coordinator")
    one, two = Member(broker, "one"), Member(broker, "two")
    settle(one, two)
    with commit(one, *sorted(one.held), *two.held) as (refusals, _):
        assert [type(refusal) for refusal in refusals] == [type(None)] * 2 + [StaleMemberEpochError] * 2
    with pytest.raises(NonEmptyGroupError), commit(nobody, 0):
        pass


def test_added_partitions_and_recreated_topics_are_assigned(world):
    broker = world.brokers[1]
    member = Member(broker).join()
    world.create_topic("t", partitions=6)
    world.now_ms += 1_000
    settle(member)
    assert member.held == set(range(6))
    world.create_topic("t", partitions=2, topic_id=b"\x02" * 16)
    world.now_ms += 1_000
    settle(member)
    assert member.held == {0, 1}


def test_given_up_groups_can_be_claimed_at_once(world):
    first, second = world.brokers[1], world.brokers[2]
    member = Member(first).join()
    first.groups.give_up()
    with pytest.raises(NotCoordinatorError):
        member.beat()
    with pytest.raises(NotCoordinatorError, match="stopping"):
        Member(first, "n", "other").beat()
    member.broker = second
    member.beat()
    assert member.held == {0, 1, 2, 3}


def test_commit_in_flight_when_groups_are_given_up_is_refused(world):
    first, second = world.brokers[1], world.brokers[2]
    member = Member(first).join()
    with commit(member, 0) as (_, guard):
        first.groups.give_up()
        second.groups.load("g", creates=False)
        with pytest.raises(BadVersionError):
            first.client.transaction([guard.check, Set("/consumers/g", b"", -1)], session=guard.session)


def test_unknown_group_is_claimed_only_by_joins_and_commits(world):
    broker = world.brokers[1]
    with pytest.raises(UnknownMemberIdError):
        Member(broker).beat(5)
    with pytest.raises(UnknownMemberIdError):
        Member(broker).beat(LEAVES)
    assert broker.coordinator.guard("g") is None
    assert world.client.children("/consumers") == []


def test_groups_in_memory_are_bounded_and_idle_ones_forgotten(world):
    broker = world.brokers[1]
    broker.groups._max_groups = 2
    Member(broker, group_id="busy").join()
    for number in range(5):
        with commit(Member(broker, "", f"g{number}"), 0):
            pass
    assert len(broker.groups.all()) == 2
    Member(broker, group_id="other").join()
    with pytest.raises(CoordinatorNotAvailableError, match="2 groups already"):
        Member(broker, group_id="third").beat()


def test_idle_groups_are_forgotten_and_found_again(world):
    broker = world.brokers[1]
    with commit(Member(broker, "", "idle"), 0):
        pass
    member = Member(broker).join()
    for _ in range(IDLE_MS // 1_000 + 20):
        world.now_ms += 1_000
        settle(member, rounds=1)
    assert [hosted.group_id for hosted in broker.groups.all()] == ["g"]
    assert broker.coordinator.guard("idle").check.version == 1


def test_without_zookeeper_requests_for_unknown_groups_fail_at_once(world):
    broker = world.brokers[1]
    broker.client._client.suspend()
    with pytest.raises(ZooKeeperUnavailableError):
        Member(broker).beat()


@pytest.mark.parametrize("client_id", [os.urandom(600 << 10).hex(), "x" * (9 << 20)], ids=["compressed", "plain"])
def test_members_too_large_for_a_znode_stay_unchanged_and_others_continue(world, client_id):
    broker = world.brokers[1]
    large = Member(broker, group_id="large")
    large.beat()
    hosted = broker.groups.find("large")
    large_one = hosted.group._members["m"]
    large_one.client_id = client_id
    broker.coordinator.step()
    assert written(world, "large") is None
    member = Member(broker).join()
    assert member.held == {0, 1, 2, 3}
    large_one.client_id = ""
    world.now_ms += 10_000
    broker.coordinator.step()
    large.member_id = "another"
    settle(large)
    assert large.held == {0, 1, 2, 3}


def test_defect_in_one_group_stops_neither_others_nor_the_loop(world, monkeypatch):
    broker = world.brokers[1]
    bad, good = Member(broker, "m", "bad"), Member(broker, "n", "good")
    bad.beat()
    good.beat()
    plan = Group.plan

    def defective(self, shapes, now_ms):
        if self.group_id == "bad":
            raise ValueError("a state that cannot be")
        return plan(self, shapes, now_ms)

    monkeypatch.setattr(Group, "plan", defective)
    broker.coordinator.step()
    broker.coordinator.step()
    good.beat()
    assert good.held == {0, 1, 2, 3}
    monkeypatch.undo()
    world.now_ms += SESSION_MS - 1
    broker.coordinator.step()
    bad.beat()
    assert bad.held == set(), "it rests for a while"
    world.now_ms += 1
    broker.coordinator.step()
    bad.beat()
    assert bad.held == {0, 1, 2, 3}


def test_group_whose_members_were_deleted_by_hand_continues_after_its_last_epoch(world):
    """Otherwise its next commits would look outdated, and be ignored."""
    broker = world.brokers[1]
    Member(broker).join()
    offsets = GroupOffsets(topic_id=ID, offsets={0: StoredOffset(offset=5, member_epoch=41, sequence=3)})
    world.client.create("/consumers/g/offsets")
    world.client.create("/consumers/g/offsets/t", to_json(offsets))
    world.client.delete(group_members_path("g"))
    broker.restart()
    member = Member(broker).join()
    assert member.epoch == 42
