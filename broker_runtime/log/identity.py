"""Whose a directory is: ``.lock`` and ``meta.json`` of a data directory, ``partition.json`` of a partition's. And which
disk a data directory is: ``disk.json``.

    {"content": {"version": 1, …}, "crc32c": "<8 hex digits over the content as JSON with sorted keys, no spaces>"}

    meta.json        cluster_id (text), broker_id (int)
    disk.json        disk_id (text), epoch (int): of the last registration that had the directory; -1: none yet;
                     is_stopped (bool): that registration's broker closed the directory in order; generation (int): how
                     often in that registration a checkpoint found records that were not there at the one before
    partition.json   topic (text), topic_id (32 hex digits), partition (int),
                     schemas ([[schema id, Arrow schema message in base64], …] by rising id)

Rule: replaced as a whole. partition.json carries every version of the topic's schema, so that a segment can be read
without ZooKeeper.

A data directory is one process's at a time (``.lock``), and one broker's of one cluster for ever. Rule: nothing else in
it is read before both are known, and before it is certain that no data directory is inside another: deleting a log, or
setting it aside, affects everything in its directory.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import crc32c

from broker_runtime.contract.errors import CorruptRecordError, DirectoryLockedError, SetupError
from broker_runtime.log.files import FileSystem, read_file, replace_file

LOCK_NAME = ".lock"
META_NAME = "meta.json"
DISK_NAME = "disk.json"
PARTITION_NAME = "partition.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryIdentity:
    """The cluster and the broker that a data directory belongs to."""

    cluster_id: str
    broker_id: int

    def write(self, files: FileSystem, directory: Path) -> None:
        """Durable when it returns. Raises `OSError`."""
        _write(files, directory / META_NAME, {"cluster_id": self.cluster_id, "broker_id": self.broker_id})

    @classmethod
    def read(cls, files: FileSystem, directory: Path) -> DirectoryIdentity | None:
        """None where there is none yet. Raises `CorruptRecordError`, `OSError`."""
        content = _read(files, directory / META_NAME)
        if content is None:
            return None
        return cls(cluster_id=str(content["cluster_id"]), broker_id=int(content["broker_id"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskIdentity:
    """Which disk a data directory is, and how new: an older copy has an earlier epoch, or an earlier generation in the
    same epoch, or is not marked as stopped though the broker stopped. ``inode`` and ``born_ns``: of ``meta.json``,
    which is written once; those of a copy differ. 0: not known."""

    disk_id: str
    epoch: int = -1
    is_stopped: bool = False
    generation: int = 0
    inode: int = 0
    born_ns: int = 0

    def is_of(self, inode: int, born_ns: int) -> bool:
        """Whether this may be that very file, as far as is known."""
        return self.inode in {0, inode} and (0 in {self.born_ns, born_ns} or self.born_ns == born_ns)

    def write(self, files: FileSystem, directory: Path) -> None:
        """Durable when it returns. Raises `OSError`."""
        content = {
            "disk_id": self.disk_id,
            "epoch": self.epoch,
            "is_stopped": self.is_stopped,
            "generation": self.generation,
            "inode": self.inode,
            "born_ns": self.born_ns,
        }
        _write(files, directory / DISK_NAME, content)

    @classmethod
    def read(cls, files: FileSystem, directory: Path) -> DiskIdentity | None:
        """None where there is none yet. Raises `CorruptRecordError`, `OSError`."""
        content = _read(files, directory / DISK_NAME)
        if content is None:
            return None
        return cls(
            disk_id=str(content["disk_id"]),
            epoch=int(content["epoch"]),
            is_stopped=bool(content.get("is_stopped", False)),
            generation=int(content.get("generation", 0)),
            inode=int(content.get("inode", 0)),
            born_ns=int(content.get("born_ns", 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionIdentity:
    """The topic that a partition's directory belongs to. ``schemas`` by rising id, each an Arrow schema message."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    schemas: tuple[tuple[int, bytes], ...] = ()

    def with_schemas(self, schemas: Iterable[tuple[int, bytes]]) -> PartitionIdentity:
        """The same with ``schemas`` added; a known version is never changed."""
        merged = {**dict(schemas), **dict(self.schemas)}
        return replace(self, schemas=tuple(sorted(merged.items())))

    def write(self, files: FileSystem, directory: Path, *, is_durable: bool = True) -> None:
        """Durable when it returns, unless that is left to the caller (`replace_file`). Raises `OSError`."""
        content = {
            "topic": self.topic,
            "topic_id": self.topic_id.hex,
            "partition": self.partition,
            "schemas": [[schema_id, base64.b64encode(arrow).decode("ascii")] for schema_id, arrow in self.schemas],
        }
        _write(files, directory / PARTITION_NAME, content, is_durable=is_durable)

    @classmethod
    def read(cls, files: FileSystem, directory: Path) -> PartitionIdentity | None:
        """None where there is none. Raises `CorruptRecordError`, `OSError`."""
        content = _read(files, directory / PARTITION_NAME)
        if content is None:
            return None
        return cls(
            topic=content["topic"],
            topic_id=uuid.UUID(hex=content["topic_id"]),
            partition=content["partition"],
            schemas=tuple((schema_id, base64.b64decode(arrow)) for schema_id, arrow in content["schemas"]),
        )


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


