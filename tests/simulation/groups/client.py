"""A consumer in the simulation: one process after the other that takes part in a group, reads, and commits.

Two threads, as a real consumer's: heartbeats go on while the caller's thread polls, is busy, or waits; the machine of
the membership is the real one. What the coordinator wants is carried out by the caller's thread, in its next poll:

    lost?  →  release (slowly, if it is slow) and commit  →  acknowledge  →  positions of what is new  →  hand out

A record is finished when the caller polls again after it was handed out; commits are of what is finished.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from broker_runtime.contract.errors import FencedInstanceIdError
from broker_runtime.contract.waiting import Backoff
from broker_runtime.groups.member import Partition
from pyspark_log.client.consumer.membership import Membership, Phase, Stay, TargetAssignment
from tests.simulation.groups.calls import Brokers, Coordination
from tests.simulation.groups.checker import Checker, listed, name_of
from tests.simulation.groups.heartbeat_thread import HeartbeatThread
from tests.simulation.groups.positions import Positions
from tests.simulation.groups.topics import Topics
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.trace import Trace

POLL = "poll"
_BATCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a client behaves. ``instance_id``: it is static."""

    name: str
    group_id: str
    topics: tuple[str, ...]
    instance_id: str | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    poll_us: tuple[int, int]
    commit_us: int  # how often it commits


class Client:
    """See the module. ``steady_offset_us``: what its clock has on the world's."""

    def __init__(
        self, brokers: Brokers, topics: Topics, checker: Checker, trace: Trace, habits: Habits, ids: random.Random
    ) -> None:
        self.habits = habits
        self.name = habits.name
        self.group_id = habits.group_id
        self.brokers = brokers
        self.scheduler = brokers.scheduler
        self.checker = checker
        self.trace = trace
        self.topics = topics
        self.subscription = habits.topics
        self.ids = ids
        self.slow_us = 0  # how long it takes to release
        self.dawdles_until_us = 0  # it does not poll
        self.was_replaced = False  # another took its instance id: it stops for good
        self.process: Process | None = None
        self._steady_offset_us = ids.randrange(1_000 * SECOND)

    def start(self) -> None:
        """A process begins, if none is there."""
        if self.process is None and not self.was_replaced:
            self.checker.holders.append(self)
            self.process = Process(self)
            self.process.begin()

    def kill(self) -> None:
        """The process ends where it stands."""
        if self.process is not None:
            self.scheduler.end_life(self.name)
            self.process = None
            self.checker.holders.remove(self)

    def leave(self) -> None:
        """Its process ends in order, if there is one."""
        if self.process is not None:
            self.process.leave()

    def handing_out(self) -> Iterable[Partition]:
        """What it would hand out records of, were it asked now."""
        return () if self.process is None else self.process.handing_out()

    def now_s(self) -> float:
        """Its own steady clock."""
        return (self.scheduler.now_us + self._steady_offset_us) / 1e6

    def says(self, text: str) -> None:
        """A line of the trace."""
        self.trace.line(self.name, text)


