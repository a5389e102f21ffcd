"""Whether a data directory takes appends: it has room (``log.dir.min.free.bytes``) and answers; and reporting of it.

Rules: free space is checked now and then, not at each append. With too little, appends are refused before they reach
the log, so that a full disk costs an error and never an offline log. Reads continue. Nobody waits for a disk to learn
its state: a disk that stands still is known by the calls that wait for it. Trouble is reported to the cluster before
any leadership is given up for it, so that no leadership returns there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from broker_runtime.contract.errors import LogStorageError, ZooKeeperUnavailableError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import find_setting
from broker_runtime.log import LogDirectory
from broker_runtime.log.directory import diverged_logs
from broker_runtime.log.watched_files import WatchedFiles
from broker_runtime.replication import Partition
from broker_runtime.zookeeper.guarded import Planned, change
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import Create, Delete, Set, ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import DiskTroubles, announcing, broker_unwritable_path, to_json

_logger = logging.getLogger(__name__)

_ROOM_AGAIN: Final = 1.1  # times the minimum: a disk at its limit does not go back and forth each second
_MOST_PARTITIONS: Final = 10_000  # that are named to the cluster
_MOST_DAMAGED: Final = 1_000  # the same, of damaged logs
_MOST_DIVERGED: Final = 100  # the same, of logs that were set aside


class DiskRoom:
    """The state of one data directory. `look` and `look_at_kept` on one thread, the rest on any, without waiting."""

    def __init__(self, directory: LogDirectory, *, min_free_bytes: int, stall_limit_s: float) -> None:
        """``stall_limit_s``: how long one call may wait before the disk counts as standing still; needs
        `WatchedFiles`."""
        self._directory = directory
        self._min_free_bytes = min_free_bytes
        self._stall_limit_s = stall_limit_s
        self._refusal: str | None = None
        self._is_short = False  # of the room for what is urgent
        self._diverged: tuple[str, ...] = ()
        self.look()

    def look(self) -> None:
        """Checks the disk's free space, and waits for the disk. Raises `OSError`; what was known is kept."""
        usable = self._directory.usable_bytes
        had = self._refusal
        self._is_short = usable < self._min_free_bytes // 4
        least = self._min_free_bytes if had is None else self._min_free_bytes * _ROOM_AGAIN
        if usable >= least:
            self._refusal = None
        else:
            wanted = find_setting("broker", "log.dir.min.free.bytes").show(self._min_free_bytes)
            self._refusal = (
                f"{self._directory.path} has {usable} bytes left, log.dir.min.free.bytes is {wanted}: "
                "nothing is appended until there is room"
            )
        if (had is None) != (self._refusal is None):
            event(
                _logger,
                "accept appends again" if self._refusal is None else "refuse appends",
                level=logging.WARNING,
                directory=self._directory.path,
                usable_bytes=usable,
            )

    def look_at_kept(self) -> bool:
        """Looks up which logs are kept as diverged, and waits for the disk; returns whether that has changed. Raises
        `OSError`."""
        had = self._diverged
        self._diverged = tuple(map(str, diverged_logs(self._directory.files, self._directory.path)))
        return self._diverged != had

    @property
    def diverged(self) -> tuple[str, ...]:
        """Where the logs are that were set aside as diverged, as of the last look."""
        return self._diverged

    @property
    def stands_still(self) -> bool:
        """Whether a call has been waiting for the disk for longer than the limit."""
        files = self._directory.files
        return isinstance(files, WatchedFiles) and files.oldest_call_s > self._stall_limit_s

    @property
    def takes_appends(self) -> bool:
        """Whether there was enough room at the last look, and the disk answers."""
        return self._refusal is None and not self.stands_still

    @property
    def trouble(self) -> str | None:
        """What is wrong, in words that stay the same as long as it is; None: nothing."""
        if self.stands_still:
            return "stands still"
        return None if self._refusal is None else "full"

    def require_answers(self) -> None:
        """Raises `LogStorageError` if the disk has stalled."""
        if self.stands_still:
            raise LogStorageError(
                f"{self._directory.path} stands still: a call has been waiting for {self._stall_limit_s:g} s and longer"
            )

    def require_room(self, *, is_urgent: bool = False) -> None:
        """Raises `LogStorageError` if there is too little room, or the disk has stalled. ``is_urgent``: a quarter of
        the room is enough for what ends transactions, as retention deletes nothing behind an open one."""
        self.require_answers()
        if self._refusal is not None and (self._is_short or not is_urgent):
            raise LogStorageError(self._refusal)


