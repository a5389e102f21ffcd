"""Groups and offsets are removed on request, or because nobody used them for long."""

import pytest

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    NonEmptyGroupError,
    NotCoordinatorError,
)
from broker_runtime.contract.requests import LEAVES, GroupHeartbeatRequest
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.groups.removal import CLAIM_AGE_MS, GroupRemoval
from broker_runtime.zookeeper.znodes import StoredOffset
from tests.unit.groups.coordinating import ID, World

RETENTION_MS = 600_000
ROUND_MS = 60_000


@pytest.fixture
def world():
    world = World()
    world.create_topic("t", partitions=4)
    for broker in world.brokers.values():
        broker.store = OffsetStore(broker.client)
        broker.removal = GroupRemoval(
            broker.client,
            broker.claims,
            broker.groups,
            broker.store,
            broker_id=broker.number,
            retention_ms=RETENTION_MS,
            steady_ms=lambda: world.now_ms,
            believed_ms=lambda: world.now_ms,
            sleep=lambda s, broker=broker: broker.coordinator.step(),
        )
    return world


def beat(broker, epoch, group_id="g", member_id="m"):
    request = GroupHeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=epoch, topics=("t",), session_timeout_ms=10_000
    )
    answer = broker.coordinator.heartbeat(request)
    broker.coordinator.step()
    return answer


def commit(broker, group_id="g", topic="t", offset=5):
    with broker.coordinator.committing(group_id, "", -1, -1, [(topic, ID, 0)]) as (_, guard):
        stored = StoredOffset(offset=offset, committed_at_ms=broker.world.now_ms)
        broker.store.commit(group_id, topic, ID, {0: stored}, guard=guard)


def offsets(world, group_id="g"):
    return OffsetStore(world.client).topics_of(group_id)


def passes(world, ms):
    """Lets time pass, with every broker at work."""
    for _ in range(ms // ROUND_MS):
        world.now_ms += ROUND_MS
        for broker in world.brokers.values():
            broker.coordinator.step()
            broker.removal.step()


def test_deleted_group_has_no_offsets_and_does_not_exist(world):
    broker = world.brokers[1]
    world.create_topic("u")
    commit(broker)
    commit(broker, topic="u")
    broker.removal.delete("g")
    assert offsets(world) == []
    with pytest.raises(GroupIdNotFoundError):
        broker.removal.delete("g")
    with pytest.raises(GroupIdNotFoundError):
        broker.removal.delete("never")
    commit(broker)
    assert offsets(world) == ["t"]


def test_group_with_members_or_commits_is_not_deleted(world):
    broker = world.brokers[1]
    beat(broker, 0)
    with pytest.raises(NonEmptyGroupError):
        broker.removal.delete("g")
    beat(broker, LEAVES)
    broker.coordinator.step()
    with broker.coordinator.committing("g", "", -1, -1, []), pytest.raises(CoordinatorNotAvailableError):
        broker.removal.delete("g")
    broker.removal.delete("g")


def test_group_whose_last_member_has_just_left_is_deleted(world):
    broker = world.brokers[1]
    commit(broker)
    beat(broker, 0)
    broker.coordinator.heartbeat(GroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=LEAVES))
    broker.removal.delete("g")
    assert world.client.children("/consumers/g") == ["coordinator"]


def test_members_do_not_join_while_a_group_is_removed(world):
    broker = world.brokers[1]
    commit(broker)

    def joins():
        with pytest.raises(CoordinatorNotAvailableError):
            beat(broker, 0)

    broker.client.before = [joins]
    broker.removal.delete("g")
    assert (broker.client.before, offsets(world)) == ([], [])


def test_deposed_coordinator_deletes_nothing(world):
    first, second = world.brokers[1], world.brokers[2]
    commit(first)
    first.die()
    first.client.before = [lambda: None, lambda: second.claims.claim("g")]
    with pytest.raises(NotCoordinatorError):
        first.removal.delete("g")
    assert offsets(world) == ["t"]


