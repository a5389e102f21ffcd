"""Which of a broker's disks are the ones it had when it was last registered.

ZooKeeper keeps the ids of the data directories, the epoch that each has on its disk, and while the broker runs its
generation, which rises with each checkpoint that finds new records (`DiskRecord`). Only what is durable on the disk is
reported to ZooKeeper: a disk never looks older than it is, whenever its broker dies, and wherever ZooKeeper is.
Compared with what is found at a start, a directory is

    trusted      in the record, and as new as that says; or there is no record (an older version wrote none)
    returned     missed by the last registration, or by a start after it that did not come as far as to register, and
                 as new as when it went missing
    outdated    older than the record says (a copy was put back), or not in the record at all. One of the same epoch is
                 older if its generation is, or if that registration was stopped in order, and the directory does not
                 say so; or if it is known to be a copy that was made while its broker ran (`LogDirectory.is_copy`)
    lost         in the record, and not found, or found outdated

A log that is missed (`PartitionState.lost`) is back with the directory that returns. The exception is a directory that
was registered with such a log earlier, which was not taken for the missed one then (`older`): it may also go and
return.

One case goes unnoticed: a snapshot, put back after a kill, whose files have the same inode numbers and which has the
newest generation that ZooKeeper knows of. It lacks only what was written in the last two periods before, if ZooKeeper
was there (`membership.own_disks`). It counts as being as new as its ``disk.json``, whenever its logs were read.

Pure, apart from what `Disks` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol

from broker_runtime.contract.model import TopicPartition
from broker_runtime.zookeeper.znodes import DiskRecord

_MOST_MISSING: Final = 32


class Place(NamedTuple):
    """Where a log is: in which data directory, and whether the checkpoints there named it at the start.
    ``is_unflushed``: what was acknowledged in it may not be on the device, whatever the topic's ``flush.mode`` is
    now."""

    disk_id: str
    is_named: bool
    is_unflushed: bool = False


class Generation(NamedTuple):
    """How new a data directory is. Later ones are greater."""

    epoch: int
    number: int


class Disks(Protocol):
    """A broker's data directories, as far as its registration needs them."""

    def epochs(self) -> Mapping[str, int]:
        """The epoch on the disk of each directory, by its id; -1: of no registration yet."""

    def stopped(self) -> Mapping[str, int]:
        """The epoch of each directory that says its last registration was stopped in order, by its id."""

    def generations(self) -> Mapping[str, Generation]:
        """What is durable in each directory, by its id."""

    def remember(self, epoch: int, outdated: Collection[str]) -> Mapping[str, int]:
        """Writes ``epoch`` into every directory, durably; those that are ``outdated`` get another id. Returns `epochs`
        as it is then: a directory that cannot be written keeps its own. Raises nothing."""

    def place_of(self, at: TopicPartition, topic_id: bytes) -> Place | None:
        """Where the log is; None if no directory has one of that topic id. Raises `OSError`."""

    @property
    def missing(self) -> Collection[TopicPartition]:
        """The logs that a directory's checkpoints name and that are not in it."""

    @property
    def has_lost_names(self) -> bool:
        """Whether a directory that was registered no longer knows which logs it had."""

    @property
    def put_back(self) -> Collection[TopicPartition]:
        """The logs that were missing at an earlier start and are there now."""

    def settled(self) -> None:
        """The broker is registered: what was missing or put back at the start is dealt with."""


@dataclass(frozen=True, slots=True)
class DiskNews:
    """The disks of a start, compared with those of the last registration."""

    lost: frozenset[str]
    outdated: frozenset[str]
    returned: frozenset[str]
    sought: frozenset[str] = frozenset()
    """Found now, but not by an earlier start that did not register: still part of the last registration."""
    older: frozenset[str] = frozenset()
    """No log in these is one that is missed."""

    @classmethod
    def of(cls, record: DiskRecord | None, found: Mapping[str, Generation], stopped: Collection[str] = ()) -> DiskNews:
        """``stopped``: those of ``found`` that say that they were stopped in order."""
        if record is None:
            return cls(frozenset(), frozenset(), frozenset())
        known = {**record.missing, **record.directories}
        outdated = frozenset(
            each
            for each, there in found.items()
            if each not in known
            or there < Generation(known[each], record.generations.get(each, 0))
            or there.epoch < record.stopped.get(each, -1)
            or (record.stopped.get(each) == there.epoch and each not in stopped)
        )
        return cls(
            lost=frozenset(each for each in record.directories if each not in found or each in outdated),
            outdated=outdated,
            returned=frozenset(each for each in found if each in record.missing and each not in outdated),
            sought=frozenset(each for each in record.sought if each in found and each not in outdated),
            older=frozenset(record.older),
        )

    def has_log(self, disks: Disks, at: TopicPartition, topic_id: bytes, *, is_marked: bool) -> bool:
        """Whether the log of a partition that counts on this broker is there. ``is_marked``: earlier it was not
        (`PartitionState.lost`). Raises `OSError`."""
        place = disks.place_of(at, topic_id)
        if is_marked:
            if place is None or place.disk_id in self.outdated or place.disk_id in self.older or at in disks.missing:
                return False
            return place.disk_id in self.returned or place.disk_id in self.sought or at in disks.put_back
        if place is None:
            # A log that was never created, in a directory that is here, is not missed.
            return at not in disks.missing and not self.lost and not disks.has_lost_names
        if place.disk_id in self.outdated or (place.disk_id in self.returned and self.lost):
            return False
        return at not in disks.missing or (place.is_named and place.disk_id not in self.returned)


def next_record(record: DiskRecord | None, present: Mapping[str, int], boot_id: str) -> DiskRecord:
    """What a registration with these directories writes; ``older`` does not change."""
    if record is None:
        return DiskRecord(boot_id=boot_id, directories=dict(present))
    known = {**record.missing, **record.directories}
    missing = [(each, epoch) for each, epoch in known.items() if each not in present]
    kept = dict(islice(missing, max(0, len(missing) - _MOST_MISSING), None))
    return DiskRecord(
        boot_id=boot_id,
        directories=dict(present),
        missing=kept,
        stopped={each: epoch for each, epoch in record.stopped.items() if each in kept},
        generations={
            each: number
            for each, number in record.generations.items()
            if each in kept or present.get(each) == known.get(each)  # it could not be written, and has its old epoch
        },
        older=tuple(each for each in record.older if each in present or each in kept),
    )
