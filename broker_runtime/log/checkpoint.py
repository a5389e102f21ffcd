"""Small text files of numbers, each whole or not there: Kafka's OffsetCheckpointFile, with a checksum.

    line          content
    1             version (0)
    2             number of entries
    3 … n+2       one entry per line, fields separated by one space
    last          ``crc32c`` and 8 hex digits over all bytes before this line

Rule: replaced as a whole (write, fsync, rename, fsync of the directory). A file that fails its checks counts as
missing, and a warning says so: everything in these files can be found again in the logs themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import crc32c

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.files import FileSystem, read_file, replace_file

_VERSION = 0
_logger = logging.getLogger(__name__)


def encode_entries(entries: Iterable[Sequence[str | int]]) -> bytes:
    """The file's bytes for entries of fields without spaces."""
    lines = [" ".join(map(str, entry)) for entry in entries]
    body = "".join(f"{line}\n" for line in [str(_VERSION), str(len(lines)), *lines]).encode("ascii")
    return body + f"crc32c {crc32c.crc32c(body):08x}\n".encode("ascii")


def decode_entries(data: bytes, *, field_count: int) -> list[list[str]]:
    """The entries of a file's bytes. Raises `CorruptRecordError` if they are not exactly as `encode_entries` writes."""
    body_end = data.rfind(b"crc32c ")
    body = data[: max(body_end, 0)]
    if body_end < 0 or data[body_end:] != f"crc32c {crc32c.crc32c(body):08x}\n".encode("ascii"):
        raise CorruptRecordError("its checksum does not fit its content")
    lines = body.decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != str(_VERSION):
        raise CorruptRecordError(f"its version is {lines[:1]}, known is {_VERSION}")
    entries = [line.split(" ") for line in lines[2:]]
    if lines[1] != str(len(entries)) or any(len(entry) != field_count for entry in entries):
        raise CorruptRecordError(f"it has {len(entries)} entries, its head says {lines[1]} of {field_count} fields")
    return entries


def read_entries(files: FileSystem, path: Path, *, field_count: int) -> list[list[str]] | None:
    """The entries at ``path``; None where the file is missing, or damaged (with a warning). Raises `OSError`."""
    data = read_file(files, path)
    if data is None:
        return None
    try:
        return decode_entries(data, field_count=field_count)
    except CorruptRecordError as error:
        event(_logger, "ignore damaged checkpoint", level=logging.WARNING, path=path, error=error)
        return None


class OffsetCheckpoint:
    """One offset per partition, in one file of a data directory. Not thread-safe: the directory's lock guards it."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._on_disk: Mapping[TopicPartition, int] | None = None  # None: unknown

    def read(self) -> dict[TopicPartition, int] | None:
        """The offsets; None where the file is missing or damaged. Raises `OSError`."""
        entries = read_entries(self._files, self._path, field_count=3)
        if entries is None:
            return None
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in entries}
        self._on_disk = dict(offsets)
        return offsets

    def mentions(self, partition: TopicPartition) -> bool:
        """Whether the file mentions, or may mention, the partition."""
        return self._on_disk is None or partition in self._on_disk

    def names(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the file certainly mentions each of these."""
        return self._on_disk is not None and self._on_disk.keys() >= set(partitions)

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns. The same content again writes nothing. Raises `OSError`; then the old one stays."""
        if offsets == self._on_disk:
            return
        self._on_disk = None
        rows = [(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
        replace_file(self._files, self._path, encode_entries(rows))
        self._on_disk = dict(offsets)
