"""Whom this broker follows, carried out: a thread per leader and disk fetches what hosting says, and one watches them.

    hosting ─ follow ─▶ log loaded?  no: a loading thread ─▶ LeaderLink of its leader and disk
                                     yes ────────────────▶

Rules: a partition is fetched from one leader at a time: following it at another ends it at the one before. A log that
is loaded, or recovered, holds up no other partition: the leaders of those wait for their fetches. A disk that stands
still holds up no partition on another. A thread that cannot be started is tried again. Nothing here decides
anything: what is asked and what becomes of the answers is `FollowerFetcher`'s, who leads is told by hosting. No call of
the plan waits for a leader, or for a disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import Address
from broker_runtime.contract.threads import may_start
from broker_runtime.following.follower import FollowerFetcher, ReplicationThrottle
from broker_runtime.following.leader_link import LeaderLink
from broker_runtime.replication import Leadership, Partition

_LOOK_S: Final = 1.0
_LOOK_AT_NEWS_S: Final = 0.05
_LOADING_THREADS: Final = 6  # they wait for disks, above all, where logs are recovered

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What hosting said last of a partition."""

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
        throttle: ReplicationThrottle | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """``max_bytes``: ``replica.fetch.max.bytes``, ``max_wait_ms``: ``replica.fetch.wait.max.ms``.

        ``address_of``: where a broker listens, as far as is known; ``broker_epoch``: of this broker's present
        registration, -1 without one; ``broker_secret``: of the same. ``on_broken``: told, on a fetching thread, of a
        leader whose connection broke or was refused; it may block and must not raise. ``on_failure``: a thread ended
        by a defect.
        """
        self._broker_id = broker_id
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._address_of = address_of
        self._broker_epoch = broker_epoch
        self._broker_secret = broker_secret
        self._on_broken = on_broken
        self._throttle = throttle
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._links: dict[tuple[int, Path], LeaderLink] = {}
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._link_of: dict[TopicPartition, LeaderLink] = {}  # those whose logs are loaded
        self._unloaded: dict[Path, deque[TopicPartition]] = {}  # by disk, in the order in which they came
        self._loading: dict[threading.Thread, Path] = {}
        self._unbegun: set[TopicPartition] = set()  # no thread could be started for their links
        self._is_stopped = False
        self._news = threading.Event()
        self._watchdog: threading.Thread | None = None  # None: it could not be started yet
        self._watch_later()

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
            self._watch_later()
            if partition.log.is_loaded:
                self._attach(at)
            else:
                self._load_later(at)
        self._news.set()

    def unfollow(self, at: TopicPartition) -> None:
        """See `FollowerPlan`."""
        with self._lock:
            self._wanted.pop(at, None)
            self._detach(at)

    @property
    def leaders(self) -> list[int]:
        """Whom this broker follows in something, sorted."""
        with self._lock:
            return sorted({wanted.leader for wanted in self._wanted.values()})

    def stop(self, timeout_s: float) -> bool:
        """Ends all threads; blocks up to ``timeout_s``. False: one is still in a call, and ends with the process."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            self._is_stopped = True
            links, loading = list(self._links.values()), list(self._loading)
            self._links.clear()
            self._link_of.clear()
            self._wanted.clear()
            self._unloaded.clear()
            self._unbegun.clear()
        self._news.set()
        for link in links:
            link.end()
        ended = [link.join(max(0.0, deadline_s - time.monotonic())) for link in links]
        for thread in [*loading, *([self._watchdog] if self._watchdog is not None else [])]:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            ended.append(not thread.is_alive())
        if not all(ended):
            event(_logger, "stop fetching", level=logging.WARNING, threads_left=ended.count(False), waited_s=timeout_s)
        return all(ended)

    # --- private; the lock is held, but in the threads ------------------------------------------------------------

    def _attach(self, at: TopicPartition) -> None:
        wanted = self._wanted[at]
        key = wanted.leader, wanted.partition.log.data_directory
        link = self._links.get(key)
        if link is None:
            link = self._new_link(*key)
            if link is None:
                self._unbegun.add(at)
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
            thread = threading.Thread(target=self._load_all, args=(disk,), name="follow-load", daemon=True)
            self._loading[thread] = disk
            if not may_start(thread):
                del self._loading[thread]  # the watchdog tries again

    def _load_all(self, disk: Path) -> None:
        """A loading thread: until nothing is left to load on the disk."""
        try:
            while True:
                with self._lock:
                    unloaded = self._unloaded.get(disk)
                    if not unloaded:
                        del self._loading[threading.current_thread()]
                        return
                    at = unloaded.popleft()
                    wanted = self._wanted.get(at)
                if wanted is not None:
                    self._load(at, wanted.partition)
        except BaseException:  # whatever ends this thread: nobody would fetch what it had to load
            self._on_failure()
            raise

    def _load(self, at: TopicPartition, partition: Partition) -> None:
        try:
            _ = partition.log.log_end_offset
        except PylogError as error:
            # The fetcher meets it as well, and knows what to do about it.
            event(_logger, "load log", level=logging.WARNING, topic=at.topic, partition=at.partition, error=error)
        with self._lock:
            wanted = self._wanted.get(at)
            if wanted is not None and wanted.partition is partition:
                self._attach(at)
        self._news.set()

    def _watch_later(self) -> None:
        if self._watchdog is None:
            watchdog = threading.Thread(target=self._watch, name="follow-watchdog", daemon=True)
            if may_start(watchdog):
                self._watchdog = watchdog

    def _new_link(self, leader: int, disk: Path) -> LeaderLink | None:
        """None: there is no thread for it at present; the watchdog tries again."""
        fetcher = FollowerFetcher(
            self._broker_id,
            leader,
            max_bytes=self._max_bytes,
            # No less for one alone: the leader begins with another one each time.
            partition_max_bytes=self._max_bytes,
            max_wait_ms=self._max_wait_ms,
            throttle=self._throttle,
        )
        link = LeaderLink(
            fetcher,
            address_of=self._address_of,
            broker_epoch=self._broker_epoch,
            broker_secret=self._broker_secret,
            on_broken=self._on_broken,
            may_retire=self._may_retire,
            on_failure=self._on_failure,
            more_comes=lambda: bool(self._unloaded.get(disk)),
        )
        return link if link.may_begin() else None

    def _may_retire(self, link: LeaderLink) -> bool:
        with self._lock:
            # Partitions come to a link under this lock, so none comes to one that was taken out.
            if not link.fetcher.is_idle:
                return False
            for key, each in list(self._links.items()):
                if each is link:
                    del self._links[key]
            return True

    def _begin_again(self) -> None:
        """What no thread could be started for."""
        unbegun, self._unbegun = self._unbegun, set()
        for at in sorted(unbegun):
            if at in self._wanted and at not in self._link_of:
                self._attach(at)
        for disk, unloaded in self._unloaded.items():
            if unloaded and disk not in self._loading.values():
                self._begin_loading(disk)

    def _watch(self) -> None:
        while not self._is_stopped:
            with self._lock:
                self._begin_again()
                links = list(self._links.values())
            now_s = time.monotonic()
            for link in links:
                link.watch(now_s)
            if any(link.has_news for link in links):
                time.sleep(_LOOK_AT_NEWS_S)
            else:
                self._news.wait(_LOOK_S)
                self._news.clear()
