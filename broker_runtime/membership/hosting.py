"""Carries out on this broker what was decided about its partitions: which logs it has, which it leads, whom it follows.

Rules: the registry and the data directories are made to agree with the cluster's state; applying the same state twice
changes nothing. A replica that was moved to another broker is removed here. A log whose topic id no longer exists is
set aside and never read. So is a damaged log whose partition others hold without it; the partition is then fetched from
its start. A log that cannot be opened affects no other, and is tried again. No file of a log is read here: that happens
at its first use. Whatever touches a data directory is done by that directory's worker (disk_work.py): a disk that
stands still holds up only the roles of its own partitions. The caller lets one change through at a time.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

from broker_runtime.contract.errors import InconsistentTopicIdError, LogStorageError, PylogError, RequestTimedOutError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import LogEnd, PartitionKey
from broker_runtime.contract.schema import SchemaHistory, TopicSchema, schema_from_bytes
from broker_runtime.contract.settings import TopicSettings, resolve
from broker_runtime.controller.partition_ranges import partition_ranges
from broker_runtime.following.follower import FollowerPlan
from broker_runtime.log import BelievedClock, LogDirectory, PartitionLog, uptime_ms
from broker_runtime.membership.disk_room import DiskRoom
from broker_runtime.membership.disk_work import DiskWork, WorkInLine
from broker_runtime.replication import Leadership, Partition, PartitionRegistry, Role
from broker_runtime.replication.divergence import newest_epoch
from broker_runtime.replication.partition import BUSY_S
from broker_runtime.replication.registry import KnownTopic
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import TopicRecord

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


class Hosting:
    """The partitions of one broker, over its data directories."""

    def __init__(
        self,
        registry: PartitionRegistry,
        directories: Sequence[LogDirectory],
        *,
        broker_id: int,
        min_free_bytes: int,
        followers: FollowerPlan | None = None,
        now_ms: Callable[[], int] | None = None,
        on_in_sync_news: Callable[[], None] = lambda: None,
        on_damage: Callable[[], None] = lambda: None,
        stall_limit_s: float = 30.0,
        disk_work: Mapping[Path, DiskWork] | None = None,
        clock: BelievedClock | None = None,
    ) -> None:
        """``min_free_bytes``: ``log.dir.min.free.bytes``. ``followers``: fetches from the leaders that this broker
        follows (None: nothing does). ``now_ms``: the clock of `Partition.follower_fetch`. ``on_in_sync_news``: see
        `Partition.on_in_sync_news`; it is also called when what `DiskReport` reports may have changed.
        ``on_damage``: see `PartitionLog.on_damage`, ``stall_limit_s``: see `DiskRoom`.
        ``disk_work``: does what touches a directory, by its path; None: the caller's thread, which waits for the disk.
        ``clock``: how far retention believes the wall clock; None: as it is found here.
        Raises `OSError` if a directory cannot be read."""
        self._followers = followers
        self._now_ms = now_ms
        self._on_in_sync_news = on_in_sync_news
        self._on_damage = on_damage
        self._registry = registry
        self._directories = tuple(directories)
        self._rooms = {
            directory.path: DiskRoom(directory, min_free_bytes=min_free_bytes, stall_limit_s=stall_limit_s)
            for directory in self._directories
        }
        in_line = WorkInLine()
        self._disk_work: dict[Path, DiskWork] = {
            each.path: in_line if disk_work is None else disk_work[each.path] for each in self._directories
        }
        self._clock = clock or BelievedClock(wall_ms=time.time_ns() // 1_000_000, uptime_ms=uptime_ms())
        self._broker_id = broker_id
        self._schemas: dict[bytes, SchemaHistory] = {}
        self._hosted: dict[str, dict[int, Partition]] = {}
        self._applied: dict[str, tuple[TopicState, int]] = {}
        # Damaged logs, and the version of the state from which on nothing depends on them.
        self._released: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
        self._failed: dict[str, dict[int, str]] = {}  # partitions that could not be opened, and why
        self._directory_of = {at: directory for directory in self._directories for at in directory.partitions}
        # For `log_ends`, whose caller may give up long before a log is loaded.
        self._loading = {directory.path: threading.Lock() for directory in self._directories}
        self._in_doubt: set[TopicPartition] = set()  # in _directory_of, but perhaps not created there
        # Invariant: how often each path occurs in _directory_of.
        self._held = Counter(directory.path for directory in self._directory_of.values())

    def apply(self, cluster: ClusterState, broker_epoch: int) -> None:
        """Hosts what the cluster gives this broker in its registration ``broker_epoch``, and nothing else.

        Nothing is removed from a disk: logs of topics that are gone stay where they are, unread, until
        `remove_logs`, or until a topic of their name takes their place.
        """
        for name in self._registry.topic_names():
            if name not in cluster.topics:
                self.forget_topic(name)
        for topic in cluster.topics.values():
            self.apply_topic(topic, broker_epoch)

    def apply_topic(self, topic: TopicState, broker_epoch: int) -> None:
        """As `apply`, for one topic that exists."""
        if self._applied.get(topic.name) == (topic, broker_epoch):
            return
        topic_id = topic.record.topic_id
        schemas = self._history(topic.record)
        self._registry.know_topic(
            topic.name,
            KnownTopic(topic_id=topic_id, partition_count=len(topic.record.assignment), schemas=schemas),
        )
        wanted_id = uuid.UUID(bytes=topic_id)
        settings = resolve("topic", topic.config)
        versions = tuple((schema.schema_id, schema.arrow) for schema in topic.record.schemas)
        hosted = self._hosted.setdefault(topic.name, {})
        failed: dict[int, str] = {}
        led: dict[int, list[int]] = {}
        for number, replicas in enumerate(topic.record.assignment):
            present = topic.partitions[number]
            partition = hosted.get(number)
            at = TopicPartition(topic.name, number)
            try:
                if self._broker_id not in replicas:
                    hosted.pop(number, None)
                    self._remove_replica(at, wanted_id)
                    continue
                if present is None:
                    continue
                if self._misses(present):
                    # No new log takes its place, so that it is recognized when it is put back.
                    raise LogStorageError(
                        f"{at}: broker {self._broker_id} was in sync with a log that is not on its disks any more. Put "
                        f"the disk or the directory back and start the broker again, or choose another replica: "
                        f"pylog partition elect --election unclean {at.topic}:{at.partition}"
                    )
                opened = self._present(partition, wanted_id, settings, versions)
                if opened is None:
                    is_counted_on = self._broker_id in (*present.state.isr, *present.state.eligible)
                    opened = self._open(at, wanted_id, settings, versions, is_counted_on=is_counted_on)
                if opened.is_damaged and self._is_held_by_others(opened, present):
                    event(
                        _logger,
                        "set damaged log aside",
                        level=logging.ERROR,
                        topic=at.topic,
                        partition=at.partition,
                        leader=present.state.leader,
                    )
                    damaged, opened = opened, self._open_instead_of_damaged(at, wanted_id, settings, versions)
                    self._released.pop(damaged, None)
                if partition is None or partition.log is not opened:
                    partition = hosted[number] = self._host(at, opened, instead_of=partition)
                partition.min_in_sync_replicas = settings.min_in_sync(topic.replication_factor(number))
                if self._set_role(partition, present, replicas, broker_epoch):
                    led.setdefault(present.state.leader_epoch, []).append(number)
            except (PylogError, OSError) as error:
                failed[number] = str(error)
                if self._failed.get(topic.name, {}).get(number) != str(error):
                    event(
                        _logger, "host partition", level=logging.ERROR, topic=topic.name, partition=number, error=error
                    )
        for leader_epoch, numbers in led.items():
            event(
                _logger,
                "lead partitions",
                topic=topic.name,
                leader_epoch=leader_epoch,
                partitions=partition_ranges(numbers),
            )
        if failed:
            self._failed[topic.name] = failed
        else:
            self._failed.pop(topic.name, None)
            self._applied[topic.name] = (topic, broker_epoch)

    def failures(self, name: str) -> Mapping[int, str]:
        """The topic's partitions that this broker should host and could not open at the last try, and why."""
        return self._failed.get(name, {})

    def retry_failed(self, cluster: ClusterState, broker_epoch: int) -> None:
        """Tries again to open what could not be opened, and to set aside what is damaged."""
        for name in dict.fromkeys([*self._failed, *(partition.topic for partition in self.damaged_replicas())]):
            topic = cluster.topics.get(name)
            if topic is not None:
                self._applied.pop(name, None)
                self.apply_topic(topic, broker_epoch)

    def damaged_replicas(self) -> list[Partition]:
        """The hosted partitions whose logs are damaged and were not released; see `release`."""
        damaged = [partition for partition in self._registry.hosted() if partition.log.is_damaged]
        return [partition for partition in damaged if partition.log not in self._released]

    def damaged_logs(self) -> list[Partition]:
        """The hosted partitions with records that cannot be read, until their logs are replaced. Never waits for a
        disk."""
        hosted = self._registry.hosted()
        return [partition for partition in hosted if partition.log.is_damaged and not partition.log.is_diverged]

    def failed_logs(self) -> list[Partition]:
        """The hosted partitions whose logs a disk error ended, until the broker is restarted. Never waits for a
        disk."""
        return [each for each in self._registry.hosted() if each.log.has_failed]

    def release(self, partition: Partition, version: int) -> None:
        """From this ``version`` of the state on nothing depends on the partition's damaged log, if the state says
        so."""
        self._released[partition.log] = version

    def forget_topic(self, name: str) -> None:
        """Stops serving the topic; its logs stay."""
        for partition in self._registry.forget_topic(name):
            self._unfollow(TopicPartition(partition.topic, partition.partition))
            self._schemas.pop(partition.topic_id, None)
            self._unhosted(partition)
        self._hosted.pop(name, None)
        self._applied.pop(name, None)
        self._failed.pop(name, None)

    def remove_logs(self, name: str, topic_id: bytes) -> None:
        """Removes the topic's logs from every directory, and logs of its name that do not say their topic id.

        Logs of another topic id are not touched. Raises `OSError`, and `LogStorageError` if a disk holds it up; logs on
        other disks are removed all the same.
        """
        applied = self._applied.get(name)
        if applied is None or applied[0].record.topic_id == topic_id:
            self.forget_topic(name)
        expected = {uuid.UUID(bytes=topic_id), None}
        failed: PylogError | OSError | None = None
        for directory in self._directories:
            try:
                self._remove_logs_in(directory, name, expected)
            except (PylogError, OSError) as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def step_down_all(self) -> None:
        """This broker leads and follows nothing until the next `apply`."""
        for partition in self._registry.hosted():
            self._unfollow(TopicPartition(partition.topic, partition.partition))
        self._registry.step_down_all()
        self._applied.clear()

    def look_at_disk(self, directory: LogDirectory) -> None:
        """Checks whether the directory still has room. Waits for that disk, and no other. Raises `OSError`."""
        had_room = self._rooms[directory.path].takes_appends
        self._rooms[directory.path].look()
        if had_room != self._rooms[directory.path].takes_appends:
            self._on_in_sync_news()

    def look_at_kept(self, directory: LogDirectory) -> None:
        """Looks up which logs are kept there as diverged. Waits for that disk, and no other. Raises `OSError`."""
        if self._rooms[directory.path].look_at_kept():
            self._on_in_sync_news()

    def diverged(self) -> list[str]:
        """Where logs are kept that were set aside as diverged, as last looked at. Never waits for a disk."""
        return [path for room in self._rooms.values() for path in room.diverged]

    def troubles(self) -> dict[str, tuple[str, list[Partition]]]:
        """The directories that take no records, by path: what is wrong, and whose records those are. Never waits for a
        disk."""
        troubles: dict[str, tuple[str, list[Partition]]] = {
            str(path): (trouble, []) for path, room in self._rooms.items() if (trouble := room.trouble)
        }
        found = set(troubles)
        for partition in self._registry.hosted():
            directory = self._directory_of.get(TopicPartition(partition.topic, partition.partition))
            if directory is None:
                continue
            path = str(directory.path)
            if path not in found and (not partition.log.is_offline or partition.log.is_damaged):
                continue
            troubles.setdefault(path, ("failed", []))[1].append(partition)
        return troubles

    def apply_retention(self, now_ms: int) -> None:
        """Removes expired segments, and rolls idle ones, in every log this broker leads.

        Also loads logs that nobody has used yet: their records expire, too. One log's failure stops no other.
        ``now_ms``: the wall clock, as far as `BelievedClock` goes.
        """
        for directory in self._directories:
            self.apply_retention_in(directory, now_ms)

    def apply_retention_in(self, directory: LogDirectory, now_ms: int) -> None:
        """As `apply_retention`, in one directory. Waits for that disk, and no other. Thread-safe."""
        now_ms = self._clock.believed_ms(now_ms, uptime_ms())
        for partition in self._registry.hosted():
            at = TopicPartition(partition.topic, partition.partition)
            if not partition.is_leader or self._directory_of.get(at) is not directory:
                continue
            try:
                if partition.log.apply_retention(now_ms):
                    partition.announce()
            except PylogError as error:
                event(
                    _logger,
                    "apply retention",
                    level=logging.WARNING,
                    topic=partition.topic,
                    partition=partition.partition,
                    error=error,
                )

    def log_ends(self, partitions: Sequence[PartitionKey]) -> tuple[LogEnd, ...]:
        """How far the logs go that are open here and sound. On any thread.

        Blocks while they are loaded. In each data directory one call at a time loads them; other calls leave out the
        logs that are not loaded yet, and those that are busy for longer than a moment.
        """
        logs: dict[PartitionKey, PartitionLog] = {}
        for key in partitions:
            try:
                logs[key] = self._registry.find(key.topic, key.partition, key.topic_id).log
            except PylogError as error:
                _log_left_out(key, error)
        found: dict[PartitionKey, LogEnd] = {}
        for path, loading in self._loading.items():
            there = {key: each for key, each in logs.items() if each.data_directory == path}
            may_load = bool(there) and loading.acquire(blocking=False)
            try:
                found.update(_ends_of(there, may_load=may_load))
            finally:
                if may_load:
                    loading.release()
        return tuple(found[key] for key in logs if key in found)

    def directory_of(self, at: TopicPartition) -> LogDirectory | None:
        """The data directory that has the partition's log; None where there is none yet."""
        return self._directory_of.get(at)

    @property
    def directories(self) -> tuple[LogDirectory, ...]:
        """The data directories."""
        return self._directories

    def _host(self, at: TopicPartition, opened: PartitionLog, *, instead_of: Partition | None) -> Partition:
        """The partition, served from this log from now on."""
        room = self._rooms[self._directory_of[at].path]
        partition = Partition(opened, broker_id=self._broker_id, disk=room)
        partition.on_in_sync_news = self._on_in_sync_news
        opened.on_damage(self._on_damage)
        opened.on_failure(self._on_in_sync_news)
        self._registry.host(partition)
        if instead_of is not None:
            self._unhosted(instead_of)
        return partition

    def _unhosted(self, partition: Partition) -> None:
        """It is no longer hosted, nor in `damaged_logs`."""
        if partition.log.is_damaged:
            self._on_in_sync_news()

    def _present(
        self,
        partition: Partition | None,
        topic_id: uuid.UUID,
        config: TopicSettings,
        schemas: Sequence[tuple[int, bytes]],
    ) -> PartitionLog | None:
        """The log of a hosted partition, where nothing is to be done on its disk; else None."""
        if partition is None:
            return None
        present = partition.log
        if present.topic_id != topic_id or present.is_damaged or not present.has_schemas(schemas):
            return None
        present.config = config
        return present

    def _open(
        self,
        at: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicSettings,
        schemas: Sequence[tuple[int, bytes]],
        *,
        is_counted_on: bool,
    ) -> PartitionLog:
        directory = self.directory_of(at)
        if directory is None:
            return self._open_new(at, topic_id, config, schemas)

        def work() -> PartitionLog:
            try:
                return directory.log(at.topic, at.partition, topic_id, config, schemas, is_counted_on=is_counted_on)
            except InconsistentTopicIdError:
                # The topic was recreated while its log was open: the old log is nobody's.
                directory.set_aside(at)
                return directory.log(at.topic, at.partition, topic_id, config, schemas)

        try:
            opened = self._on_disk(directory, work)
        except OSError:
            if at not in self._in_doubt or directory.has(at):
                raise
            self._forget_place(at)  # it could not be created there after all
            return self._open_new(at, topic_id, config, schemas)
        if at in self._in_doubt:
            self._in_doubt.discard(at)
            self._forget_missing([at])
        return opened

    def _open_instead_of_damaged(
        self, at: TopicPartition, topic_id: uuid.UUID, config: TopicSettings, schemas: Sequence[tuple[int, bytes]]
    ) -> PartitionLog:
        directory = self._directory_of[at]

        def work() -> PartitionLog:
            directory.set_aside_damaged(at)
            return directory.log(at.topic, at.partition, topic_id, config, schemas)

        return self._on_disk(directory, work)

    def _open_new(
        self, at: TopicPartition, topic_id: uuid.UUID, config: TopicSettings, schemas: Sequence[tuple[int, bytes]]
    ) -> PartitionLog:
        """In the directory with the fewest logs, the first among equals; those that are full, and then those that are
        held up, come last."""
        candidates = sorted(
            self._directories,
            key=lambda each: (
                not self._disk_work[each.path].is_free,
                not self._rooms[each.path].takes_appends,
                self._held[each.path],
            ),
        )
        for left, directory in zip(range(len(candidates) - 1, -1, -1), candidates, strict=True):
            self._directory_of[at] = directory
            self._held[directory.path] += 1
            self._in_doubt.add(at)
            try:
                # If the disk holds this up, the log may still be created there: it is created nowhere else.
                opened = self._on_disk(directory, partial(_create_log, directory, at, topic_id, config, schemas))
            except OSError as error:
                if isinstance(error, PylogError):
                    raise
                if directory.has(at):
                    raise
                self._forget_place(at)
                if not left:
                    raise
                event(
                    _logger,
                    "try another directory",
                    level=logging.WARNING,
                    topic=at.topic,
                    partition=at.partition,
                    directory=directory.path,
                    error=error,
                )
            else:
                self._in_doubt.discard(at)
                self._forget_missing([at])
                return opened
        raise AssertionError("there is at least one directory")

    def _on_disk(self, directory: LogDirectory, work: Callable[[], _T]) -> _T:
        """Raises as `DiskWork.do`."""
        return self._disk_work[directory.path].do(work)

    def _is_held_by_others(self, damaged: PartitionLog, present: VersionedState) -> bool:
        """Whether another broker leads, nothing committed depends on this broker's log, and that stays so: nothing that
        the log reported earlier can bring this broker into the in-sync set again."""
        state = present.state
        if state.leader in {None, self._broker_id} or self._broker_id in (*state.isr, *state.eligible):
            return False
        return not damaged.is_loaded or self._released.get(damaged, present.version + 1) <= present.version

    def _misses(self, present: VersionedState) -> bool:
        """Whether this broker was the last one in sync, and its log is not there."""
        return self._broker_id in present.state.isr and self._broker_id in present.state.lost

    def _remove_replica(self, at: TopicPartition, topic_id: uuid.UUID) -> None:
        """The partition has no replica here any more, or never had one."""
        dropped = self._registry.drop(at)
        if dropped is not None:
            self._unfollow(at)
            self._unhosted(dropped)
        directory = self.directory_of(at)
        if directory is None:
            self._forget_missing([at])
            return

        def work() -> bool:
            if not directory.has(at):  # work whose caller had given up may have deleted it
                return True
            held = directory.topic_id_of(at) if dropped is None else dropped.log.topic_id
            if held != topic_id:
                return False
            event(_logger, "remove replica", topic=at.topic, partition=at.partition)
            directory.delete(at)
            return True

        if self._on_disk(directory, work):
            self._forget_place(at)

    def _forget_missing(self, partitions: Sequence[TopicPartition]) -> None:
        for directory in self._directories:
            directory.forget_missing(partitions)

    def _remove_logs_in(self, directory: LogDirectory, name: str, topic_ids: Collection[uuid.UUID | None]) -> None:
        def work() -> set[TopicPartition]:
            directory.forget_missing([at for at in directory.missing if at.topic == name])
            found = [at for at in directory.partitions if at.topic == name]
            own = [at for at in found if directory.topic_id_of(at) in topic_ids]
            directory.delete_all(own)
            return set(found) - set(own)

        if not any(at.topic == name for at in (*self._places(directory), *directory.missing)):
            return
        left = self._on_disk(directory, work)
        for at in self._places(directory):
            if at.topic == name and at not in left:
                self._forget_place(at)

    def _places(self, directory: LogDirectory) -> list[TopicPartition]:
        """The partitions that the directory has, or may have."""
        return [at for at, each in self._directory_of.items() if each is directory]

    def _forget_place(self, at: TopicPartition) -> None:
        self._in_doubt.discard(at)
        directory = self._directory_of.pop(at, None)
        if directory is not None:
            self._held[directory.path] -= 1

    def _set_role(
        self, partition: Partition, present: VersionedState, replicas: Sequence[int], broker_epoch: int
    ) -> bool:
        """Returns whether it begins to lead now, or to lead in another epoch."""
        state = present.state
        at = TopicPartition(partition.topic, partition.partition)
        leadership = Leadership(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            replicas=tuple(replicas),
            in_sync=frozenset(state.isr),
            eligible=frozenset(state.eligible),
            version=present.version,
        )
        if state.leader == self._broker_id and state.leader_broker_epoch == broker_epoch:
            led_before = partition.leader_epoch if partition.is_leader else None
            self._released.pop(partition.log, None)
            self._unfollow(at)
            partition.become_leader(leadership, None if self._now_ms is None else self._now_ms())
            return led_before != state.leader_epoch
        if state.leader is None or state.leader == self._broker_id:
            # Nobody leads; or this broker did in an earlier registration, and has not been elected again yet.
            self._unfollow(at)
            partition.step_down()
        elif partition.role is not Role.FOLLOWER or partition.leadership != leadership:
            partition.become_follower(leadership)
            if self._followers is not None:
                self._followers.follow(partition, leadership)
        return False

    def _unfollow(self, at: TopicPartition) -> None:
        if self._followers is not None:
            self._followers.unfollow(at)

    def _history(self, record: TopicRecord) -> SchemaHistory:
        known = self._schemas.get(record.topic_id)
        if known is None or len(known) != max(1, len(record.schemas)):
            known = self._schemas[record.topic_id] = schema_history(record)
        return known


