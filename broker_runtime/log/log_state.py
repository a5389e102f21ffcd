"""A log's inner state and the guard around it: the lock, whether the log is usable, loading, fsync, going offline.

    log start ≤ high watermark ≤ log end;   durable end ≤ log end

Rule: one lock per log. Every use goes through `using`, which loads the log the first time and takes it offline for
good when an `OSError` is raised inside. `PartitionLog` is built on it, and so are the functions below, which change it.
No other module changes it.

    follower's append   The leader's bytes, unchanged; only what continues the log, by offset and leader epoch, and of
                        no newer epoch than the leader's own.
    shorter             Truncation at the end; deletion and retention at the start. Checkpoints are durable before a
                        file is removed, so that no crash leaves what looks like damage. Readers keep their files.
    flush mode          Whether an acknowledgement waits for the device. A log that does not wait has a mark beside it,
                        the file ``unflushed`` (`Mark`), which is durable before the first acknowledgement that does not
                        wait, and is removed only after everything was flushed. So a broker that comes back after a
                        power loss goes by what its log was, whatever the topic's setting is by then.
    restart             Makes the log empty, at an offset that may be anywhere. The intention comes first, durably:
                        ``restart-offset``, a checkpoint file with one number, which is removed when all else is done.
                        A load that finds it carries it out. So a crash leaves the old log or the new one.
    damage              What one read found may be a stale position, or a file that was replaced meanwhile. Damaged is
                        a log whose present segment fails when it is read again from its beginning, with checksums.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar

from broker_runtime.contract.errors import (
    CorruptRecordError,
    LogStorageError,
    OffsetOutOfRangeError,
    PylogError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import TopicSettings
from broker_runtime.contract.waiting import Deadline
from broker_runtime.log.appending import MAX_TIMESTAMP_AHEAD_MS, VerifiedFrame
from broker_runtime.log.checkpoint import encode_entries, read_entries
from broker_runtime.log.files import FileSystem, replace_file
from broker_runtime.log.frame_heads import FrameHeads
from broker_runtime.log.group_commit import GroupCommit
from broker_runtime.log.identity import PartitionIdentity
from broker_runtime.log.indexes import AbortedTransaction, ReadPositions
from broker_runtime.log.leader_epochs import EPOCHS_NAME, LeaderEpochs
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.partition_files import RESTART_NAME, UNFLUSHED_NAME, PartitionFiles
from broker_runtime.log.producer_state import (
    UNKNOWN_ENTRIES,
    ProducerState,
    load_producers,
    remove_snapshots,
    transactions_before,
    write_snapshot,
)
from broker_runtime.log.recovery import Mark, Recovery, StartState
from broker_runtime.log.retention import is_expired, segments_to_remove
from broker_runtime.log.scan import LOG_SUFFIX, verified_frames
from broker_runtime.log.segment import SEGMENT_SUFFIXES, Segment, SegmentChain, StampedFrame

SHORTEST_WAIT_S: Final = 0.05  # for a log that is in use, however little time is left
_CHECK_S: Final = 0.05  # how often a thread that waits for the lock checks ``is_over``
_LONGEST_FSYNC_S: Final = 60.0
_ONLY_LED: Final = Mark()
_Found = TypeVar("_Found")

_logger = logging.getLogger(__name__)


class _Use:
    """`LogState.using`. A class, because it is entered several times per append and a generator costs twice as much."""

    __slots__ = ("_doing", "_is_over", "_state", "_timeout_s")

    def __init__(self, state: LogState, doing: str, timeout_s: float, is_over: Callable[[], bool] | None) -> None:
        self._state = state
        self._doing = doing
        self._timeout_s = timeout_s
        self._is_over = is_over

    def __enter__(self) -> None:
        state, is_over = self._state, self._is_over
        timeout_s = self._timeout_s
        if not (state.lock.acquire(timeout=timeout_s) if is_over is None else self._acquire(is_over)):
            raise RequestTimedOutError(f"{state.name} was busy for {timeout_s:g} s; its disk may stand still")
        try:
            if state.offline is not None:
                raise type(state.offline)(state.offline.message)
            if not state.is_loaded:
                state.load()
        except BaseException as error:  # a KeyboardInterrupt too, or the lock would stay taken
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, OSError) and not isinstance(error, PylogError):  # some are both (TimeoutError)
                self._state.fail(self._doing, error)
        finally:
            self._state.lock.release()

    def _acquire(self, is_over: Callable[[], bool]) -> bool:
        deadline = Deadline(self._timeout_s)
        while not self._state.lock.acquire(timeout=deadline.remaining_s(_CHECK_S)):
            if deadline.expired or is_over():
                return False
        return True


class LogState:
    """See the module. The fields below ``is_loaded`` are guarded by ``lock``, and valid once that is true."""

    def __init__(
        self,
        directory: Path,
        identity: PartitionIdentity,
        config: TopicSettings,
        *,
        open_files: OpenFiles,
        heads: FrameHeads,
        start: StartState,
        claim: Callable[[LogState], None],
        make_named: Callable[[LogState], None],
        save_checkpoints: Callable[[], None],
        on_append: Callable[[], None],
        on_roll: Callable[[], None],
    ) -> None:
        """``claim`` is called once, before anything in ``directory`` is read: it ensures that the directory belongs to
        ``identity``, and corrects ``identity`` and ``start``; it may raise `CorruptRecordError`. ``make_named`` is
        called once, when the log exists: if the log is not found later, it counts as missing. Both raise `OSError`.
        ``on_append`` is called after each append, before anything of it is acknowledged; ``on_roll`` after a segment
        was closed. Neither may block.
        """
        self.directory = directory
        self.identity = identity
        self.config = config
        self.open_files = open_files
        self.files = open_files.files
        self.heads = heads
        self.start = start
        self._claim = claim
        self._make_named = make_named
        self._save_checkpoints = save_checkpoints
        self._on_append = on_append
        self._on_roll = on_roll
        self.lock = threading.RLock()
        self.offline: PylogError | None = None  # never None again
        self.has_failed = False  # a disk error took it offline
        self.damage: CorruptRecordError | None = None  # never None again
        self.is_anothers = False  # it counts as damaged because the directory is another log's
        self.is_diverged = False  # it counts as damaged though all its records are sound
        # Called once, by any thread and perhaps with the lock held: it must not block or call back.
        self.on_damage: Callable[[], None] = _nobody
        self.on_failure: Callable[[], None] = _nobody  # the same
        self.is_loaded = False
        self.segments: SegmentChain
        self.log_start_offset = start.log_start_offset  # Invariant: falls only by a truncation below it
        self.high_watermark = start.high_watermark
        self.stable_offset = start.log_start_offset  # Invariant: by `settle`, after each change of what it follows from
        self.mark: Mark | None = None  # the mark ``unflushed``, if it is there
        self.verified_from = 0  # this process verified all records from this offset on when it appended them
        self.epochs: LeaderEpochs
        self.producers: ProducerState
        self.commit: GroupCommit
        self.positions = ReadPositions()
        self.has_rolled = False  # since `PartitionLog.try_flush` last looked
        self.last_sync_ms = 0

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.identity.topic}-{self.identity.partition}"

    @property
    def where(self) -> dict[str, Any]:
        """The fields of an `event` that say which log it is about."""
        return {"topic": self.identity.topic, "partition": self.identity.partition}

    def using(self, doing: str, timeout_s: float = -1, is_over: Callable[[], bool] | None = None) -> _Use:
        """For ``with``: holds the log's lock, with the log loaded and online; an `OSError` inside takes it offline.

        Raises `RequestTimedOutError` where another thread has the lock for longer than ``timeout_s`` (< 0: waits), and
        when ``is_over()`` becomes true meanwhile. ``is_over`` must not block, and needs a ``timeout_s``.
        """
        return _Use(self, doing, timeout_s, is_over)

    def ready(self) -> LogState:
        """Itself, loaded and online. Reading one offset then needs no lock."""
        if not self.is_loaded or self.offline is not None:
            with self.using("load"):
                pass
        return self

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """Takes the log offline and raises `LogStorageError`; if it was offline already, raises the reason for that."""
        failure = LogStorageError(
            f"{self.name}: to {doing} failed: {error}. The partition is offline until its broker is restarted; "
            "nothing acknowledged is lost"
        )
        with self.lock:
            if self.offline is not None:  # it was deleted or closed, or failed before: report that reason
                raise type(self.offline)(self.offline.message) from error
            event(_logger, "take log offline", level=logging.ERROR, **self.where, doing=doing, error=error)
            self.has_failed = True
            self.go_offline(failure)
        self.on_failure()
        raise failure from error

    def note_damage(self, damage: CorruptRecordError) -> None:
        """The log is damaged, in part or as a whole. Only the first call counts. Sound records are still served."""
        with self.lock:
            if self.damage is not None:
                return
            self.damage = damage
        event(_logger, "find damage", level=logging.ERROR, **self.where, error=damage)
        self.on_damage()

    def go_offline(self, reason: PylogError) -> None:
        """Every use and every wait raises ``reason`` from now on. Call with the lock held."""
        self.offline = reason
        if isinstance(reason, CorruptRecordError):
            self.note_damage(reason)
        if self.is_loaded:
            self.commit.fail(reason)
            self.segments.release()

    def start_state(self) -> StartState:
        """What the next start needs to know, as of now. Takes no lock, and does not load the log."""
        if not self.is_loaded:
            return self.start
        durable = self.commit.durable_end_offset
        committed = min(self.high_watermark, durable)
        return StartState(recovery_point=durable, high_watermark=committed, log_start_offset=self.log_start_offset)

    def settle(self) -> None:
        """The high watermark or the transactions have changed. Call inside `using`."""
        self.stable_offset = self.producers.transactions.last_stable_offset(self.high_watermark)

    @property
    def last_stable_offset(self) -> int:
        """Everything below is committed, and belongs to no open transaction."""
        return max(self.stable_offset, self.log_start_offset)  # records of an open transaction may have been deleted

    @property
    def waits_for_device(self) -> bool:
        """Whether a record counts only when it is on the device. With another ``flush.mode`` than ``ack`` that is so
        until the mark is there. Takes no lock."""
        return self.config.flush_mode == "ack" or self.mark is None

    def mark_unflushed(self, mark: Mark = _ONLY_LED) -> None:
        """From now on acknowledgements need not wait for the device. Durable. Call inside `using`."""
        if mark != self.mark:
            mark.write(self.files, self.directory)
            self.mark = mark

    def follows(self) -> None:
        """See `Mark.following`. Durable. Call inside `using`."""
        if self.mark is not None:
            self.mark_unflushed(self.mark.following(self.files))

    def leads(self, leader_epoch: int) -> None:
        """See `Mark.leading`. Durable. Call inside `using`."""
        if self.mark is not None:
            self.mark_unflushed(self.mark.leading(leader_epoch))

    def unmark_unflushed(self) -> None:
        """Everything that was acknowledged without waiting is on the device by now. Durable. Call inside `using`."""
        self.files.unlink(self.directory / UNFLUSHED_NAME)
        self.files.sync_directory(self.directory)
        self.mark = None

    def save(self) -> None:
        """Makes `start_state` durable. Raises `OSError`."""
        self._save_checkpoints()

    def append(self, frames: Sequence[StampedFrame], now_ms: int) -> None:
        """Writes stamped frames at the log's end. Call inside `using`."""
        added = 0

        def on_roll(offset: int) -> None:
            nonlocal added
            while frames[added].header.next_offset <= offset:  # a snapshot knows all frames before it
                self.producers.add(frames[added].header, frames[added].control)
                added += 1
            self._write_snapshot(offset)

        self._compare_if_new(self.segments.active)
        try:
            self.segments.append(frames, self.config, now_ms=now_ms, on_roll=on_roll)
        finally:
            self._on_append()
        for _, header, control in frames[added:]:
            self.producers.add(header, control)
        self.settle()

    def roll(self) -> None:
        """Closes the active segment. Call inside `using`."""
        self.segments.roll(self.config, self._write_snapshot)

    def remove_oldest(self, count: int, log_start_offset: int) -> None:
        """Moves the log's start and removes the first ``count`` segments. Call inside `using`."""
        # The new log start is on the device before a file is removed, or the next start would miss the segments.
        self.log_start_offset = log_start_offset
        self.save()
        bases = self.segments.base_offsets[:count]
        self.segments.remove_oldest(count)
        remove_snapshots(self.files, self.directory, bases)
        self.epochs.truncate_from_start(log_start_offset)

    def reload_producers(self, end: int) -> None:
        """Reads the producers' state again after a truncation to ``end``. Call inside `using`."""
        loaded = self.segments.all_loaded()
        self.producers = load_producers(self.files, self.directory, loaded, end, self.high_watermark)
        self.settle()

    def write_closing_files(self) -> None:
        """Writes the files that spare the next start from reading frames. Call inside `using`, everything flushed."""
        self._write_producers(self.segments.end_offset)
        self.segments.active.sync_indexes()

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [start, end), which is below the last stable offset.

        Call inside `using`. Raises `OffsetOutOfRangeError` where the first of them were removed meanwhile, and their
        index with them; `CorruptRecordError` where the frames are at fault, `OSError`.
        """
        if start < self.segments.base_offsets[0]:
            raise OffsetOutOfRangeError(
                f"offset {start} of {self.directory.name} was deleted while it was read: the log begins at "
                f"{self.log_start_offset}"
            )
        found: list[AbortedTransaction] = []
        for segment in self.segments.from_offset(start):
            if not segment.has_sound_transactions or (segment.is_closed and segment.first_open is None):
                self._compare_transactions(segment)
            more, is_all = self.with_sound_index(segment, partial(segment.transaction_index.aborted, start, end))
            found += more
            first_open = segment.first_open
            is_last = first_open is not None and (first_open < 0 or first_open >= end)
            if is_all or (is_last and segment.next_offset >= end):
                break
        return found

    def _compare_if_new(self, segment: Segment) -> None:
        """Before something is added to what an index lacks, or a snapshot says how long it is."""
        if not segment.has_sound_transactions:
            with suppress(CorruptRecordError):  # reported to whoever reads there
                self._compare_transactions(segment)

    def _compare_transactions(self, segment: Segment) -> None:
        """A transaction index that was lost, whole or in part, is rebuilt: what it lacks would be served. Its snapshot
        tells how long it is."""
        known = transactions_before(self.files, self.directory, segment.next_offset)
        if segment.is_closed:
            segment.first_open = None if known is None else known.first_open
        if segment.has_sound_transactions:
            return
        try:
            segment.has_sound_transactions = known is not None and known.index_entries == len(
                segment.transaction_index.file
            )
        except CorruptRecordError as error:
            self.mend_index(segment, error)
        if not segment.has_sound_transactions:
            event(_logger, "rebuild index", level=logging.WARNING, **self.where, segment=segment.base_offset)
            segment.rebuild_indexes(segment.size_bytes)

    def with_sound_index(self, segment: Segment, find: Callable[[], _Found]) -> _Found:
        """``find()``. If that finds something corrupt, rebuilds the segment's indexes and calls it once more.

        Raises `CorruptRecordError` where the frames are at fault. Call inside `using`.
        """
        try:
            return find()
        except CorruptRecordError as error:
            self.mend_index(segment, error)
            return find()

    def mend_index(self, segment: Segment, error: CorruptRecordError) -> None:
        """Rebuilds a segment's indexes from its headers, without looking at rows, whenever a read found something
        corrupt. Raises `CorruptRecordError` where the headers are at fault."""
        with self.using("rebuild an index"):
            if segment not in self.segments:
                return
            if segment.has_bad_header:
                raise error
            self.positions.clear()
            event(
                _logger, "rebuild index", level=logging.WARNING, **self.where, segment=segment.base_offset, error=error
            )
            try:
                segment.rebuild_indexes(segment.size_bytes)
            except CorruptRecordError:
                segment.has_bad_header = True
                raise

    def load(self) -> None:
        """Reads or recovers the log. Only `using` calls it, once."""
        try:
            self._claim(self)
            self._finish_restart()
            recovery = Recovery(
                self.open_files,
                self.directory,
                self.identity,
                index_interval_bytes=self.config.index_interval_bytes,
                start=self.start,
            )
            loaded = recovery.load()
        except (CorruptRecordError, UnsupportedVersionError) as error:
            event(_logger, "load log", level=logging.ERROR, **self.where, error=error)
            self.go_offline(error)
            raise
        self._make_named(self)
        if self.config.flush_mode != "ack" or Mark.read(self.files, self.directory) is not None:
            self.mark_unflushed()  # of what it said before nothing is left to say: all that was found is on the device
        self.segments = SegmentChain(self.open_files, self.directory, loaded.segments)
        self.log_start_offset = loaded.log_start_offset
        self.high_watermark = loaded.high_watermark
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.commit = GroupCommit(self._sync, self.segments.end_offset)
        self.verified_from = self.segments.end_offset
        self.settle()
        self.is_loaded = True

    def begin_with(self, segment: Segment) -> None:
        """Makes this empty segment the log's only one. Call inside `using` while no fsync is under way."""
        self.segments = SegmentChain(self.open_files, self.directory, [segment])
        self.positions.clear()
        self.commit.begin_at(segment.base_offset)

    def _finish_restart(self) -> None:
        offset = _intended_restart(self.files, self.directory)
        if offset is None:
            return
        event(_logger, "finish restart", level=logging.WARNING, **self.where, offset=offset)
        _carry_out_restart(self.open_files, self.directory, offset, self.config.index_interval_bytes)
        self.start = StartState(recovery_point=offset, high_watermark=offset, log_start_offset=offset)
        self.save()
        _forget_restart(self.files, self.directory)

    def _write_snapshot(self, offset: int) -> None:
        self.has_rolled = True
        self._on_roll()
        self._write_producers(offset)

    def _write_producers(self, offset: int) -> None:
        """``offset``: where the log ends."""
        index_entries = UNKNOWN_ENTRIES
        with suppress(CorruptRecordError):
            last = self.segments.find(offset - 1)  # the active one, unless that is empty: the one before ends here, too
            self._compare_if_new(last)
            if last.has_sound_transactions:
                index_entries = len(last.transaction_index.file)
        write_snapshot(self.files, self.directory, offset, self.producers, index_entries)

    def _sync(self, timeout_s: float, is_over: Callable[[], bool]) -> int:
        """Fsyncs everything appended so far, without the lock. `GroupCommit` calls it, from one thread at a time."""
        with self.using("fsync", max(timeout_s, SHORTEST_WAIT_S), is_over):
            end = self.segments.end_offset
            holds = self.segments.hold_unsynced()
        try:
            for held in holds:
                self.files.sync(held.descriptor)
        except OSError as error:
            self.fail("fsync", error)
        finally:
            for held in holds:
                held.release()
        return end


