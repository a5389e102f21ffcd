"""A file of entries of one size, each with its own checksum: the ground of all indexes of a segment.

    bytes          content
    0 … n-5        the entry's fields, little endian, n the entry's size
    n-4 … n-1      CRC-32C (u32) of those fields, seeded with the segment's base offset (8 bytes, little endian)

Rule: an entry is only believed after its checksum. Nothing is kept in memory and nothing is read at start: look-ups
read single entries through the cache of open files. Indexes can be thrown away at any time: the log has all that
stands in them. They are fsynced when their segment is closed, and not before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import crc32c

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.log.files import read_file, replace_file
from broker_runtime.log.open_files import OpenFiles

_CHECKSUM = struct.Struct("<I")


class IndexFile:
    """Fixed-size checked entries. Not thread-safe against writers: the log's lock guards those.

    ``count`` is None until the file was looked at. Readers see entries below the ``count`` they read.
    """

    __slots__ = ("_count", "_fields", "_open_files", "_seed", "entry_bytes", "path")

    def __init__(self, open_files: OpenFiles, path: Path, fields: str, base_offset: int) -> None:
        self._open_files = open_files
        self.path = path
        self._fields = struct.Struct(fields)
        self.entry_bytes = self._fields.size + _CHECKSUM.size
        self._seed = crc32c.crc32c(base_offset.to_bytes(8, "little"))
        self._count: int | None = None

    def __len__(self) -> int:
        """Entries in the file. Raises `CorruptRecordError` where it is missing or ends inside an entry, `OSError`."""
        if self._count is None:
            size = self._open_files.files.file_size(self.path)
            if size is None or size % self.entry_bytes:
                raise CorruptRecordError(f"{self.path} has {size} bytes, which are not whole entries")
            self._count = size // self.entry_bytes
        return self._count

    def encode(self, fields: Sequence[int]) -> bytes:
        """One entry's bytes."""
        body = self._fields.pack(*fields)
        return body + _CHECKSUM.pack(crc32c.crc32c(body, self._seed))

    def append(self, fields: Sequence[int]) -> None:
        """Writes one entry behind the last. Raises `OSError`; then the entry is not there."""
        count = len(self)
        with self._open_files.hold(self.path, create=True) as held:
            self._open_files.files.write(held.descriptor, [self.encode(fields)], count * self.entry_bytes)
        self._count = count + 1

    def entry(self, number: int) -> tuple[int, ...]:
        """The fields of one entry. Raises `CorruptRecordError`, `OSError`."""
        with self._open_files.hold(self.path) as held:
            data = self._open_files.files.read(held.descriptor, self.entry_bytes, number * self.entry_bytes)
        return self._decode(data, number)

    def entries(self) -> Iterator[tuple[int, ...]]:
        """All entries in order. Raises `CorruptRecordError` at the first bad one, `OSError`."""
        count = len(self)
        with self._open_files.hold(self.path) as held:
            data = self._open_files.files.read(held.descriptor, count * self.entry_bytes, 0)
        for number in range(count):
            yield self._decode(data[number * self.entry_bytes : (number + 1) * self.entry_bytes], number)

    def last_at_most(self, field: int, value: int) -> int:
        """The number of the last entry whose ``field`` is ≤ ``value``, or -1. The field must not fall."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[field] <= value:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def create(self) -> None:
        """An empty file, if there is none. Raises `OSError`."""
        self._open_files.hold(self.path, create=True).release()

    def replace(self, entries: Sequence[Sequence[int]], *, is_durable: bool = True) -> None:
        """Makes ``entries`` the whole content. Raises `OSError`.

        What is written is durable, unless that is left to the caller (`replace_file`). A file that has it already is
        left as it is; or, where the caller syncs it, written once more in its place: what is read need not be on the
        device, nor be dirty any more (recovery.py).
        """
        data = b"".join(map(self.encode, entries))
        if not self._has(data):
            replace_file(self._open_files.files, self.path, data, is_durable=is_durable)
            self._open_files.forget(self.path)
        elif data and not is_durable:
            with self._open_files.hold(self.path) as held:
                self._open_files.files.write(held.descriptor, [data], 0)
        self._count = len(entries)

    def delete(self) -> None:
        """Unlinks the file, if it is there. Raises `OSError`."""
        if self._open_files.files.file_size(self.path) is not None:
            self._open_files.files.unlink(self.path)
        self._open_files.forget(self.path)
        self._count = None

    def _has(self, data: bytes) -> bool:
        files = self._open_files.files
        if files.file_size(self.path) != len(data):
            return False
        try:
            return read_file(files, self.path) == data
        except OSError:  # one that cannot be read is replaced as one that is wrong
            return False

    def _decode(self, data: bytes, number: int) -> tuple[int, ...]:
        if len(data) != self.entry_bytes:
            raise CorruptRecordError(f"{self.path} ends inside entry {number}")
        body = data[: self._fields.size]
        if _CHECKSUM.unpack_from(data, self._fields.size)[0] != crc32c.crc32c(body, self._seed):
            raise CorruptRecordError(f"{self.path}: entry {number} fails its checksum")
        return self._fields.unpack(body)
