"""The frame's header: 128 bytes, little-endian. The leader writes the first part and the producer the second; each has
a checksum of its own.

| offset | size | name             | who      | meaning                                                                |
|-------:|-----:|------------------|----------|------------------------------------------------------------------------|
|      0 |    8 | base_offset      | leader   | offset of the first record; -1 before the leader stamped it            |
|      8 |    8 | append_time      | leader   | ms since the epoch, the leader's clock at the append; -1 unstamped     |
|     16 |    8 | high_watermark   | leader   | high watermark at the append, at most its durable end; -1 unstamped    |
|     24 |    4 | leader_epoch     | leader   | -1 unstamped                                                           |
|     28 |    4 | stamp_flags      | leader   | bit 0: records take the append time; other bits zero                   |
|     32 |    4 | stamp_crc        | leader   | CRC-32C of topic id (16 bytes), partition (i32), bytes 0–31            |
|     36 |    4 | pruned_bytes     | server   | length of this pruned answer; 0: the frame is whole. Under no checksum |
|     40 |    4 | magic            | producer | the bytes `PLOG`                                                       |
|     44 |    2 | version          | producer | 1                                                                      |
|     46 |    2 | attributes       | producer | bits 0–2 codec (0 none, 1 lz4, 2 zstd); 3 zero (Kafka's time type);    |
|        |      |                  |          | 4 transactional; 5 control; others zero                                |
|     48 |    4 | required         | producer | feature bits; a reader that does not know one refuses the frame        |
|     52 |    4 | optional         | producer | feature bits that a reader may ignore                                  |
|     56 |    4 | frame_bytes      | producer | the whole frame, header included; a multiple of 64                     |
|     60 |    4 | uncompressed     | producer | sum over the chunks of what they take uncompressed                     |
|     64 |    4 | record_count     | producer | rows; 0 in a control frame only                                        |
|     68 |    4 | last_delta       | producer | last offset minus base offset: record_count - 1, or 0 without rows     |
|     72 |    8 | base_timestamp   | producer | the smallest of the records' timestamps, ms                            |
|     80 |    8 | max_timestamp    | producer | the largest                                                            |
|     88 |    8 | producer_id      | producer | -1: not idempotent                                                     |
|     96 |    4 | base_sequence    | producer | of the first record; -1 none                                           |
|    100 |    2 | producer_epoch   | producer | -1 none                                                                |
|    102 |    2 | schema_id        | producer | version of the topic's schema that the columns follow                  |
|    104 |    2 | chunk_count      | producer | at least 1                                                             |
|    106 |    2 | reserved         | producer | zero                                                                   |
|    108 |    4 | directory_bytes  | producer | the directory that follows the header, padding to 64 included          |
|    112 |   12 | reserved         | producer | zero                                                                   |
|    124 |    4 | crc              | producer | CRC-32C of bytes 40–123 and the directory                              |

Rule: the leader writes the first `STAMP_BYTES` and changes nothing else, so replicas carry the producer's checksum
unchanged. The producer numbers a frame just before it first sends it (`number_frame`). Required features: ``NO_ROWS``
(a control frame: it has no records, takes one offset, and only brokers write it; see `control`), and ``OFFSET_DELTAS``
(a chunk of the rows' offset deltas, for compaction), which is reserved and refused by this version.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

from broker_runtime.contract.errors import CorruptRecordError, UnsupportedVersionError

HEADER_BYTES = 128
STAMP_BYTES = 40
ALIGNMENT_BYTES = 64
MAGIC = int.from_bytes(b"PLOG", "little")
FRAME_VERSION = 1

MAX_FRAME_BYTES = 64 << 20
MAX_UNCOMPRESSED_BYTES = MAX_FRAME_BYTES
"""How much memory a frame's chunks may take in a reader, whatever the codec."""
MAX_RECORDS_PER_FRAME = 1 << 23
MAX_DIRECTORY_BYTES = 1 << 20
MAX_CHUNKS = 4096 + 2
"""A topic's columns and the two system columns."""

Buffer: TypeAlias = Any
"""Anything with the buffer protocol over contiguous bytes: bytes, bytearray, memoryview, pa.Buffer."""

CODECS = ("none", "lz4", "zstd")
REQUIRED_OFFSET_DELTAS = 1 << 0
REQUIRED_NO_ROWS = 1 << 1
SUPPORTED_REQUIRED = REQUIRED_NO_ROWS

_STAMP_LOG_APPEND_TIME = 1
_ATTRIBUTE_CODEC = 0b111
_ATTRIBUTE_TRANSACTIONAL = 1 << 4
_ATTRIBUTE_CONTROL = 1 << 5
_ATTRIBUTES_KNOWN = _ATTRIBUTE_CODEC | _ATTRIBUTE_TRANSACTIONAL | _ATTRIBUTE_CONTROL
_INT64_MAX = 2**63 - 1

