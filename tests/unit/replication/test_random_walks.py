"""Random walks of three replicas through appends, fetches, lost and late answers, elections, power failures and lost
writes, each given by its seed.

The state in ZooKeeper is one value here; which broker learns what, and when, is up to the walk. After each step no
acknowledged record may be missing from a replica that could be elected. tests/simulation does the same with whole
brokers; here a failure names one step of one partition.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import NotLeaderOrFollowerError, PylogError
from broker_runtime.contract.streams import FetchResponse
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.replication import InSyncChange, Leadership, Partition, PendingAppend, Role
from tests.unit.replication.partitions import NOW_MS, frame
from tests.unit.replication.replicas import Replica, led_by

LAG_MS = 5_000
BROKERS = (1, 2, 3)
STEPS = 150


class Walk:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.replicas = {broker_id: Replica(broker_id, segment_bytes=2048) for broker_id in BROKERS}
        self.min_in_sync = self.rng.choice([1, 2])
        self.state = led_by(1, 1, in_sync=self.rng.choice([(1, 2, 3), (1, 2), (1,)]))
        self.now_ms = 0
        self.count = 0
        self.pending: list[tuple[Partition, PendingAppend, bytes]] = []
        self.acknowledged: dict[int, bytes] = {}  # offset → value of a frame's only record
        self.written: dict[tuple[int, int], bytes] = {}  # (epoch, offset) → frame
        self.late: list[tuple[FollowerFetcher, FetchResponse, list[pa.Buffer]]] = []
        for broker_id in BROKERS:
            self.tell(broker_id)

    def step(self) -> None:
        """Makes one step and checks the invariants."""
        happenings = {
            self.append: 6, self.fetch: 10, self.complete: 3, self.tell_one: 2, self.write_in_sync: 2,
            self.time_passes: 1, self.late_answer_comes: 1, self.elect: 0.7, self.restart: 0.7,
        }  # fmt: skip
        (happening,) = self.rng.choices(list(happenings), list(happenings.values()))
        happening()
        self.check()

    # --- what the controller would do -----------------------------------------------------------------------------

    def change(self, leader: int | None, in_sync: frozenset[int], *, is_new_epoch: bool) -> None:
        self.state = Leadership(
            leader=leader,
            leader_epoch=self.state.leader_epoch + is_new_epoch,
            replicas=self.state.replicas,
            in_sync=in_sync,
            version=self.state.version + 1,
        )

    def elect(self) -> None:
        """Clean elections only."""
        leader = self.rng.choice(sorted(self.state.in_sync))
        self.change(leader, self.state.in_sync, is_new_epoch=True)
        if self.rng.random() < 0.7:
            self.tell(leader)

    def tell_one(self) -> None:
        self.tell(self.rng.choice(BROKERS))

    def tell(self, broker_id: int) -> None:
        """Lets the broker read the current state."""
        replica = self.replicas[broker_id]
        replica.now_ms = self.now_ms
        replica.only.min_in_sync_replicas = self.min_in_sync
        if self.state.leader == broker_id:
            replica.lead(self.state)
        elif self.state.leader is not None:
            replica.follow(self.state)
        else:
            replica.only.become_follower(self.state)

    def restart(self) -> None:
        """After an unclean stop the broker leaves every in-sync set that has other members, then registers."""
        broker_id, is_clean = self.rng.choice(BROKERS), self.rng.random() < 0.3
        self.late = []
        self.replicas[broker_id].restart(lost_power=random.Random(self.rng.random()), clean=is_clean)
        left = self.state.in_sync - {broker_id}
        if self.state.leader == broker_id:
            in_sync = left if left and not is_clean else self.state.in_sync
            self.change(self.rng.choice(sorted(in_sync)), in_sync, is_new_epoch=True)
        elif not is_clean and left and broker_id in self.state.in_sync:
            self.change(self.state.leader, left, is_new_epoch=False)
        if self.rng.random() < 0.8:
            self.tell(broker_id)

    def time_passes(self) -> None:
        self.now_ms += self.rng.choice([10, 600, 3_500, LAG_MS + 1])

    # --- clients --------------------------------------------------------------------------------------------------

    def append(self) -> None:
        """Appends at one of the brokers that believe to lead."""
        leading = [each for each in self.replicas.values() if each.only.is_leader]
        if not leading:
            return
        partition, acks = self.rng.choice(leading).only, self.rng.choice([-1, -1, 1])
        value = b"%d" % self.count
        self.count += 1
        try:
            pending = partition.append([frame(value)], acks=acks, leader_epoch=-1, now_ms=NOW_MS)
        except PylogError:
            return
        if acks == -1:
            self.pending.append((partition, pending, value))

    def complete(self) -> None:
        """Every waiting client checks whether its append counts."""
        waiting, self.pending = self.pending, []
        for partition, pending, value in waiting:
            try:
                partition.complete(pending, acks=-1, timeout_s=0)
            except NotLeaderOrFollowerError:
                continue
            except PylogError:
                self.pending.append((partition, pending, value))
                continue
            assert self.acknowledged.setdefault(pending.base_offset, value) == value

    # --- replication ----------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        fates = ["comes", "comes twice", "is lost", "is late"]
        self.fetch_by(self.rng.choice(BROKERS), self.rng.choices(fates, [12, 1, 1, 1])[0])

    def fetch_by(self, broker_id: int, fate: str) -> None:
        """Fetches from the broker's believed leader, in its registration."""
        replica = self.replicas[broker_id]
        replica.now_ms = self.now_ms
        replica.set_diverged_aside()
        leadership = replica.only.leadership
        if replica.only.role is not Role.FOLLOWER or leadership is None or leadership.leader is None:
            return
        leader = self.replicas[leadership.leader]
        fetcher = replica.fetchers[leadership.leader]
        request = fetcher.next_request(replica.broker_epoch, self.now_ms)
        if request is None:
            return
        leader.now_ms = self.now_ms
        response, cells = leader.answer(request, broker_id, replica.broker_epoch)
        if fate == "is late":
            self.late.append((fetcher, response, list(cells)))
        for _ in range({"comes": 1, "comes twice": 2}.get(fate, 0)):
            fetcher.handle(response, cells, self.now_ms)

    def late_answer_comes(self) -> None:
        if self.late:
            fetcher, response, cells = self.late.pop(self.rng.randrange(len(self.late)))
            fetcher.handle(response, cells, self.now_ms)

    def write_in_sync(self) -> None:
        """The writer of the in-sync sets: compare-and-set, checked registrations, an answer that may be lost."""
        partition = self.replicas[self.rng.choice(BROKERS)].only
        self.write(partition, self.rng.choices(["written", "answer lost", "lost"], [8, 1, 1])[0])

    def write(self, partition: Partition, fate: str) -> None:
        change = partition.propose_in_sync(self.now_ms, LAG_MS)
        if change is None:
            return
        if fate != "lost" and not self.is_refused(change):
            self.change(self.state.leader, frozenset(change.in_sync), is_new_epoch=False)
            if fate == "written":
                partition.in_sync_written(change, self.state.version)
                return
        if fate == "written":
            partition.in_sync_refused(change)
        else:
            partition.in_sync_unknown(change)

    def is_refused(self, change: InSyncChange) -> bool:
        return change.version != self.state.version or any(
            self.replicas[broker_id].broker_epoch != epoch for broker_id, epoch in change.joining.items()
        )

    # --- invariants -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        records = {broker_id: replica.records() for broker_id, replica in self.replicas.items()}
        for broker_id in self.state.in_sync:
            found = dict(records[broker_id])
            for offset, value in self.acknowledged.items():
                assert offset in found, f"broker {broker_id} may be elected, and has lost offset {offset}"
                assert found[offset].find(value) >= 0, f"broker {broker_id} has something else at offset {offset}"
        for broker_id, replica in self.replicas.items():
            epochs = replica.log.leader_epochs
            for offset, data in records[broker_id]:
                epoch = max(epoch for epoch, start in epochs if start <= offset)
                assert self.written.setdefault((epoch, offset), data) == data, "two leaders of one epoch"
        leader = self.state.leader
        assert leader is not None
        led = self.replicas[leader].only
        if led.is_leader and led.leader_epoch == self.state.leader_epoch:
            committed = [each for each in records[leader] if each[0] < led.high_watermark]
            for broker_id in self.state.in_sync:
                assert records[broker_id][: len(committed)] == committed, "an in-sync replica differs"

    def heal(self) -> None:
        """All brokers get the current state and nothing fails any more: all replicas become equal, and in sync."""
        assert self.state.leader is not None
        for broker_id in BROKERS:
            self.tell(broker_id)
        leader = self.replicas[self.state.leader]
        leader.append(b"the last")
        for _ in range(30):
            self.now_ms += 600
            for broker_id in BROKERS:
                self.fetch_by(broker_id, "comes")
            self.write(leader.only, "written")
            for broker_id in BROKERS:
                self.tell(broker_id)
        self.check()
        assert self.state.in_sync == set(BROKERS)
        assert {tuple(replica.records()) for replica in self.replicas.values()} == {tuple(leader.records())}
        assert leader.only.latest_offsets().high_watermark == leader.log.log_end_offset


@pytest.mark.parametrize("seed", range(25))
def test_no_walk_loses_an_acknowledged_record(seed: int) -> None:
    """W9, W13: a record acknowledged with ``all`` is on every replica that may be elected, whatever happens."""
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.heal()
