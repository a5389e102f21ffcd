"""`Producer`: records and batches to topics.

Rule: ``send`` gathers, nothing more: a list per partition grows until ``batch.size`` or ``linger.ms``, then one frame
goes out. Whoever fills a list encodes it, outside the lock; threads of the producer do the rest (`sender`). Keys go
where Kafka would put them (`partitioner`), records without a key round robin.

A record is in the log once, however often its frame has to be sent (``enable.idempotence``, which needs ``acks=all``
and is on unless ``acks`` says otherwise); without that, a frame whose acknowledgement got lost is there twice.
A topic that is deleted and made anew is gone on with, as Kafka's producer does: what no log has goes to the new topic;
where that has another schema or fewer partitions, it fails with `InconsistentTopicIdError`.
Thread-safe. After ``os.fork`` a child's producer is empty and works: what was not sent yet is the parent's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Unpack

from broker_runtime.contract import forking
from broker_runtime.contract.errors import (
    ClientTimeoutError,
    ClosedError,
    InvalidTimestampError,
    PylogError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from broker_runtime.contract.settings import ProducerKeywords, ProducerSettings, resolve
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.batches import batch_frames
from pyspark_log.client.producer.delivery import BatchFuture, Delivery, OnDelivery, RecordFuture, wait_for
from pyspark_log.client.producer.dispatch import Dispatch
from pyspark_log.client.producer.gathering import RECORD_OVERHEAD_BYTES, Headers, headers_bytes
from pyspark_log.client.producer.lanes import Lane
from pyspark_log.client.producer.partition_queue import Outgoing, PartitionQueue
from pyspark_log.client.producer.partitioner import key_bytes, utf8
from pyspark_log.client.records import timestamp_ms_of
from pyspark_log.client.unsupported import without_later_settings

_CLOSE_LIMIT_S = 30.0
_FUTURE_LIMIT_MS = 3_600_000
_new_future = tuple.__new__


class Producer:
    """Sends records and batches. One for a whole program is enough; any number may write to a topic at once.

    Settings by keyword (``linger_ms=5``) or by dotted name in ``config``: README lists them. Nothing is connected
    before the first record. As a context manager it is closed at the end.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        """Raises `InvalidConfigError` for unknown or wrong settings, `NotSupportedError` for later versions'."""
        own_config, keywords = without_later_settings(config, settings)
        self._settings: ProducerSettings = resolve(
            "producer", own_config, {"bootstrap_servers": bootstrap_servers, **keywords}
        )
        self._is_closed = False
        self._start()
        forking.register(self)

    def _start(self) -> None:
        self._cluster = Cluster.from_settings(self._settings)
        self._accumulator = Accumulator(
            buffer_bytes=self._settings.buffer_memory,
            linger_s=self._settings.linger_ms / 1000,
            max_block_s=self._settings.max_block_ms / 1000,
            delivery_timeout_s=self._settings.delivery_timeout_ms / 1000,
            is_idempotent=self._settings.enable_idempotence,
        )
        self._lock = self._accumulator.lock
        plain_lanes: dict[str, Lane] = {}
        self._plain_lanes = plain_lanes  # where `send` may take its shortest way
        self._dispatch = Dispatch(
            self._cluster, self._accumulator, self._settings, on_forget=lambda name: plain_lanes.pop(name, None)
        )

    # --- sending ----------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | Mapping[str, Any] | Any | None = None,
        key: bytes | str | int | Any | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: datetime | int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Takes one record and returns at once; the future has its `RecordMetadata` once it is acknowledged.

        ``value``: bytes (or what ``value_serializer`` takes; str is sent as UTF-8), None, or for a topic with a schema
        a mapping of its columns. ``key``: bytes, str (UTF-8) or int (8 bytes big-endian). ``partition``: this one,
        whatever the key. ``headers``: pairs of name and bytes. ``timestamp``: an aware datetime or ms; else now. The
        log's times are whole milliseconds, as Kafka's are: microseconds are cut off (rounded down).
        ``on_delivery(metadata, error)`` is called from a thread of the producer.

        Blocks for the topic's metadata and while ``buffer_memory`` is full, at most ``max_block_ms`` each:
        `BufferExhaustedError`. Raises `UnknownTopicOrPartitionError`, `SchemaMismatchError`, `InvalidPartitionsError`,
        `RecordTooLargeError`, `InvalidTimestampError`, `ClosedError`, `BrokerUnavailableError`. What happens later is
        in the future, and in `flush`.
        """
        # The shortest way: bytes without a key, round robin. Everything else goes the long one. Measured per record:
        # 1.0 µs of which the lock 0.3, the future 0.2 (acquire and release are cheaper than `with`).
        if key is None and type(value) is bytes and partition is None and timestamp is None and not headers:
            lane = self._plain_lanes.get(topic)
            if lane is not None and on_delivery is None:
                self._lock.acquire()
                try:
                    queue = next(lane.turns)
                    size = len(value) + RECORD_OVERHEAD_BYTES
                    queue.room = room = queue.room - size
                    if room >= 0:
                        values = queue.values
                        future: RecordFuture = _new_future(RecordFuture, (queue.delivery, len(values)))
                        values.append(value)
                        return future
                    queue.room = room + size
                finally:
                    self._lock.release()
                return self._append(lane, queue, value, None, None, None, size)
        return self._send(topic, value, key, partition, headers, timestamp, on_delivery)

    def send_batch(self, topic: str, data: Any, *, partition: int | None = None) -> BatchFuture:
        """Takes columns: anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (pyarrow, pandas ≥ 2.2, Polars,
        DuckDB). Rows become no Python objects.

        Topics with a schema: by column name, cast safely; without one: ``value`` (binary or string), and ``key``,
        ``headers``, ``timestamp`` if they are there. Rows with a key go to its partition, in their order; all others
        in contiguous slices, the partitions in turn. The future has a `BatchMetadata` for each frame, in the order of
        the data's parts. Blocks and raises as `send`; on an error nothing later of ``data`` is sent.
        """
        deliveries: list[Delivery] = []
        self._send_batch(topic, data, partition, deliveries)
        return BatchFuture(deliveries)

    def _send_batch(self, topic: str, data: Any, partition: int | None, deliveries: list[Delivery]) -> None:
        """Fills ``deliveries``, so that the caller knows what was taken also when an error ends it."""
        lane = self._lane(topic, partition)
        for queue, delivery, frame in batch_frames(
            lane,
            data,
            partition,
            self._settings.compression_type,
            self._lock,
            lane_anew=lambda: self._dispatch.lane_anew(topic),
        ):
            self._accumulator.add_frame(queue, delivery, frame)
            deliveries.append(delivery)

    def flush(self, timeout: float | None = None) -> None:
        """Sends all there is at once and blocks until it is acknowledged or has failed.

        Raises the first delivery error since the last flush, also one that its record's future or callback has told: no
        flush, nor `close`, tells it again. Raises `ClientTimeoutError` after ``timeout`` seconds, or `ClosedError` if a
        thread of the producer met a defect. Without a ``timeout`` it takes ``delivery_timeout_ms`` and a request's time
        at most.
        """
        wait_for(self._accumulator.hurry_all(), timeout)
        error = self._accumulator.take_first_error()
        if error is not None:
            raise error
        self._dispatch.raise_failure()

    def partitions_for(self, topic: str) -> list[int]:
        """The topic's partitions. Raises `UnknownTopicOrPartitionError`."""
        return list(range(len(self._lane(topic).queues)))

    def close(self, timeout: float | None = None) -> None:
        """Flushes (at most ``timeout`` seconds, else 30), then ends all threads and connections. May be called again.

        What is not acknowledged by then fails with `ClosedError`. Raises as `flush`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._plain_lanes.clear()
        deadline_error: ClientTimeoutError | None = None
        try:
            wait_for(self._accumulator.hurry_all(), _CLOSE_LIMIT_S if timeout is None else timeout)
        except ClientTimeoutError as error:
            deadline_error = error
        finally:
            self._accumulator.close()
            self._dispatch.stop()
            self._accumulator.abandon_all(ClosedError("the producer was closed before the record was acknowledged"))
            self._cluster.close()
            forking.unregister(self)
        failure = deadline_error or self._accumulator.take_first_error()
        if failure is not None:
            raise failure

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except PylogError as delivery_error:
            if error is None:
                raise
            error.add_note(f"the producer also failed to deliver: {delivery_error}")

    # --- forks (see `forking`) --------------------------------------------------------------------------------

    def _interrupt_for_fork(self) -> None:
        """See `forking`: streams do it."""

    def _drop_for_fork(self) -> None:
        """See `forking`."""

    def _after_fork_in_child(self) -> None:
        """See `forking`: begins empty."""
        if not self._is_closed:
            self._start()

    # --- private ----------------------------------------------------------------------------------------------

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers,
        timestamp: datetime | int | None,
        on_delivery: OnDelivery | None,
    ) -> RecordFuture:
        settings = self._settings
        lane = self._lane(topic, partition)
        if settings.value_serializer is not None and value is not None:
            value = settings.value_serializer(value)
        if settings.key_serializer is not None and key is not None:
            key = settings.key_serializer(key)
        if lane.rows is not None:
            if key is not None:
                raise SchemaMismatchError(
                    f"topic {topic!r} has a schema: "
                    + (f"its key is its column {lane.topic.key!r}" if lane.topic.key else "its records have no key")
                    + ", so key= is not taken"
                )
            rows = lane.rows
            try:
                row = rows.row(value)
            except SchemaMismatchError:
                lane = self._dispatch.lane_anew(topic)  # the column may have been added since
                rows = lane.rows or rows
                row = rows.row(value)
            value = row
            encoded_key = rows.key_bytes(row)
            size = rows.size(row)
        else:
            value = _value_bytes(topic, value)
            encoded_key = None if key is None else key_bytes(key)
            size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(encoded_key or b"")
        checked_headers = _checked_headers(headers) if headers else None
        if checked_headers:
            size += headers_bytes(checked_headers)
        timestamp_ms = None if timestamp is None else _checked_timestamp(timestamp)
        queue = lane.partition_of(encoded_key, partition)
        stored_key = None if lane.rows is not None else encoded_key
        future = self._append(lane, queue, value, stored_key, timestamp_ms, checked_headers, size)
        if on_delivery is not None:
            delivery, index = future
            delivery.when_done(lambda: _tell(on_delivery, delivery, index))
        return future

    def _append(
        self,
        lane: Lane,
        queue: PartitionQueue | None,
        value: Any,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        size: int,
    ) -> RecordFuture:
        """The long way: where a list must be opened, closed, or wait for memory; ``queue`` None: whose turn it is."""
        if size > lane.max_message_bytes:
            raise RecordTooLargeError(
                f"a record of about {size} bytes; topic {lane.topic.name!r} takes {lane.max_message_bytes} "
                "(max.message.bytes, and never above segment.bytes)"
            )
        is_turn = queue is None
        while True:
            full: Outgoing | None = None
            with self._lock:
                # Not let go of in between: whoever sends lists off must not find one that has no record yet.
                while full is None:
                    if queue is None:
                        queue = next(lane.turns)
                    if is_turn and queue.delivery is None:
                        queue = lane.turn_on_opening(queue)
                        is_turn = False
                    if queue.delivery is not None and queue.room >= size:
                        queue.room -= size
                        index = queue.add(value, key, timestamp_ms, headers)
                        return RecordFuture((queue.delivery, index))
                    full = self._accumulator.make_room(queue, size)
            self._encode(full)

    def _encode(self, full: Outgoing) -> None:
        assert full.gathered is not None
        try:
            frame = full.gathered.encode(self._settings.compression_type)
        except PylogError as error:
            self._accumulator.encoded(full, None, error)
        else:
            self._accumulator.encoded(full, frame)

    def _lane(self, topic: str, partition: int | None = None) -> Lane:
        lane = self._dispatch.lane_with(topic, partition)
        settings = self._settings
        if topic not in self._plain_lanes and lane.is_plain and settings.value_serializer is None:
            self._plain_lanes[topic] = lane
        return lane


def _value_bytes(topic: str, value: Any) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return utf8("value", value)
    hint = "create the topic with a schema" if isinstance(value, Mapping) else "give a value_serializer"
    raise SchemaMismatchError(f"topic {topic!r} takes bytes, not {type(value).__name__}; {hint}")


def _checked_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    checked: list[tuple[str, bytes | None]] = []
    for header in headers:
        if not isinstance(header, Sequence) or isinstance(header, (str, bytes)) or len(header) != 2:
            raise SchemaMismatchError(f"headers are pairs of name and bytes, not {header!r:.80}")
        name, value = header
        if not isinstance(name, str) or not (value is None or isinstance(value, (bytes, bytearray, memoryview))):
            raise SchemaMismatchError(f"headers are pairs of name and bytes, not {header!r:.80}")
        utf8("header", name)
        checked.append((name, None if value is None else bytes(value)))
    return checked


def _checked_timestamp(timestamp: datetime | int) -> int:
    milliseconds = timestamp_ms_of(timestamp)
    if milliseconds > time.time_ns() // 1_000_000 + _FUTURE_LIMIT_MS:
        raise InvalidTimestampError(f"{timestamp!r} is more than an hour ahead")
    return milliseconds


def _tell(on_delivery: OnDelivery, delivery: Delivery, index: int) -> None:
    if delivery.error is not None:
        on_delivery(None, delivery.error)
    else:
        on_delivery(delivery.record(index), None)
