"""What arrived for a consumer, handed out to its caller: partitions in turns, each in offset order.

Rule: positions move when records are handed out, here and in `Subscription`, and nowhere else, in the caller's thread.
What went wrong with a partition, and a thread of the consumer's that broke, is raised here; never instead of records
that were handed out already, which would be lost. A member of a group hands out nothing once its lease has ended:
that is looked at last, and what was taken out of the store for it is dropped with all the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

import pyarrow as pa

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    OffsetOutOfRangeError,
    PylogError,
    RetriableError,
    WakeupError,
)
from broker_runtime.contract.frame import iter_frames
from broker_runtime.contract.model import TimestampType, TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.consumer.committer import TOPIC_IS_GONE, Commits
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.partition_state import Arrived, PartitionState
from pyspark_log.client.consumer.start_positions import StartPositions
from pyspark_log.client.consumer.subscription import Subscription
from pyspark_log.client.records import ConsumedBatch, Record, headers_of

_LOOK_S = 1.0  # a waiting caller looks for news of topics this often

_logger = logging.getLogger(__name__)

Deserializer = Callable[[bytes], Any]


class Handout:
    """One consumer's. For its caller's thread, but for `wake_up`."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        start: StartPositions,
        fetcher: Fetcher,
        commits: Commits,
        subscription: Subscription,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._start = start
        self._fetcher = fetcher
        self._commits = commits
        self._subscription = subscription
        self._was_woken = False
        self._turn = 0
        self._late: Exception | None = None

    def take_records(self, deadline: Deadline, limit: int) -> list[Record]:
        """See `Consumer.poll`."""
        with self._subscription.polling():
            while True:
                records: list[Record] = []
                while len(records) < limit:
                    batch = self._next_if_any(limit - len(records)) if records else self._next(deadline, limit)
                    if batch is None:
                        break
                    records.extend(self.records(batch))
                if not records or self._subscription.is_valid():
                    return records

    def take_batches(self, deadline: Deadline, limit_bytes: int) -> list[ConsumedBatch]:
        """See `Consumer.poll_batches`: until there are ``limit_bytes``."""
        with self._subscription.polling():
            while True:
                batches: list[ConsumedBatch] = []
                size = 0
                while size < limit_bytes:
                    batch = self._next_if_any(None) if batches else self._next(deadline, None)
                    if batch is None:
                        break
                    batches.append(batch)
                    size += batch.batch.nbytes
                if not batches or self._subscription.is_valid():
                    return batches

    def next_batch(self, deadline: Deadline, max_rows: int | None = None) -> ConsumedBatch | None:
        """The next batch (of at most ``max_rows``), for a loop to hand out: see `one_by_one`, `handed_out`.

        None when time is over. Raises as `Consumer.poll`.
        """
        with self._subscription.polling():
            return self._next(deadline, max_rows)

    def _next(self, deadline: Deadline, max_rows: int | None, *, is_first: bool = True) -> ConsumedBatch | None:
        """``is_first``: the caller has nothing yet that it will return; only then are callbacks and errors in place."""
        fetcher = self._fetcher
        late, self._late = self._late, None
        if late is not None:
            raise late
        while True:
            if is_first:
                self._subscription.take_news()
            with fetcher.condition:
                fetcher.raise_failure()
                state = self._next_state()
                if state is None:
                    if self._was_woken or deadline.expired:
                        break
                    if not self._subscription.has_news:
                        fetcher.condition.wait(deadline.remaining_s(_LOOK_S))
                    continue
                if self._was_woken:
                    break
                arrived = None if state.batches else fetcher.take(state)
            if arrived is not None:
                self._decode(state, arrived)
            if state.batches:
                return self._hand_out(state, max_rows)
            if arrived is None and state.error is not None:
                if not is_first:
                    self._turn -= 1  # the next call begins with it
                    return None
                self._recover(state, state.error)
        if self._was_woken:
            self._was_woken = False
            raise WakeupError("wakeup() was called")
        return None

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

    def one_by_one(self, batch: ConsumedBatch) -> Iterator[Record]:
        """The batch's records for a loop: each is finished when the next is asked for.

        Ends before the batch does when the group has something to say; the rest comes again if it is still the
        member's.
        """
        goes_on = self._subscription.goes_on
        state = self._fetcher.states[batch.topic_partition]
        records = self.records(batch)
        generation = state.generation
        state.position = batch.base_offset
        self._commits.looped = state
        try:
            for record in records:
                if not goes_on():
                    self._commits.looped = None
                    return
                state.position = record.offset + 1
                yield record
                if state.generation != generation:  # the loop's body moved the position
                    return
                state.finished = record.offset + 1
        finally:
            rest = batch.slice(state.position - batch.base_offset) if state.generation == generation else None
            if rest is not None and len(rest):
                state.batches.appendleft(rest)
        self._commits.looped = None

    def handed_out(self, batch: ConsumedBatch) -> Iterator[ConsumedBatch]:
        """The batch for a loop: finished when the next is asked for."""
        state = self._fetcher.states[batch.topic_partition]
        if not self._subscription.is_valid():
            state.position = batch.base_offset
            state.batches.appendleft(batch)
            return
        self._commits.looped = state
        yield batch
        self._commits.looped = None

    def wake_up(self) -> None:
        """See `Consumer.wakeup`. Any thread."""
        with self._fetcher.condition:
            self._was_woken = True
            self._fetcher.condition.notify_all()

    def positions(self) -> dict[TopicPartition, int]:
        """Of all assigned partitions."""
        return {at: state.position for at, state in self._fetcher.states.items()}

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `Consumer.seek`."""
        for at, offset in positions.items():
            self._fetcher.move(self._subscription.state(at), offset)

    # --- private ----------------------------------------------------------------------------------------------

    def _next_if_any(self, max_rows: int | None) -> ConsumedBatch | None:
        """The next batch if it is there. What goes wrong waits: the caller has records to return first."""
        try:
            return self._next(Deadline(0.0), max_rows, is_first=False)
        except Exception as error:  # noqa: BLE001 - raised by the next call
            self._late = error
            return None

    def _next_state(self) -> PartitionState | None:
        """The next partition that has something, in turns. Under the lock."""
        states = list(self._fetcher.states.values())
        for i in range(len(states)):
            state = states[(self._turn + i) % len(states)]
            if state.has_something:
                self._turn = (self._turn + i) % len(states) + (0 if state.batches else 1)
                return state
        return None

    def _decode(self, state: PartitionState, arrived: Arrived) -> None:
        """What arrived becomes batches. Damage is never skipped: it stays the partition's error until a seek."""
        batches: list[ConsumedBatch] = []
        try:
            batches.extend(decode(self._cluster, state, arrived))
        except RetriableError:
            batches.clear()
            self._fetcher.give_back(state, arrived)
            raise
        except PylogError as error:
            self._fetcher.fail(state, error)
        else:
            if not batches:
                state.position = max(state.position, arrived.next_offset)
        state.batches.extend(batches)

    def _hand_out(self, state: PartitionState, max_rows: int | None) -> ConsumedBatch:
        batch = state.batches.popleft()
        if max_rows is not None and len(batch) > max_rows:
            state.batches.appendleft(batch.slice(max_rows))
            batch = batch.slice(0, max_rows)
        state.position = batch.next_offset
        return batch

    def _recover(self, state: PartitionState, error: PylogError) -> None:
        """Goes on after an answer that was no data, or raises it."""
        if isinstance(error, OffsetOutOfRangeError) and self._start.can_reset:
            position = self._start.reset([state.at])[state.at]
            _logger.warning("position out of range partition=%s old=%d new=%d", state.at, state.position, position)
            self._fetcher.move(state, position)
            return
        if isinstance(error, TOPIC_IS_GONE) and self._subscription.goes_on_without(state):
            return
        raise error


