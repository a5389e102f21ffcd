"""The simulated world of transactions: that of partitions, whose brokers coordinate transactions, and their writers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from broker_runtime.zookeeper.session import Operation
from tests.simulation.partitions import situations as partitions_situations
from tests.simulation.partitions.world import World as PartitionsWorld
from tests.simulation.simulator.network import Weather
from tests.simulation.simulator.zookeeper import ZooKeeperWeather
from tests.simulation.transactions.attempts import Executor
from tests.simulation.transactions.broker import TransactionalLife
from tests.simulation.transactions.checker import Checker
from tests.simulation.transactions.query import Query
from tests.simulation.transactions.situations import LEADER_CHANGED, SITUATIONS, UNFINISHED_LEFT
from tests.simulation.transactions.transfer import Transfer

TOPIC = "t"


class World(PartitionsWorld):
    """See the module."""

    make_life = TransactionalLife
    situations = (*partitions_situations.SITUATIONS, *SITUATIONS)

    def __init__(
        self, seed: int, *, brokers: int, weather: Weather, zookeeper_weather: ZooKeeperWeather, keep_lines: int = 400
    ) -> None:
        super().__init__(
            seed, brokers=brokers, weather=weather, zookeeper_weather=zookeeper_weather, keep_lines=keep_lines
        )
        self.topic = TOPIC
        self.executors: list[Executor] = []
        self.queries: list[Query] = []
        self.transfers: list[Transfer] = []
        self.checker = Checker(self.invariants, self.history, self.trace.situation)
        self.decisions = self.checker.decisions
        self.on_next_decision: list[tuple[str, Callable[[str], None]]] = []
        """By transactional id what is called when its next decision was written, with the broker that did."""
        self.checker.on_decision = self._decided
        self._lives: dict[str, object] = {}
        self._written_by_brokers = self.zookeeper.on_write
        self.zookeeper.on_write = self._written
        self._leaders: dict[object, int | None] = {}

    def counts(self) -> Counter[str]:
        decided = self.decisions.made.values()
        return super().counts() + Counter(
            {
                "transactions committed": sum(each.is_commit for each in decided),
                "batches aborted": sum(not each.is_commit for each in decided),
                "attempts of tasks": sum(each.attempts for each in self.queries),
                "runs of drivers": sum(each.runs for each in self.queries),
                "runs of producers": sum(each.runs for each in self.transfers),
                "rows of transactions read": sum(sum(rows.values()) for rows in self.checker.read.values()),
            }
        )

    def after_event(self, actor: str) -> None:
        super().after_event(actor)
        for each in self.nodes.values():
            if self._lives.get(each.actor) not in {None, each.life} and self.decisions.unfinished():
                self.trace.situation(UNFINISHED_LEFT)
            self._lives[each.actor] = each.life
        node = self.brokers_by_actor.get(actor)
        if node is not None:
            for at, view in node.disk.logs.items():
                self.checker.was_cut(node, at, view.end)

    def _written(self, operations: Sequence[Operation]) -> None:
        self._written_by_brokers(operations)
        self.checker.decisions.written(operations)
        if self.checker.has_open:
            for key, state in self.states.partitions.items():
                before = self._leaders.get(key)
                if before is not None and state.leader not in {before, None}:
                    self.trace.situation(LEADER_CHANGED)
                if state.leader is not None:
                    self._leaders[key] = state.leader

    def _decided(self, name: str) -> None:
        due = [each for each in self.on_next_decision if each[0] == name]
        self.on_next_decision = [each for each in self.on_next_decision if each[0] != name]
        for _, action in due:
            action(self.scheduler.current)
