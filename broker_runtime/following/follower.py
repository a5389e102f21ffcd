"""A broker as the follower of another: what it asks its leader for, and what it does with the answers.

    next_request → (the network) → handle → next_request → …        failed, when the connection broke

There is one request at a time, for all partitions followed there. It reports where each log ends and how much of that
is durable: `handle` appends what came for all partitions, then makes it durable, so the next request reports it. (Where
the replica is far behind, the disk is given the time until the next answer: `flush_while_asking`.) In a session
(`begin_session`) the leader remembers what was reported, and a request has only what is new: the cost of an exchange is
that of what happened, not of how many partitions there are. A request without room for all that is new (`MOST_ENTRIES`)
does not wait for data: the next one reports the rest.

Rule: an answer counts only if it answers the request that is out, for a partition that is still followed in the same
leader epoch and whose log still ends where it was last reported to end. So answers that come twice, late or never do no
harm. A partition with which something goes wrong waits, and no other does.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa

from broker_runtime.contract.errors import (
    BrokerOverloadedError,
    CorruptRecordError,
    LogStorageError,
    OffsetOutOfRangeError,
    PylogError,
    error_from_code,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import MOST_ENTRIES
from broker_runtime.contract.streams import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker_runtime.contract.waiting import Backoff
from broker_runtime.following.follower_log import (
    LogPosition,
    adopt_marks,
    cut_to_common_part,
    position_of,
    restart_at_leader,
)
from broker_runtime.log import PartitionLog
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.rates import RateLimit
from broker_runtime.replication.leadership import Leadership
from broker_runtime.replication.partition import Partition

FIRST_RETRY_MS: Final = 50
LONGEST_RETRY_MS: Final = 1_000
_LONGEST_FLUSH_OF_ANOTHER_S: Final = 1.0
_NEVER_MS: Final = 1 << 62
_LOADS_PER_REQUEST: Final = 8  # loading and recovering logs holds up the others only a little
_logger = logging.getLogger(__name__)

REPORT_AGAIN_MS: Final = 2_000
_SMALLEST_SHARE: Final = 16

_Request = TypeVar("_Request")


@dataclass(slots=True, eq=False)
class _Followed:
    """One partition followed in one leader epoch. With a new epoch or another log it is another object."""

    replica: Partition
    leader_epoch: int
    backoff: Backoff
    retry_at_ms: int = 0
    is_failing: bool = False  # the last try failed
    lacks_room: bool = False  # what the leader has did not fit on the disk: not asked for until there is room

    def fails(self, now_ms: int) -> None:
        """It is left alone for a while, or for good if its log is offline."""
        self.is_failing = True
        self.retry_at_ms = _NEVER_MS if self.replica.log.is_offline else now_ms + _next_ms(self.backoff)

    def succeeds(self) -> None:
        self.is_failing, self.retry_at_ms = False, 0
        self.backoff.reset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What was reported to the leader of a partition."""

    followed: _Followed
    position: LogPosition


