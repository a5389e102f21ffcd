"""One hosted partition: it takes appends, says when they are committed, and gives out what is.

Rule: one lock, held over the check of role and epoch together with the log's append, and over every change of the
high watermark; never over a network call, a wait for another thread or an fdatasync (but for what cuts a follower's
log, which must not become a leader's meanwhile). A disk can stand still all the same: changes of the role never wait
for the lock (`RoleLock`). The order is always partition's lock → log's lock.

An append lives through three stages: `append` (in the log, offset known) → `complete` (durable as ``flush.mode``
says, the high watermark moved, for ``acks=all`` beyond it) → readable. It never decodes a frame: that the bytes fit
the topic is checked by the log before they are written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker_runtime.contract.errors import (
    CorruptRecordError,
    LogStorageError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
)
from broker_runtime.contract.frame import SoundFrame
from broker_runtime.log import FlushMode, LogSlice
from broker_runtime.replication.divergence import NO_EPOCH, diverging_point
from broker_runtime.replication.hosted_replica import FetchWaiter, HostedReplica, marks_of
from broker_runtime.replication.in_sync import FollowerAnswer, FollowerFetch, InSyncSet

ACKS_ALL = -1
_JOINING_LOOK_S = 1.0
_BUSY_S = 1.0  # that a request without a limit of its own, which may be about many, waits for one partition
_SHORTLY_BUSY_S = 0.05  # that one waits whose time is over, or who then looks whether it is


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAppend:
    """Frames that are in the leader's log, from ``base_offset`` up to ``next_offset``, and not yet acknowledged."""

    base_offset: int
    next_offset: int
    append_time_ms: int  # -1: the records keep their own timestamps
    leader_epoch: int


