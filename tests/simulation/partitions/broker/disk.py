"""One broker's disk: the log's in-memory file system, in simulated time, that dies with its broker.

A crash may come between any two operations, and in the middle of a write. Rule: after the crash nothing reaches the
disk until `revive`. What is truly on the device, and which logs changed, can be seen from outside without opening one.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broker_runtime.log.faulty_files import FaultyFiles, _Inode, _write_at
from tests.simulation.simulator.scheduler import Crashed

LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class Copy:
    """The files and directories below one."""

    below: Path
    names: dict[Path, bytes]
    directories: frozenset[Path]
    inode: int = 0  # of every file there, where it is no copy, but the disk itself


class SimFiles(FaultyFiles):
    """See the module. ``wait`` lets the time of a file's fsync pass; ``on_crash`` ends the broker's life at once."""

    def __init__(self, wait: Callable[[Path], None], on_crash: Callable[[], None]) -> None:
        super().__init__()
        self._disk_inodes = itertools.count(1)
        self._disk_inode = next(self._disk_inodes)
        self._wait = wait
        self._on_crash = on_crash
        self.is_dead = False
        self.crash_in: int | None = None
        """Crash at the so-many-th change from now on."""
        self.written_from: dict[Path, int] = {}
        """Log file → the lowest position written since somebody looked; 0 where it was replaced or removed."""

        self.replaced: set[Path] = set()
        """Files that got their content by a rename since somebody looked."""
        self.situation: Callable[[str], None] = lambda name: None
        self.has_failed_sync = False  # since the last start
        self.has_little_room = False
        self.syncs_under_way: dict[Path, int] = {}
        self._not_written: dict[_Inode, list[tuple[int, int]]] = {}
        """What failed fsyncs left in memory alone, though nothing says so any more: ranges of positions."""

    # --- faults ---------------------------------------------------------------------------------------------------

    def die(self, rng: random.Random, *, power_lost: bool) -> None:
        """The process ends, or the machine loses its power."""
        self.is_dead = True
        self.crash_in = None
        self.syncs_under_way.clear()
        self.faults.clear()
        if power_lost:
            self.lose_power(rng)
            self._not_written.clear()
            for path in [*self._names, *self.written_from]:
                self._touch(path, 0)
        else:
            self.kill()

    def forget(self) -> set[Path]:
        """Of the files that a failed fsync did not write, what it did not is gone from memory as well. Returns them."""
        forgotten = {path for path, inode in self._names.items() if self._not_written.get(inode)}
        for path in forgotten:
            self._evict(self._names[path])
            self._touch(path, 0)
        return forgotten

    def revive(self) -> None:
        """The machine is up again."""
        self.is_dead = False

    def damage(self, path: Path, position: int, mask: int) -> None:
        """Flips bits of one byte, as a bad sector does."""
        inode = self._names[path]
        for content in (inode.content, inode.durable):
            if position < len(content):
                content[position] ^= mask
        self._touch(path, 0)

    def fill(self, left_bytes: int) -> None:
        """Somebody else writes on the disk until so many bytes are left."""
        self.capacity_bytes -= self.free_bytes(Path("/")) - left_bytes
        self.has_little_room = True

    def make_room(self) -> None:
        """There is room for everything."""
        self.capacity_bytes = 1 << 40
        self.has_little_room = False

    def take_out(self, below: Path) -> Copy:
        """Everything below a directory goes, as with a disk that is taken out; for `put_in`."""
        taken = replace(self.copy(below), inode=self._disk_inode)
        self._disk_inode = next(self._disk_inodes)
        for path in taken.names:
            self._touch(path, 0)
            del self._names[path]
            self._durable_names.pop(path, None)
        self._directories = {path for path in self._directories if below not in (path, *path.parents)}
        return taken

    def put_in(self, copy: Copy) -> None:
        """What lies below the copy's directory is what was there when it was made."""
        self.take_out(copy.below)
        self._disk_inode = copy.inode or self._disk_inode
        for path, content in copy.names.items():
            self._names[path] = self._durable_names[path] = _Inode(bytearray(content), bytearray(content))
            self._touch(path, 0)
        self._directories |= copy.directories

    def copy(self, below: Path) -> Copy:
        """What the device has below a directory; nothing may run on it."""
        return Copy(
            below,
            {path: bytes(inode.content) for path, inode in self._names.items() if below in path.parents},
            frozenset(path for path in self._directories if below in (path, *path.parents)),
        )

    def inode(self, path: Path) -> int | None:
        return None if super().inode(path) is None else self._disk_inode

    def is_syncing(self, directory: str) -> bool:
        """Whether an fsync of one of the log's files there is under way."""
        return any(count for path, count in self.syncs_under_way.items() if path.parent.name == directory)

    # --- what an observer sees ------------------------------------------------------------------------------------

    def paths(self) -> list[Path]:
        """All files, in order."""
        return sorted(self._names)

    def seen(self, path: Path) -> bytes:
        """What the file has now; nothing where there is none."""
        inode = self._names.get(path)
        return b"" if inode is None else bytes(inode.content)

    def durable_bytes(self, path: Path) -> int:
        """How much of the file's beginning a power failure leaves in any case: what was written over it and did not
        reach the device matters only where it is something else."""
        inode = self._durable_names.get(path)
        if inode is None:
            return 0
        not_there = (
            start
            for start, end in self._not_written.get(inode, ())
            if inode.durable[start:end] != inode.content[start:end]
        )
        return min([len(inode.durable), *not_there])

    # --- FileSystem -----------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        self._check_alive()
        return super().open(path, create=create, read_only=read_only)

    def close(self, descriptor: int) -> None:
        self._check_alive()
        super().close(descriptor)

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
        path, inode = self._file_of(descriptor)
        self._touch(path, position)
        if self.syncs_under_way.get(path) and path.suffix == LOG_SUFFIX:
            self.situation("append while an fsync is under way")
        if self._is_crash_due():
            data = b"".join(buffers)
            self._put(inode, data[: len(data) // 2], position)
            self._crash()
        try:
            super().write(descriptor, buffers, position)
        except OSError as error:
            if error.errno == errno.ENOSPC and self.has_little_room:
                self.situation("write that finds the disk full")
            raise

    def sync(self, descriptor: int) -> None:
        """What was written before it began is on the device at its end; what comes meanwhile is for the next."""
        path, inode = self._file_of(descriptor)
        self._change()
        begun = list(inode.pending)
        self.syncs_under_way[path] = self.syncs_under_way.get(path, 0) + 1
        try:
            self._wait(path)
        finally:
            if self.syncs_under_way.get(path):
                self.syncs_under_way[path] -= 1
        self._check_alive()
        fault = self._fault("sync", path)
        known = {id(write) for write in begun}
        written = [write for write in inode.pending if id(write) in known]
        inode.pending = [write for write in inode.pending if id(write) not in known]
        if fault is not None:
            self.has_failed_sync = True
            # As Linux does it: the dirty pages count as clean from now on, and a second fsync writes none of them.
            lost = self._not_written.setdefault(inode, [])
            lost.extend((position, position + len(data)) for position, data in written)
            raise OSError(fault.error, os.strerror(fault.error), str(path))
        for position, data in written:
            _write_at(inode.durable, data, position)
            self._is_written(inode, position, position + len(data))

    def drop_cached(self, descriptor: int) -> None:
        path, inode = self._file_of(descriptor)
        super().drop_cached(descriptor)
        if self._not_written.get(inode):
            self._touch(path, 0)

    def sync_directory(self, path: Path) -> None:
        self._change()
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._change()
        below = [name for name in self._names if source in name.parents] if source in self._directories else []
        for name in [source, *below]:
            self._touch(name, 0)
        super().rename(source, target)
        self.replaced.add(target)
        self._touch(target, 0)

    def unlink(self, path: Path) -> None:
        self._change()
        self._touch(path, 0)
        super().unlink(path)

    def make_directory(self, path: Path) -> None:
        self._change()
        super().make_directory(path)

    def remove_tree(self, path: Path) -> None:
        self._change()
        for name in [name for name in self._names if path in name.parents]:
            self._touch(name, 0)
        super().remove_tree(path)

    # --- within ---------------------------------------------------------------------------------------------------

    def _file_of(self, descriptor: int):
        self._check_alive()
        return self._file(descriptor)

    def _is_written(self, inode: _Inode, start: int, end: int) -> None:
        lost = self._not_written.get(inode)
        if lost:
            left = [part for first, last in lost for part in ((first, min(last, start)), (max(first, end), last))]
            self._not_written[inode] = [part for part in left if part[0] < part[1]]

    def _check_alive(self) -> None:
        if self.is_dead:
            raise Crashed("disk")

    def _change(self) -> None:
        self._check_alive()
        if self._is_crash_due():
            self._crash()

    def _is_crash_due(self) -> bool:
        self._check_alive()
        if self.crash_in is None:
            return False
        self.crash_in -= 1
        return self.crash_in <= 0

    def _crash(self) -> None:
        self._on_crash()
        raise Crashed("disk")

    def _touch(self, path: Path, position: int) -> None:
        if path.suffix == LOG_SUFFIX:
            self.written_from[path] = min(position, self.written_from.get(path, position))
