"""Whom this broker follows, carried out: one thread per leader fetches what hosting says, and one watches them.

    hosting ─ follow ─▶ log loaded?  no: a loading thread ─▶ LeaderLink of its leader
                                     yes ────────────────▶

Rules: a partition is fetched from one leader at a time: following it at another ends it at the one before. A log that
is loaded, or recovered, holds up no other partition: the leaders of those wait for their fetches. Nothing here decides
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
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import Address
from broker_runtime.replication import FollowerFetcher, Leadership, Partition, ReplicationThrottle
from broker_runtime.server.leader_link import LeaderLink

_LOOK_S: Final = 1.0
_LOOK_AT_NEWS_S: Final = 0.05
_LOADING_THREADS: Final = 6  # they wait for disks, above all, where logs are recovered

log = logging.getLogger(__name__)


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
        self._links: dict[int, LeaderLink] = {}
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._link_of: dict[TopicPartition, LeaderLink] = {}  # those whose logs are loaded
        self._unloaded: deque[TopicPartition] = deque()  # in the order in which they came
        self._loading: set[threading.Thread] = set()
        self._is_stopped = False
        self._news = threading.Event()
        self._watchdog: threading.Thread | None = None

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
        self._news.set()
        for link in links:
            link.end()
        ended = [link.join(max(0.0, deadline_s - time.monotonic())) for link in links]
        for thread in [*loading, *([self._watchdog] if self._watchdog is not None else [])]:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            ended.append(not thread.is_alive())
        if not all(ended):
            log.warning("stop threads_left=%d waited_s=%.1f", ended.count(False), timeout_s)
        return all(ended)

    # --- private; the lock is held, but in the threads ------------------------------------------------------------

    def _attach(self, at: TopicPartition) -> None:
        wanted = self._wanted[at]
        link = self._links.get(wanted.leader)
        if link is None:
            link = self._links[wanted.leader] = self._new_link(wanted.leader)
        self._link_of[at] = link
        link.follow(wanted.partition, wanted.leader_epoch)

    def _detach(self, at: TopicPartition) -> None:
        link = self._link_of.pop(at, None)
        if link is not None:
            link.unfollow(at)

    def _load_later(self, at: TopicPartition) -> None:
        self._unloaded.append(at)
        if len(self._loading) < _LOADING_THREADS:
            thread = threading.Thread(target=self._load_all, name="follow-load", daemon=True)
            self._loading.add(thread)
            thread.start()

    def _load_all(self) -> None:
        """A loading thread: until nothing is left to load."""
        try:
            while True:
                with self._lock:
                    if not self._unloaded:
                        self._loading.discard(threading.current_thread())
                        return
                    at = self._unloaded.popleft()
                    wanted = self._wanted.get(at)
                if wanted is not None:
                    self._load(at, wanted.partition)
        except BaseException:
            self._on_failure()
            raise

    def _load(self, at: TopicPartition, partition: Partition) -> None:
        try:
            _ = partition.log.log_end_offset
        except PylogError as error:
            # The fetcher meets it as well, and knows what to do about it.
            log.warning("cannot load partition=%s error=%s", at, error)
        with self._lock:
            wanted = self._wanted.get(at)
            if wanted is not None and wanted.partition is partition:
                self._attach(at)
        self._news.set()

    def _new_link(self, leader: int) -> LeaderLink:
        if self._watchdog is None:
            self._watchdog = threading.Thread(target=self._watch, name="follow-watchdog", daemon=True)
            self._watchdog.start()
        fetcher = FollowerFetcher(
            self._broker_id,
            leader,
            max_bytes=self._max_bytes,
            # No less for one alone: the leader begins with another one each time.
            partition_max_bytes=self._max_bytes,
            max_wait_ms=self._max_wait_ms,
            throttle=self._throttle,
        )
        return LeaderLink(
            fetcher,
            address_of=self._address_of,
            broker_epoch=self._broker_epoch,
            broker_secret=self._broker_secret,
            on_broken=self._on_broken,
            may_retire=self._may_retire,
            on_failure=self._on_failure,
            more_comes=lambda: bool(self._unloaded),
        )

    def _may_retire(self, link: LeaderLink) -> bool:
        with self._lock:
            # Partitions come to a link under this lock, so none comes to one that was taken out.
            if not link.fetcher.is_idle:
                return False
            if self._links.get(link.fetcher.leader_id) is link:
                del self._links[link.fetcher.leader_id]
            return True

    def _watch(self) -> None:
        while not self._is_stopped:
            with self._lock:
                links = list(self._links.values())
            now_s = time.monotonic()
            for link in links:
                link.watch(now_s)
            if any(link.has_news for link in links):
                time.sleep(_LOOK_AT_NEWS_S)
            else:
                self._news.wait(_LOOK_S)
                self._news.clear()
