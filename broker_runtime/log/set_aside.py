"""Names of logs that were taken out of use but are still there, and which of them is whose.

    <topic>-<partition>.<id>.stray       its topic id did not fit
    <topic>-<partition>.<id>.damaged     its records cannot all be read; another copy took its place
    <topic>-<partition>.<id>.diverged    it has records that were committed and that its leader has not
    <topic>-<partition>.<id>.deleted     being removed

Rule: a name is new each time. One that is too long for a file system loses the end of the topic's name, never its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.files import FileSystem
from broker_runtime.log.identity import PartitionIdentity

ASIDE_NAME = re.compile(r"(.*)\.[0-9a-f]{32}\.(stray|damaged|diverged|deleted)\Z")
DAMAGED, DIVERGED = KEPT = ("damaged", "diverged")
_LONGEST_NAME = 255


def name_aside(name: str, suffix: str) -> str:
    """Another name for the directory ``name``."""
    ending = f".{uuid.uuid4().hex}.{suffix}"
    return name[: _LONGEST_NAME - len(ending)] + ending


def kept_copies(
    files: FileSystem, path: Path, logs: Collection[TopicPartition], suffixes: Collection[str] = KEPT
) -> list[Path]:
    """The logs of these partitions that were set aside to be kept in the data directory ``path``. Raises `OSError`."""
    found: list[Path] = []
    for name in files.list(path):
        match = ASIDE_NAME.match(name)
        if match and match[2] in suffixes and _owner(files, path / name, match[1]) in {str(each) for each in logs}:
            found.append(path / name)
    return found


def diverged_logs(files: FileSystem, path: Path) -> list[Path]:
    """All that were set aside as diverged in the data directory ``path``. Raises `OSError`."""
    matches = [(path / name, ASIDE_NAME.match(name)) for name in files.list(path)]
    return [found for found, match in matches if match and match[2] == DIVERGED]


def _owner(files: FileSystem, directory: Path, name: str) -> str:
    """``topic-partition``; the directory's own name may be cut short."""
    try:
        identity = PartitionIdentity.read(files, directory)
    except CorruptRecordError:
        identity = None
    return name if identity is None else f"{identity.topic}-{identity.partition}"
