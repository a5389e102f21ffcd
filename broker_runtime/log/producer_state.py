"""What a log remembers about each idempotent producer: epoch and last five batches (Kafka's ProducerStateManager).

``<offset, 20 digits>.snapshot`` holds the state after all records before that offset, little endian:

    bytes    type   field
    0–3      4s     ``PSNP``
    4–5      u16    version (4)
    6–9      u32    CRC-32C of the version and of all bytes after this field
    10–13    u32    entries in the transaction index of the segment that ends at that offset
    14–21    i64    first offset of all transactions that are open there (-1: none)
    22–25    u32    CRC-32C of bytes 0–5 and 10–21
    26–33    i64    append time of the last frame, of any producer (ms; -1: no frame)
    34–37    u32    number of producers; each, by rising producer id:
      i64 producer id · i16 epoch · i64 first offset of its open transaction (-1: none) · i64 age: how much of the log's
      time (ms) has passed since its last frame · u8 number of batches; each:
        i32 base sequence · i32 last sequence · i64 base offset · i64 last offset · i64 append time (ms)
    then     u32    bytes of the MessagePack that follows: an array of two
      the open transactions, each as the fields of `OpenTransaction`
      a map from each transactional id that is remembered to the fields of its `KnownId`, with minus its age as its time

Versions 2 and 3 can be read as well. They have no bytes 10–25 and no MessagePack. Version 2 has the newest append time
in place of the last frame's, and for each producer that time as it was at the producer's last frame, in place of the
age; its CRC-32C does not cover the version.

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

The producer id of a transaction is known only from the transaction's beginning to its end in this log (`transactions`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import crc32c
import msgspec

from broker_runtime.contract.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from broker_runtime.contract.frame import Control, FrameHeader, TransactionBegin, TransactionEnd
from broker_runtime.log.files import FileSystem, read_file, replace_file
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.segment import Segment
from broker_runtime.log.transactions import KnownId, OpenTransaction, Transactions

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
_TRANSACTIONS = struct.Struct("<Iq")
_LENGTH = struct.Struct("<I")
_CHECKED_VERSION = struct.Struct("<H")
_COUNT = struct.Struct("<qI")
_PRODUCER = struct.Struct("<qhqqB")
_BATCH = struct.Struct("<iiqqq")
_MAGIC, _VERSION = b"PSNP", 4
_VERSION_WITHOUT_TRANSACTIONS, _VERSION_OF_APPEND_TIMES = 3, 2

# Made before any thread decodes, as msgspec asks for (see `requests.make_decoders`).
_decoder = msgspec.msgpack.Decoder(tuple[tuple[OpenTransaction, ...], dict[str, KnownId]])


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
    log_time_ms: int = 0  # the log's time at its last frame
    batches: tuple[ProducerBatch, ...] = ()

    @property
    def next_sequence(self) -> int:
        """What the next frame must begin with."""
        return (self.batches[-1].last_sequence + 1) & _MAX_SEQUENCE if self.batches else 0


class ProducerState:
    """All producers of one log. Not thread-safe: the log's lock guards it.

    Invariant: ``producers`` has all that are not expired. It may have expired ones for up to an hour of the log's time;
    those count as never seen, and `encode` leaves them out.
    """

    def __init__(
        self,
        producers: dict[int, ProducerEntry] | None = None,
        last_append_ms: int = -1,
        transactions: Transactions | None = None,
    ) -> None:
        """The log's time begins at 0 now, so the times in ``producers`` and ``transactions`` are 0 or less."""
        self.producers = producers if producers is not None else {}
        self.transactions = transactions if transactions is not None else Transactions()
        self.log_time_ms = 0
        self._last_append_ms = last_append_ms
        self._forgot_at_ms = 0

    def check(self, header: FrameHeader, begin: TransactionBegin | None = None) -> RepeatedFrame | None:
        """Whether the frame of an idempotent producer is the next one (None) or was appended before (where).

        A transactional frame needs an open transaction, or ``begin``, which may begin one: see `begins`. Raises
        `InvalidTxnStateError`, and `ProducerFencedError` if another process has taken over the transactional id.
        Raises `InvalidProducerEpochError` (a newer epoch was seen), `UnknownProducerIdError` (the producer was never
        seen, or forgotten, and does not begin with sequence 0), `OutOfOrderSequenceError` (frames before it are
        missing), `DuplicateSequenceError` (some of its records were appended in other frames, or it is older than all
        that is remembered). After any of them it must not be appended.
        """
        entry = self.producers.get(header.producer_id)
        base = header.base_sequence
        if header.is_transactional or header.producer_id in self.transactions.open:
            self._check_transaction(header, begin)
        if entry is None or self._is_expired(header.producer_id, entry, self.log_time_ms):
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

    def begins(self, header: FrameHeader) -> bool:
        """Whether a frame that `check` lets through needs a `TransactionBegin` before it."""
        return header.is_transactional and header.producer_id not in self.transactions.open

    def add(self, header: FrameHeader, control: Control | None = None) -> None:
        """A stamped frame was appended. ``control``: what it says, if it is a control frame."""
        before_ms = self.log_time_ms
        if self._last_append_ms >= 0:
            self.log_time_ms += min(max(header.append_time_ms - self._last_append_ms, 0), LARGEST_STEP_MS)
        self._last_append_ms = header.append_time_ms
        if self.log_time_ms - self._forgot_at_ms > _FORGET_EVERY_MS:
            self._forget_expired(before_ms)
        if isinstance(control, TransactionEnd):
            self.transactions.end(header, control, self.log_time_ms)
            for each in control.ended:
                self.producers.pop(each.producer_id, None)
        if header.producer_id < 0:
            return
        entry = self.producers.get(header.producer_id)
        if (
            entry is None
            or entry.epoch != header.producer_epoch
            or self._is_expired(header.producer_id, entry, before_ms)
        ):
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_epoch)
        entry.log_time_ms = self.log_time_ms
        if isinstance(control, TransactionBegin):
            self.transactions.begin(header, control, self.log_time_ms)
            return
        base = header.base_sequence
        last = (base + header.record_count - 1) & _MAX_SEQUENCE if base >= 0 else -1
        # A forgotten producer began again, or the log begins in the middle of its frames: earlier batches do not count.
        kept = entry.batches[1 - BATCHES_REMEMBERED :] if base == entry.next_sequence else ()
        batch = ProducerBatch(base, last, header.base_offset, header.last_offset, header.append_time_ms)
        entry.batches = (*kept, batch)

    def encode(self, index_entries: int = 0) -> bytes:
        """The snapshot's bytes. ``index_entries``: in the transaction index of the segment that ends here."""
        known = [
            (producer_id, entry)
            for producer_id, entry in sorted(self.producers.items())
            if not self._is_expired(producer_id, entry, self.log_time_ms)
        ]
        parts = [_COUNT.pack(self._last_append_ms, len(known))]
        opened = self.transactions.open
        for producer_id, entry in known:
            age_ms = self.log_time_ms - entry.log_time_ms
            first_offset = opened[producer_id].first_offset if producer_id in opened else -1
            parts.append(_PRODUCER.pack(producer_id, entry.epoch, first_offset, age_ms, len(entry.batches)))
            parts.extend(_BATCH.pack(*batch) for batch in entry.batches)
        ids = {
            name: msgspec.structs.replace(each, log_time_ms=each.log_time_ms - self.log_time_ms)
            for name, each in sorted(self.transactions.known_since(self.log_time_ms - EXPIRY_MS).items())
        }
        transactions = msgspec.msgpack.encode((tuple(opened.values()), ids))
        first_open = next((each.first_offset for each in opened.values()), -1)
        head = _TRANSACTIONS.pack(index_entries, first_open)
        parts = [head, _LENGTH.pack(_head_checksum(head)), *parts, _LENGTH.pack(len(transactions)), transactions]
        body = b"".join(parts)
        return _HEAD.pack(_MAGIC, _VERSION, _checksum(_VERSION, body)) + body

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """The state in a snapshot's bytes. Raises `CorruptRecordError` for anything that `encode` does not write."""
        if len(data) < _HEAD.size + _COUNT.size:
            raise CorruptRecordError(f"a snapshot has at least {_HEAD.size + _COUNT.size} bytes, not {len(data)}")
        magic, version, checksum = _HEAD.unpack_from(data)
        is_of_append_times = version == _VERSION_OF_APPEND_TIMES
        is_known = version in (_VERSION, _VERSION_WITHOUT_TRANSACTIONS, _VERSION_OF_APPEND_TIMES)
        if magic != _MAGIC or not is_known or checksum != _checksum(version, data[_HEAD.size :]):
            raise CorruptRecordError("the snapshot's head or checksum does not fit its content")
        position = _HEAD.size + (_TRANSACTIONS.size + _LENGTH.size if version == _VERSION else 0)
        last_append_ms, count = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        producers: dict[int, ProducerEntry] = {}
        for _ in range(count):
            producer_id, epoch, _, age_ms, batch_count = _PRODUCER.unpack_from(data, position)
            if is_of_append_times:
                age_ms = last_append_ms - age_ms
            position += _PRODUCER.size
            end = position + batch_count * _BATCH.size
            batches = tuple(ProducerBatch(*fields) for fields in _BATCH.iter_unpack(data[position:end]))
            producers[producer_id] = ProducerEntry(epoch, -age_ms, batches)
            position = end
        transactions = Transactions()
        if version == _VERSION:
            (length,) = _LENGTH.unpack_from(data, position)
            opened, known = _decoder.decode(data[position + _LENGTH.size : position + _LENGTH.size + length])
            transactions = Transactions(opened, known)
        return cls(producers, last_append_ms, transactions)

    def _check_transaction(self, header: FrameHeader, begin: TransactionBegin | None) -> None:
        opened = self.transactions.open.get(header.producer_id)
        if not header.is_transactional:
            raise InvalidTxnStateError(
                f"producer {header.producer_id} has an open transaction here, and sent a frame outside of it"
            )
        if opened is None:
            if begin is None:
                raise InvalidTxnStateError(
                    f"no transaction of producer {header.producer_id} is open here: it has ended, or never began"
                )
            self.transactions.check_begin(begin)
        elif begin is not None and begin != opened.begin:
            raise InvalidTxnStateError(f"producer {header.producer_id} has another transaction open: {opened.begin}")
        elif header.producer_epoch != self.producers[header.producer_id].epoch:
            raise InvalidProducerEpochError(
                f"the transaction of producer {header.producer_id} has producer epoch "
                f"{self.producers[header.producer_id].epoch}, the frame {header.producer_epoch}"
            )

    def _is_expired(self, producer_id: int, entry: ProducerEntry, log_time_ms: int) -> bool:
        """Whether it counts as never seen. A producer with an open transaction never does."""
        return log_time_ms - entry.log_time_ms > EXPIRY_MS and producer_id not in self.transactions.open

    def _forget_expired(self, log_time_ms: int) -> None:
        """Frees the memory of producers that count as never seen, and of transactional ids not seen for as long."""
        self._forgot_at_ms = self.log_time_ms
        expired = [key for key, entry in self.producers.items() if self._is_expired(key, entry, log_time_ms)]
        for producer_id in expired:
            del self.producers[producer_id]
        self.transactions.known = self.transactions.known_since(log_time_ms - EXPIRY_MS)


