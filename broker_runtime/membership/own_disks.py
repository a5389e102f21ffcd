"""The data directories of one broker, as its registration sees them (`zookeeper.disks.Disks`), and what is reported of
them to ZooKeeper while it lasts.

A checkpoint raises the generation (`LogDirectory.checkpoint`, every 5 s on each directory's own thread), and
`GenerationReport` reports it as often, on another thread. So at most 10 s after records were appended, ZooKeeper knows
that a snapshot from before them is older. It takes longer while ZooKeeper is away or the disk stands still, and nothing
else waits for that. A copy is recognized by its inode number, however new it is (`LogDirectory.is_copy`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from broker_runtime.contract.errors import LogStorageError, PylogError, SetupError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import LogDirectory
from broker_runtime.membership.disk_work import DiskWork
from broker_runtime.zookeeper.disks import Generation, Place
from broker_runtime.zookeeper.membership import Membership, note_generations
from broker_runtime.zookeeper.session import ZNodeError, ZooKeeperClient

_logger = logging.getLogger(__name__)


class OwnDisks:
    """See the module. Used by the one thread that registers; `generations` by any."""

    def __init__(
        self, directories: Sequence[LogDirectory], *, disk_work: Mapping[Path, DiskWork] | None = None
    ) -> None:
        """``disk_work``: what writes to each directory, by path; None: the caller's thread, which waits for the disk.
        Raises `SetupError` if two of the directories have a log of the same partition."""
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

    def generations(self) -> Mapping[str, Generation]:
        """See `Disks`. Never waits. A copy is older than any that ZooKeeper knows of in its epoch."""
        found = ((each.disk, each.is_copy) for each in self._directories)
        return {disk.disk_id: Generation(disk.epoch, -1 if is_copy else disk.generation) for disk, is_copy in found}

    def remember(self, epoch: int, outdated: Collection[str]) -> Mapping[str, int]:
        """See `Disks`."""
        for each in self._directories:
            remember = partial(each.remember_epoch, epoch, is_outdated=each.disk.disk_id in outdated)
            try:
                # What is written late is newer than the registration says, not an older copy.
                remember() if self._disk_work is None else self._disk_work[each.path].do(remember)
            except (LogStorageError, OSError) as error:
                event(_logger, "write epoch", level=logging.ERROR, directory=each.path, epoch=epoch, error=error)
        return self.epochs()

    def place_of(self, at: TopicPartition, topic_id: bytes) -> Place | None:
        """See `Disks`."""
        for each in self._directories:
            if each.has(at):
                found = each.topic_id_of(at)
                if found is None or found.bytes == topic_id:
                    return Place(each.disk.disk_id, each.is_named(at), each.is_unflushed(at))
        return None

    def settled(self) -> None:
        """See `Disks`."""
        self._missing = self._put_back = frozenset()
        self._has_lost_names = False
        for each in self._directories:
            each.forget_put_back()


class GenerationReport:
    """Reports to ZooKeeper which generations are durable. Used by one thread."""

    def __init__(self, client: ZooKeeperClient, disks: OwnDisks) -> None:
        self._client = client
        self._disks = disks
        self._reported: tuple[int, Mapping[str, Generation]] | None = None  # and the epoch

    def report(self, membership: Membership | None) -> None:
        """Reports what is new since the last time, in one small write; after a failure the next call repeats it.
        Touches no disk. Blocks on ZooKeeper for a bounded time. Raises nothing; does nothing without ``membership``."""
        found = {each: there for each, there in self._disks.generations().items() if there.number > 0}
        if membership is None or not found or self._reported == (membership.epoch, found):
            return
        try:
            note_generations(self._client, membership, found)
        except (PylogError, ZNodeError) as error:
            event(_logger, "report disk generations", level=logging.WARNING, broker=membership.broker_id, error=error)
            return
        self._reported = membership.epoch, found


def refuse_twins(directories: Sequence[LogDirectory]) -> None:
    """Raises `SetupError` if two directories have a log of the same partition: nobody can tell which one counts."""
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
