"""One partition's log: frames by rising offset in segments, appended at the end, read anywhere.

    log start ≤ high watermark ≤ log end;   durable end ≤ log end

Rule: one lock per log; no network call and no fsync of appends under it. Acknowledged records stay, whatever fails:
after an I/O error the log goes offline (every call raises `LogStorageError` until the broker restarts), and damaged
records are never served. Nothing is read at start: the first use loads, or recovers, the log.

Never: shortens a file in place, maps one, retries an fsync, looks at a row.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from broker_runtime.contract.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    LogStorageError,
    OffsetOutOfRangeError,
    PylogError,
    RequestTimedOutError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import HEADER_BYTES, STAMP_BYTES, TransactionBegin
from broker_runtime.contract.predicate.frames import FrameTest
from broker_runtime.contract.settings import TopicSettings
from broker_runtime.contract.waiting import Deadline
from broker_runtime.log import log_state
from broker_runtime.log.appending import (
    AppendResult,
    VerifiedFrame,
    control_frame,
    find_duplicate,
    stamped,
    verify_for_follower,
    verify_for_leader,
)
from broker_runtime.log.indexes import AbortedTransaction
from broker_runtime.log.log_state import (
    SHORTEST_WAIT_S,
    LogState,
    append_from_leader,
    lies_across,
    note_damage,
    noting_damage,
)
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.reading import LogSlice, SegmentView, TimeLookup
from broker_runtime.log.recovery import StartState
from broker_runtime.log.scan import LOG_SUFFIX
from broker_runtime.log.transactions import KnownId, OpenTransaction, Outcomes

_LONGEST_FSYNC_S = 60.0
_READ_ATTEMPTS = 3
_logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")


class LogExtent(NamedTuple):
    """Offsets of one log, taken under its lock.

    ``log_start`` ≤ ``last_stable_offset`` ≤ ``high_watermark`` ≤ ``log_end``; ``durable_end`` ≤ ``log_end``.
    ``leader_epochs``: (epoch, first offset) of all in the log, rising.
    """

    log_start: int
    last_stable_offset: int
    high_watermark: int
    durable_end: int
    log_end: int
    leader_epochs: tuple[tuple[int, int], ...]


class PartitionLog:
    """See the module. Thread-safe. Made by `LogDirectory.log` only.

    Every method may raise `LogStorageError` (the log is offline or closed, or goes offline now), `CorruptRecordError`
    (it is damaged: the message names file, position and offsets) and `UnsupportedVersionError` (it was written by a
    newer version); the docstrings name further errors. The first use blocks while the log is loaded or recovered.
    """

    def __init__(self, state: LogState) -> None:
        self._state = state

    def __repr__(self) -> str:
        state = self._state
        if not state.is_loaded:
            return f"PartitionLog({state.name} not loaded)"
        return (
            f"PartitionLog({state.name} {state.log_start_offset}..{state.segments.end_offset} "
            f"hw={state.high_watermark} segments={len(state.segments)} {'offline' if state.offline else 'online'})"
        )

    # --- what it is and how far it goes ---------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._state.identity.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._state.identity.partition

    @property
    def topic_id(self) -> uuid.UUID:
        """The topic's id; a topic that is deleted and created again has another one."""
        return self._state.identity.topic_id

    @property
    def data_directory(self) -> Path:
        """The data directory that the log is in."""
        return self._state.directory.parent

    @property
    def config(self) -> TopicSettings:
        """The settings in force."""
        return self._state.config

    @config.setter
    def config(self, config: TopicSettings) -> None:
        self._state.config = config

    @property
    def is_offline(self) -> bool:
        """Whether every call fails, for good. Does not load the log."""
        return self._state.offline is not None

    @property
    def has_failed(self) -> bool:
        """Whether a disk error took the log offline."""
        return self._state.has_failed

    @property
    def is_damaged(self) -> bool:
        """Whether acknowledged records cannot be read. The log is offline only if that was found when it was loaded;
        else the sound records are still served. Does not load the log."""
        return self._state.damage is not None

    @property
    def is_anothers(self) -> bool:
        """Whether the log counts as damaged because its directory belongs to another log."""
        return self._state.is_anothers

    @property
    def is_diverged(self) -> bool:
        """Whether the log counts as damaged because it has diverged from its leader's; see `refuse_to_lose`."""
        return self._state.is_diverged

    @property
    def path(self) -> Path:
        """The log's directory."""
        return self._state.directory

    def on_damage(self, listener: Callable[[], None]) -> None:
        """``listener`` is called when damage is found, by any thread: it must not block or call back."""
        self._state.on_damage = listener

    def on_failure(self, listener: Callable[[], None]) -> None:
        """``listener`` is called when a disk error takes the log offline, by any thread: it must not block or call
        back."""
        self._state.on_failure = listener

    @property
    def is_loaded(self) -> bool:
        """Whether the log was used since the directory was opened."""
        return self._state.is_loaded

    def extent(self, timeout_s: float = -1) -> LogExtent:
        """The offsets of one moment. Takes the lock once.

        With ``timeout_s`` raises `RequestTimedOutError` where another thread has it for longer.
        """
        state = self._state
        with state.using("load", timeout_s):
            end = state.segments.end_offset
            durable = state.commit.durable_end_offset if state.waits_for_device else end
            return LogExtent(
                log_start=state.log_start_offset,
                last_stable_offset=state.last_stable_offset,
                high_watermark=state.high_watermark,
                durable_end=durable,
                log_end=end,
                leader_epochs=state.epochs.entries,
            )

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._state.ready().log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        with self._state.using("load"):
            return self._state.segments.end_offset

    @property
    def durable_end_offset(self) -> int:
        """Everything below counts as durable: it is on the device (``flush.mode=ack``), or appended (other modes)."""
        if self._state.ready().waits_for_device:
            return self._state.commit.durable_end_offset
        return self.log_end_offset

    @property
    def waits_for_device(self) -> bool:
        """Whether a record counts only when it is on the device (``flush.mode=ack``). Blocks while the log is loaded
        for its first use; takes no lock later."""
        return self._state.ready().waits_for_device

    @property
    def high_watermark(self) -> int:
        """Everything below is committed. Kept in a checkpoint; after a restart it may lag until replication sets it."""
        return self._state.ready().high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Everything below is committed, and belongs to no transaction that is open; see `transactions`."""
        return self._state.ready().last_stable_offset

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, end), which is below the last stable offset. Raises
        `OffsetOutOfRangeError` where that was deleted, also if a `LogSlice` of it is still held."""
        with noting_damage(self._state), self._state.using("look up aborted transactions"):
            return self._state.aborted(start, end)

    @property
    def has_open_transactions(self) -> bool:
        """Whether one has begun and not ended; False for a log that was not used yet. Takes no lock."""
        return self._state.is_loaded and bool(self._state.producers.transactions.open)

    def glance_at_transactions(self) -> list[OpenTransaction]:
        """As `open_transactions`, for who must not wait: takes no lock, and a log that was not used yet has none."""
        return list(self._state.producers.transactions.open.values()) if self._state.is_loaded else []

    def open_transactions(self) -> list[OpenTransaction]:
        """The transactions that have begun and not ended, in the order of their first offsets."""
        with self._state.using("list transactions"):
            return list(self._state.producers.transactions.open.values())

    def set_high_watermark(self, offset: int, timeout_s: float = -1) -> int:
        """Sets the high watermark, bounded by log start and log end. Returns the new one.

        With ``timeout_s`` raises `RequestTimedOutError` where another thread has the log for longer.
        """
        with self._state.using("set the high watermark", timeout_s):
            self._state.high_watermark = max(self._state.log_start_offset, min(offset, self._state.segments.end_offset))
            self._state.settle()
            return self._state.high_watermark

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset) of all leader epochs in the log."""
        with self._state.using("load"):
            return self._state.epochs.entries

    @property
    def size_bytes(self) -> int:
        """The size of all frames in all segments."""
        with self._state.using("load"):
            return self._state.segments.size_bytes()

    def stored_bytes(self) -> int:
        """The size of the segments' files on the disk; 0 where they are gone. Takes no lock and does not load the log.
        Blocks on the disk; raises `OSError`."""
        files, directory = self._state.files, self._state.directory
        try:
            bases = PartitionFiles.find(files, directory).base_offsets
        except FileNotFoundError:
            return 0
        return sum(files.file_size(directory / f"{base:020d}{LOG_SUFFIX}") or 0 for base in bases)

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """The base offsets of the segments."""
        with self._state.using("load"):
            return self._state.segments.base_offsets

    # --- append ---------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        frames: Sequence[Any],
        *,
        leader_epoch: int,
        now_ms: int,
        timeout_s: float = -1,
        begin: TransactionBegin | None = None,
    ) -> AppendResult:
        """Verifies, stamps and writes ``frames`` (buffers of one frame each, not copied). Not durable yet: `flush`.

        All or none become visible. A frame of an idempotent producer must be the only one of its call. One that was
        appended before is not written again (``is_duplicate``); unless it was deleted since, it is compared with the
        stored one first. A transactional frame needs an open transaction of its producer id, or ``begin``, which is
        appended before it if none is open.

        Raises `RequestTimedOutError` where another thread has the log for longer than ``timeout_s`` (-1: waits);
        `CorruptRecordError`, `RecordTooLargeError`, `InvalidTimestampError`, `UnsupportedVersionError`; as
        `ProducerState.check`; `DuplicateSequenceError` for a frame whose place another one has (nothing was written);
        `FencedLeaderEpochError` for an epoch older than the log's.
        """
        assert frames, "an append has at least one frame"
        verified = verify_for_leader(frames, self._state.config, now_ms)
        with self._state.using("append", timeout_s):
            producers = self._state.producers
            duplicate = find_duplicate(verified, producers, begin)
            if duplicate is None:
                first = verified[0].header
                if begin is None or not producers.begins(first):
                    return self._stamp_and_append(verified, leader_epoch, now_ms)
                opening = control_frame(
                    begin, now_ms=now_ms, producer_id=first.producer_id, producer_epoch=first.producer_epoch
                )
                result = self._stamp_and_append([opening, *verified], leader_epoch, now_ms)
                return msgspec.structs.replace(result, base_offset=result.base_offset + 1)
        self._require_stored(verified[0], duplicate)
        return duplicate

    def known_transactional_id(self, name: str) -> KnownId | None:
        """What is remembered of a transactional id; None: nothing."""
        with self._state.using("look up a transactional id"):
            return self._state.producers.transactions.known.get(name)

    def forget_transactional_id(self, name: str) -> None:
        """For who knows that the id begins anew: what is remembered of it refuses nothing any more."""
        with self._state.using("forget a transactional id"):
            self._state.producers.transactions.known.pop(name, None)

    def end_transactions(
        self, outcomes: Outcomes, *, leader_epoch: int, now_ms: int, timeout_s: float = -1
    ) -> AppendResult | None:
        """Ends those of the open transactions that are over by ``outcomes``; None: there are none. Not durable yet.

        At most `MOST_ENDED` at a time: call again until it returns None. Raises as `append_as_leader`.
        """
        with self._state.using("end transactions", timeout_s):
            end = self._state.producers.transactions.plan_end(outcomes, self._state.segments.end_offset)
            if end is None:
                return None
            return self._stamp_and_append([control_frame(end, now_ms=now_ms)], leader_epoch, now_ms)

    def _stamp_and_append(self, verified: Sequence[VerifiedFrame], leader_epoch: int, now_ms: int) -> AppendResult:
        state = self._state
        topic_id, partition = state.identity.topic_id, state.identity.partition
        is_log_append_time = state.config.message_timestamp_type == "LogAppendTime"
        offset = base_offset = state.segments.end_offset
        state.leads(leader_epoch)
        state.epochs.assign(leader_epoch, offset)
        # The recovery that reads this stamp must not take for damage what a power failure may lose.
        durable_watermark = min(state.high_watermark, state.commit.durable_end_offset)
        batch = []
        for frame in verified:
            each = stamped(
                frame,
                base_offset=offset,
                leader_epoch=leader_epoch,
                append_time_ms=now_ms,
                high_watermark=durable_watermark,
                topic_id=topic_id,
                partition=partition,
                is_log_append_time=is_log_append_time,
            )
            batch.append(each)
            offset = each.header.next_offset
        state.append(batch, now_ms)
        return AppendResult(
            base_offset=base_offset,
            next_offset=offset,
            append_time_ms=now_ms,
            max_timestamp_ms=max([each.header.latest_timestamp_ms for each in batch]),
        )

    def _require_stored(self, frame: VerifiedFrame, duplicate: AppendResult) -> None:
        """Raises `DuplicateSequenceError` if the stored frame at this place of the producer's sequence is another one:
        then ``frame`` is not in the log. Passes if the stored frame has been deleted."""
        if duplicate.base_offset < 0:
            return
        last_offset = duplicate.next_offset - 1
        try:
            found = self.read(last_offset, max_bytes=0, upto=duplicate.next_offset)
        except OffsetOutOfRangeError:
            return
        assert found is not None
        with found:
            if found.load_head()[STAMP_BYTES:] == frame.buffer[STAMP_BYTES:HEADER_BYTES]:
                return
            found.load()  # raises where the stored frame is damaged
        header = frame.header
        raise DuplicateSequenceError(
            f"producer {header.producer_id} in epoch {header.producer_epoch} sent sequence {header.base_sequence}, "
            f"which was appended with other content at offset {duplicate.base_offset}: a retry must be the same frame. "
            "Another program may be sending under this producer's id"
        )

    def append_as_follower(
        self, frames: Any, *, leader_epoch: int | None = None, leader_start: int = -1
    ) -> AppendResult:
        """Verifies and writes the leader's bytes, unchanged: frames back to back that continue the log. Frames that the
        log has already are skipped. The result is about those that were written, with an empty range for none.

        In an empty log the first frame may begin below the log's start (a log may start within a frame). A log that
        holds only records that the leader has deleted, below ``leader_start``, is restarted there if need be. Raises
        `CorruptRecordError` for damage, a gap, and an epoch older than that of the log's last record, newer than
        ``leader_epoch``, or different from that of the same record here.
        """
        verified = verify_for_follower(frames, self.topic_id, self.partition)
        assert verified, "an append has at least one frame"
        if lies_across(self._state, verified, leader_start):
            self.restart_at(leader_start)
        first, end = append_from_leader(self._state, verified, leader_epoch)
        return AppendResult(
            base_offset=first,
            next_offset=end,
            append_time_ms=verified[-1].header.append_time_ms,
            max_timestamp_ms=max(frame.header.latest_timestamp_ms for frame in verified),
        )

    # --- durability -----------------------------------------------------------------------------------------------

    def flush(
        self,
        upto: int | None = None,
        timeout_s: float = _LONGEST_FSYNC_S,
        *,
        is_over: Callable[[], bool] | None = None,
    ) -> int:
        """Blocks until everything below ``upto`` (None: everything appended so far) is on the device.

        All waiting threads share one fdatasync. Works in every flush mode. Returns the end of what is on the device.
        That is below ``upto`` if the log was truncated below it meanwhile, or if ``is_over()`` (called when the wait
        begins, after each `wake_flushes`, and while another thread has the log; it must not block). Raises
        `RequestTimedOutError` where another thread's fdatasync, or use of the log, outlasts ``timeout_s``. Saves no
        checkpoint: `LogDirectory.checkpoint` and `maybe_checkpoint` do.
        """
        state = self._state
        deadline = Deadline(timeout_s)
        if not state.is_loaded:
            state.ready()
        if upto is None:
            try:
                with state.using("flush", max(timeout_s, SHORTEST_WAIT_S), is_over):
                    upto = state.segments.end_offset
            except RequestTimedOutError:
                if is_over is None or not is_over():
                    raise
                return state.commit.durable_end_offset
        return state.commit.wait_durable(upto, deadline.remaining_s(), is_over=is_over)

    def wake_flushes(self) -> None:
        """All threads in `flush` that wait for another's fdatasync check their ``is_over``. Takes no log's lock."""
        if self._state.is_loaded:
            self._state.commit.wake()

    def drop_cached(self) -> None:
        """What was flushed of the last segment need not stay in the page cache: nobody will read it soon."""
        state = self._state
        with state.using("drop what is cached"), state.segments.active.hold() as held:
            state.files.drop_cached(held.descriptor)

    def maybe_flush(self, now_ms: int) -> bool:
        """Under ``flush.mode=interval``: flushes if ``flush.ms`` passed since the last flush. Under ``ack``: flushes if
        the log did not wait for the device until now. Returns whether it did. Also puts another ``flush.mode`` into
        effect. Call it often."""
        state = self._state
        if not state.is_loaded or state.offline is not None:
            return False
        if state.config.flush_mode == "ack":
            return self._flush_what_did_not_wait()
        if state.mark is None:
            with state.using("mark as unflushed"):
                state.mark_unflushed()
        if state.config.flush_mode != "interval":
            return False
        with state.using("flush"):
            is_due = not 0 <= now_ms - state.last_sync_ms < state.config.flush_ms  # below 0: the clock went back
            if not is_due or state.commit.durable_end_offset >= state.segments.end_offset:
                return False
            state.last_sync_ms = now_ms
        self.flush()
        return True

    def _flush_what_did_not_wait(self) -> bool:
        state = self._state
        if state.mark is None:
            return False
        # All that was acknowledged without waiting was appended before the mode changed: an append sees the new one.
        self.flush()
        with state.using("mark as flushed"):
            if state.config.flush_mode == "ack" and state.mark is not None:
                state.unmark_unflushed()
        return True

    def try_flush(self, now_ms: int | None = None) -> None:
        """`maybe_flush`; or without ``now_ms`` a flush if a segment was closed since the last such call. Raises
        nothing.

        For callers that look after many logs: a failure takes this log offline, and a line in the broker's log says so.
        """
        state = self._state
        if not state.is_loaded or state.offline is not None:
            return
        try:
            if now_ms is not None:
                self.maybe_flush(now_ms)
            elif state.has_rolled:
                state.has_rolled = False  # first: a segment that is closed from now on belongs to the next call
                try:
                    self.flush()
                except PylogError:
                    state.has_rolled = True
                    raise
        except PylogError as error:
            event(_logger, "flush log", level=logging.WARNING, **state.where, error=error)

    def start_state(self) -> StartState:
        """What the next start needs to know, as of now. Takes no lock and does not load the log."""
        return self._state.start_state()

    # --- read -----------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, *, max_bytes: int, upto: int, at_least_one: bool = True, stop: int | None = None
    ) -> LogSlice | None:
        """Finds whole frames of one segment, from the one with ``offset`` on, that end at or before ``upto``. ``stop``:
        none that begins there or above; the one with the offset before it comes alone if it ends above.

        They have at most ``max_bytes`` together. A larger first frame is returned alone, or not at all without
        ``at_least_one`` (None). None also means that there is nothing below ``upto`` yet. The slice reads nothing
        before its `load`. The caller closes it. Raises `OffsetOutOfRangeError` below the log's start or above its end.
        """
        if stop is not None and offset < stop < upto:
            found = self.read(offset, max_bytes=max_bytes, upto=stop, at_least_one=at_least_one)
            if found is not None or not at_least_one:
                return found
            max_bytes = 0  # the first frame ends above, and is the only one wanted
        find = partial(SegmentView.find, offset=offset, max_bytes=max_bytes, upto=upto, at_least_one=at_least_one)
        try:
            return self._in_segment(offset, upto, find)
        except CorruptRecordError as error:
            note_damage(self._state, error, offset)
            raise

    def next_match(
        self, offset: int, test: FrameTest, *, max_bytes: int, upto: int, stop: int, limit_s: float | None = None
    ) -> tuple[int, int]:
        """The next frames, from the one with ``offset`` on, that end at or before ``upto`` and in which a row can
        match ``test``: the first one's offset, and the offset behind the last one.

        They are of one segment, adjoin each other and have about ``max_bytes`` together, at least one. Two equal
        offsets: in no frame before that offset can a row match; the search ended there because it is ``upto`` or
        ``stop``, or after ``limit_s`` (None: it takes its time). Reads heads only, and keeps what they say
        (`FrameHeads`). Raises as `read`.
        """
        deadline = Deadline(limit_s)
        at = offset
        while at < min(upto, stop):
            search = partial(SegmentView.next_match, offset=at, test=test, max_bytes=max_bytes, upto=upto, stop=stop)
            found = self._in_segment(at, upto, partial(search, deadline=deadline))
            if found is None:
                break
            start, end = found
            if start < end:
                return start, end
            if end <= at or deadline.expired:
                return max(at, end), max(at, end)
            at = end
        return at, at

    def _in_segment(self, offset: int, upto: int, find: Callable[[SegmentView], _Found | None]) -> _Found | None:
        """What is found in the segment with ``offset``; None also where nothing below ``upto`` is there."""
        state = self._state
        met: CorruptRecordError | None = None
        for _ in range(_READ_ATTEMPTS):
            with state.using("read"):
                end = state.segments.end_offset
                if not state.log_start_offset <= offset <= end:
                    raise OffsetOutOfRangeError(
                        f"offset {offset} of {state.name} is not in "
                        f"{state.log_start_offset} (log start) to {end} (log end)"
                    )
                if offset >= min(upto, end):
                    return None
                segment = state.segments.find(offset)
                view = SegmentView(state, segment)
            try:
                return find(view)
            except CorruptRecordError as error:
                met = error
                state.mend_index(segment, error)
            except OSError as error:
                with state.lock:
                    was_removed = isinstance(error, FileNotFoundError) and segment not in state.segments
                if not was_removed:  # else its indexes were removed meanwhile: try again
                    state.fail("read", error)
        if met is not None:  # the rebuilt indexes were wrong again
            raise met
        raise CorruptRecordError(f"offset {offset} of {state.name} cannot be found: its segments change all the time")

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record whose timestamp is ≥ ``timestamp_ms``; None where there is none.

        Searches up to the log's end; the caller compares the result with the high watermark.
        """
        state = self._state
        with noting_damage(state), state.using("look up a time"):
            for segment in state.segments.all_loaded():
                if segment.max_timestamp_ms < timestamp_ms or segment.next_offset <= state.log_start_offset:
                    continue
                lookup = TimeLookup(state.files, segment, state.identity)
                found = state.with_sound_index(
                    segment, partial(lookup.first_at_or_after, timestamp_ms, state.log_start_offset)
                )
                if found is not None:
                    return found
        return None

    def max_timestamp_ms(self) -> int:
        """The largest timestamp in the log's segments; -1 where there is no record."""
        with noting_damage(self._state), self._state.using("look up a time"):
            segments = self._state.segments.all_loaded()
            return max((segment.max_timestamp_ms for segment in segments if segment.size_bytes), default=-1)

    # --- what shortens the log (log_state.py) -----------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Removes all records from ``offset`` on, and those in the same frame as it. Returns the new end.

        Durable when it returns; epochs and producer state go back as well. Readers keep the files they hold. Raises
        `OffsetOutOfRangeError` below the log's start, `RequestTimedOutError` where an fsync does not end.
        """
        with noting_damage(self._state, offset):
            end = log_state.truncate_to(self._state, offset)
        self.flush()
        return end

    def refuse_to_lose(self, offset: int, leader_epoch: int) -> None:
        """Raises `CorruptRecordError` if a truncation to ``offset`` would remove records that are known to be
        committed, or all records. From then on this log counts as damaged, so that it is set aside whole, and the
        leader's fetched.

        Records are known to be committed below the high watermark. After an unclean stop that is the one in the
        checkpoint, or in the stamps of the frames beyond the recovery point.
        """
        state = self._state
        with state.using("look for committed records"):
            start, end = state.log_start_offset, state.segments.end_offset
            committed = state.high_watermark
            if offset >= end or (offset >= committed and offset > start):
                return
        which = f"of them at least those below {committed}" if committed > offset else "perhaps some of them"
        refusal = CorruptRecordError(
            f"{state.name}: its leader, in epoch {leader_epoch}, does not have offsets {max(offset, start)} to "
            f"{end - 1}, and {which} were committed. Nothing is deleted: {state.directory} is set aside, and the "
            "leader's log is fetched"
        )
        state.is_diverged = True
        state.note_damage(refusal)
        raise refusal

    def restart_at(self, offset: int) -> None:
        """Removes all records. The log continues, empty, at ``offset``, which may be anywhere.

        Durable when it returns; epochs and producers are forgotten. A crash leaves the old log or the empty one.
        Readers keep the files they hold. Raises `RequestTimedOutError` where an fsync does not end.
        """
        log_state.restart_at(self._state, offset)

    def delete_records(self, offset: int, timeout_s: float = -1) -> int:
        """Moves the log's start up to ``offset``, and removes whole segments below. Returns the log's start.

        Durable when it returns. Raises `OffsetOutOfRangeError` above the high watermark; with ``timeout_s``
        `RequestTimedOutError` where another thread has the log for longer: then nothing is deleted.
        """
        return log_state.delete_records(self._state, offset, timeout_s)

    def apply_retention(self, now_ms: int) -> int:
        """Removes the segments that ``retention.ms`` and ``retention.bytes`` no longer keep. Returns how many.

        Loads a log that was not used yet only if its files look as if there were something to remove.
        """
        if not self._state.is_loaded and log_state.is_retained_whole(self._state, now_ms):
            return 0
        with noting_damage(self._state):
            return log_state.apply_retention(self._state, now_ms)

    # --- its end --------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Makes everything durable and closes the files; every later call raises. Returns whether that was clean.

        Raises nothing if the disk fails: a log that was not closed cleanly is recovered by the next start.
        """
        state = self._state
        closed = LogStorageError(f"{state.name} is closed")
        with state.lock:
            if not state.is_loaded or state.offline is not None:
                is_clean = state.offline is None and state.start.is_clean
                state.go_offline(state.offline or closed)
                return is_clean
        try:
            self.flush()
            with state.using("close"):
                state.write_closing_files()
        except PylogError as error:
            event(_logger, "close log", level=logging.WARNING, **state.where, error=error)
            return False
        finally:
            self.abandon(closed)
        return True

    def abandon(self, reason: PylogError) -> None:
        """From now on every call raises ``reason``, and so does every wait under way. Writes nothing."""
        with self._state.lock:
            self._state.go_offline(reason)

    def has_schemas(self, schemas: Sequence[tuple[int, bytes]]) -> bool:
        """Whether `add_schemas` would change nothing. Never waits."""
        identity = self._state.identity
        return identity == identity.with_schemas(schemas)

    def add_schemas(self, schemas: Sequence[tuple[int, bytes]]) -> None:
        """Adds versions of the topic's schema to the log's directory, for its readers.

        Durable when it returns; for a log that was not used yet, before its first use ends. Does not load the log.
        """
        state = self._state
        with state.lock:
            if not state.is_loaded and state.offline is None:
                state.identity = state.identity.with_schemas(schemas)
                return
        with state.using("add schemas"):
            identity = state.identity.with_schemas(schemas)
            if identity != state.identity:
                identity.write(state.files, state.directory)
                state.identity = identity