def snapshot_path(directory: Path, offset: int) -> Path:
    """Where the state after all records before ``offset`` is kept."""
    return directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def write_snapshot(
    files: FileSystem, directory: Path, offset: int, state: ProducerState, index_entries: int = 0
) -> None:
    """Durable when it returns. ``index_entries``: see `ProducerState.encode`. Raises `OSError`."""
    replace_file(files, snapshot_path(directory, offset), state.encode(index_entries))


UNKNOWN_ENTRIES: Final = (1 << 32) - 1
"""More than any index has: it is to be rebuilt before it is used."""


class SegmentTransactions(NamedTuple):
    """What a snapshot's head tells of the segment that ends there: ``index_entries``, how many entries its transaction
    index has (or `UNKNOWN_ENTRIES`); ``first_open``, the first offset of all transactions that are open at its end (-1:
    none)."""

    index_entries: int
    first_open: int


def transactions_before(files: FileSystem, directory: Path, offset: int) -> SegmentTransactions | None:
    """Of the segment that ends at ``offset``, by the snapshot there; None: it does not tell. Reads the snapshot's head
    only. Raises `OSError`."""
    path = snapshot_path(directory, offset)
    if files.file_size(path) is None:
        return None
    descriptor = files.open(path, read_only=True)
    try:
        head = bytes(files.read(descriptor, _HEAD.size + _TRANSACTIONS.size + _LENGTH.size, 0))
    finally:
        files.close(descriptor)
    if len(head) < _HEAD.size + _TRANSACTIONS.size + _LENGTH.size:
        return None
    magic, version, _ = _HEAD.unpack_from(head)
    if magic == _MAGIC and version in (_VERSION_WITHOUT_TRANSACTIONS, _VERSION_OF_APPEND_TIMES):
        return SegmentTransactions(0, -1)
    fields = head[_HEAD.size : _HEAD.size + _TRANSACTIONS.size]
    if (magic, version) != (_MAGIC, _VERSION) or head[-_LENGTH.size :] != _LENGTH.pack(_head_checksum(fields)):
        return None
    return SegmentTransactions(*_TRANSACTIONS.unpack(fields))


