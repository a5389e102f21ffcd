"""The simulated world of groups: brokers that coordinate, ZooKeeper, clients, the network, and who looks on."""

from __future__ import annotations

import logging
import random
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import msgspec

from broker_runtime.contract import waiting
from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import CommitOffsetsResponse, GroupHeartbeatRequest
from broker_runtime.groups import offsets
from broker_runtime.zookeeper.session import Operation
from broker_runtime.zookeeper.znodes import PERMANENT
from tests.simulation.groups.broker import Broker, NestedEvent
from tests.simulation.groups.checker import Checker
from tests.simulation.groups.client import Client, Habits
from tests.simulation.groups.ensemble import Ensemble
from tests.simulation.groups.situations import Situations, noticing_superseded
from tests.simulation.groups.topics import Topics
from tests.simulation.simulator.network import Call, Network, Weather
from tests.simulation.simulator.scheduler import SECOND, Event, Scheduler
from tests.simulation.simulator.trace import LogLines, Trace
from tests.simulation.simulator.zookeeper import ZooKeeperWeather


class World:
    """See the module. ``rng`` is the only source of anything random."""

    def __init__(
        self, seed: int, *, brokers: int, weather: Weather, zookeeper_weather: ZooKeeperWeather, keep_lines: int = 400
    ) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.trace = Trace(lambda: self.scheduler.now_us, keep_lines=keep_lines)
        self.network = Network(self.scheduler, self.trace, weather)
        self.zookeeper = Ensemble(self.scheduler, self.trace, zookeeper_weather)
        admin = self.zookeeper.tree.client()
        for path in PERMANENT:
            admin.ensure_path(path)
        self.topics = Topics(admin, self.rng)
        self.checker = Checker()
        self.situations = Situations(self.trace.counts, self.zookeeper.find)
        self.zookeeper.on_write = self._wrote
        self.brokers = {
            number: Broker(number, self.scheduler, self.trace, self.zookeeper, self.refuses)
            for number in range(1, brokers + 1)
        }
        self.clients: list[Client] = []
        # Is told of what a broker has answered: by whom, to whom, what.
        self.on_request: Callable[[str, Broker, msgspec.Struct], None] = lambda source, broker, request: None
        self._requests = 0
        self._connections: set[tuple[str, int, str, int]] = set()  # who asked whom, in which life of each
        self._brokers_by_actor = {broker.actor: broker for broker in self.brokers.values()}
        self._clients_by_actor: dict[str, Client] = {}
        self.scheduler.run_event = self._run_event
        self.scheduler.after_event = self._after_event

    def add_client(self, habits: Habits) -> Client:
        """One more consumer; it is not started."""
        client = Client(self, self.topics, self.checker, self.trace, habits, random.Random(self.rng.getrandbits(64)))
        self.clients.append(client)
        self._clients_by_actor[client.name] = client
        return client

    @property
    def broker_ids(self) -> list[int]:
        """All brokers, up or not."""
        return list(self.brokers)

    def call(
        self,
        source: str,
        broker_id: int,
        request: msgspec.Struct,
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
        thread: str,
    ) -> None:
        """See `calls.Brokers`."""
        broker = self.brokers[broker_id]
        call = Call(
            self.scheduler, source, timeout_us=timeout_us, thread=thread, on_answer=on_answer, on_failure=on_failure
        )
        asked_in_life = self.scheduler.life_of(source)

        def send_back(deliver: Callable[[], None]) -> None:
            if self.scheduler.life_of(source) == asked_in_life:  # else the connection ended with the process
                self.network.send(broker.actor, source, deliver, thread=thread)

        def arrive() -> None:
            connection = (source, asked_in_life, broker.actor, self.scheduler.life_of(broker.actor))
            if broker.life is None or (broker.refuses_connections and connection not in self._connections):
                send_back(lambda: call.fail("refused"))
                return
            self._connections.add(connection)
            try:
                answer = broker.answer(request)
            except PylogError as error:
                code = error.code
                send_back(lambda: call.fail(code))
            else:
                if isinstance(request, GroupHeartbeatRequest):
                    self.situations.answered_heartbeat(broker_id, request.group_id)
                elif isinstance(answer, CommitOffsetsResponse):
                    self.situations.answered_commit(answer)
                self.on_request(source, broker, request)
                send_back(lambda: call.answer(answer))

        self._requests += 1
        self.network.send(
            source, broker.actor, arrive, may_repeat=True, thread=f"request {self._requests}",
            what=type(request).__name__,
        )  # fmt: skip

    def deliver(self, broker: Broker, request: msgspec.Struct) -> None:
        """A request arrives of which nobody waits for the answer."""

        def arrive() -> None:
            with suppress(PylogError):
                broker.answer(request)

        self._requests += 1
        self.scheduler.after(0, broker.actor, arrive, thread=f"request {self._requests}")

    def refuses(self, source: str, broker_id: int) -> bool:
        """Whether the broker's port refuses who connects; one that cannot be reached does not. Also of a broker that
        lives: a firewall may, or a queue of connections that is full."""
        broker = self.brokers[broker_id]
        if self.network.is_cut(source, broker.actor) or self.network.is_cut(broker.actor, source):
            return False
        return broker.life is None or broker.refuses_connections

    def _wrote(self, operations: Sequence[Operation]) -> None:
        self.situations.wrote(operations)
        self.checker.wrote(operations)

    def _run_event(self, event: Event) -> None:
        broker = self._brokers_by_actor.get(event.actor)
        if broker is None:
            event.action()
        else:
            broker.run(event)
            self.situations.coordinates([each for other in self.brokers.values() for each in other.hosted])

    def _after_event(self, actor: str) -> None:
        client = self._clients_by_actor.get(actor)
        if client is not None:
            self.checker.observe(client)


_Commit = offsets._Commit


@contextmanager
def told_to(world: World) -> Iterator[None]:
    """Inside, what brokers log goes into the world's trace, and their pauses and chances are the world's."""
    logger = logging.getLogger("broker_runtime")
    handler = LogLines(world.trace, lambda: world.scheduler.current)
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    scheduler = world.scheduler

    def make_commit(**fields: Any) -> offsets._Commit:
        return _Commit(**fields, news=NestedEvent())

    clock = types.SimpleNamespace(
        monotonic=lambda: scheduler.now_us / SECOND,
        sleep=lambda pause_s: scheduler.block(int(pause_s * SECOND), whole_actor=False),
    )
    try:
        with (
            mock.patch.object(waiting, "time", clock),
            mock.patch.object(waiting, "random", types.SimpleNamespace(Random=lambda: world.rng)),
            mock.patch.object(offsets, "_Commit", make_commit),
            noticing_superseded(world.trace.counts),
        ):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
