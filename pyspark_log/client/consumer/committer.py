"""What a consumer commits: in the order asked for, in the background, and on its own thread.

`Commits`       what the caller is done with, and how its group learns of it: now, soon, or by auto-commit
`CommitQueue`   commits that wait for the consumer's own thread, bounded
`Keeper`        that thread: commits, fresh metadata, broken sessions
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, NamedTuple

from broker_runtime.contract.errors import (
    ClientStateError,
    ClientTimeoutError,
    ClosedError,
    InconsistentTopicIdError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.membership import Signature
from pyspark_log.client.consumer.partition_state import PartitionState
from pyspark_log.client.consumer.start_positions import StartPositions

TOPIC_IS_GONE = (UnknownTopicOrPartitionError, InconsistentTopicIdError)
"""What a partition's leader says when the topic was deleted, made anew or not."""

_GIVE_BACK_LIMIT_S = 5.0  # others wait for the partitions

_logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""So many commits wait at most: about 15 MB of futures."""

Offsets = Mapping[TopicPartition, int]

_STEP_S = 1.0
REFRESH_S = 3.0
"""How often a subscription looks for new partitions, topics and leaders."""
IDLE_REFRESH_S = 15.0
"""The same, where the group's coordinator says what is new and there are no leaders to ask."""
_JOIN_LIMIT_S = 35.0


class Commits:
    """One consumer's. Marks are set by the caller's thread; any thread may commit.

    What a consumer's caller is done with, and how its group is told: now, soon, or by auto-commit.

    Rule: commits of one consumer go out one after the other, in the order in which they were asked for, so that no
    older one overtakes a newer; they name partitions by the id of the topic they were read from, so that an offset
    never becomes one of a topic made anew. A member's commits carry its signature, made when the commit's turn has
    come.
    """

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


class _Waiting(NamedTuple):
    offsets: Offsets
    future: Future[None]


class CommitQueue:
    """What `add` takes, `write` commits. Thread-safe; one thread at a time may `write`.

    Commits that wait for a consumer's own thread: in order, the newest offset of a partition over older ones, bounded.

    Rule: all that waits goes out as one commit, so however many wait, they cost one write. Each has a future of its
    own, and the futures are finished in the order in which the commits were asked for (as the callbacks of Kafka's
    commitAsync are called). Never blocks for anything but the one commit it was told to do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the list, never held over a commit or a callback
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offsets: Offsets) -> Future[None]:
        """Queues a commit. Raises `ClientStateError` when `MAX_WAITING` wait already."""
        future: Future[None] = Future()
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise ClientStateError(
                    f"{len(self._waiting)} commits wait for the broker already, and no more may: wait for one's future "
                    "now and then, or commit less often"
                )
            self._waiting.append(_Waiting(dict(offsets), future))
        return future

    def write(self, commit: Callable[[Offsets], None]) -> None:
        """Does all that waits now. Blocks as ``commit`` does; what that raises is in the futures.

        A commit that is refused for one of its partitions spoils no other's: then each is done by itself, in order.
        """
        with self._lock:
            taken, self._waiting = self._waiting, []
        waiting = [one for one in taken if one.future.set_running_or_notify_cancel()]
        if not waiting:
            return
        try:
            _write_all(waiting, commit)
        except Exception as error:  # a defect: whoever waits for a future is told, too
            for one in waiting:
                if not one.future.done():
                    one.future.set_exception(error)
            raise

    def abandon(self, error: PylogError) -> None:
        """Nobody will write any more: all that waits fails with ``error``."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        for one in taken:
            if one.future.set_running_or_notify_cancel():
                one.future.set_exception(error)


