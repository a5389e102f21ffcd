"""The batches for one broker: one thread writes them, another reads the answers.

Rule: the writer takes batches from the accumulator, and does not hold its lock while it encodes or writes. Answers come
in the order of the requests. When a stream breaks, all unanswered batches go back to the accumulator together, so their
order is kept. If one of them was appended already, the broker recognises it by its sequence number; without
idempotence it is in the log twice. A stream is opened when there is a batch to send.
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
    InvalidTxnStateError,
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
from broker_runtime.contract.security import UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ProduceHello, ProduceRequest, ProduceResponse
from broker_runtime.contract.waiting import Backoff, Worker
from pyspark_log.client.meters import NO_PRODUCER_METERS, ProducerMeters
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.partition_queue import NO_LEADER, ProducerBatch
from pyspark_log.client.producer.produce_stream import ProduceStream
from pyspark_log.client.throttling import StreamThrottle

_JOIN_LIMIT_S = 12.0  # a thread that is blocked on a stopped broker is freed by keepalive within 8 s
_SILENCE_S = 2 * HEARTBEAT_INTERVAL_S  # a broker that owes an answer sends something each interval

_OUT_OF_SEQUENCE = (InvalidTxnStateError, OutOfOrderSequenceError, UnknownProducerIdError)
"""Or the first frame of a transaction, which begins it, is missing."""
_NEVER_APPENDED = (
    FencedLeaderEpochError, InvalidProducerEpochError, InvalidRequestError, InvalidTimestampError,
    NotEnoughReplicasError, RecordTooLargeError, SchemaMismatchError, UnknownLeaderEpochError,
)  # fmt: skip
_TOPIC_IS_GONE = (InconsistentTopicIdError, UnknownTopicOrPartitionError)
"""Or the broker does not know it yet: new metadata decides whether its records fail or go to a recreated topic."""
_OF_OLD_METADATA = (RetriableError, *_TOPIC_IS_GONE, RecordTooLargeError)


class BrokerSender:
    """The threads for one broker."""

    def __init__(
        self,
        broker_id: int,
        accumulator: Accumulator,
        *,
        address_of: Callable[[int], Address],
        stale: Callable[[ProducerBatch], None],
        on_defect: Callable[[BaseException], object],
        client_id: str,
        acks: int,
        request_timeout_ms: int,
        codec: str,
        access: Access = UNPROTECTED,
        meters: ProducerMeters = NO_PRODUCER_METERS,
    ) -> None:
        """``stale`` is called with a batch whose partition seems to have another leader: new metadata is needed.
        ``on_defect`` is called with a defect that ended a thread."""
        self.broker_id = broker_id
        self._accumulator = accumulator
        self._address_of = address_of
        self._stale = stale
        self._on_defect = on_defect
        self._client_id = client_id
        self._acks = acks
        self._timeout_ms = request_timeout_ms
        self._codec = codec
        self._access = access
        self._meters = meters
        self._lock = threading.Lock()
        self._stream: ProduceStream | None = None
        self._unanswered: deque[tuple[int, ProducerBatch]] = deque()
        self._readers: list[Worker] = []
        self._next_request_id = 0
        self._backoff = Backoff()
        self._writer = Worker(
            f"pylog-produce-{broker_id}", self._send_next, on_defect=on_defect, interrupt=self._wake_writer
        )

    def may_start(self) -> bool:
        """Starts the writing thread; False: the system has none to give, and this object is dropped."""
        return self._writer.may_start()

    def stop(self) -> None:
        """Ends the threads; unsent batches stay unsent. Blocks for a bounded time."""
        self._writer.stop()
        self._end_stream()
        self._writer.join(_JOIN_LIMIT_S)
        self._end_stream()  # one that the writer was just opening
        for reader in self._readers:
            reader.join(_JOIN_LIMIT_S)

    def check_silence(self) -> set[str]:
        """Ends a stream whose broker owes answers and has been silent for longer than a request may take, or earlier if
        another broker leads by now. Returns the topics whose metadata is to be fetched. Called periodically."""
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

    def _end_stream(self) -> None:
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.end()

    # --- the writing thread -----------------------------------------------------------------------------------

    def _wake_writer(self) -> None:
        with self._accumulator.lock:
            self._accumulator.outbox(self.broker_id).wake.notify_all()

    def _send_next(self) -> float | None:
        """Sends the next batch, waiting for one up to an interval; returns the pause after a failure to connect."""
        is_quiet = False
        with self._accumulator.lock:
            batch, wait_s = self._accumulator.take(self.broker_id, now_s=time.monotonic())
            if batch is None and not self._writer.is_stopping:
                was_woken = self._accumulator.outbox(self.broker_id).wake.wait(min(wait_s, HEARTBEAT_INTERVAL_S))
                is_quiet = wait_s >= HEARTBEAT_INTERVAL_S and not was_woken
        if batch is not None:
            return self._send(batch)
        if is_quiet:
            self._send_heartbeat()
        return None

    def _send(self, batch: ProducerBatch) -> float | None:
        if batch.builder is not None:
            try:
                batch.frame = batch.builder.encode(self._codec)
            except PylogError as error:
                self._accumulator.failed(batch, error)
                return None
            batch.builder = None
        batch.write_number()
        with self._lock:
            stream = self._stream
        try:
            if stream is None:
                stream = self._open_stream()
                if not self._accumulator.is_first_in_flight(batch):
                    self._accumulator.retry([batch])  # behind those that come back from the stream before
                    return None
        except PylogError as error:
            self._accumulator.retry([batch], error)
            self._stale(batch)
            return self._backoff.next_s()
        self._write(stream, batch)
        return None

    def _write(self, stream: ProduceStream, batch: ProducerBatch) -> None:
        queue = batch.queue
        assert batch.frame is not None
        with self._lock:
            request_id = self._next_request_id
            self._next_request_id += 1
            is_open = self._stream is stream
            if is_open and self._acks != 0:
                self._unanswered.append((request_id, batch))
        if not is_open:  # it failed just now, and its unanswered batches went back already
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
            transaction=batch.transaction,
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

    def _open_stream(self) -> ProduceStream:
        """A new stream: there is none. Raises `PylogError`."""
        stream = ProduceStream(
            self._address_of(self.broker_id),
            ProduceHello(client_id=self._client_id),
            access=self._access,
        )
        with self._lock:
            self._stream = stream
        if not self._may_start_reader(stream):
            with self._lock:
                self._stream = None
            stream.close()
            raise NetworkError(f"{stream.address}: no thread can be started to read its answers")
        return stream

    def _may_start_reader(self, stream: ProduceStream) -> bool:
        throttle = StreamThrottle("produce", self.broker_id, self._client_id, self._meters.throttled)

        def step() -> None:
            if not self._read(stream, throttle):
                reader.stop()

        reader = Worker(f"pylog-acks-{self.broker_id}", step, on_defect=self._on_defect)
        self._readers = [each for each in self._readers if each.is_running]
        if not reader.may_start():
            return False
        self._readers.append(reader)
        return True

    def _send_heartbeat(self) -> None:
        with self._lock:
            stream = self._stream
        if stream is not None:
            try:
                stream.write_heartbeat()
            except PylogError as error:
                self._stream_failed(stream, error)

    # --- the reading thread -----------------------------------------------------------------------------------

    def _read(self, stream: ProduceStream, throttle: StreamThrottle) -> bool:
        """Reads an answer and settles its batch; False: the stream has ended."""
        failure: PylogError | None = None
        try:
            response = stream.read()
            if response is not None:
                self._backoff.reset()
                throttle.note(response.throttle_ms)
                self._settle(response)
                return True
        except PylogError as error:
            failure = error
        self._stream_failed(stream, failure or NetworkError(f"{stream.address} ended the produce stream"))
        stream.close()
        return False

    def _settle(self, response: ProduceResponse) -> None:
        with self._lock:
            if not self._unanswered or self._unanswered[0][0] != response.request_id:
                return  # of a stream that failed before
            batch = self._unanswered.popleft()[1]
        if settle(self._accumulator, batch, response):
            self._stale(batch)

    def _stream_failed(self, stream: ProduceStream, error: PylogError) -> None:
        """The stream has ended: its unanswered batches go back to the accumulator. Once per stream."""
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
    """Settles a batch in flight by the broker's answer. Returns whether the topic's metadata seems to be out of date.

    Rule: only an error that brokers raise before they append, and never after, proves that the batch is not in the log;
    every other error leaves that open.
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