def _nobody() -> None:
    """Nobody listens."""


# --- a follower's append ----------------------------------------------------------------------------------------------


def append_from_leader(state: LogState, frames: Sequence[VerifiedFrame], leader_epoch: int | None) -> tuple[int, int]:
    """See `PartitionLog.append_as_follower`. The offsets [first, next) that were written. Call outside `using`."""
    with state.using("append"):
        end = state.segments.end_offset
        _check_epochs(state, frames, leader_epoch, end)
        news = [frame for frame in frames if frame.header.next_offset > end]
        if not news:
            return end, end
        first, last = news[0].header, news[-1].header
        if first.base_offset > end or (first.base_offset < end and not _is_empty(state)):
            raise CorruptRecordError(
                f"frames from the leader begin with offset {first.base_offset}, the log ends at {end}"
            )
        if first.leader_epoch < state.epochs.latest:  # one that began here, and then wrote nothing
            state.epochs.truncate_from_end(end)
        for frame in news:
            state.epochs.assign(frame.header.leader_epoch, frame.header.base_offset)
        if first.base_offset < end:  # the leader's log starts within this frame
            _begin_lower(state, first.base_offset)
        state.follows()
        state.append([StampedFrame([frame.buffer], frame.header, frame.control) for frame in news], last.append_time_ms)
    return first.base_offset, last.next_offset


