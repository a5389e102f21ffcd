"""What a consumer commits: in the order asked for, at once, in the background, or by auto-commit.

`Committer`     what the caller is done with, and how its group gets to know
`CommitQueue`   commits that wait for the background thread, bounded
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from broker_runtime.contract.errors import (
    ClientStateError,
    ClientTimeoutError,
    ClosedError,
    InconsistentTopicIdError,
    InvalidGroupIdError,
    PylogError,
    RetriableError,
    StaleMemberEpochError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition, check_group_id
from broker_runtime.contract.settings import ConsumerSettings
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.heartbeats import Heartbeats
from pyspark_log.client.consumer.partition_state import PartitionState
from pyspark_log.client.meters import NO_CONSUMER_METERS, ConsumerMeters

TOPIC_IS_GONE: Final = (UnknownTopicOrPartitionError, InconsistentTopicIdError)
"""What a partition's leader says when the topic was deleted, whether it was recreated or not."""
MAX_WAITING: Final = 10_000
"""So many commits wait at most: about 15 MB of futures."""
_REVOKED_LIMIT_S: Final = 5.0  # others wait for the partitions
_REFRESH_S: Final = 3600.0
"""How often auto-commit writes offsets that have not changed: a group that has no members is forgotten some time after
its last commit, though a consumer by `assign` may read a quiet topic for as long."""

_logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]
TopicIds = Mapping[TopicPartition, bytes]


