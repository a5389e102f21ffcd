"""Carries out whom this broker follows: a thread per leader and disk fetches, and one watchdog watches those threads.

    hosting ─ follow ─▶ log loaded?  no: a loading thread ─▶ LeaderLink of its leader and disk
                                     yes ────────────────▶

Rules: a partition is fetched from one leader at a time: following it at another ends it at the one before. A log that
is being loaded or recovered holds up no other partition, whose leaders wait for its fetches. A disk that stands still
holds up no partition on another. A thread that cannot be started is tried again. Nothing here decides anything: hosting
says who leads, and `FollowerFetcher` what to ask and what to do with the answers. No call of the plan waits for a
leader or for a disk.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.security import UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import Deadline, Worker
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.following.leader_link import LeaderLink
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.rates import RateLimit
from broker_runtime.replication import Leadership, Partition

_LOOK_S: Final = 1.0
_LOOK_AT_UNASKED_S: Final = 0.05
_LOADING_THREADS: Final = 6  # for each disk; recovering logs, they mostly wait for it

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What hosting last said about a partition."""

    partition: Partition
    leader: int
    leader_epoch: int


class ReplicaFetching:
    """Implements `FollowerPlan`. Thread-safe."""

    def __init__(
        self,
        broker_id: int,
        *,
        max_bytes: int,
        max_wait_ms: int,
        address_of: Callable[[int], Address | None],
        broker_epoch: Callable[[], int],
        broker_secret: Callable[[], str] = lambda: "",
        on_broken: Callable[[int], None],
        throttle: RateLimit | None = None,
        meters: Meters = NO_METERS,
        on_failure: Callable[[], None] = lambda: None,
        access: Access = UNPROTECTED,
    ) -> None:
        """``max_bytes``: ``replica.fetch.max.bytes``, ``max_wait_ms``: ``replica.fetch.wait.max.ms``.

        ``address_of``: where a broker listens, as far as is known; ``broker_epoch``: of this broker's present
        registration, -1 without one; ``broker_secret``: of the same. ``on_broken``: called on a fetching thread with a
        leader whose connection broke or was refused; it may block and must not raise. ``on_failure``: a defect ended a
        thread. ``access``: how leaders are reached.
        """
        self._broker_id = broker_id
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._address_of = address_of
        self._broker_epoch = broker_epoch
        self._broker_secret = broker_secret
        self._on_broken = on_broken
        self._throttle = throttle
        self._meters = meters
        self._on_failure = on_failure
        self._access = access
        self._lock = threading.Lock()
        self._links: dict[tuple[int, Path], LeaderLink] = {}
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._link_of: dict[TopicPartition, LeaderLink] = {}  # those whose logs are loaded
        self._unloaded: dict[Path, deque[TopicPartition]] = {}  # by disk, in the order in which they came
        self._loading: dict[Worker, Path] = {}
        self._unstarted: set[TopicPartition] = set()  # no thread could be started for their links
        self._is_stopped = False
        self._watchdog = Worker("follow-watchdog", self._watch, on_defect=lambda error: on_failure())
        self._is_watched = False  # the watchdog was started
        self._start_watchdog()

    def follow(self, partition: Partition, leadership: Leadership) -> None:
        """See `FollowerPlan`. After `stop`: nothing."""
        at = TopicPartition(partition.topic, partition.partition)
        leader = leadership.leader
        with self._lock:
            before = self._wanted.get(at)
            if before is not None and before.leader != leader:
                self._detach(at)
            if self._is_stopped or leader is None or leader == self._broker_id:
                self._wanted.pop(at, None)
                return
            self._wanted[at] = _Wanted(partition, leader, leadership.leader_epoch)
            self._start_watchdog()
            if partition.log.is_loaded:
                self._attach(at)
            else:
                self._load_later(at)
        self._watchdog.wake()

    def unfollow(self, at: TopicPartition) -> None:
        """See `FollowerPlan`."""
        with self._lock:
            self._wanted.pop(at, None)
            self._detach(at)

    @property
    def leaders(self) -> list[int]:
        """The brokers that this one follows in at least one partition, sorted."""
        with self._lock:
            return sorted({wanted.leader for wanted in self._wanted.values()})

    def stop(self, timeout_s: float) -> bool:
        """Ends all threads; blocks up to ``timeout_s``. False: one is still in a call, and ends with the process."""
        deadline = Deadline(timeout_s)
        with self._lock:
            self._is_stopped = True
            links, loading = list(self._links.values()), list(self._loading)
            self._links.clear()
            self._link_of.clear()
            self._wanted.clear()
            self._unloaded.clear()
            self._unstarted.clear()
        threads: list[LeaderLink | Worker] = [*links, *loading, self._watchdog]
        for each in threads:
            each.stop()
        ended = [each.join(deadline.remaining_s()) for each in threads]
        if not all(ended):
            event(_logger, "stop fetching", level=logging.WARNING, threads_left=ended.count(False), waited_s=timeout_s)
        return all(ended)

    # --- private; the lock is held, except on the threads ------------------------------------------------------------

    def _attach(self, at: TopicPartition) -> None:
        wanted = self._wanted[at]
        key = wanted.leader, wanted.partition.log.data_directory
        link = self._links.get(key)
        if link is None:
            link = self._new_link(*key)
            if link is None:
                self._unstarted.add(at)
                return
            self._links[key] = link
        self._link_of[at] = link
        link.follow(wanted.partition, wanted.leader_epoch)

    def _detach(self, at: TopicPartition) -> None:
        link = self._link_of.pop(at, None)
        if link is not None:
            link.unfollow(at)

    def _load_later(self, at: TopicPartition) -> None:
        disk = self._wanted[at].partition.log.data_directory
        self._unloaded.setdefault(disk, deque()).append(at)
        self._begin_loading(disk)

    def _begin_loading(self, disk: Path) -> None:
        if sum(each == disk for each in self._loading.values()) < _LOADING_THREADS:
            worker = Worker(
                "follow-load",
                lambda: self._load_next(worker, disk),
                on_defect=lambda error: self._on_failure(),  # nobody would fetch what it had to load
            )
            self._loading[worker] = disk
            if not worker.may_start():
                del self._loading[worker]  # the watchdog tries again

    def _load_next(self, worker: Worker, disk: Path) -> None:
        """A loading thread's step; it ends when nothing is left to load on the disk."""
        with self._lock:
            unloaded = self._unloaded.get(disk)
            if not unloaded:
                del self._loading[worker]
                worker.stop()
                return
            at = unloaded.popleft()
            wanted = self._wanted.get(at)
        if wanted is not None:
            self._load(at, wanted.partition)

    def _load(self, at: TopicPartition, partition: Partition) -> None:
        try:
            _ = partition.log.log_end_offset
        except PylogError as error:
            # The fetcher will meet the same error, and knows what to do about it.
            event(_logger, "load log", level=logging.WARNING, topic=at.topic, partition=at.partition, error=error)
        with self._lock:
            wanted = self._wanted.get(at)
            if wanted is not None and wanted.partition is partition:
                self._attach(at)
        self._watchdog.wake()

    def _start_watchdog(self) -> None:
        if not self._is_watched:
            self._is_watched = self._watchdog.may_start()

    def _new_link(self, leader: int, disk: Path) -> LeaderLink | None:
        """None: there is no thread for it at present; the watchdog tries again."""
        fetcher = FollowerFetcher(
            self._broker_id,
            leader,
            max_bytes=self._max_bytes,
            # One partition may fill an answer: the leader begins with another one each time.
            partition_max_bytes=self._max_bytes,
            max_wait_ms=self._max_wait_ms,
            throttle=self._throttle,
            meters=self._meters,
        )
        link = LeaderLink(
            fetcher,
            address_of=self._address_of,
            broker_epoch=self._broker_epoch,
            broker_secret=self._broker_secret,
            on_broken=self._on_broken,
            may_retire=self._may_retire,
            on_failure=self._on_failure,
            is_loading=lambda: bool(self._unloaded.get(disk)),
            access=self._access,
        )
        return link if link.may_start() else None

    def _may_retire(self, link: LeaderLink) -> bool:
        with self._lock:
            # Partitions are added to a link under this lock, so none is added to one that was taken out.
            if not link.fetcher.is_idle:
                return False
            for key, each in list(self._links.items()):
                if each is link:
                    del self._links[key]
            return True

    def _start_again(self) -> None:
        """Tries again what no thread could be started for."""
        unstarted, self._unstarted = self._unstarted, set()
        for at in sorted(unstarted):
            if at in self._wanted and at not in self._link_of:
                self._attach(at)
        for disk, unloaded in self._unloaded.items():
            if unloaded and disk not in self._loading.values():
                self._begin_loading(disk)

    def _watch(self) -> float | None:
        """The watchdog's step."""
        with self._lock:
            self._start_again()
            links = list(self._links.values())
        for link in links:
            link.watch()
        if any(link.has_unasked for link in links):
            self._watchdog.rest(_LOOK_AT_UNASKED_S)  # not woken: partitions that come one by one share an interrupt
            return None
        return _LOOK_S