def lies_across(state: LogState, frames: Sequence[VerifiedFrame], leader_start: int) -> bool:
    """Whether the log ends within the first frame that is new, and all it holds is below the leader's start.

    Then the log's last records belong to another history than the leader's, and cannot be compared with it: the leader
    has deleted its own.
    """
    with state.using("append"):
        end = state.segments.end_offset
        first = next((frame.header for frame in frames if frame.header.next_offset > end), None)
        return first is not None and first.base_offset < end <= leader_start and not _is_empty(state)


def _check_epochs(state: LogState, frames: Sequence[VerifiedFrame], leader_epoch: int | None, end: int) -> None:
    """Epochs never fall along a log, none is newer than the leader's own, and a record sent again has the epoch that it
    has here."""
    entries = [entry for entry in state.epochs.entries if entry[1] < end]  # those with records
    newest = entries[-1][0] if entries else -1
    for frame in frames:
        header = frame.header
        if header.next_offset <= end:
            known = next((epoch for epoch, start in reversed(entries) if start <= header.base_offset), None)
            if known is not None and known != header.leader_epoch:
                raise CorruptRecordError(
                    f"offset {header.base_offset} is of leader epoch {known} here, of {header.leader_epoch} in what "
                    "the leader sent again"
                )
        elif header.leader_epoch < newest or (leader_epoch is not None and header.leader_epoch > leader_epoch):
            raise CorruptRecordError(
                f"offset {header.base_offset} is of leader epoch {header.leader_epoch}, behind records of epoch "
                f"{newest}, from a leader in epoch {leader_epoch}"
            )
        else:
            newest = header.leader_epoch


