"""A bounded range of one partition, frame by frame, read ahead in the background.

Rule: a stream that breaks or ends early is opened anew where it stopped; frames come in order, each once. One thread
reads ahead at most ``prefetch_bytes``; decoding (checksums, validation) is done by whoever iterates. Neither waits for
the other without a limit: a caller who gets nothing is told so, and one who takes nothing holds neither thread nor
connection, until he comes back. Leaving the iterator ends both.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

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
from broker_runtime.contract.frame import DecodedFrame, FrameHeader, iter_frames
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ReadRequest
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading.frame_stream import FrameStream

PREFETCH_BYTES = 16 << 20
"""How much is read ahead of the caller."""
_MESSAGE_BYTES = 4 << 20
_JOIN_LIMIT_S = 10.0


def read_range(
    cluster: Cluster,
    topic: Topic,
    partition: int,
    start: int,
    end: int,
    *,
    columns: Sequence[int] | None = None,
    prefetch_bytes: int = PREFETCH_BYTES,
) -> Iterator[DecodedFrame]:
    """The frames that cover offsets ``[start, end)``; the first may begin before, the last end behind (`rows` cuts).

    ``columns``: ids (`RowAssembler.column_ids`), None: all. Blocks while the broker is away, at most
    ``request.timeout.ms`` without getting on, then raises the last `RetriableError`; and at most twice that for a
    broker that leaves a request without any answer (`RequestTimedOutError`). Raises `OffsetOutOfRangeError`
    when ``start`` is not there any more, `DataLossError` when the log ends before ``end``, `CorruptRecordError`,
    `InconsistentTopicIdError` when the topic was made anew.
    """
    if start >= end:
        return
    reader = _RangeReader(cluster, topic, partition, start, end, columns, prefetch_bytes)
    try:
        yield from reader.frames()
    finally:
        reader.close()


class _NobodyTakesError(Exception):
    """The caller has taken nothing for a whole request timeout: the stream is let go."""


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
        prefetch_bytes: int,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._end = end
        self._columns = None if columns is None else tuple(columns)
        self._prefetch_bytes = prefetch_bytes
        self._condition = threading.Condition()
        self._queue: deque[pa.Buffer] = deque()
        self._queued_bytes = 0
        self._is_done = False
        self._is_parked = False  # the thread ended because the caller took nothing
        self._failure: PylogError | None = None
        self._is_closed = False
        self._next_offset = start  # the reading thread's; what the queue ends at
        self._stream: FrameStream | None = None
        self._address: Address | None = None  # of the broker that was asked last
        self._thread = self._start_thread()

    def frames(self) -> Iterator[DecodedFrame]:
        while True:
            with self._condition:
                if self._is_parked and not self._queue:
                    self._is_parked = False
                    self._thread = self._start_thread()
                if not self._wait_for_more():
                    self._give_up_on_stream()
                    if not self._wait_for_more():
                        raise self._timed_out(2 * self._cluster.request_timeout_s)
                if not self._queue:
                    if self._is_parked:
                        continue
                    if self._failure is not None:
                        raise self._failure
                    if self._next_offset < self._end:  # what ended the thread is on stderr
                        raise NetworkError(
                            f"{self._topic.name}-{self._partition}: reading broke off at offset {self._next_offset}, "
                            f"before {self._end}"
                        )
                    return
                buffer = self._queue.popleft()
                self._queued_bytes -= buffer.size
                self._condition.notify_all()
            for header, frame in iter_frames(buffer):
                if header.is_control:
                    continue
                yield self._decode(frame, header)

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._queue.clear()
            self._condition.notify_all()
            stream = self._stream
        if stream is not None:
            stream.cancel()
        self._thread.join(_JOIN_LIMIT_S)

    def _decode(self, frame: pa.Buffer, header: FrameHeader) -> DecodedFrame:
        if not self._topic.schemas.knows(header.schema_id):
            newer = self._cluster.topic(self._topic.name, max_age=self._topic)
            if newer.topic_id != self._topic.topic_id:
                raise InconsistentTopicIdError(f"topic {self._topic.name!r} was deleted and made anew")
            self._topic = newer
        return self._topic.decode(frame, header, self._partition, self._columns)

    def _start_thread(self) -> threading.Thread:
        name = f"pylog-read-{self._topic.name}-{self._partition}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()
        return thread

    def _wait_for_more(self) -> bool:
        """Waits, a request's time, for anything from the reading thread. With the lock held."""
        return self._condition.wait_for(
            lambda: bool(self._queue) or self._is_done or self._is_parked, self._cluster.request_timeout_s
        )

    def _timed_out(self, limit_s: float) -> RequestTimedOutError:
        return RequestTimedOutError(
            f"{self._topic.name}-{self._partition}: the leader, {self._address or 'which nobody knows'}, gave nothing "
            f"from offset {self._next_offset} on for {limit_s:g} s"
        )

    def _give_up_on_stream(self) -> None:
        """The broker said nothing for a whole request timeout: end the stream, the reading thread tries anew."""
        if self._stream is not None:
            self._stream.cancel()

    # --- the reading thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        is_parked = False
        try:
            self._read_all()
        except _NobodyTakesError:
            is_parked = True
        except PylogError as error:
            self._failure = error
        finally:
            with self._condition:
                self._is_parked = is_parked
                self._is_done = not is_parked
                self._condition.notify_all()

    def _read_all(self) -> None:
        backoff = Backoff()
        deadline = Deadline(self._cluster.request_timeout_s)
        while self._next_offset < self._end and not self._is_closed:
            before = self._next_offset
            failure: RetriableError | None = None
            try:
                self._read_stream()
            except RetriableError as error:
                failure = error
            if self._next_offset > before:
                backoff.reset()
                deadline = Deadline(self._cluster.request_timeout_s)
                continue
            if deadline.expired:
                raise failure or self._timed_out(self._cluster.request_timeout_s)
            with self._condition:
                self._condition.wait_for(lambda: self._is_closed, deadline.remaining_s(backoff.next_s()))
            self._refresh()

    def _refresh(self) -> None:
        newer = self._cluster.topic(self._topic.name, max_age=self._topic)
        if newer.topic_id != self._topic.topic_id:
            raise InconsistentTopicIdError(f"topic {self._topic.name!r} was deleted and made anew")
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
            batch_bytes=min(_MESSAGE_BYTES, self._prefetch_bytes),
        )
        stream = FrameStream(address, request, uses_proxy=self._cluster.uses_proxy)
        try:
            with self._condition:
                self._stream = stream
            while self._next_offset < self._end and not self._is_closed:
                message = stream.read()
                if message is None:
                    return
                if not message.buffers and message.response.end < self._end:
                    raise self._data_loss(message.response.end)
                self._take(message.buffers, message.response.next_offset)
                if self._next_offset >= message.response.end and message.response.end < self._end:
                    raise self._data_loss(message.response.end)
        finally:
            with self._condition:
                self._stream = None
            stream.close()

    def _data_loss(self, end: int) -> PylogError:
        return DataLossError(
            f"{self._topic.name}-{self._partition} ends at {end}, offsets up to {self._end} were asked for"
        )

    def _take(self, buffers: list[pa.Buffer], next_offset: int) -> None:
        """A message's buffers for the caller, when there is room: all of them or, if it is asked for anew, none."""
        if next_offset < self._next_offset:
            raise CorruptRecordError(f"a read went back from offset {self._next_offset} to {next_offset}")
        with self._condition:
            has_room = self._condition.wait_for(
                lambda: self._is_closed or not self._queue or self._queued_bytes < self._prefetch_bytes,
                self._cluster.request_timeout_s,
            )
            if self._is_closed:
                return
            if not has_room:
                raise _NobodyTakesError
            self._queue.extend(buffers)
            self._queued_bytes += sum(buffer.size for buffer in buffers)
            self._next_offset = max(self._next_offset, next_offset)
            self._condition.notify_all()
