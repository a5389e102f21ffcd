"""What programs receive: records, one object each or as batches, and the positions of what they sent.

Rule: plain values. A `Record` is for callers that want Python objects; a `ConsumedBatch`, whose columns are Arrow's, is
for speed. Timestamps are milliseconds since the epoch (UTC); ``timestamp`` of a record is the same as an aware
datetime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from broker_runtime.contract.arrays import number_array
from broker_runtime.contract.errors import InvalidTimestampError
from broker_runtime.contract.model import TimestampType, TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is. ``offset`` -1 with ``acks=0``. ``timestamp`` in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchMetadata(NamedTuple):
    """Where an acknowledged slice of a batch is: ``record_count`` records from ``base_offset`` on."""

    topic: str
    partition: int
    base_offset: int
    record_count: int
    timestamp: int


class Record(NamedTuple):
    """One record. ``key`` and ``value`` are bytes (or what the deserializers made of them), or None.

    Of topics with a schema: ``row`` is the mapping of columns, ``key`` the key column's value, ``value`` None.
    ``headers``: pairs of name and bytes, in order, names may repeat.

    ``row`` has the values of pyarrow's ``to_pylist``. What Python's types cannot hold is an int, a count of the
    column's units, and `send` takes it as such: dates and timestamps outside the years 1 to 9999 (days and
    microseconds since 1970), durations above 999,999,999 days (microseconds), times with a part of a microsecond
    (nanoseconds since midnight). Other values of the same column are not affected.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    row: Mapping[str, Any] | None = None

    @property
    def timestamp(self) -> datetime:
        """The record's time, in UTC. Raises `InvalidTimestampError` after the year 9999; use ``timestamp_ms`` then."""
        return datetime_of(self.timestamp_ms)


class ConsumedBatch:
    """Consecutive records of one partition, as columns; with ``where`` those of them that match.

    ``batch`` has the topic's columns (those asked for with ``columns``); Kafka's topics have ``key`` and ``value``.
    ``offsets`` (int64) and ``timestamps`` (timestamp[ms, UTC]) have one entry per row; ``headers`` likewise
    (list<struct<key, value>>), or is None if no record has any. Memory is shared with the frame that it came in.
    """

    __slots__ = (
        "_offsets", "_times", "base_offset", "batch", "headers", "next_offset", "partition", "timestamp_type", "topic",
    )  # fmt: skip

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        batch: pa.RecordBatch,
        base_offset: int,
        times: int | pa.Array,
        timestamp_type: TimestampType,
        headers: pa.Array | None,
        offsets: pa.Array | None = None,
        next_offset: int | None = None,
    ) -> None:
        """``times``: ms, one for all rows or int64 per row. ``offsets``: int64, rising, where they have gaps."""
        self.topic = topic
        self.partition = partition
        self.batch = batch
        self.base_offset = base_offset
        self.timestamp_type = timestamp_type
        self.headers = headers
        self._times = times
        self._offsets = offsets
        self.next_offset = base_offset + int(batch.num_rows) if next_offset is None else next_offset
        """Where to go on: after its last record and those that were passed over."""

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __repr__(self) -> str:
        return f"ConsumedBatch({self.topic}-{self.partition}, offsets [{self.base_offset}, {self.next_offset}))"

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def offsets(self) -> pa.Array:
        """Each row's offset, int64."""
        if self._offsets is not None:
            return self._offsets
        return number_array(np.arange(self.base_offset, self.base_offset + len(self), dtype=np.int64))

    @property
    def row_offsets(self) -> Sequence[int]:
        """The same as Python's integers."""
        if self._offsets is not None:
            offsets: list[int] = self._offsets.to_pylist()
            return offsets
        return range(self.base_offset, self.base_offset + len(self))

    @property
    def constant_timestamp_ms(self) -> int | None:
        """The timestamp of all rows; None: each has its own."""
        return self._times if isinstance(self._times, int) else None

    @property
    def timestamps(self) -> pa.Array:
        """Each row's time, timestamp[ms, tz=UTC]."""
        return self.timestamps_ms.view(pa.timestamp("ms", tz="UTC"))

    @property
    def timestamps_ms(self) -> pa.Array:
        """Each row's time in ms, int64."""
        if isinstance(self._times, int):
            return number_array(np.full(len(self), self._times, np.int64))
        return self._times

    def slice(self, start: int, length: int | None = None) -> ConsumedBatch:
        """Rows ``[start, start + length)``, without a copy."""
        rows = int(self.batch.num_rows)
        stop = rows if length is None else min(start + length, rows)
        times, headers, offsets = self._times, self.headers, self._offsets
        return ConsumedBatch(
            topic=self.topic,
            partition=self.partition,
            batch=self.batch.slice(start, stop - start),
            base_offset=self.base_offset + start if offsets is None else self._offset_of(start),
            times=times if isinstance(times, int) else times.slice(start, stop - start),
            timestamp_type=self.timestamp_type,
            headers=None if headers is None else headers.slice(start, stop - start),
            offsets=None if offsets is None else offsets.slice(start, stop - start),
            next_offset=self.next_offset if stop == rows else self._end_of(start, stop),
        )

    def rows_before(self, offset: int) -> int:
        """How many of its rows have a smaller offset."""
        if self._offsets is None:
            return min(max(offset - self.base_offset, 0), len(self))
        return int(np.searchsorted(self._offsets.to_numpy(), offset))

    def filter(self, matches: pa.Array) -> ConsumedBatch:
        """The rows for which ``matches`` is true; it goes on where this one does."""
        offsets = self.offsets.filter(matches)
        return ConsumedBatch(
            topic=self.topic,
            partition=self.partition,
            batch=self.batch.filter(matches),
            base_offset=offsets[0].as_py() if len(offsets) else self.base_offset,
            times=self._times if isinstance(self._times, int) else self._times.filter(matches),
            timestamp_type=self.timestamp_type,
            headers=None if self.headers is None else self.headers.filter(matches),
            offsets=offsets,
            next_offset=self.next_offset,
        )

    def _end_of(self, start: int, stop: int) -> int:
        """Where to go on behind the rows ``[start, stop)``, which are not the last ones."""
        return self._offset_of(start) if stop <= start else self._offset_of(stop - 1) + 1

    def _offset_of(self, row: int) -> int:
        if self._offsets is None:
            return self.base_offset + row
        return int(self._offsets[row].as_py()) if row < len(self) else self.next_offset


