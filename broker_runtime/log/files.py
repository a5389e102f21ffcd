"""The seam between the log and the disk: every effect the log has on files goes through `FileSystem`.

`RealFiles` is the operating system; `faulty_files.FaultyFiles` keeps the same promises in memory and fails, tears
and forgets on demand. Both pass tests/unit/log/test_log_files.py.

Rule: the caller knows the position of every write, and provides the memory for large reads. No mmap. No file is
shortened in place: a shorter one is written under another name and renamed over it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from broker_runtime.contract.waiting import Deadline

_NO_DESCRIPTOR_LIMIT_S: Final = 3.0
_NO_DESCRIPTOR_PAUSE_S: Final = 0.01
_T = TypeVar("_T")
_BUFFERS_PER_WRITE = 512  # below IOV_MAX (1024 on Linux and macOS)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_BIRTH_AT: Final = 80  # seconds, nanoseconds

_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None) if sys.platform == "linux" else None


class FileSystem(Protocol):
    """What the log needs of a file system. Every method may raise `OSError`, and nothing else.

    File descriptors are ints that belong to this file system. Safe to use from several threads, except that
    a descriptor must not be closed while in use.
    """

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        """Opens for reading and writing; ``create`` makes an empty file where there is none."""
        ...

    def close(self, descriptor: int) -> None: ...

    def size(self, descriptor: int) -> int:
        """Bytes in the open file."""
        ...

    def read(self, descriptor: int, length_bytes: int, position: int) -> bytes:
        """Up to ``length_bytes`` from ``position``; fewer only at the end of the file."""
        ...

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        """Fills ``buffers`` in order from ``position``; returns the bytes read, fewer only at the end of the file."""
        ...

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
        """Writes all of ``buffers``, in order, at ``position``. After an error some of the bytes may be there."""
        ...

    def sync(self, descriptor: int) -> None:
        """Returns when the file's content is on the device. After an error it is unknown what is there: never retry."""
        ...

    def drop_cached(self, descriptor: int) -> None:
        """A hint: content that is on the device need not stay in the page cache."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Returns when the directory's names are on the device."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces ``target``."""
        ...

    def unlink(self, path: Path) -> None: ...

    def list(self, path: Path) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def list_directories(self, path: Path) -> set[str]:
        """Names of the directories in the directory."""
        ...

    def file_size(self, path: Path) -> int | None:
        """Bytes in the file; None where there is no such file."""
        ...

    def modified_ms(self, path: Path) -> int | None:
        """When the file was last written to, by the system's clock; None where there is no such file."""
        ...

    def inode(self, path: Path) -> int | None:
        """The file's number on its disk, which a copy does not share; None where there is no such file."""
        ...

    def born_ns(self, path: Path) -> int:
        """When the file was created; 0 where that is not known. Tells apart files that had the same inode number."""
        ...

    def is_directory(self, path: Path) -> bool: ...

    def make_directory(self, path: Path) -> None:
        """With its parents; an existing one is fine."""
        ...

    def remove_tree(self, path: Path) -> None:
        """A directory with all in it; a missing one is fine."""
        ...

    def free_bytes(self, path: Path) -> int:
        """What can still be written to the device, without its reserve."""
        ...

    def lock(self, descriptor: int) -> bool:
        """Takes the file's exclusive lock without waiting; False: another process has it. `close` releases it."""
        ...

    @property
    def boot_id(self) -> str:
        """Another one each time the machine was started: what was not synced may be gone. "" where none is known."""
        ...


