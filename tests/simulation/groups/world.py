"""The simulated world of groups: brokers that coordinate, ZooKeeper, clients, the network, and who looks on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any
from unittest import mock

import msgspec

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import CommitOffsetsResponse, GroupHeartbeatRequest
from broker_runtime.groups import offsets
from broker_runtime.zookeeper.session import Operation
from broker_runtime.zookeeper.znodes import PERMANENT
from tests.simulation.groups.broker import Broker, NestedEvent
from tests.simulation.groups.checker import Checker
from tests.simulation.groups.client import Client, Habits
from tests.simulation.groups.ensemble import Ensemble
from tests.simulation.groups.situations import READ_BEHIND, SITUATIONS, Situations, counting_superseded
from tests.simulation.groups.topics import Topics
from tests.simulation.simulator.network import Reply, Weather
from tests.simulation.simulator.scheduler import Event, Scheduler
from tests.simulation.simulator.world import SimulatedWorld
from tests.simulation.simulator.zookeeper import ZooKeeperWeather


class World(SimulatedWorld):
    """See the module."""

    zookeeper: Ensemble

    def __init__(
        self, seed: int, *, brokers: int, weather: Weather, zookeeper_weather: ZooKeeperWeather, keep_lines: int = 400
    ) -> None:
        super().__init__(
            seed,
            Scheduler,
            weather=weather,
            zookeeper_weather=zookeeper_weather,
            make_zookeeper=Ensemble,
            situations=SITUATIONS,
            keep_lines=keep_lines,
        )
        self.jitter = self.rng
        admin = self.zookeeper.tree.client()
        for path in PERMANENT:
            admin.ensure_path(path)
        self.topics = Topics(admin, self.rng)
        self.checker = Checker()
        self.situations = Situations(self.trace.situation, self.zookeeper.find)
        self.zookeeper.on_write = self._wrote
        self.zookeeper.on_refusal = self.situations.refused
        self.zookeeper.on_stale_read = lambda: self.trace.situation(READ_BEHIND)
        self.brokers = {
            number: Broker(number, self.scheduler, self.trace, self.zookeeper, self.refuses)
            for number in range(1, brokers + 1)
        }
        self.clients: list[Client] = []
        self.on_request: Callable[[str, Broker, msgspec.Struct], None] = lambda source, broker, request: None
        """Called when a broker has answered a request: who asked, which broker, what."""
        self._requests = 0
        self._connections: set[tuple[str, int, str, int]] = set()  # who asked whom, in which life of each
        self.brokers_by_actor.update((broker.actor, broker) for broker in self.brokers.values())
        self._clients_by_actor: dict[str, Client] = {}

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
        asked_in_life = self.scheduler.life_of(source)

        def arrive(reply: Reply) -> None:
            connection = (source, asked_in_life, broker.actor, self.scheduler.life_of(broker.actor))
            if broker.life is None or (broker.refuses_connections and connection not in self._connections):
                reply.refuse()
                return
            self._connections.add(connection)
            answer = broker.answer(request)
            if isinstance(request, GroupHeartbeatRequest):
                self.situations.answered_heartbeat(broker_id, request.group_id)
            elif isinstance(answer, CommitOffsetsResponse):
                self.situations.answered_commit(answer)
            self.on_request(source, broker, request)
            reply.answer(answer)

        self.request(
            source, broker.actor, arrive, on_answer=on_answer, on_failure=on_failure, timeout_us=timeout_us,
            may_repeat=True, thread=self._request_thread(), reply_thread=thread, what=type(request).__name__,
        )  # fmt: skip

    def deliver(self, broker: Broker, request: msgspec.Struct) -> None:
        """A request arrives of which nobody waits for the answer."""

        def arrive() -> None:
            with suppress(PylogError):
                broker.answer(request)

        self.scheduler.after(0, broker.actor, arrive, thread=self._request_thread())

    def refuses(self, source: str, broker_id: int) -> bool:
        """Whether the broker's port refuses who connects; one that cannot be reached does not. Also of a broker that
        lives: a firewall may, or a queue of connections that is full."""
        broker = self.brokers[broker_id]
        if self.network.is_cut_between(source, broker.actor):
            return False
        return broker.life is None or broker.refuses_connections

    def counts(self) -> Counter[str]:
        return super().counts() + self.checker.counts

    def run_event(self, event: Event) -> None:
        super().run_event(event)
        if event.actor in self.brokers_by_actor:
            self.situations.coordinates([each for broker in self.brokers.values() for each in broker.hosted])

    def after_event(self, actor: str) -> None:
        client = self._clients_by_actor.get(actor)
        if client is not None:
            self.checker.observe(client)

    def patches(self) -> Iterator[AbstractContextManager[Any]]:
        make_commit = offsets._Commit
        yield from super().patches()
        yield mock.patch.object(offsets, "_Commit", lambda **fields: make_commit(**fields, news=NestedEvent()))
        yield counting_superseded(self.trace.situation)

    def _request_thread(self) -> str:
        """A thread for one request: a repeated one waits until the first is answered."""
        self._requests += 1
        return f"request {self._requests}"

    def _wrote(self, operations: Sequence[Operation]) -> None:
        self.situations.wrote(operations)
        self.checker.wrote(operations)