def _write(files: FileSystem, path: Path, content: dict[str, Any], *, is_durable: bool = True) -> None:
    content = {"version": _VERSION, **content}
    checked = {"content": content, "crc32c": f"{crc32c.crc32c(_canonical(content)):08x}"}
    data = json.dumps(checked, indent=1, sort_keys=True).encode("ascii") + b"\n"
    replace_file(files, path, data, is_durable=is_durable)


def _read(files: FileSystem, path: Path) -> dict[str, Any] | None:
    data = read_file(files, path)
    if data is None:
        return None
    try:
        checked = json.loads(data)
        content, checksum = checked["content"], checked["crc32c"]
        fits = checksum == f"{crc32c.crc32c(_canonical(content)):08x}"
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise CorruptRecordError(f"{path} is damaged: {error}") from error
    if not fits:
        raise CorruptRecordError(f"{path} is damaged: its checksum does not fit its content")
    if content.get("version") != _VERSION:
        raise CorruptRecordError(f"{path} has format version {content.get('version')}, known is {_VERSION}")
    assert isinstance(content, dict)
    return content


def require_apart(files: FileSystem, paths: Sequence[Path]) -> None:
    """Raises `SetupError`, which names both, where two of a broker's data directories are the same one (through a
    symlink, perhaps) or lie in each other, or one lies in another data directory or has one as its direct child.
    """
    real = {path: Path(os.path.realpath(path)) for path in paths}
    if len(real) < len(paths):
        twice = next(path for path in paths if list(paths).count(path) > 1)
        raise SetupError(f"log.dirs: {twice} and {twice} are the same directory; name it once")
    for (one, at), (other, other_at) in combinations(real.items(), 2):
        if at == other_at:
            raise SetupError(f"log.dirs: {one} and {other} are the same directory; name it once")
        if at in other_at.parents:
            raise SetupError(f"log.dirs: {other} lies in {one}; data directories must not lie in each other")
        if other_at in at.parents:
            raise SetupError(f"log.dirs: {one} lies in {other}; data directories must not lie in each other")
    for path, at in real.items():
        around = next((parent for parent in at.parents if _is_data_directory(files, parent)), None)
        if around is not None:
            raise SetupError(f"log.dirs: {path} lies in {around}, which is a data directory itself; use another place")
        within = next((child for child in _children(files, at) if _is_data_directory(files, child)), None)
        if within is not None:
            raise SetupError(f"log.dirs: {within}, in {path}, is a data directory itself; use another place")


def lock_directory(files: FileSystem, path: Path) -> int:
    """Locks the directory for this process and returns the lock file's descriptor; closing that releases the lock.

    Raises `DirectoryLockedError` with the pid of the process that has it, `OSError`.
    """
    descriptor = files.open(path / LOCK_NAME, create=True)
    if not files.lock(descriptor):
        pid = files.read(descriptor, 32, 0).decode("ascii", "replace").strip()
        files.close(descriptor)
        raise DirectoryLockedError(f"{path} is in use by process {pid or 'unknown'}; stop it, or use another log.dirs")
    files.write(descriptor, [f"{os.getpid():<31}\n".encode("ascii")], 0)
    return descriptor


def claim_directory(files: FileSystem, path: Path, wanted: DirectoryIdentity) -> DirectoryIdentity:
    """Makes the directory the wanted broker's, unless it is already.

    Raises `DirectoryLockedError` where it is another's, `CorruptRecordError` for a damaged ``meta.json``, `OSError`.
    """
    try:
        found = DirectoryIdentity.read(files, path)
    except CorruptRecordError as error:
        raise CorruptRecordError(
            f"{error.message}. If {path} belongs to broker {wanted.broker_id} of cluster {wanted.cluster_id}, remove "
            f"{META_NAME} and start again: the logs are not touched"
        ) from error
    if found is None:
        wanted.write(files, path)
        return wanted
    if found != wanted:
        raise DirectoryLockedError(
            f"{path} belongs to broker {found.broker_id} of cluster {found.cluster_id}; this is broker "
            f"{wanted.broker_id} of cluster {wanted.cluster_id}"
        )
    return found


def _is_data_directory(files: FileSystem, path: Path) -> bool:
    """Goes by ``meta.json``; other directories may have a file of that name, and a data directory's may be damaged."""
    try:
        return DirectoryIdentity.read(files, path) is not None
    except CorruptRecordError:
        return files.file_size(path / LOCK_NAME) is not None
    except (OSError, KeyError):
        return False


def _children(files: FileSystem, path: Path) -> list[Path]:
    try:
        return [path / name for name in sorted(files.list_directories(path))]
    except OSError:
        return []  # it does not exist yet, or is unusable, which the start reports soon
