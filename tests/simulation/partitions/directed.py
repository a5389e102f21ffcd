"""Faults that come at the worst moment: each waits for what it needs, and strikes in the middle of it.

By chance these moments are too rare to be met. Rule: nothing here is done to a broker that could not happen to it; only
when it happens is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import ElectLeadersRequest, PartitionMove, ReassignPartitionsRequest
from broker_runtime.log.faulty_files import Fault
from broker_runtime.zookeeper.session import Create, Operation, Set
from broker_runtime.zookeeper.znodes import (
    CONTROLLER_EPOCH,
    DiskTroubles,
    PartitionState,
    broker_unwritable_path,
    from_json,
)
from tests.callers import CLIENT
from tests.simulation.partitions.broker.disk import LOG_SUFFIX
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.log_view import LogView
from tests.simulation.partitions.world import World
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.zookeeper import SimClient, TransactionHook

_LIMIT_US = 8 * SECOND
_HELD_US = 4 * SECOND  # shorter than a session lasts without a sign of life


class Directed:
    """Sets traps. One that nothing has sprung is taken away after a while."""

    def __init__(self, world: World, later: Callable[[int, Callable[[], None]], None]) -> None:
        """``later``: carries a fault on after so long, unless everything has healed by then."""
        self._world = world
        self._rng = world.rng
        self._later = later

    def end(self) -> None:
        """No trap springs any more, and none is set."""
        self._world.zookeeper.before_transaction.clear()
        self._world.zookeeper.after_transaction.clear()
        for node in self._world.nodes.values():
            node.refuses_until_us = 0

    def lead(self, at: TopicPartition, replicas: tuple[int | None, ...]) -> None:
        """The first of a partition's replicas leads, if it can: they are put in that order."""
        order = tuple(each for each in replicas if each is not None)
        move = PartitionMove(topic=at.topic, partition=at.partition, replicas=order)

        def elect(answer: object) -> None:
            self._world.call_controller(
                lambda life: life.movements.elect_leaders(CLIENT, ElectLeadersRequest()),
                on_answer=lambda answer: None,
                on_failure=lambda reason: None,
            )

        self._world.call_controller(
            lambda life: life.movements.reassign_partitions(CLIENT, ReassignPartitionsRequest(moves=(move,))),
            on_answer=elect,
            on_failure=elect,
        )

    def when(self, is_so: Callable[[], bool], act: Callable[[], None], limit_us: int) -> None:
        """As soon as it is so, or when the time is over."""
        if is_so() or limit_us <= 0:
            act()
        else:
            self._later(2 * MS, lambda: self.when(is_so, act, limit_us - 2 * MS))

    # --- two controllers ------------------------------------------------------------------------------------------

    def depose_controller(self, node: Node) -> None:
        """The controller stops between the reading and the writing of an election, and its port refuses; it goes on
        when another has taken over."""
        world, zookeeper = self._world, self._world.zookeeper
        active = [each for each in self._running() if each.life.member.controller.is_active]  # type: ignore[union-attr]
        led = {state.leader for state in world.states.partitions.values()}
        victims = [each for each in self._running() if each not in active and each.broker_id in led]
        if not active or not victims:
            return
        controller, victim = active[0], self._rng.choice(victims)
        world.trace.fault("controller held at an election", controller.actor)

        def hold(client: SimClient) -> None:
            world.trace.line(controller.actor, "--- is held before it writes an election")
            before, end_us = zookeeper.find(CONTROLLER_EPOCH), world.scheduler.now_us + _HELD_US
            controller.refuses_until_us = end_us
            controller.held_since_us = world.scheduler.now_us
            for other in self._running():
                if other is not controller:
                    world.scheduler.after(0, other.actor, lambda other=other: other.suspect(controller.broker_id))
            while zookeeper.find(CONTROLLER_EPOCH) == before and world.scheduler.now_us < end_us:
                world.scheduler.block(MS)
            world.scheduler.block(self._rng.randrange(8 * MS))
            world.trace.line(controller.actor, "--- goes on")
            world.scheduler.after(20 * MS, "sim", lambda: setattr(controller, "held_since_us", None))

        self._at_state_write(zookeeper.before_transaction, controller.actor, "member", hold)
        victim.kill(power_lost=False)
        victim.start(self._rng.randrange(SECOND, 6 * SECOND))

    # --- leaders ----------------------------------------------------------------------------------------------------

    def back_and_forth(self, node: Node, tries: int = 3) -> None:
        """Followers cannot fetch; another leads for a while, and then the first again: their logs end with records of
        epochs that the other has none of (KIP-279)."""
        world = self._world
        chosen = [
            (at, state)
            for at, state in self._led()
            if len(state.isr) > 1 and set(world.states.topics[at.topic].assignment[at.partition]) >= set(state.isr)
        ]
        if not chosen:
            return
        at, state = self._rng.choice(chosen)
        first = state.leader
        second = self._rng.choice([each for each in state.isr if each != first])
        rest = [b for b in world.states.topics[at.topic].assignment[at.partition] if b not in {first, second}]
        world.trace.fault("leader back and forth", f"b{first}", f"{at} to {second}")
        brokers = [each.actor for each in world.nodes.values()]
        for source in brokers:
            for target in brokers:
                if source != target:
                    world.network.cut(source, target)
        if tries == 3 and self._rng.random() < 0.4:
            self._to_the_second(at, world.nodes[first], (second, first, *rest))
        else:
            self._there_and_back(at, first, second, rest, tries)

    def _to_the_second(self, at: TopicPartition, first: Node, order: tuple[int, ...]) -> None:
        """It stays there: what the first still makes durable, and has others wait for, the second cuts off."""
        world = self._world
        first.sync_us = (900 * MS, 1_500 * MS)

        def is_waited_for() -> bool:
            waiting = 0 if first.life is None else first.life.serving.acknowledging.get((at.topic, at.partition), 0)
            return waiting > 1 and first.files.is_syncing(str(at))

        def lead() -> None:
            self.lead(at, order)
            self.when(lambda: self._leader(at) == order[0], world.network.heal, 800 * MS)

        def mend() -> None:
            first.sync_us = first.usual_sync_us

        self.when(is_waited_for, lead, 2 * SECOND)
        self._later(5 * SECOND, mend)

    def _there_and_back(self, at: TopicPartition, first: int, second: int, rest: list[int], tries: int) -> None:
        """The second's log is to end where the first's does, as only its epochs show."""
        world = self._world
        shared, wanted = self._log(second, at).end, self._rng.randint(3, 8)

        def has_more() -> bool:
            return len([f for f in self._log(first, at).frames if f.base_offset >= shared]) >= wanted

        def is_of_one_length() -> bool:
            return shared < self._log(second, at).end == self._log(first, at).end

        def go() -> None:
            self.lead(at, (second, first, *rest))
            self.when(is_of_one_length, come_back, 1_500 * MS)

        def come_back() -> None:
            if not is_of_one_length() and tries > 1:
                self._later(5 * SECOND, lambda: self.back_and_forth(world.nodes[first], tries - 1))
            for producer in sorted({batch.producer for batch in self._world.history.batches.values()}):
                self._world.network.cut(producer, f"b{second}")  # nothing more is to come
            self.lead(at, (first, second, *rest))
            self.when(lambda: self._leader(at) == first, world.network.heal, 900 * MS)

        self.when(has_more, go, 1_200 * MS)

    def _log(self, broker_id: int, at: TopicPartition) -> LogView:
        return self._world.nodes[broker_id].disk.logs.get(at, LogView())

    def _leader(self, at: TopicPartition) -> int | None:
        state = self._world.states.state(at)
        return None if state is None else state.leader

    def leader_lost_in_move(self, node: Node) -> None:
        """A partition moves to a broker that cannot fetch it, and its leader is killed before the move is through."""
        world = self._world
        chosen = [
            (at, state, spare)
            for at, state in self._led()
            for spare in self._running()
            if len(state.isr) > 1 and spare.broker_id not in world.states.topics[at.topic].assignment[at.partition]
        ]
        if not chosen:
            return
        at, state, spare = self._rng.choice(chosen)
        leader = world.nodes[state.leader]
        kept = [each for each in state.isr if each != state.leader]
        world.trace.fault("leader lost during a move", leader.actor, f"{at} to {spare.broker_id}, {kept}")
        world.network.cut(spare.actor, leader.actor)
        move = PartitionMove(topic=at.topic, partition=at.partition, replicas=(spare.broker_id, *kept))

        def is_moving() -> bool:
            record = world.states.topics.get(at.topic)
            return record is not None and at.partition in record.reassignments

        def strike() -> None:
            if is_moving() and leader.life is not None and self._leader(at) == leader.broker_id:
                leader.kill(power_lost=False)
                leader.start(self._rng.randrange(SECOND, 8 * SECOND))
            world.network.mend(spare.actor, leader.actor)

        world.call_controller(
            lambda life: life.movements.reassign_partitions(CLIENT, ReassignPartitionsRequest(moves=(move,))),
            on_answer=lambda answer: None,
            on_failure=lambda reason: None,
        )
        self.when(is_moving, lambda: self._later(self._rng.randrange(500 * MS), strike), 3 * SECOND)

    def target_without_power(self, node: Node) -> None:
        """A partition moves to another broker. As soon as that one is in sync, and before the move is through, all
        brokers are killed; its machine loses its power, and it is back before the others, who have all."""
        world = self._world
        chosen = [
            (at, state, spare)
            for at, state in self._led()
            for spare in self._running()
            if spare.broker_id not in world.states.topics[at.topic].assignment[at.partition]
            and all(each.isr != (spare.broker_id,) for each in world.states.partitions.values())
        ]
        is_calm = not (world.is_recovering or world.network.is_cut_anywhere or world.zookeeper.is_down)
        is_quiet = world.scheduler.now_us < world.quiet_until_us
        if (
            not chosen
            or not is_calm
            or is_quiet
            or not all(each.is_up and each.is_well for each in world.nodes.values())
        ):
            return
        at, state, spare = self._rng.choice(chosen)
        leader = world.nodes[state.leader]
        world.trace.fault("target of a move loses its power", spare.actor, str(at))

        def strike() -> None:
            present = world.states.state(at)
            is_moving = at.partition in world.states.topics[at.topic].reassignments
            if not is_moving or present is None or spare.broker_id not in present.isr or present.unproven:
                return
            world.trace.situation("target of a move loses its power as it arrives")
            for each in world.nodes.values():
                each.kill(power_lost=each is spare)
                each.start(self._rng.randrange(SECOND) if each is spare else self._rng.randrange(4, 8) * SECOND)
            world.quiet_until_us = max(world.quiet_until_us, world.scheduler.now_us + 14 * SECOND)

        self._at_state_write(
            world.zookeeper.after_transaction,
            leader.actor,
            "in-sync",
            lambda client: world.scheduler.after(0, "net", strike),
            lambda written: spare.broker_id in written.isr,
        )
        move = PartitionMove(topic=at.topic, partition=at.partition, replicas=(spare.broker_id,))
        world.call_controller(
            lambda life: life.movements.reassign_partitions(CLIENT, ReassignPartitionsRequest(moves=(move,))),
            on_answer=lambda answer: None,
            on_failure=lambda reason: None,
        )

    # --- failed fsyncs ----------------------------------------------------------------------------------------------

    def successor_killed(self, node: Node) -> None:
        """A leader's fsync fails, and it hands over. All that it hands over to are killed before they can commit
        anything, and come back later than the former leader, whose log may lack what the fsync did not write."""
        at, leader = self._fail_fsync(of_leader=True)
        if at is None or leader is None:
            return

        def is_handed_over(state: PartitionState) -> bool:
            return state.leader is None and leader.broker_id not in state.isr

        def strike() -> None:
            if self._has_reported_all(leader):  # what fails a moment before the kill is lost, as Guarantees says
                self._world.trace.situation("successor killed before it commits")
                self._back_before_all_others(at, leader)

        self._at_state_write(
            self._world.zookeeper.after_transaction,
            leader.actor,
            "in-sync",
            lambda client: self._world.scheduler.after(0, "net", strike),
            is_handed_over,
        )

    def failed_one_back_first(self, node: Node) -> None:
        """A follower's fsync fails. All others are killed, and come back later than the follower, whose log may lack
        what the fsync did not write."""
        world = self._world
        at, follower = self._fail_fsync(of_leader=False)
        if at is None or follower is None:
            return

        def is_reported() -> bool:
            return self._has_reported_all(follower)

        def strike() -> None:
            state = world.states.state(at)
            if is_reported() and state is not None and {follower.broker_id} < {*state.isr, *state.eligible}:
                world.trace.situation("failed one back first")
                self._back_before_all_others(at, follower)

        self.when(is_reported, lambda: self._later(self._rng.randrange(3 * SECOND), strike), 8 * SECOND)

    def failed_ones_outlive_the_others(self, node: Node) -> None:
        """The fsyncs of some followers fail, and they run on. All others end, and are back before those are restarted,
        whose logs may lack what the fsyncs did not write. Sometimes one of the others has lost its power: with all that
        it had on its disk, or it would be lost, rightly."""
        world = self._world
        at, follower = self._fail_fsync(of_leader=False)
        state = None if at is None else world.states.state(at)
        if at is None or follower is None or state is None:
            return
        failing = [follower]
        if self._rng.random() < 0.5:
            failing = [world.nodes[each] for each in state.isr if each != state.leader]
            for other in failing:
                if other is not follower:
                    self._fail_next_fsync(at, other)
        others = [world.nodes[each] for each in state.isr if world.nodes[each] not in failing]
        takes_power, delay_us = self._rng.random() < 0.5, self._rng.choice([0, self._rng.randrange(3 * SECOND)])

        def are_reported() -> bool:
            return all(map(self._has_reported_all, failing))

        def strike() -> None:
            if not are_reported() or any(each.life is None or each.has_offline_logs for each in others):
                return
            world.trace.situation("failed ones outlive the others")
            for other in others:
                is_last = other is others[-1] and takes_power and self._is_flushed(other)
                if is_last:
                    world.trace.situation("failed ones outlive one that lost its power")
                other.kill(power_lost=is_last)
                other.start(self._rng.randrange(8 * SECOND))
            world.quiet_until_us = max(world.quiet_until_us, world.scheduler.now_us + 14 * SECOND)
            for other in failing:
                self._later(self._rng.randrange(9 * SECOND, 12 * SECOND), lambda other=other: restart(other))

        def restart(other: Node) -> None:
            if other.life is not None:
                other.kill(power_lost=False, memory_lost=True)
                other.start(self._rng.randrange(SECOND))

        self.when(are_reported, lambda: self._later(delay_us, strike), 8 * SECOND)

    def _is_flushed(self, node: Node) -> bool:
        """Whether no log of the broker would lose anything with its power."""
        return all(view.durable_end(node.files) >= view.end for view in node.disk.logs.values())

    def _has_reported_all(self, node: Node) -> bool:
        """Whether some logs of the broker have failed, and ZooKeeper knows of all that have."""
        path = broker_unwritable_path(node.broker_id)
        found = self._world.zookeeper.find(path)
        if node.life is None or not node.has_offline_logs or found is None:
            return False
        reported = from_json(found.data, DiskTroubles, path)
        return all(reported.has_failed(each.topic, each.partition) for each in node.life.hosting.failed_logs())

    def _fail_fsync(self, *, of_leader: bool) -> tuple[TopicPartition | None, Node | None]:
        """The next fsync of a replica in sync fails. Returns the partition and the broker; None: it cannot be done."""
        world = self._world
        chosen = [
            (at, world.nodes[each])
            for at, state in self._led()
            if len(state.isr) > 1 and all(world.nodes[each].is_well for each in state.isr)
            for each in state.isr
            if (each == state.leader) == of_leader
        ]
        if not chosen:
            return None, None
        at, node = self._rng.choice(chosen)
        world.trace.fault("failed fsync, and the others are killed", node.actor, str(at))
        self._fail_next_fsync(at, node)
        return at, node

    def _fail_next_fsync(self, at: TopicPartition, node: Node) -> None:
        node.files.faults.append(
            Fault(
                "sync",
                times=1,
                matches=lambda path: path.suffix == LOG_SUFFIX and path.parent.name == str(at),
            )
        )

    def _back_before_all_others(self, at: TopicPartition, first: Node) -> None:
        """All replicas are killed. The first comes back without what a failed fsync left in its memory, the others
        later; sometimes one of them has lost its power, and is back before the last, if that one has all."""
        world = self._world
        replicas = world.states.topics[at.topic].assignment[at.partition]
        others = [world.nodes[each] for each in replicas if each != first.broker_id]
        others = [each for each in others if each.life is not None]
        state = world.states.state(at)
        in_sync = () if state is None else state.isr
        keep_all = [each.broker_id in in_sync and not each.has_offline_logs for each in others[1:]]
        without_power = others[0] if any(keep_all) and self._rng.random() < 0.5 else None
        for other in others:
            other.kill(power_lost=other is without_power)
            earliest = 4 if other is without_power else 8
            other.start(self._rng.randrange(earliest * SECOND, (earliest * 3 // 2) * SECOND))
        if without_power is not None:
            world.trace.situation("failed one back first, then one without power")
        first.kill(power_lost=False, memory_lost=True)
        first.start(self._rng.randrange(SECOND))
        world.quiet_until_us = max(world.quiet_until_us, world.scheduler.now_us + 14 * SECOND)

    # --- in-sync sets -----------------------------------------------------------------------------------------------

    def lose_outcome(self, node: Node, *, change: Literal["join", "leave"] | None = None) -> None:
        """A leader's change of an in-sync set is carried out, and the leader does not learn of it for seconds. A broker
        that joins is cut off at that moment; one that leaves is back. ``change``: which; None: either."""
        world, zookeeper = self._world, self._world.zookeeper
        leader, follower = self._about_to_change(change)
        if leader is None or follower is None:
            return
        world.trace.fault("outcome of an in-sync write lost", leader.actor, f"about {follower.actor}")

        def lose(client: SimClient) -> None:
            world.trace.line(leader.actor, "--- does not hear what became of its write")
            world.quiet_until_us = max(world.quiet_until_us, world.scheduler.now_us + 5 * SECOND)
            client.cut()
            is_cut = world.network.is_cut(follower.actor, leader.actor)
            for source, target in ((leader.actor, follower.actor), (follower.actor, leader.actor)):
                (world.network.mend if is_cut else world.network.cut)(source, target)

            def mend() -> None:
                zookeeper.reconnect(leader.actor)
                world.network.rejoin(leader.actor, [follower.actor])

            self._later(self._rng.randrange(3_300 * MS, 4_500 * MS), mend)

        def is_meant(state: PartitionState) -> bool:
            return change is None or (follower.broker_id in state.isr) == (change == "join")

        self._at_state_write(zookeeper.after_transaction, leader.actor, "in-sync", lose, is_meant)

    def end_session(self, node: Node) -> None:
        """A leader's session ends between the reading and the writing of an in-sync set; at once it has another."""
        world, zookeeper = self._world, self._world.zookeeper
        leader, follower = self._about_to_change()
        if leader is None or follower is None:
            return
        world.trace.fault("session ends before an in-sync write", leader.actor, f"about {follower.actor}")

        def expire(client: SimClient) -> None:
            world.trace.line(leader.actor, "--- its session ends before it writes")
            client.expire()
            client.reconnect_at_once()

        self._at_state_write(zookeeper.before_transaction, leader.actor, "in-sync", expire)

    def _about_to_change(self, change: Literal["join", "leave"] | None = None) -> tuple[Node | None, Node | None]:
        """A leader and a follower whose place in the in-sync set is about to change, which is seen to here."""
        world = self._world
        choices = [
            (world.nodes[state.leader], world.nodes[each])
            for at, state in self._led()
            for each in world.states.topics[at.topic].assignment[at.partition]
            if state.leader is not None and each != state.leader and (each in state.isr or change != "leave")
        ]
        choices = [(a, b) for a, b in choices if b.life is not None]
        if not choices:
            return None, None
        leader, follower = self._rng.choice(choices)
        if change == "join" or (change is None and self._rng.random() < 0.5):
            follower.kill(power_lost=False)
            follower.start(self._rng.randrange(100 * MS, SECOND))
        else:
            network = world.network
            network.isolate(leader.actor, [follower.actor])

            def mend() -> None:
                network.rejoin(leader.actor, [follower.actor])

            self._later(10 * SECOND, mend)
        return leader, follower

    # --- within -----------------------------------------------------------------------------------------------------

    def _running(self) -> list[Node]:
        return [each for each in self._world.nodes.values() if each.is_up and each.life is not None]

    def _led(self):
        """Partitions whose leader runs."""
        states = self._world.states
        running = {each.broker_id for each in self._running()}
        found = []
        for name, record in sorted(states.topics.items()):
            for number in range(len(record.assignment)):
                state = states.state(TopicPartition(name, number))
                if state is not None and state.leader in running:
                    found.append((TopicPartition(name, number), state))
        return found

    def _at_state_write(
        self,
        traps: dict[str, TransactionHook],
        actor: str,
        thread: str,
        act: Callable[[SimClient], None],
        is_meant: Callable[[PartitionState], bool] = lambda state: True,
    ) -> None:
        """Once, when that thread of the actor writes a partition's state, such a one as ``is_meant``."""

        def trap(client: SimClient, operations: Sequence[Operation]) -> None:
            if self._world.scheduler.current_thread == thread and any(map(is_meant, _written_states(operations))):
                traps.pop(actor, None)
                act(client)

        traps[actor] = trap

        def take_away() -> None:
            if traps.get(actor) is trap:
                del traps[actor]

        self._later(_LIMIT_US, take_away)


def _written_states(operations: Sequence[Operation]) -> list[PartitionState]:
    written = [each for each in operations if isinstance(each, Create | Set) and each.path.endswith("/state")]
    return [from_json(each.data, PartitionState, each.path) for each in written]
