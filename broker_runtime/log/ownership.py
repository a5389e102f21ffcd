"""Whose a data directory is: one process's at a time (``.lock``), one broker's of one cluster for ever (``meta.json``).

Rule: nothing else in the directory is read before both are known, and before it is certain that no data directory is
inside another: deleting a log, or setting it aside, affects everything in its directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError, DirectoryLockedError, SetupError
from broker_runtime.log.files import FileSystem
from broker_runtime.log.identity import META_NAME, DirectoryIdentity

LOCK_NAME = ".lock"


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
