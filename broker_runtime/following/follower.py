"""A broker as the follower of another: what it asks its leader for, and what it does with the answers.

    next_request → (the network) → handle → next_request → …        failed, when the connection broke

One request at a time, for all partitions that are followed there. It tells where each log ends and how much of that is
durable: `handle` appends what came for all, then makes it durable, so the next request tells it. (Where the replica is
far behind, the disk has the time in which the next answer comes: `flush_while_asking`.) In a session (`begin_session`)
the leader remembers, and a request tells what is new alone: an exchange then costs what happened, not how many
partitions there are. A request that has no room for all that is new (`MOST_ENTRIES`) waits for no data: the
next tells the rest.

Rule: an answer counts only if it is to the request that is out, for a partition that is still followed in the same
leader epoch and whose log still ends where it was last said to end. So answers that come twice, late or not at all do
no harm. What goes wrong with one partition makes that one wait and no other.
"""

from __future__ import annotations

import logging
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
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import MOST_ENTRIES
from broker_runtime.contract.streams import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker_runtime.following.follower_log import LogPosition, adopt_marks, begin_anew, cut_to_common_part, position_of
from broker_runtime.log import PartitionLog
from broker_runtime.replication.leadership import Leadership
from broker_runtime.replication.partition import Partition

FIRST_RETRY_MS: Final = 50
LONGEST_RETRY_MS: Final = 1_000
_LONGEST_FLUSH_OF_ANOTHER_S: Final = 1.0
_NEVER_MS: Final = 1 << 62
_LOADS_PER_REQUEST: Final = 8  # so that logs that are loaded, or recovered, hold up the others a little only
_log = logging.getLogger(__name__)

REPORT_AGAIN_MS: Final = 2_000
_SMALLEST_SHARE: Final = 16

_Request = TypeVar("_Request")