def _head_checksum(fields: bytes) -> int:
    checksum: int = crc32c.crc32c(fields, crc32c.crc32c(_MAGIC + _CHECKED_VERSION.pack(_VERSION)))
    return checksum


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


def load_producers(
    files: FileSystem, directory: Path, segments: Sequence[Segment], end: int, high_watermark: int
) -> ProducerState:
    """The state after all records before ``end``, where ``segments`` end. Snapshots that do not fit are removed: those
    beyond ``end`` know records that no longer exist, those before the first segment lack the records in between.

    Which ends of transactions are not committed yet depends on ``high_watermark``, which no snapshot has: the frames
    from there on say it.

    Raises `CorruptRecordError` where a segment is damaged, `OSError`.
    """
    offsets = PartitionFiles.find(files, directory).snapshot_offsets
    first = segments[0].base_offset
    stale = [offset for offset in offsets if not first <= offset <= end]
    remove_snapshots(files, directory, stale)
    if stale:  # otherwise a power failure could bring one back after the log has grown beyond it
        files.sync_directory(directory)
    offset, state = _newest_snapshot(files, directory, [offset for offset in offsets if offset not in stale])
    known_from = min(offset, high_watermark) if state.transactions.known else offset
    ends = [segment.base_offset for segment in segments[1:]] + [end]
    for segment, segment_end in zip(segments, ends, strict=True):
        if segment_end <= known_from:
            continue
        segment.load()
        with segment.hold() as held:
            for position, header in segment.walk(held, segment.size_bytes, 0, segment.base_offset):
                if header.base_offset >= offset:
                    state.add(header, segment.control(held, position, header))
                elif header.is_control and header.base_offset >= known_from:
                    control = segment.control(held, position, header)
                    if isinstance(control, TransactionEnd):
                        state.transactions.end_again(header, control)
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
