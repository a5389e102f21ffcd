"""Writes what leaders decide about their in-sync sets into ZooKeeper, and reports the outcome to them.

Rules: a state is changed by compare-and-set, in the leader's session and while it is registered, and announced. A
broker joins only in the registration that its fetches carried, not while it is stopping, and only while it is one of
the replicas (a leader may not have heard yet that a move ended): the same transaction checks all three. The outcome of
a write whose answer was lost is not guessed: the partition allows for both outcomes until a newer state or the next
write shows which it was.

A leader whose log went offline, or whose disk is full or stands still, gives up its leadership here if another in-sync
replica can take it on a disk that accepts appends. Otherwise it stays the leader, unless its log is offline: then the
partition passes to the replicas that are `PartitionState.eligible`. Whoever hands over is eligible itself until its
successor commits something: that one may have lost its power a moment before. The disk is reported to the cluster
first (disk_room.py). Damaged logs are dealt with by the cluster member (damaged_replicas.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from broker_runtime.contract.errors import CorruptRecordError, RequestTimedOutError, ZooKeeperUnavailableError
from broker_runtime.contract.events import event
from broker_runtime.contract.waiting import Signal
from broker_runtime.controller.election import Electorate
from broker_runtime.membership.disk_room import DiskReport
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.replication import InSyncChange, Partition, PartitionRegistry
from broker_runtime.replication.partition import BUSY_S
from broker_runtime.zookeeper.guarded import in_parts, write, write_most
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import ANY_VERSION, Check, Operation, Set, ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import (
    PartitionState,
    Record,
    TopicRecord,
    announcing,
    broker_epoch_path,
    broker_path,
    from_json,
    partition_state_path,
    to_json,
    topic_path,
)

_R = TypeVar("_R", bound=Record)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Write:
    """A partition's next state, over the one at ``version``; ``change`` None: its leader gives it up. ``record``: a
    version check on the topic's znode, which lists the joining brokers as replicas."""

    partition: Partition
    change: InSyncChange | None
    state: PartitionState
    version: int
    record: Check | None = None
    before: frozenset[int] = frozenset()  # the in-sync set of that one

    @property
    def path(self) -> str:
        return partition_state_path(self.partition.topic, self.partition.partition)

    def checks(self) -> dict[Operation, int]:
        """Checks that every joining broker is still registered in the epoch its fetches carried (the version of its
        epoch znode) and is not stopping; with the broker that each check is about."""
        joining = {} if self.change is None else self.change.joining
        return {
            check: broker_id
            for broker_id, epoch in joining.items()
            for check in (Check(broker_epoch_path(broker_id), epoch), Check(broker_path(broker_id), 0))
        }

    def fails_by(self, path: str) -> bool:
        """Whether this write is why a transaction was refused at ``path``."""
        return path == self.path or (self.record is not None and path == self.record.path) or bool(self.gone(path))

    def gone(self, path: str) -> list[int]:
        """The brokers that can no longer join, if the transaction was refused at ``path``."""
        return [broker_id for check, broker_id in self.checks().items() if check.path == path]


@dataclass(frozen=True, slots=True)
class _KnownRecord:
    """A topic's record as it was read, and the check that it has not changed."""

    check: Check | None
    record: TopicRecord | None

    def replicas(self, partition: Partition) -> tuple[Check | None, tuple[int, ...]]:
        """The partition's replicas, and the check to write with; none if the topic was recreated or is gone."""
        record, number = self.record, partition.partition
        if record is None or record.topic_id != partition.topic_id or number >= len(record.assignment):
            return None, ()
        return self.check, record.assignment[number]


_NO_RECORD: Final = _KnownRecord(None, None)


