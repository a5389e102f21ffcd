"""What a consumer's caller is done with, and how its group is told: now, soon, or by auto-commit.

Rule: commits of one consumer go out one after the other, in the order in which they were asked for, so that no older
one overtakes a newer; they name partitions by the id of the topic they were read from, so that an offset never becomes
one of a topic made anew. A member's commits carry its signature, made when the commit's turn has come.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

from broker_runtime.contract.errors import (
    ClientTimeoutError,
    ClosedError,
    InconsistentTopicIdError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client import offsets
from pyspark_log.client.cluster import Cluster
from pyspark_log.client.commit_queue import CommitQueue
from pyspark_log.client.fetcher import Fetcher
from pyspark_log.client.membership import Signature
from pyspark_log.client.partition_state import PartitionState
from pyspark_log.client.start_positions import StartPositions

TOPIC_IS_GONE = (UnknownTopicOrPartitionError, InconsistentTopicIdError)
"""What a partition's leader says when the topic was deleted, made anew or not."""

_GIVE_BACK_LIMIT_S = 5.0  # others wait for the partitions

_logger = logging.getLogger(__name__)


class Commits:
    """One consumer's. Marks are set by the caller's thread; any thread may commit."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        start: StartPositions,
        fetcher: Fetcher,
        *,
        signature: Callable[[], Signature | None] = lambda: None,
    ) -> None:
        """``signature``: as `Membership.signature`."""
        self._signature = signature
        self._cluster = cluster
        self._start = start
        self._fetcher = fetcher
        self._wants_auto_commit = settings.enable_auto_commit
        self._waiting = CommitQueue()
        self._turn = threading.RLock()  # a callback of `commit_soon` may commit
        self._acknowledged: dict[TopicPartition, int] = {}  # what the group has, as far as known
        self.looped: PartitionState | None = None
        """Whose last record a for loop's body holds."""

    @property
    def is_automatic(self) -> bool:
        """Whether auto-commit is on and there is a group to commit to."""
        return self._wants_auto_commit and self._start.has_group

    # --- what is finished -------------------------------------------------------------------------------------

    def finish_all(self) -> None:
        """The caller asks for more: it is done with all it got."""
        self.looped = None
        for state in self._fetcher.states.values():
            state.finished = state.position

    def finish_at_end(self, *, loop_counts: bool) -> None:
        """The consumer is closed in peace. ``loop_counts``: what a loop's body holds is finished too."""
        for state in self._fetcher.states.values():
            if loop_counts or state is not self.looped:
                state.finished = state.position
        self.looped = None

    def give_up(self, states: Iterable[PartitionState]) -> None:
        """The caller wants no more of these partitions and is done with what it got of them; auto-commit covers that.

        Blocks and raises as `commit`.
        """
        given_up = list(states)
        if not given_up or not self.is_automatic:
            return
        for state in given_up:
            state.finished = state.position
        self._commit_finished(lambda: given_up)

    def give_back(self, states: Collection[PartitionState]) -> None:
        """The group takes these; auto-commit covers what the caller is done with. Blocks a bounded time.

        Raises nothing. What cannot be committed now is read again by whoever gets it.
        """
        if not states or not self.is_automatic:
            return
        try:
            self._commit_finished(lambda: states, limit_s=_GIVE_BACK_LIMIT_S)
        except PylogError as error:
            _logger.warning("auto-commit of partitions given back failed count=%d error=%s", len(states), error)

    def save(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, bytes], *, timeout_s: float
    ) -> None:
        """Where the group begins in these. Blocks and raises as `commit`, but no longer than about ``timeout_s``."""
        with self._in_turn(timeout_s):
            self._send(positions, topic_ids, timeout_s)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """The caller has these no more."""
        if self.looped is not None and self.looped.at in partitions:
            self.looped = None
        for at in partitions:
            self._acknowledged.pop(at, None)

    def acknowledged(self, positions: Mapping[TopicPartition, int]) -> None:
        """The group has these already."""
        self._acknowledged.update(positions)

    # --- commits ----------------------------------------------------------------------------------------------

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Blocks until the offsets are in ZooKeeper, and before that until all of `commit_soon` are, or have failed.

        Raises `InvalidGroupIdError` without a group, and as `offsets.commit`.
        """
        with self._in_turn():
            self._waiting.write(self._write)
            self._write(next_offsets)

    def commit_soon(self, next_offsets: Mapping[TopicPartition, int]) -> Future[None]:
        """The same when somebody calls `write_waiting`. Raises `ClientStateError` when too many wait."""
        assert self._start.group_id
        return self._waiting.add(next_offsets)

    def write_waiting(self) -> None:
        """Does what `commit_soon` took. Blocks as `commit`; raises nothing but `ClientTimeoutError`."""
        if len(self._waiting):
            with self._in_turn():
                self._waiting.write(self._write)

    def commit_finished(self) -> None:
        """Auto-commit, if it is on. Blocks and raises as `commit`."""
        if self.is_automatic:
            self._commit_finished(lambda: list(self._fetcher.states.values()))

    def close(self) -> None:
        """What still waits fails with `ClosedError`."""
        self._waiting.abandon(ClosedError("the consumer was closed before the commit was written"))

    def forget_parent(self) -> None:
        """In a child after ``os.fork``: what waits is the parent's."""
        self._waiting = CommitQueue()
        self._turn = threading.RLock()

    # --- private ----------------------------------------------------------------------------------------------

    def _commit_finished(
        self, states: Callable[[], Collection[PartitionState]], *, limit_s: float | None = None
    ) -> None:
        """Of the ``states`` at the moment when it is this commit's turn."""
        with self._in_turn(limit_s):
            finished = {state.at: state.finished for state in states() if not isinstance(state.error, TOPIC_IS_GONE)}
            news = {at: offset for at, offset in finished.items() if self._acknowledged.get(at) != offset}
            if not news:
                return
            try:
                self._write(news, limit_s)
            except TOPIC_IS_GONE as error:  # with its topic the group's offsets went
                _logger.warning("auto-commit skipped topics that are gone error=%s", error)

    def _write(self, next_offsets: Mapping[TopicPartition, int], timeout_s: float | None = None) -> None:
        states = self._fetcher.states
        topic_ids = {at: states[at].topic.topic_id for at in next_offsets if at in states}
        self._send(next_offsets, topic_ids, timeout_s)

    def _send(
        self,
        next_offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[TopicPartition, bytes],
        timeout_s: float | None,
    ) -> None:
        offsets.commit(
            self._cluster,
            self._start.group_id,
            next_offsets,
            topic_ids=topic_ids,
            signature=self._signature(),
            timeout_s=timeout_s,
        )
        self._acknowledged.update(next_offsets)

    @contextmanager
    def _in_turn(self, limit_s: float | None = None) -> Iterator[None]:
        limit_s = 2 * self._cluster.request_timeout_s if limit_s is None else limit_s
        if not self._turn.acquire(timeout=limit_s):
            raise ClientTimeoutError(f"another commit of this consumer has not ended after {limit_s:g} s")
        try:
            yield
        finally:
            self._turn.release()
