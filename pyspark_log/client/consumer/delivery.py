"""What was fetched for a consumer, delivered to its caller: partitions one after another, each in offset order.

Rule: positions move when records are delivered, here and in `Assignment`, and nowhere else, in the caller's thread.
What went wrong with a partition, and a defect in a thread of the consumer's, is raised here, but never instead of
records that were taken already: they would be lost. A record that a deserializer refuses is not delivered: the
position stays there, and each poll that comes to it raises, until the caller seeks. A member of a group delivers
nothing once its lease has ended: the lease is checked last, and what was already taken is then dropped with everything
else.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import pyarrow as pa

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    NotAPylogBrokerError,
    OffsetOutOfRangeError,
    PylogError,
    RetriableError,
    UnknownServerError,
    WakeupError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import visible_frames
from broker_runtime.contract.model import TimestampType
from broker_runtime.contract.settings import ConsumerSettings
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.consumer.assignment import Assignment
from pyspark_log.client.consumer.committer import TOPIC_IS_GONE, Committer
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.heartbeats import Heartbeats
from pyspark_log.client.consumer.partition_state import CompletedFetch, PartitionState
from pyspark_log.client.meters import NO_CONSUMER_METERS, ConsumerMeters
from pyspark_log.client.python_values import python_values
from pyspark_log.client.records import ConsumedBatch, Record, headers_of

_CHECK_INTERVAL_S = 1.0  # a waiting caller looks this often whether its assignment has changed
_FEW_RECORDS = 500  # so many are gone before the garbage collector comes
_TOGETHER_S = 5.0  # for the positions of several partitions; then for one alone, as long as for any request

_is_resting = False  # see `_uncollected`

_logger = logging.getLogger(__name__)

Deserializer = Callable[[bytes], Any]


class Delivery:
    """One consumer's. For its caller's thread, except `wake_up`."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        fetcher: Fetcher,
        committer: Committer,
        heartbeats: Heartbeats,
        assignment: Assignment,
        meters: ConsumerMeters = NO_CONSUMER_METERS,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._fetcher = fetcher
        self._committer = committer
        self._heartbeats = heartbeats
        self._assignment = assignment
        self._meters = meters
        self._was_woken = False
        self._next_index = 0  # of the partition that is asked first, among those assigned
        self._deferred_error: Exception | None = None  # for the next call

    def poll_records(self, deadline: Deadline, limit: int) -> list[Record]:
        """See `Consumer.poll`."""
        with self._heartbeats.polling():
            while True:
                records: list[Record] = []
                with _Taking(self._fetcher) as taken:
                    while len(records) < limit:
                        batch = self._next_if_any(limit - len(records)) if records else self._next(deadline, limit)
                        if batch is None:
                            break
                        taken.append(batch)
                        try:
                            records += self._records_that_convert(batch)
                        except Exception:
                            taken.pop()
                            if not records:
                                raise
                            break  # the next call meets that record again
                if not records or self._heartbeats.is_valid():
                    return records

    def poll_batches(self, deadline: Deadline, limit_bytes: int) -> list[ConsumedBatch]:
        """See `Consumer.poll_batches`: until there are ``limit_bytes``."""
        with self._heartbeats.polling():
            while True:
                size = 0
                with _Taking(self._fetcher) as batches:
                    while size < limit_bytes:
                        batch = self._next_if_any(None) if batches else self._next(deadline, None)
                        if batch is None:
                            break
                        batches.append(batch)
                        size += batch.batch.nbytes
                if not batches or self._heartbeats.is_valid():
                    return batches

    def next_batch(self, deadline: Deadline, max_rows: int | None = None) -> ConsumedBatch | None:
        """The next batch (of at most ``max_rows``), for a loop: see `iterate_records` and `iterate_batch`.

        None when the time is over. Raises as `Consumer.poll`.
        """
        with self._heartbeats.polling():
            return self._next(deadline, max_rows)

    def records(self, batch: ConsumedBatch) -> list[Record]:
        """The batch as records."""
        topic = self._fetcher.states[batch.topic_partition].topic
        return records_of(
            batch,
            key=topic.key,
            is_typed=topic.is_typed,
            key_from=self._settings.key_deserializer,
            value_from=self._settings.value_deserializer,
        )

    def iterate_records(self, batch: ConsumedBatch) -> Iterator[Record]:
        """The batch's records for a loop: each is finished when the next is asked for.

        Ends before the batch does when the group has news for the caller; the rest is delivered again if the
        partition is still the member's.
        """
        goes_on = self._heartbeats.goes_on if self._committer.has_group else None
        state = self._fetcher.states[batch.topic_partition]
        with _Taking(self._fetcher) as taken:
            taken.append(batch)
            try:
                records = self._records_that_convert(batch)
            except Exception:
                taken.pop()
                raise
        batch = batch.slice(0, len(records))
        generation = state.generation
        state.position = batch.base_offset
        self._committer.looped = state
        try:
            for record in records:
                if goes_on is not None and not goes_on():
                    self._committer.looped = None
                    return
                state.position = next_offset = record[2] + 1  # its offset, faster than by name
                yield record
                if state.generation != generation:  # the loop's body moved the position
                    return
                state.finished = next_offset
        finally:
            rest = batch.slice(batch.rows_before(state.position)) if state.generation == generation else None
            if rest is not None and len(rest):
                state.batches.appendleft(rest)
            elif rest is not None and not state.batches:
                state.position = max(state.position, state.decoded_to)
        if state.generation == generation:
            state.finished = state.position
        self._committer.looped = None

    def iterate_batch(self, batch: ConsumedBatch) -> Iterator[ConsumedBatch]:
        """The batch for a loop: it is finished when the next is asked for."""
        state = self._fetcher.states[batch.topic_partition]
        if not self._heartbeats.is_valid():
            state.position = batch.base_offset
            state.batches.appendleft(batch)
            return
        self._committer.looped = state
        yield batch
        self._committer.looped = None

    def wake_up(self) -> None:
        """See `Consumer.wakeup`. Any thread."""
        with self._fetcher.condition:
            self._was_woken = True
            self._fetcher.condition.notify_all()

    def forget_parent(self) -> None:
        """In a child after ``os.fork``: nothing is counted."""
        self._meters = NO_CONSUMER_METERS

    # --- private ----------------------------------------------------------------------------------------------

    def _next(self, deadline: Deadline, max_rows: int | None, *, is_first: bool = True) -> ConsumedBatch | None:
        """``is_first``: nothing was taken for this call yet, so callbacks may run and errors may be raised."""
        fetcher = self._fetcher
        deferred, self._deferred_error = self._deferred_error, None
        if deferred is not None:
            raise deferred
        while True:
            if is_first:
                self._assignment.apply_changes()
            with fetcher.condition:
                fetcher.raise_defect()
                state = self._next_state()
                if state is None:
                    if self._was_woken or deadline.expired:
                        break
                    if not self._assignment.has_changes:
                        fetcher.condition.wait(deadline.remaining_s(_CHECK_INTERVAL_S))
                    continue
                if self._was_woken:
                    break
                fetched = None if state.batches else fetcher.take(state)
            if fetched is not None:
                self._decode(state, fetched)
            if state.batches:
                return self._deliver(state, max_rows)
            if fetched is None and state.error is not None:
                if not is_first:
                    self._next_index -= 1  # the next call begins with this partition
                    return None
                self._recover(state, state.error)
        if self._was_woken:
            self._was_woken = False
            raise WakeupError("wakeup() was called")
        return None

    def _next_if_any(self, max_rows: int | None) -> ConsumedBatch | None:
        """The next batch if there is one. An error is kept for the next call: this one has records to return."""
        try:
            return self._next(Deadline(0.0), max_rows, is_first=False)
        except Exception as error:  # noqa: BLE001 - raised by the next call
            self._deferred_error = error
            return None

    def _next_state(self) -> PartitionState | None:
        """The next partition that has something for the caller, round robin. Under the lock."""
        states = list(self._fetcher.states.values())
        for i in range(len(states)):
            state = states[(self._next_index + i) % len(states)]
            if state.has_output:
                self._next_index = (self._next_index + i) % len(states) + (0 if state.batches else 1)
                return state
        return None

    def _decode(self, state: PartitionState, fetched: CompletedFetch) -> None:
        """Decodes what was fetched. Damage is never skipped: it stays the partition's error until a seek."""
        batches: list[ConsumedBatch] = []
        state.decoded_to = -1
        try:
            batches.extend(decode(self._cluster, state, fetched))
        except RetriableError:
            self._fetcher.put_back(state, fetched)
            raise
        except PylogError as error:
            self._fetcher.fail(state, error)
        except BaseException:  # no memory, or Ctrl-C: nothing is wrong with the records
            self._fetcher.put_back(state, fetched)
            raise
        else:
            state.decoded_to = fetched.next_offset
            if not batches:
                state.position = max(state.position, fetched.next_offset)
        state.batches.extend(batches)
        self._meters.decoded(state.at.topic, batches, fetched.buffer.size)

    def _deliver(self, state: PartitionState, max_rows: int | None) -> ConsumedBatch:
        batch = state.batches.popleft()
        if max_rows is not None and len(batch) > max_rows:
            state.batches.appendleft(batch.slice(max_rows))
            batch = batch.slice(0, max_rows)
        state.position = batch.next_offset if state.batches else max(batch.next_offset, state.decoded_to)
        return batch

    def _records_that_convert(self, batch: ConsumedBatch) -> list[Record]:
        """The batch's records up to the first that a deserializer refuses, which is the next to be delivered.

        Raises what the deserializer raised if that is the first of all; the next call begins with another partition.
        A record that the caller did not get must not count as delivered, or it would be committed.
        """
        try:
            return self.records(batch)
        except Exception:  # noqa: BLE001 - the user's deserializer: which record it refuses is found out below
            good: list[Record] = []
        try:
            for row in range(len(batch)):
                good += self.records(batch.slice(row, 1))
        except Exception:
            state = self._fetcher.states[batch.topic_partition]
            rest = batch.slice(len(good))
            state.position = rest.base_offset
            state.batches.appendleft(rest)
            if not good:
                self._next_index += 1
                raise
        return good

    def _reset(self, state: PartitionState) -> None:
        """Moves the partition, whose next record does not exist, and with it all others of its leader of which that is
        so: after a long absence these can be many. If one of them cannot be answered for, it alone is moved."""
        with self._fetcher.condition:
            leader = _leader_of(state)
            lost = {
                each.at: each
                for each in self._fetcher.states.values()
                if each is state or (_is_lost(each) and _leader_of(each) == leader)
            }
        try:
            positions = self._assignment.reset_positions(list(lost), timeout_s=_TOGETHER_S if len(lost) > 1 else None)
        except PylogError:
            if len(lost) == 1:
                raise
            positions = self._assignment.reset_positions([state.at])
        for at, position in positions.items():
            event(
                _logger,
                "reset position",
                level=logging.WARNING,
                topic=at.topic,
                partition=at.partition,
                old=lost[at].position,
                new=position,
                error=lost[at].error,
            )
            self._fetcher.move(lost[at], position)

    def _recover(self, state: PartitionState, error: PylogError) -> None:
        """Continues after an error of a partition if that is possible; else raises it."""
        if isinstance(error, OffsetOutOfRangeError) and self._assignment.can_reset:
            self._reset(state)
            return
        if isinstance(error, TOPIC_IS_GONE) and self._assignment.continues_without(state):
            return
        if isinstance(error, UnknownServerError | NotAPylogBrokerError):
            self._fetcher.try_again(state)  # it is the broker's, not the partition's
        raise error