def test_offsets_unused_for_the_retention_expire_and_the_group_with_them(world):
    commit(world.brokers[1])
    passes(world, RETENTION_MS - ROUND_MS)
    assert offsets(world) == ["t"]
    passes(world, 4 * ROUND_MS)
    assert world.client.children("/consumers") == []


def test_offsets_of_a_group_with_members_stay_and_retention_counts_from_the_last_ones_end(world):
    """This holds even if there was nothing new to commit for long."""
    broker = world.brokers[1]
    commit(broker)
    beat(broker, 0)
    for _ in range(2 * RETENTION_MS // 2_000):
        world.now_ms += 2_000
        for other in world.brokers.values():
            other.coordinator.step()
        beat(broker, 0)
        if world.now_ms % ROUND_MS == 0:
            for other in world.brokers.values():
                other.removal.step()
    assert offsets(world) == ["t"]
    beat(broker, LEAVES)
    broker.coordinator.step()
    passes(world, RETENTION_MS - ROUND_MS)
    assert offsets(world) == ["t"]
    passes(world, 4 * ROUND_MS)
    assert world.client.children("/consumers") == []


def test_commit_just_before_the_end_keeps_the_offsets(world):
    broker = world.brokers[1]
    commit(broker)
    passes(world, RETENTION_MS - ROUND_MS)
    commit(broker, offset=6)
    passes(world, RETENTION_MS - 2 * ROUND_MS)
    assert offsets(world) == ["t"]


def test_group_without_offsets_and_members_is_removed_when_its_claim_is_old(world):
    """Writes in flight of an earlier coordinator must never meet a claim whose version counts from 0 again."""
    broker = world.brokers[1]
    beat(broker, 0)
    beat(broker, LEAVES)
    broker.coordinator.step()
    broker.removal.step()
    assert world.client.children("/consumers") == ["g"]
    world.now_ms += CLAIM_AGE_MS
    broker.coordinator.step()
    broker.removal.step()
    assert world.client.children("/consumers") == []
    commit(broker)


def test_group_whose_coordinator_died_unnoticed_is_taken_over_and_its_members_end(world):
    first = world.brokers[1]
    commit(first)
    beat(first, 0)
    first.leave()
    first.client._client.suspend()
    passes(world, ROUND_MS)
    assert world.brokers[2].groups.find("g") is not None
    passes(world, RETENTION_MS + 4 * ROUND_MS)
    assert world.client.children("/consumers") == []


def test_groups_of_other_live_coordinators_are_left_alone(world):
    groups = [f"g{number}" for number in range(10)]
    for group in groups:
        commit(world.brokers[1], group)
    world.now_ms += 2 * RETENTION_MS
    for _ in range(3):
        world.now_ms += ROUND_MS
        world.brokers[2].removal.step()
    assert world.client.children("/consumers") == groups


def test_damaged_group_is_left_alone_and_others_continue(world):
    broker = world.brokers[1]
    commit(broker, "a")
    commit(broker, "b")
    world.client.ensure_path("/consumers/a/members")
    world.client.set("/consumers/a/members", b"{", version=-1)
    passes(world, RETENTION_MS + 4 * ROUND_MS)
    assert world.client.children("/consumers") == ["a"]


def test_more_groups_than_fit_in_memory_are_removed_all_the_same(world, monkeypatch):
    """Any number of claims of members that joined and left at once do not push each other out."""
    monkeypatch.setattr("broker_runtime.groups.removal._LOADS_PER_STEP", 5)
    broker = world.brokers[1]
    world.brokers[2].leave()
    broker.groups._max_groups = 10
    for number in range(25):
        beat(broker, 0, group_id=f"g{number}")
        beat(broker, LEAVES, group_id=f"g{number}")
        broker.coordinator.step()
    assert len(world.client.children("/consumers")) == 25
    passes(world, RETENTION_MS + 10 * ROUND_MS)
    assert world.client.children("/consumers") == []
