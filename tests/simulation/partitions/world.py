"""The whole simulated world: brokers, ZooKeeper, the network between them and the clients, and who looks on."""

from __future__ import annotations

import logging
import random
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from broker_runtime.contract import waiting
from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import CreateTopicRequest
from tests.callers import CLIENT
from tests.simulation.partitions.broker.life import Life
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.history import History
from tests.simulation.partitions.invariants import Invariants
from tests.simulation.partitions.observer import Witness
from tests.simulation.partitions.states import States
from tests.simulation.simulator.lagging import LaggingZooKeeper
from tests.simulation.simulator.locks import simulated
from tests.simulation.simulator.network import Call, Network, Weather
from tests.simulation.simulator.scheduler import SECOND, Event
from tests.simulation.simulator.stacks import OWN_THREAD, StackScheduler
from tests.simulation.simulator.trace import LogLines, Trace
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
            told = leaders.get(at)
            if (
                told is not None
                and told.leader_epoch < known.leader_epoch
                and self.topic_ids.get(at.topic) == other.topic_ids.get(at.topic)
            ):
                leaders[at] = known
        return Metadata({**self.topic_ids, **other.topic_ids}, leaders, other.controller)


class World:
    """See the module. ``rng`` is the only source of anything random."""

    def __init__(
        self, seed: int, *, brokers: int, weather: Weather, zookeeper_weather: ZooKeeperWeather, keep_lines: int = 400
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.scheduler = StackScheduler(self.rng)
        self.trace = Trace(lambda: self.scheduler.now_us, keep_lines=keep_lines)
        self.network = Network(self.scheduler, self.trace, weather)
        self.zookeeper = LaggingZooKeeper(self.scheduler, self.trace, zookeeper_weather)
        self.history = History()
        self.nodes: dict[int, Node] = {}
        self.clients: list[str] = []
        self.invariants = Invariants(self.nodes, self.history, self.scheduler.observing, self.trace.situation)
        self.witness = Witness(self.trace, self.invariants, self.history)
        self.states = States(
            self.zookeeper, self.witness.state_changed, self.witness.registered, self._controller_claimed
        )
        self.quiet_until_us = 0  # no fault strikes before
        self._by_actor: dict[str, Node] = {}
        for broker_id in range(1, brokers + 1):
            self.add_broker(broker_id)
        self.scheduler.run_event = self._run_event
        self.scheduler.after_event = self._after_event

    def add_broker(self, broker_id: int) -> Node:
        """A broker that was not there before; it is not started."""
        node = Node(
            broker_id,
            scheduler=self.scheduler,
            trace=self.trace,
            zookeeper=self.zookeeper,
            observer=self.witness,
            topic_ids=self.states.topic_ids,
            peers=self,
        )
        node.files.situation = self.trace.situation
        self.nodes[broker_id] = node
        self._by_actor[node.actor] = node
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
        """Asks a broker something over the network. ``on_failure`` gets "refused" where nobody listens, the code of an
        error that was raised, and "no answer" for all else."""
        node = self.nodes[broker_id]
        call = Call(
            self.scheduler,
            source,
            timeout_us=timeout_us,
            thread=reply_thread,
            on_answer=on_answer,
            on_failure=on_failure,
        )

        asked_in_life = self.scheduler.life_of(source)

        def send_back(deliver: Callable[[], None]) -> None:
            if self.scheduler.life_of(source) == asked_in_life:  # else the connection ended with the process
                self.network.send(node.actor, source, deliver, thread=reply_thread)

        def arrive() -> None:
            def handled(life: Life) -> None:
                try:
                    handle(life, lambda value: send_back(lambda: call.answer(value)))
                except PylogError as error:
                    code = error.code
                    send_back(lambda: call.fail(code))

            node.ask(handled, lambda: send_back(lambda: call.fail("refused")))

        self.network.send(source, node.actor, arrive, may_repeat=may_repeat, thread=thread, what=what)

    def refuses(self, source: str, broker_id: int) -> bool:
        """Whether the broker's port refuses who connects; one that cannot be reached does not."""
        node = self.nodes[broker_id]
        if self.network.is_cut(source, node.actor) or self.network.is_cut(node.actor, source):
            return False
        return not node.is_up or self.scheduler.now_us < node.refuses_until_us

    def answers(self, source: str, broker_id: int) -> bool:
        """Whether the broker serves whoever asks it from there."""
        node = self.nodes[broker_id]
        is_cut = self.network.is_cut(source, node.actor) or self.network.is_cut(node.actor, source)
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

    def _run_event(self, event: Event) -> None:
        node = self._by_actor.get(event.actor)
        if node is None:
            event.action()
        else:
            node.run(event)

    def _after_event(self, actor: str) -> None:
        node = self._by_actor.get(actor)
        if node is not None:
            node.after_event()
            self.invariants.observe(node)


@contextmanager
def told_to(world: World) -> Iterator[None]:
    """Inside, what brokers log goes into the world's trace, new ids come from its generator, and locks and clocks are
    those of its scheduler."""
    logger = logging.getLogger("broker_runtime")
    handler = LogLines(world.trace, lambda: world.scheduler.current)
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    ids, pauses = random.Random(world.seed), random.Random(world.seed)
    try:
        with (
            mock.patch.object(uuid, "uuid4", side_effect=lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
            mock.patch.object(waiting, "random", types.SimpleNamespace(Random=lambda: pauses)),
            simulated(world.scheduler),
        ):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
