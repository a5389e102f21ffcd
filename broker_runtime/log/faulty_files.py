"""`FileSystem` in memory that fails, tears and forgets on demand: the fake that ships with the seam (files.py).

A write is volatile until `sync`; a name that is created, renamed or removed is volatile until `sync_directory`.
`lose_power` throws away a random part of what is volatile, as a device with a write cache does: each unsynced write may
be there, missing or torn, whatever their order, and each unsynced name may change back or not.

A failed `sync` is like Linux's: its pages count as clean from then on. Reads see them until they are evicted
(`drop_cached`, `lose_power`), and the next `sync` succeeds without writing them. Only what is written again reaches the
device, even if the bytes are the same.

Rule: keeps the promises of `FileSystem`. Not modelled: directories that vanish, errors while reading names, names that
a failed `sync_directory` lost (journaling file systems stop for good then).
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, eq=False)
class _Inode:
    """A file: ``content`` is what reads see, ``durable`` what the device has, ``pending`` the dirty pages.

    Invariant: except for pages that a failed sync left clean, ``content`` is ``durable`` with ``pending`` written over
    it.
    """

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    modified_ms: int = 0


@dataclass(slots=True)
class Fault:
    """An error raised by calls of ``operation`` from the ``after``-th on, ``times`` of them, on paths that ``matches``.

    ``torn_bytes``: a failing write writes that many bytes all the same.
    """

    operation: str
    error: int = errno.EIO
    after: int = 0
    times: int = 1 << 30
    matches: Callable[[Path], bool] = field(default=lambda path: True)
    torn_bytes: int = 0


class FaultyFiles:
    """See the module. Thread-safe."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self._lock = threading.RLock()
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._directories: set[Path] = set()
        self._open: dict[int, tuple[Path, _Inode]] = {}
        self._locked: dict[int, Path] = {}
        self._next_descriptor = 1000
        self._boots = 1
        self.capacity_bytes = capacity_bytes
        self.now_ms = 0  # what `modified_ms` returns for files written from now on
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, Path]] = []  # (operation, path) of writes, syncs and changes of names

    # --- faults ---------------------------------------------------------------------------------------------------

    def lose_power(self, rng: random.Random) -> None:
        """Everything that was not synced is lost, kept or torn at random; all descriptors are gone."""
        with self._lock:
            for path in sorted(set(self._names) | set(self._durable_names)):
                before, after = self._durable_names.get(path), self._names.get(path)
                if before is not after and rng.random() < 0.5:
                    after = before
                if after is None:
                    self._names.pop(path, None)
                else:
                    self._names[path] = after
            for inode in dict.fromkeys(self._names[path] for path in sorted(self._names)):
                self._lose(inode, rng)
            self._durable_names = dict(self._names)
            self._boots += 1
            self.kill()

    def kill(self) -> None:
        """The process dies: descriptors and locks are gone, files stay as they are."""
        with self._lock:
            self._open.clear()
            self._locked.clear()

    def content(self, path: Path) -> bytes:
        """What the file has now."""
        with self._lock:
            return bytes(self._inode(path).content)

    def overwrite(self, path: Path, data: bytes) -> None:
        """Makes ``data`` the content, as damage from outside does: durable at once."""
        with self._lock:
            inode = _Inode(bytearray(data), bytearray(data))
            self._names[path] = self._durable_names[path] = inode

    # --- FileSystem -----------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        with self._lock:
            self._call("open", path)
            if path not in self._names:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
                if path.parent not in self._directories:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
                self._names[path] = _Inode()
            self._next_descriptor += 1
            self._open[self._next_descriptor] = (path, self._names[path])
            return self._next_descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._file(descriptor)
            del self._open[descriptor]
            self._locked.pop(descriptor, None)

    def size(self, descriptor: int) -> int:
        with self._lock:
            return len(self._file(descriptor)[1].content)

    def read(self, descriptor: int, length_bytes: int, position: int) -> bytes:
        with self._lock:
            path, inode = self._file(descriptor)
            self._call("read", path)
            return bytes(inode.content[position : position + length_bytes])

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        total = 0
        for buffer in buffers:
            data = self.read(descriptor, buffer.nbytes, position + total)
            buffer.cast("B")[: len(data)] = data
            total += len(data)
            if len(data) < buffer.nbytes:
                break
        return total

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
        data = b"".join(buffers)
        with self._lock:
            path, inode = self._file(descriptor)
            fault = self._fault("write", path)
            if fault is not None:
                self._put(inode, data[: fault.torn_bytes], position)
                raise OSError(fault.error, os.strerror(fault.error), str(path))
            room = self.capacity_bytes - self._used_bytes()
            growth = max(position + len(data) - len(inode.content), 0)
            if growth > room:
                self._put(inode, data[: max(len(data) - (growth - room), 0)], position)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            self._put(inode, data, position)

    def sync(self, descriptor: int) -> None:
        with self._lock:
            path, inode = self._file(descriptor)
            fault = self._fault("sync", path)
            if fault is not None:
                inode.pending.clear()
                raise OSError(fault.error, os.strerror(fault.error), str(path))
            for position, data in inode.pending:
                _write_at(inode.durable, data, position)
            inode.pending.clear()

    def drop_cached(self, descriptor: int) -> None:
        with self._lock:
            path, inode = self._file(descriptor)
            self._call("drop_cached", path)
            self._evict(inode)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._call("sync_directory", path)
            # What changed first: few did, and to compare paths is slow.
            for name in [name for name in self._durable_names if name not in self._names and name.parent == path]:
                del self._durable_names[name]
            for name, inode in self._names.items():
                if self._durable_names.get(name) is not inode and name.parent == path:
                    self._durable_names[name] = inode

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._call("rename", source)
            if source in self._directories:
                self._rename_directory(source, target)
            else:
                self._names[target] = self._inode(source)
                del self._names[source]

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._call("unlink", path)
            self._inode(path)
            del self._names[path]

    def list(self, path: Path) -> list[str]:
        with self._lock:
            if path not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            inside = [*self._names, *self._directories]
            return sorted({name.name for name in inside if name.parent == path and name != path})

    def list_directories(self, path: Path) -> set[str]:
        with self._lock:
            return {name.name for name in self._directories if name.parent == path and name != path}

    def modified_ms(self, path: Path) -> int | None:
        with self._lock:
            inode = self._names.get(path)
            return None if inode is None else inode.modified_ms

    def inode(self, path: Path) -> int | None:
        with self._lock:
            return 0 if path in self._names else None  # nothing here makes copies

    def born_ns(self, path: Path) -> int:
        return 0

    def file_size(self, path: Path) -> int | None:
        with self._lock:
            inode = self._names.get(path)
            return None if inode is None else len(inode.content)

    def is_directory(self, path: Path) -> bool:
        with self._lock:
            return path in self._directories

    def make_directory(self, path: Path) -> None:
        with self._lock:
            self._directories.update([path, *path.parents])

    def remove_tree(self, path: Path) -> None:
        with self._lock:
            for names in (self._names, self._durable_names):
                for name in [name for name in names if path in name.parents]:
                    del names[name]
            self._directories = {name for name in self._directories if name != path and path not in name.parents}

    def free_bytes(self, path: Path) -> int:
        with self._lock:
            return self.capacity_bytes - self._used_bytes()

    def lock(self, descriptor: int) -> bool:
        with self._lock:
            path, _ = self._file(descriptor)
            if path in self._locked.values():
                return False
            self._locked[descriptor] = path
            return True

    @property
    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    # --- within ---------------------------------------------------------------------------------------------------

    def _file(self, descriptor: int) -> tuple[Path, _Inode]:
        if descriptor not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(descriptor))
        return self._open[descriptor]

    def _inode(self, path: Path) -> _Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._names[path]

    def _call(self, operation: str, path: Path) -> None:
        fault = self._fault(operation, path)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), str(path))

    def _fault(self, operation: str, path: Path) -> Fault | None:
        if operation not in ("read", "open"):
            self.calls.append((operation, path))
        for fault in self.faults:
            if fault.operation == operation and fault.matches(path):
                if fault.after > 0:
                    fault.after -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def _put(self, inode: _Inode, data: bytes, position: int) -> None:
        if data:
            inode.pending.append((position, data))
            inode.modified_ms = self.now_ms
            _write_at(inode.content, data, position)

    def _used_bytes(self) -> int:
        return sum(len(inode.content) for inode in set(self._names.values()))

    def _rename_directory(self, source: Path, target: Path) -> None:
        for names in (self._names, self._durable_names):
            for name in [name for name in names if source in name.parents]:
                names[target / name.relative_to(source)] = names.pop(name)
        inside = {name for name in self._directories if name == source or source in name.parents}
        self._directories -= inside
        self._directories |= {target / name.relative_to(source) for name in inside}

    def _evict(self, inode: _Inode) -> None:
        """Its clean pages are read from the device from now on."""
        content = bytearray(inode.durable)
        for position, data in inode.pending:  # dirty pages stay
            _write_at(content, data, position)
        _write_at(content, b"", len(inode.content))  # the size as well; what no block was found for reads as zeros
        inode.content = content

    def _lose(self, inode: _Inode, rng: random.Random) -> None:
        content = bytearray(inode.durable)
        for position, data in inode.pending:
            fate = rng.choice(["kept", "lost", "torn"])
            if fate == "kept":
                _write_at(content, data, position)
            elif fate == "torn":
                _write_at(content, data[: rng.randrange(len(data))], position)
        inode.content, inode.durable, inode.pending = content, bytearray(content), []


def _write_at(content: bytearray, data: bytes, position: int) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data
