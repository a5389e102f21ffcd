"""One replica hosted by this broker: its role, its leader epoch, and how far it is committed.

What a leader does with it is in partition.py, what a follower does in follower.py; here is what both stand on.

Rule: a role is told, never taken. It changes under the replica's lock, and so does all that only one role may do: who
holds the lock knows that the role is still the same. An older epoch, or an older state of the same epoch, changes
nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from broker_runtime.contract.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    PylogError,
    RequestTimedOutError,
    UnknownLeaderEpochError,
)
from broker_runtime.log import LogExtent, PartitionLog
from broker_runtime.replication.in_sync import InSyncChange, InSyncSet, LogMarks
from broker_runtime.replication.leadership import Leadership, Role
from broker_runtime.replication.role_lock import RoleLock

_LONG_BUSY_S: Final = 1.0
BUSY_S: Final = 0.05  # that who looks after many partitions waits for one of them
_log = logging.getLogger(__name__)


class HostedReplica:
    """See the module. Thread-safe. Created without a role: it is told one."""

    def __init__(self, log: PartitionLog, *, broker_id: int, min_in_sync_replicas: int = 1) -> None:
        self.topic = log.topic
        self.partition = log.partition
        self.topic_id = log.topic_id.bytes
        self.log = log
        # Rung when an in-sync set can be changed, by any thread and with the lock held: it must not block or call back.
        self.on_in_sync_news: Callable[[], None] = _nobody
        self._broker_id = broker_id
        self._min_in_sync = min_in_sync_replicas
        self._lock = RoleLock()
        self._role = Role.NONE
        self._known_epoch = -1
        self._told: Leadership | None = None  # the newest
        self._led: InSyncSet | None = None  # None: not the leader
        self._led_last: InSyncSet | None = None  # what may still be written of an epoch's in-sync set outlives the role
        self._is_settled = False  # whether the high watermark was looked at in this leadership; loads the log
        # Ordered sets: who is woken in which order depends on nothing but what happened.
        self._waiters: dict[FetchWaiter, None] = {}
        self._append_waiters: dict[FetchWaiter, None] = {}

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

    # --- role: these never wait for the lock, whose holder may wait for a disk (see `RoleLock`) ---

    def become_leader(self, leadership: Leadership, now_ms: int | None = None) -> None:
        """Leads in ``leadership``'s epoch from now on, or learns the newer state of the same epoch; older news of it
        change nothing.

        In a new epoch every follower has the lag limit from ``now_ms`` on to catch up (the clock of `follower_fetch`
        and `propose_in_sync`; None: from the first time one of them tells). Does not touch the log: the first use does,
        so that a broker with many partitions is ready at once. A new epoch is written into the log's epoch checkpoint
        with the first append. Raises `FencedLeaderEpochError` if a newer epoch is known here already.
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

        Raises `FencedLeaderEpochError` if a newer epoch is known here already.
        """

        def change() -> None:
            self._learn(leadership)
            self._role, self._led = Role.FOLLOWER, None
            self._announce()

        self._lock.carry_out(change)

    def step_down(self) -> None:
        """Ends any role: appends are refused, and whoever waits here is told `NotLeaderOrFollowerError`."""

        def change() -> None:
            self._role, self._led = Role.NONE, None
            self._announce()

        self._lock.carry_out(change)

    @property
    def role(self) -> Role:
        """What this replica does at present."""
        return self._role

    @property
    def is_leader(self) -> bool:
        """Whether it leads at present."""
        return self._led is not None

    @property
    def leader_epoch(self) -> int:
        """The newest epoch known here; -1 before the first."""
        return self._known_epoch

    @property
    def leadership(self) -> Leadership | None:
        """The newest state known here: what was told last, or written since by this leader. None before the first."""
        led = self._led
        return self._told if led is None else led.leadership

    def require_leader(self, leader_epoch: int = -1) -> int:
        """The current epoch, for requests made in ``leader_epoch`` (-1: the client does not know it).

        Raises `NotLeaderOrFollowerError`, `FencedLeaderEpochError` (the request is older) or
        `UnknownLeaderEpochError` (it is newer than this broker knows).
        """
        return self._require_led(leader_epoch).leader_epoch

    def require_room(self) -> None:
        """Raises `LogStorageError` if nothing is to be appended at present; a subclass knows the disk."""

    def require_answers(self) -> None:
        """Raises `LogStorageError` if the disk below stands still; a subclass knows the disk."""

    @property
    def is_fit_to_lead(self) -> bool:
        """Whether this replica can do what a leader does: its log is online, and its disk takes records. (A damaged log
        is another matter, see `refusal`.) Never waits."""
        return not self.log.is_offline

    def refusal(self, error: PylogError) -> PylogError:
        """What a client that met ``error`` here is told: where the log is damaged and others have it too, to look for
        the next leader."""
        leadership = self.leadership
        others = 0 if leadership is None else len(leadership.in_sync | leadership.eligible) - 1
        if not (isinstance(error, CorruptRecordError) and self.log.is_damaged and others > 0):
            return error
        return NotLeaderOrFollowerError(
            f"{self} is damaged on broker {self._broker_id}, which gives it up to another: {error.message}"
        )

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """What is raised inside goes on as its `refusal`."""
        try:
            yield
        except CorruptRecordError as error:
            raise self.refusal(error) from None

    def note_durable(self) -> None:
        """More of the log became durable otherwise than by `complete`: the high watermark may advance."""
        with self._lock:
            if self.log.is_loaded and not self.log.is_offline:
                self._advance_high_watermark()

    # --- the in-sync set ---

    @property
    def in_sync(self) -> frozenset[int]:
        """The in-sync replicas as far as is known here; empty before the first news."""
        leadership = self.leadership
        return frozenset() if leadership is None else leadership.in_sync

    @property
    def eligible(self) -> frozenset[int]:
        """The replicas that are `Leadership.eligible` as far as is known here."""
        leadership = self.leadership
        return frozenset() if leadership is None else leadership.eligible

    def replica_ends(self) -> dict[int, int]:
        """Up to where each replica holds the log, as it told this leader, itself included; -1: it has not told.

        Raises `NotLeaderOrFollowerError`, and as the log; `RequestTimedOutError` where the partition is busy for long.
        """
        with self._lock.within(_LONG_BUSY_S):
            return {**self._require_led().told_ends(), self._broker_id: self.log.durable_end_offset}

    def propose_in_sync(self, now_ms: int, lag_limit_ms: int, *, busy_s: float = BUSY_S) -> InSyncChange | None:
        """The change of the in-sync set that is to be written now; None: nothing to change, or no leader here.

        It counts as under way until one of the three below is called with that very object, or the partition is told a
        newer state. Does not load the log. Raises `RequestTimedOutError` where somebody else has the partition or its
        log for longer than ``busy_s``: its disk may stand still, or not, and it is to be looked at again soon.
        """
        with self._lock.within(busy_s):
            if self._led is None or self.log.is_offline:
                return None
            try:
                marks = marks_of(self.log.extent(busy_s), self._led.leader_epoch) if self.log.is_loaded else None
            except RequestTimedOutError:
                raise
            except PylogError as error:  # the log went offline
                _log.warning("propose in_sync topic=%s partition=%d error=%s", self.topic, self.partition, error)
                return None
            is_sound = self.log.is_loaded and not self.log.is_damaged
            least = self._min_in_sync if is_sound else None
            change = self._led.propose(marks, now_ms, lag_limit_ms, min_in_sync=least)
            self._unsettle()  # who was waited for may have been given up
            return change

    def in_sync_written(self, change: InSyncChange, version: int) -> None:
        """The change is in ZooKeeper, which gave the state ``version``. Raises nothing, and does not wait."""

        def take() -> None:
            led = self._led_last
            if led is None or led.leader_epoch != change.leader_epoch or not led.written(change, version):
                return
            _log.info(
                "change in_sync topic=%s partition=%d leader_epoch=%d version=%d in_sync=%s",
                self.topic, self.partition, change.leader_epoch, version, list(change.in_sync),
            )  # fmt: skip
            self._unsettle()

        self._lock.carry_out(take)

    def in_sync_refused(self, change: InSyncChange, *, gone: Collection[int] = ()) -> None:
        """The change was not written, and it is certain that it never will be. Another is proposed after a while, from
        the state as it was told until then. ``gone``: see `InSyncSet.refused`. Does not wait."""

        def take() -> None:
            if self._led_last is not None and self._led_last.leader_epoch == change.leader_epoch:
                self._led_last.refused(change, gone=gone)
                self._unsettle()

        self._lock.carry_out(take)

    def in_sync_unknown(self, change: InSyncChange) -> None:
        """Whether the change was or will be written is not known. Both outcomes count as possible until the partition
        is told a newer state, another change was written over the same version, or it is said after all. Does not
        wait."""

        def take() -> None:
            if self._led_last is not None and self._led_last.leader_epoch == change.leader_epoch:
                self._led_last.outcome_unknown(change)

        self._lock.carry_out(take)

    # --- following another ---

    @contextmanager
    def following(self, leader_epoch: int) -> Iterator[PartitionLog]:
        """The log, for what a follower in ``leader_epoch`` does to it; the role does not change inside.

        Inside nobody else gets on with this partition: append, truncate, set marks, and flush outside. Raises
        `NotLeaderOrFollowerError`, `FencedLeaderEpochError` or `UnknownLeaderEpochError` unless that is the role,
        `CorruptRecordError` for a damaged log: what it would tell its leader counts for nothing.
        """
        with self._lock:
            self._require_epoch(leader_epoch)
            if self._role is not Role.FOLLOWER:
                raise NotLeaderOrFollowerError(f"{self} does not follow on broker {self._broker_id}")
            if self.log.is_damaged:
                raise CorruptRecordError(f"{self} is damaged on broker {self._broker_id}, and follows nobody")
            yield self.log

    @property
    def is_in_sync(self) -> bool:
        """Whether this broker is in the partition's in-sync set, as far as it was told."""
        return self._broker_id in self.in_sync

    # --- who waits ---

    def add_waiter(self, waiter: FetchWaiter, *, at_append: bool = False) -> None:
        """From now on the waiter is woken when the log goes offline or the role ends, and when the high watermark
        advances or, with ``at_append``, when something is appended (a follower's). Does not wait: where somebody else
        has the partition, it is woken when that one lets go."""
        waiters, own_thread = self._append_waiters if at_append else self._waiters, threading.get_ident()

        def add() -> None:
            waiters[waiter] = None
            if threading.get_ident() != own_thread:
                waiter.wake()

        self._lock.carry_out(add)

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        """The waiter is not woken by this partition any more, or once more where somebody else has it. Removing it
        twice is fine. Does not wait."""

        def remove() -> None:
            self._waiters.pop(waiter, None)
            self._append_waiters.pop(waiter, None)

        self._lock.carry_out(remove)

    def announce(self) -> None:
        """Wakes all who wait here, so that they look again (the log went offline, records were deleted)."""
        self._lock.carry_out(self._announce)

    # --- private; the lock is held ---

    def _learn(self, leadership: Leadership) -> None:
        if leadership.leader_epoch < self._known_epoch:
            raise FencedLeaderEpochError(
                f"{self}: told of leader epoch {leadership.leader_epoch}, already in {self._known_epoch}"
            )
        is_new_epoch = leadership.leader_epoch > self._known_epoch
        self._known_epoch = leadership.leader_epoch
        if is_new_epoch or self._told is None or leadership.version >= self._told.version:
            self._told = leadership

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

    def _advance_high_watermark(self, extent: LogExtent | None = None, busy_s: float = -1) -> int:
        """Returns the high watermark. ``extent``: of the log, as it is now. Raises `RequestTimedOutError` where
        somebody else has the log for longer than ``busy_s`` (-1: waits); then it is to be looked at again."""
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
                waiter.wake()
        return after

    def _unsettle(self) -> None:
        """The high watermark may advance: whoever looks next sees to it, and all who wait look."""
        self._is_settled = False
        self._announce()

    def _announce(self) -> None:
        for waiter in (*self._waiters, *self._append_waiters):
            waiter.wake()
        self.log.wake_flushes()