@dataclass(slots=True, eq=False)
class _Followed:
    """One partition followed in one leader epoch. A new epoch, or another log, is another one."""

    replica: Partition
    leader_epoch: int
    retry_at_ms: int = 0
    failures: int = 0  # in a row
    lacks_room: bool = False  # what the leader has did not fit on the disk: not asked for until there is room

    def fails(self, now_ms: int) -> None:
        """It is left alone for a while; for good if its log is offline."""
        self.failures += 1
        self.retry_at_ms = _NEVER_MS if self.replica.log.is_offline else now_ms + _delay_ms(self.failures)

    def succeeds(self) -> None:
        self.failures = self.retry_at_ms = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the leader was told of a partition."""

    followed: _Followed
    position: LogPosition


class FollowerFetcher:
    """All that this broker follows of one leader. `next_request`, `handle` and `failed` are one thread's; the others
    any thread's. Blocks for the disk, never for the network."""

    def __init__(
        self,
        broker_id: int,
        leader_id: int,
        *,
        max_bytes: int,
        partition_max_bytes: int,
        max_wait_ms: int,
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        """``max_bytes`` of one answer, ``partition_max_bytes`` (``replica.fetch.max.bytes``) of one partition in it;
        either is exceeded by a single frame that is larger. ``max_wait_ms``: ``replica.fetch.wait.max.ms``."""
        self.broker_id = broker_id
        self.leader_id = leader_id
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._max_wait_ms = max_wait_ms
        self._throttle = throttle
        self._lock = threading.Lock()
        self._followed: dict[TopicPartition, _Followed] = {}
        self._request_id = 0
        self._asked: dict[TopicPartition, _Asked] | None = None  # of the request that is out; None: none is
        self._session: ReportedPartitions[_Asked] | None = None  # None: each request tells everything
        # Ordered sets: what is done in which order depends on nothing but what happened.
        self._waiting: dict[TopicPartition, None] = {}  # in a session: what is left out for a while
        self._touched: dict[TopicPartition, None] = {}  # follow and unfollow were called since the last request
        self._unflushed: dict[TopicPartition, _Followed] = {}  # what the last answer gave them is not durable yet
        self._failures = 0  # of the connection, in a row
        self._retry_at_ms = 0

    # --- what is followed -----------------------------------------------------------------------------------------

    def follow(self, replica: Partition, leader_epoch: int) -> None:
        """Fetch the partition in this epoch from now on. Again: what went wrong with it is tried again at once."""
        at = TopicPartition(replica.topic, replica.partition)
        with self._lock:
            known = self._followed.get(at)
            if known is None or known.replica is not replica or known.leader_epoch != leader_epoch:
                self._followed[at] = _Followed(replica, leader_epoch)
            else:
                known.succeeds()
            self._touched[at] = None

    def unfollow(self, at: TopicPartition) -> None:
        """Fetch it no more; what is under way for it does nothing. One that is not followed is fine."""
        with self._lock:
            self._followed.pop(at, None)
            self._touched[at] = None

    def is_asked_for(self, at: TopicPartition, leader_epoch: int) -> bool:
        """Whether the request that is out is answered, too, when the leader has something of the partition."""
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
        """How long `next_request` will have nothing to ask, if nothing else is followed meanwhile; 0: not at all."""
        with self._lock:
            retries = [each.retry_at_ms for each in self._followed.values()]
        due_ms = max(self._retry_at_ms, min(retries, default=_NEVER_MS))
        held_ms = self._throttle.wait_ms(now_ms) if self._throttle is not None else 0
        if held_ms and not any(each.replica.is_in_sync for each in list(self._followed.values())):
            due_ms = max(due_ms, now_ms + held_ms)
        return max(0, min(due_ms - now_ms, LONGEST_RETRY_MS))

    # --- one exchange after the other -----------------------------------------------------------------------------

    def begin_session(self) -> None:
        """From now on the leader remembers what it is told, until `failed` or the next call of this: a new connection,
        whose first request tells everything."""
        self._session = ReportedPartitions()
        self._waiting.clear()
        with self._lock:
            self._session.unreported.update(dict.fromkeys(self._followed))

    def next_request(
        self, broker_epoch: int, now_ms: int, *, longest_wait_ms: int | None = None
    ) -> FetchRequest | None:
        """What to ask now; an answer to an earlier request counts no more. None: nothing, see `pause_ms`.

        ``broker_epoch`` < 0 (not registered at present): nothing. ``longest_wait_ms``: the leader may wait no longer
        for data than that, because more is soon to be asked for. May load logs, and blocks for that.
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
        asked, wait_ms = self._look(candidates, now_ms)
        if longest_wait_ms is not None:
            wait_ms = min(wait_ms, longest_wait_ms)
        forgotten: list[TopicPartition] = []
        if session is not None:
            self._waiting = {at: None for at in candidates if at not in asked and at in self._followed}
            forgotten = [at for at in candidates if at not in asked and session.get(at) is not None]
            if _put_off(session, asked, forgotten):
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
        """Takes an answer in: appended, durable as ``flush.mode`` says, the marks taken over. Raises nothing.

        ``cells``: the frames that the answer's rows name. An answer to another request than the last changes nothing.
        """
        if self._asked is None or response.request_id != self._request_id:
            return
        self.flush_while_asking(now_ms)
        asked, self._asked = self._asked, None
        session = self._session
        self._failures, self._retry_at_ms = 0, 0
        taken: list[tuple[_Followed, FetchedPartition]] = []
        for told in response.partitions:
            at = TopicPartition(told.topic, told.partition)
            ask = asked.pop(at, None) if session is None else session.get(at)
            if ask is None or self._followed.get(at) is not ask.followed:
                continue
            try:
                if self._take(ask, told, cells, now_ms):
                    taken.append((ask.followed, told))
            except PylogError as error:
                self._fails(ask.followed, error, now_ms)
            except MemoryError as error:
                self._fails(ask.followed, _no_memory(error), now_ms)
        # All are appended before the first waits for its disk.
        for each, told in taken:
            try:
                self._settle(each, told)
                each.succeeds()
            except PylogError as error:
                self._fails(each, error, now_ms)
            except MemoryError as error:
                self._fails(each, _no_memory(error), now_ms)
        if session is not None:
            self._note_what_moved(session, response)

    @property
    def has_unflushed(self) -> bool:
        """Whether `flush_while_asking` has something to do."""
        return bool(self._unflushed)

    def flush_while_asking(self, now_ms: int) -> None:
        """Makes durable what the answer before left so. Call when the next request is on its way; `handle` does it at
        the latest. By any thread, while the one that asks waits for the answer. Blocks for the disk. Raises nothing."""
        unflushed, self._unflushed = self._unflushed, {}
        for at, each in unflushed.items():
            try:
                self._flush(each)
                # What has to be caught up with would take the memory of what is read; and memory that was in use just
                # now is filled several times as fast as other.
                each.replica.log.drop_cached()
            except PylogError as error:
                self._fails(each, error, now_ms)
            if self._session is not None:
                self._session.unreported[at] = None

    def failed(self, error: PylogError, now_ms: int) -> None:
        """The connection broke, or was not made: no answer will come, and nothing is asked for a while."""
        self._asked = self._session = None
        self._failures += 1
        self._retry_at_ms = now_ms + _delay_ms(self._failures)
        if self._failures == 1:
            _log.warning("fetch failed leader=%d partitions=%d error=%s", self.leader_id, len(self._followed), error)

    # --- private --------------------------------------------------------------------------------------------------

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

    def _look(self, candidates: Collection[TopicPartition], now_ms: int) -> tuple[dict[TopicPartition, _Asked], int]:
        """What can be asked for of these now, and how long the leader may wait before the others are looked at."""
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
        """What the leader knows and must leave out while the throttle holds it up."""
        if self._throttle is None or not self._throttle.wait_ms(now_ms):
            return []
        return [at for at in session if (known := session.get(at)) and not known.followed.replica.is_in_sync]

    def _note_what_moved(self, session: ReportedPartitions[_Asked], response: FetchResponse) -> None:
        """What is not as the leader knows it is told next."""
        for told in response.partitions:
            at = TopicPartition(told.topic, told.partition)
            known = session.get(at)
            if known is None:
                continue
            try:
                with known.followed.replica.following(known.followed.leader_epoch) as log:
                    is_as_told = position_of(log) == known.position
            except PylogError:
                is_as_told = False
            if not is_as_told or known.followed.failures:
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

    def _take(self, ask: _Asked, told: FetchedPartition, cells: Sequence[pa.Buffer], now_ms: int) -> bool:
        """Whether the answer is one to what was asked; the log has then what it gives. Raises what the leader, or the
        log, has against it."""
        each = ask.followed
        error = error_from_code(told.error.code, told.error.message) if told.error is not None else None
        if error is not None and not isinstance(error, OffsetOutOfRangeError):
            raise error
        if told.leader_epoch != each.leader_epoch:
            return False
        with each.replica.following(each.leader_epoch) as log:
            if log.log_end_offset != ask.position.offset:
                return False
            if error is not None:
                begin_anew(log, told.log_start, told.log_end)
            elif told.diverging_epoch >= 0:
                cut_to_common_part(log, (told.diverging_epoch, told.diverging_end), each.leader_epoch)
            elif told.row >= 0:
                self._append(each, log, told, cells, now_ms)
        return True

    def _append(
        self, each: _Followed, log: PartitionLog, told: FetchedPartition, cells: Sequence[pa.Buffer], now_ms: int
    ) -> None:
        row = told.row
        if row >= len(cells):
            raise CorruptRecordError(f"an answer of {len(cells)} rows names row {row} for {each.replica}")
        try:
            each.replica.disk.require_room()
        except LogStorageError:
            each.lacks_room = True
            raise
        if self._throttle is not None and not each.replica.is_in_sync:
            self._throttle.spend(cells[row].size, now_ms)
        log.append_as_follower(cells[row], leader_epoch=each.leader_epoch, leader_start=told.log_start)

    def _has_room(self, each: _Followed, now_ms: int) -> bool:
        try:
            each.replica.disk.require_room()
        except LogStorageError as error:
            each.lacks_room = True
            self._fails(each, error, now_ms)
            return False
        each.lacks_room = False
        return True

    def _settle(self, each: _Followed, told: FetchedPartition) -> None:
        if told.row >= 0:
            # Who is not in sync holds up no acknowledgement, so it need not tell at once how much is durable.
            if told.next_offset < told.log_end and not each.replica.is_in_sync:
                self._unflushed[TopicPartition(told.topic, told.partition)] = each
            else:
                self._flush(each)
        if told.error is None and told.diverging_epoch < 0:
            with each.replica.following(each.leader_epoch) as log:
                adopt_marks(log, told.high_watermark, told.log_start)

    def _flush(self, each: _Followed) -> None:
        """Not within `following`: an fdatasync holds up nobody. If the replica leads by now, it may get on with it.

        For another's fdatasync, as of who followed an earlier leader, it waits a moment, and not once the epoch is
        over: meanwhile nothing else would be fetched from this leader. Raises `RequestTimedOutError` then.
        """
        replica = each.replica
        if replica.log.config.flush_mode == "ack":
            replica.log.flush(
                timeout_s=_LONGEST_FLUSH_OF_ANOTHER_S, is_over=lambda: replica.leader_epoch != each.leader_epoch
            )
            replica.note_durable()

    def _fails(self, each: _Followed, error: PylogError, now_ms: int) -> None:
        each.fails(now_ms)
        if each.failures == 1 or each.replica.log.is_offline:
            _log.warning(
                "cannot follow topic=%s partition=%d leader=%d leader_epoch=%d error=%s",
                each.replica.topic, each.replica.partition, self.leader_id, each.leader_epoch, error,
            )  # fmt: skip


def _put_off(
    session: ReportedPartitions[_Asked], asked: dict[TopicPartition, _Asked], forgotten: list[TopicPartition]
) -> bool:
    """Takes out what one request has no room for, so that the next tells it before all else; whether that is any."""
    put_off = [*list(asked)[MOST_ENTRIES:], *forgotten[MOST_ENTRIES:]]
    for at in put_off:
        asked.pop(at, None)
    del forgotten[MOST_ENTRIES:]
    session.unreported = {**dict.fromkeys(put_off), **session.unreported}
    return bool(put_off)


def _no_memory(error: MemoryError) -> BrokerOverloadedError:
    return BrokerOverloadedError(f"this broker has no memory left for what it fetched: {error}")


def _delay_ms(failures: int) -> int:
    return min(FIRST_RETRY_MS << min(failures - 1, 10), LONGEST_RETRY_MS)


@dataclass(slots=True)
class _Reported(Generic[_Request]):
    asked: _Request
    at_ms: int


class ReportedPartitions(Generic[_Request]):
    """What the follower has reported to its leader in one fetch session, and which partitions to report next.

    Rule: nothing is lost. A partition is reported when it begins to be followed, when its log has moved since it was
    last reported, when it may be fetched again after a failure, and every `REPORT_AGAIN_MS` though nothing happened:
    leaders go by when they last heard of a follower, and learn that way what no other message says. Not thread-safe.
    """

    def __init__(self) -> None:
        self._reported: dict[TopicPartition, _Reported[_Request]] = {}  # the one that was told longest ago comes first
        self.unreported: dict[TopicPartition, None] = {}  # of these there is, or may be, something to tell

    def __len__(self) -> int:
        return len(self._reported)

    def get(self, at: TopicPartition) -> _Request | None:
        """What the leader knows of it; None: nothing."""
        known = self._reported.get(at)
        return None if known is None else known.asked

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._reported)

    def report(self, at: TopicPartition, asked: _Request, now_ms: int) -> None:
        """The next request tells this of it."""
        self._reported.pop(at, None)
        self._reported[at] = _Reported(asked, now_ms)

    def forget(self, at: TopicPartition) -> bool:
        """The leader is to leave it out; whether it knew of it."""
        return self._reported.pop(at, None) is not None

    def take_unreported(self, now_ms: int) -> dict[TopicPartition, None]:
        """What is to be looked at for the next request: the unreported, and a share of what was told long ago."""
        unreported, self.unreported = self.unreported, {}
        share = max(_SMALLEST_SHARE, len(self._reported) // 4)
        for (at, known), _ in zip(self._reported.items(), range(share), strict=False):
            if now_ms - known.at_ms < REPORT_AGAIN_MS:
                break
            unreported[at] = None
        return unreported


class ReplicationThrottle:
    """A rate in bytes per second, shared by all fetchers of a broker. Thread-safe; time is an argument.

    How fast a broker fetches partitions it is not in sync with (``replication.throttled.rate``), so that moving
    partitions leaves room for those who produce and consume. In-sync replicas are never held up.

    Rule: what came is spent, even beyond what there was; then nothing is asked for until the debt is paid.
    """

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._left_bytes = float(bytes_per_s)  # Invariant: at most what one second gives
        self._at_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """In how many ms more may be asked for; 0: now."""
        with self._lock:
            self._earn(now_ms)
            return 0 if self._left_bytes > 0 else int(-self._left_bytes * 1000 / self._bytes_per_s) + 1

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """So many bytes came."""
        with self._lock:
            self._earn(now_ms)
            self._left_bytes -= size_bytes

    def _earn(self, now_ms: int) -> None:
        if self._at_ms is not None and now_ms > self._at_ms:
            earned = (now_ms - self._at_ms) * self._bytes_per_s / 1000
            self._left_bytes = min(self._left_bytes + earned, float(self._bytes_per_s))
        self._at_ms = now_ms if self._at_ms is None else max(self._at_ms, now_ms)


class FollowerPlan(Protocol):
    """Told after the partition took its role. Thread-safe, never blocks for the network, raises nothing."""

    def follow(self, partition: Partition, leadership: Leadership) -> None:
        """Fetch the partition from ``leadership.leader`` (a broker, not this one) in its leader epoch.

        Again with the same epoch: news of it (the in-sync set, an address); what backs off tries again at once.
        """

    def unfollow(self, at: TopicPartition) -> None:
        """Fetch it no more. One that is not followed is fine."""