class IsrUpdater:
    """The in-sync sets of the partitions that one broker leads. `step` on one thread, `wake` from any."""

    def __init__(
        self,
        client: ZooKeeperClient,
        registry: PartitionRegistry,
        membership: Callable[[], Membership | None],
        *,
        lag_limit_ms: int,
        electorate: Callable[[], Electorate] | None = None,
        report: DiskReport | None = None,
        meters: Meters = NO_METERS,
    ) -> None:
        """``lag_limit_ms``: ``replica.lag.time.max.ms``. ``membership``: the broker's present registration.
        ``electorate``: the brokers that can lead, as known now; None: all. ``report``: reports disks to the cluster."""
        self._client = client
        self._registry = registry
        self._membership = membership
        self._lag_limit_ms = lag_limit_ms
        self._electorate = electorate
        self._report = report
        self._meters = meters
        self._signal = Signal()

    def wake(self) -> None:
        """Ends a `wait` at once: an in-sync set can change (`Partition.on_in_sync_news`). Never blocks."""
        self._signal.set()

    def wait(self, timeout_s: float) -> None:
        """Blocks until `wake`, for ``timeout_s`` at most (half of ``lag_limit_ms`` is right); with 0 not at all."""
        self._signal.wait(timeout_s)

    def step(self, now_ms: int) -> None:
        """Writes every change that a partition led here proposes now. Blocks on ZooKeeper for a bounded time; what
        fails is proposed again later. ``now_ms``: of the clock of `Partition.follower_fetch`."""
        membership = self._membership()
        if membership is None or not self._client.is_connected:
            return
        led = [partition for partition in self._registry.hosted() if partition.is_leader]
        proposed = self._propose(led, now_ms)
        brokers = None if self._electorate is None else self._electorate()
        # Found before the report, which then names each of these logs that has failed.
        given_up = [each for each in led if _is_to_be_given_up(each, membership.broker_id, brokers)]
        if self._report is None or self._report.report(membership):
            proposed += [(partition, None) for partition in given_up]
        for some in in_parts(proposed):
            self._write(some, membership)

    def _propose(self, led: Sequence[Partition], now_ms: int) -> list[tuple[Partition, InSyncChange | None]]:
        """Waits briefly for one busy partition of each disk: where a disk stands still, many are busy."""
        proposed: list[tuple[Partition, InSyncChange | None]] = []
        waited_for: set[Path] = set()
        for partition in led:
            disk = partition.log.data_directory
            try:
                change = partition.propose_in_sync(
                    now_ms, self._lag_limit_ms, busy_s=0.0 if disk in waited_for else BUSY_S
                )
            except RequestTimedOutError:
                waited_for.add(disk)
                self.wake()  # looked at again soon
                continue
            if change is not None:
                proposed.append((partition, change))
        return proposed

    def _write(self, proposed: Sequence[tuple[Partition, InSyncChange | None]], membership: Membership) -> None:
        try:
            writes = self._prepare(proposed, membership)
        except ZooKeeperUnavailableError as error:
            event(_logger, "prepare in-sync sets", level=logging.WARNING, error=error)
            for partition, change in proposed:
                _refused(partition, change)
            return

        def leave_out(changed: Sequence[_Write], refusal: ZNodeError) -> None:
            event(_logger, "leave out in-sync sets", znode=refusal.path, partitions=len(changed))
            for each in changed:
                _refused(each.partition, each.change, gone=each.gone(refusal.path))
                writes.remove(each)

        try:
            written = write_most(
                list(writes), lambda some: self._send(some, membership), concerns=_Write.fails_by, leave_out=leave_out
            )
        except ZooKeeperUnavailableError as error:
            # Not read back here: both outcomes count until a newer state is known (`InSyncSet.outcome_unknown`).
            event(_logger, "write in-sync sets", level=logging.WARNING, partitions=len(writes), error=error)
            for each in writes:
                if each.change is not None:
                    each.partition.in_sync_unknown(each.change)
        else:
            for each, version in written:
                if each.change is not None:
                    each.partition.in_sync_written(each.change, version)
                    now = {*each.change.in_sync}
                    self._meters.in_sync_changed(shrank=bool(each.before - now), grew=bool(now - each.before))

    def _prepare(
        self, proposed: Sequence[tuple[Partition, InSyncChange | None]], membership: Membership
    ) -> list[_Write]:
        """What to write over the present states; a proposal made over another state is refused."""
        paths = [partition_state_path(partition.topic, partition.partition) for partition, _ in proposed]
        records = self._records({each.topic for each, change in proposed if change is not None and change.joining})
        writes: list[_Write] = []
        for (partition, change), path, node in zip(
            proposed, paths, self._client.find_all(paths, are_small=True), strict=True
        ):
            present = None if node is None else _decoded(node.data, PartitionState, path)
            is_own = present is not None and (present.leader, present.leader_broker_epoch) == (
                membership.broker_id, membership.epoch,
            )  # fmt: skip
            if node is None or present is None or not is_own or not _fits(present, node.version, partition, change):
                _refused(partition, change)
                continue
            if change is None:
                given_up = present.handed_over(membership.broker_id)
                writes.append(_Write(partition, change, given_up, node.version))
                continue
            record = None
            if change.joining:
                record, replicas = records.get(partition.topic, _NO_RECORD).replicas(partition)
                if change.joining.keys() - replicas:
                    _refused(partition, change)  # and not for good: it may become a replica again
                    continue
            # A replica that is in sync has a log again, whatever became of its last one.
            lost = tuple(broker_id for broker_id in present.lost if broker_id not in change.in_sync)
            # Only the controller knows which replicas are unproven.
            eligible = tuple(each for each in change.eligible if each not in (*lost, *present.unproven))
            state = msgspec.structs.replace(present.with_in_sync(change.in_sync), lost=lost).with_eligible(eligible)
            is_sound = partition.log.is_loaded and not partition.log.is_damaged
            if is_sound and not eligible and not state.unproven:  # this leader commits, and has all
                state = state.with_last_known_eligible(())
            writes.append(_Write(partition, change, state, node.version, record, frozenset(present.isr)))
        return writes

    def _records(self, topics: Collection[str]) -> dict[str, _KnownRecord]:
        names = sorted(topics)
        paths = [topic_path(name) for name in names]
        found = zip(names, paths, self._client.find_all(paths), strict=True)
        return {
            name: _KnownRecord(Check(path, node.version), _decoded(node.data, TopicRecord, path))
            for name, path, node in found
            if node is not None
        }

    def _send(self, writes: Sequence[_Write], membership: Membership) -> list[int]:
        records = [write.record for write in writes if write.record is not None]
        own = Check(broker_path(membership.broker_id), ANY_VERSION)
        checks = list(dict.fromkeys([own, *records, *(check for write in writes for check in write.checks())]))
        sets = [Set(write.path, to_json(write.state), write.version) for write in writes]
        announcement = announcing(write.partition.topic for write in writes)
        versions = write(self._client, [*checks, *sets, announcement], session=membership.session)
        return versions[len(checks) : len(checks) + len(sets)]


