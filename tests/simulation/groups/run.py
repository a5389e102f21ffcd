"""One run: groups consume while things go wrong, everything heals, and then every record must have been read.

    brokers → topics → clients, records and faults → heal → shared evenly, read and committed to the end → checks

Rule: a run depends on its seed and on nothing else.
"""

from __future__ import annotations

import itertools

from tests.simulation.groups.checker import name_of
from tests.simulation.groups.client import Client, Habits
from tests.simulation.groups.faults import Faults
from tests.simulation.groups.plan import Plan, plan_of
from tests.simulation.groups.situations import SITUATIONS
from tests.simulation.groups.variants import VARIANTS
from tests.simulation.groups.world import World
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.workload import Workload

_HEAL_LIMIT_US = 90 * SECOND
_QUIET_US = 4 * SECOND
_LOOK_US = 200 * MS


class Run:
    """The stages of a run."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self._is_growing = True

    def run(self) -> None:
        """All of it. Raises `ViolationError`, and whatever a broker raised that it must not."""
        world, plan = self.world, self.plan
        for broker in world.brokers.values():
            broker.start(world.scheduler.between(0, 300 * MS))
        for name, partitions in plan.partitions.items():
            world.topics.create(name, partitions)
        for number in range(plan.clients):
            client = world.add_client(self._habits(number))
            world.scheduler.after(world.scheduler.between(0, 3 * SECOND), "net", client.start)
        self._grow()
        faults = Faults(world, kinds=plan.faults, interval_us=plan.fault_interval_us)
        world.scheduler.run(plan.duration_us)
        faults.heal()
        self._is_growing = False
        self._await_peace()

    def _await_peace(self) -> None:
        """Whole, and nothing changes any more."""
        scheduler = self.world.scheduler
        limit_us = scheduler.now_us + _HEAL_LIMIT_US
        epochs, since_us = self._epochs(), scheduler.now_us
        while scheduler.now_us - since_us < _QUIET_US:
            if scheduler.now_us >= limit_us:
                raise ViolationError(0, f"not within {_HEAL_LIMIT_US / SECOND:.0f} s: {'; '.join(self._lacks())}")
            scheduler.run(scheduler.now_us + _LOOK_US)
            if self._lacks() or self._epochs() != epochs:
                epochs, since_us = self._epochs(), scheduler.now_us
        self.world.trace.line("sim", "all is read, and there is peace")

    def _habits(self, number: int) -> Habits:
        world, plan = self.world, self.plan
        is_static = world.rng.random() < plan.static
        return Habits(
            name=f"c{number + 1}",
            group_id=f"g{number % plan.groups + 1}",
            topics=("t", "u"),
            instance_id=f"i{number + 1}" if is_static else None,
            session_timeout_ms=plan.session_timeout_ms,
            max_poll_interval_ms=plan.max_poll_interval_ms,
            poll_us=(20 * MS, world.rng.choice([60, 150, 300]) * MS),
            commit_us=world.rng.choice([700 * MS, 700 * MS, 12 * SECOND]),
        )

    def _grow(self) -> None:
        if self._is_growing:
            self.world.topics.append(self.world.rng.randint(1, 6))
            self.world.scheduler.after(self.world.scheduler.between(20 * MS, 250 * MS), "net", self._grow)

    # --- the end --------------------------------------------------------------------------------------------------

    def _lacks(self) -> list[str]:
        world = self.world
        lacks: list[str] = []
        for group_id in sorted({client.group_id for client in world.clients}):
            living = [client for client in world.clients if client.group_id == group_id and client.process is not None]
            lacks += [f"{client.name} is not settled" for client in living if not client.process.is_calm]
            lacks += self._unowned(group_id, living)
            lacks += _uneven(living)
        return lacks

    def _unowned(self, group_id: str, living: list[Client]) -> list[str]:
        topics, checker = self.world.topics, self.world.checker
        lacks: list[str] = []
        holders: dict[object, list[str]] = {}
        for client in living:
            for partition in client.handing_out():
                holders.setdefault(partition, []).append(client.name)
        names = sorted({name for client in living for name in client.subscription})
        for partition in topics.of(names):
            owners = holders.pop(partition, [])
            end = topics.end(partition)
            if len(owners) != 1:
                lacks.append(f"{name_of(partition)} is held by {owners}")
            if checker.finished_below((group_id, partition)) != end:
                lacks.append(f"{name_of(partition)} is not read to {end}")
            if checker.committed(group_id, partition) != end:
                lacks.append(f"{name_of(partition)}: {checker.committed(group_id, partition)} of {end} is committed")
        lacks += [f"{partition} is held by {owners}" for partition, owners in holders.items()]
        return lacks

    def _epochs(self) -> list[tuple[str, int]]:
        return [
            (client.name, client.process.membership.member_epoch)
            for client in self.world.clients
            if client.process is not None
        ]


def _uneven(living: list[Client]) -> list[str]:
    shares = {client.name: list(client.handing_out()) for client in living}
    return [
        f"{giver.name} has {len(shares[giver.name])}, {taker.name} {len(shares[taker.name])}"
        for giver, taker in itertools.permutations(living, 2)
        if len(shares[giver.name]) > len(shares[taker.name]) + 1
        and any(partition.topic in taker.subscription for partition in shares[giver.name])
    ]


GROUPS = Workload(
    name="groups",
    make_target="simulate-groups",
    situations=SITUATIONS,
    variants=VARIANTS,
    plan_of=plan_of,
    make_world=World,
    make_run=Run,
)
