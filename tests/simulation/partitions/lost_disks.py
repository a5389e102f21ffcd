"""Disks that are lost, and machines that come back in any order, or not: while it lasts nothing else goes wrong.

Rule: of the members of an in-sync set that may be elected at least one keeps its disk, or the disk that was lost comes
back: so nothing that was acknowledged may be lost, whoever comes back first. Two faults go beyond that, and the checker
knows what is lost by them: all lose their power without fsyncs, and an operator gives a disk up.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import ElectLeadersRequest
from tests.callers import CLIENT
from tests.simulation.partitions.broker.disk import Copy
from tests.simulation.partitions.broker.life import DATA
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.world import World
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.scheduler import MS, SECOND

_LEADS_WITHIN_US = 15 * SECOND
_AVAILABLE = 15
_DECIDED_AFTER_US = 20 * SECOND


class LostDisks:
    """Takes disks out. ``later`` runs something unless the faults are over by then; ``heal`` puts back what is out."""

    def __init__(self, world: World, later: Callable[[int, Callable[[], None]], None]) -> None:
        self._world = world
        self._rng = world.rng
        self._later = later
        self._out: list[Callable[[], None]] = []

    def heal(self) -> None:
        """Every disk that is to come back does. Where that of the only one in sync does not (those in sync with it died
        before it was found out), an operator chooses."""
        for put_back in list(self._out):
            put_back()
        for node in self._world.nodes.values():

            def decide(node: Node = node) -> None:
                self._decide(node, decide)

            self._out.append(decide)
            self._world.scheduler.after(_DECIDED_AFTER_US, "net", decide)

    # --- one of several ---------------------------------------------------------------------------------------------

    def empty(self, node: Node) -> None:
        """A broker comes back with an empty disk, or without one of its logs, after a kill or a stop in order."""
        if not self._may_lose(node):
            return
        if self._rng.random() < 0.5:
            self._end(node, lambda: self._take_out(node))
        else:
            self._end(node, lambda: self._take_out_one(node))

    def empty_at_once(self, node: Node) -> bool:
        """A broker is killed and comes back with an empty disk; returns whether it may, and was."""
        if not self._may_lose(node):
            return False
        node.kill(power_lost=False)
        self._take_out(node)
        return True

    def restore(self, node: Node) -> None:
        """A broker's disk is replaced by a copy that was made of it some time ago, while it was stopped or running."""
        if not self._may_lose(node):
            return
        copies = []
        is_running = self._rng.random() < 0.5

        def copy() -> None:
            copies.append(node.files.copy(DATA))
            if not is_running:
                node.start()

        def restore() -> None:
            if copies and self._may_lose(node):
                self._end(node, put_in)

        def put_in() -> None:
            self._put_in_older(node, copies[0])
            node.start(self._rng.randrange(SECOND))

        if is_running:
            copy()
        else:
            self._end(node, copy)
        self._later(self._rng.randrange(3 * SECOND, (20 if is_running else 12) * SECOND), restore)

    # --- all at once ------------------------------------------------------------------------------------------------

    def all_end(self, node: Node, *, is_one_away: bool = False) -> None:
        """All brokers are killed; one of them has lost its disk, or has a copy of it that was made while it ran. They
        come back in any order, and one that has its disk may never do so. ``is_one_away``: it does not, where the
        others have all."""
        if self._rng.random() < 0.3:
            copy = node.files.copy(DATA)
            self._later(self._rng.randrange(8 * SECOND, 20 * SECOND), lambda: self._all_end(node, copy, is_one_away))
        else:
            self._all_end(node, None, is_one_away)

    def copied_a_moment_ago(self, node: Node) -> None:
        """All brokers are killed within seconds after a copy of one's disk was made, which then takes the disk's place:
        neither ZooKeeper nor the number in it says that it is older."""
        copy = node.files.copy(DATA)
        self._later(self._rng.randrange(SECOND // 2, 5 * SECOND), lambda: self._all_end(node, copy, False))

    def _all_end(self, node: Node, copy: Copy | None, is_one_away: bool) -> None:
        world = self._world
        is_quiet = world.scheduler.now_us < world.quiet_until_us  # they have not come back since they last ended
        if is_quiet or world.is_recovering or not world.invariants.is_durable_by_ack or not self._may_lose(node):
            return
        nodes = [each for each in world.nodes.values() if each.should_run]
        self._rng.shuffle(nodes)
        is_lost = copy is not None or self._rng.random() < 0.7
        others = [each for each in nodes if each is not node]
        in_sync = [set(state.isr) for state in world.states.partitions.values()]
        # Who stays away must not be the only one that has all of a partition.
        never = next(
            (
                o
                for o in others
                if all(members - {o.broker_id, node.broker_id if is_lost else 0} for members in in_sync)
            ),
            None,
        )
        if not is_one_away and self._rng.random() < 0.5:
            never = None
        for each in nodes:
            world.trace.fault("all killed", each.actor, "its disk is lost" if each is node and is_lost else "")
            if each is node and is_lost:
                world.zookeeper.expire(each.actor)  # else a set may be left to it alone, as others' sessions end before
            each.kill(power_lost=False)
        if copy is not None:
            self._put_in_older(node, copy)
        elif is_lost:
            self._take_out(node, is_started=False)
        delay_us = 0
        for each in nodes:
            delay_us += self._rng.choice([0, 300 * MS, 3 * SECOND])
            if each is not never:
                each.start(delay_us)
        world.quiet_until_us = world.scheduler.now_us + delay_us + _LEADS_WITHIN_US + SECOND
        if never is not None:
            world.trace.situation("all ended, and one never comes back")
        self._later(delay_us + _LEADS_WITHIN_US, lambda: self._require_leaders(never))

    def all_but_one_lose_power(self, node: Node) -> None:
        """All machines lose their power but one, whose process is killed; they come back in any order. Without fsyncs
        that one alone has all that was acknowledged, and the others wait for it."""
        world = self._world
        nodes, states = list(world.nodes.values()), world.states.partitions.values()
        keepers = [
            each
            for each in nodes
            if all(each.broker_id in set(state.isr) - {*state.lost, *state.unproven} for state in states)
        ]
        is_calm = not (world.is_recovering or world.network.is_cut_anywhere or world.zookeeper.is_down)
        is_well = all(each.is_retired or (each.is_up and each.is_well) for each in nodes)
        if world.invariants.is_durable_by_ack or not (keepers and is_calm and is_well):
            return
        keeper = self._rng.choice(keepers)
        if any(len(state.isr) > 1 for state in states):
            world.trace.situation("power lost by all in sync but one, without fsyncs")
        nodes = [each for each in nodes if not each.is_retired]
        self._rng.shuffle(nodes)
        for each in nodes:
            world.trace.fault("all but one lose power", each.actor, "it is the one" if each is keeper else "")
            each.kill(power_lost=each is not keeper)
        delay_us = 0
        for each in nodes:
            delay_us += self._rng.choice([0, 300 * MS, 3 * SECOND])  # less than the others wait for who has most
            each.start(delay_us)
        world.quiet_until_us = world.scheduler.now_us + delay_us + _LEADS_WITHIN_US

    def all_lose_power(self, node: Node) -> None:
        """All machines lose their power; they come back in any order, within the time in which they wait for each
        other. Without fsyncs what none of them has written is lost, and nothing else: whose log goes furthest leads."""
        world = self._world
        nodes = [each for each in world.nodes.values() if not each.is_retired]
        is_calm = not (world.is_recovering or world.network.is_cut_anywhere or world.zookeeper.is_down)
        is_well = all(each.is_up and each.is_well for each in nodes)
        if world.invariants.is_durable_by_ack or not (is_calm and is_well and self._are_all_in_sync()):
            return
        self._rng.shuffle(nodes)
        for each in nodes:
            world.trace.fault("all lose power, without fsyncs", each.actor)
            each.kill(power_lost=True)
        world.invariants.all_lost_power()
        delay_us = 0
        for each in nodes:
            delay_us += self._rng.choice([0, 300 * MS, 3 * SECOND])
            each.start(delay_us)
        world.quiet_until_us = world.scheduler.now_us + delay_us + _LEADS_WITHIN_US

    def _are_all_in_sync(self) -> bool:
        states = self._world.states
        return all(
            state is not None and set(state.isr) == set(replicas) and not (state.lost or state.unproven)
            for name, record in states.topics.items()
            for number, replicas in enumerate(record.assignment)
            for state in [states.state(TopicPartition(name, number))]
        )

    def _require_leaders(self, never: Node | None) -> None:
        for key, state in self._world.states.partitions.items():
            if state.leader is None and (never is None or set(state.isr) - {never.broker_id}):
                raise ViolationError(
                    _AVAILABLE, f"{self._world.invariants.committed[key].at}: nobody leads "
                    f"{_LEADS_WITHIN_US // SECOND} s after brokers in sync came back; in sync are {state.isr}",
                )  # fmt: skip

    # --- the only one -----------------------------------------------------------------------------------------------

    def empty_the_only_one(self, node: Node, *, is_given_up: bool = False) -> None:
        """Who alone is in sync comes back without its disk: nobody leads before the disk is back, or, ``is_given_up``,
        before an operator chooses somebody who has less. Where nobody is alone, all but ``node`` are killed first, for
        a while."""
        world = self._world
        if not any(len(state.isr) == 1 for state in world.states.partitions.values()) and self._may_lose(node):
            for each in world.nodes.values():
                if each is not node and each.should_run:
                    each.kill(power_lost=False)
                    each.start(self._rng.randrange(5 * SECOND, 8 * SECOND))
            self._later(
                self._rng.randrange(1_500 * MS, 4 * SECOND), lambda: self._empty_the_only_one(is_given_up=is_given_up)
            )
        else:
            self._empty_the_only_one(is_given_up=is_given_up)

    def _empty_the_only_one(self, *, is_given_up: bool) -> None:
        world = self._world
        alone = {state.isr[0] for state in world.states.partitions.values() if len(state.isr) == 1}
        nodes = [each for each in world.nodes.values() if each.broker_id in alone and each.is_up]
        if world.is_recovering or not nodes:
            return
        node = self._rng.choice(nodes)
        world.trace.situation("disk lost by the only one in sync")
        node.kill(power_lost=False)
        taken, whole = self._take_out(node, is_started=False)
        node.start(self._rng.randrange(SECOND))
        world.quiet_until_us = world.scheduler.now_us + 10 * SECOND
        if is_given_up:

            def decide() -> None:
                self._decide(node, decide)

            self._out.append(decide)
            self._later(self._rng.randrange(6 * SECOND, 9 * SECOND), decide)
            return

        def put_back() -> None:
            if put_back not in self._out:
                return
            states = [
                (world.invariants.committed[key].at, state)
                for key, state in world.states.partitions.items()
                if node.broker_id in state.isr
            ]
            made_anew = [(at, state) for at, state in states if node.broker_id not in state.lost]
            if any(len(state.isr) == 1 for _, state in made_anew):
                world.scheduler.after(SECOND, "net", put_back)  # the new disk has what no other has
                return
            self._out.remove(put_back)
            if len(made_anew) == len(states):
                return  # nobody misses it any more
            world.trace.fault("disk is back", node.actor)
            node.kill(power_lost=False)
            directories = node.files.copy(DATA).directories
            world.invariants.put_back(node, [path.name for path in directories], whole)
            node.files.put_in(taken)
            node.claimed_durable = {}
            node.start(self._rng.randrange(SECOND))

        self._out.append(put_back)
        self._later(self._rng.randrange(4 * SECOND, 8 * SECOND), put_back)

    def _decide(self, node: Node, again: Callable[[], None]) -> None:
        """An operator chooses who leads where the log of the only one in sync is gone with ``node``'s disk; ``again``:
        does so again."""
        world = self._world
        if again not in self._out:
            return
        missed = {
            world.invariants.committed[key].at: key
            for key, state in world.states.partitions.items()
            if state.leader is None and set(state.isr) <= set(state.lost)
        }
        if not missed:
            if node.is_up:
                self._out.remove(again)
            else:
                world.scheduler.after(SECOND, "net", again)
            return
        world.trace.fault("unclean election by an operator", "adm", ", ".join(map(str, missed)))
        world.invariants.decided.update(missed.values())
        partitions = tuple((at.topic, at.partition) for at in missed)

        def over(answer: object) -> None:
            world.invariants.decided.difference_update(missed.values())
            world.scheduler.after(SECOND, "net", again)

        world.call_controller(
            lambda life: life.movements.elect_leaders(
                CLIENT, ElectLeadersRequest(election="unclean", partitions=partitions)
            ),
            on_answer=over,
            on_failure=over,
        )

    # --- within -----------------------------------------------------------------------------------------------------

    def _may_lose(self, node: Node) -> bool:
        return self._world.may_lose_disk(node)

    def _put_in_older(self, node: Node, copy: Copy) -> None:
        self._world.trace.fault("older copy of a disk", node.actor)
        self._lost(node, [path.name for path in node.files.copy(DATA).directories])
        node.files.put_in(copy)
        node.claimed_durable = {}

    def _end(self, node: Node, then: Callable[[], None]) -> None:
        """The broker is killed, or stopped in order, and then."""
        if self._rng.random() < 0.5:
            node.kill(power_lost=False)
            then()
            return
        node.stop()

        def look() -> None:
            if node.life is None:
                if self._world.may_lose_disk(node):
                    then()
                else:
                    node.start()
            else:
                self._later(200 * MS, look)

        self._world.quiet_until_us = self._world.scheduler.now_us + 3 * SECOND
        self._later(200 * MS, look)

    def _take_out(self, node: Node, *, is_started: bool = True):
        self._world.trace.fault("disk emptied", node.actor)
        taken = node.files.take_out(DATA)
        whole = self._lost(node, [path.name for path in taken.directories])
        node.claimed_durable = {}
        if is_started:
            node.start(self._rng.randrange(2 * SECOND))
        return taken, whole

    def _take_out_one(self, node: Node) -> None:
        names = sorted(
            path for path in node.files.copy(DATA).directories
            if path.parent == DATA and path.name.rpartition("-")[2].isdecimal()
        )  # fmt: skip
        if names:
            path = self._rng.choice(names)
            self._world.trace.fault("directory lost", node.actor, path.name)
            node.files.take_out(path)
            self._lost(node, [path.name])
            node.claimed_durable = {at: end for at, end in node.claimed_durable.items() if str(at) != path.name}
        node.start(self._rng.randrange(2 * SECOND))

    def _lost(self, node: Node, directories: list[str]) -> frozenset[tuple[int, TopicPartition]]:
        return self._world.invariants.lost(node, directories)