def datetime_of(timestamp_ms: int) -> datetime:
    """Milliseconds since the epoch as an aware datetime, exactly. Raises `InvalidTimestampError` if out of range."""
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        raise InvalidTimestampError(
            f"{timestamp_ms} ms since 1970 is outside the years 1 to 9999 of Python's datetime"
        ) from None


def timestamp_ms_of(moment: datetime | int) -> int:
    """An aware datetime, or ms since the epoch, as ms. Raises `InvalidTimestampError` for naive or negative times."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None or moment.utcoffset() is None:
            raise InvalidTimestampError(
                f"{moment!r} has no time zone. Give an aware datetime, for example datetime.now(timezone.utc), or ms"
            )
        milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(moment, (int, np.integer)) and not isinstance(moment, bool):
        milliseconds = int(moment)
    else:
        raise InvalidTimestampError(f"a time is an aware datetime or ms since the epoch, not {moment!r}")
    if not 0 <= milliseconds < 1 << 62:
        raise InvalidTimestampError(f"{moment!r} is before 1970 or out of range")
    return milliseconds


def headers_of(column: pa.Array | None, rows: int) -> list[tuple[tuple[str, bytes | None], ...]]:
    """The headers of each of ``rows`` records as tuples of pairs; none where there is no column or a null.

    Arrow allows nulls where headers have none, and other clients may have written them. They must not stop a reader: a
    name that is null becomes ``""``, and a pair that is null is left out.
    """
    if column is None:
        return [()] * rows
    return [tuple((h["key"] or "", h["value"]) for h in row if h) if row else () for row in column.to_pylist()]


class GroupMetadata(NamedTuple):
    """A consumer's identity in its group. One that is no member (``assign``) has no id, and epoch -1; one that has lost
    its place keeps its id, which the group refuses.

    ``member_epoch``: of the latest assignment from the group's coordinator. ``topic_ids``: of the partitions that it
    reads now: a topic that is recreated is another one.
    """

    group_id: str
    member_id: str = ""
    member_epoch: int = -1
    group_instance_id: str | None = None
    topic_ids: tuple[tuple[TopicPartition, bytes], ...] = ()
