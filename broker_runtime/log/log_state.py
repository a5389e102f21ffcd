"""A log's inner state and the guard around it: the lock, whether it may be used, loading, fsync, going offline.

    log start ≤ high watermark ≤ log end;   durable end ≤ log end

Rule: one lock per log. Every use goes through `using`, which loads the log the first time and takes it offline for
good when an `OSError` comes out. partition_log.py and shortening.py are built on it; nobody else sees it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeVar

from broker_runtime.contract.errors import (
    CorruptRecordError,
    LogStorageError,
    PylogError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from broker_runtime.log import restart
from broker_runtime.log.config import LogConfig
from broker_runtime.log.group_commit import GroupCommit
from broker_runtime.log.identity import PartitionIdentity
from broker_runtime.log.leader_epochs import LeaderEpochs
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.producer_recovery import load_producers, remove_snapshots
from broker_runtime.log.producer_state import ProducerState, write_snapshot
from broker_runtime.log.read_positions import ReadPositions
from broker_runtime.log.recovery import Recovery, StartState
from broker_runtime.log.segment import Segment
from broker_runtime.log.segment_chain import SegmentChain, StampedFrame

SHORTEST_WAIT_S = 0.05  # for a log that is in use, whatever the time that is left
_LOOK_S = 0.05  # how often who waits for the lock looks whether it is over
_Found = TypeVar("_Found")
_log = logging.getLogger(__name__)


class _Use:
    """`LogState.using`; a class because it is entered some times per append, and a generator costs twice as much."""

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
        deadline = time.monotonic() + self._timeout_s
        left_s = self._timeout_s
        while not self._state.lock.acquire(timeout=max(0.0, min(left_s, _LOOK_S))):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or is_over():
                return False
        return True


class LogState:
    """See the module. The fields below ``is_loaded`` are guarded by ``lock`` and mean something once that is true."""

    def __init__(
        self,
        directory: Path,
        identity: PartitionIdentity,
        config: LogConfig,
        *,
        open_files: OpenFiles,
        start: StartState,
        claim: Callable[[LogState], None],
        make_named: Callable[[LogState], None],
        save_checkpoints: Callable[[], None],
        on_append: Callable[[], None],
        on_roll: Callable[[], None],
    ) -> None:
        """``claim`` is called once, before anything in ``directory`` is read: it sees to it that the directory is that
        of ``identity``, and corrects ``identity`` and ``start``; it may raise `CorruptRecordError`. ``make_named`` is
        called once, when the log is there: from then on it is missed where it is not. Both raise `OSError`.
        ``on_append`` is called after each append, before anything of it is acknowledged, ``on_roll`` after a segment
        was closed; they must not block.
        """
        self.directory = directory
        self.identity = identity
        self.config = config
        self.open_files = open_files
        self.files = open_files.files
        self.start = start
        self._claim = claim
        self._make_named = make_named
        self._save_checkpoints = save_checkpoints
        self._on_append = on_append
        self._on_roll = on_roll
        self.lock = threading.RLock()
        self.offline: PylogError | None = None  # never None again
        self.damage: CorruptRecordError | None = None  # never None again
        self.is_anothers = False  # why it counts as damaged: the directory is another log's
        self.is_diverged = False  # why it counts as damaged, though all its records are sound
        # Rung once, by any thread and with the lock held, perhaps: it must not block or call back.
        self.on_damage: Callable[[], None] = _nobody
        self.is_loaded = False
        self.segments: SegmentChain
        self.log_start_offset = start.log_start_offset  # Invariant: never falls, but by truncation below it
        self.high_watermark = start.high_watermark
        self.verified_from = 0  # what was appended from this offset on was verified by this process
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

    def using(self, doing: str, timeout_s: float = -1, is_over: Callable[[], bool] | None = None) -> _Use:
        """For ``with``: the log's lock, the log loaded and online; an `OSError` inside takes it offline. Raises
        `RequestTimedOutError` where somebody else has the lock for longer than ``timeout_s`` (< 0: waits). With
        ``is_over``, which must not block, also where that becomes true meanwhile; give a ``timeout_s`` then."""
        return _Use(self, doing, timeout_s, is_over)

    def ready(self) -> LogState:
        """Itself, loaded and online, for reading one offset: that needs no lock once it is loaded."""
        if not self.is_loaded or self.offline is not None:
            with self.using("load"):
                pass
        return self

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """Takes the log offline and raises `LogStorageError`; or why it was offline already."""
        failure = LogStorageError(
            f"{self.name}: to {doing} failed: {error}. The partition is offline until its broker is started anew; "
            "nothing acknowledged is lost"
        )
        with self.lock:
            if self.offline is not None:  # deleted, closed, or failed before: that is the reason to tell
                raise type(self.offline)(self.offline.message) from error
            _log.error("take log offline log=%s doing=%s error=%s", self.name, doing, error)
            self.go_offline(failure)
        raise failure from error

    def note_damage(self, damage: CorruptRecordError) -> None:
        """The log is damaged, in part or as a whole; only the first time counts. What is sound is served on."""
        with self.lock:
            if self.damage is not None:
                return
            self.damage = damage
        _log.error("find log damaged log=%s error=%s", self.name, damage)
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
        """What the next start needs to know, as of now. Takes no lock and does not load the log."""
        if not self.is_loaded:
            return self.start
        durable = self.commit.durable_end_offset
        return StartState(
            recovery_point=durable,
            high_watermark=min(self.high_watermark, durable),
            log_start_offset=self.log_start_offset,
        )

    def save(self) -> None:
        """Makes `start_state` durable. Raises `OSError`."""
        self._save_checkpoints()

    def append(self, frames: Sequence[StampedFrame], now_ms: int) -> None:
        """Writes stamped frames at the log's end. Call inside `using`."""
        headers = [header for _, header in frames]
        added = 0

        def on_roll(offset: int) -> None:
            nonlocal added
            while headers[added].next_offset <= offset:  # a snapshot knows all frames before it
                self.producers.add(headers[added])
                added += 1
            self._write_snapshot(offset)

        try:
            self.segments.append(frames, self.config, now_ms=now_ms, on_roll=on_roll)
        finally:
            self._on_append()
        for header in headers[added:]:
            self.producers.add(header)

    def roll(self) -> None:
        """Closes the active segment. Call inside `using`."""
        self.segments.roll(self.config, self._write_snapshot)

    def remove_oldest(self, count: int, log_start_offset: int) -> None:
        """Moves the log's start and removes the first ``count`` segments. Call inside `using`."""
        # The new start is on the device before a file goes: else the next start would miss the segments.
        self.log_start_offset = log_start_offset
        self.save()
        bases = self.segments.base_offsets[:count]
        self.segments.remove_oldest(count)
        remove_snapshots(self.files, self.directory, bases)
        self.epochs.truncate_from_start(log_start_offset)

    def reload_producers(self, end: int) -> None:
        """After a truncation to ``end``. Call inside `using`."""
        self.producers = load_producers(self.files, self.directory, self.segments.all_loaded(), end)

    def write_closing_files(self) -> None:
        """What makes the next start need no look at frames. Call inside `using`, everything flushed."""
        write_snapshot(self.files, self.directory, self.segments.end_offset, self.producers)
        self.segments.active.sync_indexes()

    def with_sound_index(self, segment: Segment, find: Callable[[], _Found]) -> _Found:
        """``find()``, once more with the segment's indexes built anew where the first try met something corrupt.

        Raises `CorruptRecordError` where the frames are at fault. Call inside `using`.
        """
        try:
            return find()
        except CorruptRecordError as error:
            self.mend_index(segment, error)
            return find()

    def mend_index(self, segment: Segment, error: CorruptRecordError) -> None:
        """Builds a segment's indexes anew from its headers, which is no look at its rows; as often as somebody meets
        something corrupt. Raises `CorruptRecordError` where the headers are at fault."""
        with self.using("rebuild an index"):
            if segment not in self.segments:
                return
            if segment.has_bad_header:
                raise error
            self.positions.clear()
            _log.warning("rebuild index segment=%s reason=%s", segment.path, error.message)
            try:
                segment.rebuild_indexes(segment.size_bytes)
            except CorruptRecordError:
                segment.has_bad_header = True
                raise

    def load(self) -> None:
        """Reads or recovers the log. `using` calls it, once."""
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
            _log.error("refuse damaged log log=%s error=%s", self.name, error)
            self.go_offline(error)
            raise
        self._make_named(self)
        self.segments = SegmentChain(self.open_files, self.directory, loaded.segments)
        self.log_start_offset = loaded.log_start_offset
        self.high_watermark = loaded.high_watermark
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.commit = GroupCommit(self._sync, self.segments.end_offset)
        self.verified_from = self.segments.end_offset
        self.is_loaded = True

    def begin_with(self, segment: Segment) -> None:
        """The log has this empty segment now, and no other. Call inside `using`, no fsync under way."""
        self.segments = SegmentChain(self.open_files, self.directory, [segment])
        self.positions.clear()
        self.commit.begin_at(segment.base_offset)

    def _finish_restart(self) -> None:
        offset = restart.intended(self.files, self.directory)
        if offset is None:
            return
        _log.warning("finish restart log=%s offset=%d", self.name, offset)
        restart.carry_out(self.open_files, self.directory, offset, self.config.index_interval_bytes)
        self.start = StartState(recovery_point=offset, high_watermark=offset, log_start_offset=offset)
        self.save()
        restart.forget(self.files, self.directory)

    def _write_snapshot(self, offset: int) -> None:
        self.has_rolled = True
        self._on_roll()
        write_snapshot(self.files, self.directory, offset, self.producers)

    def _sync(self, timeout_s: float, is_over: Callable[[], bool]) -> int:
        """Fsyncs all that was appended so far, not under the lock. `GroupCommit` calls it, one thread at a time."""
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
    """Nobody waits for news."""