def _is_empty(state: LogState) -> bool:
    return len(state.segments) == 1 and not state.segments.active.size_bytes


def _begin_lower(state: LogState, offset: int) -> None:
    """Makes the only segment of an empty log begin at ``offset``, below the log's start, which stays.

    After a crash in between, the next load begins at the log's start again, empty.
    """
    state.commit.begin_at(offset)
    state.save()  # first, because a log that ends below its recovery point counts as damaged
    above = state.segments.active
    segment = Segment(
        state.open_files,
        state.directory,
        offset,
        index_interval_bytes=state.config.index_interval_bytes,
        is_closed=False,
    )
    segment.create()
    above.delete()
    state.files.sync_directory(state.directory)
    state.begin_with(segment)


# --- shorter ----------------------------------------------------------------------------------------------------------


def truncate_to(state: LogState, offset: int) -> int:
    """See `PartitionLog.truncate_to`, which flushes afterwards."""
    with state.using("truncate"):
        commit = state.commit
    with commit.held_back(_LONGEST_FSYNC_S), state.using("truncate"):
        end = state.segments.end_offset
        if offset >= end:
            state.epochs.truncate_from_end(end)  # an epoch that began here has no record
            return end
        if offset < state.log_start_offset:
            raise OffsetOutOfRangeError(f"offset {offset} is below the log's start, {state.log_start_offset}")
        segment = state.segments.find(offset)
        with segment.hold() as held:
            _, header = state.with_sound_index(segment, lambda: segment.locate(held, segment.extent, offset))
        offset = header.base_offset
        commit.truncated(offset)
        state.high_watermark = min(state.high_watermark, offset)
        state.log_start_offset = min(state.log_start_offset, offset)
        state.save()
        state.positions.clear()
        state.segments.truncate(offset, state.config.index_interval_bytes)
        state.epochs.truncate_from_end(offset)
        state.reload_producers(offset)
    return offset


