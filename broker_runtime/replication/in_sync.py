"""Which replicas of a partition are in sync, as its leader knows: a pure machine, one per leader epoch.

Kafka's rules (`Partition.scala`, KIP-497, KIP-966):

- The high watermark is the minimum of the reported log ends over the maximal in-sync set (the one in ZooKeeper, and all
  that it may have become while a change is under way), the leader included. A follower counts with what it reported
  under its newest broker epoch in this leader epoch. One that has reported nothing keeps the high watermark where it
  is.
- It does not advance while replicas that are not in sync have everything committed (`Leadership.eligible`): their logs
  may still be needed. This leader rules them out once its log is in use and sound, and enough replicas are in sync.
- It also waits for a replica that is close behind and about to join, for `JOIN_WAIT_MS` after its last fetch. Under
  steady appends the replica could never join otherwise.
- A replica joins when it holds everything below the high watermark, has reached the epoch's start, and has deleted what
  the leader has deleted. It leaves when it has not reached the log's end for the lag limit; at once, if it reports that
  it holds less than is committed (it lost records).
- One change is under way at a time, by compare-and-set. A change of unknown outcome counts as possible until a newer
  state is known.

Rule: no clock, no lock, no log: everything comes as arguments. Times are ms of one clock, which need not be the wall's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker_runtime.contract.errors import NotLeaderOrFollowerError, StaleBrokerEpochError
from broker_runtime.log import LogExtent, LogSlice
from broker_runtime.replication.leadership import Leadership

JOIN_WAIT_MS: Final = 3_000
RETRY_MS: Final = 1_000
"""Pause after a change that was refused or whose outcome is unknown, unless a newer state becomes known first."""
_UNKNOWN_END: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncChange:
    """An in-sync set to be written over the state at ``version``, if ``joining`` are still in these broker epochs."""

    topic: str
    partition: int
    leader_epoch: int
    version: int
    in_sync: tuple[int, ...]  # the leader included; in the order of the assignment
    eligible: tuple[int, ...] = ()  # see `Leadership`
    joining: Mapping[int, int]  # broker id → broker epoch that its fetches carried


class LogMarks(NamedTuple):
    """How far the leader's log goes. ``epoch_start``: where its records of the current epoch begin, or will begin."""

    epoch_start: int
    high_watermark: int
    log_end: int
    log_start: int = 0

    @classmethod
    def of(cls, extent: LogExtent, leader_epoch: int) -> LogMarks:
        """Of a log that is led in ``leader_epoch``."""
        epochs = extent.leader_epochs
        is_begun = bool(epochs) and epochs[-1][0] == leader_epoch
        epoch_start = epochs[-1][1] if is_begun else extent.log_end
        return cls(epoch_start, extent.high_watermark, extent.log_end, extent.log_start)


@dataclass(slots=True, kw_only=True)
class _Follower:
    """What a replica reported in this leader epoch under ``broker_epoch``."""

    broker_epoch: int
    last_caught_up_ms: int
    end: int = _UNKNOWN_END
    log_start: int = -1
    last_fetch_ms: int = 0
    log_end_then: int = -1  # the leader's, at the last fetch; -1: there was none
    is_close: bool = False  # it has reached the leader's end, as it was at the previous fetch or is now
    short_fetches: int = 0  # how many fetches in a row reported less than is committed
    is_lost: bool = False  # Invariant: short_fetches > 0
    is_gone: bool = False  # never joins under this broker epoch


