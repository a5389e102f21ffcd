"""`Consumer`: records of topics, from a position on, without end.

Rule: the caller's thread decides: positions move when records are delivered, and callbacks run and errors are raised
only inside the caller's calls. The consumer's own threads fetch ahead (`fetcher`), commit and refresh metadata
(`background`), and send heartbeats (`heartbeats`). Auto-commit covers what the caller is done with: the records of the
last ``poll`` once it polls again, the record of a ``for`` loop once the loop asks for the next, and what was delivered
last when the consumer is closed without an exception under way (in a loop that was left by ``break``: only if the
``with`` block ends well). It never covers the record that raised.

With a ``group_id`` a subscription is a membership in the group, which shares the topics' partitions out among its
members. Changes of the share are carried out in the caller's thread, inside `poll` and the loops. Not thread-safe,
except for `wakeup`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from broker_runtime.contract import forking
from broker_runtime.contract.errors import (
    ClientStateError,
    ClosedError,
    InvalidRequestError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import EARLIEST, LATEST, OffsetAndTimestamp, TopicPartition
from broker_runtime.contract.requests import ISOLATION_LEVELS
from broker_runtime.contract.settings import ConsumerKeywords, ConsumerSettings, resolve
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.consumer.assignment import Assignment, Callbacks, OnPartitions
from pyspark_log.client.consumer.background import Background
from pyspark_log.client.consumer.committer import Committer
from pyspark_log.client.consumer.delivery import Delivery
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.group_assignment import GroupAssignment
from pyspark_log.client.consumer.heartbeats import Heartbeats, stay_of
from pyspark_log.client.meters import NO_CONSUMER_METERS, ConsumerMeters
from pyspark_log.client.records import ConsumedBatch, GroupMetadata, Record, timestamp_ms_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_POLL_BYTES = 8 << 20

Committable = Record | ConsumedBatch | Mapping[TopicPartition, int]


class Consumer(forking.Forkable):
    """Reads topics. ``Consumer("flights", group_id="g")`` subscribes at once; see `subscribe` and `assign`.

    Settings by keyword (``auto_offset_reset="earliest"``) or by dotted name in ``config``: the reference lists them. As
    a context manager it is closed at the end. ``metrics``: as `Producer`'s.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        metrics: CollectorRegistry | None = None,
        **settings: Unpack[ConsumerKeywords],
    ) -> None:
        """Connects only if ``topics`` are given. Raises `InvalidConfigError`, and as `subscribe`."""
        self._settings: ConsumerSettings = resolve(
            "consumer", config, {"bootstrap_servers": bootstrap_servers, **settings}
        )
        self._meters = _meters_of(metrics, self._settings.client_id)
        self._cluster = Cluster.from_settings(self._settings)
        self._fetcher = Fetcher(
            self._cluster,
            max_bytes=self._settings.fetch_max_bytes,
            max_wait_ms=self._settings.fetch_max_wait_ms,
            on_stale=self._request_metadata,
            isolation_level=ISOLATION_LEVELS[self._settings.isolation_level],
            meters=self._meters,
        )
        self._meters.watch(self._fetcher.max_lag_records)
        self._heartbeats = Heartbeats(
            self._cluster,
            stay_of(self._settings),
            on_news=self._fetcher.wake_caller,
            on_failure=self._fetcher.thread_ended,
        )
        self._committer = Committer(
            self._cluster, self._settings, fetcher=self._fetcher, heartbeats=self._heartbeats, meters=self._meters
        )
        self._assignment = (GroupAssignment if self._committer.has_group else Assignment)(
            self._cluster,
            self._settings,
            fetcher=self._fetcher,
            committer=self._committer,
            heartbeats=self._heartbeats,
            start_threads=self._start_threads,
            meters=self._meters,
        )
        self._delivery = Delivery(
            self._cluster,
            self._settings,
            fetcher=self._fetcher,
            committer=self._committer,
            heartbeats=self._heartbeats,
            assignment=self._assignment,
            meters=self._meters,
        )
        self._background: Background | None = None
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
        """Reads all partitions of these topics, or of all topics whose whole name matches ``pattern``, now and later.

        With a group: this member's share of them, which changes as members come and go; it gets nothing of the others.
        Blocks until the share is known, a bounded time (about 10 s if another member is slow to release what is meant
        for this one). Positions are the group's committed offsets, else as ``auto_offset_reset`` says; with a group
        they are written to ZooKeeper before this returns. Partitions and topics added later are read from their first
        record.

        Callbacks are called inside this and inside polls, with a list of partitions. ``on_assign``: these begin.
        ``on_revoke``: these will be given to others, and can still be committed. ``on_lost``, in place of that: others
        may have these already, because the group did not hear of this consumer for ``session_timeout_ms``, it did not
        poll for ``max_poll_interval_ms``, or it was removed; it then joins again, as another member.

        Raises `UnknownTopicOrPartitionError`, `NoOffsetForPartitionError` (``auto_offset_reset="none"``),
        `GroupInUseError` (by a Spark query), `GroupMaxSizeReachedError`, `InvalidSessionTimeoutError`.
        """
        self._check_open()
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == (pattern is not None):
            raise InvalidRequestError("subscribe takes topics or a pattern, one of both")
        compiled = None if pattern is None else re.compile(pattern)
        callbacks = Callbacks(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        self._assignment.subscribe(names, compiled, callbacks)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Reads these partitions and no others, whoever else reads them.

        This is no membership, with a group neither: `commit` then works only while the group has no members. Positions
        are found as by `subscribe`, but not written. What auto-commit covers of partitions that are no longer read is
        committed first.
        """
        self._check_open()
        self._assignment.assign([_tp(at) for at in partitions])

    def unsubscribe(self) -> None:
        """Stops reading, and leaves the group. Blocks a bounded time."""
        self._check_open()
        self._assignment.unsubscribe()

    def subscription(self) -> set[str]:
        """The topics that are subscribed to now."""
        return self._assignment.topics

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return set(self._fetcher.states)

    # --- records ----------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.1, *, max_records: int | None = None) -> list[Record]:
        """The next records, at most ``max_records`` (default ``max_poll_records``), of one or several partitions.

        Returns as soon as there are any; an empty list after ``timeout`` seconds. Raises `WakeupError`,
        `OffsetOutOfRangeError` (``auto_offset_reset="none"``), `UnknownTopicOrPartitionError` and
        `InconsistentTopicIdError` (the topic was deleted meanwhile; a subscription continues by itself with the first
        record of a recreated topic), `CorruptRecordError`, `ClientStateError` if nothing is subscribed to; a defect
        that ended a thread of the consumer's, which is then started again; what callbacks raise; and why a group does
        not have this consumer (any more): `FencedInstanceIdError` (another process took its ``group_instance_id``),
        and as `subscribe`. What goes wrong after records were found is raised by the next call. What a deserializer
        raises is raised each time its record's turn comes: `position` stays there, and `seek` goes on behind it.
        """
        limit = self._settings.max_poll_records if max_records is None else max_records
        self._begin_poll(limit)
        return self._delivery.poll_records(Deadline(timeout), limit)

    def poll_batches(self, timeout: float = 0.1) -> list[ConsumedBatch]:
        """The next records as columns: all that has arrived, up to about 8 MiB. Returns and raises as `poll`."""
        self._begin_poll()
        return self._delivery.poll_batches(Deadline(timeout), _POLL_BYTES)

    def __iter__(self) -> Iterator[Record]:
        """Records without end; ends when the consumer is closed. Raises as `poll`."""
        for batch in self._forever(max_rows=self._settings.max_poll_records):
            yield from self._delivery.iterate_records(batch)

    def batches(self) -> Iterator[ConsumedBatch]:
        """Batches without end, as `poll_batches` gives them; ends when the consumer is closed."""
        for batch in self._forever(max_rows=None):
            yield from self._delivery.iterate_batch(batch)

    def wakeup(self) -> None:
        """Makes a waiting `poll` (or the next) raise `WakeupError`. Any thread."""
        self._delivery.wake_up()

    # --- acknowledging ----------------------------------------------------------------------------------------

    def commit(self, what: Committable | None = None) -> None:
        """Acknowledges, for the group, everything before an offset, and blocks until that is in ZooKeeper.

        ``what``: a record or batch (everything up to and including it), next offsets by partition, or None: everything
        that was delivered. May be called in ``on_revoke``.

        Raises `InvalidGroupIdError` without a group, `StaleMemberEpochError` for a partition that is not this member's
        (any more; the others are committed), `UnknownMemberIdError` when everything is lost, `NonEmptyGroupError`
        without a membership (`assign`) in a group that has members.
        """
        self._check_open(in_callback=True)
        self._committer.commit(self._next_offsets(what))

    def commit_async(self, what: Committable | None = None) -> Future[None]:
        """As `commit`, in the background; the future has the outcome. Futures are finished in the order of the calls.

        Commits that wait go out as one, so a slow broker or ZooKeeper costs no more with many of them. Raises
        `ClientStateError` when 10,000 wait.
        """
        self._check_open()
        future = self._committer.commit_async(self._next_offsets(what))
        self._start_threads().wake()
        return future

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's next offset in a partition, or None. Raises `InvalidGroupIdError` without a group."""
        self._check_open()
        at = _tp(partition)
        return self._committer.committed([at]).get(at)

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group. Raises `InvalidGroupIdError` without a group."""
        group_id = self._committer.group_id
        member_id, epoch = self._heartbeats.identity()
        instance_id = self._settings.group_instance_id
        topic_ids = tuple((at, state.topic.topic_id) for at, state in self._assignment.states.items())
        if not member_id:
            return GroupMetadata(group_id, topic_ids=topic_ids)
        return GroupMetadata(group_id, member_id, epoch, instance_id, topic_ids)

    # --- positions --------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that will be delivered. Raises `ClientStateError` if it is not assigned."""
        return self._assignment.state(_tp(partition)).position

    def lag(self, partition: TopicPartition) -> int:
        """How many records the partition has after the position, as of the broker's last answer."""
        state = self._assignment.state(_tp(partition))
        if state.end_offset < 0:
            state.end_offset = self.end_offsets([state.at])[state.at]
        return max(0, state.end_offset - state.position)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continues with this offset. One that is out of range shows in the next `poll` (``auto_offset_reset``)."""
        at = _tp(partition)
        self._seek({at: offsets.check_offset(at, offset)})

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continues with the first record there is; without arguments in all assigned partitions."""
        self._seek(self.beginning_offsets(self._chosen(partitions)))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Skips everything that is there now; without arguments in all assigned partitions."""
        self._seek(self.end_offsets(self._chosen(partitions)))

    def seek_to_time(self, moment: datetime | int, *partitions: TopicPartition) -> None:
        """Continues with the first record at or after a time (aware datetime or ms), or after the last record."""
        chosen = self._chosen(partitions)
        found = self.offsets_for_times(dict.fromkeys(chosen, moment))
        missing = self.end_offsets([at for at in chosen if found[at] is None])
        self._seek({at: missing[at] if (o := found[at]) is None else o.offset for at in chosen})

    def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime | int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (aware datetime or ms); None: there is none."""
        self._check_open()
        wanted = {_tp(at): timestamp_ms_of(moment) for at, moment in times.items()}
        found = offsets.list_offsets(self._cluster, wanted, isolation_level=self._fetcher.isolation_level)
        return {at: answer if answer.offset >= 0 else None for at, answer in found.items()}

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each log begins."""
        return self._limits(partitions, EARLIEST)

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after each log's last record; for a reader of committed records, its last stable offset."""
        return self._limits(partitions, LATEST)

    def pause(self, *partitions: TopicPartition) -> None:
        """Delivers nothing of these until `resume`; without arguments does nothing."""
        for at in partitions:
            self._fetcher.set_paused(self._assignment.state(_tp(at)), is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Continues with these where they were."""
        for at in partitions:
            self._fetcher.set_paused(self._assignment.state(_tp(at)), is_paused=False)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {at for at, state in self._fetcher.states.items() if state.is_paused}

    # --- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commits what auto-commit covers, calls ``on_revoke``, leaves the group, ends all threads and connections.

        A member with a ``group_instance_id`` leaves for a while: its share waits for it for ``session_timeout_ms``.
        May be called again. Blocks a bounded time.

        With an exception under way, what was delivered last does not count as done. Raises the commit's error after
        everything is closed.
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

    def _after_fork_in_child(self) -> None:
        """See `forking`: the child continues from the same positions, independently of the parent.

        The parent stays the member of its group: in the child nothing is subscribed to until it subscribes as another
        member. The counts are the parent's.
        """
        self._background = None
        self._meters = NO_CONSUMER_METERS
        self._heartbeats.forget_parent()
        self._committer.forget_parent()
        self._assignment.forget_parent()
        self._fetcher.forget_parent()
        self._delivery.forget_parent()

    # --- private ----------------------------------------------------------------------------------------------

    def _close(self, *, is_done: bool, loop_counts: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._end_threads(is_done=is_done, loop_counts=loop_counts)
        finally:
            self._is_ended = True
            self._cluster.close()
            self._meters.closed()
            forking.unregister(self)

    def _end_threads(self, *, is_done: bool, loop_counts: bool) -> None:
        """Ends the threads, commits what is finished, and leaves the group. Blocks a bounded time."""
        if is_done:
            self._committer.finish_at_close(loop_counts=loop_counts)
        self._fetcher.stop()
        if self._background is not None:
            self._background.stop()
        try:
            if not self._assignment.drop_if_lost():
                self._committer.commit_finished()
        finally:
            self._committer.close()
            try:
                self._assignment.close()
            finally:
                self._heartbeats.stop()

    def _start_threads(self) -> Background:
        """Starts those that do not run: at first use, after a fork, and after a defect."""
        if self._background is None or not self._background.is_running:
            self._background = Background(
                committer=self._committer,
                assignment=self._assignment,
                fetcher=self._fetcher,
                on_defect=self._fetcher.thread_ended,
                auto_commit_s=self._settings.auto_commit_interval_ms / 1000,
            )
        self._fetcher.start_threads()
        self._heartbeats.start()
        return self._background

    def _request_metadata(self) -> None:
        if self._background is not None:
            self._background.request_metadata()

    def _forever(self, *, max_rows: int | None) -> Iterator[ConsumedBatch]:
        while not self._is_closed:
            self._begin_poll()
            batch = self._delivery.next_batch(Deadline(1.0), max_rows=max_rows)
            if batch is not None:
                yield batch

    def _begin_poll(self, max_records: int = 1) -> None:
        """The caller asks for more: it is done with what was delivered until now."""
        self._check_open()
        if not self._assignment.is_in_use:
            raise ClientStateError("nothing is subscribed to: call subscribe or assign first")
        self._meters.polled()
        self._start_threads()
        if max_records < 1:
            raise InvalidRequestError(f"max_records={max_records}: must be at least 1")
        self._committer.finish_all()

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        for at, offset in positions.items():
            self._fetcher.move(self._assignment.state(at), offset)

    def _check_open(self, *, in_callback: bool = False) -> None:
        if self._is_ended or (self._is_closed and not in_callback):
            raise ClosedError("the consumer was closed")

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        chosen = [_tp(at) for at in partitions] or list(self._fetcher.states)
        for at in chosen:
            self._assignment.state(at)
        return chosen

    def _limits(self, partitions: Sequence[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_open()
        wanted = dict.fromkeys(map(_tp, partitions), which)
        found = offsets.list_offsets(self._cluster, wanted, isolation_level=self._fetcher.isolation_level)
        return {at: answer.offset for at, answer in found.items()}

    def _next_offsets(self, what: Committable | None) -> dict[TopicPartition, int]:
        if what is None:
            return {at: state.position for at, state in self._fetcher.states.items()}
        if isinstance(what, Record):
            return {TopicPartition(what.topic, what.partition): what.offset + 1}
        if isinstance(what, ConsumedBatch):
            return {what.topic_partition: what.next_offset}
        if not isinstance(what, Mapping):
            raise InvalidRequestError(
                f"commit takes a record, a batch, or next offsets by partition, not {type(what).__name__}"
            )
        return {_tp(at): offsets.check_offset(_tp(at), offset) for at, offset in what.items()}


def _meters_of(registry: CollectorRegistry | None, client_id: str) -> ConsumerMeters:
    if registry is None:
        return NO_CONSUMER_METERS
    from pyspark_log.client.metrics.counts import ConsumerCounts  # only here is prometheus_client needed

    return ConsumerCounts(registry, client_id)


def _tp(at: TopicPartition | tuple[str, int]) -> TopicPartition:
    if not isinstance(at, tuple) or len(at) != 2 or not isinstance(at[0], str) or not isinstance(at[1], int):
        raise UnknownTopicOrPartitionError(f"{at!r} is no TopicPartition(topic, partition)")
    return TopicPartition(*at)