def restart_at(state: LogState, offset: int) -> None:
    """See `PartitionLog.restart_at`."""
    with state.using("restart"):
        commit = state.commit
    with commit.held_back(_LONGEST_FSYNC_S), state.using("restart"):
        _intend_restart(state.files, state.directory, offset)
        state.segments.release()
        segment = _carry_out_restart(state.open_files, state.directory, offset, state.config.index_interval_bytes)
        state.begin_with(segment)
        state.epochs.replace([])
        state.producers = ProducerState()
        state.log_start_offset = state.high_watermark = offset
        state.settle()
        state.save()
        _forget_restart(state.files, state.directory)


def delete_records(state: LogState, offset: int, timeout_s: float = -1) -> int:
    """See `PartitionLog.delete_records`."""
    with state.using("delete records", timeout_s):
        if not 0 <= offset <= state.high_watermark:
            raise OffsetOutOfRangeError(
                f"records of {state.name} can be deleted up to the high watermark, {state.high_watermark}, "
                f"not to {offset}"
            )
        if offset > state.log_start_offset:
            state.remove_oldest(sum(base <= offset for base in state.segments.base_offsets[1:]), offset)
        return state.log_start_offset


def apply_retention(state: LogState, now_ms: int) -> int:
    """See `PartitionLog.apply_retention`."""
    with state.using("apply retention"):
        maybe_roll(state, now_ms)
        ages = state.segments.ages(now_ms)
        if ages[-1].size_bytes and is_expired(ages[-1], state.config, now_ms):
            state.roll()
            ages = state.segments.ages(now_ms)
        count = segments_to_remove(ages, state.config, bound=state.stable_offset, now_ms=now_ms)
        if count:
            start = max(state.segments.base_offsets[count], state.log_start_offset)
            state.remove_oldest(count, start)
        return count