def marks_of(extent: LogExtent, leader_epoch: int) -> LogMarks:
    """Of a log that is led in ``leader_epoch``."""
    epochs = extent.leader_epochs
    is_begun = bool(epochs) and epochs[-1][0] == leader_epoch
    epoch_start = epochs[-1][1] if is_begun else extent.log_end
    return LogMarks(epoch_start, extent.high_watermark, extent.log_end, extent.log_start)


def _nobody() -> None:
    """Nobody waits for news."""


class FetchWaiter:
    """One waiting thread's bell. `wake` may be called by any thread, under any lock; it never blocks for long.

    A thread that waits until one of several partitions has news: committed records, an error, the end of its hosting.

    Rule: a waiter only says *that* something moved; its owner looks again. So the owner's loop is always:
    `add_waiter`, look, `wait`, look …, `remove_waiter`. Looking after adding means that no wake-up is lost; looking
    again after each wake means that one too many does no harm.
    """

    __slots__ = ("_bell",)

    def __init__(self) -> None:
        self._bell = threading.Event()

    def wake(self) -> None:
        """Ends the present or the next `wait`. Several wakes before a wait are one."""
        self._bell.set()

    def wait(self, timeout_s: float) -> bool:
        """Blocks until woken or ``timeout_s`` has passed. True: woken, and the bell is silent again."""
        rung = self._bell.wait(max(0.0, timeout_s))
        if rung:
            self._bell.clear()
        return rung
