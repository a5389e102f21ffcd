"""One run: queries and producers write in transactions while things go wrong, everything heals, and then all of their
input must be readable, once.

Rule: a run depends on its seed and on nothing else.
"""

from __future__ import annotations

from tests.simulation.partitions.clients import Consumer
from tests.simulation.partitions.run import Run as PartitionsRun
from tests.simulation.simulator.faults import FaultInjector
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.workload import Workload
from tests.simulation.transactions.attempts import Executor
from tests.simulation.transactions.faults import Faults
from tests.simulation.transactions.plan import Plan, plan_of
from tests.simulation.transactions.query import Checkpoint, Query
from tests.simulation.transactions.reader import Reader
from tests.simulation.transactions.situations import SITUATIONS
from tests.simulation.transactions.transfer import Transfer
from tests.simulation.transactions.variants import VARIANTS
from tests.simulation.transactions.world import World

_EXACTLY_ONCE = 9


class Run(PartitionsRun):
    """The stages of a run."""

    world: World
    plan: Plan

    def begin_clients(self) -> None:
        super().begin_clients()
        world, plan = self.world, self.plan
        count = len(self.partitions)
        world.executors += [Executor(world, f"x{number + 1}") for number in range(plan.executors)]
        for number in range(plan.queries):
            query = Query(
                world,
                f"q{number + 1}",
                tasks=plan.tasks,
                partitions=count,
                timeout_ms=plan.timeout_ms,
                is_random=number in plan.random_queries,
                is_filtered=number in plan.filtered_queries,
            )
            world.queries.append(query)
            query.add_driver(Checkpoint())
        for number in range(plan.transfers):
            transfer = Transfer(world, f"m{number + 1}", partitions=count, timeout_ms=plan.timeout_ms)
            world.transfers.append(transfer)
            transfer.add_process()

    def begin_faults(self) -> FaultInjector:
        return Faults(self.world, self.plan)

    def end_clients(self) -> None:
        super().end_clients()
        for query in self.world.queries:
            query.end_input()
        for transfer in self.world.transfers:
            transfer.is_over = True

    def make_consumer(self, name: str) -> Consumer:
        return Reader(self.world, name, self.partitions)

    def lacks(self) -> list[str]:
        world = self.world
        lacks = super().lacks()
        lacks += [f"query {each.name} is at {each.newest.checkpoint}" for each in world.queries if not each.is_done]
        lacks += [f"{each.name} has not written all" for each in world.transfers if not each.is_done]
        if world.checker.has_open:
            lacks.append("transactions are open")
        lacks += [f"{name} has decisions that partitions do not know" for name in world.decisions.unfinished()]
        return lacks

    def check_end(self) -> None:
        super().check_end()
        world = self.world
        wanted = [
            each.row_name(number) for each in world.queries for number in range(each.available) if each.is_kept(number)
        ]
        wanted += [each.row_name(number) for each in world.transfers for number in range(each.records)]
        for reader in self.consumers:
            rows = world.checker.read.get(reader.name, {})
            wrong = [name for name in wanted if rows.get(name, 0) != 1]
            if wrong:
                raise ViolationError(_EXACTLY_ONCE, f"{reader.name} did not get {', '.join(wrong)} once")


TRANSACTIONS = Workload(
    name="transactions",
    make_target="simulate-transactions",
    situations=SITUATIONS,
    variants=VARIANTS,
    plan_of=plan_of,
    make_world=World,
    make_run=Run,
)