def _is_lost(state: PartitionState) -> bool:
    """Whether its next record does not exist, and everything before it was delivered."""
    has_records = bool(state.batches or state.completed_fetches)
    return isinstance(state.error, OffsetOutOfRangeError) and not has_records and not state.is_paused


def _leader_of(state: PartitionState) -> int | None:
    return state.topic.partition(state.at.partition).leader


class _Taking:
    """What is taken within is the caller's, unless that ends with an exception: then it is delivered again."""

    __slots__ = ("_fetcher", "_taken")

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._taken: list[ConsumedBatch] = []

    def __enter__(self) -> list[ConsumedBatch]:
        return self._taken

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            return
        for batch in reversed(self._taken):
            state = self._fetcher.states[batch.topic_partition]
            state.position = batch.base_offset
            state.batches.appendleft(batch)


def decode(cluster: Cluster, state: PartitionState, fetched: CompletedFetch) -> Iterator[ConsumedBatch]:
    """The batches in what was fetched, from ``state.position`` on, none of them empty. Raises `CorruptRecordError`.

    An unknown schema is asked for, which raises as `Cluster.topic`, and `InconsistentTopicIdError`.
    """
    position = state.position
    for header, frame in visible_frames(fetched.buffer, fetched.aborted):
        if header.next_offset <= position:
            continue
        if not state.topic.schemas.knows(header.schema_id):
            newer = cluster.topic(state.at.topic, max_age=state.topic)
            if newer.topic_id != state.topic.topic_id:
                raise InconsistentTopicIdError(f"topic {state.at.topic!r} was deleted and recreated")
            state.topic = newer
        decoded = state.topic.decode(frame, header, state.at.partition, state.columns)
        constant = decoded.constant_timestamp_ms
        batch = ConsumedBatch(
            topic=state.at.topic,
            partition=state.at.partition,
            batch=decoded.batch if state.names is None else decoded.batch.select(state.names),
            base_offset=header.base_offset,
            times=decoded.timestamps if constant is None else constant,
            timestamp_type=TimestampType(header.timestamp_type),
            headers=decoded.headers,
        )
        if header.base_offset < position:
            batch = batch.slice(position - header.base_offset)
        if state.where is not None:
            first = batch.base_offset - header.base_offset
            matches = state.where.matches(decoded, state.at.partition, first, len(batch))
            if matches.true_count == 0:
                continue
            batch = batch if matches.true_count == len(batch) else batch.filter(matches)
        yield batch