class RealFiles:
    """`FileSystem` of the operating system."""

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        return _open(path, flags | (os.O_CREAT if create else 0))

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, length_bytes: int, position: int) -> bytes:
        data = os.pread(descriptor, length_bytes, position)
        if len(data) == length_bytes or not data:
            return data
        parts = [data]
        found = len(data)
        while found < length_bytes:
            data = os.pread(descriptor, length_bytes - found, position + found)
            if not data:
                break
            parts.append(data)
            found += len(data)
        return b"".join(parts)

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        total = 0
        waiting = [buffer for buffer in buffers if buffer.nbytes]
        while waiting:
            got = os.preadv(descriptor, waiting[:_BUFFERS_PER_WRITE], position + total)
            if got == 0:
                break
            total += got
            waiting = _without(waiting, got)
        return total

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
        waiting = [view for buffer in buffers if (view := memoryview(buffer)).nbytes]
        while waiting:
            done = os.pwritev(descriptor, waiting[:_BUFFERS_PER_WRITE], position)
            position += done
            waiting = _without(waiting, done)

    def sync(self, descriptor: int) -> None:
        if hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:  # macOS
            os.fsync(descriptor)

    def drop_cached(self, descriptor: int) -> None:
        if hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: Path) -> None:
        descriptor = _open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def list(self, path: Path) -> list[str]:
        with _with_a_descriptor(lambda: os.scandir(path)) as entries:
            return sorted(entry.name for entry in entries)

    def list_directories(self, path: Path) -> set[str]:
        with _with_a_descriptor(lambda: os.scandir(path)) as entries:
            return {entry.name for entry in entries if entry.is_dir()}

    def file_size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def modified_ms(self, path: Path) -> int | None:
        try:
            return path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def inode(self, path: Path) -> int | None:
        try:
            return path.stat().st_ino
        except FileNotFoundError:
            return None

    def born_ns(self, path: Path) -> int:
        return birth_time_ns(path)

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove_tree(self, path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)

    def free_bytes(self, path: Path) -> int:
        usage = os.statvfs(path)
        return usage.f_bavail * usage.f_frsize

    def lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""  # not Linux


def read_file(files: FileSystem, path: Path) -> bytes | None:
    """The whole content of a small file; None where there is none."""
    try:
        descriptor = files.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        return files.read(descriptor, files.size(descriptor), 0)
    finally:
        files.close(descriptor)


def replace_file(files: FileSystem, path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Makes ``data`` the content of ``path``, durably. Readers see the old content or the new, whole, also after a
    crash.

    Write, fsync, rename, fsync of the directory. Raises `OSError`; then the content is the old one or the new, and a
    ``.tmp`` file may be left beside it. Without ``is_durable`` nothing is fsynced: a killed process leaves the old
    content or the new, but a power failure may leave anything.
    """
    temporary = path.with_name(path.name + ".tmp")
    if files.file_size(temporary) is not None:
        files.unlink(temporary)
    descriptor = files.open(temporary, create=True)
    try:
        files.write(descriptor, [data], 0)
        if is_durable:
            files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(temporary, path)
    if is_durable:
        files.sync_directory(path.parent)


def copy_prefix(files: FileSystem, source: int, target: Path, length_bytes: int) -> None:
    """Replaces ``target`` durably by the first ``length_bytes`` of the open file ``source``."""
    copy_range(files, source, target, 0, length_bytes)


def copy_range(files: FileSystem, source: int, target: Path, start: int, end: int) -> None:
    """Replaces ``target`` durably by the bytes [start, end) of the open file ``source``."""
    temporary = target.with_name(target.name + ".tmp")
    if files.file_size(temporary) is not None:
        files.unlink(temporary)
    descriptor = files.open(temporary, create=True)
    try:
        position = start
        while position < end:
            data = files.read(source, min(1 << 20, end - position), position)
            if not data:
                raise OSError(f"the file for {target} ends at {position}, its bytes from {start} to {end} are wanted")
            files.write(descriptor, [data], position - start)
            position += len(data)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(temporary, target)
    files.sync_directory(target.parent)


def _without(buffers: list[memoryview], done_bytes: int) -> list[memoryview]:
    """What is left of ``buffers`` after the first ``done_bytes``."""
    for number, buffer in enumerate(buffers):
        if done_bytes < buffer.nbytes:
            return [buffer.cast("B")[done_bytes:], *buffers[number + 1 :]]
        done_bytes -= buffer.nbytes
    return []


def _open(path: Path, flags: int) -> int:
    return _with_a_descriptor(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))


def _with_a_descriptor(take: Callable[[], _T]) -> _T:
    """What ``take`` returns. Where the process or the system has no descriptor left, others give theirs back soon. This
    waits for that, up to `_NO_DESCRIPTOR_LIMIT_S`: the operation under way would be left half done otherwise."""
    deadline = Deadline(_NO_DESCRIPTOR_LIMIT_S)
    while True:
        try:
            return take()
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE} or deadline.expired:
                raise
        deadline.sleep(_NO_DESCRIPTOR_PAUSE_S)


def birth_time_ns(path: Path) -> int:
    """Since 1970; 0 if the system or the file system does not say, or there is no such file."""
    if _statx is None:
        return 0
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found):
        return 0
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return int(seconds) * 1_000_000_000 + int(nanoseconds) if mask & _STATX_BTIME else 0