class Committer:
    """One consumer's. Marks are set by the caller's thread; any thread may commit.

    Rule: commits of one consumer go out one after the other, in the order in which they were asked for, so that no
    older one overtakes a newer one. They name partitions by the id of the topic that was read, so that an offset never
    counts for a topic that was recreated under the same name. A member's commit carries its signature, which is made
    when the commit is sent.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        fetcher: Fetcher,
        heartbeats: Heartbeats,
        meters: ConsumerMeters = NO_CONSUMER_METERS,
    ) -> None:
        """``heartbeats``: the membership that signs commits. Raises `InvalidGroupIdError`."""
        self._group_id = None if settings.group_id is None else check_group_id(settings.group_id)
        self._cluster = cluster
        self._fetcher = fetcher
        self._heartbeats = heartbeats
        self._meters = meters
        self._wants_auto_commit = settings.enable_auto_commit
        self._queue = CommitQueue()
        self._lock = threading.RLock()  # held by the commit that is sent; its future's callback may commit in turn
        self._committed: dict[TopicPartition, int] = {}  # what the group has, as far as known
        self._refresh_at = Deadline(_REFRESH_S)
        self.looped: PartitionState | None = None
        """The partition whose last record or batch the body of a for loop holds."""

    @property
    def has_group(self) -> bool:
        """Whether the consumer has a group."""
        return self._group_id is not None

    @property
    def group_id(self) -> str:
        """The group; raises `InvalidGroupIdError` without one."""
        if self._group_id is None:
            raise InvalidGroupIdError("this needs a group: give the consumer a group_id")
        return self._group_id

    @property
    def is_automatic(self) -> bool:
        """Whether auto-commit is on and there is a group to commit to."""
        return self._wants_auto_commit and self.has_group

    # --- what the caller is done with -------------------------------------------------------------------------

    def finish_all(self) -> None:
        """The caller asks for more: it is done with all it got."""
        self.looped = None
        for state in self._fetcher.states.values():
            state.finished = state.position

    def finish_at_close(self, *, loop_counts: bool) -> None:
        """The consumer is closed without an error. ``loop_counts``: what a loop's body holds is finished as well."""
        for state in self._fetcher.states.values():
            if loop_counts or state is not self.looped:
                state.finished = state.position
        self.looped = None

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """The caller no longer has these."""
        if self.looped is not None and self.looped.at in partitions:
            self.looped = None
        for at in partitions:
            self._committed.pop(at, None)

    def note_committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """The group has these already."""
        self._committed.update(positions)

    # --- commits ----------------------------------------------------------------------------------------------

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        *,
        topic_ids: Mapping[TopicPartition, bytes] | None = None,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, int]:
        """The group's offsets, without partitions that have none. ``topic_ids``: as `offsets.committed`."""
        return offsets.committed(self._cluster, self.group_id, partitions, topic_ids=topic_ids, timeout_s=timeout_s)

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Blocks until the offsets are in ZooKeeper; first everything from `commit_async` is written, or has failed.

        Raises `InvalidGroupIdError` without a group, and as `offsets.commit`.
        """
        topic_ids = self._topic_ids_of(next_offsets)
        with self._one_at_a_time():
            self._queue.write(self._send)
            self._send(next_offsets, topic_ids)

    def commit_async(self, next_offsets: Mapping[TopicPartition, int]) -> Future[None]:
        """The same when somebody calls `write_queued`. Raises `ClientStateError` when too many wait."""
        assert self.group_id
        return self._queue.add(next_offsets, self._topic_ids_of(next_offsets))

    def write_queued(self) -> None:
        """Writes what `commit_async` took. Blocks as `commit`; raises nothing but `ClientTimeoutError`."""
        if len(self._queue):
            with self._one_at_a_time():
                self._queue.write(self._send)

    def commit_finished(self) -> None:
        """Auto-commit, if it is on. Blocks and raises as `commit`."""
        if self.is_automatic:
            self._commit_finished(lambda: list(self._fetcher.states.values()))

    def commit_released(self, states: Iterable[PartitionState]) -> None:
        """The caller wants no more of these partitions, and is done with what it got; auto-commit covers that.

        Blocks and raises as `commit`.
        """
        released = list(states)
        if not released or not self.is_automatic:
            return
        for state in released:
            state.finished = state.position
        self._commit_finished(lambda: released)

    def commit_revoked(self, states: Collection[PartitionState]) -> None:
        """The group takes these partitions; auto-commit covers what the caller is done with. Blocks a bounded time.

        Raises no `PylogError`. What cannot be committed now is read again by the partition's next member.
        """
        if not states:
            return
        try:
            if len(self._queue):
                with self._one_at_a_time(_REVOKED_LIMIT_S):
                    self._queue.write(partial(self._send, timeout_s=_REVOKED_LIMIT_S))
            if self.is_automatic:
                self._commit_finished(lambda: states, limit_s=_REVOKED_LIMIT_S)
        except PylogError as error:
            event(
                _logger,
                "commit offsets",
                level=logging.WARNING,
                group=self.group_id,
                revoked=len(states),
                error=error,
            )
        finally:
            self.refuse_waiting({state.at for state in states})

    def refuse_waiting(self, partitions: Collection[TopicPartition]) -> None:
        """The group may give these to others. Commits of them that still wait fail: by the time they are sent, the
        consumer may have the partitions again, and others may have gone further in between."""
        self._queue.refuse(
            partitions, StaleMemberEpochError("the partition was given to another member before the commit was written")
        )

    def commit_first(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, bytes], *, timeout_s: float
    ) -> None:
        """Where the group begins in these. Blocks and raises as `commit`, but no longer than about ``timeout_s``."""
        with self._one_at_a_time(timeout_s):
            self._send(positions, topic_ids, timeout_s)

    def close(self) -> None:
        """What still waits fails with `ClosedError`."""
        self._queue.abandon(ClosedError("the consumer was closed before the commit was written"))

    def forget_parent(self) -> None:
        """In a child after ``os.fork``: what waits is the parent's."""
        self._meters = NO_CONSUMER_METERS
        self._queue = CommitQueue()
        self._lock = threading.RLock()

    # --- private ----------------------------------------------------------------------------------------------

    def _commit_finished(
        self, states: Callable[[], Collection[PartitionState]], *, limit_s: float | None = None
    ) -> None:
        """Commits what is finished in ``states``, which is called when no other commit is being sent any more."""
        with self._one_at_a_time(limit_s):
            there = [state for state in states() if not isinstance(state.error, TOPIC_IS_GONE)]
            finished = {state.at: state.finished for state in there}
            is_due = self._refresh_at.expired
            changed = {at: offset for at, offset in finished.items() if is_due or self._committed.get(at) != offset}
            if not changed:
                return
            if is_due:
                self._refresh_at = Deadline(_REFRESH_S)
            try:
                self._send(changed, {state.at: state.topic.topic_id for state in there}, limit_s)
            except TOPIC_IS_GONE as error:  # the group's offsets went with the topic
                event(_logger, "commit offsets", level=logging.WARNING, group=self.group_id, error=error)

    def _topic_ids_of(self, partitions: Iterable[TopicPartition]) -> TopicIds:
        """Of the topics that are read now. When a commit is written, others of the same names may be."""
        states = self._fetcher.states
        return {at: states[at].topic.topic_id for at in partitions if at in states}

    def _send(self, next_offsets: Offsets, topic_ids: TopicIds, timeout_s: float | None = None) -> None:
        try:
            with self._meters.committing():
                offsets.commit(
                    self._cluster,
                    self.group_id,
                    next_offsets,
                    topic_ids=topic_ids,
                    signature=self._heartbeats.signature(),
                    timeout_s=timeout_s,
                )
        except RetriableError:  # it may have been carried out
            for at in next_offsets:
                self._committed.pop(at, None)
            raise
        self._committed.update(next_offsets)

    @contextmanager
    def _one_at_a_time(self, limit_s: float | None = None) -> Iterator[None]:
        limit_s = 2 * self._cluster.request_timeout_s if limit_s is None else limit_s
        if not self._lock.acquire(timeout=limit_s):
            raise ClientTimeoutError(f"another commit of this consumer has not ended after {limit_s:g} s")
        try:
            yield
        finally:
            self._lock.release()


