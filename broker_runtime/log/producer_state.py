"""What a log remembers about each idempotent producer: epoch and last five batches (Kafka's ProducerStateManager).

``<offset, 20 digits>.snapshot`` holds the state after all records before that offset, little endian:

    bytes    type   field
    0–3      4s     ``PSNP``
    4–5      u16    version (3)
    6–9      u32    CRC-32C of the version and of all bytes after this field
    10–17    i64    append time of the last frame, of any producer (ms; -1: no frame)
    18–21    u32    number of producers; each, by rising producer id:
      i64 producer id · i16 epoch · i64 first offset of its open transaction (-1: none) · i64 age: how much of the log's
      time (ms) has passed since its last frame · u8 number of batches; each:
        i32 base sequence · i32 last sequence · i64 base offset · i64 last offset · i64 append time (ms)

Version 2 can be read as well. It has the newest append time in place of the last frame's, and for each producer that
time as it was at the producer's last frame, in place of the age. Its CRC-32C does not cover the version.

Rule: the state follows from the frames alone. So a follower's is the same as its leader's, and that of a truncated log
is that of its remaining frames. A snapshot is written when a segment is closed (named by the next one's base offset)
and when the log is closed. A damaged one is ignored, and the frames are read again.

A producer is forgotten when the log's time is `EXPIRY_MS` beyond what it was at the producer's last frame. The log's
time is the sum of the steps from each frame's append time to the next one's. A step is nothing where a leader's clock
went back, and `LARGEST_STEP_MS` at most, so that a clock that jumps ahead does not make the log forget a producer whose
retry is on its way. This, too, follows from the frames alone, so all replicas forget alike, whatever their clocks say
and whenever they check. An idle log forgets no producer.

    sequence, as a circle of 2^31:   … ─ not remembered ─┬─ up to five batches ─┬─ expected ─┬─ gap …
                                       refused            repeated: must equal    appended     refused
                                                          one of them

The half of the circle before ``expected`` was appended before; the other half is ahead of it. A retry is never older
than five batches, because a producer has no more in flight. Anything older is refused: whether it is the same as what
was appended is not known any more. If fewer than five are remembered, the log begins in the middle of what the producer
sent: then an older frame was deleted, and counts as repeated, at an unknown offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import crc32c

from broker_runtime.contract.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from broker_runtime.contract.frame import FrameHeader
from broker_runtime.log.files import FileSystem, read_file, replace_file
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.segment import Segment

SNAPSHOT_SUFFIX = ".snapshot"
BATCHES_REMEMBERED = 5
"""As many as a producer may have in flight."""
EXPIRY_MS = 86_400_000
"""A producer without a frame for this long is forgotten; longer than any frame is retried (``delivery.timeout.ms``)."""
LARGEST_STEP_MS = EXPIRY_MS // 24
"""How far one frame moves the log's time at most."""
_FORGET_EVERY_MS = EXPIRY_MS // 24
_MAX_SEQUENCE = (1 << 31) - 1
_HALF_CIRCLE = 1 << 30

_HEAD = struct.Struct("<4sHI")
_CHECKED_VERSION = struct.Struct("<H")
_COUNT = struct.Struct("<qI")
_PRODUCER = struct.Struct("<qhqqB")
_BATCH = struct.Struct("<iiqqq")
_MAGIC, _VERSION = b"PSNP", 3
_VERSION_OF_APPEND_TIMES = 2


class ProducerBatch(NamedTuple):
    """One batch as appended. ``last_sequence`` wraps after 2^31 - 1."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_time_ms: int


class RepeatedFrame(NamedTuple):
    """Where the records of a repeated frame are. ``base_offset`` and time -1: not remembered; then ``next_offset`` is
    the end of the producer's last batch, which is after it."""

    base_offset: int
    next_offset: int
    append_time_ms: int


@dataclass(slots=True)
class ProducerEntry:
    """One producer. Invariant: the batches are of ``epoch``, oldest first, and each begins where the one before ended;
    there are at most `BATCHES_REMEMBERED`."""

    epoch: int
    transaction_first_offset: int = -1
    log_time_ms: int = 0  # the log's time at its last frame
    batches: tuple[ProducerBatch, ...] = ()

    @property
    def next_sequence(self) -> int:
        """What the next frame must begin with."""
        return (self.batches[-1].last_sequence + 1) & _MAX_SEQUENCE if self.batches else 0

    def is_expired(self, log_time_ms: int) -> bool:
        """Whether it counts as never seen. A producer with an open transaction never does."""
        return self.transaction_first_offset < 0 and log_time_ms - self.log_time_ms > EXPIRY_MS


