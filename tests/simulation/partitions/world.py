"""The simulated world of partitions: brokers with disks, their clients, and the checker that looks on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import CreateTopicRequest
from broker_runtime.zookeeper.session import Check, Operation, ZNodeError
from broker_runtime.zookeeper.znodes import CONTROLLER_EPOCH
from tests.callers import CLIENT
from tests.simulation.partitions.broker.life import Life
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.history import History
from tests.simulation.partitions.invariants import Invariants
from tests.simulation.partitions.observer import TracingObserver
from tests.simulation.partitions.situations import SITUATIONS
from tests.simulation.partitions.states import States
from tests.simulation.simulator.locks import simulated_locks
from tests.simulation.simulator.network import Reply, Weather
from tests.simulation.simulator.scheduler import OWN_THREAD, SECOND
from tests.simulation.simulator.stacks import StackScheduler
from tests.simulation.simulator.world import SimulatedWorld
from tests.simulation.simulator.zookeeper import ZooKeeperWeather


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, as metadata has it."""

    broker_id: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a client believes of the cluster."""

    topic_ids: dict[str, bytes] = field(default_factory=dict)
    leaders: dict[TopicPartition, Leader] = field(default_factory=dict)
    controller: int | None = None

    @classmethod
    def of(cls, life: Life) -> Metadata:
        """As a broker has it."""
        state = life.member.state
        topic_ids: dict[str, bytes] = {}
        leaders: dict[TopicPartition, Leader] = {}
        for name, topic in state.topics.items():
            topic_ids[name] = topic.record.topic_id
            for number, present in enumerate(topic.partitions):
                if present is not None:
                    leaders[TopicPartition(name, number)] = Leader(present.state.leader, present.state.leader_epoch)
        return cls(topic_ids, leaders, None if state.controller is None else state.controller.broker_id)

    def newer(self, other: Metadata) -> Metadata:
        """``other``, but for partitions of which this knows a later epoch."""
        leaders = dict(other.leaders)
        for at, known in self.leaders.items():
            listed = leaders.get(at)
            if (
                listed is not None
                and listed.leader_epoch < known.leader_epoch
                and self.topic_ids.get(at.topic) == other.topic_ids.get(at.topic)
            ):
                leaders[at] = known
        return Metadata({**self.topic_ids, **other.topic_ids}, leaders, other.controller)


class World(SimulatedWorld):
    """See the module. ``make_life``: what a broker's process is made of; ``situations``: those that are counted."""

    scheduler: StackScheduler
    make_life: type[Life] = Life
    situations: tuple[str, ...] = SITUATIONS

    def __init__(
        self, seed: int, *, brokers: int, weather: Weather, zookeeper_weather: ZooKeeperWeather, keep_lines: int = 400
    ) -> None:
        super().__init__(
            seed,
            StackScheduler,
            weather=weather,
            zookeeper_weather=zookeeper_weather,
            situations=self.situations,
            keep_lines=keep_lines,
        )
        self.zookeeper.on_refusal = self._refused
        self.zookeeper.on_ended_session = self._session_ended
        self.zookeeper.on_stale_read = lambda: self.trace.situation("read of a server that lags")
        self.history = History()
        self.nodes: dict[int, Node] = {}
        self.clients: list[str] = []
        self.invariants = Invariants(self.nodes, self.history, self.scheduler.observing, self.trace.situation)
        self.observer = TracingObserver(self.trace, self.invariants, self.history)
        self.states = States(
            self.zookeeper, self.observer.state_changed, self.observer.registered, self._controller_claimed
        )
        self.quiet_until_us = 0  # no fault strikes before
        for broker_id in range(1, brokers + 1):
            self.add_broker(broker_id)

    def counts(self) -> Counter[str]:
        acknowledged, consumed = self.history.records_acknowledged, self.history.records_consumed
        return super().counts() + Counter({"records acknowledged": acknowledged, "records consumed": consumed})

    def patches(self) -> Iterator[AbstractContextManager[Any]]:
        yield from super().patches()
        yield simulated_locks(self.scheduler)

    def after_event(self, actor: str) -> None:
        node = self.brokers_by_actor.get(actor)
        if node is not None:
            node.after_event()
            self.invariants.observe(node)

    def add_broker(self, broker_id: int) -> Node:
        """A broker that was not there before; it is not started."""
        node = Node(
            broker_id,
            scheduler=self.scheduler,
            trace=self.trace,
            zookeeper=self.zookeeper,
            observer=self.observer,
            topic_ids=self.states.topic_ids,
            peers=self,
            make_life=self.make_life,
        )
        node.files.situation = self.trace.situation
        self.nodes[broker_id] = node
        self.brokers_by_actor[node.actor] = node
        return node

    def call(
        self,
        source: str,
        broker_id: int,
        handle: Callable[[Life, Callable[[object], None]], None],
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
        may_repeat: bool = False,
        thread: str = OWN_THREAD,
        reply_thread: str = "serve",
        what: str = "",
    ) -> None:
        """Asks a broker something, see `request`; it refuses where it does not serve."""
        node = self.nodes[broker_id]

        def arrive(reply: Reply) -> None:
            if node.life is None or not node.is_up:
                reply.refuse()
            else:
                handle(node.life, reply.answer)

        self.request(
            source,
            node.actor,
            arrive,
            on_answer=on_answer,
            on_failure=on_failure,
            timeout_us=timeout_us,
            may_repeat=may_repeat,
            thread=thread,
            reply_thread=reply_thread,
            what=what,
        )

    def refuses(self, source: str, broker_id: int) -> bool:
        """Whether the broker's port refuses who connects; one that cannot be reached does not."""
        node = self.nodes[broker_id]
        if self.network.is_cut_between(source, node.actor):
            return False
        return not node.is_up or self.scheduler.now_us < node.refuses_until_us

    def answers(self, source: str, broker_id: int) -> bool:
        """Whether the broker serves whoever asks it from there."""
        node = self.nodes[broker_id]
        is_cut = self.network.is_cut_between(source, node.actor)
        return node.is_up and node.is_well and not is_cut and self.scheduler.now_us >= node.refuses_until_us

    def create_topic(
        self,
        name: str,
        *,
        assignment: tuple[tuple[int, ...], ...],
        config: dict[str, str],
        on_created: Callable[[object], None],
        on_failure: Callable[[str], None],
    ) -> None:
        """Asks the controller for a topic; ``assignment``: of each partition its replicas."""
        request = CreateTopicRequest(name=name, replica_assignment=assignment, config=config)

        def failed(reason: str) -> None:
            if reason == "TOPIC_ALREADY_EXISTS":
                on_created(None)
            else:
                on_failure(reason)

        self.call_controller(
            lambda life: life.topics.create_topic(CLIENT, request),
            on_answer=on_created,
            on_failure=failed,
            timeout_us=5 * SECOND,
        )

    def call_controller(
        self,
        handle: Callable[[Life], object],
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int = 20 * SECOND,
    ) -> None:
        """Asks the broker that takes itself for the controller, if there is one, else any."""
        active = [
            broker_id
            for broker_id, node in sorted(self.nodes.items())
            if node.life is not None and node.life.member.controller.is_active
        ]
        self.call(
            "adm",
            self.rng.choice(active or sorted(self.nodes)),
            lambda life, reply: reply(handle(life)),
            on_answer=on_answer,
            on_failure=on_failure,
            timeout_us=timeout_us,
            thread="member",
        )

    def may_lose_power(self, node: Node) -> bool:
        """Whether the promises allow for this broker to lose its power now.

        Under flush.mode=ack always. Else what all replicas in sync lose at once is lost, and so is what the only one
        left has lost: then all others must be well, and stay so until this one is in sync again (`is_recovering`).
        """
        return self.invariants.is_durable_by_ack or self._is_calm_around(node)

    def may_be_damaged(self, node: Node) -> bool:
        """Whether the promises allow for this broker's files to be damaged now: others hold all that it holds, and
        nothing else is wrong, until it is whole again (`is_recovering`)."""
        if not self._is_calm_around(node) or not node.is_well:
            return False
        states = [state for state in self.states.partitions.values() if node.broker_id in state.isr]
        return all(len(state.isr) > 2 for state in states)

    def may_lose_disk(self, node: Node) -> bool:
        """Whether the promises allow for this broker to lose its disk now: others in sync hold all that it holds, and
        nothing else is wrong, until it holds it again (`is_recovering`)."""
        return self._is_calm_around(node)

    @property
    def is_recovering(self) -> bool:
        """Whether some replica lacks records that it should have, and nothing else may go wrong."""
        return self.invariants.is_recovering()

    def _is_calm_around(self, node: Node) -> bool:
        others = [each for each in self.nodes.values() if each is not node and not each.is_retired]
        return (
            not self.is_recovering
            and not self.network.is_cut_anywhere
            and not self.zookeeper.is_down
            and all(each.is_up and each.is_well for each in others)
            and all(len(state.isr) > 1 for state in self.states.partitions.values() if node.broker_id in state.isr)
        )

    def _controller_claimed(self) -> None:
        others = [node.life for node in self.nodes.values() if node.actor != self.scheduler.current]
        if any(life is not None and life.member.controller.is_active for life in others):
            self.trace.situation("two controllers at once")

    def _refused(self, operations: Sequence[Operation], refusal: ZNodeError) -> None:
        if refusal.path == CONTROLLER_EPOCH and isinstance(operations[0], Check):
            self.trace.situation("write of a deposed controller refused")

    def _session_ended(self, operations: Sequence[Operation]) -> None:
        if any(each.path.endswith("/state") for each in operations):
            self.trace.situation("in-sync write in a session that has ended")
