"""One hosted partition: this broker's replica, its role, and what its leader does.

What a follower does with it is in `following`.

Rules:

- The role is assigned by the controller, never taken. It changes under the partition's lock, and so does all that only
  one role may do: a thread that holds the lock knows that the role is still the same. An older epoch, or an older state
  of the same epoch, changes nothing.
- The lock is held over the check of role and epoch together with the log's append, and over every change of the high
  watermark; never over a network call, a wait for another thread or an fdatasync. (The exception: the fdatasyncs with
  which a follower's log is truncated, because the replica must not become the leader meanwhile.) A disk can still stall
  while the lock is held, so changes of the role never wait for it (`RoleLock`).
- Locks are always taken in the order partition → log.

An append goes through three stages: `append` (in the log, its offset is known) → `complete` (durable as ``flush.mode``
says, and for ``acks=all`` below the high watermark) → readable. No frame is decoded here: the log checks that the bytes
fit the topic before it writes them.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from broker_runtime.contract.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    LogStorageError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    PylogError,
    RequestTimedOutError,
    UnknownLeaderEpochError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import SoundFrame, TransactionBegin
from broker_runtime.contract.waiting import Deadline, Signal
from broker_runtime.log import AppendResult, LogExtent, LogSlice, Outcomes, PartitionLog
from broker_runtime.replication.appends import Disk, LatestOffsets, PendingAppend
from broker_runtime.replication.divergence import NO_EPOCH, diverging_point
from broker_runtime.replication.in_sync import FollowerAnswer, FollowerFetch, InSyncChange, InSyncSet, LogMarks
from broker_runtime.replication.leadership import Leadership, Role
from broker_runtime.replication.role_lock import RoleLock

ACKS_ALL: Final = -1
BUSY_S: Final = 0.05
"""How long a caller that looks after many partitions waits for one of them."""
_REQUEST_BUSY_S: Final = 1.0  # the same for a request without a time limit of its own
_LAST_BUSY_S: Final = 0.05  # the same for one whose time is over, or that checks next whether it is
_JOINING_CHECK_S: Final = 1.0  # how often an append that waits for a joining replica has the in-sync set looked at

_logger = logging.getLogger(__name__)


class Partition:
    """See the module. Thread-safe. Created without a role; the controller assigns one."""

    def __init__(self, log: PartitionLog, *, broker_id: int, disk: Disk) -> None:
        self.topic = log.topic
        self.partition = log.partition
        self.topic_id = log.topic_id.bytes
        self.log = log
        self.disk = disk
        # Called when a change of the in-sync set can be proposed, by any thread and with the lock held: it must not
        # block or call back.
        self.on_in_sync_news: Callable[[], None] = _nobody
        self._broker_id = broker_id
        self._min_in_sync = 1
        self._lock = RoleLock()
        self._role = Role.NONE
        self._known_epoch = -1
        self._newest: Leadership | None = None
        self._led: InSyncSet | None = None  # None: not the leader
        # Outlives the role: a change of an epoch's in-sync set may still be written after the leadership has ended.
        self._led_last: InSyncSet | None = None
        # Whether the high watermark was computed since something last changed that can move it; that loads the log.
        self._is_settled = False
        # Ordered sets: the order of the wake-ups depends on nothing but what happened.
        self._waiters: dict[Signal, None] = {}
        self._append_waiters: dict[Signal, None] = {}

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def min_in_sync_replicas(self) -> int:
        """The topic's ``min.insync.replicas``. May be set at any time."""
        return self._min_in_sync

    @min_in_sync_replicas.setter
    def min_in_sync_replicas(self, least: int) -> None:
        if least != self._min_in_sync:
            self._min_in_sync = least
            self._lock.carry_out(self._unsettle)

    # --- role: these never wait for the lock, whose holder may be waiting for a disk (see `RoleLock`) ---

    def become_leader(self, leadership: Leadership, now_ms: int | None = None) -> None:
        """Leads in ``leadership``'s epoch from now on, or learns the newer state of the same epoch; an older state of
        it changes nothing.

        In a new epoch every follower has the lag limit, counted from ``now_ms``, to catch up (on the clock of
        `follower_fetch` and `propose_in_sync`; None: counted from the first time that one of those two passes). Does
        not touch the log, which the first use loads, so that a broker with many partitions is ready at once. A new
        epoch is written into the log's epoch checkpoint with the first append. Raises `FencedLeaderEpochError` if a
        newer epoch is already known here.
        """

        def change() -> None:
            self._learn(leadership)
            led = self._led_last
            if led is None or led.leader_epoch != leadership.leader_epoch:
                led = InSyncSet(
                    leadership,
                    topic=self.topic,
                    partition=self.partition,
                    broker_id=self._broker_id,
                    now_ms=now_ms,
                )
            elif not led.heard(leadership) and self._led is led:
                return
            elif self._led is not led:
                led.begin_again(now_ms)
            self._role, self._led, self._led_last = Role.LEADER, led, led
            self._unsettle()

        self._lock.carry_out(change)

    def become_follower(self, leadership: Leadership) -> None:
        """Follows ``leadership.leader`` in its epoch (None: nobody leads): clients are refused, and the log changes
        only within `following`.

        Raises `FencedLeaderEpochError` if a newer epoch is already known here.
        """

        def change() -> None:
            self._learn(leadership)
            self._role, self._led = Role.FOLLOWER, None
            self._announce()

        self._lock.carry_out(change)

    def step_down(self) -> None:
        """Ends any role: appends are refused, and every waiting request gets `NotLeaderOrFollowerError`."""

        def change() -> None:
            self._role, self._led = Role.NONE, None
            self._announce()

        self._lock.carry_out(change)

    @property
    def role(self) -> Role:
        """The replica's current role."""
        return self._role

    @property
    def is_leader(self) -> bool:
        """Whether it leads now."""
        return self._led is not None

    @property
    def leader_epoch(self) -> int:
        """The newest epoch known here; -1 before the first."""
        return self._known_epoch

    @property
    def leadership(self) -> Leadership | None:
        """The newest state known here: the last one read from ZooKeeper, or one that this leader has written since.
        None before the first."""
        led = self._led
        return self._newest if led is None else led.leadership

    def require_leader(self, leader_epoch: int = -1) -> int:
        """The current epoch, for requests made in ``leader_epoch`` (-1: the client does not know it).

        Raises `NotLeaderOrFollowerError`, `FencedLeaderEpochError` (the request is older) or
        `UnknownLeaderEpochError` (it is newer than this broker knows).
        """
        return self._require_led(leader_epoch).leader_epoch

    @property
    def is_fit_to_lead(self) -> bool:
        """Whether this replica can do what a leader does: its log is online, and its disk takes records. (A damaged log
        is another matter, see `refusal`.) Never waits."""
        return not self.log.is_offline and self.disk.takes_appends

    def refusal(self, error: PylogError) -> PylogError:
        """The error to answer a client with whose request met ``error`` here: if the log is damaged and other replicas
        exist, one that makes the client look for the next leader."""
        leadership = self.leadership
        others = 0 if leadership is None else len(leadership.in_sync | leadership.eligible) - 1
        if not (isinstance(error, CorruptRecordError) and self.log.is_damaged and others > 0):
            return error
        return NotLeaderOrFollowerError(
            f"{self} is damaged on broker {self._broker_id}, which gives it up to another: {error.message}"
        )

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """An error raised inside is replaced by its `refusal`."""
        try:
            yield
        except CorruptRecordError as error:
            raise self.refusal(error) from None

    # --- offsets ---

    @property
    def log_start(self) -> int:
        """The first offset that can be read. Like all below: blocks while the log is loaded for its first use."""
        return self.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        """Everything below is committed and may be read. Raises `RequestTimedOutError` where the partition is busy for
        long: its disk may have stalled."""
        self._settle()
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Up to where readers of committed records may read. Without open transactions: the high watermark."""
        self._settle()
        return self.log.last_stable_offset

    def latest_offsets(self, busy_s: float = _REQUEST_BUSY_S) -> LatestOffsets:
        """As the answer to a client that asks where the log ends (KIP-207).

        Raises `OffsetNotAvailableError` while a new leader does not know yet that everything committed before its epoch
        is committed: an earlier leader may have answered with a higher offset. `NotLeaderOrFollowerError`;
        `RequestTimedOutError` where the partition is busy for longer than ``busy_s``.
        """
        with self._lock.within(busy_s):
            led = self._require_led()
            extent = self.log.extent(busy_s) if self.log.is_loaded else self.log.extent()
            high_watermark = self._advance_high_watermark(extent)
            last_stable_offset = self.log.last_stable_offset
        epoch_start = LogMarks.of(extent, led.leader_epoch).epoch_start
        if high_watermark < epoch_start:
            raise OffsetNotAvailableError(
                f"{self} has a new leader: offset {high_watermark} is committed, and it is not known yet whether "
                f"{epoch_start} is, where leader epoch {led.leader_epoch} begins"
            )
        return LatestOffsets(high_watermark, min(last_stable_offset, high_watermark))

    def note_durable(self) -> None:
        """More of the log became durable other than through `complete`: the high watermark may advance."""
        with self._lock:
            if self.log.is_loaded and not self.log.is_offline:
                self._advance_high_watermark()

    # --- appending ---

    def append(
        self,
        frames: Sequence[memoryview | SoundFrame],
        *,
        acks: int,
        leader_epoch: int,
        now_ms: int,
        timeout_s: float = -1,
        begin: TransactionBegin | None = None,
    ) -> PendingAppend:
        """Appends whole frames, in order. The log verifies them and never copies them; the caller must leave them
        unchanged until this returns. They are not durable yet, and not readable: see `complete`.

        Blocks for other appends, up to ``timeout_s`` (-1: as long as they take), and for the write itself, not for the
        disk. Raises `RequestTimedOutError` where others take longer: the disk may have stalled; as `require_leader` and
        the log's ``append_as_leader`` (`CorruptRecordError`, `RecordTooLargeError`, `SchemaMismatchError`,
        `InvalidTimestampError`, `LogStorageError`); `NotEnoughReplicasError` for ``acks=-1`` with too few in-sync
        replicas. After any of them nothing was appended. ``begin``: see the log's ``append_as_leader``.
        """
        write = self.log.append_as_leader
        pending = self._append(
            lambda epoch, busy_s: write(frames, leader_epoch=epoch, now_ms=now_ms, timeout_s=busy_s, begin=begin),
            acks=acks,
            leader_epoch=leader_epoch,
            timeout_s=timeout_s,
        )
        assert pending is not None
        return pending

    def end_transactions(
        self, outcomes: Outcomes, *, leader_epoch: int = -1, now_ms: int, timeout_s: float = -1
    ) -> PendingAppend | None:
        """Ends those of the open transactions that are over by ``outcomes``, in the log alone: `complete` waits until
        all in-sync replicas know it. None: nothing ends. Not all may have ended: call again until it returns None.

        Raises as `append` with ``acks=-1``.
        """
        end = self.log.end_transactions
        return self._append(
            lambda epoch, busy_s: end(outcomes, leader_epoch=epoch, now_ms=now_ms, timeout_s=busy_s),
            acks=ACKS_ALL,
            leader_epoch=leader_epoch,
            timeout_s=timeout_s,
            is_urgent=True,
        )

    def _append(
        self,
        write: Callable[[int, float], AppendResult | None],
        *,
        acks: int,
        leader_epoch: int,
        timeout_s: float,
        is_urgent: bool = False,
    ) -> PendingAppend | None:
        """``write(leader_epoch, timeout_s)`` appends to the log, or returns None if there is nothing to append."""
        self.disk.require_room(is_urgent=is_urgent)
        with self._lock.within(timeout_s):
            led = self._require_led(leader_epoch)
            epoch, in_sync = led.leader_epoch, len(led.leadership.in_sync)
            if acks == ACKS_ALL and in_sync < self.min_in_sync_replicas:
                raise NotEnoughReplicasError(
                    f"{self} has {in_sync} in-sync replicas, min.insync.replicas is {self.min_in_sync_replicas}"
                )
            try:
                result = write(epoch, timeout_s if self.log.is_loaded else -1)
            except LogStorageError:
                self._announce()  # waiting readers learn it now
                raise
            except CorruptRecordError as error:
                raise self.refusal(error) from None
            if result is None:
                return None
            for waiter in self._append_waiters:
                waiter.set()
        return PendingAppend(
            base_offset=result.base_offset,
            next_offset=result.next_offset,
            append_time_ms=result.append_time_ms if self.log.config.message_timestamp_type == "LogAppendTime" else -1,
            leader_epoch=epoch,
            is_duplicate=result.is_duplicate,
        )

    def complete(self, pending: PendingAppend, *, acks: int, timeout_s: float) -> None:
        """Returns when the append counts as acknowledged: durable here as ``flush.mode`` says, and for ``acks=-1``
        held by all in-sync replicas (the high watermark has passed it).

        Blocks up to ``timeout_s``, then raises `RequestTimedOutError`: the append may still be committed, and another
        call continues to wait for it. Raises `LogStorageError` if the log failed, `NotEnoughReplicasAfterAppendError`,
        and `NotLeaderOrFollowerError` if the leadership under which the records were appended ended first, whatever
        ``acks`` is, because they may have been truncated. That is raised at once, even while another thread has the
        partition or its log, unless it is this very call that runs the fdatasync all others wait for.
        """
        deadline = Deadline(timeout_s)
        if self.log.waits_for_device:
            end = pending.next_offset
            try:
                durable = self.log.flush(end, timeout_s, is_over=lambda: not self._is_led_as_for(pending))
            except LogStorageError:
                self.announce()  # waiting readers learn it now
                raise
            if durable < end:  # truncated, or the role ended, even if it has begun again by now
                raise self._not_led_as_for(pending)
        if self._lock.is_met_now(lambda: self._check_acknowledged(pending, acks, is_first=True)):
            return
        is_first = True

        def check() -> float:
            nonlocal is_first
            wait_s = self._check_acknowledged(pending, acks, is_first=is_first)
            is_first = False
            return wait_s

        waiter = Signal()
        if acks == ACKS_ALL:
            self.add_waiter(waiter)
        try:
            self._lock.wait_until(
                check,
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

    def complete_all(self, timeout_s: float) -> None:
        """Returns when all in-sync replicas have everything that is in the log now. Blocks and raises as `complete`."""
        led = self._require_led()
        end = self.log.log_end_offset
        pending = PendingAppend(base_offset=end, next_offset=end, append_time_ms=-1, leader_epoch=led.leader_epoch)
        self.complete(pending, acks=ACKS_ALL, timeout_s=timeout_s)

    def delete_records(self, offset: int | None, *, timeout_s: float) -> int:
        """Moves the log's start up to ``offset`` (None: the last stable offset), here and on all in-sync replicas, so
        that the records stay deleted whichever replica leads next. Returns the log's start.

        Also waits for the `Leadership.eligible` replicas, which may be in sync again. Blocks up to ``timeout_s``, even
        while another thread has the partition or its log, then raises `RequestTimedOutError`: the records are deleted
        here (unless another thread had the log all the time), and on each other replica when that one next fetches.
        Raises as `require_leader`, `OffsetOutOfRangeError` above the last stable offset, `NotLeaderOrFollowerError` if
        the leadership ends meanwhile, `LogStorageError`.
        """
        deadline = Deadline(timeout_s)
        led = self._require_led()
        stable = self.last_stable_offset  # never falls while this broker leads
        if offset is not None and offset > stable:
            text = f"records of {self} can be deleted up to the last stable offset, {stable}, not to {offset}"
            raise OffsetOutOfRangeError(f"{text}: a transaction may be open (pylog txn list)")
        offset = stable if offset is None else offset
        start = self.log.delete_records(offset, max(_LAST_BUSY_S, timeout_s))
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

        waiter = Signal()
        self.add_waiter(waiter)
        try:
            self._lock.wait_until(
                lambda: 0.0 if led.has_deleted(start) else math.inf, require_role, deadline, waiter, late=late
            )
        finally:
            self.remove_waiter(waiter)
        return start

    # --- reading ---

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        leader_epoch: int = -1,
        at_least_one: bool = True,
        is_committed: bool = True,
        stop: int | None = None,
    ) -> LogSlice | None:
        """Frames from the one that holds ``offset`` on, all below the last stable offset, or without ``is_committed``
        below the high watermark; None: there are none yet. ``stop``: see the log's ``read``.

        The caller closes the slice. Raises as `require_leader`, `OffsetOutOfRangeError` below the log's start or above
        its end (not between high watermark and end: that is None), `LogStorageError` where the log is offline.
        """
        self.require_leader(leader_epoch)
        end = self.last_stable_offset if is_committed else self.high_watermark
        if offset == end:  # most reads of most consumers end here, without a look into the log's index
            return None
        return self.log.read(offset, max_bytes=max_bytes, upto=end, at_least_one=at_least_one, stop=stop)

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
        """Records what a follower reports, and finds what it asks for, up to the log's end. Never waits for records.

        ``now_ms``: of the clock of `propose_in_sync`. ``is_first_look`` False: the same fetch again, after a wait; it
        reports nothing new. Raises as `require_leader`; `NotLeaderOrFollowerError` for a broker without a replica,
        `StaleBrokerEpochError` for one that has registered again since, `UnknownLeaderEpochError` for one with records
        of a newer epoch, `OffsetOutOfRangeError` below the log's start and, for a follower that has no records and is
        not in sync, anywhere but at the log's start; `LogStorageError`; `RequestTimedOutError` where the disk holds the
        partition up, because one session fetches from all disks.
        """
        self.disk.require_answers()
        with self._lock.within(_REQUEST_BUSY_S):
            led = self._require_led(fetch.leader_epoch)
            led.require_replica(fetch.broker_id, fetch.broker_epoch)
            extent = self.log.extent(_REQUEST_BUSY_S) if self.log.is_loaded else self.log.extent()
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
                # Without a record it proves nothing about what lies below, unless it was in sync when that was deleted.
                or (fetch.last_fetched_epoch == NO_EPOCH and fetch.offset > log_start and not led.counts(fetch))
            )
            if is_first_look:
                if is_outside or diverging is not None:
                    led.reported_unusable_end(fetch, now_ms)
                else:
                    marks = LogMarks.of(extent, led.leader_epoch)
                    if led.reported(fetch, marks, now_ms):  # a deletion of records waits for it
                        for waiter in self._waiters:
                            waiter.set()
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

    # --- the in-sync set ---

    @property
    def in_sync(self) -> frozenset[int]:
        """The in-sync replicas as far as is known here; empty before the first state."""
        leadership = self.leadership
        return frozenset() if leadership is None else leadership.in_sync

    @property
    def is_in_sync(self) -> bool:
        """Whether this broker is in the partition's in-sync set, as far as is known here."""
        return self._broker_id in self.in_sync

    @property
    def eligible(self) -> frozenset[int]:
        """The replicas that are `Leadership.eligible` as far as is known here."""
        leadership = self.leadership
        return frozenset() if leadership is None else leadership.eligible

    def replica_ends(self) -> dict[int, int]:
        """Broker id → the offset up to which that replica, this one included, reported to hold the log; -1: it has
        reported nothing to this leader.

        Raises `NotLeaderOrFollowerError`, and as the log; `RequestTimedOutError` where the partition is busy for long.
        """
        with self._lock.within(_REQUEST_BUSY_S):
            return {**self._require_led().reported_ends(), self._broker_id: self.log.durable_end_offset}

    def propose_in_sync(self, now_ms: int, lag_limit_ms: int, *, busy_s: float = BUSY_S) -> InSyncChange | None:
        """The change of the in-sync set that is to be written now; None: nothing to change, or not the leader.

        The change counts as under way until one of the three methods below is called with that very object, or the
        partition learns a newer state. Does not load the log. Raises `RequestTimedOutError` where another thread has
        the partition or its log for longer than ``busy_s``: the disk may have stalled. Try again soon.
        """
        with self._lock.within(busy_s):
            if self._led is None or self.log.is_offline:
                return None
            try:
                marks = LogMarks.of(self.log.extent(busy_s), self._led.leader_epoch) if self.log.is_loaded else None
            except RequestTimedOutError:
                raise
            except PylogError as error:  # the log went offline
                event(
                    _logger,
                    "propose in-sync set",
                    level=logging.WARNING,
                    topic=self.topic,
                    partition=self.partition,
                    error=error,
                )
                return None
            is_sound = self.log.is_loaded and not self.log.is_damaged
            least = self._min_in_sync if is_sound else None
            change = self._led.propose(marks, now_ms, lag_limit_ms, min_in_sync=least)
            self._unsettle()  # the high watermark may no longer wait for a replica that was about to join
            return change

    def in_sync_written(self, change: InSyncChange, version: int) -> None:
        """The change is in ZooKeeper, which gave the state ``version``. Raises nothing, and does not wait."""

        def take() -> None:
            led = self._led_last
            if led is None or led.leader_epoch != change.leader_epoch or not led.written(change, version):
                return
            event(
                _logger,
                "change in-sync set",
                topic=self.topic,
                partition=self.partition,
                leader_epoch=change.leader_epoch,
                version=version,
                in_sync=list(change.in_sync),
            )
            self._unsettle()

        self._lock.carry_out(take)

    def in_sync_refused(self, change: InSyncChange, *, gone: Collection[int] = ()) -> None:
        """The change was not written, and certainly never will be. Another is proposed after a while, from the state as
        it is known by then. ``gone``: see `InSyncSet.refused`. Does not wait."""

        def take() -> None:
            if self._led_last is not None and self._led_last.leader_epoch == change.leader_epoch:
                self._led_last.refused(change, gone=gone)
                self._unsettle()

        self._lock.carry_out(take)

    def in_sync_unknown(self, change: InSyncChange) -> None:
        """Whether the change was or will be written is not known. Both outcomes count as possible until the partition
        learns a newer state, another change was written over the same version, or this one's outcome is reported after
        all. Does not wait."""

        def take() -> None:
            if self._led_last is not None and self._led_last.leader_epoch == change.leader_epoch:
                self._led_last.outcome_unknown(change)

        self._lock.carry_out(take)

    # --- following another leader ---

    @contextmanager
    def following(self, leader_epoch: int) -> Iterator[PartitionLog]:
        """The log, for what a follower in ``leader_epoch`` does to it; the role does not change inside.

        Everybody else waits for this partition meanwhile: append, truncate and set marks inside, and flush outside.
        Raises `NotLeaderOrFollowerError`, `FencedLeaderEpochError` or `UnknownLeaderEpochError` unless that is the
        role, `CorruptRecordError` for a damaged log: what it would report to its leader proves nothing.
        """
        with self._lock:
            self._require_epoch(leader_epoch)
            if self._role is not Role.FOLLOWER:
                raise NotLeaderOrFollowerError(f"{self} does not follow on broker {self._broker_id}")
            if self.log.is_damaged:
                raise CorruptRecordError(f"{self} is damaged on broker {self._broker_id}, and follows nobody")
            yield self.log

    # --- waiting for changes ---

    def add_waiter(self, waiter: Signal, *, at_append: bool = False) -> None:
        """From now on the waiter is set when the log goes offline or the role ends, and when the high watermark
        advances or, with ``at_append`` (a follower's), when something is appended. Does not block: if another thread
        has the partition, the waiter is set when that thread lets go.

        It only says *that* something changed. So its owner adds it, looks, waits, looks, …, and removes it: because it
        looks after adding, no change is lost.
        """
        waiters, own_thread = self._append_waiters if at_append else self._waiters, threading.get_ident()

        def add() -> None:
            waiters[waiter] = None
            if threading.get_ident() != own_thread:
                waiter.set()

        self._lock.carry_out(add)

    def remove_waiter(self, waiter: Signal) -> None:
        """This partition sets the waiter no more; once more at most where another thread has the partition.
        Idempotent. Does not block."""

        def remove() -> None:
            self._waiters.pop(waiter, None)
            self._append_waiters.pop(waiter, None)

        self._lock.carry_out(remove)

    def announce(self) -> None:
        """Wakes all waiters, so that they look again (the log went offline, records were deleted)."""
        self._lock.carry_out(self._announce)

    # --- private ---

    def _require_led(self, leader_epoch: int = -1) -> InSyncSet:
        """Needs no lock: who leads, and in which epoch, is one reference."""
        led = self._led
        if led is None:
            raise NotLeaderOrFollowerError(f"{self} is not led by broker {self._broker_id}")
        if leader_epoch != -1:
            self._require_epoch(leader_epoch, led.leader_epoch)
        return led

    def _require_epoch(self, leader_epoch: int, current: int | None = None) -> None:
        current = self._known_epoch if current is None else current
        if leader_epoch < current:
            raise FencedLeaderEpochError(f"{self} is in leader epoch {current}, the request in {leader_epoch}")
        if leader_epoch > current:
            raise UnknownLeaderEpochError(f"{self} is in leader epoch {current} here, the request in {leader_epoch}")

    def _require_led_as_for(self, pending: PendingAppend) -> InSyncSet:
        """Needs no lock."""
        led = self._led
        if led is None or led.leader_epoch != pending.leader_epoch:
            raise self._not_led_as_for(pending)
        return led

    def _not_led_as_for(self, pending: PendingAppend) -> NotLeaderOrFollowerError:
        offset = pending.next_offset - 1
        return NotLeaderOrFollowerError(f"{self} changed its leader before offset {offset} was acknowledged")

    def _is_led_as_for(self, pending: PendingAppend) -> bool:
        """Whether the leadership under which it was appended still lasts. Needs no lock."""
        led = self._led
        return led is not None and led.leader_epoch == pending.leader_epoch

    def _settle(self) -> None:
        if not self._is_settled:
            with self._lock.within(_REQUEST_BUSY_S):
                self._advance_high_watermark()

    # --- private; the lock is held ---

    def _learn(self, leadership: Leadership) -> None:
        if leadership.leader_epoch < self._known_epoch:
            over, known = leadership.leader_epoch, self._known_epoch
            raise FencedLeaderEpochError(f"{self}: leader epoch {over} is over, the present one is {known}")
        is_new_epoch = leadership.leader_epoch > self._known_epoch
        self._known_epoch = leadership.leader_epoch
        if is_new_epoch or self._newest is None or leadership.version >= self._newest.version:
            self._newest = leadership

    def _check_acknowledged(self, pending: PendingAppend, acks: int, *, is_first: bool) -> float:
        """0: the append counts as acknowledged; else how long to wait for a change at most, in seconds. Raises
        `RequestTimedOutError` where another thread has the log."""
        led = self._require_led_as_for(pending)
        if is_first or (acks == ACKS_ALL and not self._is_settled):
            self._advance_high_watermark(busy_s=_LAST_BUSY_S)
        if acks != ACKS_ALL or self._is_committed(pending):
            return 0.0
        if led.waits_for_joining:
            # The replica that was about to join may have died; only the thread with the clock can tell.
            self.on_in_sync_news()
            return _JOINING_CHECK_S
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

    def _advance_high_watermark(self, extent: LogExtent | None = None, busy_s: float = -1) -> int:
        """Returns the high watermark. ``extent``: of the log, as it is now. Raises `RequestTimedOutError` where another
        thread has the log for longer than ``busy_s`` (-1: waits); then it remains to be done."""
        extent = self.log.extent(busy_s) if extent is None else extent
        led, before = self._led, extent.high_watermark
        if led is None:
            return before
        self._is_settled = True
        if before >= extent.durable_end:  # nothing could move it
            return before
        after = led.advanced(before, extent.durable_end, min_in_sync=self._min_in_sync)
        if led.has_some_to_rule_out(self._min_in_sync) and not self.log.is_damaged:
            self.on_in_sync_news()
        if after > before:
            try:
                after = self.log.set_high_watermark(after, busy_s)
            except RequestTimedOutError:
                self._is_settled = False
                raise
            for waiter in self._waiters:
                waiter.set()
        return after

    def _unsettle(self) -> None:
        """The high watermark may advance: the next use computes it, and all waiters are woken so that there is one."""
        self._is_settled = False
        self._announce()

    def _announce(self) -> None:
        for waiter in (*self._waiters, *self._append_waiters):
            waiter.set()
        self.log.wake_flushes()


def _nobody() -> None:
    """Nobody listens."""