def decode(cluster: Cluster, state: PartitionState, arrived: Arrived) -> Iterator[ConsumedBatch]:
    """The batches in what arrived, from ``state.position`` on. Raises `CorruptRecordError`.

    A schema unknown yet is asked for; that raises as `Cluster.topic`, and `InconsistentTopicIdError`.
    """
    position = state.position
    for header, frame in iter_frames(arrived.buffer):
        if header.is_control or header.next_offset <= position:
            continue
        if not state.topic.schemas.knows(header.schema_id):
            newer = cluster.topic(state.at.topic, max_age=state.topic)
            if newer.topic_id != state.topic.topic_id:
                raise InconsistentTopicIdError(f"topic {state.at.topic!r} was deleted and made anew")
            state.topic = newer
        decoded = state.topic.decode(frame, header, state.at.partition, state.columns)
        constant = decoded.constant_timestamp_ms
        batch = ConsumedBatch(
            topic=state.at.topic,
            partition=state.at.partition,
            batch=decoded.batch,
            base_offset=header.base_offset,
            times=decoded.timestamps if constant is None else constant,
            timestamp_type=TimestampType(header.timestamp_type),
            headers=decoded.headers,
        )
        yield batch if header.base_offset >= position else batch.slice(position - header.base_offset)


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
        names = batch.batch.schema.names
        rows_of_values = zip(*map(_values, batch.batch.columns), strict=True) if names else repeat((), rows)
        mappings = [dict(zip(names, row, strict=True)) for row in rows_of_values]
        keys = _column(batch.batch, key, rows)
        values = [None] * rows
    else:
        keys = _converted(_column(batch.batch, "key", rows), key_from)
        values = _converted(_column(batch.batch, "value", rows), value_from)
    columns = zip(
        repeat(batch.topic, rows),
        repeat(batch.partition, rows),
        range(batch.base_offset, batch.next_offset),
        times,
        repeat(batch.timestamp_type, rows),
        keys,
        values,
        headers_of(batch.headers, rows),
        mappings,
        strict=True,
    )
    # As `Record(*each)` for each of them, at half its cost.
    return list(map(tuple.__new__, repeat(Record, rows), columns))


def _column(batch: pa.RecordBatch, name: str | None, rows: int) -> list[Any]:
    if name is None or name not in batch.schema.names:
        return [None] * rows
    return _values(batch.column(name))


def _values(column: pa.Array) -> list[Any]:
    """As Python has them; dates and timestamps outside its years as counts, which `Producer.send` takes as well."""
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        return [_value(scalar) for scalar in column]
    return values


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(each) for name, each in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_value(each) for each in scalar.values]
    try:
        return scalar.as_py()
    except OverflowError:
        return scalar.value


def _converted(column: list[Any], convert: Deserializer | None) -> list[Any]:
    return column if convert is None else [None if value is None else convert(value) for value in column]