def is_retained_whole(state: LogState, now_ms: int) -> bool:
    """Whether retention certainly removes nothing of a log that is not loaded, going by the sizes and times of its
    files.

    A file's time is that of its last append or later (that of a restored copy is later, and keeps the segment longer).
    A time that is ahead of the clock proves nothing.
    """
    if state.offline is not None:
        return False
    try:
        bases = PartitionFiles.find(state.files, state.directory).base_offsets
        paths = [state.directory / f"{base:020d}{LOG_SUFFIX}" for base in bases]
        size = sum(state.files.file_size(path) or 0 for path in paths)
        oldest_ms = state.files.modified_ms(paths[0]) if paths else None
    except FileNotFoundError:
        return False  # set aside or deleted meanwhile
    except OSError as error:
        state.fail("apply retention", error)
    if not size:
        return True
    is_young = (
        oldest_ms is not None and now_ms - state.config.retention_ms <= oldest_ms <= now_ms + MAX_TIMESTAMP_AHEAD_MS
    )
    return (state.config.retention_ms < 0 or is_young) and not 0 <= state.config.retention_bytes < size


def maybe_roll(state: LogState, now_ms: int) -> bool:
    """Closes the active segment if its first frame is ``segment.ms`` old. Returns whether it did."""
    with state.using("roll"):
        active = state.segments.find(state.segments.end_offset)
        if not active.size_bytes or now_ms - active.first_append_ms < state.config.segment_ms:
            return False
        state.roll()
        return True


