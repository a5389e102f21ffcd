"""How often members send heartbeats: fast while a change is pending, and never so often that many overload a broker."""

from __future__ import annotations

from broker_runtime.contract.requests import GroupHeartbeatRequest
from broker_runtime.groups.group import REST_MS, Limits
from tests.unit.groups import coordinating
from tests.unit.groups.group_world import World


def test_members_of_a_large_changing_group_send_fewer_heartbeats():
    """At most 500 a second all together: otherwise each join would cause a storm of heartbeats."""
    world = World(limits=Limits(min_session_ms=1_000, max_session_ms=60_000, max_members=600))
    members = [world.client(f"m{number}") for number in range(600)]
    for member in members:
        member.beat()
    intervals = [member.beat().heartbeat_interval_ms for member in members]
    assert 500 * min(intervals) / 1_000 >= len(members)
    assert max(intervals) <= REST_MS
    world.settle(*members)
    assert members[0].beat().heartbeat_interval_ms == REST_MS


def test_members_of_a_busy_broker_send_fewer_heartbeats() -> None:
    """The members of all groups together send at most 200 a second while no change is pending."""
    world = coordinating.World()
    world.create_topic("t", partitions=1)
    coordinator = world.brokers[1].coordinator
    epochs = {(f"g{number % 300}", f"m{number}"): 0 for number in range(900)}

    def beat(group_id: str, member_id: str) -> int:
        request = GroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epochs[group_id, member_id],
            topics=("t",),
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
        )
        answer = coordinator.heartbeat(request)
        epochs[group_id, member_id] = answer.member_epoch
        return answer.heartbeat_interval_ms

    intervals = []
    for _ in range(4):
        intervals = [beat(*who) for who in epochs]
        world.now_ms += 1_000
        coordinator.step()
    assert round(sum(1_000 / interval_ms for interval_ms in intervals)) <= 200
    assert min(intervals) > REST_MS
