"""Opening a log: a clean stop is trusted; after an unclean stop the log is checked.

Rules: beyond the recovery point (everywhere, in a log that was put back) every frame's checksums are verified, and
indexes, epochs and producer state are rebuilt. What is read there may not be on the device: an fsync of the previous
process may have failed, after which Linux counts the pages as clean, so that an fsync now would succeed without writing
them. Therefore every good frame is written once more to its place, and then fsynced; the bytes are the same, so a crash
in between does no harm. Of deleted records, which nobody reads, only the headers have to be sound. The log ends at the
first bad frame, and the rest is truncated, only if nothing shows that more was committed: neither a checkpoint (high
watermark, recovery point) nor the stamp of a later valid frame. Otherwise the log is damaged: `CorruptRecordError` with
file, position and offsets, and no byte of it is changed.

The stamp of a later frame says what was on the *leader's* device. A follower that does not wait for its own device may
have lost earlier frames and kept that one when its machine lost power. So behind the bad frame of a log that followed
in another boot of the machine only the stamps of frames that it led since show anything (`Mark`); where there are
none, the tail is cut.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import STAMP_BYTES, Control, FrameHeader, check_stamp, parse_control
from broker_runtime.log.files import FileSystem, copy_prefix, read_file, replace_file
from broker_runtime.log.identity import PARTITION_NAME, PartitionIdentity
from broker_runtime.log.indexes import IndexBuilder
from broker_runtime.log.leader_epochs import EPOCHS_NAME, LeaderEpochs
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.partition_files import UNFLUSHED_NAME, PartitionFiles
from broker_runtime.log.producer_state import ProducerState, load_producers
from broker_runtime.log.scan import BadFrame, damaged, verified_frames, watermark_behind
from broker_runtime.log.segment import Segment

_UNKNOWN_BOOT: Final = "unknown"  # where the system has no boot id: never equal to one

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What the data directory knows of a log that it has not opened yet.

    ``high_watermark`` never exceeds what was on the device: what a power failure may lose counts as never committed.
    """

    recovery_point: int = 0  # everything below is on the device; in a log that was put back: was, before
    high_watermark: int = 0
    log_start_offset: int = 0
    is_clean: bool = False  # Invariant: then recovery_point was the log's end
    was_found: bool = False  # the log was there when the data directory was opened
    was_put_back: bool = False  # it was missing at an earlier start: nothing counts as verified, or as on the device

    @property
    def known_end(self) -> int:
        """Everything below was in the log."""
        return max(self.recovery_point, self.high_watermark)


@dataclass(frozen=True, slots=True)
class Mark:
    """What the file ``unflushed`` says, the mark of a log in which acknowledgements need not wait for the device.

    empty                    the log only led since the mark was made
    <boot id>                it followed, in that boot of the machine
    <boot id> <epoch>        it followed, and leads since that leader epoch

    A frame's stamp says what was on the device of the leader that wrote it. If the machine was started again since,
    that is true of this log's own device only where it led itself. Within one boot the file system has all that was
    written, whatever is on the device.
    """

    boot_id: str = ""
    leads_since: int | None = None

    @classmethod
    def read(cls, files: FileSystem, directory: Path) -> Mark | None:
        """The mark of the log in ``directory``; None: there is none. Raises `OSError`."""
        data = read_file(files, directory / UNFLUSHED_NAME)
        if data is None:
            return None
        boot_id, _, epoch = data.decode(errors="replace").partition(" ")
        return cls(boot_id, int(epoch) if epoch.isdecimal() else None)

    def write(self, files: FileSystem, directory: Path) -> None:
        """Durable when it returns. Raises `OSError`."""
        text = self.boot_id if self.leads_since is None else f"{self.boot_id} {self.leads_since}"
        replace_file(files, directory / UNFLUSHED_NAME, text.encode())

    def following(self, files: FileSystem) -> Mark:
        """The log follows from now on: frames may say of the leader's device what is not so of this one."""
        return self if self.boot_id and self.leads_since is None else Mark(files.boot_id or _UNKNOWN_BOOT)

    def leading(self, leader_epoch: int) -> Mark:
        """The log leads from now on: frames of this epoch and later ones say what is on this very device."""
        return replace(self, leads_since=leader_epoch) if self.boot_id and self.leads_since is None else self

    def first_believed_epoch(self, files: FileSystem) -> int | None:
        """The stamps of this leader epoch and later ones are believed; None: no stamp is."""
        if not self.boot_id or self.boot_id == files.boot_id:
            return 0
        return self.leads_since


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """A log as found, or as recovered. Everything in it is on the device."""

    segments: list[Segment]  # at least one
    epochs: LeaderEpochs
    producers: ProducerState
    log_start_offset: int
    high_watermark: int
    was_recovered: bool