# --- restart ----------------------------------------------------------------------------------------------------------


def _intend_restart(files: FileSystem, directory: Path, offset: int) -> None:
    """From now on the log is the one that begins at ``offset``. Durable when it returns. Raises `OSError`."""
    replace_file(files, directory / RESTART_NAME, encode_entries([(offset,)]))


def _intended_restart(files: FileSystem, directory: Path) -> int | None:
    """The offset of an intention that was not carried out. Raises `CorruptRecordError` where it cannot be read,
    `OSError`."""
    path = directory / RESTART_NAME
    if files.file_size(path) is None:
        return None
    rows = read_entries(files, path, field_count=1)
    if not rows:
        raise CorruptRecordError(f"{path} is damaged: the log was about to restart, and at which offset is not known")
    return int(rows[0][0])


def _carry_out_restart(open_files: OpenFiles, directory: Path, offset: int, index_interval_bytes: int) -> Segment:
    """Removes everything but the identity, and makes an empty segment at ``offset``. Durable. Raises `OSError`.

    Nothing else may change the log meanwhile, and none of its files may be held for an fsync. Readers keep the files
    they hold.
    """
    files = open_files.files
    found = PartitionFiles.find(files, directory)
    remove_snapshots(files, directory, found.snapshot_offsets)
    names = [f"{base:020d}{suffix}" for base in found.base_offsets for suffix in SEGMENT_SUFFIXES]
    for name in (*names, *found.leftovers, EPOCHS_NAME):
        if files.file_size(directory / name) is not None:
            files.unlink(directory / name)
    open_files.forget_below({directory})
    segment = Segment(open_files, directory, offset, index_interval_bytes=index_interval_bytes, is_closed=False)
    segment.create()
    return segment


