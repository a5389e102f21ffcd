"""One run: a cluster is made as the seed says, lives through faults, heals, and must then be whole.

    make the cluster → topics → producers, consumers and faults → heal → everything written is readable → checks

Rule: a run depends on its seed and on nothing else. It raises what it found, with the trace in hand.
"""

from __future__ import annotations

from broker_runtime.contract.model import TopicPartition
from tests.simulation.partitions.clients import Consumer, Producer
from tests.simulation.partitions.faults import Faults
from tests.simulation.partitions.plan import Plan, plan_of
from tests.simulation.partitions.situations import SITUATIONS
from tests.simulation.partitions.variants import VARIANTS
from tests.simulation.partitions.world import World
from tests.simulation.simulator.faults import FaultInjector
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.workload import Workload

TOPIC = "t"
FIRST_PRODUCER_ID = 1_000_000_000
"""Of those that are no transaction's: brokers give out smaller ones."""
_HEAL_LIMIT_US = 90 * SECOND


class Run:
    """The stages of a run."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.partitions = [TopicPartition(TOPIC, number) for number in range(len(plan.assignment))]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []

    def run(self) -> None:
        """All of it. Raises `ViolationError`, and whatever a broker raised that it must not."""
        world, plan = self.world, self.plan
        world.invariants.is_durable_by_ack = plan.flush_mode == "ack"
        for node in world.nodes.values():
            node.usual_sync_us = node.sync_us = plan.sync_us
            node.start(world.scheduler.between(0, 300 * MS))
        self._await(lambda: all(node.is_up for node in world.nodes.values()), 60 * SECOND, "brokers came up")
        self._create_topic()
        self.begin_clients()
        faults = self.begin_faults()
        world.scheduler.run(world.scheduler.now_us + plan.duration_us)
        faults.heal()
        self.end_clients()
        self._await(self._is_whole, _HEAL_LIMIT_US, "healed, everything is readable again", self._what_lacks)
        self.check_end()

    def begin_clients(self) -> None:
        """Producers and consumers begin."""
        world, plan = self.world, self.plan
        for number in range(plan.producers):
            self.producers.append(
                Producer(
                    world,
                    f"p{number + 1}",
                    self.partitions,
                    batches=plan.batches,
                    producer_id=None if number in plan.plain_producers else FIRST_PRODUCER_ID + number,
                    value_bytes=plan.value_bytes,
                    interval_us=plan.produce_every_us,
                )
            )
        self.consumers = [self.make_consumer(f"c{number + 1}") for number in range(plan.consumers)]

    def begin_faults(self) -> FaultInjector:
        """Things go wrong from now on."""
        return Faults(self.world, kinds=list(self.plan.faults), interval_us=self.plan.fault_interval_us)

    def end_clients(self) -> None:
        """Nothing new is written; what is under way goes on."""
        self.consumers.append(self.make_consumer("c9"))  # reads all of it once more
        for producer in self.producers:
            producer.stop_making()

    def make_consumer(self, name: str) -> Consumer:
        """One that reads everything from now on."""
        return Consumer(self.world, name, self.partitions)

    def _create_topic(self) -> None:
        plan, world = self.plan, self.world
        created: list[object] = []

        def ask() -> None:
            world.create_topic(
                TOPIC,
                assignment=plan.assignment,
                config=plan.topic_config(),
                on_created=created.append,
                on_failure=failed,
            )

        def failed(reason: str) -> None:
            world.trace.line("adm", f"no topic yet: {reason}")
            world.scheduler.after(300 * MS, "adm", ask)

        world.scheduler.after(0, "adm", ask)
        self._await(lambda: bool(created), 60 * SECOND, "the topic was made")

    def _await(self, is_done, limit_us: int, what: str, why=lambda: "") -> None:
        if not self.world.scheduler.run(self.world.scheduler.now_us + limit_us, is_done=is_done):
            raise ViolationError(0, f"not within {limit_us / SECOND:.0f} s: {what}{why()}")

    # --- the end --------------------------------------------------------------------------------------------------

    def _is_whole(self) -> bool:
        return not self.lacks()

    def _what_lacks(self) -> str:
        return "; " + "; ".join(self.lacks())

    def lacks(self) -> list[str]:
        """What is not as it should be in the end."""
        world = self.world
        lacks: list[str] = []
        for at in self.partitions:
            state = world.states.state(at)
            record = world.states.topics[TOPIC]
            if state is None or state.leader is None:
                lacks.append(f"{at} has no leader")
                continue
            if set(state.isr) != set(record.assignment[at.partition]):
                lacks.append(f"{at}: in sync are {state.isr}, replicas are {record.assignment[at.partition]}")
            committed = world.invariants.of((record.topic_id, at.partition), at)
            lacks.extend(
                f"{consumer.name} is at {consumer.positions[at]} of {at}, committed is {committed.end}"
                for consumer in self.consumers
                if consumer.positions[at] != committed.end
            )
        lacks.extend(
            f"{producer.name} waits for an acknowledgement" for producer in self.producers if not producer.is_done
        )
        return lacks

    def check_end(self) -> None:
        """Everything that was acknowledged is there. Raises `ViolationError`."""
        history, invariants = self.world.history, self.world.invariants
        record = self.world.states.topics[TOPIC]
        for batch in (each.batch for each in history.acknowledged.values()):
            if batch.acks != -1:
                continue
            committed = invariants.of((record.topic_id, batch.at.partition), batch.at)
            if committed.offset_of(batch.body) is None and batch.body not in committed.given_up:
                raise ViolationError(1, f"{batch} of {batch.at} was acknowledged and is gone")
        for node in self.world.nodes.values():
            invariants.require_everything(node)


PARTITIONS = Workload(
    name="partitions",
    make_target="simulate",
    situations=SITUATIONS,
    variants=VARIANTS,
    plan_of=plan_of,
    make_world=World,
    make_run=Run,
)