class FollowerFetcher:
    """All that this broker follows of one leader. `next_request`, `handle` and `failed` are called by one thread, the
    others by any. Blocks on the disk, never on the network."""

    def __init__(
        self,
        broker_id: int,
        leader_id: int,
        *,
        max_bytes: int,
        partition_max_bytes: int,
        max_wait_ms: int,
        throttle: RateLimit | None = None,
        meters: Meters = NO_METERS,
        rng: random.Random | None = None,
    ) -> None:
        """``max_bytes`` of one answer, ``partition_max_bytes`` (``replica.fetch.max.bytes``) of one partition in it;
        either may be exceeded by a single larger frame. ``max_wait_ms``: ``replica.fetch.wait.max.ms``. ``rng``: of
        the pauses between tries."""
        self.broker_id = broker_id
        self.leader_id = leader_id
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._max_wait_ms = max_wait_ms
        self._throttle = throttle
        self._meters = meters
        self._rng = rng
        self._lock = threading.Lock()
        self._followed: dict[TopicPartition, _Followed] = {}
        self._request_id = 0
        self._asked: dict[TopicPartition, _Asked] | None = None  # of the request that is out; None: none is
        self._session: ReportedPartitions[_Asked] | None = None  # None: each request reports everything
        # Dicts as ordered sets: the order of work depends only on what happened.
        self._waiting: dict[TopicPartition, None] = {}  # in a session: what is left out for a while
        self._touched: dict[TopicPartition, None] = {}  # follow and unfollow were called since the last request
        self._unflushed: dict[TopicPartition, _Followed] = {}  # what the last answer gave them is not durable yet
        self._backoff = self._new_backoff()  # of the connection
        self._is_failing = False  # the last try of the connection failed
        self._retry_at_ms = 0

    # --- what is followed -----------------------------------------------------------------------------------------

    def follow(self, replica: Partition, leader_epoch: int) -> None:
        """Fetch the partition in this epoch from now on. Called again: what failed with it is tried again at once."""
        at = TopicPartition(replica.topic, replica.partition)
        with self._lock:
            known = self._followed.get(at)
            if known is None or known.replica is not replica or known.leader_epoch != leader_epoch:
                self._followed[at] = _Followed(replica, leader_epoch, self._new_backoff())
            else:
                known.succeeds()
            self._touched[at] = None

    def unfollow(self, at: TopicPartition) -> None:
        """Stop fetching it; an answer that is on its way changes nothing. Does nothing if it is not followed."""
        with self._lock:
            self._followed.pop(at, None)
            self._touched[at] = None

    def is_asked_for(self, at: TopicPartition, leader_epoch: int) -> bool:
        """Whether the leader also answers the request that is out when it has something for this partition."""
        asked, session = self._asked, self._session
        if asked is None:
            return False
        known = asked.get(at) if session is None else session.get(at)
        return known is not None and known.followed.leader_epoch == leader_epoch

    @property
    def is_idle(self) -> bool:
        """Whether nothing is followed."""
        return not self._followed

    @property
    def partitions(self) -> list[TopicPartition]:
        """What is followed, in order."""
        with self._lock:
            return sorted(self._followed)

    def pause_ms(self, now_ms: int) -> int:
        """How long `next_request` will have nothing to ask for, unless something else is followed meanwhile; 0: it has
        something now."""
        with self._lock:
            retries = [each.retry_at_ms for each in self._followed.values()]
        due_ms = max(self._retry_at_ms, min(retries, default=_NEVER_MS))
        held_ms = self._throttle.wait_ms(now_ms) if self._throttle is not None else 0
        if held_ms and not any(each.replica.is_in_sync for each in list(self._followed.values())):
            due_ms = max(due_ms, now_ms + held_ms)
        return max(0, min(due_ms - now_ms, LONGEST_RETRY_MS))

    # --- one exchange after the other -----------------------------------------------------------------------------

    def begin_session(self) -> None:
        """From now on the leader remembers what is reported to it, until `failed` or the next call of this: the
        connection is new, and its first request reports everything."""
        self._session = ReportedPartitions()
        self._waiting.clear()
        with self._lock:
            self._session.unreported.update(dict.fromkeys(self._followed))

    def next_request(
        self, broker_epoch: int, now_ms: int, *, longest_wait_ms: int | None = None
    ) -> FetchRequest | None:
        """What to ask now; answers to earlier requests no longer count. None: nothing, see `pause_ms`.

        ``broker_epoch`` < 0 (not registered at present): nothing. ``longest_wait_ms``: how long the leader may wait for
        data at most, because more will be asked for soon. May load logs, and blocks for that.
        """
        self._asked = None
        if broker_epoch < 0 or now_ms < self._retry_at_ms:
            return None
        session = self._session
        with self._lock:
            touched, self._touched = self._touched, {}
            candidates = dict.fromkeys(self._followed) if session is None else touched
        if session is not None:
            candidates = {**session.take_unreported(now_ms), **touched, **self._waiting}
            candidates.update(dict.fromkeys(self._held_back(session, now_ms)))
        asked, wait_ms = self._choose(candidates, now_ms)
        if longest_wait_ms is not None:
            wait_ms = min(wait_ms, longest_wait_ms)
        forgotten: list[TopicPartition] = []
        if session is not None:
            self._waiting = {at: None for at in candidates if at not in asked and at in self._followed}
            forgotten = [at for at in candidates if at not in asked and session.get(at) is not None]
            if _postpone(session, asked, forgotten):
                wait_ms = 0
            for at in forgotten:
                session.forget(at)
            for at, each in asked.items():
                session.report(at, each, now_ms)
        if not (asked or forgotten or session):
            return None
        self._request_id += 1
        self._asked = asked
        return FetchRequest(
            request_id=self._request_id,
            partitions=tuple(self._ask(at, each) for at, each in asked.items()),
            max_wait_ms=wait_ms,
            max_bytes=self._max_bytes,
            is_incremental=session is not None,
            forgotten=tuple((at.topic, at.partition) for at in forgotten),
        )

    def handle(self, response: FetchResponse, cells: Sequence[pa.Buffer], now_ms: int) -> None:
        """Takes an answer in: appends it, makes it durable as ``flush.mode`` says, adopts the marks. Raises nothing.

        ``cells``: the frames that the answer's rows name. An answer to any request but the last changes nothing.
        """
        if self._asked is None or response.request_id != self._request_id:
            return
        self.flush_while_asking(now_ms)
        asked, self._asked = self._asked, None
        session = self._session
        self._is_failing, self._retry_at_ms = False, 0
        self._backoff.reset()
        taken: list[tuple[_Followed, FetchedPartition]] = []
        for fetched in response.partitions:
            at = TopicPartition(fetched.topic, fetched.partition)
            ask = asked.pop(at, None) if session is None else session.get(at)
            if ask is None or self._followed.get(at) is not ask.followed:
                continue
            try:
                if self._take(ask, fetched, cells, now_ms):
                    taken.append((ask.followed, fetched))
            except PylogError as error:
                self._fails(ask.followed, error, now_ms)
            except MemoryError as error:
                self._fails(ask.followed, _no_memory(error), now_ms)
        # All are appended before the first waits for its disk.
        for each, fetched in taken:
            try:
                self._settle(each, fetched)
                each.succeeds()
            except PylogError as error:
                self._fails(each, error, now_ms)
            except MemoryError as error:
                self._fails(each, _no_memory(error), now_ms)
        if session is not None:
            self._report_what_moved(session, response)

    @property
    def has_unflushed(self) -> bool:
        """Whether `flush_while_asking` has something to do."""
        return bool(self._unflushed)

    def flush_while_asking(self, now_ms: int) -> None:
        """Makes durable what the last answer left to be flushed. Call it when the next request is on its way; `handle`
        does it at the latest. Safe on any thread while the one that asks waits for the answer. Blocks on the disk.
        Raises nothing."""
        unflushed, self._unflushed = self._unflushed, {}
        for at, each in unflushed.items():
            try:
                self._flush(each)
                # A replica that catches up would push what is read out of the page cache; and memory that was in use
                # just now is filled several times as fast as other memory.
                each.replica.log.drop_cached()
            except PylogError as error:
                self._fails(each, error, now_ms)
            if self._session is not None:
                self._session.unreported[at] = None

    def failed(self, error: PylogError, now_ms: int) -> None:
        """The connection broke or was not made: no answer will come, and nothing is asked for a while."""
        self._asked = self._session = None
        was_failing, self._is_failing = self._is_failing, True
        self._retry_at_ms = now_ms + _next_ms(self._backoff)
        if not was_failing:
            event(
                _logger,
                "fetch from leader",
                level=logging.WARNING,
                leader=self.leader_id,
                partitions=len(self._followed),
                error=error,
            )

    # --- private --------------------------------------------------------------------------------------------------

    def _new_backoff(self) -> Backoff:
        return Backoff(first_s=FIRST_RETRY_MS / 1_000, limit_s=LONGEST_RETRY_MS / 1_000, rng=self._rng)

    def _ask(self, at: TopicPartition, asked: _Asked) -> FetchPartition:
        return FetchPartition(
            topic=at.topic,
            partition=at.partition,
            topic_id=asked.followed.replica.topic_id,
            offset=asked.position.offset,
            leader_epoch=asked.followed.leader_epoch,
            last_fetched_epoch=asked.position.last_fetched_epoch,
            max_bytes=self._partition_max_bytes,
            durable_end=asked.position.durable_end,
            log_start=asked.position.log_start,
        )

    def _choose(self, candidates: Collection[TopicPartition], now_ms: int) -> tuple[dict[TopicPartition, _Asked], int]:
        """Which of these can be asked for now, and how long the leader may wait until the others are to be tried."""
        held_ms = self._throttle.wait_ms(now_ms) if self._throttle is not None else 0
        wait_ms, loads = self._max_wait_ms, 0
        asked: dict[TopicPartition, _Asked] = {}
        for at in candidates:
            each = self._followed.get(at)
            if each is None:
                continue
            if each.retry_at_ms > now_ms:
                wait_ms = min(wait_ms, each.retry_at_ms - now_ms)
                continue
            if held_ms and not each.replica.is_in_sync:
                wait_ms = min(wait_ms, held_ms)
                continue
            if each.lacks_room and not self._has_room(each, now_ms):
                wait_ms = min(wait_ms, LONGEST_RETRY_MS)
                continue
            loads += not each.replica.log.is_loaded
            if loads > _LOADS_PER_REQUEST:
                wait_ms = 0
                continue
            position = self._position(at, each, now_ms)
            if position is not None:
                asked[at] = _Asked(followed=each, position=position)
        return asked, wait_ms

    def _held_back(self, session: ReportedPartitions[_Asked], now_ms: int) -> list[TopicPartition]:
        """The partitions that the leader knows of and must leave out while the throttle holds them up."""
        if self._throttle is None or not self._throttle.wait_ms(now_ms):
            return []
        return [at for at in session if (known := session.get(at)) and not known.followed.replica.is_in_sync]

    def _report_what_moved(self, session: ReportedPartitions[_Asked], response: FetchResponse) -> None:
        """The next request reports each log that is no longer as the leader knows it."""
        for fetched in response.partitions:
            at = TopicPartition(fetched.topic, fetched.partition)
            known = session.get(at)
            if known is None:
                continue
            try:
                with known.followed.replica.following(known.followed.leader_epoch) as log:
                    is_as_reported = position_of(log) == known.position
            except PylogError:
                is_as_reported = False
            if not is_as_reported or known.followed.is_failing:
                session.unreported[at] = None

    def _position(self, at: TopicPartition, each: _Followed, now_ms: int) -> LogPosition | None:
        try:
            with each.replica.following(each.leader_epoch) as log:
                position = position_of(log)
            if position.durable_end < position.offset and at not in self._unflushed:
                # The flush mode changed, or an earlier flush took too long.
                self._flush(each)
                with each.replica.following(each.leader_epoch) as log:
                    position = position_of(log)
        except PylogError as error:
            self._fails(each, error, now_ms)
            return None
        return position

    def _take(self, ask: _Asked, fetched: FetchedPartition, cells: Sequence[pa.Buffer], now_ms: int) -> bool:
        """Whether it answers what was asked; if so, the log has what it brought. Raises the leader's error, or the
        log's."""
        each = ask.followed
        error = error_from_code(fetched.error.code, fetched.error.message) if fetched.error is not None else None
        if error is not None and not isinstance(error, OffsetOutOfRangeError):
            raise error
        if fetched.leader_epoch != each.leader_epoch:
            return False
        with each.replica.following(each.leader_epoch) as log:
            if log.log_end_offset != ask.position.offset:
                return False
            if error is not None:
                restart_at_leader(log, fetched.log_start, fetched.log_end)
            elif fetched.diverging_epoch >= 0:
                cut_to_common_part(log, (fetched.diverging_epoch, fetched.diverging_end), each.leader_epoch)
            elif fetched.row >= 0:
                self._append(each, log, fetched, cells, now_ms)
        return True

    def _append(
        self, each: _Followed, log: PartitionLog, fetched: FetchedPartition, cells: Sequence[pa.Buffer], now_ms: int
    ) -> None:
        row = fetched.row
        if row >= len(cells):
            raise CorruptRecordError(f"an answer of {len(cells)} rows names row {row} for {each.replica}")
        try:
            _require_room(each.replica)
        except LogStorageError:
            each.lacks_room = True
            raise
        if self._throttle is not None and not each.replica.is_in_sync:
            self._throttle.spend(cells[row].size, now_ms)
        log.append_as_follower(cells[row], leader_epoch=each.leader_epoch, leader_start=fetched.log_start)
        self._meters.copied(fetched.topic, cells[row].size)

    def _has_room(self, each: _Followed, now_ms: int) -> bool:
        try:
            _require_room(each.replica)
        except LogStorageError as error:
            each.lacks_room = True
            self._fails(each, error, now_ms)
            return False
        each.lacks_room = False
        return True

    def _settle(self, each: _Followed, fetched: FetchedPartition) -> None:
        if fetched.row >= 0:
            # A replica that is not in sync holds up no acknowledgement: it need not report at once what is durable.
            if fetched.next_offset < fetched.log_end and not each.replica.is_in_sync:
                self._unflushed[TopicPartition(fetched.topic, fetched.partition)] = each
            else:
                self._flush(each)
        if fetched.error is None and fetched.diverging_epoch < 0:
            with each.replica.following(each.leader_epoch) as log:
                adopt_marks(log, fetched.high_watermark, fetched.log_start)

    def _flush(self, each: _Followed) -> None:
        """Not within `following`: an fdatasync holds up nobody, and a replica that leads by now may go ahead.

        For an fdatasync of another thread, such as the one that followed an earlier leader, it waits only a moment, and
        no longer once the epoch is over: meanwhile nothing else would be fetched from this leader. Raises
        `RequestTimedOutError` then.
        """
        replica = each.replica
        if replica.log.waits_for_device:
            replica.log.flush(
                timeout_s=_LONGEST_FLUSH_OF_ANOTHER_S, is_over=lambda: replica.leader_epoch != each.leader_epoch
            )
            replica.note_durable()

    def _fails(self, each: _Followed, error: PylogError, now_ms: int) -> None:
        was_failing = each.is_failing
        each.fails(now_ms)
        if not was_failing or each.replica.log.is_offline:
            event(
                _logger,
                "follow partition",
                level=logging.WARNING,
                topic=each.replica.topic,
                partition=each.replica.partition,
                leader=self.leader_id,
                leader_epoch=each.leader_epoch,
                error=error,
            )