def _forget_restart(files: FileSystem, directory: Path) -> None:
    """The intention is carried out, and the checkpoints say so. Durable when it returns. Raises `OSError`."""
    files.unlink(directory / RESTART_NAME)
    files.sync_directory(directory)


# --- damage -----------------------------------------------------------------------------------------------------------


@contextmanager
def noting_damage(state: LogState, offset: int | None = None) -> Iterator[None]:
    """For code that reads the record ``offset`` (None: any): if it finds something corrupt, and the log is at fault,
    the log counts as damaged. The error is raised in any case."""
    try:
        yield
    except CorruptRecordError as error:
        note_damage(state, error, offset)
        raise


def note_damage(state: LogState, suspicion: CorruptRecordError, offset: int | None = None) -> None:
    """Checks whether the log is damaged where ``offset`` is (None: anywhere, by headers alone), and if so notes it.

    Blocks while a segment is read. Raises nothing: a disk that fails takes the log offline.
    """
    if state.damage is not None:
        return
    try:
        found = _first_bad_segment(state) if offset is None else _damage_at(state, offset)
    except PylogError as error:  # offline, by now
        event(_logger, "look for damage", level=logging.WARNING, **state.where, suspicion=suspicion, error=error)
        return
    if found is None:
        event(_logger, "find no damage", level=logging.WARNING, **state.where, offset=offset, suspicion=suspicion)
    else:
        state.note_damage(found)


def _damage_at(state: LogState, offset: int) -> CorruptRecordError | None:
    try:
        with state.using("look for damage"):
            if not state.log_start_offset <= offset < state.segments.end_offset:
                return None
            segment = state.segments.find(offset)
            size_bytes, held = segment.size_bytes, segment.hold()
    except CorruptRecordError as error:  # its headers do not follow each other
        return error
    found: CorruptRecordError | None = None
    with held:
        try:
            for _ in verified_frames(
                state.files,
                held.descriptor,
                segment.path,
                size_bytes=size_bytes,
                base_offset=segment.base_offset,
                identity=state.identity,
            ):
                pass
        except CorruptRecordError as error:
            found = error
        except OSError as error:
            if not isinstance(error, PylogError):
                state.fail("look for damage", error)
            raise
    with state.lock:
        return found if segment in state.segments else None


def _first_bad_segment(state: LogState) -> CorruptRecordError | None:
    with state.using("look for damage"):
        for base_offset in state.segments.base_offsets:
            try:
                state.segments.find(base_offset)
            except CorruptRecordError as error:
                return error
    return None