class Recovery:
    """Loads one log, once. The log's lock is held around `load`."""

    def __init__(
        self,
        open_files: OpenFiles,
        directory: Path,
        identity: PartitionIdentity,
        *,
        index_interval_bytes: int,
        start: StartState,
    ) -> None:
        self._open_files = open_files
        self._files = open_files.files
        self._directory = directory
        self._identity = identity
        self._interval_bytes = index_interval_bytes
        self._start = start
        self._verify_from = 0 if start.was_put_back else start.recovery_point
        self._stamped_watermark = -1

    def load(self) -> LoadedLog:
        """Raises `CorruptRecordError` for damage, `OSError`."""
        found = PartitionFiles.find(self._files, self._directory)
        log_start = self._log_start(found)
        found.warn_of_foreign()
        found.remove_leftovers(self._files, log_start)
        segments = self._segments(found, log_start)
        is_clean = self._is_clean(segments)
        was_recovered = not is_clean and bool(found.base_offsets)
        if was_recovered:
            segments = self._recover(segments)
        if not is_clean:
            self._sync_names()
        end = segments[-1].next_offset
        self._check_end(segments[-1], end)
        if end < log_start:
            segments, end = [self._restart_at(log_start, segments)], log_start
        epochs = self._epochs(segments, was_recovered, log_start)
        if end == segments[0].base_offset:  # no record shows an epoch, but the deleted ones were of the newest
            epochs.truncate_from_end(end + 1)
            epochs.truncate_from_start(end)
        high_watermark = min(max(self._start.high_watermark, self._stamped_watermark, log_start), end)
        producers = load_producers(self._files, self._directory, segments, end, high_watermark)
        return LoadedLog(
            segments=segments,
            epochs=epochs,
            producers=producers,
            log_start_offset=log_start,
            high_watermark=high_watermark,
            was_recovered=was_recovered,
        )

    def _log_start(self, found: PartitionFiles) -> int:
        known = self._start.log_start_offset
        if not found.base_offsets:
            if max(self._start.known_end, known) > 0:
                raise CorruptRecordError(
                    f"{self._directory} has no segment, but records below offset {self._start.known_end} were "
                    "written there"
                )
            return 0
        if found.base_offsets[0] > known:
            raise CorruptRecordError(
                f"{self._directory} begins with offset {found.base_offsets[0]}, the log with {known}: "
                f"the segments with offsets {known} to {found.base_offsets[0] - 1} are missing"
            )
        return known

    def _segments(self, found: PartitionFiles, log_start: int) -> list[Segment]:
        base_offsets = found.base_offsets or [log_start]
        segments = [
            Segment(
                self._open_files,
                self._directory,
                base_offset,
                index_interval_bytes=self._interval_bytes,
                is_closed=base_offset != base_offsets[-1],
            )
            for base_offset in base_offsets
        ]
        if not found.base_offsets:
            segments[0].create()
        return segments

    def _sync_names(self) -> None:
        """Makes durable what the creation of a log leaves to its first use: the identity. (The log's directory has been
        synced, whether recovered or new. Its name in the data directory is durable before the checkpoints name it.)

        A log that was never loaded counts as not clean, so this happens before its first acknowledgement, and again
        after a crash in between. An identity that an earlier process wrote is written once more, as frames are, unless
        a recovery point shows that this was done.
        """
        if self._start.was_found:
            if not self._verify_from:
                self._identity.write(self._files, self._directory)
            return
        descriptor = self._files.open(self._directory / PARTITION_NAME, read_only=True)
        try:
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    def _is_clean(self, segments: list[Segment]) -> bool:
        """Whether the log ends where a clean stop left it; any other goes through `_recover`."""
        if not self._start.is_clean:
            return False
        try:
            segments[-1].load()
        except CorruptRecordError as error:
            event(_logger, "load last segment", level=logging.WARNING, path=self._directory, error=error)
            return False
        return segments[-1].next_offset == self._start.recovery_point

    def _recover(self, segments: list[Segment]) -> list[Segment]:
        first = max((n for n, segment in enumerate(segments) if segment.base_offset <= self._verify_from), default=0)
        kept = segments[:first]
        rebuilt: list[tuple[Segment, IndexBuilder, int]] = []
        for number, segment in enumerate(segments[first:], first):
            builder = IndexBuilder(segment.base_offset, self._interval_bytes)
            with segment.hold() as held:
                size = self._files.size(held.descriptor)
                bad = self._scan(segment, held.descriptor, size, builder)
                follower = segments[number + 1] if number + 1 < len(segments) else None
                if bad is None and follower is not None and follower.base_offset != builder.next_offset:
                    reason = f"the next segment begins with offset {follower.base_offset}"
                    bad = BadFrame(size, builder.next_offset, reason)
                if bad is not None:
                    self._refuse_damage(segments[number:], bad)
                    self._cut(segment, held.descriptor, bad, size, segments[number + 1 :])
                    size = bad.position
            rebuilt.append((segment, builder, size))
            kept.append(segment)
            if bad is not None:
                break
        for segment, builder, size in rebuilt:
            segment.is_closed = segment is not kept[-1]
            segment.adopt(builder, size, is_durable=False)
            with segment.hold() as held:
                self._files.sync(held.descriptor)
            if segment.is_closed:  # those of the last one are rebuilt from its frames after the next crash anyway
                segment.sync_indexes()
        self._files.sync_directory(self._directory)
        event(
            _logger,
            "recover log",
            path=self._directory,
            verified_from=self._verify_from,
            end=kept[-1].next_offset,
            segments=len(rebuilt),
        )
        return kept

    def _scan(self, segment: Segment, descriptor: int, size: int, builder: IndexBuilder) -> BadFrame | None:
        """Gives the good frames to ``builder``, and writes those once more that may not be on the device. Returns where
        and why they end before the file does; None if they do not."""
        position = 0
        try:
            for position, header, frame in verified_frames(
                self._files,
                descriptor,
                segment.path,
                size_bytes=size,
                base_offset=segment.base_offset,
                identity=self._identity,
                verify_from=self._verify_from,
                deleted_below=self._start.log_start_offset,
            ):
                if frame is not None:  # these very bytes were verified; a second read might get others
                    self._files.write(descriptor, [frame], position)
                builder.add(position, header, self._control(segment, position, header, frame))
                self._stamped_watermark = max(self._stamped_watermark, header.high_watermark)
                position += header.frame_bytes
        except CorruptRecordError as error:
            return BadFrame(position, builder.next_offset, error.message)
        return None

    def _control(
        self, segment: Segment, position: int, header: FrameHeader, frame: memoryview | None
    ) -> Control | None:
        if frame is not None:
            return parse_control(frame) if header.is_control else None
        with segment.hold() as held:
            return segment.control(held, position, header)

    def _refuse_damage(self, segments: list[Segment], bad: BadFrame) -> None:
        """Raises `CorruptRecordError` if records at or after the bad frame were committed."""
        watermark = max(self._start.high_watermark, self._stamped_watermark)
        if watermark <= bad.offset:
            watermark = max(watermark, self._watermark_behind(segments, bad))
        known = max(watermark, self._start.recovery_point)
        if known > bad.offset:
            raise damaged(
                segments[0].path,
                bad.position,
                bad.offset,
                f"{bad.reason}. Records up to offset {known - 1} were acknowledged, so this is no torn tail; offsets "
                f"{bad.offset} to {known - 1} are not served",
            )

    def _watermark_behind(self, segments: list[Segment], bad: BadFrame) -> int:
        mark = Mark.read(self._files, self._directory)
        since = 0 if mark is None else mark.first_believed_epoch(self._files)
        if since is None:
            return -1
        return watermark_behind(self._open_files, segments, bad, self._identity, leader_epoch=since)

    def _cut(self, segment: Segment, descriptor: int, bad: BadFrame, size: int, behind: list[Segment]) -> None:
        event(
            _logger,
            "cut torn tail",
            level=logging.WARNING,
            path=self._directory,
            segment=segment.base_offset,
            position=bad.position,
            size_bytes=size - bad.position,
            later_segments=len(behind),
            offset=bad.offset,
            error=bad.reason,
        )
        for other in reversed(behind):
            other.delete()
        if bad.position < size:
            self._files.sync(descriptor)  # the copy then has what was verified, even if pages were evicted meanwhile
            copy_prefix(self._files, descriptor, segment.path, bad.position)
            self._open_files.forget(segment.path)

    def _check_end(self, last: Segment, end: int) -> None:
        known = self._start.known_end
        if known > end:
            raise damaged(
                last.path,
                last.size_bytes,
                end,
                f"the log ends there, but records up to offset {known - 1} were written",
            )

    def _restart_at(self, log_start: int, segments: list[Segment]) -> Segment:
        """A power failure took everything after the deleted records: the log continues, empty, at its start.

        Otherwise the next records would get offsets below the log's start, which nobody may read.
        """
        event(
            _logger,
            "restart log",
            level=logging.WARNING,
            path=self._directory,
            end=segments[-1].next_offset,
            log_start=log_start,
        )
        fresh = Segment(
            self._open_files, self._directory, log_start, index_interval_bytes=self._interval_bytes, is_closed=False
        )
        fresh.create()  # before the others are removed, or a crash in between would leave a log without a segment
        for segment in segments:
            segment.delete()
        self._files.sync_directory(self._directory)
        return fresh

    def _epochs(self, segments: list[Segment], was_recovered: bool, log_start: int) -> LeaderEpochs:
        path = self._directory / EPOCHS_NAME
        epochs = LeaderEpochs.load(self._files, path)
        if epochs is not None and not was_recovered:
            return epochs
        # Like every small file it was fsynced before its rename, so if it is there after a crash it is whole.
        entries = list(epochs.entries) if epochs is not None else []
        shown = self._shown_epochs(segments if epochs is None else segments[-1:], entries)
        # An epoch that began at the very end has no frame to show it.
        end = segments[-1].next_offset
        first_shown = segments[-1].base_offset if epochs is not None else -1
        merged = [entry for entry in entries if entry[1] < first_shown]
        for entry in [*shown, *(entry for entry in entries if first_shown <= entry[1] <= end)]:
            if not merged or entry[0] > merged[-1][0]:
                merged.append(entry)
        mended = epochs if epochs is not None else LeaderEpochs(self._files, path)
        mended.replace(merged)
        if epochs is None:  # deleted records may still be in a segment, and show epochs from before the start
            mended.truncate_from_start(log_start)
        return mended

    def _shown_epochs(self, segments: list[Segment], known: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The epochs that the frames show. Frames below the recovery point were not verified: one that seems to begin
        an epoch counts only if its stamp is sound; if it is not, the epoch ``known`` to begin there counts."""
        begins = {start: epoch for epoch, start in known}
        shown: list[tuple[int, int]] = []
        for segment in segments:
            segment.load()
            with segment.hold() as held:
                for position, header in segment.walk(held, segment.size_bytes, 0, segment.base_offset):
                    epoch = header.leader_epoch
                    if shown and epoch == shown[-1][0]:
                        continue
                    if not self._is_stamped(held.descriptor, position):
                        epoch = begins.get(header.base_offset, -1)
                    if epoch > (shown[-1][0] if shown else -1):
                        shown.append((epoch, header.base_offset))
        return shown

    def _is_stamped(self, descriptor: int, position: int) -> bool:
        stamp = memoryview(self._files.read(descriptor, STAMP_BYTES, position))
        try:
            check_stamp(stamp, topic_id=self._identity.topic_id.bytes, partition=self._identity.partition)
        except CorruptRecordError as error:
            event(
                _logger,
                "ignore damaged stamp",
                level=logging.WARNING,
                path=self._directory,
                position=position,
                error=error,
            )
            return False
        return True
