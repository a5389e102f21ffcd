"""A file system that knows how long its calls have been waiting, and so whether the disk below has stalled.

Rule: passes every call on unchanged. Removing whole trees is not timed: that takes the longer the more there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker_runtime.contract.waiting import CLOCK, Clock
from broker_runtime.log.files import FileSystem


class WatchedFiles:
    """`FileSystem` over another. One per disk. Any thread may read `oldest_call_s`, which never waits."""

    def __init__(
        self, files: FileSystem, *, on_sync: Callable[[float], object] | None = None, clock: Clock = CLOCK
    ) -> None:
        """``on_sync`` is told how long each `sync` took, in seconds."""
        self._files = files
        self._on_sync = on_sync
        self._clock = clock
        self._began_s: dict[int, float] = {}  # by thread: when its current call began

    @property
    def oldest_call_s(self) -> float:
        """How long the oldest call that has not returned has been waiting, in seconds; 0 if there is none."""
        began_s = min(list(self._began_s.values()), default=None)
        return 0.0 if began_s is None else max(0.0, self._clock.now_s() - began_s)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        thread = threading.get_ident()
        self._began_s[thread] = self._clock.now_s()
        try:
            yield
        finally:
            del self._began_s[thread]

    # --- FileSystem, watched --------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        with self._watching():
            return self._files.open(path, create=create, read_only=read_only)

    def read(self, descriptor: int, length_bytes: int, position: int) -> bytes:
        with self._watching():
            return self._files.read(descriptor, length_bytes, position)

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        with self._watching():
            return self._files.read_into(descriptor, buffers, position)

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> None:
        with self._watching():
            self._files.write(descriptor, buffers, position)

    def sync(self, descriptor: int) -> None:
        began_s = self._clock.now_s()
        with self._watching():
            self._files.sync(descriptor)
        if self._on_sync is not None:
            self._on_sync(self._clock.now_s() - began_s)

    def sync_directory(self, path: Path) -> None:
        with self._watching():
            self._files.sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        with self._watching():
            self._files.rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._watching():
            self._files.unlink(path)

    def make_directory(self, path: Path) -> None:
        with self._watching():
            self._files.make_directory(path)

    def free_bytes(self, path: Path) -> int:
        with self._watching():
            return self._files.free_bytes(path)

    # --- FileSystem, passed on ------------------------------------------------------------------------------------

    def close(self, descriptor: int) -> None:
        self._files.close(descriptor)

    def size(self, descriptor: int) -> int:
        return self._files.size(descriptor)

    def drop_cached(self, descriptor: int) -> None:
        self._files.drop_cached(descriptor)

    def list(self, path: Path) -> list[str]:
        return self._files.list(path)

    def list_directories(self, path: Path) -> set[str]:
        return self._files.list_directories(path)

    def file_size(self, path: Path) -> int | None:
        return self._files.file_size(path)

    def modified_ms(self, path: Path) -> int | None:
        return self._files.modified_ms(path)

    def inode(self, path: Path) -> int | None:
        return self._files.inode(path)

    def born_ns(self, path: Path) -> int:
        return self._files.born_ns(path)

    def is_directory(self, path: Path) -> bool:
        return self._files.is_directory(path)

    def remove_tree(self, path: Path) -> None:
        self._files.remove_tree(path)

    def lock(self, descriptor: int) -> bool:
        return self._files.lock(descriptor)

    @property
    def boot_id(self) -> str:
        return self._files.boot_id
