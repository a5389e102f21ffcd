"""Runs a scenario: a file that reads as prose, sentence by sentence, in a world where nothing happens by chance.

A line is a heading (``=``), an explanation (``#``), empty, or one sentence that ends with a full stop. The sentences
are the functions below that `says` marks; what they wait for comes within a minute of simulated time, or the
scenario is not true. Everything that the checker looks at in random runs is looked at here too, after every step.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from broker_runtime.contract.errors import RequestTimedOutError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    AlterConfigRequest,
    ElectLeadersRequest,
    PartitionMove,
    ReassignPartitionsRequest,
)
from broker_runtime.log.faulty_files import Fault
from broker_runtime.zookeeper.znodes import DiskTroubles, broker_unwritable_path, from_json
from tests.callers import CLIENT
from tests.simulation.partitions.broker.disk import LOG_SUFFIX, Copy
from tests.simulation.partitions.broker.life import DATA
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.clients import Consumer, Producer
from tests.simulation.partitions.world import World
from tests.simulation.simulator.network import Weather
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.zookeeper import LOST_AFTER, LOST_BEFORE, ZooKeeperWeather

_LIMIT_US = 60 * SECOND
_AT = r"(\w+)-(\d+)"
_BROKERS = r"((?:\d+(?:, | and )?)+)"
_VALUES = r"((?:\w+(?:, | and )?)+)"
_SENTENCES: list[tuple[re.Pattern[str], Callable[..., None]]] = []


class UntrueError(Exception):
    """A scenario says something that does not happen."""


def says(pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The sentence that a method of `Scenario` carries out."""

    def mark(method: Callable[..., None]) -> Callable[..., None]:
        _SENTENCES.append((re.compile(pattern + r"\."), method))
        return method

    return mark


def run_scenario(path: Path) -> Scenario:
    """Runs the scenario in a file. Raises `UntrueError` with the line, `ViolationError` with the trace."""
    scenario = Scenario()
    with scenario.world.environment():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            text = line.strip()
            if not text or text[0] in "#=":
                continue
            try:
                scenario.carry_out(text)
            except (UntrueError, ViolationError) as error:
                raise type(error)(
                    *_arguments(error, f"{path.name}:{number}: {text}\n{scenario.world.trace.tail(60)}")
                ) from error
    return scenario


def _arguments(error: Exception, where: str) -> tuple[object, ...]:
    return (error.number, f"{error}\n{where}") if isinstance(error, ViolationError) else (f"{error}\n{where}",)


def numbers(text: str) -> list[int]:
    """``1, 2 and 3``"""
    return [int(number) for number in re.findall(r"\d+", text)]


def words(text: str) -> list[str]:
    """``a, b and c``"""
    return [word for word in re.findall(r"\w+", text) if word != "and"]


