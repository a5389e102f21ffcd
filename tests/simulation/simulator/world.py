"""What every simulated world consists of, and the context in which the product runs in it."""

from __future__ import annotations

import random
import types
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol
from unittest import mock

from broker_runtime.contract import waiting
from broker_runtime.contract.errors import PylogError
from tests.simulation.simulator.lagging import LaggingZooKeeper
from tests.simulation.simulator.locks import simulated_clock
from tests.simulation.simulator.network import Call, Network, Reply, Weather
from tests.simulation.simulator.scheduler import OWN_THREAD, Event, Scheduler
from tests.simulation.simulator.trace import Trace, logged_to
from tests.simulation.simulator.zookeeper import ZooKeeperWeather


class Broker(Protocol):
    """A broker's process, in all its lives."""

    actor: str

    def run(self, event: Event) -> None:
        """Runs an event of this broker."""


class SimulatedWorld:
    """Time, trace, network and ZooKeeper. ``rng`` is the only source of anything random, but for what ``jitter`` and
    the ids of the product are drawn from."""

    def __init__(
        self,
        seed: int,
        make_scheduler: Callable[[random.Random], Scheduler],
        *,
        weather: Weather,
        zookeeper_weather: ZooKeeperWeather,
        make_zookeeper: Callable[[Scheduler, Trace, ZooKeeperWeather], LaggingZooKeeper] = LaggingZooKeeper,
        situations: Collection[str],
        keep_lines: int,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.jitter = random.Random(seed)  # of the product's pauses between attempts
        self.scheduler = make_scheduler(self.rng)
        self.trace = Trace(lambda: self.scheduler.now_us, keep_lines=keep_lines, situations=situations)
        self.network = Network(self.scheduler, self.trace, weather)
        self.zookeeper = make_zookeeper(self.scheduler, self.trace, zookeeper_weather)
        self.brokers_by_actor: dict[str, Broker] = {}
        self.scheduler.run_event = self.run_event
        self.scheduler.after_event = self.after_event

    def request(
        self,
        source: str,
        target: str,
        handle: Callable[[Reply], None],
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
        may_repeat: bool = False,
        thread: str = OWN_THREAD,
        reply_thread: str = "serve",
        what: str = "",
    ) -> None:
        """Sends a request over the network, which ``handle`` replies to as the target, now or later. Exactly one of
        ``on_answer`` and ``on_failure`` is called, in the source's ``reply_thread``; ``on_failure`` gets "refused", the
        code of a `PylogError` that ``handle`` raised, or "no answer" after ``timeout_us``."""
        call = Call(
            self.scheduler,
            source,
            timeout_us=timeout_us,
            thread=reply_thread,
            on_answer=on_answer,
            on_failure=on_failure,
        )
        reply = Reply(self.network, call, source=target, target=source, thread=reply_thread)

        def arrive() -> None:
            try:
                handle(reply)
            except PylogError as error:
                reply.fail(error.code)

        self.network.send(source, target, arrive, may_repeat=may_repeat, thread=thread, what=what)

    def heal(self) -> None:
        """All links carry everything from now on, once and in time, ZooKeeper is there, and nobody stands still."""
        self.network.heal()
        self.network.calm()
        self.zookeeper.calm()
        self.scheduler.resume_all()
        self.zookeeper.come_back()

    def counts(self) -> Counter[str]:
        """How often what happened."""
        return self.trace.counts

    def run_event(self, event: Event) -> None:
        """Runs one, in its broker if it is a broker's."""
        broker = self.brokers_by_actor.get(event.actor)
        if broker is None:
            event.action()
        else:
            broker.run(event)

    def after_event(self, actor: str) -> None:
        """Something that the actor did has just ended."""

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Inside, what brokers log goes into the trace, and their clocks, random numbers and ids are this world's."""
        with logged_to(self.trace, lambda: self.scheduler.current), ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield

    def patches(self) -> Iterator[AbstractContextManager[Any]]:
        """What is replaced in the product."""
        ids = random.Random(self.seed)
        yield mock.patch.object(uuid, "uuid4", side_effect=lambda: uuid.UUID(int=ids.getrandbits(128), version=4))
        yield mock.patch.object(waiting, "random", types.SimpleNamespace(Random=lambda: self.jitter))
        yield simulated_clock(self.scheduler)