class _Waiting(NamedTuple):
    offsets: Offsets
    topic_ids: TopicIds
    future: Future[None]


class CommitQueue:
    """Commits that wait for the background thread: what `add` takes, `write` commits.

    Thread-safe; one thread at a time may `write`.

    Rule: everything that waits goes out as one commit, a partition's newest offset over older ones, so however many
    wait, they cost one write; one more for each topic that was recreated in between. Each has a future of its own, and
    the futures are finished in the order in which the commits were asked for (as the callbacks of Kafka's commitAsync
    are called). Never blocks for anything but the one commit that it is asked to make.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the list, never held over a commit or a callback
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offsets: Offsets, topic_ids: TopicIds | None = None) -> Future[None]:
        """Queues a commit. ``topic_ids``: of the topics that the offsets are about, where they are known. Raises
        `ClientStateError` when `MAX_WAITING` wait already."""
        future: Future[None] = Future()
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise ClientStateError(
                    f"{len(self._waiting)} commits wait for the broker already, and no more may: wait for one's future "
                    "now and then, or commit less often"
                )
            self._waiting.append(_Waiting(dict(offsets), dict(topic_ids or {}), future))
        return future

    def write(self, commit: Callable[[Offsets, TopicIds], None]) -> None:
        """Writes everything that waits now. Blocks as ``commit`` does; what that raises is in the futures.

        A commit that is refused for one of its partitions does not fail the others: then each is written by itself, in
        order.
        """
        with self._lock:
            taken, self._waiting = self._waiting, []
        waiting = [one for one in taken if one.future.set_running_or_notify_cancel()]
        if not waiting:
            return
        try:
            for some in _of_one_topic_each(waiting):
                _write_all(some, commit)
        except Exception as error:  # a defect: whoever waits for a future has to learn of it, too
            for one in waiting:
                if not one.future.done():
                    one.future.set_exception(error)
            raise

    def refuse(self, partitions: Collection[TopicPartition], error: PylogError) -> None:
        """What waits and has one of these fails with ``error``."""
        with self._lock:
            refused = [one for one in self._waiting if not one.offsets.keys().isdisjoint(partitions)]
            self._waiting = [one for one in self._waiting if one not in refused]
        for one in refused:
            if one.future.set_running_or_notify_cancel():
                one.future.set_exception(error)

    def abandon(self, error: PylogError) -> None:
        """Nobody will write any more: everything that waits fails with ``error``."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        for one in taken:
            if one.future.set_running_or_notify_cancel():
                one.future.set_exception(error)


def _of_one_topic_each(waiting: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """In order, in runs in which no two commits mean different topics by the same name."""
    run: list[_Waiting] = []
    topic_ids: dict[TopicPartition, bytes] = {}
    for one in waiting:
        if any(topic_ids.get(at, topic_id) != topic_id for at, topic_id in one.topic_ids.items()):
            yield run
            run, topic_ids = [], {}
        run.append(one)
        topic_ids.update(one.topic_ids)
    yield run


def _write_all(waiting: Sequence[_Waiting], commit: Callable[[Offsets, TopicIds], None]) -> None:
    newest: dict[TopicPartition, int] = {}
    topic_ids: dict[TopicPartition, bytes] = {}
    for one in waiting:
        newest.update(one.offsets)
        topic_ids.update(one.topic_ids)
    error = _tried(commit, newest, topic_ids)
    alone = error is not None and not isinstance(error, RetriableError) and len(waiting) > 1
    for one in waiting:
        if alone:
            error = _tried(commit, one.offsets, one.topic_ids)
            alone = not isinstance(error, RetriableError)  # if nobody answers, the others need not wait for that
        if error is None:
            one.future.set_result(None)
        else:
            one.future.set_exception(error)


def _tried(commit: Callable[[Offsets, TopicIds], None], offsets: Offsets, topic_ids: TopicIds) -> PylogError | None:
    try:
        commit(offsets, topic_ids)
    except PylogError as error:
        return error
    return None
