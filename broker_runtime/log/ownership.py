"""Whose a data directory is: one process's at a time (``.lock``), for ever one broker's of one cluster (``meta.json``).

Rule: nothing else in the directory is looked at before both are known.
"""

from __future__ import annotations

import os
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError, DirectoryLockedError
from broker_runtime.log.files import FileSystem
from broker_runtime.log.identity import META_NAME, DirectoryIdentity

LOCK_NAME = ".lock"


def lock_directory(files: FileSystem, path: Path) -> int:
    """Locks the directory for this process and returns the lock file's descriptor; closing it gives the lock up.

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
