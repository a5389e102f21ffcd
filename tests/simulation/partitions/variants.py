"""Brokers that are broken on purpose, each in one way that real systems were: the checker has to find every one.

``python -m tests.simulation --variant NAME`` runs one over many seeds. See `tests.simulation.simulator.variants`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from broker_runtime.contract.errors import RequestTimedOutError
from broker_runtime.contract.waiting import Deadline
from broker_runtime.controller import unproven
from broker_runtime.controller.controller import Controller
from broker_runtime.following import follower
from broker_runtime.log import LogExtent, PartitionLog, recovery
from broker_runtime.log.group_commit import GroupCommit
from broker_runtime.log.leader_epochs import LeaderEpochs
from broker_runtime.log.log_state import LogState
from broker_runtime.log.recovery import StartState
from broker_runtime.membership import isr_updater
from broker_runtime.membership.own_disks import OwnDisks
from broker_runtime.replication import InSyncSet, Leadership, Partition, partition
from broker_runtime.zookeeper import disks, membership, returning
from broker_runtime.zookeeper.session import ANY_VERSION, Check
from broker_runtime.zookeeper.znodes import CONTROLLER_EPOCH, TOPICS, broker_path
from tests.simulation.simulator.variants import Patches, Variants
from tests.simulation.simulator.zookeeper import SimClient

VARIANTS = Variants()
variant = VARIANTS.variant


@variant
def truncates_to_the_high_watermark() -> Patches:
    """A new follower cuts its log to its own high watermark (Kafka before KIP-101, Fluss)."""
    real = Partition.become_follower

    def become_follower(self: Partition, leadership: Leadership) -> None:
        is_new = leadership.leader_epoch != self.leader_epoch
        real(self, leadership)
        if is_new:
            self.log.truncate_to(self.log.high_watermark)

    yield mock.patch.object(Partition, "become_follower", become_follower)


@variant
def follows_from_its_logs_end() -> Patches:
    """A follower goes on at its log's end, whatever epochs its last records are of."""
    yield mock.patch.object(partition, "diverging_point", return_value=None)


@variant
def counts_what_is_not_durable() -> Patches:
    """The high watermark goes by log ends: what no disk has counts as committed."""
    real = PartitionLog.extent

    def extent(self: PartitionLog, timeout_s: float = -1) -> LogExtent:
        known = real(self, timeout_s)
        return known._replace(durable_end=known.log_end)

    yield mock.patch.object(PartitionLog, "extent", extent)


@variant
def unclean_restart_stays_in_sync() -> Patches:
    """A broker that lost its power registers without leaving the in-sync sets it was in."""
    yield mock.patch.object(membership, "leave_in_sync_sets", return_value=None)


@variant
def in_sync_without_broker_epoch() -> Patches:
    """A broker is taken into the in-sync set for what an earlier life of it had reported."""
    yield mock.patch.object(isr_updater._Write, "checks", return_value={})


@variant
def acknowledges_duplicates_early() -> Patches:
    """A batch that came again is acknowledged at once, though its original is not committed yet."""
    real = PartitionLog.append_as_leader

    def append_as_leader(self: PartitionLog, frames: Sequence[Any], **kwargs: Any) -> Any:
        result = real(self, frames, **kwargs)
        return msgspec.structs.replace(result, next_offset=0) if result.is_duplicate else result

    yield mock.patch.object(PartitionLog, "append_as_leader", append_as_leader)


@variant
def counts_the_in_sync_set_as_written() -> Patches:
    """While a change of the in-sync set is under way, or its outcome unknown, who it lets in does not count."""
    yield mock.patch.object(InSyncSet, "maximal", property(lambda self: self.leadership.in_sync))


@variant
def waits_for_nobody_who_may_leave() -> Patches:
    """``min.insync.replicas`` counts all who may be in sync, also where a write may have taken them out."""
    yield mock.patch.object(InSyncSet, "certain_count", property(lambda self: len(self.maximal)))


@variant
def changes_in_sync_sets_in_any_session() -> Patches:
    """A leader writes its in-sync set, whatever became of its registration and of the session that it made it in. (One
    change in two places: each of the two checks covers for the other.)"""
    real = SimClient.transaction

    def transaction(self: SimClient, operations: Sequence[Any], *, session: int | None = None) -> list[int]:
        if self._scheduler.current_thread != "in-sync":
            return real(self, operations, session=session)
        own = Check(broker_path(int(self.actor[1:])), ANY_VERSION)
        versions = real(self, [each for each in operations if each != own])
        if own in operations:
            versions.insert(operations.index(own), 0)
        return versions

    yield mock.patch.object(SimClient, "transaction", transaction)


@variant
def counts_its_own_log_end() -> Patches:
    """The leader counts for the high watermark with all that it has appended, not with what is on its device."""
    real = Partition._advance_high_watermark

    def advance(self: Partition, extent: LogExtent | None = None, busy_s: float = -1) -> int:
        extent = self.log.extent(busy_s) if extent is None else extent
        if self._led is not None and extent.high_watermark < extent.durable_end:
            extent = extent._replace(durable_end=extent.log_end)
        return real(self, extent, busy_s)

    yield mock.patch.object(Partition, "_advance_high_watermark", advance)


@variant
def follows_beyond_what_is_durable() -> Patches:
    """A follower takes over the leader's high watermark beyond what is on its own device."""

    def adopt_marks(log: PartitionLog, high_watermark: int, log_start: int) -> None:
        extent = log.extent()
        known = extent.high_watermark
        adopted = min(high_watermark, extent.log_end)
        if adopted > known:
            known = log.set_high_watermark(adopted)
        start = min(log_start, known)
        if start > extent.log_start:
            log.delete_records(start)

    yield mock.patch.object(follower, "adopt_marks", adopt_marks)


