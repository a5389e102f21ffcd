"""The parts of one consumer, made and given to each other: behind `Consumer`.

    start         where partitions begin                      for anybody
    fetcher       what is read ahead                          its own threads, a lock
    commits       what is finished, what the group has        any thread
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
from pyspark_log.client.cluster import Cluster
from pyspark_log.client.commits import Commits
from pyspark_log.client.fetcher import Fetcher
from pyspark_log.client.handout import Handout
from pyspark_log.client.keeper import Keeper
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
        self.commits = Commits(cluster, settings, self.start, self.fetcher)
        self.subscription = Subscription(
            cluster,
            settings,
            start=self.start,
            fetcher=self.fetcher,
            commits=self.commits,
            begin=self.start_threads,
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
                on_failure=self.fetcher.broke,
                auto_commit_s=self._settings.auto_commit_interval_ms / 1000,
            )
        self.fetcher.start_threads()
        return self._keeper

    def commit_async(self, next_offsets: Mapping[TopicPartition, int]) -> Future[None]:
        """See `Consumer.commit_async`."""
        future = self.commits.commit_soon(next_offsets)
        self.start_threads().hurry()
        return future

    def close(self, *, is_done: bool, loop_counts: bool) -> None:
        """Ends threads; commits what is finished. ``loop_counts``: what a loop's body holds is finished too."""
        if is_done:
            self.commits.finish_at_end(loop_counts=loop_counts)
        self.fetcher.stop()
        if self._keeper is not None:
            self._keeper.stop()
        try:
            self.commits.commit_finished()
        finally:
            self.commits.close()
            self.subscription.revoke_all()

    def forget_parent(self) -> None:
        """In a child after ``os.fork``."""
        self._keeper = None
        self.commits.forget_parent()
        self.subscription.forget_parent()
        self.fetcher.forget_parent()

    def _on_stale(self) -> None:
        if self._keeper is not None:
            self._keeper.ask_for_metadata()