class ProducerState:
    """All producers of one log. Not thread-safe: the log's lock guards it.

    Invariant: ``producers`` has all that are not expired. It may have expired ones for up to an hour of the log's time;
    those count as never seen, and `encode` leaves them out.
    """

    def __init__(self, producers: dict[int, ProducerEntry] | None = None, last_append_ms: int = -1) -> None:
        """``producers``: the log's time begins at 0 now, so their `log_time_ms` is 0 or less."""
        self.producers = producers if producers is not None else {}
        self.log_time_ms = 0
        self._last_append_ms = last_append_ms
        self._forgot_at_ms = 0

    def check(self, header: FrameHeader) -> RepeatedFrame | None:
        """Whether the frame of an idempotent producer is the next one (None) or was appended before (where).

        Raises `InvalidProducerEpochError` (a newer epoch was seen), `UnknownProducerIdError` (the producer was never
        seen, or forgotten, and does not begin with sequence 0), `OutOfOrderSequenceError` (frames before it are
        missing), `DuplicateSequenceError` (some of its records were appended in other frames, or it is older than all
        that is remembered). After any of them it must not be appended.
        """
        entry = self.producers.get(header.producer_id)
        base = header.base_sequence
        if entry is None or entry.is_expired(self.log_time_ms):
            if base != 0:
                raise UnknownProducerIdError(
                    f"producer {header.producer_id} is not known here, or no longer; it begins with sequence {base}, "
                    "not 0"
                )
            return None
        if header.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {header.producer_id} is in epoch {entry.epoch}, the frame in {header.producer_epoch}"
            )
        expected = entry.next_sequence if header.producer_epoch == entry.epoch else 0
        if base == expected:
            return None
        if not entry.batches or header.producer_epoch > entry.epoch or (expected - base) & _MAX_SEQUENCE > _HALF_CIRCLE:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} in epoch {header.producer_epoch} sent sequence {base}, "
                f"{expected} comes next"
            )
        return _repeated(entry.batches, header)

    def add(self, header: FrameHeader) -> None:
        """A stamped frame was appended."""
        before_ms = self.log_time_ms
        if self._last_append_ms >= 0:
            self.log_time_ms += min(max(header.append_time_ms - self._last_append_ms, 0), LARGEST_STEP_MS)
        self._last_append_ms = header.append_time_ms
        if self.log_time_ms - self._forgot_at_ms > _FORGET_EVERY_MS:
            self._forget_expired(before_ms)
        if header.producer_id < 0:
            return
        entry = self.producers.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch or entry.is_expired(before_ms):
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_epoch)
        entry.log_time_ms = self.log_time_ms
        if header.is_control:
            entry.transaction_first_offset = -1
            return
        if header.is_transactional and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = header.base_offset
        base = header.base_sequence
        last = (base + header.record_count - 1) & _MAX_SEQUENCE if base >= 0 else -1
        # A forgotten producer began again, or the log begins in the middle of its frames: earlier batches do not count.
        kept = entry.batches[1 - BATCHES_REMEMBERED :] if base == entry.next_sequence else ()
        batch = ProducerBatch(base, last, header.base_offset, header.last_offset, header.append_time_ms)
        entry.batches = (*kept, batch)

    def encode(self) -> bytes:
        """The snapshot's bytes."""
        known = [item for item in sorted(self.producers.items()) if not item[1].is_expired(self.log_time_ms)]
        parts = [_COUNT.pack(self._last_append_ms, len(known))]
        for producer_id, entry in known:
            age_ms = self.log_time_ms - entry.log_time_ms
            fields = (producer_id, entry.epoch, entry.transaction_first_offset, age_ms, len(entry.batches))
            parts.append(_PRODUCER.pack(*fields))
            parts.extend(_BATCH.pack(*batch) for batch in entry.batches)
        body = b"".join(parts)
        return _HEAD.pack(_MAGIC, _VERSION, _checksum(_VERSION, body)) + body

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """The state in a snapshot's bytes. Raises `CorruptRecordError` for anything that `encode` does not write."""
        if len(data) < _HEAD.size + _COUNT.size:
            raise CorruptRecordError(f"a snapshot has at least {_HEAD.size + _COUNT.size} bytes, not {len(data)}")
        magic, version, checksum = _HEAD.unpack_from(data)
        is_of_append_times = version == _VERSION_OF_APPEND_TIMES
        is_known = is_of_append_times or version == _VERSION
        if magic != _MAGIC or not is_known or checksum != _checksum(version, data[_HEAD.size :]):
            raise CorruptRecordError("the snapshot's head or checksum does not fit its content")
        last_append_ms, count = _COUNT.unpack_from(data, _HEAD.size)
        position = _HEAD.size + _COUNT.size
        producers: dict[int, ProducerEntry] = {}
        for _ in range(count):
            producer_id, epoch, transaction_first_offset, age_ms, batch_count = _PRODUCER.unpack_from(data, position)
            if is_of_append_times:
                age_ms = last_append_ms - age_ms
            position += _PRODUCER.size
            end = position + batch_count * _BATCH.size
            batches = tuple(ProducerBatch(*fields) for fields in _BATCH.iter_unpack(data[position:end]))
            producers[producer_id] = ProducerEntry(epoch, transaction_first_offset, -age_ms, batches)
            position = end
        return cls(producers, last_append_ms)

    def _forget_expired(self, log_time_ms: int) -> None:
        """Frees the memory of producers that count as never seen."""
        self._forgot_at_ms = self.log_time_ms
        for producer_id in [key for key, entry in self.producers.items() if entry.is_expired(log_time_ms)]:
            del self.producers[producer_id]


