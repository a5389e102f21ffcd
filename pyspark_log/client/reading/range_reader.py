"""Bounded ranges of partitions, frame by frame, read ahead in the background.

Rule: a stream that breaks or ends early is opened again where it stopped; frames come in order, each once. One thread
reads ahead at most ``prefetch_bytes``; the iterating caller decodes (checksums, validation). Neither waits for the
other without a limit: a caller that gets nothing gets an error, and one that takes nothing holds neither a thread nor a
connection until it takes the next frame. Leaving the iterator ends both.

A stream that came to its end leaves its connection to the cluster, for the next. With a predicate the broker may search
for long and find nothing, so while one range is read, the search of the next is under way; what it finds is kept up to
`_AHEAD_BYTES`, and then it pauses, without a thread or a connection. (Only the second search waits for the first one a
little, up to `_SHORT_SEARCH_S`: if that ends at once, two small partitions need one connection.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from broker_runtime.contract.errors import (
    CorruptRecordError,
    DataLossError,
    InconsistentTopicIdError,
    NetworkError,
    PylogError,
    RequestTimedOutError,
    RetriableError,
)
from broker_runtime.contract.frame import AbortedRange, DecodedFrame, FrameHeader, visible_frames
from broker_runtime.contract.predicate.frames import Step
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ReadRequest
from broker_runtime.contract.waiting import Backoff, Deadline, Worker
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading.frame_stream import FramesRead, FrameStream

PREFETCH_BYTES = 16 << 20
"""How much is read ahead of the caller."""
_MESSAGE_BYTES = 4 << 20
_AHEAD_BYTES = 1 << 20
_SHORT_SEARCH_S = 0.005  # in little more than this a new connection is made, and the next search may begin
_REUSED_PART = 0.25  # of request.timeout.ms: on two kept connections, and there is still time to ask the next leader
_JOIN_LIMIT_S = 10.0


def read_range(
    cluster: Cluster,
    topic: Topic,
    partition: int,
    start: int,
    end: int,
    *,
    columns: Sequence[int] | None = None,
    where: tuple[Step, ...] | None = None,
    prefetch_bytes: int = PREFETCH_BYTES,
) -> Iterator[DecodedFrame]:
    """The frames that cover offsets ``[start, end)``; the first may begin before ``start``, the last end after
    ``end`` (`rows` cuts them).

    ``columns``: ids (`RowAssembler.column_ids`); None: all. ``where``: frames in which no row can match may be missing
    (`RowAssembler.frame_test`). Blocks while the broker is away: without progress it raises
    the last `RetriableError` after ``request.timeout.ms``, and `RequestTimedOutError` after at most twice that if the
    broker does not answer at all. Raises `OffsetOutOfRangeError` if ``start`` is no longer there, `DataLossError` if
    the log ends before ``end``, `InconsistentTopicIdError` if the topic was recreated, and `CorruptRecordError`.
    """
    if start >= end:
        return
    reader = _RangeReader(cluster, topic, partition, start, end, columns, where, prefetch_bytes)
    try:
        yield from reader.frames()
    finally:
        reader.close()


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of a partition."""

    partition: int
    start: int
    end: int


def read_ranges(
    cluster: Cluster,
    topic: Topic,
    ranges: Iterable[OffsetRange],
    *,
    columns: Sequence[int] | None = None,
    where: tuple[Step, ...] | None = None,
) -> Iterator[tuple[OffsetRange, DecodedFrame]]:
    """The frames of one range after the other, each with its range. Arguments, blocking and errors: see `read_range`.

    Leaving the iterator ends its threads and streams.
    """
    waiting = deque(each for each in ranges if each.start < each.end)
    readers: deque[tuple[OffsetRange, _RangeReader]] = deque()
    most, has_waited = (1 if where is None else 2), False
    try:
        while waiting or readers:
            while waiting and len(readers) < most:
                if readers and not has_waited:
                    readers[0][1].wait_for_end(_SHORT_SEARCH_S)  # it leaves its connection to the second
                    has_waited = True
                one, is_ahead = waiting.popleft(), bool(readers)
                reader = _RangeReader(cluster, topic, *one, columns, where, PREFETCH_BYTES, is_ahead=is_ahead)
                readers.append((one, reader))
            one, reader = readers[0]
            for frame in reader.frames():
                yield one, frame
            reader.close()
            readers.popleft()
    finally:
        for _, reader in readers:
            reader.close()


class _NotTakenError(Exception):
    """The caller has taken nothing for a whole request timeout, or is not there yet: the stream is closed."""