class DiskReport:
    """Reports this broker's disks to the cluster. Used by one thread."""

    def __init__(
        self,
        client: ZooKeeperClient,
        troubles: Callable[[], dict[str, tuple[str, list[Partition]]]],
        damaged: Callable[[], Sequence[Partition]],
        diverged: Callable[[], Sequence[str]],
        failed: Callable[[], Sequence[Partition]],
    ) -> None:
        """The arguments are the methods of `Hosting` of these names; ``damaged``: `Hosting.damaged_logs`, ``failed``:
        `Hosting.failed_logs`."""
        self._client = client
        self._troubles = troubles
        self._damaged = damaged
        self._diverged = diverged
        self._failed = failed
        self._reported: tuple[int, DiskTroubles | None] | None = None  # and its epoch; None: nothing in this process
        self._is_doubtful = False  # whether the last report may not have arrived
        self._doubts: set[str] = set()  # see `guarded.change`

    def report(self, membership: Membership) -> bool:
        """Reports what has changed; returns whether the cluster knows the present state. Blocks on ZooKeeper for a
        bounded time."""
        found = _describe(self._troubles(), self._damaged(), self._diverged(), self._failed(), membership.epoch)
        present = membership.epoch, found
        if not self._is_doubtful:
            if self._reported == present:
                return True
            if present[1] is None and (self._reported is None or self._reported[0] != membership.epoch):
                self._reported = present  # a report of an earlier registration no longer counts
                return True
        try:
            write_disks(self._client, membership, present[1], doubts=self._doubts)
        except (ZooKeeperUnavailableError, ZNodeError) as error:
            self._is_doubtful = True
            event(_logger, "report disks", level=logging.WARNING, broker=membership.broker_id, error=error)
            return False
        self._reported, self._is_doubtful = present, False
        disks = present[1] or DiskTroubles(epoch=membership.epoch)
        event(
            _logger,
            "report disks",
            level=logging.WARNING,
            broker=membership.broker_id,
            troubles=disks.directories or "none",
            damaged=disks.damaged or "none",
            diverged=disks.diverged or "none",
        )
        return True


def _describe(
    troubles: dict[str, tuple[str, list[Partition]]],
    damaged: Sequence[Partition],
    diverged: Sequence[str],
    failed: Sequence[Partition],
    epoch: int,
) -> DiskTroubles | None:
    if not (troubles or damaged or diverged or failed):
        return None
    return DiskTroubles(
        epoch=epoch,
        directories={path: reason for path, (reason, _) in sorted(troubles.items())},
        partitions=_named([partition for _, partitions in troubles.values() for partition in partitions]),
        failed=_named(failed),
        damaged=_by_topic(islice(damaged, _MOST_DAMAGED)),
        diverged=tuple(diverged[:_MOST_DIVERGED]),
    )


def _named(partitions: Sequence[Partition]) -> dict[str, tuple[int, ...]] | None:
    """Their numbers by topic; None: too many."""
    if len(partitions) > _MOST_PARTITIONS:
        return None
    found = _by_topic(partitions)
    return None if len(found) > _MOST_PARTITIONS // 10 else found


def _by_topic(partitions: Iterable[Partition]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition.partition)
    return {topic: tuple(sorted(numbers)) for topic, numbers in sorted(found.items())}


def write_disks(
    client: ZooKeeperClient, membership: Membership, disks: DiskTroubles | None, *, doubts: set[str] | None = None
) -> None:
    """Writes what a broker reports of its disks: which cannot take records at present, what is on them, which logs are
    damaged, and which are kept as diverged. ``disks`` None: all is well. Idempotent. ``doubts``: see `guarded.change`.

    Raises `GuardFailedError` if a later life of the broker has begun, `ZooKeeperUnavailableError`.

    Rule: the broker itself reports, under its epoch, so that the report of an earlier life no longer counts. While all
    is well there is no znode.
    """
    path = broker_unwritable_path(membership.broker_id)

    def plan() -> Planned[None]:
        node = client.find(path)
        if disks is None:
            return Planned(None) if node is None else Planned(None, [Delete(path, node.version), announcing(())])
        data = to_json(disks)
        written = Create(path, data) if node is None else Set(path, data, node.version)
        return Planned(None, [written, announcing(())])

    change(client, plan, what=path, guard=membership.guard, doubts=doubts)
