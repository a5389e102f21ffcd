"""One data directory: whose it is, which logs are in it, and the small files that they share.

    .lock                                the process that uses the directory holds its flock; contains its pid
    meta.json                            cluster and broker (identity.py)
    disk.json                            the directory's own id, the epoch of its broker's last registration, its
                                         generation within that, and whether that ended with an orderly stop
    clean-shutdown                       between a clean stop and the next start: lists the logs that are not clean
    recovery-point-checkpoint            per log: everything below is on the device
    high-watermark-checkpoint            per log: everything below was committed
    log-start-offset-checkpoint          per log: everything below was deleted (absent: 0)
    missing-logs                         logs that the checkpoints name and that were not there at a start: up to where
                                         each is known to have gone; also after they are back, until that was handled
    <topic>-<partition>/                 one log (partition_log.py)
    <topic>-<partition>.<id>.stray/      a log whose topic id did not fit: set aside, never read
    <topic>-<partition>.<id>.damaged/    a damaged log: set aside, never read; at most one per partition
    <topic>-<partition>.<id>.diverged/   a log with records, perhaps committed ones, that its leader lacks: set aside,
                                         never read, and kept for ever
    <topic>-<partition>.<id>.deleted/    being removed

Rules:

- Opening reads the list of names and the checkpoints, however many and large the logs are. The first use of a log reads
  its identity before anything else in its directory.
- Creating a log costs no fsync. Its first use makes it durable before anything is acknowledged, along with its name in
  the checkpoints, and the names of all logs created by then.
- A log that the checkpoints name and that is not there was lost. It is not forgotten until another takes its place. If
  it is put back, it is verified as a whole, and counts as damaged if it ends before what is known of it: an older copy
  is not served.
- Unknown files are ignored, and logged once.
- A log that is set aside gets a new name each time. If that would be too long for the file system, the topic's name in
  it is cut short.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from broker_runtime.contract.errors import (
    CorruptRecordError,
    InconsistentTopicIdError,
    LogStorageError,
    NotLeaderOrFollowerError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import TopicSettings
from broker_runtime.log.checkpoint import OffsetCheckpoint, encode_entries, read_entries
from broker_runtime.log.files import FileSystem, RealFiles, replace_file
from broker_runtime.log.frame_heads import FrameHeads
from broker_runtime.log.identity import (
    DISK_NAME,
    LOCK_NAME,
    META_NAME,
    DirectoryIdentity,
    DiskIdentity,
    PartitionIdentity,
    claim_directory,
    lock_directory,
)
from broker_runtime.log.log_state import LogState
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.partition_files import UNFLUSHED_NAME, PartitionFiles
from broker_runtime.log.partition_log import PartitionLog
from broker_runtime.log.recovery import StartState
from broker_runtime.log.scan import belongs_to

CLEAN_NAME = "clean-shutdown"
RECOVERY_POINT_NAME = "recovery-point-checkpoint"
HIGH_WATERMARK_NAME = "high-watermark-checkpoint"
LOG_START_NAME = "log-start-offset-checkpoint"
MISSING_NAME = "missing-logs"
_KNOWN_FILES = {
    LOCK_NAME, ".instance", CLEAN_NAME, META_NAME, DISK_NAME, RECOVERY_POINT_NAME, HIGH_WATERMARK_NAME, LOG_START_NAME,
    MISSING_NAME,
}  # fmt: skip
_LOG_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,5})\Z")

ASIDE_NAME = re.compile(r"(.*)\.[0-9a-f]{32}\.(stray|damaged|diverged|deleted)\Z")
DAMAGED, DIVERGED = KEPT = ("damaged", "diverged")
_LONGEST_NAME = 255

_logger = logging.getLogger(__name__)


class LogDirectory:
    """See the module. Thread-safe. Created by `open`."""

    def __init__(
        self, path: Path, identity: DirectoryIdentity, files: FileSystem, lock_descriptor: int, *, max_open_files: int
    ) -> None:
        self.path = path
        self.identity = identity
        self.files = files
        self.open_files = OpenFiles(files, limit=max_open_files)
        self._heads = FrameHeads()
        self._lock_descriptor = lock_descriptor
        self._lock = threading.Lock()  # guards the fields below
        self._save_lock = (
            threading.Lock()
        )  # one writer of checkpoints at a time; taken inside a log's lock, never around
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._found: set[TopicPartition] = set()
        # Invariant: the keys are those of _found.
        self._starts: dict[TopicPartition, StartState] = {}
        self._recovery_points = OffsetCheckpoint(files, path / RECOVERY_POINT_NAME)
        self._high_watermarks = OffsetCheckpoint(files, path / HIGH_WATERMARK_NAME)
        self._log_starts = OffsetCheckpoint(files, path / LOG_START_NAME)
        self._lost_names = OffsetCheckpoint(files, path / MISSING_NAME)
        self.disk = DiskIdentity(disk_id=str(uuid.uuid4()))
        self._named: frozenset[TopicPartition] = frozenset()  # by the checkpoints, at the start
        # Invariant: none of these is in _found. What the checkpoints say about them is kept.
        self._missing: dict[TopicPartition, StartState] = {}
        self._being_made: set[TopicPartition] = set()  # in _found, and perhaps not on the disk yet
        # Missing at an earlier start, there at this one, and not both verified and handled yet: up to where each is
        # known to have gone.
        self._put_back: dict[TopicPartition, int] = {}
        self._verified: set[TopicPartition] = set()  # those of _put_back that were loaded
        self._may_forget_put_back = False  # whether `forget_put_back` was called
        self.is_copy = False  # of a directory whose broker was running: what it lacks is not known
        self.was_clean = False  # whether there was a last stop, and it closed every log in order
        # It was registered once, but at the start no checkpoint said which logs it had. None does until it registers.
        self.has_lost_names = False
        self.usable_bytes_known: int | None = None  # what `usable_bytes` was last
        self._is_closed = False
        self._is_registered = False  # since it was opened
        self._is_given_up = False  # guarded by _save_lock, as is writing disk.json
        self._has_appended = False  # since the generation was last raised
        self._has_rolled = False  # a log closed a segment since checkpoints were last saved for that

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        cluster_id: str,
        broker_id: int,
        files: FileSystem | None = None,
        max_open_files: int = 512,
    ) -> LogDirectory:
        """Locks the directory for this process, and creates it if need be.

        Raises `DirectoryLockedError` (another process, cluster or broker has it), `CorruptRecordError` for a damaged
        meta.json, `OSError`.
        """
        files = files if files is not None else RealFiles()
        path = Path(path)
        files.make_directory(path)
        descriptor = lock_directory(files, path)
        try:
            was_claimed = files.file_size(path / META_NAME) is not None  # else its inode is a new one
            identity = claim_directory(files, path, DirectoryIdentity(cluster_id=cluster_id, broker_id=broker_id))
            directory = cls(path, identity, files, descriptor, max_open_files=max_open_files)
            directory._read_start(may_be_copy=was_claimed)
        except BaseException:  # a KeyboardInterrupt too, or the directory would stay locked
            files.close(descriptor)
            raise
        return directory

    # --- its logs -------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[TopicPartition]:
        """Every log in the directory, used or not."""
        with self._lock:
            return sorted(self._found)

    @property
    def logs(self) -> list[PartitionLog]:
        """The logs that are in use: asked for, and not deleted since."""
        with self._lock:
            return list(self._logs.values())

    @property
    def failed(self) -> frozenset[TopicPartition]:
        """The logs in use that a disk error ended, in `close` as well."""
        with self._lock:
            return frozenset(at for at, log in self._logs.items() if log.has_failed)

    def topic_id_of(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        """The topic id in the log's directory; None if there is no log or no readable id. Raises `OSError`."""
        try:
            identity = PartitionIdentity.read(self.files, self._path_of(topic_partition))
        except CorruptRecordError:
            return None
        return None if identity is None else identity.topic_id

    def has(self, topic_partition: TopicPartition) -> bool:
        """Whether there is such a log, used or not. Never waits."""
        return topic_partition in self._found

    def is_unflushed(self, topic_partition: TopicPartition) -> bool:
        """Whether what was acknowledged in the log may not be on the device. Raises `OSError`."""
        return self.files.file_size(self._path_of(topic_partition) / UNFLUSHED_NAME) is not None

    def is_named(self, topic_partition: TopicPartition) -> bool:
        """Whether the checkpoints named the log when the directory was opened."""
        return topic_partition in self._named

    @property
    def missing(self) -> frozenset[TopicPartition]:
        """The logs that were lost: the checkpoints name them, and they are not there. Never waits."""
        return frozenset(self._missing)

    @property
    def put_back(self) -> frozenset[TopicPartition]:
        """The logs that were missing at an earlier start and are there again, until `forget_put_back` and their first
        use, whichever is later."""
        return frozenset(self._put_back)

    def forget_put_back(self) -> None:
        """Forgets that logs were missing once, each as soon as it is verified. Its first use does that, in this process
        or a later one. The next checkpoint says so."""
        with self._lock:
            self._may_forget_put_back = True
            for key in self._verified:
                self._put_back.pop(key, None)

    def forget_missing(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These logs no longer count as missing; the next checkpoint says so. Never waits."""
        for key in topic_partitions:
            self._missing.pop(key, None)

    def remember_epoch(self, epoch: int, *, is_outdated: bool = False) -> None:
        """The broker registers in ``epoch``, with this directory. ``is_outdated``: the directory is an older copy, and
        gets another id. Durable. Called when the cluster knows what is missing here. Raises `OSError`; then either
        nothing has changed or everything was done."""
        with self._save_lock:
            self._require_own()
            disk_id = str(uuid.uuid4()) if is_outdated else self.disk.disk_id
            inode, born_ns = self._made()
            disk = DiskIdentity(disk_id=disk_id, epoch=epoch, inode=inode, born_ns=born_ns)
            disk.write(self.files, self.path)
            self.disk = disk
            self.is_copy = False
            self._is_registered = True
        if self.has_lost_names:
            self._save()  # the cluster knows by now what is missing here

    def log(
        self,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: TopicSettings,
        schemas: Sequence[tuple[int, bytes]] = (),
        *,
        is_counted_on: bool = False,
    ) -> PartitionLog:
        """The log, created if there is none. Its first use loads it. ``schemas``: (id, Arrow schema message).

        If a directory of that name belongs to another topic id or partition, the first use sets it aside before
        anything is read. With ``is_counted_on`` (committed records may be in this log) such a directory that was there
        at the start counts as damage instead, and stays: otherwise an empty log would take its place. Raises
        `InconsistentTopicIdError` if the log is open under another topic id, `OSError`.
        """
        key = TopicPartition(topic, partition)
        with self._lock:
            log = self._logs.get(key)
            if log is not None and log.topic_id != topic_id:
                raise InconsistentTopicIdError(f"{key} is open as topic {log.topic_id}, not {topic_id}")
            if log is None:
                identity = PartitionIdentity(
                    topic=topic, topic_id=topic_id, partition=partition, schemas=tuple(sorted(schemas))
                )
                if key not in self._found:
                    self._make(key, identity)
                log = self._logs[key] = PartitionLog(
                    LogState(
                        self._path_of(key),
                        identity,
                        config,
                        open_files=self.open_files,
                        heads=self._heads,
                        start=self._starts[key],
                        claim=partial(self._claim, is_counted_on=is_counted_on),
                        make_named=self._make_named,
                        save_checkpoints=self._save,
                        on_append=self._appended,
                        on_roll=self._rolled,
                    )
                )
                return log
        log.config = config
        if schemas:
            log.add_schemas(schemas)
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """Removes a log and all its files, and its damaged copy, if there is such a log. Readers keep the files they
        hold. Other copies that were set aside stay: they may have records that are nowhere else."""
        self._delete([topic_partition], copies=[DAMAGED])

    def delete_all(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """`delete` for many logs of a topic that is gone, with few fsyncs; also removes all their copies that were set
        aside and kept. After an `OSError` some may still be there."""
        self._delete(list(topic_partitions), copies=KEPT)

    def _delete(self, keys: Sequence[TopicPartition], *, copies: Collection[str]) -> None:
        self.forget_missing(keys)
        for target in [*self._take_away(keys, "deleted"), *kept_copies(self.files, self.path, keys, copies)]:
            self.files.remove_tree(target)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Takes a log out of use and keeps its files under another name, if there is such a log."""
        self._take_away([topic_partition], "stray")

    def set_aside_damaged(self, topic_partition: TopicPartition) -> None:
        """Takes a log out of use that is damaged, or diverged (`PartitionLog.refuse_to_lose`); the next `log` creates
        an empty one. The files stay: those of a damaged log until another one of the same partition is set aside, those
        of a diverged one, and of another log in its place, for ever. Durable when it returns. Raises `OSError`: then
        nothing has changed, except that an older damaged copy may be gone."""
        log = self._logs[topic_partition]
        if log.is_anothers:
            self._take_away([topic_partition], "stray")
            return
        suffix = DIVERGED if log.is_diverged else DAMAGED
        log.abandon(LogStorageError(f"{topic_partition} is {suffix}, and is set aside: another log takes its place"))
        # Of two diverged logs each may have records that are nowhere else, whichever is longer.
        older = [] if log.is_diverged else kept_copies(self.files, self.path, [topic_partition], [DAMAGED])
        for each in older:
            event(_logger, "remove older damaged log", level=logging.WARNING, path=each)
            self.files.remove_tree(each)
        with self._lock:
            (target,) = self._rename_aside([topic_partition], suffix)
            del self._logs[topic_partition]
        self._save()
        if log.is_diverged:
            event(
                _logger,
                "set diverged log aside",
                level=logging.ERROR,
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                path=target,
                advice="Records that its leader lacks may be nowhere else: keep it until you know that they are not "
                "needed, then delete the directory. pylog log dump reads it.",
            )

    def start_of(self, topic_partition: TopicPartition) -> StartState:
        """What is known about a log that is not in use. Raises `KeyError` if there is none."""
        return self._starts[topic_partition]

    def begin_with(self, topic_partition: TopicPartition, start: StartState) -> None:
        """For the repair of a log that is not in use: what the next start knows about it. Durable. Raises `OSError`."""
        assert topic_partition not in self._logs, f"{topic_partition} is in use"
        self._starts[topic_partition] = start
        if topic_partition in self._put_back:
            self._put_back[topic_partition] = start.known_end
        self._save()

    # --- durability -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Makes recovery points, high watermarks and log starts durable, so that the next start verifies less. Then
        raises the generation, if the directory is registered and records were appended since it was last raised.

        Fsyncs logs that closed a segment since. Call it every few seconds. Raises `OSError`.
        """
        self._save_flushed()
        self._raise_generation()

    def maybe_checkpoint(self) -> bool:
        """If a log closed a segment since the last call: makes durable what `checkpoint` does, so that the next start
        does not verify that segment. Raises no generation. Returns whether it did anything.

        Call it often, on a thread that nobody waits for. (Appends and flushes save no checkpoint, because all logs
        share it.) Raises `OSError`; then the next `checkpoint` does it.
        """
        if not self._has_rolled:
            return False
        self._save_flushed()
        return True

    def maybe_flush(self, now_ms: int) -> None:
        """`PartitionLog.maybe_flush` for all logs. One that fails goes offline; the others are flushed all the same."""
        for log in self.logs:
            log.try_flush(now_ms)

    @property
    def usable_bytes(self) -> int:
        """What can still be written to the device. Blocks for as long as the disk does, see `usable_bytes_known`."""
        self.usable_bytes_known = self.files.free_bytes(self.path)
        return self.usable_bytes_known

    def close(self, *, clean: bool = True) -> None:
        """Closes all logs and releases the directory. ``clean=False``: as if the process died here.

        Nothing is written afterwards. Raises `OSError`; the lock is released in any case.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            logs = dict(self._logs)
        try:
            if clean:
                not_clean = {key for key, start in self._starts.items() if not start.is_clean and key not in logs}
                not_clean.update(key for key, log in logs.items() if not log.close())
                self._save_if_names_are_known()
                rows = [(topic, partition) for topic, partition in sorted(not_clean)]
                replace_file(self.files, self.path / CLEAN_NAME, encode_entries(rows))
                if self._is_registered:  # else an older copy that was only inspected would pass for the newest
                    with self._save_lock:
                        disk = replace(self.disk, is_stopped=True)
                        disk.write(self.files, self.path)
                        self.disk = disk
        finally:
            with self._save_lock:  # a save under way finishes first; later ones are refused
                self._is_given_up = True
            self.open_files.close()
            self.files.close(self._lock_descriptor)

    def __enter__(self) -> LogDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- within ---------------------------------------------------------------------------------------------------

    def _read_start(self, *, may_be_copy: bool) -> None:
        self._read_disk(may_be_copy=may_be_copy)
        foreign = []
        directories = self.files.list_directories(self.path)
        for name in self.files.list(self.path):
            match = _LOG_NAME.match(name)
            aside = ASIDE_NAME.match(name)
            if match and name in directories:
                self._found.add(TopicPartition(match[1], int(match[2])))
            elif aside and aside[2] == "deleted":
                self.files.remove_tree(self.path / name)
            elif name.endswith(".tmp") and name.removesuffix(".tmp") in _KNOWN_FILES:
                self.files.unlink(self.path / name)  # left by a crash in the middle of a replacement
            elif not aside and name not in _KNOWN_FILES:
                foreign.append(name)
        if foreign:
            names = ", ".join(foreign[:10])
            event(_logger, "ignore foreign files", level=logging.WARNING, path=self.path, names=names)
        rows = read_entries(self.files, self.path / CLEAN_NAME, field_count=2)
        not_clean = self._found if rows is None else {TopicPartition(topic, int(number)) for topic, number in rows}
        self.was_clean = rows is not None and not rows
        points = self._recovery_points.read()
        watermarks = self._high_watermarks.read()
        self.has_lost_names = points is None and self.disk.epoch >= 0
        starts = self._log_starts.read()
        lost_before = self._lost_names.read() or {}
        self._named = frozenset({**(points or {}), **(watermarks or {}), **(starts or {}), **lost_before})
        self._put_back = {
            key: max(known, (points or {}).get(key, 0), (watermarks or {}).get(key, 0))
            for key, known in lost_before.items()
            if key in self._found
        }
        for key in self._named - self._found:
            self._missing[key] = StartState(
                recovery_point=max((points or {}).get(key, 0), lost_before.get(key, 0)),
                high_watermark=(watermarks or {}).get(key, 0),
                log_start_offset=(starts or {}).get(key, 0),
            )
        if self._missing:
            event(
                _logger,
                "miss logs",
                level=logging.ERROR,
                path=self.path,
                count=len(self._missing),
                logs=", ".join(map(str, sorted(self._missing)[:10])),
                error="the checkpoints name them, and their directories are not there",
            )
        for key in self._found:
            was_put_back = key in self._put_back
            self._starts[key] = StartState(
                recovery_point=self._put_back[key] if was_put_back else (points or {}).get(key, 0),
                high_watermark=(watermarks or {}).get(key, 0),
                log_start_offset=self._first_offset(key) if starts is None else starts.get(key, 0),
                is_clean=points is not None and key in points and key not in not_clean and not was_put_back,
                was_found=True,
                was_put_back=was_put_back,
            )
        if self.files.file_size(self.path / CLEAN_NAME) is not None:
            self.files.unlink(self.path / CLEAN_NAME)
        self.files.sync_directory(self.path)  # the names of all logs as well: once here, not at the first use of each
        self._save_if_names_are_known()
        event(_logger, "open directory", path=self.path, logs=len(self._found), is_clean=rows is not None)

    def _save_flushed(self) -> None:
        self._has_rolled = False  # first: a segment that is closed from now on belongs to the next call
        for log in self.logs:
            log.try_flush()
        self._save()

    def _appended(self) -> None:
        self._has_appended = True

    def _rolled(self) -> None:
        self._has_rolled = True

    def _raise_generation(self) -> None:
        """Then a copy of the directory that was made before the last appends has a lower generation. Durable before it
        can be seen in ``disk``. Raises `OSError`; the next call tries again."""
        with self._save_lock:
            if not (self._has_appended and self._is_registered):
                return
            self._require_own()
            self._has_appended = False  # first: records appended from now on need the next generation
            try:
                disk = replace(self.disk, generation=self.disk.generation + 1)
                disk.write(self.files, self.path)
                self.disk = disk
            except BaseException:  # whatever it was, the appended records still need the next generation
                self._has_appended = True
                raise

    def _require_own(self) -> None:
        if self._is_given_up:
            raise LogStorageError(f"{self.path} is closed")

    def _read_disk(self, *, may_be_copy: bool) -> None:
        try:
            found = DiskIdentity.read(self.files, self.path)
        except CorruptRecordError as error:
            event(_logger, "take directory for another disk", level=logging.ERROR, path=self.path, error=error)
            found = None
        if found is None:
            self.disk.write(self.files, self.path)
        else:
            self.disk = found
            self.is_copy = may_be_copy and not found.is_stopped and not found.is_of(*self._made())
        if self.is_copy:
            event(_logger, "find copy of running broker's directory", level=logging.ERROR, path=self.path)

    def _made(self) -> tuple[int, int]:
        path = self.path / META_NAME
        return self.files.inode(path) or 0, self.files.born_ns(path)

    def _first_offset(self, key: TopicPartition) -> int:
        """Where a log begins if no checkpoint says so."""
        return next(iter(PartitionFiles.find(self.files, self._path_of(key)).base_offsets), 0)

    def _path_of(self, key: TopicPartition) -> Path:
        return self.path / str(key)

    def _make(self, key: TopicPartition, identity: PartitionIdentity) -> None:
        """Makes the directory of a new log, not durably. Call with the lock held. Raises `OSError`."""
        directory = self._path_of(key)
        is_there = self.files.is_directory(directory)  # made by others since the start: the first use sees whose it is
        self._being_made.add(key)
        self._starts[key] = StartState()
        self._found.add(key)
        was_missing = self._missing.pop(key, None)
        self._put_back.pop(key, None)
        try:
            self._save(about=key)  # before the directory exists: what the checkpoints said was about another log
            self.files.make_directory(directory)
            identity.write(self.files, directory, is_durable=False)
            self._being_made.discard(key)
        except OSError:
            if not is_there:
                self.files.remove_tree(directory)  # so that it can be tried again, or elsewhere
            self._found.discard(key)
            self._starts.pop(key, None)
            if was_missing is not None:
                self._missing[key] = was_missing
            self._being_made.discard(key)
            raise

    def _claim(self, state: LogState, *, is_counted_on: bool) -> None:
        """Begins a log's first use: if its directory is not the wanted topic's, that is set aside for a new one.

        The log's lock is held. Raises `CorruptRecordError` as `log` says, `OSError`.
        """
        key = TopicPartition(state.identity.topic, state.identity.partition)
        identity = self._identity_of(key, state.identity)
        if identity is not None:
            state.identity = identity
            return
        if is_counted_on and state.start.was_found:
            state.is_anothers = True
            raise CorruptRecordError(
                f"{self._path_of(key)} is not the directory that the replica had: it is another topic's or partition's"
            )
        with self._lock:
            self._rename_aside([key], "stray")
            state.start = StartState()  # first, because it is saved from now on
            self._make(key, state.identity)

    def _make_named(self, state: LogState) -> None:
        """From now on the checkpoints name the log, and every other created before it: a log that has acknowledged or
        returned anything must count as missing if it is not there. The log's lock is held. Raises `OSError`."""
        key = TopicPartition(state.identity.topic, state.identity.partition)
        with self._lock:
            if key in self._put_back:
                self._verified.add(key)
            if self._may_forget_put_back:
                self._put_back.pop(key, None)
        if not self._recovery_points.names([key]):
            self._save()

    def _identity_of(self, key: TopicPartition, wanted: PartitionIdentity) -> PartitionIdentity | None:
        """The identity in the log's directory, if it is the wanted topic's; else None."""
        directory = self._path_of(key)
        try:
            found = PartitionIdentity.read(self.files, directory)
        except CorruptRecordError as error:
            event(_logger, "ignore damaged identity", level=logging.WARNING, path=directory, error=error)
            found = None
        if found is None:
            # The frames' stamps are seeded with the topic id, so recovery and readers recognize another topic's.
            if not belongs_to(self.files, directory, wanted):
                return None
            found = wanted
            found.write(self.files, directory)
        if (found.topic, found.topic_id, found.partition) != (wanted.topic, wanted.topic_id, wanted.partition):
            return None
        merged = found.with_schemas(wanted.schemas)
        if merged != found:
            merged.write(self.files, directory)
        return merged

    def _take_away(self, keys: Sequence[TopicPartition], suffix: str) -> list[Path]:
        """Takes logs out of use and renames their directories. Returns the new names."""
        for key in keys:
            log = self._logs.get(key)
            if log is not None:
                # Retriable: the topic may be gone, or only this replica. Metadata says which.
                log.abandon(NotLeaderOrFollowerError(f"{key} is not on this broker any more"))
        with self._lock:
            for key in keys:
                self._logs.pop(key, None)
            targets = self._rename_aside([key for key in keys if key in self._found], suffix)
        if targets:
            self._save()
        return targets

    def _rename_aside(self, keys: Sequence[TopicPartition], suffix: str) -> list[Path]:
        """Durable when it returns. Call with the lock held. Raises `OSError`; directories already renamed are no longer
        logs then."""
        if not keys:
            return []
        targets: list[Path] = []
        try:
            for key in keys:
                source = self._path_of(key)
                target = self.path / name_aside(source.name, suffix)
                self.files.rename(source, target)
                targets.append(target)
                self._found.discard(key)
                self._starts.pop(key, None)
                self._put_back.pop(key, None)
        finally:
            renamed = keys[: len(targets)]
            self.open_files.forget_below({self._path_of(key) for key in renamed})
            if renamed:
                event(
                    _logger,
                    "set logs aside",
                    path=self.path,
                    first=renamed[0],
                    renamed_to=targets[0].name,
                    count=len(renamed),
                )
        self.files.sync_directory(self.path)
        return targets

    def _save_if_names_are_known(self) -> None:
        """`_save`, unless the names of lost logs are unknown: checkpoints that name only those that are there would
        say that nothing is missing. Raises as `_save`."""
        if self._is_registered or not self.has_lost_names:
            self._save()

    def _save(self, *, about: TopicPartition | None = None) -> None:
        """Writes the checkpoints; with ``about`` only if one of them mentions that log.

        Takes no log's lock, because logs call it under theirs. Raises `LogStorageError` once the directory is closed,
        `OSError`.
        """
        with self._save_lock:
            self._require_own()
            checkpoints = (self._recovery_points, self._high_watermarks, self._log_starts, self._lost_names)
            if about is not None and not any(checkpoint.mentions(about) for checkpoint in checkpoints):
                return
            starts = {key: start for key, start in dict(self._starts).items() if key not in self._being_made}
            starts.update((key, log.start_state()) for key, log in dict(self._logs).items() if key in starts)
            if not self._recovery_points.names(starts):
                self.files.sync_directory(self.path)  # a log that the checkpoints name must be there after any crash
            missing = dict(self._missing)
            self._lost_names.write({**self._put_back, **{key: start.known_end for key, start in missing.items()}})
            starts = {**missing, **starts}
            self._recovery_points.write({key: start.recovery_point for key, start in starts.items()})
            self._high_watermarks.write(
                {key: start.high_watermark for key, start in starts.items() if start.high_watermark}
            )
            self._log_starts.write(
                {key: start.log_start_offset for key, start in starts.items() if start.log_start_offset}
            )


def name_aside(name: str, suffix: str) -> str:
    """Another name for the directory ``name``."""
    ending = f".{uuid.uuid4().hex}.{suffix}"
    return name[: _LONGEST_NAME - len(ending)] + ending


def kept_copies(
    files: FileSystem, path: Path, logs: Collection[TopicPartition], suffixes: Collection[str] = KEPT
) -> list[Path]:
    """The logs of these partitions that were set aside to be kept in the data directory ``path``. Raises `OSError`."""
    found: list[Path] = []
    for name in files.list(path):
        match = ASIDE_NAME.match(name)
        if match and match[2] in suffixes and _owner(files, path / name, match[1]) in {str(each) for each in logs}:
            found.append(path / name)
    return found


def diverged_logs(files: FileSystem, path: Path) -> list[Path]:
    """All logs that were set aside as diverged in the data directory ``path``. Raises `OSError`."""
    matches = [(path / name, ASIDE_NAME.match(name)) for name in files.list(path)]
    return [found for found, match in matches if match and match[2] == DIVERGED]


def _owner(files: FileSystem, directory: Path, name: str) -> str:
    """``topic-partition``; the directory's own name may be cut short."""
    try:
        identity = PartitionIdentity.read(files, directory)
    except CorruptRecordError:
        identity = None
    return name if identity is None else f"{identity.topic}-{identity.partition}"