@variant
def saves_a_high_watermark_that_is_not_durable() -> Patches:
    """The checkpoint of the high watermark may name what a power failure takes."""
    real = LogState.start_state

    def start_state(self: LogState) -> StartState:
        state = real(self)
        return dataclasses.replace(state, high_watermark=self.high_watermark) if self.is_loaded else state

    yield mock.patch.object(LogState, "start_state", start_state)


@variant
def writes_as_a_controller_without_a_check() -> Patches:
    """A controller's writes do not depend on that it still is the controller."""
    real = Controller.write

    class Unchecked:
        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        def transaction(self, operations: Sequence[Any], *, session: int | None = None) -> list[int]:
            if operations[0].path != CONTROLLER_EPOCH:
                return self._client.transaction(operations, session=session)
            return [0, *self._client.transaction(operations[1:], session=session)]

    def write(self: Controller, operations: Sequence[Any], *, is_done: Any = None) -> list[int]:
        unchecked = Controller(Unchecked(self._client))  # type: ignore[arg-type]
        unchecked._claim = self._claim
        return real(unchecked, operations, is_done=is_done)

    yield mock.patch.object(Controller, "write", write)


@variant
def compares_offsets_and_no_epochs() -> Patches:
    """Where a follower's log ends within the leader's epoch before, it is taken for the beginning of the leader's."""
    real = partition.diverging_point

    def diverging_point(epochs: Any, *, offset: int, **known: int) -> tuple[int, int] | None:
        found = real(epochs, offset=offset, **known)
        return None if found is not None and offset <= found[1] else found

    yield mock.patch.object(partition, "diverging_point", diverging_point)


@variant
def keeps_epochs_at_truncation() -> Patches:
    """A log that is cut goes on to know the leader epochs that began behind its new end."""
    yield mock.patch.object(LeaderEpochs, "truncate_from_end", return_value=None)


@variant
def rolls_with_a_snapshot_of_before() -> Patches:
    """The snapshot of producers at a roll lacks the frames of the same append."""

    def append(self: LogState, frames: Sequence[Any], now_ms: int) -> None:
        self.segments.append(frames, self.config, now_ms=now_ms, on_roll=self._write_snapshot)
        for _, header, control in frames:
            self.producers.add(header, control)
        self.settle()

    yield mock.patch.object(LogState, "append", append)


@variant
def looks_at_nothing_behind_a_bad_frame() -> Patches:
    """A log is cut at its first bad frame, whatever the frames behind it prove."""
    yield mock.patch.object(recovery, "watermark_behind", return_value=-1)


@variant
def waits_for_what_was_cut() -> Patches:
    """Who waits until a record is durable goes on when the leadership has ended, and when the record was cut."""

    def wait(self: GroupCommit, asked: Any, deadline: Deadline, timeout_s: float, is_over: Callable[[], bool]) -> int:
        while True:
            with self._condition:
                while self._is_syncing and self._failure is None and self._durable_end_offset < asked.upto:
                    if deadline.expired:
                        raise RequestTimedOutError(
                            f"offset {asked.upto} was not on the device within {timeout_s:.3f} s"
                        )
                    self._condition.wait(deadline.remaining_s())
                if self._failure is not None:
                    raise type(self._failure)(self._failure.message)
                if self._durable_end_offset >= asked.upto:
                    return self._durable_end_offset
                self._is_syncing = True
            try:
                end = self._sync(deadline.remaining_s(), lambda: False)
                with self._condition:
                    self._durable_end_offset = max(self._durable_end_offset, end)
            finally:
                with self._condition:
                    self._is_syncing = False
                    self._condition.notify_all()

    yield mock.patch.object(GroupCommit, "_wait", wait)


@variant
def takes_any_disk_for_its_own() -> Patches:
    """A broker whose disk was replaced, or lost a directory, counts as holding what it was in sync with."""
    yield mock.patch.object(disks.DiskNews, "has_log", return_value=True)


@variant
def takes_a_copy_for_the_disk() -> Patches:
    """A copy that was made while its broker ran counts as being as new as it says."""

    def generations(self: OwnDisks) -> dict[str, disks.Generation]:
        found = [each.disk for each in self._directories]
        return {disk.disk_id: disks.Generation(disk.epoch, disk.generation) for disk in found}

    yield mock.patch.object(OwnDisks, "generations", generations)


@variant
def leaves_sets_to_members_that_are_gone() -> Patches:
    """After an unclean stop a broker leaves every set that has other members, whether they are there or not."""

    def other(self: Any, at: Any, state: Any, *, may_stop: bool) -> Check | None:
        members = [each for each in state.isr if each != self._own_id and each not in state.lost]
        return Check(TOPICS, ANY_VERSION) if members else None

    yield mock.patch.object(returning._Look, "_other", other)


@variant
def takes_every_log_for_flushed() -> Patches:
    """After its machine lost its power a broker stays in its sets as one that has all, whatever ``flush.mode`` is."""
    yield mock.patch.object(returning._Look, "_is_flushed", return_value=True)


@variant
def elects_anybody_after_a_power_loss() -> Patches:
    """When all in sync have lost their power the first replica leads, whatever the others have."""
    real = unproven.elect_most_complete

    def elect(*args: Any) -> Any:
        return real(*args[:-1], {})

    yield mock.patch.object(unproven, "elect_most_complete", elect)


@variant
def trusts_what_a_failed_fsync_left() -> Patches:
    """A start takes what it reads for written, when an fsync of it succeeds: the one before may have failed."""
    real = recovery.verified_frames

    def verified_frames(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for position, header, _ in real(*args, **kwargs):
            yield position, header, None

    yield mock.patch.object(recovery, "verified_frames", verified_frames)