def records_of(
    batch: ConsumedBatch,
    *,
    key: str | None,
    is_typed: bool,
    key_from: Deserializer | None,
    value_from: Deserializer | None,
) -> list[Record]:
    """The batch's records. ``key``: a typed topic's key column."""
    rows = len(batch)
    constant = batch.constant_timestamp_ms
    times = repeat(constant, rows) if constant is not None else batch.timestamps_ms.to_pylist()
    mappings: Iterable[Any] = repeat(None, rows)
    if is_typed:
        columns_of_rows = dict(zip(batch.batch.schema.names, map(python_values, batch.batch.columns), strict=True))
        rows_of_values = zip(*columns_of_rows.values(), strict=True) if columns_of_rows else repeat((), rows)
        mappings = [dict(zip(columns_of_rows, row, strict=True)) for row in rows_of_values]
        keys = columns_of_rows.get(key) or [None] * rows
        values = [None] * rows
    else:
        keys = _converted(_column(batch.batch, "key", rows), key_from)
        values = _converted(_column(batch.batch, "value", rows), value_from)
    columns = zip(
        repeat(batch.topic, rows),
        repeat(batch.partition, rows),
        batch.row_offsets,
        times,
        repeat(batch.timestamp_type, rows),
        keys,
        values,
        headers_of(batch.headers, rows),
        mappings,
        strict=True,
    )
    with _uncollected(rows):
        # As `Record(*each)` for each of them, at half its cost.
        return list(map(tuple.__new__, repeat(Record, rows), columns))


@contextmanager
def _uncollected(rows: int) -> Iterator[None]:
    """Python's garbage collector rests while many records are made: it would look at all of them again and again, at
    four times the cost of making them, though none can be garbage. Not if somebody has switched it off."""
    global _is_resting
    if rows <= _FEW_RECORDS or not gc.isenabled():
        yield
        return
    try:
        _is_resting = True
        gc.disable()
        yield
    finally:
        gc.enable()
        _is_resting = False


def _collect_again() -> None:
    """In a child that was forked meanwhile by another thread: the one that would do it is not there."""
    if _is_resting:
        gc.enable()


os.register_at_fork(after_in_child=_collect_again)


def _column(batch: pa.RecordBatch, name: str | None, rows: int) -> list[Any]:
    index = -1 if name is None else batch.schema.get_field_index(name)
    return [None] * rows if index < 0 else python_values(batch.column(index))


def _converted(column: list[Any], convert: Deserializer | None) -> list[Any]:
    return column if convert is None else [None if value is None else convert(value) for value in column]
