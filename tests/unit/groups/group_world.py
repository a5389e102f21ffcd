"""A group, its topic, its members' clients and the time, for tests of the machine."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import LEAVES, GroupHeartbeatRequest, GroupHeartbeatResponse
from broker_runtime.groups.group import Group, Limits
from broker_runtime.groups.shares import TopicShape
from broker_runtime.zookeeper.znodes import GroupMembers

ID, OTHER_ID = b"\x01" * 16, b"\x02" * 16
SESSION_MS = 10_000
LIMITS = Limits(min_session_ms=1_000, max_session_ms=60_000, max_members=5)


def partitions(*numbers: int) -> list[tuple[str, bytes | None, int]]:
    return [("t", None, number) for number in numbers]


class Client:
    """A member's client: it remembers its last assignment and carries it out when a test says so."""

    def __init__(self, world: World, name: str, **settings: object) -> None:
        self.world = world
        self.name = name
        self.settings = settings
        self.epoch = self.assigned_epoch = 0
        self.held: set[int] = set()
        self.assigned: set[int] = set()

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
            self.assigned_epoch = answer.member_epoch
            self.assigned = {number for each in answer.assignment for number in each.partitions}
            self.held |= self.assigned
        return answer

    def carry_out(self) -> None:
        self.held = set(self.assigned)
        self.epoch = self.assigned_epoch

    def leave(self, epoch: int = LEAVES) -> None:
        self.held = set()
        self.beat(epoch)

    def commit(self, *numbers: int, epoch: int | None = None, sequence: int = -1) -> list[PylogError | None]:
        return self.world.group.begin_commit(
            self.name,
            self.assigned_epoch if epoch is None else epoch,
            sequence,
            partitions(*numbers),
            self.world.now_ms,
        )

    def end_commit(self, *numbers: int) -> None:
        self.world.group.end_commit(self.name, partitions(*numbers))


class World:
    """A group, its topic, and the time. After `settle` every member has carried out its assignment."""

    def __init__(self, partitions: int = 4, limits: Limits = LIMITS) -> None:
        self.group = Group("g", limits)
        self.topics = {"t": TopicShape(ID, partitions)}
        self.now_ms = 1_000
        self.clients: list[Client] = []
        self.written = GroupMembers(epoch=0)

    def client(self, name: str, **settings: object) -> Client:
        client = Client(self, name, **settings)
        self.clients.append(client)
        client.beat()
        return client

    def commit_without_membership(self, *numbers: int) -> list[PylogError | None]:
        return self.group.begin_commit("", -1, -1, partitions(*numbers), self.now_ms)

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
        """W24: no partition is held by two members."""
        held = [number for client in self.clients for number in client.held]
        assert len(held) == len(set(held)), {client.name: client.held for client in self.clients}
