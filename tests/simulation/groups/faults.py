"""What goes wrong with a group, and what its people do, and when: chosen by the seed, ended before the quiet end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from broker_runtime.contract.requests import (
    AlterGroupOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    PartitionKey,
    RemoveGroupMembersRequest,
)
from tests.simulation.groups.broker import Broker
from tests.simulation.groups.calls import Coordination
from tests.simulation.groups.checker import told
from tests.simulation.groups.client import Client, Process
from tests.simulation.groups.world import World
from tests.simulation.scheduler import MS, SECOND
from tests.simulation.sim_zookeeper import LOST_AFTER, LOST_BEFORE

_MOST_CLIENTS = 9
_MOST_PARTITIONS = 10
_SUBSCRIPTIONS = (("t",), ("u",), ("t", "u"), ("t", "u"))


class Faults:
    """Breaks things, and does things, again and again until `heal`."""

    def __init__(self, world: World, *, kinds: tuple[str, ...], interval_us: tuple[int, int]) -> None:
        self._world = world
        self._rng = world.rng
        self._interval_us = interval_us
        self._is_over = False
        self._cut_off_brokers = 0
        self._admins: dict[str, Coordination] = {}
        brokers: dict[str, Callable[[Broker], None]] = {
            "broker killed": self._kill,
            "broker stopped": self._stop,
            "death at a write": self._kill_at_a_write,
            "broker paused": self._pause,
            "cut from zookeeper": self._cut_from_zookeeper,
            "session expiry": self._expire,
            "zookeeper down": self._zookeeper_down,
            "broker isolated": self._isolate,
        }
        clients: dict[str, Callable[[Process], None]] = {
            "client cut off": self._cut_off,
            "leave": self._leave,
            "client killed": self._kill_client,
            "freeze": self._freeze,
            "slow release": self._slow_down,
            "no polls": self._dawdle,
            "rewind": lambda process: process.rewind(),
            "other topics": self._resubscribe,
            "twin": self._twin,
            "member removed": self._remove,
        }
        others: dict[str, Callable[[], None]] = {
            "join": self._join,
            "partitions added": self._add_partitions,
            "topic made anew": self._make_anew,
            "offsets reset": self._reset_offsets,
        }
        self._strikes = [
            *((lambda strike=brokers[kind]: self._on_a_broker(strike)) for kind in kinds if kind in brokers),
            *((lambda strike=clients[kind]: self._on_a_client(strike)) for kind in kinds if kind in clients),
            *(others[kind] for kind in kinds if kind in others),
        ]
        self._next()

    def heal(self) -> None:
        """Nothing goes wrong any more, nobody comes or goes; all brokers run, and in each group at least one client."""
        self._is_over = True
        world = self._world
        world.trace.line("sim", "healed")
        world.network.heal()
        world.network.weather.lost = world.network.weather.repeated = world.network.weather.late = 0.0
        world.zookeeper.weather.lost_before = world.zookeeper.weather.lost_after = 0.0
        world.scheduler.resume_all()
        world.zookeeper.come_back()
        for broker in world.brokers.values():
            world.zookeeper.reconnect(broker.actor)
            world.zookeeper.awake(broker.actor)
            broker.start()
        for client in world.clients:
            client.slow_us = client.dawdles_until_us = 0
        for group_id in sorted({client.group_id for client in world.clients}):
            of_group = [client for client in world.clients if client.group_id == group_id]
            if not any(client.process is not None and not client.process.is_leaving for client in of_group):
                free = [client for client in of_group if not client.was_replaced and client.process is None]
                (self._rng.choice(free) if free else self._add_like(of_group[0], instance_id=None)).start()
        for name in ("t", "u"):
            if name not in world.topics.ids:
                world.topics.create(name, 2)

    # --- within ---------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        self._world.scheduler.after(self._between(*self._interval_us), "net", self._strike)

    def _strike(self) -> None:
        if not self._is_over:
            self._rng.choice(self._strikes)()
            self._next()

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._is_over:
                action()

        self._world.scheduler.after(delay_us, "net", act)

    def _between(self, least_us: int, most_us: int) -> int:
        return self._world.scheduler.between(least_us, most_us)

    def _fault(self, kind: str, actor: str, text: str = "") -> None:
        self._world.trace.fault(kind, actor, text)

    def _on_a_broker(self, strike: Callable[[Broker], None]) -> None:
        living = [broker for broker in self._world.brokers.values() if broker.life is not None]
        # A coordinator more often: what it believes to be is what others may have become.
        groups = sorted({client.group_id for client in self._world.clients})
        coordinators = [each for each in living if any(each.coordinates(group_id) for group_id in groups)]
        if living:
            strike(self._rng.choice(coordinators if coordinators and self._rng.random() < 0.6 else living))

    def _on_a_client(self, strike: Callable[[Process], None]) -> None:
        living = [client.process for client in self._world.clients if client.process is not None]
        if living:
            strike(self._rng.choice(living))

    # --- brokers --------------------------------------------------------------------------------------------------

    def _kill(self, broker: Broker) -> None:
        self._fault("broker killed", broker.actor)
        broker.kill()
        broker.start(self._between(100 * MS, 9 * SECOND))

    def _kill_at_a_write(self, broker: Broker) -> None:
        """It gets no answer to its next write, which was made or not, and dies a little later."""
        life = broker.life
        assert life is not None
        life.client.next_write = self._rng.choice([LOST_BEFORE, LOST_AFTER])

        def wait(tries: int = 200) -> None:
            if broker.life is life and life.client.next_write is None:
                self._later(self._between(0, 500 * MS), lambda: self._kill(broker))
            elif broker.life is life and tries:
                self._later(10 * MS, lambda: wait(tries - 1))

        wait()

    def _stop(self, broker: Broker) -> None:
        self._fault("broker stopped", broker.actor)
        broker.stop()
        broker.start(self._between(SECOND, 9 * SECOND))

    def _pause(self, broker: Broker) -> None:
        duration_us = self._between(200 * MS, 12 * SECOND)
        self._fault("broker paused", broker.actor, f"{duration_us / 1e6:.1f} s")
        broker.pause(duration_us)

    def _cut_from_zookeeper(self, broker: Broker) -> None:
        """Mostly one at a time, and now and then for so long that a successor has waited for all members."""
        if self._cut_off_brokers and self._rng.random() < 0.8:
            return
        self._fault("cut from zookeeper", broker.actor)
        self._cut_off_brokers += 1
        self._world.zookeeper.cut_off(broker.actor)

        def mend() -> None:
            self._cut_off_brokers -= 1
            self._world.zookeeper.reconnect(broker.actor)

        self._later(self._between(*self._rng.choice([(300 * MS, 10 * SECOND), (12 * SECOND, 25 * SECOND)])), mend)

    def _expire(self, broker: Broker) -> None:
        self._fault("session expiry", broker.actor)
        self._world.zookeeper.expire(broker.actor)

    def _zookeeper_down(self, broker: Broker) -> None:
        self._fault("zookeeper down", "zk")
        self._world.zookeeper.go_down()
        self._later(self._between(300 * MS, 9 * SECOND), self._world.zookeeper.come_back)

    def _isolate(self, broker: Broker) -> None:
        """From clients and brokers, and now and then from ZooKeeper too."""
        network = self._world.network
        others = [each.actor for each in self._world.brokers.values() if each is not broker]
        others += [client.name for client in self._world.clients]
        self._fault("broker isolated", broker.actor)
        for other in others:
            network.cut(broker.actor, other)
            network.cut(other, broker.actor)
        if self._rng.random() < 0.5:
            self._world.zookeeper.cut_off(broker.actor)

        def mend() -> None:
            for other in others:
                network.mend(broker.actor, other)
                network.mend(other, broker.actor)
            self._world.zookeeper.reconnect(broker.actor)

        self._later(self._between(300 * MS, 12 * SECOND), mend)

    # --- clients --------------------------------------------------------------------------------------------------

    def _cut_off(self, process: Process) -> None:
        """From one broker or all, in one direction or both."""
        network, name = self._world.network, process.client.name
        brokers = [broker.actor for broker in self._world.brokers.values()]
        if self._rng.random() < 0.5:
            brokers = [self._rng.choice(brokers)]
        ways = self._rng.choice([(True, True), (True, False), (False, True)])
        self._fault("client cut off", name, f"{brokers} {ways}")
        for broker in brokers:
            if ways[0]:
                network.cut(name, broker)
            if ways[1]:
                network.cut(broker, name)

        def mend() -> None:
            for broker in brokers:
                network.mend(name, broker)
                network.mend(broker, name)

        self._later(self._between(300 * MS, 9 * SECOND), mend)

    def _join(self) -> None:
        """One, or some one after the other."""
        for _ in range(self._rng.choice([1, 1, 2, 3])):
            self._later(self._between(0, 1_500 * MS), self._join_one)

    def _join_one(self) -> None:
        client = self._rng.choice(self._world.clients)
        if client.process is not None or client.was_replaced:
            if len(self._world.clients) >= _MOST_CLIENTS:
                return
            client = self._add_like(client, instance_id=None)
        self._fault("join", client.name)
        client.start()

    def _leave(self, process: Process) -> None:
        self._fault("leave", process.client.name)
        process.leave()
        if self._rng.random() < 0.6:
            self._later(self._between(100 * MS, 6 * SECOND), process.client.start)

    def _kill_client(self, process: Process) -> None:
        self._fault("client killed", process.client.name)
        process.client.kill()
        if self._rng.random() < 0.7:
            self._later(self._between(100 * MS, 8 * SECOND), process.client.start)

    def _freeze(self, process: Process) -> None:
        """At once, or when it has sent a heartbeat and has no answer yet."""
        duration_us = self._between(200 * MS, 12 * SECOND)
        client = process.client

        def freeze(tries: int) -> None:
            if tries and client.process is process and not process.is_waiting_for_an_answer:
                self._later(MS, lambda: freeze(tries - 1))
            elif client.process is process:
                self._fault("freeze", client.name, f"{duration_us / 1e6:.1f} s")
                self._world.scheduler.pause(client.name, duration_us)

        freeze(self._rng.choice([0, 1_500]))

    def _slow_down(self, process: Process) -> None:
        process.client.slow_us = self._between(200 * MS, 8 * SECOND)
        self._fault("slow release", process.client.name, f"{process.client.slow_us / 1e6:.1f} s")

    def _dawdle(self, process: Process) -> None:
        duration_us = self._between(SECOND, 12 * SECOND)
        self._fault("no polls", process.client.name, f"{duration_us / 1e6:.1f} s")
        process.client.dawdles_until_us = self._world.scheduler.now_us + duration_us

    def _resubscribe(self, process: Process) -> None:
        process.client.subscription = self._rng.choice(_SUBSCRIPTIONS)
        self._fault("other topics", process.client.name, ", ".join(process.client.subscription))
        process.subscribe()

    def _twin(self, process: Process) -> None:
        """Another process takes the instance id."""
        habits = process.client.habits
        if habits.instance_id is not None and len(self._world.clients) < _MOST_CLIENTS:
            twin = self._add_like(process.client, instance_id=habits.instance_id)
            self._fault("twin", twin.name, f"of {habits.name}")
            twin.start()

    def _remove(self, process: Process) -> None:
        client = process.client
        self._fault("member removed", client.name)
        self._admin(client.group_id).ask(
            RemoveGroupMembersRequest(group_id=client.group_id, members=(process.membership.member_id,)),
            on_answer=lambda answer: None,
            on_failure=lambda code: self._world.trace.line("adm", f"could not remove {client.name}: {code}"),
            timeout_us=2 * SECOND,
            thread="serve",
        )

    def _reset_offsets(self) -> None:
        """An administrator takes a group's offset back: refused while the group has members, so often all leave first
        and come back later."""
        group_id = self._rng.choice(sorted({client.group_id for client in self._world.clients}))
        if self._rng.random() < 0.5:
            self._reset_offset(group_id)
            return
        for client in self._world.clients:
            if client.group_id == group_id and client.process is not None:
                self._leave(client.process)
                self._later(self._between(2 * SECOND, 9 * SECOND), client.start)
        self._later(self._between(SECOND, 3 * SECOND), lambda: self._reset_offset(group_id))

    def _reset_offset(self, group_id: str) -> None:
        world = self._world
        found = [each for each in world.topics.of(sorted(world.topics.ids)) if world.checker.committed(group_id, each)]
        if not found:
            return
        partition = self._rng.choice(found)
        offset = self._rng.randrange(world.checker.committed(group_id, partition))
        at = PartitionKey(topic=partition.topic, partition=partition.number, topic_id=partition.topic_id)
        self._fault("offsets reset", "adm", f"{told(partition)} of {group_id} to {offset}")
        world.checker.resets(group_id, partition, offset)

        def answered(answer: object) -> None:
            assert isinstance(answer, CommitOffsetsResponse)
            if answer.errors == (None,):
                world.trace.counts["offsets reset by an administrator"] += 1

        def failed(code: str) -> None:
            world.trace.line("adm", f"could not reset: {code}")
            if code == "NON_EMPTY_GROUP":  # and nothing of it is under way: it was refused before anything was written
                world.checker.reset_refused(group_id, partition, offset)

        self._admin(group_id).ask(
            AlterGroupOffsetsRequest(group_id=group_id, offsets=(CommittedOffset(at=at, offset=offset),)),
            on_answer=answered,
            on_failure=failed,
            timeout_us=2 * SECOND,
            thread="serve",
        )

    def _admin(self, group_id: str) -> Coordination:
        return self._admins.setdefault(group_id, Coordination(self._world, "adm", group_id))

    def _add_like(self, client: Client, *, instance_id: str | None) -> Client:
        habits = dataclasses.replace(client.habits, name=f"c{len(self._world.clients) + 1}", instance_id=instance_id)
        return self._world.add_client(habits)

    # --- topics ---------------------------------------------------------------------------------------------------

    def _add_partitions(self) -> None:
        topics = self._world.topics
        name = self._rng.choice(sorted(topics.counts)) if topics.counts else ""
        if name and topics.counts[name] < _MOST_PARTITIONS:
            self._fault("partitions added", name)
            topics.add_partitions(name, self._rng.randint(1, 3))

    def _make_anew(self) -> None:
        topics = self._world.topics
        name = self._rng.choice(["t", "u"])
        if name in topics.ids:
            self._fault("topic deleted", name)
            topics.delete(name)
            self._later(self._between(10 * MS, 4 * SECOND), lambda: self._create(name))

    def _create(self, name: str) -> None:
        if name not in self._world.topics.ids:
            self._world.topics.create(name, self._rng.randint(1, 6))
