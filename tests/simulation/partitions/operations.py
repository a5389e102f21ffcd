"""What operators do to a cluster that works: brokers are added, partitions moved, leaders chosen, records deleted.

Rule: each is asked once, over the network, and may be refused or lost like anything else; what it has set off goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from broker_runtime.contract.errors import PylogError, RequestTimedOutError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import ElectLeadersRequest, PartitionMove, ReassignPartitionsRequest
from tests.callers import CLIENT
from tests.simulation.partitions.broker.life import Life
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.committed import Committed
from tests.simulation.partitions.world import World
from tests.simulation.simulator.scheduler import MS, SECOND

MOST_BROKERS = 5


class Operations:
    """Asks for things."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng

    def add_broker(self, node: Node) -> None:
        """One more broker, empty."""
        broker_id = max(self._world.nodes) + 1
        if broker_id <= MOST_BROKERS:
            self._world.trace.fault("broker added", f"b{broker_id}")
            self._world.add_broker(broker_id).start()

    def move(self, node: Node) -> None:
        """A partition goes to other brokers."""
        at, replicas = self._choose()
        target = tuple(self._rng.sample(sorted(self._world.nodes), len(replicas)))
        self._world.trace.fault("partition moved", "adm", f"{at} from {replicas} to {target}")
        self._move(at, target)

    def cancel_moves(self, node: Node) -> None:
        """A move that is under way is given up."""
        at, _ = self._choose()
        self._world.trace.fault("move cancelled", "adm", str(at))
        self._move(at, None)

    def elect(self, node: Node) -> None:
        """Leaderships go back to the first replicas."""
        self._world.trace.fault("election asked for", "adm")
        self._ask(lambda life: life.movements.elect_leaders(CLIENT, ElectLeadersRequest()))

    def delete_records(self, node: Node) -> None:
        """The older half of a partition goes."""
        at, _ = self._choose()
        committed = self._committed(at)
        state = self._world.states.state(at)
        if state is not None and state.leader is not None and committed.end:
            self._delete(at, state.leader, self._rng.randint(committed.log_start, committed.end))

    def delete_all_records(self, at: TopicPartition) -> None:
        """Whatever is committed by now."""
        state = self._world.states.state(at)
        if state is not None and state.leader is not None:
            self._delete(at, state.leader, self._committed(at).end)

    def _committed(self, at: TopicPartition) -> Committed:
        return self._world.invariants.of((self._world.states.topics[at.topic].topic_id, at.partition), at)

    def _delete(self, at: TopicPartition, leader: int, offset: int) -> None:
        record, committed = self._world.states.topics[at.topic], self._committed(at)
        self._world.trace.fault("records deleted", "adm", f"{at} below {offset}")
        committed.log_start = max(offset, committed.log_start)
        deadline_us = self._world.scheduler.now_us + 5 * SECOND

        def handle(life: Life, reply: Callable[[object], None]) -> None:
            partition = life.registry.find(at.topic, at.partition, record.topic_id)
            try:
                reply((partition.delete_records(offset, timeout_s=0), partition.leader_epoch))
            except RequestTimedOutError:
                # Not gone yet on all that are in sync. Where a thread would wait, it is asked again.
                if self._world.scheduler.now_us < deadline_us:
                    self._world.scheduler.after(200 * MS, life.actor, lambda: again(life, reply))

        def again(life: Life, reply: Callable[[object], None]) -> None:
            with contextlib.suppress(PylogError):
                handle(life, reply)

        def deleted(answer: object) -> None:
            assert isinstance(answer, tuple)
            start, epoch = answer
            self._world.trace.line("adm", f"records of {at} below {start} are gone")
            self._world.invariants.deleted(record.topic_id, at, start, epoch)

        self._world.call(
            "adm",
            leader,
            handle,
            on_answer=deleted,
            on_failure=lambda reason: None,
            timeout_us=6 * SECOND,
        )

    def _move(self, at: TopicPartition, target: tuple[int, ...] | None) -> None:
        move = PartitionMove(topic=at.topic, partition=at.partition, replicas=target)
        request = ReassignPartitionsRequest(moves=(move,))
        self._ask(lambda life: life.movements.reassign_partitions(CLIENT, request))

    def _choose(self) -> tuple[TopicPartition, tuple[int, ...]]:
        states = self._world.states
        name = self._rng.choice(sorted(states.topics))
        assignment = states.topics[name].assignment
        number = self._rng.randrange(len(assignment))
        return TopicPartition(name, number), assignment[number]

    def _ask(self, handle: Callable[[Life], object]) -> None:
        trace = self._world.trace
        self._world.call_controller(
            handle,
            on_answer=lambda answer: None,
            on_failure=lambda reason: trace.line("adm", f"refused: {reason}"),
        )
