"""The files of a partition's directory, by what they are.

Rule: foreign files are left alone, and logged once. What a crash in the middle of a change left of our own files is
removed: temporary files, indexes without a segment, segments below the log's start.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from broker_runtime.contract.events import event
from broker_runtime.log.files import FileSystem
from broker_runtime.log.identity import PARTITION_NAME
from broker_runtime.log.leader_epochs import EPOCHS_NAME
from broker_runtime.log.scan import LOG_SUFFIX
from broker_runtime.log.segment import SEGMENT_SUFFIXES

_OFFSET_NAME = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)\Z")
RESTART_NAME = "restart-offset"
UNFLUSHED_NAME = "unflushed"
"""What was acknowledged in this log may not be on the device (``flush.mode`` ``interval`` or ``os``): `Mark`."""
_TEMPORARY = re.compile(r"(\d{20}\.[a-z]+|partition\.json|leader-epoch-checkpoint|restart-offset|unflushed)\.tmp\Z")
_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class PartitionFiles:
    """What `find` saw. ``base_offsets`` and ``snapshot_offsets`` rise."""

    directory: Path
    base_offsets: list[int]
    snapshot_offsets: list[int]
    leftovers: list[str]
    foreign: list[str]

    @classmethod
    def find(cls, files: FileSystem, directory: Path) -> PartitionFiles:
        """Lists the directory. Raises `OSError`."""
        by_suffix: dict[str, list[int]] = {}
        leftovers, foreign = [], []
        for name in files.list(directory):
            match = _OFFSET_NAME.match(name)
            if match:
                by_suffix.setdefault(match[2], []).append(int(match[1]))
            elif _TEMPORARY.match(name):
                leftovers.append(name)
            elif name not in (PARTITION_NAME, EPOCHS_NAME, RESTART_NAME, UNFLUSHED_NAME):
                foreign.append(name)
        base_offsets = by_suffix.get(LOG_SUFFIX, [])
        for suffix in SEGMENT_SUFFIXES[1:]:
            orphans = set(by_suffix.get(suffix, [])) - set(base_offsets)
            leftovers.extend(f"{offset:020d}{suffix}" for offset in sorted(orphans))
        return cls(
            directory=directory,
            base_offsets=base_offsets,
            snapshot_offsets=by_suffix.get(".snapshot", []),
            leftovers=leftovers,
            foreign=foreign,
        )

    def warn_of_foreign(self) -> None:
        """Logs a warning that names the foreign files, if there are any."""
        if self.foreign:
            names = ", ".join(self.foreign[:10])
            event(_logger, "ignore foreign files", level=logging.WARNING, path=self.directory, names=names)

    def remove_leftovers(self, files: FileSystem, log_start_offset: int) -> None:
        """Removes what a crash left, and segments that end at or below the log's start. Raises `OSError`."""
        for name in self.leftovers:
            files.unlink(self.directory / name)
        while len(self.base_offsets) > 1 and self.base_offsets[1] <= log_start_offset:
            base_offset = self.base_offsets.pop(0)
            for suffix in SEGMENT_SUFFIXES:
                path = self.directory / f"{base_offset:020d}{suffix}"
                if files.file_size(path) is not None:
                    files.unlink(path)
