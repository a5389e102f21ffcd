"""What goes wrong in a run, and when: chosen by the seed, and ended before the run's quiet end.

Rule: a fault does what real machines and networks do to a cluster that keeps its promises: at most a minority of the
replicas of a partition is damaged, everything else may happen to everybody, also at once. By two faults records may be
lost, and the checker knows which (see `lost_disks`).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.faulty_files import Fault
from tests.simulation.partitions.broker.disk import LOG_SUFFIX
from tests.simulation.partitions.broker.life import DATA, MIN_FREE_BYTES
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.directed import Directed
from tests.simulation.partitions.log_view import StoredFrame
from tests.simulation.partitions.lost_disks import LostDisks
from tests.simulation.partitions.operations import Operations
from tests.simulation.partitions.world import World
from tests.simulation.simulator.faults import FaultInjector
from tests.simulation.simulator.scheduler import MS, SECOND

_RECOVERY_POINTS = "recovery-point-checkpoint"


class Faults(FaultInjector):
    """See the module."""

    def __init__(self, world: World, *, kinds: list[str], interval_us: tuple[int, int]) -> None:
        super().__init__(world, interval_us=interval_us)
        self._world = world
        self._operations = operations = Operations(world)
        self._directed = directed = Directed(world, self._later)
        self._lost_disks = lost_disks = LostDisks(world, self._later)
        known: dict[str, Callable[[Node], None]] = {
            "kill": self._kill,
            "power loss": self._lose_power,
            "crash at a write": self._crash_at_write,
            "restart": self._restart,
            "pause": self._pause,
            "partition": self._partition,
            "isolate": self._isolate,
            "cut from zookeeper": self._cut_from_zookeeper,
            "session expiry": self._expire,
            "zookeeper down": self._zookeeper_down,
            "lagging zookeeper": self._lag,
            "clock jump": self._clock_jump,
            "slow disk": self._slow_disk,
            "stalled fsync": self._stall_disk,
            "all lose power": self._all_lose_power,
            "disk error": self._disk_error,
            "disk full": self._fill_disk,
            "failed fsync": self._fail_fsync,
            "bit flip": self._flip_bits,
            "first one damaged": self._damage_first,
            "who kept its power damaged": self._damage_who_kept_power,
            "producers forgotten": self._forget_producers,
            "stop": self._stop_in_order,
            "broker added": operations.add_broker,
            "move": operations.move,
            "cancelled move": operations.cancel_moves,
            "election": operations.elect,
            "deletion": operations.delete_records,
            "disk lost": self._lose_disk,
            "older copy": lost_disks.restore,
            "copy of a moment ago": lost_disks.copied_a_moment_ago,
            "all end": lost_disks.all_end,
            "all end, but one for ever": lambda node: lost_disks.all_end(node, is_one_away=True),
            "all lose power, without fsyncs": lost_disks.all_lose_power,
            "all but one lose power": lost_disks.all_but_one_lose_power,
            "only disk lost": lost_disks.empty_the_only_one,
            "only disk given up": lambda node: lost_disks.empty_the_only_one(node, is_given_up=True),
            "controller deposed": directed.depose_controller,
            "back and forth": directed.back_and_forth,
            "successor killed": directed.successor_killed,
            "failed one back first": directed.failed_one_back_first,
            "failed ones outlive the others": directed.failed_ones_outlive_the_others,
            "leader lost in a move": directed.leader_lost_in_move,
            "target without power": directed.target_without_power,
            "outcome lost": directed.lose_outcome,
            "outcome of joining lost": lambda node: directed.lose_outcome(node, change="join"),
            "outcome of leaving lost": lambda node: directed.lose_outcome(node, change="leave"),
            "session ends": directed.end_session,
        }
        self._kinds = [(kind, known[kind]) for kind in kinds]
        if self._kinds:
            self.begin()

    def heal(self) -> None:
        """Nothing goes wrong any more; everything that was broken works, and all brokers run."""
        super().heal()
        world = self._world
        self._directed.end()
        self._lost_disks.heal()
        world.heal()
        for node in world.nodes.values():
            world.zookeeper.heal(node.actor)
            node.files.crash_in = None
            node.files.faults.clear()
            node.sync_us = node.usual_sync_us
            node.stall_us = 0
            if node.files.has_little_room:
                node.files.make_room()
                node.look_at_disk()
            if node.has_offline_logs:
                node.kill(power_lost=False)
            if (node.life is None or not node.should_run) and not node.is_retired:
                node.start()

    def strike(self) -> None:
        """One kind of fault, on one broker."""
        if self._world.is_recovering or self._world.scheduler.now_us < self._world.quiet_until_us:
            return  # one at a time, where the disks promise nothing
        _, strike = self._rng.choice(self._kinds)
        nodes = [node for node in self._world.nodes.values() if node.should_run]
        controllers = [node for node in nodes if node.life is not None and node.life.member.controller.is_active]
        if nodes:
            # The controller more often: what it believes to be is what others may have become.
            strike(self._rng.choice(controllers if controllers and self._rng.random() < 0.3 else nodes))

    # --- within ---------------------------------------------------------------------------------------------------

    def _fault(self, kind: str, node: Node, text: str = "") -> None:
        self._world.trace.fault(kind, node.actor, text)

    # --- brokers --------------------------------------------------------------------------------------------------

    def _kill(self, node: Node) -> None:
        self._fault("kill", node)
        node.kill(power_lost=False)
        node.start(self._between(100 * MS, 9 * SECOND))

    def _lose_power(self, node: Node) -> None:
        if not self._world.may_lose_power(node):
            return
        self._fault("power loss", node)
        node.kill(power_lost=True)
        node.start(self._between(100 * MS, 9 * SECOND))

    def _all_lose_power(self, node: Node) -> None:
        if not self._world.invariants.is_durable_by_ack:
            return
        for each in self._world.nodes.values():
            if each.should_run:
                self._fault("power loss", each, "with all others")
                each.kill(power_lost=True)
                each.start(self._between(100 * MS, 5 * SECOND))

    def _crash_at_write(self, node: Node) -> None:
        if self._world.may_lose_power(node) and self._world.invariants.is_durable_by_ack:
            node.files.crash_in = self._rng.randrange(1, 40)

    def _restart(self, node: Node) -> None:
        self._fault("restart", node)
        node.stop()
        node.start(self._between(500 * MS, 5 * SECOND))

    def _pause(self, node: Node) -> None:
        duration_us = self._between(200 * MS, 9 * SECOND)
        self._fault("pause", node, f"{duration_us / 1e6:.1f} s")
        node.pause(duration_us)

    def _stop_in_order(self, node: Node) -> None:
        self._fault("stop in order", node)
        node.stop(hand_over=True)
        node.start(self._between(4 * SECOND, 9 * SECOND))

    def _lose_disk(self, node: Node) -> None:
        """Often after records were deleted: what is fetched again begins, and rolls, elsewhere than
        its leader's log."""
        if self._rng.random() < 0.4:
            self._lost_disks.empty(node)
            return
        self._operations.delete_records(node)
        self._later(self._between(300 * MS, 1_500 * MS), lambda: self._lost_disks.empty(node))

    def _forget_producers(self, node: Node) -> None:
        """Producers stand still, and everything they sent is deleted; a follower that lost its disk fetches what is
        left, nothing, and leads: it has never known of them."""
        world = self._world
        chosen = [
            (at, world.nodes[each])
            for (topic_id, _), committed in sorted(world.invariants.committed.items())
            for at, state in [(committed.at, world.states.state(committed.at))]
            if state is not None and committed.end
            for each in state.isr
            if each != state.leader and world.may_lose_disk(world.nodes[each])
        ]
        if not chosen:
            return
        at, follower = self._rng.choice(chosen)
        producers = sorted({batch.producer for batch in world.history.batches.values()})
        self._fault("producers forgotten", follower, f"{at}, by {', '.join(producers)}")
        for producer in producers:
            world.scheduler.pause(producer, 12 * SECOND)
        world.quiet_until_us = world.scheduler.now_us + 13 * SECOND

        def is_back() -> bool:
            state = world.states.state(at)
            return not world.is_recovering and state is not None and follower.broker_id in state.isr

        def lead() -> None:
            replicas = world.states.topics[at.topic].assignment[at.partition]
            others = [each for each in replicas if each != follower.broker_id]
            self._directed.lead(at, (follower.broker_id, *others))

        def empty() -> None:
            if self._lost_disks.empty_at_once(follower):
                self._directed.when(is_back, lead, 5 * SECOND)

        self._later(3 * SECOND, lambda: self._operations.delete_all_records(at))  # whatever was on its way is answered
        self._later(4_500 * MS, empty)

    def _disk_error(self, node: Node) -> None:
        operation = self._rng.choice(["write", "sync", "rename", "sync_directory"])
        self._fault("disk error", node, operation)
        error = self._rng.choice([errno.EIO, errno.ENOSPC])
        node.files.faults.append(
            Fault(operation, error, after=self._rng.randrange(6), times=self._rng.randint(1, 3), torn_bytes=100)
        )

    def _fill_disk(self, node: Node) -> None:
        """For a while hardly anything is left, or so little that the broker should refuse records before."""
        if node.files.has_little_room:
            return
        left_bytes = self._rng.choice([0, 2_000, MIN_FREE_BYTES - 1, 2 * MIN_FREE_BYTES])
        self._fault("disk full", node, f"but for {left_bytes} bytes")
        node.files.fill(left_bytes)
        end_us = self._world.scheduler.now_us + self._between(3 * SECOND, 10 * SECOND)

        def look() -> None:
            if self._world.scheduler.now_us < end_us:
                node.look_at_disk()
                self._later(SECOND, look)
                return
            node.files.make_room()
            node.look_at_disk()
            if node.has_offline_logs:
                node.kill(power_lost=False)
                node.start(self._between(0, SECOND))

        self._later(self._between(0, SECOND), look)

    def _fail_fsync(self, node: Node) -> None:
        """Of a log; the process is restarted, and later the power fails: what was never written is gone by then."""
        self._fault("failed fsync", node)
        node.files.faults.append(
            Fault(
                "sync", errno.EIO, after=self._rng.randrange(4), times=1, matches=lambda path: path.suffix == LOG_SUFFIX
            )
        )

        def restart() -> None:
            if node.has_offline_logs:
                node.kill(power_lost=False)
                node.start(self._between(0, SECOND))
                self._later(self._between(2 * SECOND, 6 * SECOND), lambda: self._lose_power(node))

        self._later(self._between(300 * MS, 2 * SECOND), restart)

    def _flip_bits(self, node: Node) -> None:
        if not self._world.may_be_damaged(node):
            return
        if self._rng.random() < 0.7:
            self._flip_newest(node, 20)
            return
        if self._rng.random() < 0.5:
            node.kill(power_lost=False)
        else:
            node.stop()
        self._world.scheduler.after(SECOND, "net", lambda: self._flip(node))

    def _flip_newest(self, node: Node, tries: int) -> None:
        """Of a frame behind the recovery point, with whole ones behind it that say that it is committed: as soon as
        there is such a one, the process is killed; or all are, and the others come back later, so that the damaged one
        is alone in sync when it finds out."""
        if not self._world.may_be_damaged(node):
            return
        frame = self._witnessed(node)
        if frame is not None:
            others = [each for each in self._world.nodes.values() if each is not node and each.should_run]
            for each in (node, *others) if self._rng.random() < 0.4 else (node,):
                each.kill(power_lost=False)
                each.start(self._between(0, SECOND) + (each is not node) * self._between(2 * SECOND, 8 * SECOND))
                self._world.quiet_until_us = self._world.scheduler.now_us + 12 * SECOND
            self._damage(node, frame.segment, frame.end_position - 1 - self._rng.randrange(60))
        elif tries:
            self._later(200 * MS, lambda: self._flip_newest(node, tries - 1))

    def _damage_first(self, node: Node, tries: int = 40) -> None:
        """All processes are killed, and the leader that comes back first, alone and asked by nobody for a while, has a
        damaged log. It leads alone by then what the others have as well: they are in sync again when it is found out.
        """
        world = self._world
        choices = [each for each in world.nodes.values() if each.should_run and world.may_be_damaged(each)]
        self._rng.shuffle(choices)
        found = next(((each, hit) for each in choices if (hit := self._witnessed(each, is_led=True)) is not None), None)
        if found is None:
            if tries:
                self._later(200 * MS, lambda: self._damage_first(node, tries - 1))
            return
        first, frame = found
        for each in world.nodes.values():
            if each.should_run:
                each.kill(power_lost=False)
                each.start(self._between(0, SECOND) if each is first else self._between(5 * SECOND, 9 * SECOND))
        self._damage(first, frame.segment, frame.end_position - 1 - self._rng.randrange(60))
        for client in world.clients:
            world.network.cut(client, first.actor)

        def mend() -> None:
            for client in world.clients:
                world.network.mend(client, first.actor)

        self._later(9 * SECOND, mend)
        world.quiet_until_us = world.scheduler.now_us + 12 * SECOND

    def _damage_who_kept_power(self, node: Node, tries: int = 200) -> None:
        """All processes are killed. Of a partition's two replicas one loses its power just when its disk has all, and
        is back first; the other one's log is damaged behind its recovery point, and so is the first to lead."""
        world = self._world
        chosen = None if world.is_recovering or not self._is_calm() else self._whole_and_witnessed()
        if chosen is None:
            if tries:
                self._later(20 * MS, lambda: self._damage_who_kept_power(node, tries - 1))
            return
        whole, damaged, frame = chosen
        world.trace.situation("who kept its power is damaged, who lost it has all")
        for each in world.nodes.values():
            each.kill(power_lost=each is whole)
            each.start(self._between(0, SECOND) if each is whole else self._between(4 * SECOND, 6 * SECOND))
        self._damage(damaged, frame.segment, frame.end_position - 1 - self._rng.randrange(60))
        world.quiet_until_us = world.scheduler.now_us + 20 * SECOND

    def _is_calm(self) -> bool:
        world = self._world
        is_well = all(each.is_up and each.is_well for each in world.nodes.values())
        is_quiet = world.scheduler.now_us < world.quiet_until_us
        return is_well and not is_quiet and not (world.network.is_cut_anywhere or world.zookeeper.is_down)

    def _whole_and_witnessed(self) -> tuple[Node, Node, StoredFrame] | None:
        """A broker whose disk has all of its logs, in sync with one other, and a frame of that one's log that can be
        found to be damaged when the log is opened."""
        states = self._world.states
        for name, record in sorted(states.topics.items()):
            for number in range(len(record.assignment)):
                at = TopicPartition(name, number)
                state = states.state(at)
                if state is None or len(state.isr) != 2 or state.unproven or state.lost:
                    continue
                for one, other in (state.isr, state.isr[::-1]):
                    whole, damaged = self._world.nodes[one], self._world.nodes[other]
                    views = whole.disk.logs.values()
                    is_whole = all(
                        not view.frames or view.durable_end(whole.files) >= view.frames[-1].next_offset
                        for view in views
                    )
                    frame = self._witnessed(damaged, only=at) if is_whole else None
                    if frame is not None and whole.disk.logs[at].end >= damaged.disk.logs[at].end:
                        return whole, damaged, frame
        return None

    def _witnessed(self, node: Node, *, is_led: bool = False, only: TopicPartition | None = None) -> StoredFrame | None:
        """A frame behind the recovery point of one of its logs, with whole ones behind it in the same segment that say
        that it is committed. ``is_led``: of a partition that it leads. ``only``: of this one."""
        saved = node.files.seen(DATA / _RECOVERY_POINTS).decode()
        lines = re.findall(r"^(\S+) (\d+) (\d+)$", saved, re.MULTILINE)
        known = {(topic, number): int(offset) for topic, number, offset in lines}
        for at, view in sorted(node.disk.logs.items()):
            state = self._world.states.state(at)
            if only not in {None, at}:
                continue
            if is_led and (state is None or state.leader != node.broker_id):
                continue
            point = known.get((at.topic, str(at.partition)), 0)
            for frame, *behind in ((view.frames[n:]) for n in range(len(view.frames) - 1)):
                marks = [each.header.high_watermark for each in behind if each.segment == frame.segment]
                if frame.base_offset >= point and max(marks, default=0) > frame.base_offset:
                    return frame
        return None

    def _flip(self, node: Node) -> None:
        paths = [path for path in node.files.paths() if _is_of_a_log(path) and node.files.seen(path)]
        if node.life is None and paths:
            for path in self._rng.sample(paths, min(len(paths), self._rng.randint(1, 3))):
                position = self._rng.randrange(len(node.files.seen(path)))
                if path.suffix == LOG_SUFFIX and self._rng.random() < 0.6:  # where nothing was verified at a start yet
                    position = max(0, len(node.files.seen(path)) - 1 - self._rng.randrange(4_000))
                self._damage(node, path, position)
        node.start()

    def _damage(self, node: Node, path: Path, position: int) -> None:
        self._fault("bit flip", node, f"{path} at {position}")
        node.files.damage(path, position, 1 << self._rng.randrange(8))
        self._world.invariants.damaged_by_fault(node, path, position)

    # --- the network ----------------------------------------------------------------------------------------------

    def _partition(self, node: Node) -> None:
        others = [each for each in self._world.nodes.values() if each is not node]
        if not others:
            return
        other = self._rng.choice(others)
        is_one_way = self._rng.random() < 0.5
        self._fault("partition one-way" if is_one_way else "partition", node, f"to {other.actor}")
        network = self._world.network
        network.cut(node.actor, other.actor)
        if not is_one_way:
            network.cut(other.actor, node.actor)

        self._later(self._between(300 * MS, 12 * SECOND), lambda: network.rejoin(node.actor, [other.actor]))

    def _isolate(self, node: Node) -> None:
        self._fault("isolation", node)
        network = self._world.network
        others = [each.actor for each in self._world.nodes.values() if each is not node]
        network.isolate(node.actor, others)
        self._world.zookeeper.cut_off(node.actor)

        def mend() -> None:
            network.rejoin(node.actor, others)
            self._world.zookeeper.reconnect(node.actor)

        self._later(self._between(300 * MS, 12 * SECOND), mend)

    # --- ZooKeeper ------------------------------------------------------------------------------------------------

    def _cut_from_zookeeper(self, node: Node) -> None:
        self._fault("cut from zookeeper", node)
        self._world.zookeeper.cut_off(node.actor)
        self._later(self._between(300 * MS, 12 * SECOND), lambda: self._world.zookeeper.reconnect(node.actor))

    def _expire(self, node: Node) -> None:
        self._fault("session expiry", node)
        self._world.zookeeper.expire(node.actor)

    def _lag(self, node: Node) -> None:
        lag_us, duration_us = self._between(20 * MS, 1_500 * MS), self._between(SECOND, 10 * SECOND)
        self._fault("lagging zookeeper", node, f"{lag_us / 1e6:.2f} s")
        self._world.zookeeper.lag(node.actor, lag_us, duration_us)

    def _zookeeper_down(self, node: Node) -> None:
        self._world.trace.fault("zookeeper down", "zk")
        self._world.zookeeper.go_down()
        self._later(self._between(300 * MS, 9 * SECOND), self._world.zookeeper.come_back)

    # --- clocks and disks -----------------------------------------------------------------------------------------

    def _clock_jump(self, node: Node) -> None:
        node.clock_offset_ms = self._rng.randrange(-1_500_000, 1_500_000)
        self._fault("clock jump", node, f"{node.clock_offset_ms / 1e3:+.1f} s")

    def _slow_disk(self, node: Node) -> None:
        self._fault("slow disk", node)
        node.sync_us = (20 * MS, 400 * MS)

        def mend() -> None:
            node.sync_us = node.usual_sync_us

        self._later(self._between(SECOND, 10 * SECOND), mend)

    def _stall_disk(self, node: Node) -> None:
        node.stall_us = self._between(500 * MS, 12 * SECOND)
        self._fault("stalled fsync", node, f"{node.stall_us / 1e6:.1f} s")


def _is_of_a_log(path: Path) -> bool:
    """Not of one that was set aside."""
    return path.parent != DATA and path.parent.name.rpartition("-")[2].isdecimal()