class Process:
    """What one process has in memory."""

    def __init__(self, client: Client) -> None:
        habits = client.habits
        self.client = client
        self.membership = Membership(
            Stay(
                group_id=habits.group_id,
                instance_id=habits.instance_id,
                client_id=habits.name,
                session_timeout_ms=habits.session_timeout_ms,
                max_poll_interval_ms=habits.max_poll_interval_ms,
            ),
            new_member_id=lambda: f"{client.ids.getrandbits(128):032x}",
            backoff=Backoff(first_s=0.05, limit_s=0.5, rng=client.scheduler.rng),
        )
        coordination = Coordination(client.brokers, client.name, habits.group_id)
        self.positions = Positions(client, self.membership, coordination)
        self._heartbeats = HeartbeatThread(
            client.scheduler, client.name, self.membership, coordination, now_s=client.now_s, on_news=self._was_answered
        )
        self._handed: dict[Partition, int] = {}  # what the caller has, and where it ends
        self._pending: TargetAssignment | None = None
        self._granted: list[Partition] = []  # not begun yet
        self._is_busy = False
        self.is_leaving = False
        self._next_commit_us = 0

    def begin(self) -> None:
        """Joins, and polls from now on."""
        self.membership.join(self.client.subscription, self.client.now_s())
        self.client.says(f"joins as {self.membership.member_id[:6]}")
        self._heartbeats.wake()
        self._poll_later()

    def handing_out(self) -> Iterable[Partition]:
        """What it would hand out records of."""
        return self.positions.held.keys() if self._may_hand_out() else ()

    @property
    def is_calm(self) -> bool:
        """Whether it holds all that it should, and waits for nothing."""
        return self.membership.is_settled and not self._granted

    @property
    def is_waiting_for_an_answer(self) -> bool:
        """Whether a heartbeat is under way."""
        return self._heartbeats.is_sending

    def leave(self) -> None:
        """Ends in order: commits, leaves, is gone."""
        self.is_leaving = True

    def subscribe(self) -> None:
        """The client has another subscription."""
        self.membership.subscribe_to(self.client.subscription, self.client.now_s())
        self._heartbeats.wake()

    def rewind(self) -> None:
        """The caller seeks back in something it holds, and commits that."""
        if self._is_busy or not self._may_hand_out():
            return
        self._finish()
        held = self.positions.held
        found = sorted(partition for partition, position in held.items() if position)
        if found:
            partition = self.client.scheduler.rng.choice(found)
            held[partition] = self.client.scheduler.rng.randrange(held[partition])
            self.client.trace.fault("rewind", self.client.name, f"{name_of(partition)} to {held[partition]}")
            self.client.checker.rewinds(self.client.group_id, partition, held[partition])
            self._is_busy = True
            self.positions.commit([partition], self._free)

    # --- within ---------------------------------------------------------------------------------------------------

    def _may_hand_out(self) -> bool:
        return self.membership.phase is Phase.MEMBER and self.client.now_s() < self.membership.lease_until_s

    def _was_answered(self, code: str) -> None:
        membership = self.membership
        if code:
            self.client.trace.counts[f"heartbeat: {code}"] += 1
        if membership.phase is Phase.REFUSED:
            self.client.says(f"is refused: {code}")
        pending = membership.pending
        if pending is not None and pending != self._pending:
            self._pending = pending
            partitions = {Partition(each.at.topic, each.topic_id, each.at.partition) for each in pending.partitions}
            self.positions.assign(partitions)
            self.client.says(f"is told epoch {pending.epoch}: {listed(partitions)}")

    # --- the caller's thread --------------------------------------------------------------------------------------

    def _poll_later(self) -> None:
        if self.client.process is not self:
            return  # it has just ended itself
        scheduler = self.client.scheduler
        scheduler.after(scheduler.between(*self.client.habits.poll_us), self.client.name, self._poll, thread=POLL)

    def _poll(self) -> None:
        # While it waits for an answer inside of a poll, it polls.
        self.membership.is_polling = self._is_busy
        if self.client.scheduler.now_us >= self.client.dawdles_until_us and not self._is_busy:
            self.membership.polled_s = self.client.now_s()
            self._finish()
            self._work()
        self._poll_later()

    def _finish(self) -> None:
        """What was handed out by the last poll is done with."""
        for partition, end in self._handed.items():
            start = self.positions.held.get(partition)
            if start is not None:
                self.client.checker.finished(self.client, partition, start, end)
                self.positions.held[partition] = end
        self._handed.clear()

    def _work(self) -> None:
        membership, now_s = self.membership, self.client.now_s()
        membership.check(now_s)
        if membership.phase is Phase.REFUSED:
            self.client.was_replaced = isinstance(membership.refusal, FencedInstanceIdError)
            self.client.kill()
        elif membership.phase is Phase.LOST:
            self._lose()
        elif self.is_leaving:
            self._is_busy = True
            self.positions.commit(list(self.positions.held), self._leave)
        elif membership.pending is not None:
            self._carry_out(membership.pending)
        elif self._granted and self._may_hand_out():
            self._begin()
        elif self._may_hand_out():
            scheduler = self.client.scheduler
            if scheduler.now_us >= self._next_commit_us:
                self._next_commit_us = scheduler.now_us + self.client.habits.commit_us
                self._is_busy = True
                self.positions.commit(list(self.positions.held), self._free)
            if not self._is_busy:
                self._hand_out()

    def _hand_out(self) -> None:
        for partition, position in self.positions.held.items():
            end = min(self.client.topics.end(partition), position + _BATCH)
            if end > position:
                self._handed[partition] = end

    def _lose(self) -> None:
        """Everything is lost; a new stay begins, unless another took its place."""
        membership = self.membership
        self.client.says(f"has lost {listed(self.positions.held)}: {membership.why}")
        self.client.trace.counts["leases lost"] += bool(self.positions.held)
        self.positions.lose_all()
        self._granted = []
        if self.is_leaving:
            self.client.kill()
        else:
            membership.rejoin(self.client.now_s())
            self.client.says(f"joins as {membership.member_id[:6]}")
            self._heartbeats.wake()

    def _carry_out(self, news: TargetAssignment) -> None:
        """Releases, and says so; then what is new is granted."""
        self._is_busy = True
        client, positions = self.client, self.positions
        assignment = {Partition(each.at.topic, each.topic_id, each.at.partition) for each in news.partitions}
        revoked = sorted(positions.held.keys() - assignment)

        def release() -> None:
            positions.commit(revoked, drop)

        def drop() -> None:
            self._is_busy = False
            positions.drop(revoked)
            is_newest = self.membership.carried_out(news, client.now_s())
            self._granted = sorted(assignment - positions.held.keys()) if is_newest else []
            client.says(f"has carried out epoch {news.epoch}, is granted {listed(self._granted)}")
            self._heartbeats.wake()

        if revoked and client.slow_us:
            client.scheduler.after(client.slow_us, client.name, release, thread=POLL)
        else:
            release()

    def _begin(self) -> None:
        """Finds out where what was granted begins; what nobody answers for has to wait."""
        self._is_busy = True
        positions, member_id = self.positions, self.membership.member_id

        def found(offsets: dict[Partition, int]) -> None:
            self._is_busy = False
            if self.membership.member_id == member_id and self._may_hand_out():
                positions.begin(offsets)
                self._granted = [partition for partition in self._granted if partition not in offsets]
                self.client.says(f"holds {listed(positions.held)}")

        positions.fetch(self._granted, found)

    def _leave(self) -> None:
        self.positions.lose_all()
        self.membership.leave(self.client.now_s())
        self.client.says("leaves")
        self._heartbeats.wake()
        limit_us = self.client.scheduler.now_us + 2 * SECOND

        def wait() -> None:
            if self.membership.phase is Phase.OUT or self.client.scheduler.now_us >= limit_us:
                self.client.kill()
            else:
                self.client.scheduler.after(20 * MS, self.client.name, wait, thread=POLL)

        wait()

    def _free(self) -> None:
        self._is_busy = False