def _write_all(waiting: Sequence[_Waiting], commit: Callable[[Offsets], None]) -> None:
    newest: dict[TopicPartition, int] = {}
    for one in waiting:
        newest.update(one.offsets)
    error = _tried(commit, newest)
    alone = error is not None and not isinstance(error, RetriableError) and len(waiting) > 1
    for one in waiting:
        if alone:
            error = _tried(commit, one.offsets)
            alone = not isinstance(error, RetriableError)  # nobody answers: those after it need not wait for that
        if error is None:
            one.future.set_result(None)
        else:
            one.future.set_exception(error)


def _tried(commit: Callable[[Offsets], None], offsets: Offsets) -> PylogError | None:
    try:
        commit(offsets)
    except PylogError as error:
        return error
    return None


class Keeper:
    """One thread, started when it is made, ended by `stop`. The callables it is given are thread-safe.

    A consumer's own thread: commits in the background, fresh metadata, broken sessions.

    Rule: it never touches positions and never calls the user back, but for callbacks of the commits that it writes;
    what it learns about topics waits until the consumer's caller comes by. If it breaks, the caller is told.
    """

    def __init__(
        self,
        *,
        commits: Commits,
        describe: Callable[[], list[Topic]],
        tell: Callable[[list[Topic] | PylogError], None],
        watch: Callable[[], None],
        refresh_s: Callable[[], float],
        on_failure: Callable[[Exception], None],
        auto_commit_s: float,
    ) -> None:
        """``describe`` asks for the topics, each ``refresh_s``, ``tell`` takes the answer; ``on_failure`` is told what
        broke the thread."""
        self._commits = commits
        self._describe = describe
        self._tell = tell
        self._watch = watch
        self._refresh_s = refresh_s
        self._on_failure = on_failure
        self._auto_commit_s = auto_commit_s if commits.is_automatic else None
        self._wake = threading.Event()
        self._is_stale = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="pylog-consumer", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def hurry(self) -> None:
        """A commit waits. Any thread."""
        self._wake.set()

    def ask_for_metadata(self) -> None:
        """Metadata is old. Any thread."""
        self._is_stale = True
        self._wake.set()

    def stop(self) -> None:
        """Does the commits that wait, then ends. Blocks a bounded time."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join(_JOIN_LIMIT_S)

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:  # noqa: BLE001 - the thread's edge: a defect must not leave the caller in silence
            self._on_failure(error)

    def _keep(self) -> None:
        backoff = Backoff()
        commit_at_s = time.monotonic() + (self._auto_commit_s or 0.0)
        refreshed_s, interval_s = time.monotonic(), self._refresh_s()
        earliest_s = 0.0
        while True:
            self._logging_what_fails(self._commits.write_waiting)
            if self._is_stopped:
                return
            now_s = time.monotonic()
            if self._auto_commit_s is not None and now_s >= commit_at_s:
                self._logging_what_fails(self._commits.commit_finished)
                commit_at_s = now_s + self._auto_commit_s
            # A wait that has become shorter holds at once, a longer one from the next look on.
            is_due = now_s >= refreshed_s + min(interval_s, self._refresh_s())
            if is_due or (self._is_stale and now_s >= earliest_s):
                self._is_stale = False
                if self._refresh():
                    backoff.reset()
                else:
                    self._is_stale = True
                refreshed_s, interval_s = time.monotonic(), self._refresh_s()
                earliest_s = refreshed_s + backoff.next_s()
            self._watch()
            wait_s = _STEP_S
            if self._auto_commit_s is not None:
                wait_s = min(wait_s, commit_at_s - now_s)
            if self._is_stale:
                wait_s = min(wait_s, earliest_s - now_s)
            self._wake.wait(max(0.0, wait_s))
            self._wake.clear()

    def _logging_what_fails(self, commit: Callable[[], None]) -> None:
        try:
            commit()
        except PylogError as error:
            _logger.warning("auto-commit failed error=%s", error)

    def _refresh(self) -> bool:
        try:
            self._tell(self._describe())
        except RetriableError as error:
            _logger.info("metadata refresh failed error=%s", error)
            return False
        except PylogError as error:
            self._tell(error)
        return True
