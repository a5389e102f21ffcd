"""`Consumer`: records of topics, from a position on, for ever.

Rule: the caller's thread decides: positions move when records are handed out, callbacks run and errors are raised
only inside the caller's calls. Threads of the consumer read ahead (`fetcher`) and commit (`keeper`). Auto-commit covers
what the caller is done with: records of the last ``poll`` once it polls again, the record of a ``for`` loop once
the loop asks for the next, and what was handed out last when the consumer is closed without an exception under way
(in a loop that was left by ``break``: only if the ``with`` block ends well). Never the record that raised.

With a ``group_id`` a subscription is a membership in the group, which shares the topics' partitions out among its
members; a thread of the consumer's tells the group that it lives (`heartbeats`). Changes of the share are carried out
in the caller's thread, inside `poll` and the loops. Not thread-safe, but for `wakeup`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any, Unpack

from broker_runtime.contract import forking
from broker_runtime.contract.errors import (
    ClientStateError,
    ClosedError,
    InvalidRequestError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import EARLIEST, LATEST, OffsetAndTimestamp, TopicPartition
from broker_runtime.contract.settings import ConsumerKeywords, ConsumerSettings, resolve
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.consumer.assignment import Assignment, Callbacks, OnPartitions
from pyspark_log.client.consumer.committer import IDLE_REFRESH_S, REFRESH_S, Commits, Keeper
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.group_share import GroupShare
from pyspark_log.client.consumer.handout import Handout
from pyspark_log.client.consumer.heartbeats import Heartbeats, stay_of
from pyspark_log.client.consumer.membership import Signature
from pyspark_log.client.consumer.start_positions import StartPositions
from pyspark_log.client.consumer.subscription import Subscription
from pyspark_log.client.records import ConsumedBatch, GroupMetadata, Record, timestamp_ms_of
from pyspark_log.client.unsupported import without_later_settings

_POLL_BYTES = 8 << 20

Committable = Record | ConsumedBatch | Mapping[TopicPartition, int]


class Consumer:
    """Reads topics. ``Consumer("flights", group_id="g")`` subscribes at once; see `subscribe` and `assign`.

    Settings by keyword (``auto_offset_reset="earliest"``) or by dotted name in ``config``: README lists them. As a
    context manager it is closed at the end.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[ConsumerKeywords],
    ) -> None:
        """Connects only if ``topics`` are given. Raises `InvalidConfigError`, `NotSupportedError`, as `subscribe`."""
        own_config, keywords = without_later_settings(config, settings)
        self._settings: ConsumerSettings = resolve(
            "consumer", own_config, {"bootstrap_servers": bootstrap_servers, **keywords}
        )
        self._cluster = Cluster.from_settings(self._settings)
        self._consumption = Consumption(self._cluster, self._settings)
        self._is_closed = False
        self._is_ended = False  # nothing works any more; until then callbacks of `close` may commit
        forking.register(self)
        if topics:
            try:
                self.subscribe(topics)
            except BaseException:
                self.close()
                raise

    # --- what is read -----------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | Sequence[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """All partitions of these topics, or of all whose whole name matches ``pattern``, now and in future.

        With a group: this member's share of them, which changes as members come and go; of the others it gets nothing.
        Blocks until the share is known, a bounded time (about 10 s if another member is slow to release what is meant
        for this one). Positions are the group's committed offsets, else as ``auto_offset_reset`` says; with a group
        they are written to ZooKeeper before this returns. Partitions and topics added later are read from their first
        record.

        Callbacks are called inside this and inside polls, with lists: ``on_assign`` of what begins; ``on_revoke`` of
        what is given back, before that happens, so that it can be committed; ``on_lost`` instead of that when it may
        be others' already, because the group did not hear of this consumer for ``session_timeout_ms``, it did not
        poll for ``max_poll_interval_ms``, or it was removed: then it joins anew, as another member.

        Raises `UnknownTopicOrPartitionError`, `NoOffsetForPartitionError` (``auto_offset_reset="none"``),
        `GroupInUseError` (by a Spark query), `GroupMaxSizeReachedError`, `InvalidSessionTimeoutError`.
        """
        self._check_open()
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == (pattern is not None):
            raise InvalidRequestError("subscribe takes topics or a pattern, one of both")
        compiled = None if pattern is None else re.compile(pattern)
        callbacks = Callbacks(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        self._consumption.subscription.subscribe(names, compiled, callbacks)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions and no others, whoever else reads them: this is no membership, also with a group, and
        then `commit` works only while the group has no members. Positions as `subscribe`'s, but not written.

        What auto-commit covers of partitions that are given up is committed first.
        """
        self._check_open()
        self._consumption.subscription.assign([_tp(at) for at in partitions])

    def unsubscribe(self) -> None:
        """No partitions any more; the group is left. Blocks a bounded time."""
        self._check_open()
        self._consumption.subscription.unsubscribe()

    def subscription(self) -> set[str]:
        """The topics that are subscribed to now."""
        return self._consumption.subscription.topics

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return set(self._consumption.fetcher.states)

    # --- records ----------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.1, *, max_records: int | None = None) -> list[Record]:
        """The next records, at most ``max_records`` (default ``max_poll_records``), of one or several partitions.

        Returns as soon as there are any; an empty list after ``timeout`` seconds. Raises `WakeupError`,
        `OffsetOutOfRangeError` (``auto_offset_reset="none"``), `UnknownTopicOrPartitionError` and
        `InconsistentTopicIdError` (deleted under the consumer; a subscription goes on by itself with the first record
        of a topic made anew), `CorruptRecordError`, `ClientStateError` if nothing is subscribed to; what broke a
        thread of the consumer's, which then goes on; what callbacks raise; and why a group does not have this
        consumer (any more): `FencedInstanceIdError` (another process took its ``group_instance_id``), and as
        `subscribe`. What goes wrong after records were found is raised next time.
        """
        consumption = self._ready()
        limit = self._settings.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise InvalidRequestError(f"max_records={limit}: must be at least 1")
        consumption.commits.finish_all()
        return consumption.handout.take_records(Deadline(timeout), limit)

    def poll_batches(self, timeout: float = 0.1) -> list[ConsumedBatch]:
        """The next records as columns: all that has arrived, up to about 8 MiB. Returns and raises as `poll`."""
        consumption = self._ready()
        consumption.commits.finish_all()
        return consumption.handout.take_batches(Deadline(timeout), _POLL_BYTES)

    def __iter__(self) -> Iterator[Record]:
        """Records for ever; ends when the consumer is closed. Raises as `poll`."""
        for batch in self._forever(max_rows=self._settings.max_poll_records):
            yield from self._consumption.handout.one_by_one(batch)

    def batches(self) -> Iterator[ConsumedBatch]:
        """Batches for ever, as `poll_batches` gives them; ends when the consumer is closed."""
        for batch in self._forever(max_rows=None):
            yield from self._consumption.handout.handed_out(batch)

    def wakeup(self) -> None:
        """Makes a waiting `poll` (or the next) raise `WakeupError`. Any thread."""
        self._consumption.handout.wake_up()

    # --- acknowledging ----------------------------------------------------------------------------------------

    def commit(self, what: Committable | None = None) -> None:
        """Acknowledges, for the group, all before an offset, and blocks until that is in ZooKeeper.

        ``what``: a record or batch (all up to it and itself), next offsets by partition, or None: all that was handed
        out. May be called in ``on_revoke``. Raises `InvalidGroupIdError` without a group, `StaleMemberEpochError` for
        a partition that is not this member's (any more; the others are committed), `UnknownMemberIdError` when all is
        lost, `NonEmptyGroupError` without a membership (`assign`) in a group that has members.
        """
        self._check_open(in_callback=True)
        self._consumption.commits.commit(self._next_offsets(what))

    def commit_async(self, what: Committable | None = None) -> Future[None]:
        """As `commit`, in the background; the future has the outcome. Futures are finished in the order of the calls.

        Commits that wait go out as one, so a slow broker or ZooKeeper costs no more with many of them. Raises
        `ClientStateError` when 10,000 wait.
        """
        self._check_open()
        return self._consumption.commit_async(self._next_offsets(what))

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's next offset in a partition, or None. Raises `InvalidGroupIdError` without a group."""
        self._check_open()
        at = _tp(partition)
        return offsets.committed(self._cluster, self._consumption.start.group_id, [at]).get(at)

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group. Raises `InvalidGroupIdError` without a group."""
        return self._consumption.group_metadata()

    # --- positions --------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that will be handed out. Raises `ClientStateError` if it is not assigned."""
        return self._consumption.subscription.state(_tp(partition)).position

    def lag(self, partition: TopicPartition) -> int:
        """How many records are behind the position, as of the last answer of the broker."""
        state = self._consumption.subscription.state(_tp(partition))
        if state.high_watermark < 0:
            state.high_watermark = self.end_offsets([state.at])[state.at]
        return max(0, state.high_watermark - state.position)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on with this offset. One that is out of range shows in the next `poll` (``auto_offset_reset``)."""
        at = _tp(partition)
        self._consumption.handout.seek({at: offsets.check_offset(at, offset)})

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes on with the first record there is; without arguments in all assigned partitions."""
        self._consumption.handout.seek(self.beginning_offsets(self._chosen(partitions)))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Skips all that is there now; without arguments in all assigned partitions."""
        self._consumption.handout.seek(self.end_offsets(self._chosen(partitions)))

    def seek_to_time(self, moment: datetime | int, *partitions: TopicPartition) -> None:
        """Goes on with the first record at or after a time (aware datetime or ms), or behind the last."""
        chosen = self._chosen(partitions)
        found = self.offsets_for_times(dict.fromkeys(chosen, moment))
        missing = self.end_offsets([at for at in chosen if found[at] is None])
        self._consumption.handout.seek({at: missing[at] if (o := found[at]) is None else o.offset for at in chosen})

    def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime | int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (aware datetime or ms); None: there is none."""
        self._check_open()
        wanted = {_tp(at): timestamp_ms_of(moment) for at, moment in times.items()}
        found = offsets.list_offsets(self._cluster, wanted)
        return {at: answer if answer.offset >= 0 else None for at, answer in found.items()}

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each log begins."""
        return self._limits(partitions, EARLIEST)

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Behind each log's last record."""
        return self._limits(partitions, LATEST)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hands out nothing of these until `resume`; without arguments of none."""
        for at in partitions:
            self._consumption.fetcher.set_paused(self._consumption.subscription.state(_tp(at)), is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on with these where they were."""
        for at in partitions:
            self._consumption.fetcher.set_paused(self._consumption.subscription.state(_tp(at)), is_paused=False)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {at for at, state in self._consumption.fetcher.states.items() if state.is_paused}

    # --- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commits what auto-commit covers, calls ``on_revoke``, leaves the group, ends all threads and connections.

        A member with a ``group_instance_id`` leaves for a while: its share waits for it for ``session_timeout_ms``.
        May be called again. Blocks a bounded time.

        With an exception under way, what was handed out last does not count as done. Raises the commit's error,
        after everything is closed.
        """
        self._close(is_done=sys.exc_info()[0] is None, loop_counts=False)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close(is_done=error is None, loop_counts=True)
        except PylogError as commit_error:
            if error is None:
                raise
            error.add_note(f"the consumer also failed to commit: {commit_error}")

    # --- forks (see `forking`) --------------------------------------------------------------------------------

    def _interrupt_for_fork(self) -> None:
        """See `forking`: sessions do it."""

    def _drop_for_fork(self) -> None:
        """See `forking`."""

    def _after_fork_in_child(self) -> None:
        """See `forking`: the child goes on from the same positions, by itself.

        But for a member of a group: the parent is the member. In the child nothing is subscribed to, until it
        subscribes as a member of its own.
        """
        self._consumption.forget_parent()

    # --- private ----------------------------------------------------------------------------------------------

    def _close(self, *, is_done: bool, loop_counts: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._consumption.close(is_done=is_done, loop_counts=loop_counts)
        finally:
            self._is_ended = True
            self._cluster.close()
            forking.unregister(self)

    def _forever(self, *, max_rows: int | None) -> Iterator[ConsumedBatch]:
        while not self._is_closed:
            consumption = self._ready()
            consumption.commits.finish_all()
            batch = consumption.handout.next_batch(Deadline(1.0), max_rows=max_rows)
            if batch is not None:
                yield batch

    def _ready(self) -> Consumption:
        self._check_open()
        if not self._consumption.subscription.is_in_use:
            raise ClientStateError("nothing is subscribed to: call subscribe or assign first")
        self._consumption.start_threads()
        return self._consumption

    def _check_open(self, *, in_callback: bool = False) -> None:
        if self._is_ended or (self._is_closed and not in_callback):
            raise ClosedError("the consumer was closed")

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        chosen = [_tp(at) for at in partitions] or list(self._consumption.fetcher.states)
        for at in chosen:
            self._consumption.subscription.state(at)
        return chosen

    def _limits(self, partitions: Sequence[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_open()
        found = offsets.list_offsets(self._cluster, dict.fromkeys(map(_tp, partitions), which))
        return {at: answer.offset for at, answer in found.items()}

    def _next_offsets(self, what: Committable | None) -> dict[TopicPartition, int]:
        if what is None:
            return self._consumption.handout.positions()
        if isinstance(what, Record):
            return {TopicPartition(what.topic, what.partition): what.offset + 1}
        if isinstance(what, ConsumedBatch):
            return {what.topic_partition: what.next_offset}
        if not isinstance(what, Mapping):
            raise InvalidRequestError(
                f"commit takes a record, a batch, or next offsets by partition, not {type(what).__name__}"
            )
        return {_tp(at): offsets.check_offset(_tp(at), offset) for at, offset in what.items()}


def _tp(at: TopicPartition | tuple[str, int]) -> TopicPartition:
    if not isinstance(at, tuple) or len(at) != 2 or not isinstance(at[0], str) or not isinstance(at[1], int):
        raise UnknownTopicOrPartitionError(f"{at!r} is no TopicPartition(topic, partition)")
    return TopicPartition(*at)


class Consumption:
    """The state of one consumer.

    The parts of one consumer, made and given to each other: behind `Consumer`.

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
