"""What goes wrong with a group, and what its people do, and when: chosen by the seed, ended before the quiet end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec

from broker_runtime.contract.requests import (
    AlterGroupOffsetsRequest,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    PartitionKey,
    RemoveGroupMembersRequest,
)
from broker_runtime.groups.hosted import GRACE_MS
from broker_runtime.groups.member import Partition
from broker_runtime.zookeeper.session import Create, Operation, Set
from broker_runtime.zookeeper.znodes import group_members_path
from tests.simulation.groups.broker import Broker
from tests.simulation.groups.calls import Coordination
from tests.simulation.groups.checker import name_of
from tests.simulation.groups.client import Client, Process
from tests.simulation.groups.ensemble import Hold
from tests.simulation.groups.positions import LIMIT_US
from tests.simulation.groups.situations import HELD_BACK, RESET_WITH_CHANGE, is_commit
from tests.simulation.groups.world import World
from tests.simulation.simulator.faults import FaultInjector
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.zookeeper import LOST_AFTER, LOST_BEFORE

_MOST_CLIENTS = 9
_MOST_PARTITIONS = 10
_SUBSCRIPTIONS = (("t",), ("u",), ("t", "u"), ("t", "u"))


class Faults(FaultInjector):
    """See the module."""

    def __init__(self, world: World, *, kinds: tuple[str, ...], interval_us: tuple[int, int]) -> None:
        super().__init__(world, interval_us=interval_us)
        self._world = world
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
            "port refuses": self._refuse_connections,
            "zookeeper lags": self._lag,
            "stands still in a call": self._stand_still_in_a_call,
            "commit held back": self._hold_a_commit_back,
            "release held back": self._hold_a_release_back,
            "succeeded unawares": self._succeed_unawares,
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
            "commit arrives again": self._repeat_a_commit,
        }
        others: dict[str, Callable[[], None]] = {
            "join": self._join,
            "partitions added": self._add_partitions,
            "topic recreated": self._recreate_topic,
            "offsets reset": self._reset_offsets,
            "reset held back": self._hold_a_reset_back,
            "join held back": self._hold_a_join_back,
        }
        self._strikes = [
            *((lambda strike=brokers[kind]: self._on_a_broker(strike)) for kind in kinds if kind in brokers),
            *((lambda strike=clients[kind]: self._on_a_client(strike)) for kind in kinds if kind in clients),
            *(others[kind] for kind in kinds if kind in others),
        ]
        self.begin()

    def heal(self) -> None:
        """Nothing goes wrong any more, nobody comes or goes; all brokers run, and in each group at least one client."""
        super().heal()
        world = self._world
        world.heal()
        for broker in world.brokers.values():
            world.zookeeper.heal(broker.actor)
            broker.refuses_connections = False
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

    def strike(self) -> None:
        """One kind of fault, on one broker or client, or something that people do."""
        self._rng.choice(self._strikes)()

    # --- within ---------------------------------------------------------------------------------------------------

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
        broker.restart(self._between(SECOND, 9 * SECOND))

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
        network.isolate(broker.actor, others)
        if self._rng.random() < 0.5:
            self._world.zookeeper.cut_off(broker.actor)

        def mend() -> None:
            network.rejoin(broker.actor, others)
            self._world.zookeeper.reconnect(broker.actor)

        self._later(self._between(300 * MS, 12 * SECOND), mend)

    def _refuse_connections(self, broker: Broker, duration_us: int = 0) -> None:
        """Its port refuses new connections; others take it for dead, while it goes on with whom it has."""
        self._fault("port refuses", broker.actor)
        broker.refuses_connections = True

        def mend() -> None:
            broker.refuses_connections = False

        self._world.scheduler.after(duration_us or self._between(300 * MS, 9 * SECOND), "net", mend)

    def _lag(self, broker: Broker) -> None:
        """The server of ZooKeeper that it is connected to is behind the others."""
        lag_us, duration_us = self._between(50 * MS, 4 * SECOND), self._between(SECOND, 15 * SECOND)
        self._fault("zookeeper lags", broker.actor, f"{lag_us / 1e6:.1f} s")
        self._world.zookeeper.lag(broker.actor, lag_us, duration_us)

    def _stand_still_in_a_call(self, broker: Broker) -> None:
        """The process stands still between two lines: before one of its next writes, and goes on from there; mostly for
        less than its session lasts, and now and then while others take it for dead."""
        duration_us = self._between(200 * MS, self._rng.choice([2, 12]) * SECOND)

        def began(operations: Sequence[Operation]) -> None:
            self._fault("stands still in a call", broker.actor, f"{duration_us / 1e6:.1f} s")
            broker.pause(duration_us)
            if self._rng.random() < 0.5:
                self._refuse_connections(broker, duration_us)

        self._hold(broker, Hold(lambda operations: True, began, lambda: True, limit_us=0))

    def _hold_a_commit_back(self, broker: Broker) -> None:
        """One thread, that writes a member's commit, stands still right before the write, until another member begins
        with one of the partitions or nobody can: the member dies or is removed meanwhile, and perhaps another broker
        takes the group over. Who has begun leaves soon, and so commits while it is not far."""
        how = self._rng.choice(["member ends", "member ends", "coordinator changes"])
        timeout_us = self._world.clients[0].habits.session_timeout_ms * MS
        limit_us = timeout_us + self._between(SECOND, 4 * SECOND)
        if how == "coordinator changes":
            limit_us += GRACE_MS * MS
        written: list[tuple[str, Partition]] = []
        before: list[Client] = []

        def picks(operations: Sequence[Operation]) -> bool:
            return is_commit(operations) and any(
                self._holders(*each) for each in self._world.checker.news_in(operations)
            )

        def began(operations: Sequence[Operation]) -> None:
            written.extend(self._world.checker.news_in(operations))
            before.extend(client for each in written for client in self._holders(*each))
            self._fault("commit held back", broker.actor, how)
            self._later(0, change)

        def change() -> None:
            for client in dict.fromkeys(before):
                if client.process is not None:
                    self._rng.choice([self._kill_for_long, self._kill_for_long, self._remove])(client.process)
            if how == "coordinator changes":
                self._refuse_connections(broker, limit_us)
            for client in self._world.clients:
                if client.group_id == written[0][0] and client not in before:
                    client.start()
            self._later(self._between(0, SECOND), self._join_one)

        self._hold(broker, Hold(picks, began, lambda: self._is_over or self._has_begun(written, before), limit_us))

    def _hold_a_release_back(self, broker: Broker) -> None:
        """Somebody joins; the commit of a member that has to release something for that one stands still right before
        the write, until the member has given it up and somebody else begins, or nobody can."""
        written: list[tuple[str, Partition]] = []
        before: list[Client] = []

        def picks(operations: Sequence[Operation]) -> bool:
            news = self._world.checker.news_in(operations) if is_commit(operations) else []
            return any(broker.waits_for_release(*each) for each in news)

        def began(operations: Sequence[Operation]) -> None:
            written.extend(self._world.checker.news_in(operations))
            before.extend(client for each in written for client in self._holders(*each))
            self._fault("release held back", broker.actor)

        limit_us = LIMIT_US + self._between(SECOND, 3 * SECOND)
        self._hold(broker, Hold(picks, began, lambda: self._is_over or self._has_begun(written, before), limit_us))
        self._join_one()

    def _hold_a_reset_back(self) -> None:
        """All of a group have left; an administrator's reset stands still right before it is written, another broker
        takes the group over, and members begin."""
        world = self._world
        group_id = self._rng.choice(sorted({client.group_id for client in world.clients}))
        members = [client for client in world.clients if client.group_id == group_id]
        for client in members:
            if client.process is not None:
                self._leave(client.process, comes_back=False)
        written: list[tuple[str, Partition]] = []

        def picks(operations: Sequence[Operation]) -> bool:
            news = world.checker.news_in(operations) if is_commit(operations) else []
            return any(group == group_id for group, _ in news)

        def try_to(tries: int = 40) -> None:
            coordinators = [each for each in world.brokers.values() if each.coordinates(group_id)]
            if not coordinators or any(client.process is not None for client in members):
                if tries:
                    self._later(100 * MS, lambda: try_to(tries - 1))
                else:
                    come_back()
                return
            broker = coordinators[0]

            def began(operations: Sequence[Operation]) -> None:
                written.extend(world.checker.news_in(operations))
                self._fault("reset held back", broker.actor, group_id)
                self._later(0, change)

            def change() -> None:
                self._refuse_connections(broker, limit_us)
                come_back()

            def is_over() -> bool:
                has_begun = self._has_begun(written, [])
                if has_begun:
                    world.trace.situation(RESET_WITH_CHANGE)
                return self._is_over or has_begun

            limit_us = self._between(4 * SECOND, 9 * SECOND)
            self._hold(broker, Hold(picks, began, is_over, limit_us))
            self._reset_offset(group_id)
            self._later(5 * SECOND, come_back)

        def come_back() -> None:
            for client in members:
                client.start()

        try_to()

    def _hold_a_join_back(self) -> None:
        """All of a group have left and one comes back; what it is given stands still right before it is written, until
        it begins with it, which it must not, or for a while. Then its coordinator dies without having written it, the
        member is cut off, and the others come back."""
        world = self._world
        group_id = self._rng.choice(sorted({client.group_id for client in world.clients}))
        members = [client for client in world.clients if client.group_id == group_id]
        first = self._rng.choice(members)
        path = group_members_path(group_id)
        for client in members:
            if client.process is not None:
                self._leave(client.process, comes_back=False)

        def try_to(tries: int = 60) -> None:
            if all(client.process is None for client in members):
                for broker in world.brokers.values():
                    if broker.life is not None:
                        hold_at(broker)
                first.start()
                self._later(5 * SECOND, come_back)
            elif tries:
                self._later(100 * MS, lambda: try_to(tries - 1))
            else:
                come_back()

        def hold_at(broker: Broker) -> None:
            def began(operations: Sequence[Operation]) -> None:
                self._fault("join held back", broker.actor, first.name)

            def is_over() -> bool:
                if first.process is not None and first.process.positions.held:
                    self._later(0, end)
                return self._is_over

            def end() -> None:
                if broker.life is not None:
                    self._kill(broker)
                    if first.process is not None:
                        self._cut_off_from_all(first)
                    come_back()

            picks = _writes(path)
            self._hold(broker, Hold(picks, began, is_over, limit_us=3 * SECOND))

        def come_back() -> None:
            for client in members:
                client.start()

        try_to()

    def _cut_off_from_all(self, client: Client) -> None:
        network, brokers = self._world.network, [broker.actor for broker in self._world.brokers.values()]
        self._fault("client cut off", client.name, "from all")
        network.isolate(client.name, brokers)
        self._later(self._between(3 * SECOND, 9 * SECOND), lambda: network.rejoin(client.name, brokers))

    def _hold(self, broker: Broker, hold: Hold) -> None:
        assert broker.life is not None
        broker.life.client.hold = hold

    def _holders(self, group_id: str, partition: Partition) -> list[Client]:
        return [
            client
            for client in self._world.clients
            if client.group_id == group_id and client.process is not None and partition in client.process.positions.held
        ]

    def _has_begun(self, written: Sequence[tuple[str, Partition]], before: Sequence[Client]) -> bool:
        """Whether somebody else has begun with one of the partitions, and has not committed yet."""
        begun = [client for each in written for client in self._holders(*each) if client not in before]
        for client in dict.fromkeys(begun):
            self._later(self._between(50 * MS, 500 * MS), client.leave)
        if begun:
            self._world.trace.situation(HELD_BACK)
        return bool(begun)

    def _kill_for_long(self, process: Process) -> None:
        client = process.client
        self._fault("client killed", client.name)
        client.kill()
        self._later(self._between(10 * SECOND, 20 * SECOND), client.start)

    def _succeed_unawares(self, broker: Broker) -> None:
        """It is cut from ZooKeeper until its session has ended, and some of a group's members with it from the other
        brokers, so that they stay with it; another one takes the group over for those who come."""
        groups = sorted({client.group_id for client in self._world.clients if broker.coordinates(client.group_id)})
        if not groups:
            return
        group_id = self._rng.choice(groups)
        self._fault("succeeded unawares", broker.actor, group_id)
        if self._rng.random() < 0.5:
            self._world.zookeeper.cut_off(broker.actor)
        broker.refuses_connections = True
        timeout_us = self._world.zookeeper.weather.session_timeout_us

        def mend() -> None:
            broker.refuses_connections = False
            self._world.zookeeper.reconnect(broker.actor)

        self._later(self._between(SECOND, timeout_us + SECOND), lambda: self._join_like(group_id))
        self._world.scheduler.after(timeout_us + self._between(6 * SECOND, 14 * SECOND), "net", mend)

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

        self._later(self._between(300 * MS, 9 * SECOND), lambda: network.rejoin(name, brokers))

    def _join(self) -> None:
        """One, or some one after the other."""
        for _ in range(self._rng.choice([1, 1, 2, 3])):
            self._later(self._between(0, 1_500 * MS), self._join_one)

    def _join_like(self, group_id: str) -> None:
        self._join_one([client for client in self._world.clients if client.group_id == group_id])

    def _join_one(self, among: Sequence[Client] = ()) -> None:
        client = self._rng.choice(among or self._world.clients)
        if client.process is not None or client.was_replaced:
            if len(self._world.clients) >= _MOST_CLIENTS:
                return
            client = self._add_like(client, instance_id=None)
        self._fault("join", client.name)
        client.start()

    def _leave(self, process: Process, *, comes_back: bool = True) -> None:
        self._fault("leave", process.client.name)
        process.leave()
        if comes_back and self._rng.random() < 0.6:
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

    def _repeat_a_commit(self, process: Process) -> None:
        """The client's next commit arrives a second time: a later one is written, and its broker has lost the group and
        has it again, by then."""
        world, name, group_id = self._world, process.client.name, process.client.group_id

        def answered(source: str, broker: Broker, request: msgspec.Struct) -> None:
            if source != name or not isinstance(request, CommitOffsetsRequest):
                return
            world.on_request = lambda source, broker, request: None
            life = broker.life
            self._later(self._between(900 * MS, 3 * SECOND), lambda: world.zookeeper.expire(broker.actor))
            first = broker.epoch_of(group_id)

            def repeat(tries: int = 400) -> None:
                if broker.life is not life:
                    return
                if broker.epoch_of(group_id) > first:
                    self._fault("commit arrives again", broker.actor, f"of {name}")
                    world.deliver(broker, request)
                elif tries:
                    self._later(20 * MS, lambda: repeat(tries - 1))

            repeat()

        world.on_request = answered

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
        self._fault("offsets reset", "adm", f"{name_of(partition)} of {group_id} to {offset}")
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

    def _recreate_topic(self) -> None:
        topics = self._world.topics
        name = self._rng.choice(["t", "u"])
        if name in topics.ids:
            self._fault("topic deleted", name)
            topics.delete(name)
            self._later(self._between(10 * MS, 4 * SECOND), lambda: self._create(name))

    def _create(self, name: str) -> None:
        if name not in self._world.topics.ids:
            self._world.topics.create(name, self._rng.randint(1, 6))


def _writes(path: str) -> Callable[[Sequence[Operation]], bool]:
    return lambda operations: any(isinstance(each, Create | Set) and each.path == path for each in operations)