def _create_log(
    directory: LogDirectory,
    at: TopicPartition,
    topic_id: uuid.UUID,
    config: TopicSettings,
    schemas: Sequence[tuple[int, bytes]],
) -> PartitionLog:
    return directory.log(at.topic, at.partition, topic_id, config, schemas)


def schema_history(record: TopicRecord) -> SchemaHistory:
    """The versions of a topic's schema; the untyped one where it has none."""
    if not record.schemas:
        return SchemaHistory()
    return SchemaHistory(
        TopicSchema(schema_id=version.schema_id, arrow=schema_from_bytes(version.arrow), key=record.key)
        for version in record.schemas
    )


def _ends_of(logs: Mapping[PartitionKey, PartitionLog], *, may_load: bool) -> Iterator[tuple[PartitionKey, LogEnd]]:
    """How far the logs of one directory go, as far as they can be read; without ``may_load``, those that are loaded."""
    busy_s = BUSY_S
    for key, each in logs.items():
        if not each.is_loaded and not may_load:
            continue
        try:
            extent = each.extent(busy_s) if each.is_loaded else each.extent()
        except PylogError as error:
            if isinstance(error, RequestTimedOutError):
                busy_s = 0.0  # the disk may stand still: not so long for each log on it
            _log_left_out(key, error)
            continue
        end = LogEnd(
            topic=key.topic,
            partition=key.partition,
            leader_epoch=newest_epoch(extent.leader_epochs, extent.log_end),
            log_end=extent.log_end,
            log_start=extent.log_start,
        )
        yield key, end


def _log_left_out(key: PartitionKey, error: PylogError) -> None:
    """Logs that the answer leaves this one out."""
    event(_logger, "report log end", level=logging.WARNING, topic=key.topic, partition=key.partition, error=error)
