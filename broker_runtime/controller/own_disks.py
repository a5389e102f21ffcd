"""The data directories of one broker, as its registration sees them (`zookeeper.disks.Disks`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from broker_runtime.contract.errors import LogStorageError, SetupError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.controller.disk_work import DiskWork
from broker_runtime.log import LogDirectory
from broker_runtime.zookeeper.disks import Place

log = logging.getLogger(__name__)


class OwnDisks:
    """See the module. Used by the one thread that registers."""

    def __init__(
        self, directories: Sequence[LogDirectory], *, disk_work: Mapping[Path, DiskWork] | None = None
    ) -> None:
        """``disk_work``: who writes to a directory, by its path; None: the caller, who waits for the disk. Raises
        `SetupError` where two of the directories have a log of the same partition."""
        refuse_twins(directories)
        self._directories = tuple(directories)
        self._disk_work = disk_work
        self._missing = frozenset(at for each in directories for at in each.missing)
        self._put_back = frozenset(at for each in directories for at in each.put_back)
        self._has_lost_names = any(each.has_lost_names for each in directories)

    @property
    def missing(self) -> Collection[TopicPartition]:
        """See `Disks`."""
        return self._missing

    @property
    def has_lost_names(self) -> bool:
        """See `Disks`."""
        return self._has_lost_names

    @property
    def put_back(self) -> Collection[TopicPartition]:
        """See `Disks`."""
        return self._put_back

    def epochs(self) -> Mapping[str, int]:
        """See `Disks`."""
        return {each.disk.disk_id: each.disk.epoch for each in self._directories}

    def stopped(self) -> Mapping[str, int]:
        """See `Disks`."""
        return {each.disk.disk_id: each.disk.epoch for each in self._directories if each.disk.is_stopped}

    def remember(self, epoch: int, outdated: Collection[str]) -> Mapping[str, int]:
        """See `Disks`."""
        for each in self._directories:
            remember = partial(each.remember_epoch, epoch, is_outdated=each.disk.disk_id in outdated)
            try:
                # What is written late is newer than the registration says, and no older copy.
                remember() if self._disk_work is None else self._disk_work[each.path].do(remember)
            except (LogStorageError, OSError) as error:
                log.error("cannot write epoch directory=%s epoch=%d error=%s", each.path, epoch, error)
        return self.epochs()

    def place_of(self, at: TopicPartition, topic_id: bytes) -> Place | None:
        """See `Disks`."""
        for each in self._directories:
            if each.has(at):
                found = each.topic_id_of(at)
                if found is None or found.bytes == topic_id:
                    return Place(each.disk.disk_id, each.is_named(at))
        return None

    def settled(self) -> None:
        """See `Disks`."""
        self._missing = self._put_back = frozenset()
        self._has_lost_names = False
        for each in self._directories:
            each.forget_put_back()


def refuse_twins(directories: Sequence[LogDirectory]) -> None:
    """Raises `SetupError` where two directories have a log of the same partition: which one counts, nobody can tell."""
    first: dict[TopicPartition, LogDirectory] = {}
    for directory in directories:
        for at in directory.partitions:
            other = first.setdefault(at, directory)
            if other is not directory:
                raise SetupError(
                    f"log.dirs: partition {at} is in two data directories, {other.path / str(at)} and "
                    f"{directory.path / str(at)}. Keep the one that was in use last (the newer files), move the other "
                    "out of the data directory, and start the broker again"
                )