class InSyncSet:
    """See the module. Not thread-safe: the partition's lock guards it."""

    def __init__(
        self, leadership: Leadership, *, topic: str, partition: int, broker_id: int, now_ms: int | None = None
    ) -> None:
        """``broker_id`` leads since ``now_ms``; None: since the first time that it is passed."""
        self.leader_epoch = leadership.leader_epoch  # never changes
        self.leadership = leadership  # the newest one known: read from ZooKeeper, or written since
        self._topic = topic
        self._partition = partition
        self._broker_id = broker_id
        self._began_ms = now_ms
        self._now_ms = 0 if now_ms is None else now_ms  # the newest time passed
        self._followers: dict[int, _Follower] = {}
        self._proposed: InSyncChange | None = None
        self._unknown: list[InSyncChange] = []  # Invariant: all at leadership.version
        self._not_before_ms = 0

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def maximal(self) -> frozenset[int]:
        """All replicas that may be in the in-sync set."""
        return frozenset().union(*self._possible())

    @property
    def certain_count(self) -> int:
        """How many replicas are in the in-sync set at least."""
        return min(len(possible) for possible in self._possible())

    @property
    def waits_for_joining(self) -> bool:
        """Whether the high watermark waits for a replica that is not in the in-sync set yet."""
        return bool(self._joining_soon())

    def advanced(self, high_watermark: int, own_end: int, *, min_in_sync: int) -> int:
        """The high watermark after what is known now. ``own_end``: up to where the leader's log counts as durable."""
        if self.certain_count < min_in_sync or self.leadership.eligible:
            return high_watermark
        ends = {broker_id: each.end for broker_id, each in self._followers.items() if each.end != _UNKNOWN_END}
        ends[self._broker_id] = own_end
        return advanced_high_watermark(high_watermark, ends, self.maximal | self._joining_soon())

    def counts(self, fetch: FollowerFetch) -> bool:
        """Whether the follower may be in the in-sync set."""
        return fetch.broker_id in self.maximal

    def reported_ends(self) -> dict[int, int]:
        """Broker id → the offset up to which it holds the log, for all replicas but the leader's; -1: not reported."""
        others = [each for each in self.leadership.replicas if each != self._broker_id]
        known = self._followers
        return {each: known[each].end if each in known else _UNKNOWN_END for each in others}

    def has_deleted(self, offset: int) -> bool:
        """Whether all followers that are, or may be, in sync or eligible have reported a log start of ``offset`` or
        above."""
        known = self._followers
        others = (self.maximal | self.leadership.eligible) - {self._broker_id}
        return all(each in known and known[each].log_start >= offset for each in others)

    # --- what followers report ------------------------------------------------------------------------------------

    def require_replica(self, broker_id: int, broker_epoch: int) -> None:
        """Raises `NotLeaderOrFollowerError` for a broker that has no replica, `StaleBrokerEpochError` for one that has
        registered again since."""
        if broker_id not in self.leadership.replicas and broker_id not in self.maximal:
            raise NotLeaderOrFollowerError(
                f"{self._topic}-{self._partition} has its replicas on {list(self.leadership.replicas)}, "
                f"none on broker {broker_id}"
            )
        known = self._followers.get(broker_id)
        if known is not None and broker_epoch < known.broker_epoch:
            raise StaleBrokerEpochError(
                f"broker {broker_id} fetched {self._topic}-{self._partition} in its registration {known.broker_epoch}, "
                f"{broker_epoch} is an earlier one"
            )

    def reported_unusable_end(self, fetch: FollowerFetch, now_ms: int) -> None:
        """A follower's log diverges from the leader's or ends below its start, so its end proves nothing."""
        known = self._entry(fetch, now_ms)
        known.end = _UNKNOWN_END
        known.is_close = False

    def reported(self, fetch: FollowerFetch, marks: LogMarks, now_ms: int) -> bool:
        """A follower, whose log is a prefix of the leader's, reported up to where it holds it. Returns whether its log
        begins later than it reported before.

        A lower end than before counts, because it is the newest report; a high watermark does not go back for it.
        """
        known = self._entry(fetch, now_ms)
        end = min(fetch.offset, fetch.durable_end) if fetch.durable_end >= 0 else _UNKNOWN_END
        is_first = known.end == _UNKNOWN_END
        has_deleted, known.log_start = fetch.log_start > known.log_start, fetch.log_start
        known.end = end
        known.is_close = end >= marks.log_end or 0 <= known.log_end_then <= end
        if end >= marks.log_end:
            known.last_caught_up_ms = max(known.last_caught_up_ms, now_ms)
        elif known.is_close:
            known.last_caught_up_ms = max(known.last_caught_up_ms, known.last_fetch_ms)
        known.last_fetch_ms, known.log_end_then = now_ms, marks.log_end
        known.short_fetches = known.short_fetches + 1 if end < marks.high_watermark else 0
        # A fetch that was delayed may report an old end once; the next one then reports the newer.
        known.is_lost = known.short_fetches > (0 if is_first else 1)
        return has_deleted

    # --- changes --------------------------------------------------------------------------------------------------

    def wants_change_of(self, broker_id: int, marks: LogMarks) -> bool:
        """Whether `propose` would propose a change because of what that replica has just reported."""
        if self._is_held_back:
            return False
        if broker_id in self.leadership.in_sync:
            return self._followers[broker_id].is_lost or bool(self._unknown)
        return broker_id in self.leadership.replicas and self._may_join(broker_id, marks)

    def has_some_to_rule_out(self, min_in_sync: int) -> bool:
        """Whether the high watermark is held only by eligible replicas, and `propose` would end that."""
        return bool(self.leadership.eligible) and self.certain_count >= min_in_sync and not self._is_held_back

    def propose(
        self, marks: LogMarks | None, now_ms: int, lag_limit_ms: int, *, min_in_sync: int | None
    ) -> InSyncChange | None:
        """The change to be written now, which counts as under way from now on; None: nothing is to be changed.

        ``marks`` None: the log was not used yet, so no follower has ever fetched from it. ``min_in_sync``:
        ``min.insync.replicas``; None: it is not known whether this leader's log is sound, so no replica is ruled out.
        """
        self._advance_clock(now_ms)
        marks = marks if marks is not None else LogMarks(0, 0, 0)
        wanted = self._wanted(marks, lag_limit_ms)
        eligible = self._eligible(wanted, min_in_sync)
        is_news = (wanted, eligible) != (self.leadership.in_sync, self.leadership.eligible)
        if self._is_held_back or not (is_news or self._unknown):
            return None
        replicas = self.leadership.replicas
        self._proposed = InSyncChange(
            topic=self._topic,
            partition=self._partition,
            leader_epoch=self.leader_epoch,
            version=self.leadership.version,
            in_sync=(*(each for each in replicas if each in wanted), *sorted(wanted - set(replicas))),
            eligible=tuple(sorted(eligible)),
            joining={each: self._followers[each].broker_epoch for each in sorted(wanted - self.leadership.in_sync)},
        )
        return self._proposed

    def written(self, change: InSyncChange, version: int) -> bool:
        """The change is in ZooKeeper. Returns whether that changes what was known."""
        if self._is_over(change) or version <= self.leadership.version:
            return False
        self._left(self.leadership.in_sync - set(change.in_sync))
        self.leadership = replace(
            self.leadership, in_sync=frozenset(change.in_sync), eligible=frozenset(change.eligible), version=version
        )
        self._proposed = None
        self._unknown.clear()
        return True

    def refused(self, change: InSyncChange, *, gone: Collection[int] = ()) -> None:
        """The change was not written and never will be: the state is newer, or a joining broker has registered again.

        ``gone``: the joining brokers that are dead or stopping. They never join in that registration, and are no longer
        waited for. Like every report about a change, this one is about that very object: an equal change that was
        proposed before may have been written all the same.
        """
        for broker_id in gone:
            known = self._followers.get(broker_id)
            if known is not None and known.broker_epoch == change.joining.get(broker_id):
                known.is_gone = True
        self._settle(change)

    def outcome_unknown(self, change: InSyncChange) -> None:
        """Whether the change was written is not known: both outcomes count as possible until a newer state is known."""
        if not self._is_over(change):
            self._settle(change)
            self._unknown.append(change)

    def heard(self, leadership: Leadership) -> bool:
        """The state of the same leader epoch, as read from ZooKeeper. Returns False if a newer one is known."""
        assert leadership.leader_epoch == self.leader_epoch
        if leadership.version < self.leadership.version:
            return False
        is_newer = leadership.version > self.leadership.version
        before, self.leadership = self.leadership, leadership
        if is_newer or leadership.in_sync != before.in_sync:
            self._left(before.in_sync - leadership.in_sync)
        # A broker that is no longer a replica removes its log: if it becomes one again, its old reports must not count.
        self._left(self._followers.keys() - set(leadership.replicas))
        if is_newer:
            self._proposed = None
            self._unknown.clear()
            self._not_before_ms = self._now_ms  # refused and open changes were about an older state
        return True

    def begin_again(self, now_ms: int | None) -> None:
        """The same epoch is led again after a pause: what followers reported before it no longer counts."""
        self._began_ms = now_ms
        self._followers.clear()

    # --- private --------------------------------------------------------------------------------------------------

    @property
    def _is_held_back(self) -> bool:
        return self._proposed is not None or self._now_ms < self._not_before_ms

    def _possible(self) -> list[frozenset[int]]:
        if self._proposed is None and not self._unknown:
            return [self.leadership.in_sync]
        changes = [*self._unknown, self._proposed] if self._proposed is not None else self._unknown
        return [self.leadership.in_sync, *(frozenset(change.in_sync) for change in changes)]

    def _joining_soon(self) -> frozenset[int]:
        if not self._followers:
            return frozenset()
        maximal = self.maximal
        return frozenset(
            broker_id
            for broker_id, each in self._followers.items()
            if each.is_close
            and not each.is_gone
            and broker_id in self.leadership.replicas
            and broker_id not in maximal
            and self._now_ms - each.last_fetch_ms <= JOIN_WAIT_MS
        )

    def _wanted(self, marks: LogMarks, lag_limit_ms: int) -> frozenset[int]:
        known = self.leadership.in_sync
        stay = {each for each in known if each == self._broker_id or not self._must_leave(each, marks, lag_limit_ms)}
        join = {each for each in self.leadership.replicas if each not in known and self._may_join(each, marks)}
        return frozenset({self._broker_id} | stay | join)

    def _eligible(self, wanted: frozenset[int], min_in_sync: int | None) -> frozenset[int]:
        """The `Leadership.eligible` replicas with ``wanted`` in sync: none if these are enough to commit anything; else
        those that were eligible, and those that leave now, except any that seem to have lost records."""
        if min_in_sync is not None and len(wanted) >= min_in_sync:
            return frozenset()
        leave = self.leadership.in_sync - wanted
        short = {broker_id for broker_id, each in self._followers.items() if each.short_fetches}
        return (self.leadership.eligible | leave) - short - wanted

    def _must_leave(self, broker_id: int, marks: LogMarks, lag_limit_ms: int) -> bool:
        known = self._followers.get(broker_id)
        if known is not None and known.is_lost:
            return True
        if known is not None and known.end >= marks.log_end:
            return False
        began_ms = self._began_ms if self._began_ms is not None else self._now_ms
        caught_up_ms = began_ms if known is None else known.last_caught_up_ms
        return self._now_ms - caught_up_ms > lag_limit_ms

    def _may_join(self, broker_id: int, marks: LogMarks) -> bool:
        known = self._followers.get(broker_id)
        return (
            known is not None
            and not known.is_gone
            and known.end >= max(marks.high_watermark, marks.epoch_start)
            # Otherwise deleted records could be read again if that replica became the leader.
            and not 0 <= known.log_start < marks.log_start
            and self._now_ms - known.last_fetch_ms <= JOIN_WAIT_MS
        )

    def _entry(self, fetch: FollowerFetch, now_ms: int) -> _Follower:
        """The follower's entry; a new one under a new broker epoch. Call `require_replica` before."""
        self._advance_clock(now_ms)
        known = self._followers.get(fetch.broker_id)
        if known is None or fetch.broker_epoch > known.broker_epoch:
            assert self._began_ms is not None
            caught_up_ms = self._began_ms if known is None else known.last_caught_up_ms
            known = _Follower(broker_epoch=fetch.broker_epoch, last_caught_up_ms=caught_up_ms)
            self._followers[fetch.broker_id] = known
        return known

    def _advance_clock(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        if self._began_ms is None:
            self._began_ms = now_ms

    def _is_over(self, change: InSyncChange) -> bool:
        return change is not self._proposed and not any(change is each for each in self._unknown)

    def _settle(self, change: InSyncChange) -> None:
        if change is self._proposed:
            self._proposed = None
            self._not_before_ms = self._now_ms + RETRY_MS
        self._unknown = [each for each in self._unknown if each is not change]

    def _left(self, gone: Collection[int]) -> None:
        """Replicas that left may be dead: they count, and may join again, only after another fetch."""
        for broker_id in gone:
            known = self._followers.get(broker_id)
            if known is not None:
                known.is_close, known.log_end_then, known.end = False, -1, _UNKNOWN_END


def advanced_high_watermark(current: int, replicated_ends: Mapping[int, int], in_sync: Collection[int]) -> int:
    """The high watermark after what is now known; ``current`` where nothing lets it advance.

    ``replicated_ends``: broker id → the offset up to which that replica holds the log (its durable end under
    ``flush.mode=ack``, else its log end), the leader included. A replica of ``in_sync`` without a reported end keeps
    the high watermark where it is. (``min.insync.replicas`` is `InSyncSet.advanced`'s matter.)

    Kafka's rule (`Partition.maybeIncrementLeaderHW`), over durable ends instead of log ends where ``flush.mode=ack``:
    the high watermark is the minimum over the maximal in-sync set, and never goes back within one leadership.
    """
    ends = [replicated_ends[broker_id] for broker_id in in_sync if broker_id in replicated_ends]
    if not ends or len(ends) < len(in_sync):
        return current
    return max(current, min(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerFetch:
    """What a follower reports about its log. It asks for everything from ``offset`` on."""

    broker_id: int
    broker_epoch: int  # of the follower's registration
    offset: int  # its log's end
    durable_end: int  # ≤ offset; everything below counts as durable there, as ``flush.mode`` says
    leader_epoch: int  # in which it follows
    last_fetched_epoch: int  # of its last record; -1: it has none
    log_start: int = -1  # of its log; -1: not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAnswer:
    """The leader's answer to a follower's fetch. The caller closes ``found``.

    ``diverging``: (epoch, end) if the follower has records that the leader lacks. The epoch is the largest one that the
    leader knows up to the follower's last; the end is where it ended. Then ``found`` is None.
    """

    found: LogSlice | None
    high_watermark: int
    log_start: int
    log_end: int
    leader_epoch: int
    diverging: tuple[int, int] | None = None