_STAMP = struct.Struct("<qqqiI")
_STAMP_CRC = struct.Struct("<II")
_PRODUCER = struct.Struct("<IHHIIIIiiqqqihHHHIQI")
_HEADER = struct.Struct("<qqqiIII" + "IHHIIIIiiqqqihHHHIQI" + "I")
_CRC = struct.Struct("<I")
_SEED = struct.Struct("<16si")
_NUMBER = struct.Struct("<qih")
_NUMBER_POSITION = 88
_ATTRIBUTES = struct.Struct("<H")
_ATTRIBUTES_POSITION = 46
_DIRECTORY_BYTES_POSITION = 108
_PRUNED = struct.Struct("<I")
_GLANCE = struct.Struct("<q28xIIHHI4xI4xI20xq")

_CRC_POSITION = HEADER_BYTES - _CRC.size
PRUNED_POSITION = STAMP_BYTES - _PRUNED.size
assert _HEADER.size == HEADER_BYTES
assert _STAMP.size + _STAMP_CRC.size == STAMP_BYTES


class FrameHeader(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a header; timestamps in ms. The first four are -1 in a frame that no leader has stamped.

    ``timestamp_type``: 0 if records keep the producer's times, 1 if they take ``append_time_ms``. ``pruned_bytes``: the
    length of the pruned answer that begins with this header, 0 in a whole frame.
    """

    base_offset: int
    append_time_ms: int
    high_watermark: int
    leader_epoch: int
    timestamp_type: int
    pruned_bytes: int
    frame_bytes: int
    uncompressed_bytes: int
    codec: str
    is_transactional: bool
    is_control: bool
    record_count: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    schema_id: int
    chunk_count: int
    directory_bytes: int

    @property
    def last_offset(self) -> int:
        """The offset of the frame's last record, or of a control frame; meaningless in an unstamped frame."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after `last_offset`; meaningless in an unstamped frame."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_pruned(self) -> bool:
        """Whether chunks are left out. Such a frame is an answer to a reader and is never appended."""
        return self.pruned_bytes != 0

    @property
    def stored_bytes(self) -> int:
        """How many bytes the frame takes in the buffer that this header was read from."""
        return self.pruned_bytes or self.frame_bytes

    @property
    def head_bytes(self) -> int:
        """The bytes of header and directory, which a projection must read first."""
        return HEADER_BYTES + self.directory_bytes

    @property
    def latest_timestamp_ms(self) -> int:
        """The largest timestamp that a reader sees in the frame."""
        return self.append_time_ms if self.timestamp_type else self.max_timestamp_ms


def parse_header(buffer: Buffer, position: int = 0) -> FrameHeader:
    """The header at ``position``. Magic, version, feature bits, bounds and lengths are checked, checksums are not.

    The rest of the frame need not be in the buffer. Raises `CorruptRecordError` for anything wrong, an unknown version
    or feature included: without the checksum, a newer frame looks like a damaged one; `verify_frame` tells which.
    """
    return _header(_unpack(buffer, position), CorruptRecordError)


def parse_checked_header(frame: memoryview) -> FrameHeader:
    """The header of ``frame``, with the producer's checksum over header and directory verified; chunks are not read.

    Raises `CorruptRecordError`, and `UnsupportedVersionError` if the checksum holds but the version or a required
    feature is unknown.
    """
    fields = _unpack(frame, 0)
    directory_bytes = fields[24]
    if fields[7] != MAGIC:
        raise CorruptRecordError(f"not a frame: magic {fields[7]:#010x} instead of {MAGIC:#010x}")
    if directory_bytes > MAX_DIRECTORY_BYTES or HEADER_BYTES + directory_bytes > len(frame):
        raise CorruptRecordError(
            f"the frame's directory of {directory_bytes} bytes does not fit into the {len(frame)} bytes given"
        )
    crc = crc32c(frame[HEADER_BYTES : HEADER_BYTES + directory_bytes], crc32c(frame[STAMP_BYTES:_CRC_POSITION]))
    if crc != fields[27]:
        raise CorruptRecordError(f"CRC of the frame's header is {crc:#010x}, the frame says {fields[27]:#010x}")
    return _header(fields, UnsupportedVersionError)


def pack_header(header: FrameHeader, directory: Buffer) -> bytes:
    """The 128 bytes of an unstamped header, with the checksum over itself and ``directory``."""
    attributes = CODECS.index(header.codec)
    if header.is_transactional:
        attributes |= _ATTRIBUTE_TRANSACTIONAL
    if header.is_control:
        attributes |= _ATTRIBUTE_CONTROL
    producer = _PRODUCER.pack(
        MAGIC,
        FRAME_VERSION,
        attributes,
        REQUIRED_NO_ROWS if header.is_control else 0,
        0,
        header.frame_bytes,
        header.uncompressed_bytes,
        header.record_count,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.producer_id,
        header.base_sequence,
        header.producer_epoch,
        header.schema_id,
        header.chunk_count,
        0,
        header.directory_bytes,
        0,
        0,
    )
    crc = crc32c(directory, crc32c(producer))
    return _UNSTAMPED + producer + _CRC.pack(crc)


def number_frame(
    frame: Buffer, *, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool = False
) -> None:
    """Writes the producer and the sequence number into the header of ``frame``, in place, and whether it is part of a
    transaction. The rest is not changed.

    ``frame`` must be whole and its memory writable. Costs a checksum over header and directory. Raises `ValueError` if
    the memory is read-only, `struct.error` if a number does not fit into its field.
    """
    view = memoryview(frame).cast("B")
    if view.readonly:
        raise ValueError("the frame's memory is read-only")
    _NUMBER.pack_into(view, _NUMBER_POSITION, producer_id, base_sequence, producer_epoch)
    (attributes,) = _ATTRIBUTES.unpack_from(view, _ATTRIBUTES_POSITION)
    transactional = _ATTRIBUTE_TRANSACTIONAL if is_transactional else 0
    _ATTRIBUTES.pack_into(view, _ATTRIBUTES_POSITION, attributes & ~_ATTRIBUTE_TRANSACTIONAL | transactional)
    (directory_bytes,) = _CRC.unpack_from(view, _DIRECTORY_BYTES_POSITION)
    crc = crc32c(view[HEADER_BYTES : HEADER_BYTES + directory_bytes], crc32c(view[STAMP_BYTES:_CRC_POSITION]))
    _CRC.pack_into(view, _CRC_POSITION, crc)


def stamp(
    frame: FrameHeader | Buffer,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
    high_watermark: int,
    topic_id: bytes,
    partition: int,
    log_append_time: bool = False,
) -> bytes:
    """The leader's part of ``frame``'s header, exactly `STAMP_BYTES`: it replaces the first bytes of the frame.

    ``log_append_time``: readers take ``append_time_ms`` as every record's timestamp. Raises `ValueError` if an offset
    would exceed 64 bits or ``topic_id`` does not have 16 bytes.
    """
    header = frame if isinstance(frame, FrameHeader) else parse_header(frame)
    if not 0 <= base_offset <= _INT64_MAX - header.last_offset_delta - 1:
        raise ValueError(f"base offset {base_offset} is out of range for a frame of {header.record_count} records")
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
    flags = _STAMP_LOG_APPEND_TIME if log_append_time else 0
    stamped = _STAMP.pack(base_offset, append_time_ms, high_watermark, leader_epoch, flags)
    return stamped + _STAMP_CRC.pack(crc32c(stamped, crc32c(_SEED.pack(topic_id, partition))), 0)


def check_stamp(frame: memoryview, *, topic_id: bytes, partition: int) -> None:
    """Raises `CorruptRecordError` unless a leader of this very partition stamped ``frame``."""
    crc = crc32c(frame[: _STAMP.size], crc32c(_SEED.pack(topic_id, partition)))
    stored, _ = _STAMP_CRC.unpack_from(frame, _STAMP.size)
    if crc != stored:
        raise CorruptRecordError(
            f"CRC of the frame's stamp is {crc:#010x}, the frame says {stored:#010x}: damaged, or of another partition"
        )


def pruned_head(head: Buffer, pruned_bytes: int) -> bytearray:
    """A copy of a frame's first bytes, with a header that says that the answer has ``pruned_bytes``."""
    copy = bytearray(head)
    _PRUNED.pack_into(copy, PRUNED_POSITION, pruned_bytes)
    return copy


class Glance(NamedTuple):
    """As much of a header as tells whether a reader of committed records needs the frame. ``producer_id``: -1 unless it
    is transactional."""

    base_offset: int
    stored_bytes: int
    is_control: bool
    producer_id: int


def glance(buffer: Buffer, position: int) -> Glance | None:
    """The header at ``position``, for a fraction of what `parse_header` takes. Nothing else of it is checked.

    None: there is none of a frame of this version that is whole and not at odds with itself; `parse_header` says why.
    """
    try:
        fields = _GLANCE.unpack_from(buffer, position)
    except struct.error:
        return None
    base_offset, pruned_bytes, magic, version, attributes, required, frame_bytes, record_count, producer_id = fields
    is_control = bool(attributes & _ATTRIBUTE_CONTROL)
    stored_bytes = pruned_bytes or frame_bytes
    if (
        magic != MAGIC
        or version != FRAME_VERSION
        or required != (REQUIRED_NO_ROWS if is_control else 0)
        or is_control != (record_count == 0)
        or stored_bytes < HEADER_BYTES
    ):
        return None
    return Glance(base_offset, stored_bytes, is_control, producer_id if attributes & _ATTRIBUTE_TRANSACTIONAL else -1)


def _unpack(buffer: Buffer, position: int) -> tuple[int, ...]:
    try:
        return _HEADER.unpack_from(buffer, position)
    except struct.error:
        available = max(0, memoryview(buffer).nbytes - position)
        raise CorruptRecordError(
            f"a frame's header has {HEADER_BYTES} bytes, only {available} are left at position {position}"
        ) from None


def _header(fields: tuple[int, ...], not_understood: type[CorruptRecordError | UnsupportedVersionError]) -> FrameHeader:
    (
        base_offset, append_time, high_watermark, leader_epoch, stamp_flags, _, pruned_bytes,
        magic, version, attributes, required, _, frame_bytes, uncompressed, record_count, last_delta,
        base_timestamp, max_timestamp, producer_id, base_sequence, producer_epoch, schema_id,
        chunk_count, reserved_a, directory_bytes, reserved_b, reserved_c, _,
    ) = fields  # fmt: skip
    if magic != MAGIC:
        raise CorruptRecordError(f"not a frame: magic {magic:#010x} instead of {MAGIC:#010x}")
    if version != FRAME_VERSION:
        raise not_understood(f"frame version {version} is unknown, only {FRAME_VERSION} is known here")
    if required & ~SUPPORTED_REQUIRED:
        raise not_understood(f"the frame requires features {required:#x}, only {SUPPORTED_REQUIRED:#x} are known here")
    codec = attributes & _ATTRIBUTE_CODEC
    is_control = bool(attributes & _ATTRIBUTE_CONTROL)
    if attributes & ~_ATTRIBUTES_KNOWN or codec >= len(CODECS):
        raise not_understood(f"frame attributes {attributes:#06x} have unknown bits")
    if (
        reserved_a
        or reserved_b
        or reserved_c
        or stamp_flags & ~_STAMP_LOG_APPEND_TIME
        or is_control != bool(required & REQUIRED_NO_ROWS)
        or (record_count != 0 if is_control else not 1 <= record_count <= MAX_RECORDS_PER_FRAME)
        or last_delta != max(record_count - 1, 0)
        or (is_control and chunk_count != 1)
        or not 1 <= chunk_count <= MAX_CHUNKS
        or not HEADER_BYTES < frame_bytes <= MAX_FRAME_BYTES
        or directory_bytes > MAX_DIRECTORY_BYTES
        or frame_bytes % ALIGNMENT_BYTES
        or directory_bytes % ALIGNMENT_BYTES
        or HEADER_BYTES + directory_bytes >= frame_bytes
        or uncompressed > MAX_UNCOMPRESSED_BYTES
        or not 0 <= base_timestamp <= max_timestamp
        or producer_id < -1
        or producer_epoch < -1
        or base_sequence < -1
        or not -1 <= base_offset <= _INT64_MAX - last_delta - 1
        or (pruned_bytes and (pruned_bytes % ALIGNMENT_BYTES or pruned_bytes <= HEADER_BYTES + directory_bytes))
        or pruned_bytes > frame_bytes + MAX_DIRECTORY_BYTES
    ):
        raise CorruptRecordError(_out_of_bounds(fields))
    return FrameHeader(
        base_offset=base_offset,
        append_time_ms=append_time,
        high_watermark=high_watermark,
        leader_epoch=leader_epoch,
        timestamp_type=stamp_flags & _STAMP_LOG_APPEND_TIME,
        pruned_bytes=pruned_bytes,
        frame_bytes=frame_bytes,
        uncompressed_bytes=uncompressed,
        codec=CODECS[codec],
        is_transactional=bool(attributes & _ATTRIBUTE_TRANSACTIONAL),
        is_control=is_control,
        record_count=record_count,
        last_offset_delta=last_delta,
        base_timestamp_ms=base_timestamp,
        max_timestamp_ms=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        schema_id=schema_id,
        chunk_count=chunk_count,
        directory_bytes=directory_bytes,
    )


def _out_of_bounds(fields: tuple[int, ...]) -> str:
    names = (
        *("base_offset", "append_time", "high_watermark", "leader_epoch", "stamp_flags", "stamp_crc", "pruned_bytes"),
        *("magic", "version", "attributes", "required", "optional", "frame_bytes", "uncompressed", "record_count"),
        *("last_delta", "base_timestamp", "max_timestamp", "producer_id", "base_sequence", "producer_epoch"),
        *("schema_id", "chunk_count", "reserved", "directory_bytes", "reserved", "reserved", "crc"),
    )
    return "the frame's header has fields out of their bounds: " + ", ".join(
        f"{name}={value}" for name, value in zip(names, fields, strict=True)
    )


_UNSTAMPED = _STAMP.pack(-1, -1, -1, -1, 0) + _STAMP_CRC.pack(0, 0)
