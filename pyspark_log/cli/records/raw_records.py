r"""Complete records in binary: the output of `pylog consume --raw` and the input of `pylog produce --raw`.

    stream  := "pylog-raw-1\n" record*              streams may be concatenated
    record  := length uint32, followed by so many bytes: partition int32, timestamp int64 (ms), key bytes, value bytes,
               count uint32, count × (name bytes, value bytes)
    bytes   := length int32, -1 for null, followed by so many bytes

Numbers are big-endian. The value of a typed record is its row as JSON (`json_values`), and it has no key of its own.
Rule: an incomplete record is an error, never a shorter record. Pure, except for reading the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

MAGIC = b"pylog-raw-1\n"
_PLACE = struct.Struct(">iq")
_LENGTH = struct.Struct(">I")
_FIELD = struct.Struct(">i")
_OVERHEAD_BYTES = 1 << 20


class RawRecord(NamedTuple):
    """One record."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def pack_record(record: RawRecord) -> bytes:
    """The record's bytes."""
    parts = [_PLACE.pack(record.partition, record.timestamp_ms), _field(record.key), _field(record.value)]
    parts.append(_LENGTH.pack(len(record.headers)))
    for name, value in record.headers:
        parts += [_field(name.encode()), _field(value)]
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def read_raw(source: BinaryIO, *, limit_bytes: int) -> Iterator[bytes]:
    """The records of ``source``, each for `unpack_record`. Raises `ValueError` for anything that is not such a stream,
    and for a record larger than ``limit_bytes``."""
    start = source.read(len(MAGIC))
    if start and start != MAGIC:
        raise ValueError("the input is not the output of pylog consume --raw")
    while head := source.read(_LENGTH.size):
        if head == MAGIC[: _LENGTH.size] and head + source.read(len(MAGIC) - _LENGTH.size) == MAGIC:
            continue
        if len(head) < _LENGTH.size:
            raise ValueError("the input ends in the middle of a record")
        (length,) = _LENGTH.unpack(head)
        if length > limit_bytes + _OVERHEAD_BYTES:
            raise ValueError(f"a record has {length} bytes; at most {limit_bytes} are allowed")
        body = source.read(length)
        if len(body) < length:
            raise ValueError("the input ends in the middle of a record")
        yield body


def unpack_record(body: bytes) -> RawRecord:
    """Unpacks a record of `read_raw`. Raises `ValueError`."""
    try:
        partition, timestamp_ms = _PLACE.unpack_from(body)
        key, position = _take(body, _PLACE.size)
        value, position = _take(body, position)
        (count,) = _LENGTH.unpack_from(body, position)
        position += _LENGTH.size
        headers = []
        for _ in range(count):
            name, position = _take(body, position)
            content, position = _take(body, position)
            headers.append(((name or b"").decode(), content))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the record is damaged: {error}") from None
    if position != len(body):
        raise ValueError("the record is damaged: its lengths do not add up")
    return RawRecord(partition, timestamp_ms, key, value, headers)


def _field(value: bytes | None) -> bytes:
    return _FIELD.pack(-1) if value is None else _FIELD.pack(len(value)) + value


def _take(body: bytes, position: int) -> tuple[bytes | None, int]:
    (length,) = _FIELD.unpack_from(body, position)
    position += _FIELD.size
    if length == -1:
        return None, position
    if not 0 <= length <= len(body) - position:
        raise struct.error("a length reaches beyond its end")
    return body[position : position + length], position + length