class Partition(HostedReplica):
    """One replica hosted by this broker, with all that its leader does. Thread-safe."""

    # --- offsets ---

    @property
    def log_start(self) -> int:
        """The first offset that can be read. Like all below: blocks while the log is loaded for its first use."""
        return self.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        """Everything below is committed and may be read. Raises `RequestTimedOutError` where the partition is busy for
        long: its disk may stand still."""
        if not self._is_settled:
            with self._lock.within(_BUSY_S):
                self._advance_high_watermark()
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Up to where read_committed readers may read. Without transactions: the high watermark."""
        return self.high_watermark

    def latest_offset(self, busy_s: float = _BUSY_S) -> int:
        """The last stable offset, as the answer to who asks where the log ends at present (KIP-207).

        Raises `OffsetNotAvailableError` while a new leader does not know yet that all is committed that was so before
        its epoch: an earlier leader may have told more. `NotLeaderOrFollowerError`; `RequestTimedOutError` where the
        partition is busy for longer than ``busy_s``.
        """
        with self._lock.within(busy_s):
            led = self._require_led()
            extent = self.log.extent(busy_s) if self.log.is_loaded else self.log.extent()
            high_watermark = self._advance_high_watermark(extent)
        epoch_start = marks_of(extent, led.leader_epoch).epoch_start
        if high_watermark < epoch_start:
            raise OffsetNotAvailableError(
                f"{self} has a new leader: offset {high_watermark} is committed, and it is not known yet whether "
                f"{epoch_start} is, where leader epoch {led.leader_epoch} begins"
            )
        return high_watermark

    # --- appending ---

    def append(
        self,
        frames: Sequence[memoryview | SoundFrame],
        *,
        acks: int,
        leader_epoch: int,
        now_ms: int,
        timeout_s: float = -1,
    ) -> PendingAppend:
        """Appends whole frames, one behind the other. They are verified by the log, never copied, and theirs to read
        until this returns. Not durable yet, and not readable: see `complete`.

        Blocks for other appends, up to ``timeout_s`` (-1: as long as they take), and for the write itself, not for the
        disk. Raises `RequestTimedOutError` where others take longer: the disk may stand still; as `require_leader` and
        the log's ``append_as_leader`` (`CorruptRecordError`, `RecordTooLargeError`, `SchemaMismatchError`,
        `InvalidTimestampError`, `LogStorageError`); `NotEnoughReplicasError` for ``acks=-1`` with too few in-sync
        replicas. After any of them nothing was appended.
        """
        self.require_room()
        with self._lock.within(timeout_s):
            led = self._require_led(leader_epoch)
            epoch, in_sync = led.leader_epoch, len(led.leadership.in_sync)
            if acks == ACKS_ALL and in_sync < self.min_in_sync_replicas:
                raise NotEnoughReplicasError(
                    f"{self} has {in_sync} in-sync replicas, min.insync.replicas is {self.min_in_sync_replicas}"
                )
            try:
                result = self.log.append_as_leader(
                    frames, leader_epoch=epoch, now_ms=now_ms, timeout_s=timeout_s if self.log.is_loaded else -1
                )
            except LogStorageError:
                self._announce()  # readers who wait here learn it now
                raise
            except CorruptRecordError as error:
                raise self.refusal(error) from None
            for waiter in self._append_waiters:
                waiter.wake()
        return PendingAppend(
            base_offset=result.base_offset,
            next_offset=result.next_offset,
            append_time_ms=result.append_time_ms if self.log.config.is_log_append_time else -1,
            leader_epoch=epoch,
        )

    def complete(self, pending: PendingAppend, *, acks: int, timeout_s: float) -> None:
        """Returns when the append counts as acknowledged: durable here as ``flush.mode`` says, and for ``acks=-1``
        held by all in-sync replicas (the high watermark has passed it).

        Blocks up to ``timeout_s``, then raises `RequestTimedOutError`: the append may still come to count; calling
        again goes on waiting. Raises `LogStorageError` if the log failed, `NotLeaderOrFollowerError` if the
        leadership under which it was appended ended first, whatever ``acks`` (the records may have been cut off), at
        once unless it is this very call whose fdatasync all wait for, whoever has the partition or its log;
        `NotEnoughReplicasAfterAppendError`.
        """
        deadline = time.monotonic() + timeout_s
        if self.log.config.flush_mode is FlushMode.ACK:
            try:
                durable = self.log.flush(
                    pending.next_offset, timeout_s, is_over=lambda: not self._is_led_as_for(pending)
                )
            except LogStorageError:
                self.announce()  # readers who wait here learn it now
                raise
            if durable < pending.next_offset:  # it was cut, or the role ended, even if it has begun again by now
                raise self._not_led_as_for(pending)
        is_first = True

        def look() -> float:
            nonlocal is_first
            wait_s = self._look(pending, acks, is_first=is_first)
            is_first = False
            return wait_s

        waiter = FetchWaiter()
        if acks == ACKS_ALL:
            self.add_waiter(waiter)
        try:
            self._wait_until(
                look,
                lambda: self._require_led_as_for(pending),
                deadline,
                waiter,
                late=lambda: (
                    f"{self}: offset {pending.next_offset - 1} was appended, but not committed by all in-sync "
                    f"replicas {sorted(self.in_sync)} in time"
                ),
            )
        finally:
            if acks == ACKS_ALL:
                self.remove_waiter(waiter)

    def delete_records(self, offset: int | None, *, timeout_s: float) -> int:
        """Moves the log's start up to ``offset`` (None: the high watermark), here and on all in-sync replicas, so that
        the records are gone whoever leads next. Returns the log's start.

        Blocks up to ``timeout_s``, whoever has the partition or its log, then raises `RequestTimedOutError`: they are
        gone here, unless that one had the log all the time, and go elsewhere when the replica there fetches. Waits for
        the `Leadership.eligible` replicas, too, which may be in sync again. Raises as `require_leader`,
        `OffsetOutOfRangeError` above the high watermark, `NotLeaderOrFollowerError` if the leadership ends meanwhile,
        `LogStorageError`.
        """
        deadline = time.monotonic() + timeout_s
        led = self._require_led()
        offset = self.high_watermark if offset is None else offset
        start = self.log.delete_records(offset, max(_SHORTLY_BUSY_S, timeout_s))
        self.announce()

        def require_role() -> None:
            if self._led is not led:
                raise NotLeaderOrFollowerError(f"{self} changed its leader while records were deleted")

        def late() -> str:
            eligible = sorted(led.leadership.eligible)
            return (
                f"{self}: records below {start} are deleted here, and not yet on all in-sync replicas "
                f"{sorted(self.in_sync)}{f' and those that are eligible, {eligible}' if eligible else ''}"
            )

        waiter = FetchWaiter()
        self.add_waiter(waiter)
        try:
            self._wait_until(
                lambda: 0.0 if led.has_deleted(start) else math.inf, require_role, deadline, waiter, late=late
            )
        finally:
            self.remove_waiter(waiter)
        return start

    # --- followers of this leader ---

    def follower_fetch(
        self,
        fetch: FollowerFetch,
        *,
        max_bytes: int,
        now_ms: int,
        at_least_one: bool = True,
        is_first_look: bool = True,
    ) -> FollowerAnswer:
        """Takes note of what a follower tells, and finds what it wants, up to the log's end. Never waits.

        ``now_ms``: of the clock of `propose_in_sync`. ``is_first_look`` False: the same fetch again, after a wait; it
        tells nothing new. Raises as `require_leader`; `NotLeaderOrFollowerError` for a broker without a replica,
        `StaleBrokerEpochError` for one that registered anew since, `UnknownLeaderEpochError` for one with records of
        a newer epoch, `OffsetOutOfRangeError` below the log's start or, of one without records that is not in sync,
        elsewhere than there; `LogStorageError`; `RequestTimedOutError` where the disk holds the partition up: one
        session fetches from all disks.
        """
        self.require_answers()
        with self._lock.within(_BUSY_S):
            led = self._require_led(fetch.leader_epoch)
            led.require_replica(fetch.broker_id, fetch.broker_epoch)
            extent = self.log.extent(_BUSY_S) if self.log.is_loaded else self.log.extent()
            log_start, log_end, high_watermark = extent.log_start, extent.log_end, extent.high_watermark
            diverging = diverging_point(
                extent.leader_epochs,
                leader_epoch=led.leader_epoch,
                log_end=log_end,
                last_fetched_epoch=fetch.last_fetched_epoch,
                offset=fetch.offset,
            )
            is_outside = (
                fetch.offset < log_start
                or (diverging is None and fetch.offset > log_end)
                # Without a record it proves nothing of what lies below, but for having been in sync when that went.
                or (fetch.last_fetched_epoch == NO_EPOCH and fetch.offset > log_start and not led.counts(fetch))
            )
            if is_first_look:
                if is_outside or diverging is not None:
                    led.heard_of(fetch, now_ms)
                else:
                    marks = marks_of(extent, led.leader_epoch)
                    if led.told(fetch, marks, now_ms):  # a deletion of records waits for it
                        for waiter in self._waiters:
                            waiter.wake()
                    high_watermark = self._advance_high_watermark(extent)
                    if led.wants_change_of(fetch.broker_id, marks._replace(high_watermark=high_watermark)):
                        self.on_in_sync_news()
        if is_outside:
            raise OffsetOutOfRangeError(
                f"{self}: the log of broker {fetch.broker_id} ends at {fetch.offset} with epoch "
                f"{fetch.last_fetched_epoch}, the leader's goes from {log_start} to {log_end}"
            )
        found = None
        if diverging is None and fetch.offset < log_end:
            found = self.log.read(fetch.offset, max_bytes=max_bytes, upto=log_end, at_least_one=at_least_one)
            # Found before the role ended, it is what was there in this epoch, whatever happens to the log after.
            if found is not None and self._led is not led:
                found.close()
                raise NotLeaderOrFollowerError(f"{self} changed its leader during a follower's fetch")
        return FollowerAnswer(
            found=found,
            high_watermark=high_watermark,
            log_start=log_start,
            log_end=log_end,
            leader_epoch=led.leader_epoch,
            diverging=diverging,
        )

    # --- reading ---

    def read(
        self, offset: int, *, max_bytes: int, leader_epoch: int = -1, at_least_one: bool = True
    ) -> LogSlice | None:
        """Frames from the one that holds ``offset`` on, all below the high watermark; None: there are none yet.

        The caller closes the slice. Raises as `require_leader`, `OffsetOutOfRangeError` below the log's start or
        above its end, `LogStorageError` where the log is offline. An offset between the high watermark and the
        log's end is not out of range: it is None.
        """
        self.require_leader(leader_epoch)
        high_watermark = self.high_watermark
        if offset == high_watermark:  # what most looks of most readers find; spares them the log's index
            return None
        return self.log.read(offset, max_bytes=max_bytes, upto=high_watermark, at_least_one=at_least_one)

    # --- private ---

    def _wait_until(
        self,
        look: Callable[[], float],
        require_role: Callable[[], object],
        deadline: float,
        waiter: FetchWaiter,
        *,
        late: Callable[[], str],
    ) -> None:
        """Returns when ``look()``, called with the lock held, says 0; else it says how long to wait for news at most,
        in seconds. Nobody's lock is waited for longer than until the next ``require_role()``, which needs none.

        Raises what these two raise, and `RequestTimedOutError` with ``late()`` at the ``deadline``. A
        `RequestTimedOutError` of ``look``, where somebody else has the log, is a look that is to be had again.
        """
        while True:
            require_role()
            left_s = deadline - time.monotonic()
            wait_s, busy = 0.0, None
            try:
                with self._lock.within(_SHORTLY_BUSY_S):
                    wait_s = look()
            except RequestTimedOutError as error:
                require_role()
                busy = error
            if busy is None and wait_s <= 0:
                return
            if left_s <= 0:
                raise RequestTimedOutError(late()) from busy
            if busy is None:
                waiter.wait(min(left_s, wait_s))

    # --- private; the lock is held ---

    def _look(self, pending: PendingAppend, acks: int, *, is_first: bool) -> float:
        """0: the append counts as acknowledged; else how long to wait for news at most, in seconds. Raises
        `RequestTimedOutError` where somebody else has the log."""
        led = self._require_led_as_for(pending)
        if is_first or (acks == ACKS_ALL and not self._is_settled):
            self._advance_high_watermark(busy_s=_SHORTLY_BUSY_S)
        if acks != ACKS_ALL or self._is_committed(pending):
            return 0.0
        if led.has_waited_for:
            # Who was about to join may have died: that is seen by whoever has the clock.
            self.on_in_sync_news()
            return _JOINING_LOOK_S
        return math.inf

    def _is_committed(self, pending: PendingAppend) -> bool:
        """The role first: under another leader the offsets may be other records'."""
        led = self._require_led_as_for(pending)
        if self.log.high_watermark >= pending.next_offset:
            return True
        in_sync = led.leadership.in_sync
        if len(in_sync) < self.min_in_sync_replicas:
            raise NotEnoughReplicasAfterAppendError(
                f"{self} has {len(in_sync)} in-sync replicas since the append, "
                f"min.insync.replicas is {self.min_in_sync_replicas}"
            )
        return False

    def _require_led_as_for(self, pending: PendingAppend) -> InSyncSet:
        """Needs no lock."""
        led = self._led
        if led is None or led.leader_epoch != pending.leader_epoch:
            raise self._not_led_as_for(pending)
        return led

    def _not_led_as_for(self, pending: PendingAppend) -> NotLeaderOrFollowerError:
        return NotLeaderOrFollowerError(
            f"{self} changed its leader before offset {pending.next_offset - 1} was acknowledged"
        )

    def _is_led_as_for(self, pending: PendingAppend) -> bool:
        """Whether the leadership under which it was appended goes on. Needs no lock."""
        led = self._led
        return led is not None and led.leader_epoch == pending.leader_epoch