def _require_room(replica: Partition) -> None:
    """Raises `LogStorageError` if the replica's disk has no room for more records. What ends an open transaction may be
    among them, and retention deletes nothing before it is there."""
    replica.disk.require_room(is_urgent=replica.log.has_open_transactions)


def _postpone(
    session: ReportedPartitions[_Asked], asked: dict[TopicPartition, _Asked], forgotten: list[TopicPartition]
) -> bool:
    """Takes out what one request has no room for, so that the next reports it first; whether that is any."""
    postponed = [*list(asked)[MOST_ENTRIES:], *forgotten[MOST_ENTRIES:]]
    for at in postponed:
        asked.pop(at, None)
    del forgotten[MOST_ENTRIES:]
    session.unreported = {**dict.fromkeys(postponed), **session.unreported}
    return bool(postponed)


def _no_memory(error: MemoryError) -> BrokerOverloadedError:
    return BrokerOverloadedError(f"this broker has no memory left for what it fetched: {error}")


def _next_ms(backoff: Backoff) -> int:
    return round(backoff.next_s() * 1_000)


@dataclass(slots=True)
class _Reported(Generic[_Request]):
    asked: _Request
    at_ms: int


class ReportedPartitions(Generic[_Request]):
    """What the follower has reported to its leader in one fetch session, and which partitions to report next.

    Rule: nothing is lost. A partition is reported when it begins to be followed, when its log has moved since it was
    last reported, when it may be fetched again after a failure, and every `REPORT_AGAIN_MS` though nothing happened:
    leaders judge followers by when they last heard of them, and no other message tells them. Not thread-safe.
    """

    def __init__(self) -> None:
        self._reported: dict[TopicPartition, _Reported[_Request]] = {}  # least recently reported first
        self.unreported: dict[TopicPartition, None] = {}  # there is, or may be, something to report of these

    def __len__(self) -> int:
        return len(self._reported)

    def get(self, at: TopicPartition) -> _Request | None:
        """What was last reported of it; None: nothing."""
        known = self._reported.get(at)
        return None if known is None else known.asked

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._reported)

    def report(self, at: TopicPartition, asked: _Request, now_ms: int) -> None:
        """The next request reports this."""
        self._reported.pop(at, None)
        self._reported[at] = _Reported(asked, now_ms)

    def forget(self, at: TopicPartition) -> bool:
        """The leader is to leave it out from now on; whether it knew of it."""
        return self._reported.pop(at, None) is not None

    def take_unreported(self, now_ms: int) -> dict[TopicPartition, None]:
        """What the next request may have to report: the unreported, and a share of what was last reported long ago."""
        unreported, self.unreported = self.unreported, {}
        share = max(_SMALLEST_SHARE, len(self._reported) // 4)
        for (at, known), _ in zip(self._reported.items(), range(share), strict=False):
            if now_ms - known.at_ms < REPORT_AGAIN_MS:
                break
            unreported[at] = None
        return unreported


class FollowerPlan(Protocol):
    """Called after a partition took its role. Thread-safe, never blocks on the network, raises nothing."""

    def follow(self, partition: Partition, leadership: Leadership) -> None:
        """Fetch the partition from ``leadership.leader`` (a broker, not this one) in its leader epoch.

        Called again with the same epoch when something else changed (the in-sync set, an address): what backs off is
        tried again at once.
        """

    def unfollow(self, at: TopicPartition) -> None:
        """Stop fetching it. Does nothing if it is not followed."""
