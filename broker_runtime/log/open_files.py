"""A bounded cache of open files, and the hold that readers have on what they read.

Rules: a held file stays open and readable even if it is unlinked or another is renamed over it. A file that nobody
holds is closed when the cache is full. A file with writes that were not fsynced must be held by its writer: a
descriptor that is closed before its fsync may lose the report of a failed write-back (fsync(2), errseq_t).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from broker_runtime.log.files import FileSystem


class HeldFile:
    """One open file with a count of its holds. Created by `OpenFiles.hold`; one `release` gives one hold back."""

    __slots__ = ("_holds", "_owner", "descriptor", "is_cached", "path")

    def __init__(self, owner: OpenFiles, path: Path, descriptor: int) -> None:
        self._owner = owner
        self.path = path
        self.descriptor = descriptor
        # Invariant: open while _holds > 0 or is_cached; both are guarded by the owner's lock.
        self._holds = 0
        self.is_cached = True

    def hold(self) -> HeldFile:
        """One more hold of the same file."""
        self._owner.hold_again(self)
        return self

    def release(self) -> None:
        """Gives one hold back."""
        self._owner.release(self)

    def __enter__(self) -> HeldFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"HeldFile({self.path.name} holds={self._holds} cached={self.is_cached})"


class OpenFiles:
    """Open files by path, at most ``limit`` beyond those that are held. Thread-safe; opens under its lock."""

    def __init__(self, files: FileSystem, *, limit: int = 256, read_only: bool = False) -> None:
        self.files = files
        self._read_only = read_only
        self._limit = limit
        self._lock = threading.Lock()
        self._cached: OrderedDict[Path, HeldFile] = OrderedDict()  # least recently used first

    def hold(self, path: Path, *, create: bool = False) -> HeldFile:
        """The open file at ``path``, held. Raises `OSError` (`FileNotFoundError` without ``create``)."""
        with self._lock:
            held = self._cached.get(path)
            if held is None:
                held = HeldFile(self, path, self.files.open(path, create=create, read_only=self._read_only))
                self._cached[path] = held
            else:
                self._cached.move_to_end(path)
            held._holds += 1
            self._evict()
            return held

    def hold_again(self, held: HeldFile) -> None:
        """One more hold."""
        with self._lock:
            assert held._holds > 0, "a file that nobody holds may be closed already"
            held._holds += 1

    def release(self, held: HeldFile) -> None:
        """One hold less; closes a file that is neither held nor cached."""
        with self._lock:
            assert held._holds > 0, f"{held} released once too often"
            held._holds -= 1
            if held._holds == 0 and not held.is_cached:
                self.files.close(held.descriptor)

    def forget(self, path: Path) -> None:
        """``path`` was unlinked or replaced: the next `hold` opens what is there now. Holders keep the old file.

        Call it after the change, never before: otherwise another thread may open the old file in between, and it stays.
        """
        with self._lock:
            held = self._cached.pop(path, None)
            if held is not None:
                self._drop(held)

    def forget_below(self, directories: Collection[Path]) -> None:
        """`forget` for every file directly in one of ``directories``."""
        with self._lock:
            for path in [path for path in self._cached if path.parent in directories]:
                self._drop(self._cached.pop(path))

    def close(self) -> None:
        """Forgets all files. Files still held are closed by their last release."""
        with self._lock:
            while self._cached:
                _, held = self._cached.popitem()
                self._drop(held)

    def open_count(self) -> int:
        """Files in the cache."""
        with self._lock:
            return len(self._cached)

    def _drop(self, held: HeldFile) -> None:
        held.is_cached = False
        if held._holds == 0:
            self.files.close(held.descriptor)

    def _evict(self) -> None:
        excess = len(self._cached) - self._limit
        if excess <= 0:
            return
        idle = (path for path, held in self._cached.items() if held._holds == 0)  # looked at one by one, oldest first
        for path in list(islice(idle, excess)):
            self._drop(self._cached.pop(path))
