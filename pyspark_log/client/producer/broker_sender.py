"""Frames to one broker: one thread writes them, another reads what became of them.

Rule: the writer takes from the accumulator and never holds its lock while it encodes or writes. Answers come in the
order of the requests. When a stream breaks, all that is unanswered goes back to the accumulator together, so order
is kept; what had been appended already, the broker recognises by its number, and without one it is there twice.
Streams are opened when there is something to send.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from broker_runtime.contract.errors import (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTimestampError,
    NetworkError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    PylogError,
    RecordTooLargeError,
    RetriableError,
    SchemaMismatchError,
    UnknownLeaderEpochError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ProduceHello, ProduceRequest, ProduceResponse
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.partition_queue import NO_LEADER, ProducerBatch
from pyspark_log.client.producer.produce_stream import ProduceStream

_JOIN_LIMIT_S = 12.0  # keepalive frees a thread that a stopped broker holds in 8 s
_SILENCE_S = 2 * HEARTBEAT_INTERVAL_S  # a broker that owes an answer says something each interval

_OUT_OF_SEQUENCE = (OutOfOrderSequenceError, UnknownProducerIdError)
_NEVER_APPENDED = (
    FencedLeaderEpochError, InvalidProducerEpochError, InvalidRequestError, InvalidTimestampError,
    NotEnoughReplicasError, RecordTooLargeError, SchemaMismatchError, UnknownLeaderEpochError,
)  # fmt: skip
_TOPIC_IS_GONE = (InconsistentTopicIdError, UnknownTopicOrPartitionError)
"""Or the broker has not heard of it: fresh metadata says whether its records fail, or go to another of that name."""
_OF_OLD_METADATA = (RetriableError, *_TOPIC_IS_GONE, RecordTooLargeError)


class BrokerSender:
    """The threads for one broker. Ends when the accumulator is closed and has nothing more for the broker."""

    def __init__(
        self,
        broker_id: int,
        accumulator: Accumulator,
        *,
        address_of: Callable[[int], Address],
        stale: Callable[[ProducerBatch], None],
        on_failure: Callable[[Exception], None],
        client_id: str,
        acks: int,
        request_timeout_ms: int,
        codec: str,
        uses_proxy: bool = False,
    ) -> None:
        """``stale`` is told of frames whose leader seems to be another one (asks for new metadata);
        ``on_failure`` of a defect that ended a thread."""
        self.broker_id = broker_id
        self._accumulator = accumulator
        self._address_of = address_of
        self._stale = stale
        self._on_failure = on_failure
        self._client_id = client_id
        self._acks = acks
        self._timeout_ms = request_timeout_ms
        self._codec = codec
        self._uses_proxy = uses_proxy
        self._lock = threading.Lock()
        self._stream: ProduceStream | None = None
        self._unanswered: deque[tuple[int, ProducerBatch]] = deque()
        self._readers: list[threading.Thread] = []
        self._next_request_id = 0
        self._backoff = Backoff()
        self._is_stopped = False
        self._thread = threading.Thread(
            target=self._run, args=(self._write_all,), name=f"pylog-produce-{broker_id}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the threads; what is still unsent is left. Blocks a bounded time."""
        self._is_stopped = True
        with self._accumulator.lock:
            self._accumulator.outbox(self.broker_id).wake.notify_all()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.end()
        self._thread.join(_JOIN_LIMIT_S)
        for reader in self._readers:
            reader.join(_JOIN_LIMIT_S)

    def check_silence(self) -> set[str]:
        """Breaks a stream whose broker owes answers and has said nothing for longer than any takes, sooner where
        another broker leads by now. Returns the topics whose leaders are to be asked for. Called now and then."""
        with self._lock:
            stream = self._stream
            owed = [batch.queue for _, batch in self._unanswered]
        if stream is None or not owed or stream.silent_for_s <= _SILENCE_S:
            return set()
        has_moved = any(queue.leader not in {self.broker_id, NO_LEADER} for queue in owed)
        if has_moved or stream.silent_for_s > self._timeout_ms / 1000:
            self._stream_failed(stream, NetworkError(f"{stream.address} was silent for {stream.silent_for_s:.0f} s"))
            return set()
        return {queue.topic for queue in owed}

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - the thread's edge: a defect must not leave the caller waiting
            self._on_failure(error)

    # --- the writing thread -----------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while not self._is_stopped:
            is_quiet = False
            with self._accumulator.lock:
                batch, wait_s = self._accumulator.take(self.broker_id, now_s=time.monotonic())
                if batch is None:
                    outbox = self._accumulator.outbox(self.broker_id)
                    if not self._is_stopped:
                        was_woken = outbox.wake.wait(min(wait_s, HEARTBEAT_INTERVAL_S))
                        is_quiet = wait_s >= HEARTBEAT_INTERVAL_S and not was_woken
            if batch is not None:
                self._send(batch)
            elif is_quiet:
                self._send_heartbeat()

    def _send(self, batch: ProducerBatch) -> None:
        if batch.builder is not None:
            try:
                batch.frame = batch.builder.encode(self._codec)
            except PylogError as error:
                self._accumulator.failed(batch, error)
                return
            batch.builder = None
        batch.write_number()
        stream = self._open_stream(batch)
        if stream is None:
            return
        queue = batch.queue
        assert batch.frame is not None
        with self._lock:
            request_id = self._next_request_id
            self._next_request_id += 1
            is_open = self._stream is stream
            if is_open and self._acks != 0:
                self._unanswered.append((request_id, batch))
        if not is_open:  # it broke just now, and what it owed went back already
            self._accumulator.retry([batch])
            return
        request = ProduceRequest(
            request_id=request_id,
            topic=queue.topic,
            partition=queue.partition,
            topic_id=queue.topic_id,
            leader_epoch=queue.leader_epoch,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
        )
        try:
            stream.write(request, batch.frame)
        except PylogError as error:
            if self._acks == 0:
                self._accumulator.retry([batch], error)
            self._stream_failed(stream, error)
            return
        if self._acks == 0:
            self._accumulator.acknowledged(batch, base_offset=-1, append_time_ms=-1)

    def _open_stream(self, batch: ProducerBatch) -> ProduceStream | None:
        """The stream, opened if there is none; on failure ``batch`` goes back, after a pause."""
        with self._lock:
            if self._stream is not None:
                return self._stream
        try:
            stream = ProduceStream(
                self._address_of(self.broker_id),
                ProduceHello(client_id=self._client_id),
                uses_proxy=self._uses_proxy,
            )
        except PylogError as error:
            self._accumulator.retry([batch], error)
            self._stale(batch)
            with self._accumulator.lock:
                self._accumulator.outbox(self.broker_id).wake.wait(self._backoff.next_s())
            return None
        with self._lock:
            self._stream = stream
        reader = threading.Thread(
            target=self._run, args=(self._read_all, stream), name=f"pylog-acks-{self.broker_id}", daemon=True
        )
        self._readers = [thread for thread in self._readers if thread.is_alive()]
        self._readers.append(reader)
        reader.start()
        return stream

    def _send_heartbeat(self) -> None:
        with self._lock:
            stream = self._stream
        if stream is not None:
            try:
                stream.write_heartbeat()
            except PylogError as error:
                self._stream_failed(stream, error)

    # --- the reading thread -----------------------------------------------------------------------------------

    def _read_all(self, stream: ProduceStream) -> None:
        failure: PylogError | None = None
        try:
            while (response := stream.read()) is not None:
                self._backoff.reset()
                self._settle(response)
        except PylogError as error:
            failure = error
        self._stream_failed(stream, failure or NetworkError(f"{stream.address} ended the produce stream"))
        stream.close()

    def _settle(self, response: ProduceResponse) -> None:
        with self._lock:
            if not self._unanswered or self._unanswered[0][0] != response.request_id:
                return  # of a stream that was given up
            batch = self._unanswered.popleft()[1]
        if settle(self._accumulator, batch, response):
            self._stale(batch)

    def _stream_failed(self, stream: ProduceStream, error: PylogError) -> None:
        """The stream is over: what it owes goes back to the accumulator. Once per stream."""
        with self._lock:
            if self._stream is not stream:
                return
            self._stream = None
            unanswered = [batch for _, batch in self._unanswered]
            self._unanswered.clear()
        if not isinstance(error, RetriableError):
            for batch in unanswered:
                self._accumulator.failed(batch, error, is_doubtful=True)
            return
        self._accumulator.retry(unanswered, error, is_doubtful=True)
        for batch in unanswered:
            self._stale(batch)


def settle(accumulator: Accumulator, batch: ProducerBatch, response: ProduceResponse) -> bool:
    """Tells ``accumulator`` what became of a frame in flight. Returns whether the topic's metadata seems to be old.

    What a broker's answer means for a frame, and for those behind it.

    Rule: an answer is certain where the broker gives it before it appends, and never after; every other error leaves
    open whether the frame is in the log.
    """
    if response.error is None:
        accumulator.acknowledged(batch, base_offset=response.base_offset, append_time_ms=response.append_time_ms)
        return False
    error = error_of(response.error)
    is_doubtful = not isinstance(error, _NEVER_APPENDED)
    if isinstance(error, _OUT_OF_SEQUENCE) and batch.number is not None:
        accumulator.out_of_order(batch, error)
    elif isinstance(error, (RetriableError, *_TOPIC_IS_GONE)):
        accumulator.retry([batch], error, is_doubtful=is_doubtful)
    else:
        accumulator.failed(batch, error, is_doubtful=is_doubtful)
    return isinstance(error, _OF_OLD_METADATA)
