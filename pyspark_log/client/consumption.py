"""The parts of one consumer, made and given to each other: behind `Consumer`.

    start         where partitions begin                      for anybody
    fetcher       what is read ahead                          its own threads, a lock
    heartbeats    the membership in the group, if any         its own thread, a lock
    commits       what is finished, what the group has        any thread
    assignment    the partitions, the callbacks               the caller's thread
    share         what the group's coordinator tells          the caller's thread
    subscription  what is read                                the caller's thread
    handout       what the caller is given, positions         the caller's thread
    keeper        the consumer's own thread

Rule: decides nothing; threads are started, and started anew after a fork or when they broke, by `start_threads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client.assignment import Assignment
from pyspark_log.client.cluster import Cluster
from pyspark_log.client.commits import Commits
from pyspark_log.client.fetcher import Fetcher
from pyspark_log.client.group_share import GroupShare
from pyspark_log.client.handout import Handout
from pyspark_log.client.heartbeats import Heartbeats, stay_of
from pyspark_log.client.keeper import IDLE_REFRESH_S, REFRESH_S, Keeper
from pyspark_log.client.membership import Signature
from pyspark_log.client.records import GroupMetadata
from pyspark_log.client.start_positions import StartPositions
from pyspark_log.client.subscription import Subscription


class Consumption:
    """The state of one consumer."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self._settings = settings
        self.start = StartPositions(cluster, settings)
        self.fetcher = Fetcher(
            cluster,
            max_bytes=settings.fetch_max_bytes,
            max_wait_ms=settings.fetch_max_wait_ms,
            on_stale=self._on_stale,
        )
        self.heartbeats: Heartbeats | None = None
        if self.start.has_group:
            self.heartbeats = Heartbeats(
                cluster, stay_of(settings), on_news=self.fetcher.wake_caller, on_failure=self.fetcher.broke
            )
        self.commits = Commits(cluster, settings, self.start, self.fetcher, signature=self._signature)
        assignment = Assignment(settings, fetcher=self.fetcher, commits=self.commits, begin=self.start_threads)
        share = None
        if self.heartbeats is not None:
            share = GroupShare(
                cluster, heartbeats=self.heartbeats, start=self.start, commits=self.commits, assignment=assignment
            )
        self.subscription = Subscription(
            cluster,
            start=self.start,
            fetcher=self.fetcher,
            commits=self.commits,
            assignment=assignment,
            share=share,
        )
        self.handout = Handout(
            cluster,
            settings,
            start=self.start,
            fetcher=self.fetcher,
            commits=self.commits,
            subscription=self.subscription,
        )
        self._keeper: Keeper | None = None

    def start_threads(self) -> Keeper:
        """Starts those that do not run: at first use, after a fork, and after one broke."""
        if self._keeper is None or not self._keeper.is_alive:
            self._keeper = Keeper(
                commits=self.commits,
                describe=self.subscription.describe,
                tell=self.subscription.tell,
                watch=self.fetcher.watch,
                refresh_s=self._refresh_s,
                on_failure=self.fetcher.broke,
                auto_commit_s=self._settings.auto_commit_interval_ms / 1000,
            )
        self.fetcher.start_threads()
        if self.heartbeats is not None:
            self.heartbeats.start()
        return self._keeper

    def commit_async(self, next_offsets: Mapping[TopicPartition, int]) -> Future[None]:
        """See `Consumer.commit_async`."""
        future = self.commits.commit_soon(next_offsets)
        self.start_threads().hurry()
        return future

    def group_metadata(self) -> GroupMetadata:
        """See `Consumer.group_metadata`."""
        group_id = self.start.group_id
        assert self.heartbeats is not None
        member_id, epoch = self.heartbeats.identity()
        instance_id = self._settings.group_instance_id
        return GroupMetadata(group_id, member_id, epoch, instance_id) if member_id else GroupMetadata(group_id)

    def close(self, *, is_done: bool, loop_counts: bool) -> None:
        """Ends threads; commits what is finished, leaves the group. Blocks a bounded time.

        ``loop_counts``: what a loop's body holds is finished too.
        """
        if is_done:
            self.commits.finish_at_end(loop_counts=loop_counts)
        self.fetcher.stop()
        if self._keeper is not None:
            self._keeper.stop()
        try:
            if not self.subscription.lose_if_lost():
                self.commits.commit_finished()
        finally:
            self.commits.close()
            try:
                self.subscription.end()
            finally:
                if self.heartbeats is not None:
                    self.heartbeats.stop()

    def forget_parent(self) -> None:
        """In a child after ``os.fork``."""
        self._keeper = None
        if self.heartbeats is not None:
            self.heartbeats.forget_parent()
        self.commits.forget_parent()
        self.subscription.forget_parent()
        self.fetcher.forget_parent()

    def _refresh_s(self) -> float:
        return REFRESH_S if self.subscription.needs_metadata else IDLE_REFRESH_S

    def _signature(self) -> Signature | None:
        return None if self.heartbeats is None else self.heartbeats.signature()

    def _on_stale(self) -> None:
        if self._keeper is not None:
            self._keeper.ask_for_metadata()