class _RangeReader:
    """One reading thread and a bounded queue of what it read."""

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[int] | None,
        where: tuple[Step, ...] | None,
        prefetch_bytes: int,
        *,
        is_ahead: bool = False,
    ) -> None:
        """``is_ahead``: of a caller that comes to this range later, with `frames`."""
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._end = end
        self._columns = None if columns is None else tuple(columns)
        self._where = where
        self._prefetch_bytes = prefetch_bytes
        self._condition = threading.Condition()
        self._queue: deque[tuple[pa.Buffer, Sequence[AbortedRange]]] = deque()
        self._queued_bytes = 0
        self._is_done = False
        self._is_parked = False  # the thread has ended because the caller took nothing
        self._failure: PylogError | None = None
        self._is_closed = False
        self._is_ahead = is_ahead
        self._next_offset = start  # where the queue ends; changed by the reading thread
        self._stream: FrameStream | None = None
        self._address: Address | None = None  # of the broker that was asked last
        self._parks = False  # the reading thread is about to end because the caller took nothing
        self._is_stale = False  # the metadata, after an attempt without progress
        self._wants_new_link = False  # a stream failed: the next one is not on a connection that another had before
        self._backoff = Backoff()
        self._progress_due: Deadline | None = None
        self._worker = self._new_worker()
        self._worker.start()

    def frames(self) -> Iterator[DecodedFrame]:
        with self._condition:
            self._is_ahead = False
            if self._is_parked:
                self._read_again()
        while True:
            with self._condition:
                if self._is_parked and not self._queue:
                    self._read_again()
                if not self._wait_for_more():
                    self._give_up_on_stream()
                    if not self._wait_for_more():
                        raise self._timed_out(2 * self._cluster.request_timeout_s)
                if not self._queue:
                    if self._next_offset >= self._end:
                        return
                    if self._is_parked:
                        continue
                    if self._failure is not None:
                        raise self._failure
                    # A defect ended the thread, and is in the log.
                    raise NetworkError(
                        f"{self._topic.name}-{self._partition}: reading stopped at offset {self._next_offset}, "
                        f"before {self._end}"
                    )
                buffer, aborted = self._queue.popleft()
                self._queued_bytes -= buffer.size
                self._condition.notify_all()
            for header, frame in visible_frames(buffer, aborted):
                yield self._decode(frame, header)

    def wait_for_end(self, limit_s: float) -> None:
        """Waits until all is read, up to a limit; not if there is something for the caller to take."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_done or self._is_parked or self._queue, limit_s)

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._queue.clear()
        self._worker.stop()
        self._worker.join(_JOIN_LIMIT_S)

    def _decode(self, frame: pa.Buffer, header: FrameHeader) -> DecodedFrame:
        if not self._topic.schemas.knows(header.schema_id):
            newer = self._cluster.topic(self._topic.name, max_age=self._topic)
            if newer.topic_id != self._topic.topic_id:
                raise InconsistentTopicIdError(f"topic {self._topic.name!r} was deleted and recreated")
            self._topic = newer
        return self._topic.decode(frame, header, self._partition, self._columns)

    def _read_again(self) -> None:
        """After the thread has ended because nothing was taken. With the lock held."""
        self._is_parked = False
        self._worker = self._new_worker()
        self._worker.start()

    def _new_worker(self) -> Worker:
        return Worker(
            f"pylog-read-{self._topic.name}-{self._partition}",
            self._read_on,
            interrupt=self._interrupt,
            at_end=self._reading_ended,
        )

    def _wait_for_more(self) -> bool:
        """Waits for anything from the reading thread, up to a request timeout. With the lock held.

        That a search for matching frames goes on is something, too: the time begins anew.
        """
        before, deadline = self._next_offset, Deadline(self._cluster.request_timeout_s)
        while not (self._queue or self._is_done or self._is_parked or self._next_offset >= self._end):
            if deadline.expired:
                return False
            self._condition.wait(deadline.remaining_s())
            if self._next_offset > before:
                before, deadline = self._next_offset, Deadline(self._cluster.request_timeout_s)
        return True

    def _timed_out(self, limit_s: float) -> RequestTimedOutError:
        return RequestTimedOutError(
            f"{self._topic.name}-{self._partition}: the leader ({self._address or 'unknown'}) sent nothing "
            f"from offset {self._next_offset} on for {limit_s:g} s"
        )

    def _give_up_on_stream(self) -> None:
        """The broker sent nothing for a whole request timeout: ends the stream; the reading thread opens another."""
        if self._stream is not None:
            self._stream.cancel()

    # --- the reading thread -----------------------------------------------------------------------------------

    def _read_on(self) -> float | None:
        """Reads from one stream; returns the pause before the next."""
        try:
            if self._next_offset < self._end:
                return self._read_on_or_raise()
        except _NotTakenError:
            self._parks = True
        except PylogError as error:
            with self._condition:
                if self._is_ahead:  # when the caller comes it may be otherwise
                    self._parks = True
                else:
                    self._failure = error
        self._worker.stop()
        return None

    def _read_on_or_raise(self) -> float | None:
        if self._progress_due is None:
            self._progress_due = Deadline(self._cluster.request_timeout_s)
        if self._is_stale:
            self._refresh()
            self._is_stale = False
        before = self._next_offset
        failure: RetriableError | None = None
        try:
            self._read_stream()
        except RetriableError as error:
            failure = error
            self._wants_new_link = True
        if self._next_offset > before:
            self._backoff.reset()
            self._progress_due = None
            return None
        if self._progress_due.expired:
            raise failure or self._timed_out(self._cluster.request_timeout_s)
        self._is_stale = True
        return self._progress_due.remaining_s(self._backoff.next_s())

    def _interrupt(self) -> None:
        with self._condition:
            self._condition.notify_all()
            stream = self._stream
        if stream is not None:
            stream.cancel()

    def _reading_ended(self) -> None:
        with self._condition:
            self._is_parked = self._parks
            self._is_done = not self._parks
            self._parks = False
            self._progress_due = None
            self._condition.notify_all()

    def _refresh(self) -> None:
        newer = self._cluster.topic(self._topic.name, max_age=self._topic)
        if newer.topic_id != self._topic.topic_id:
            raise InconsistentTopicIdError(f"topic {self._topic.name!r} was deleted and recreated")
        self._topic = newer

    def _read_stream(self) -> None:
        address, leader_epoch = self._cluster.leader(self._topic, self._partition)
        self._address = address
        request = ReadRequest(
            client_id=self._cluster.client_id,
            topic=self._topic.name,
            partition=self._partition,
            topic_id=self._topic.topic_id,
            leader_epoch=leader_epoch,
            start=self._next_offset,
            end=self._end,
            columns=self._columns,
            where=self._where,
            batch_bytes=min(_MESSAGE_BYTES, self._prefetch_bytes),
        )
        limit_s = self._cluster.request_timeout_s * _REUSED_PART
        link = self._cluster.read_link(address, is_new=self._wants_new_link)
        stream = FrameStream(link, request, reused_limit_s=limit_s)
        try:
            with self._condition:
                self._stream = stream
            while self._next_offset < self._end and not self._is_closed:
                message = stream.read()
                if message is None:
                    return
                if not message.buffers and message.response.end < self._end:
                    raise self._data_loss(message.response.end)
                if message.response.next_offset >= self._end:
                    self._keep_link(stream)
                self._take(message)
                if self._next_offset >= message.response.end and message.response.end < self._end:
                    raise self._data_loss(message.response.end)
        finally:
            with self._condition:
                self._stream = None
            stream.close()

    def _keep_link(self, stream: FrameStream) -> None:
        link = stream.finish()
        if link is not None:
            self._cluster.keep_link(link)

    def _data_loss(self, end: int) -> PylogError:
        return DataLossError(
            f"{self._topic.name}-{self._partition} ends at {end}, offsets up to {self._end} were asked for"
        )

    def _take(self, message: FramesRead) -> None:
        """Queues a message's buffers when there is room: all of them, or none, and then the message is read again."""
        buffers, next_offset = message.buffers, message.response.next_offset
        if next_offset < self._next_offset:
            raise CorruptRecordError(f"a read went back from offset {self._next_offset} to {next_offset}")
        with self._condition:
            has_room = self._condition.wait_for(
                self._has_room, 0 if self._is_ahead else self._cluster.request_timeout_s
            )
            if self._is_closed:
                return
            if not has_room:
                raise _NotTakenError
            self._queue.extend((buffer, message.response.aborted) for buffer in buffers)
            self._queued_bytes += sum(buffer.size for buffer in buffers)
            self._next_offset = max(self._next_offset, next_offset)
            self._condition.notify_all()

    def _has_room(self) -> bool:
        most_bytes = _AHEAD_BYTES if self._is_ahead else self._prefetch_bytes
        return self._is_closed or not self._queue or self._queued_bytes < most_bytes
