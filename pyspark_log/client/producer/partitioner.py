"""The partition of a key: Kafka's murmur2. (`topic_queues` places records without a key.)

Rule: a key has the same partition as in Kafka, so data that is moved from there stays in its partition:
``(murmur2(bytes) & 0x7fffffff) % partitions`` (Kafka's ``Utils.murmur2`` and ``Utils.toPositive``). A key's bytes are
UTF-8 for strings and big-endian for integers: four bytes for types of up to 32 bits, eight above (what Kafka's
IntegerSerializer and LongSerializer write). A Python int has eight.

numpy hashes whole columns in Arrow's own buffers, in one step per four bytes of the longest key instead of one per
record. Null keys have no partition: callers treat them as records without a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_runtime.contract.errors import InvalidPartitionsError, SchemaMismatchError

PartitionFunction: TypeAlias = Callable[[str, bytes | None, int], int]
"""A user's partitioner: ``(topic, key bytes or None, number of partitions) -> partition``."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SLICE_ROWS = 65_536  # bounds the scratch memory of `hash_column`


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of ``data``, as an unsigned number (in Java it is signed)."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)


def key_bytes(key: bytes | bytearray | memoryview | str | int) -> bytes:
    """The bytes of a key: strings as UTF-8, ints as 8 bytes big-endian. Raises `SchemaMismatchError`."""
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    if isinstance(key, str):
        return utf8("key", key)
    if isinstance(key, int) and not isinstance(key, bool):
        try:
            return key.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise SchemaMismatchError(f"key {key} does not fit 64 bits; give its bytes") from None
    raise SchemaMismatchError(f"a key is bytes, str or int, not {type(key).__name__}; give a key_serializer")


def utf8(what: str, text: str) -> bytes:
    """``text`` as UTF-8. Raises `SchemaMismatchError` if it is not valid Unicode (a lone surrogate)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SchemaMismatchError(f"{what} {text!r:.80} is not valid Unicode: {error.reason}") from None


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key's bytes among ``partitions``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def check_partition(topic: str, partition: int, partitions: int) -> int:
    """``partition`` if the topic has it; raises `InvalidPartitionsError`."""
    if isinstance(partition, bool) or not isinstance(partition, (int, np.integer)) or not 0 <= partition < partitions:
        raise InvalidPartitionsError(f"topic {topic!r} has partitions 0 to {partitions - 1}, not {partition!r}")
    return int(partition)


def partitions_for_keys(keys: pa.Array | pa.ChunkedArray, partitions: int) -> np.ndarray:
    """The partition of each key, as int32 of the same length; -1 where the key is null.

    ``keys``: binary, string (also large, fixed-size and view types) or integer, else `SchemaMismatchError`.
    """
    column = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if isinstance(column, pa.ChunkedArray):  # combine_chunks of no chunks is still chunked
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        by_value = partitions_for_keys(column.dictionary, partitions)
        indices = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        found = by_value[indices] if len(by_value) else np.full(len(column), -1, np.int32)
    else:
        found = ((hash_column(column) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    if column.null_count:
        found = np.where(column.is_null().to_numpy(zero_copy_only=False), np.int32(-1), found)
    return found


def hash_column(column: pa.Array) -> np.ndarray:
    """murmur2 of each value's key bytes as uint32; the hash of a null row is arbitrary."""
    kind = column.type
    if pa.types.is_integer(kind):
        wide = kind.bit_width == 64 or kind == pa.uint32()
        filled = column.fill_null(0) if column.null_count else column
        numbers = filled.to_numpy(zero_copy_only=False).astype(">i8" if wide else ">i4")
        width = 8 if wide else 4
        starts = np.arange(len(numbers), dtype=np.int64) * width
        return _hash_slices(numbers.view(np.uint8), starts, np.full(len(numbers), width, np.int64))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        column = pc.cast(column, pa.large_binary())
    elif pa.types.is_large_string(kind):
        column = column.view(pa.large_binary())
    elif pa.types.is_string(kind):
        column = column.view(pa.binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise SchemaMismatchError(f"a key column is string, binary or integer, not {kind}")
    width_type = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    _, offset_buffer, data_buffer = column.buffers()
    if len(column) == 0 or offset_buffer is None:
        return np.zeros(len(column), np.uint32)
    offsets = np.frombuffer(offset_buffer, width_type)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    lengths = offsets[1:] - offsets[:-1]
    hashes = np.empty(len(column), np.uint32)
    for first in range(0, len(column), _SLICE_ROWS):
        rows = slice(first, first + _SLICE_ROWS)
        hashes[rows] = _hash_slices(data, offsets[:-1][rows], lengths[rows])
    return hashes


def _hash_slices(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """murmur2 of each ``data[start : start + length]``. Rows are sorted by length, so each step takes a prefix."""
    order = np.argsort(-lengths, kind="stable")
    at, left = starts[order], lengths[order]
    m = np.uint32(_M)
    h = np.uint32(_SEED) ^ left.astype(np.uint32)
    words = left >> 2
    # Invariant: rows [0, live) still have a whole word.
    steps = int(words[0]) if len(words) else 0
    live_at_step = len(words) - np.searchsorted(words[::-1], np.arange(1, steps + 1), side="left")
    for step in range(steps):
        live = int(live_at_step[step])
        k = _gather(data, at[:live] + 4 * step, 4)
        k *= m
        k ^= k >> np.uint32(24)
        k *= m
        h[:live] *= m
        h[:live] ^= k
    rest = left & 3
    for tail in (1, 2, 3):
        rows = np.flatnonzero(rest == tail)
        if len(rows):
            h[rows] = (h[rows] ^ _gather(data, at[rows] + (left[rows] & ~3), tail)) * m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    hashes = np.empty_like(h)
    hashes[order] = h
    return hashes


def _gather(data: np.ndarray, at: np.ndarray, width: int) -> np.ndarray:
    """The little-endian numbers of ``width`` bytes (1 to 4) at each position."""
    number: np.ndarray = data[at].astype(np.uint32)
    for byte in range(1, width):
        number |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return number