def _decoded(data: bytes, kind: type[_R], path: str) -> _R | None:
    try:
        return from_json(data, kind, path)
    except CorruptRecordError as error:
        event(_logger, "read partition state", level=logging.ERROR, error=error)
        return None


def _fits(present: PartitionState, version: int, partition: Partition, change: InSyncChange | None) -> bool:
    if change is None:
        # Unproven members may lack what the leader has. They leave the in-sync set soon, as there is a leader.
        is_sure = not present.unproven and (len(present.isr) > 1 or present.eligible != ())
        return is_sure and present.leader_epoch == partition.leader_epoch
    return (version, present.leader_epoch) == (change.version, change.leader_epoch)


def _is_to_be_given_up(partition: Partition, own_id: int, brokers: Electorate | None) -> bool:
    if partition.is_fit_to_lead or partition.log.is_damaged:
        return False
    others = partition.in_sync - {own_id}
    if brokers is None:
        return bool(others)
    there = brokers.at(partition.topic, partition.partition)
    # One whose log is offline as well would hand over in its turn, and so on.
    failed = {each for each, disks in there.disks.items() if disks.has_failed(partition.topic, partition.partition)}
    if not others:
        # The eligible have all that is committed. A full disk may have room again, and then nothing is lost at all.
        return partition.log.is_offline and any(there.can_lead(each) for each in partition.eligible - failed)
    # An offline log serves nobody. One on a full disk can still be read: it passes only to a broker that takes appends.
    unfit = failed if partition.log.is_offline else there.unfit
    return any(there.can_lead(other) for other in others - unfit)


def _refused(partition: Partition, change: InSyncChange | None, *, gone: Sequence[int] = ()) -> None:
    if change is not None:
        partition.in_sync_refused(change, gone=gone)