class Scenario:
    """One scenario under way."""

    def __init__(self) -> None:
        self.world = World(1, brokers=0, weather=Weather(), zookeeper_weather=ZooKeeperWeather(), keep_lines=2_000)
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[str, Consumer] = {}
        self._disks: dict[int, tuple[Copy, frozenset[tuple[int, TopicPartition]]]] = {}  # taken out; see `lost`

    def carry_out(self, sentence: str) -> None:
        """Makes one sentence happen, or waits until it is so."""
        self.world.trace.line("sim", f"--- {sentence}")
        for pattern, method in _SENTENCES:
            match = pattern.fullmatch(sentence)
            if match:
                method(self, *match.groups())
                return
        raise UntrueError(f"no such sentence; known are:\n{_known()}")

    def wait(self, is_so: Callable[[], bool], what: Callable[[], str] = lambda: "", limit_us: int = _LIMIT_US) -> None:
        """Until it is so. Raises `UntrueError`."""
        scheduler = self.world.scheduler
        if not is_so() and not scheduler.run(scheduler.now_us + limit_us, is_done=is_so):
            raise UntrueError(f"not within {limit_us // SECOND} s {what()}")

    def node(self, number: str | int) -> Node:
        """A broker."""
        return self.world.nodes[int(number)]

    # --- what there is --------------------------------------------------------------------------------------------

    @says(rf"There are brokers {_BROKERS}")
    def brokers(self, ids: str) -> None:
        for broker_id in numbers(ids):
            self.world.add_broker(broker_id).start()
            self.wait(lambda broker_id=broker_id: self.node(broker_id).is_up)

    @says(rf"There is a topic (\w+) with (\d+) partitions? on {_BROKERS}(?:, (.+))?")
    def topic(self, name: str, count: str, ids: str, settings: str | None) -> None:
        created: list[object] = []
        config = dict(pair.split("=") for pair in (settings or "").replace(" and ", ", ").split(", ") if pair)
        self.world.invariants.is_durable_by_ack = config.get("flush.mode", "ack") == "ack"

        def ask() -> None:
            self.world.create_topic(
                name,
                assignment=(tuple(numbers(ids)),) * int(count),
                config={"retention.ms": "-1", **config},
                on_created=created.append,
                on_failure=failed,
            )

        def failed(reason: str) -> None:
            self.world.scheduler.after(200 * MS, "adm", ask)

        ask()
        self.wait(lambda: bool(created))

    @says(r"There is (?:a|an) (idempotent )?producer (\w+) of (\w+)(?: with acks=(\w+))?")
    def producer(self, idempotent: str | None, name: str, topic: str, acks: str | None) -> None:
        self.producers[name] = Producer(
            self.world,
            name,
            self._partitions(topic),
            batches=0,
            producer_id=900 + len(self.producers) if idempotent else None,
            acks=-1 if acks in {None, "all"} else int(acks or 0),
            interval_us=50 * MS,
        )

    @says(r"There is a consumer (\w+) of (\w+)")
    def consumer(self, name: str, topic: str) -> None:
        self.consumers[name] = Consumer(self.world, name, self._partitions(topic))

    def _partitions(self, topic: str) -> list[TopicPartition]:
        count = len(self.world.states.topics[topic].assignment)
        return [TopicPartition(topic, number) for number in range(count)]

    # --- what happens ---------------------------------------------------------------------------------------------

    @says(r"([\d.]+) seconds? pass(?:es)?")
    def time_passes(self, seconds: str) -> None:
        scheduler = self.world.scheduler
        scheduler.run(scheduler.now_us + int(float(seconds) * SECOND))

    @says(rf"(\w+) sends {_VALUES} to {_AT}")
    def send(self, name: str, values: str, topic: str, number: str) -> None:
        for value in words(values):
            self.producers[name].make(TopicPartition(topic, int(number)), (value,))

    @says(r"The setting (\S+) of (\w+) becomes (\w+)")
    def alter(self, name: str, topic: str, value: str) -> None:
        request = AlterConfigRequest(topic=topic, changes={name: value})
        answers: list[object] = []
        self.world.call_controller(
            lambda life: life.topics.alter_config(CLIENT, request), on_answer=answers.append, on_failure=lambda _: None
        )
        self.wait(lambda: bool(answers))

    @says(r"Broker (\d+) is killed")
    def kill(self, broker: str) -> None:
        self.node(broker).kill(power_lost=False)

    @says(r"Broker (\d+) is killed, and has lost what a failed fsync left in its memory")
    def kill_and_forget(self, broker: str) -> None:
        self.node(broker).kill(power_lost=False, memory_lost=True)

    @says(rf"The next fsync of {_AT} on broker (\d+) fails")
    def fail_fsync(self, topic: str, number: str, broker: str) -> None:
        at = TopicPartition(topic, int(number))
        self.node(broker).files.faults.append(
            Fault("sync", times=1, matches=lambda path: path.suffix == LOG_SUFFIX and path.parent.name == str(at))
        )

    @says(rf"Brokers? {_BROKERS} loses? (?:its|their) power")
    def lose_power(self, ids: str) -> None:
        for broker_id in numbers(ids):
            self.node(broker_id).kill(power_lost=True)

    @says(r"Broker (\d+) is stopped in order")
    def stop(self, broker: str) -> None:
        self.node(broker).stop()
        self.wait(lambda: self.node(broker).life is None)

    @says(rf"Brokers? {_BROKERS} (?:is|are) started")
    def start(self, ids: str) -> None:
        for broker_id in numbers(ids):
            self.node(broker_id).start()
        self.wait(lambda: all(self.node(broker_id).is_up for broker_id in numbers(ids)))

    @says(r"Broker (\d+) stands still for ([\d.]+) seconds")
    def pause(self, broker: str, seconds: str) -> None:
        self.node(broker).pause(int(float(seconds) * SECOND))

    @says(r"Broker (\d+) cannot reach broker (\d+)")
    def cut_one_way(self, source: str, target: str) -> None:
        self.world.network.cut(f"b{source}", f"b{target}")

    @says(r"Broker (\d+) is cut off from the other brokers")
    def cut_off(self, broker: str) -> None:
        others = [node.actor for node in self.world.nodes.values() if node.broker_id != int(broker)]
        self.world.network.isolate(f"b{broker}", others)

    @says(r"Broker (\d+) is cut off from ZooKeeper")
    def cut_off_zookeeper(self, broker: str) -> None:
        self.world.zookeeper.cut_off(f"b{broker}")

    @says(r"(\w+) cannot reach broker (\d+)")
    def cut_client(self, name: str, broker: str) -> None:
        self.world.network.cut(name, f"b{broker}")

    @says(r"(\w+) hears nothing from broker (\d+)")
    def deafen_client(self, name: str, broker: str) -> None:
        self.world.network.cut(f"b{broker}", name)

    @says(r"The network is whole again")
    def heal_network(self) -> None:
        self.world.network.heal()
        if not self.world.zookeeper.is_down:
            for node in self.world.nodes.values():
                self.world.zookeeper.reconnect(node.actor)

    @says(r"ZooKeeper goes away")
    def zookeeper_down(self) -> None:
        self.world.zookeeper.go_down()

    @says(r"ZooKeeper is back")
    def zookeeper_back(self) -> None:
        self.world.zookeeper.come_back()

    @says(r"The session of broker (\d+) expires")
    def expire(self, broker: str) -> None:
        self.world.zookeeper.expire(f"b{broker}")

    @says(r"The next write of broker (\d+) to ZooKeeper is (carried out, but its answer is )?lost")
    def lose_write(self, broker: str, is_done: str | None) -> None:
        life = self.node(broker).life
        assert life is not None
        life.client.next_write = LOST_AFTER if is_done else LOST_BEFORE

    @says(r"The disk of broker (\d+) is slow")
    def slow_disk(self, broker: str) -> None:
        self.node(broker).sync_us = (SECOND, 2 * SECOND)

    @says(r"The disk of broker (\d+) is fast again")
    def fast_disk(self, broker: str) -> None:
        self.node(broker).sync_us = (100, 600)

    @says(r"The disk of broker (\d+) is lost")
    def lose_disk(self, broker: str) -> None:
        node = self.node(broker)
        taken = node.files.take_out(DATA)
        self._disks[node.broker_id] = taken, self.world.invariants.lost(node, [path.name for path in taken.directories])
        node.claimed_durable = {}

    @says(r"The disk of broker (\d+) is back")
    def disk_is_back(self, broker: str) -> None:
        node = self.node(broker)
        taken, whole = self._disks.pop(node.broker_id)
        self.world.invariants.put_back(node, [path.name for path in node.files.copy(DATA).directories], whole)
        node.files.put_in(taken)
        node.claimed_durable = {}

    @says(rf"A bit of (?:(\w+) in )?the log of {_AT} on broker (\d+) flips")
    def flip(self, value: str | None, topic: str, number: str, broker: str) -> None:
        """In the frame with that value, or in the first."""
        node = self.node(broker)
        frame = next(
            each
            for each in node.disk.logs[TopicPartition(topic, int(number))].frames
            if value is None or value in self.world.history.batches[each.body].values
        )
        node.files.damage(frame.segment, frame.end_position - 1, 1)
        self.world.invariants.damaged_by_fault(node, frame.segment, frame.end_position - 1)

    @says(rf"The leader of {_AT} deletes the records below (\d+)")
    def delete_records(self, topic: str, number: str, offset: str) -> None:
        """Its followers need not have heard of it when this returns."""
        at, record = TopicPartition(topic, int(number)), self.world.states.topics[topic]
        state = self.world.states.state(at)
        life = None if state is None or state.leader is None else self.node(state.leader).life
        assert life is not None
        partition = life.registry.find(topic, at.partition, record.topic_id)
        committed = self.world.invariants.of((record.topic_id, at.partition), at)
        committed.log_start = max(int(offset), committed.log_start)

        is_done: list[bool] = []

        def delete() -> None:
            with contextlib.suppress(RequestTimedOutError):
                partition.delete_records(int(offset), timeout_s=0)
            is_done.append(True)

        self.world.scheduler.after(0, life.actor, delete, thread="produce")
        self.wait(lambda: bool(is_done))

    @says(rf"An operator decides that {_AT} is led without who has all of it")
    def elect_unclean(self, topic: str, number: str) -> None:
        self.world.invariants.decided.add((self.world.states.topics[topic].topic_id, int(number)))
        request = ElectLeadersRequest(election="unclean", partitions=((topic, int(number)),))
        elected: list[object] = []
        self.world.call_controller(
            lambda life: life.movements.elect_leaders(CLIENT, request),
            on_answer=elected.append,
            on_failure=lambda reason: None,
        )
        self.wait(lambda: bool(elected))

    @says(rf"{_AT} is moved to {_BROKERS}")
    def move(self, topic: str, number: str, ids: str) -> None:
        request = ReassignPartitionsRequest(
            moves=(PartitionMove(topic=topic, partition=int(number), replicas=tuple(numbers(ids))),)
        )
        begun: list[object] = []
        self.world.call_controller(
            lambda life: life.movements.reassign_partitions(CLIENT, request),
            on_answer=begun.append,
            on_failure=lambda reason: None,
        )
        self.wait(lambda: bool(begun))

    # --- what is so, within a minute ------------------------------------------------------------------------------

    @says(rf"Broker (\d+) leads {_AT} in epoch (\d+)")
    def leads(self, broker: str, topic: str, number: str, epoch: str) -> None:
        at = TopicPartition(topic, int(number))

        def leads() -> bool:
            life = self.node(broker).life
            if life is None:
                return False
            hosted = {(each.topic, each.partition): each for each in life.registry.hosted()}
            partition = hosted.get((at.topic, at.partition))
            return partition is not None and partition.is_leader and partition.leader_epoch == int(epoch)

        self.wait(leads, lambda: f"but {self.world.states.state(at)}")

    @says(rf"Nobody leads {_AT}")
    def nobody_leads(self, topic: str, number: str) -> None:
        at = TopicPartition(topic, int(number))
        self.wait(lambda: (state := self.world.states.state(at)) is not None and state.leader is None)

    @says(rf"In sync for {_AT} (?:is|are) {_BROKERS}")
    def in_sync(self, topic: str, number: str, ids: str) -> None:
        at, wanted = TopicPartition(topic, int(number)), sorted(numbers(ids))

        def is_so() -> bool:
            state = self.world.states.state(at)
            return state is not None and sorted(state.isr) == wanted

        self.wait(is_so, lambda: f"but {self.world.states.state(at)}")

    @says(r"Broker (\d+)(?: or (\d+))? is the controller")
    def is_controller(self, broker: str, other: str | None) -> None:
        def is_so() -> bool:
            lives = [self.node(number).life for number in (broker, other) if number is not None]
            return any(life is not None and life.member.controller.is_active for life in lives)

        self.wait(is_so)

    @says(rf"It is known that the log of {_AT} on broker (\d+) has failed")
    def has_failed(self, topic: str, number: str, broker: str) -> None:
        path = broker_unwritable_path(int(broker))

        def is_known() -> bool:
            node = self.world.zookeeper.find(path)
            return node is not None and from_json(node.data, DiskTroubles, path).has_failed(topic, int(number))

        self.wait(is_known)

    @says(rf"{_VALUES} (?:is|are) acknowledged")
    def acknowledged(self, values: str) -> None:
        self.wait(lambda: set(words(values)) <= self._acknowledged(), lambda: f"but {self._acknowledged()}")

    @says(rf"{_VALUES} (?:is|are) not acknowledged for ([\d.]+) seconds?")
    def not_acknowledged(self, values: str, seconds: str) -> None:
        self.time_passes(seconds)
        if set(words(values)) & self._acknowledged():
            raise UntrueError(f"but acknowledged are {self._acknowledged()}")

    @says(rf"(\w+) has read {_VALUES} from {_AT}")
    def has_read(self, name: str, values: str, topic: str, number: str) -> None:
        at = TopicPartition(topic, int(number))
        consumer = self.consumers[name]

        def read() -> list[str]:
            committed = self.world.invariants.of((self.world.states.topics[topic].topic_id, at.partition), at)
            frames = [frame for frame in committed.frames if frame.next_offset <= consumer.positions[at]]
            return [value for frame in frames for value in self.world.history.batches[frame.body].values]

        self.wait(lambda: read() == words(values), lambda: f"but it has read {read()}")

    @says(rf"The log of {_AT} on broker (\d+) holds {_VALUES}")
    def log_holds(self, topic: str, number: str, broker: str, values: str) -> None:
        self._log_holds(topic, number, broker, words(values))

    @says(rf"The log of {_AT} on broker (\d+) is empty")
    def log_is_empty(self, topic: str, number: str, broker: str) -> None:
        self._log_holds(topic, number, broker, [])

    def _log_holds(self, topic: str, number: str, broker: str, wanted: list[str]) -> None:
        at = TopicPartition(topic, int(number))

        def holds() -> list[str]:
            view = self.node(broker).disk.logs.get(at)
            frames = [] if view is None else view.frames
            return [value for frame in frames for value in self.world.history.batches[frame.body].values]

        self.wait(lambda: holds() == wanted, lambda: f"but {holds()}")

    def _acknowledged(self) -> set[str]:
        return {value for each in self.world.history.acknowledged.values() for value in each.batch.values}


def _known() -> str:
    return "\n".join(f"    {pattern.pattern}" for pattern, _ in _SENTENCES)