def snapshot_path(directory: Path, offset: int) -> Path:
    """Where the state after all records before ``offset`` is kept."""
    return directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def write_snapshot(files: FileSystem, directory: Path, offset: int, state: ProducerState) -> None:
    """Durable when it returns. Raises `OSError`."""
    replace_file(files, snapshot_path(directory, offset), state.encode())


def _checksum(version: int, body: bytes) -> int:
    start = 0 if version == _VERSION_OF_APPEND_TIMES else crc32c.crc32c(_CHECKED_VERSION.pack(version))
    checksum: int = crc32c.crc32c(body, start)
    return checksum


def _repeated(batches: tuple[ProducerBatch, ...], header: FrameHeader) -> RepeatedFrame:
    """Which of ``batches`` a frame is whose sequence was appended before."""
    base = header.base_sequence
    last = (base + header.record_count - 1) & _MAX_SEQUENCE
    for batch in batches:
        if (batch.base_sequence, batch.last_sequence) == (base, last):
            return RepeatedFrame(batch.base_offset, batch.last_offset + 1, batch.append_time_ms)
    where = "in other frames: a retry must be the same frame"
    if header.record_count <= (batches[0].base_sequence - base) & _MAX_SEQUENCE <= _HALF_CIRCLE:
        if len(batches) < BATCHES_REMEMBERED:
            return RepeatedFrame(-1, batches[-1].last_offset + 1, -1)
        where = f"before its last {BATCHES_REMEMBERED} frames: whether in this frame is not known any more"
    raise DuplicateSequenceError(
        f"producer {header.producer_id} sent sequences {base} to {last}, which were appended {where}"
    )


def load_producers(files: FileSystem, directory: Path, segments: Sequence[Segment], end: int) -> ProducerState:
    """The state after all records before ``end``, where ``segments`` end. Snapshots that do not fit are removed: those
    beyond ``end`` know records that no longer exist, those before the first segment lack the records in between.

    Raises `CorruptRecordError` where a segment is damaged, `OSError`.
    """
    offsets = PartitionFiles.find(files, directory).snapshot_offsets
    first = segments[0].base_offset
    stale = [offset for offset in offsets if not first <= offset <= end]
    remove_snapshots(files, directory, stale)
    if stale:  # otherwise a power failure could bring one back after the log has grown beyond it
        files.sync_directory(directory)
    offset, state = _newest_snapshot(files, directory, [offset for offset in offsets if offset not in stale])
    ends = [segment.base_offset for segment in segments[1:]] + [end]
    for segment, segment_end in zip(segments, ends, strict=True):
        if segment_end <= offset:
            continue
        segment.load()
        with segment.hold() as held:
            for _, header in segment.walk(held, segment.size_bytes, 0, segment.base_offset):
                if header.base_offset >= offset:
                    state.add(header)
    return state


def remove_snapshots(files: FileSystem, directory: Path, offsets: Iterable[int]) -> None:
    """Unlinks the snapshots at ``offsets`` that exist. Raises `OSError`."""
    for offset in offsets:
        path = snapshot_path(directory, offset)
        if files.file_size(path) is not None:
            files.unlink(path)


def _newest_snapshot(files: FileSystem, directory: Path, offsets: Sequence[int]) -> tuple[int, ProducerState]:
    """The newest good snapshot and its offset; (-1, no producers) if there is none."""
    for offset in reversed(offsets):
        data = read_file(files, snapshot_path(directory, offset))
        if data is None:
            continue
        try:
            return offset, ProducerState.decode(data)
        except CorruptRecordError:
            continue  # the frames say the same
    return -1, ProducerState()
