"""`Producer`: records and batches to topics.

Rule: ``send`` only adds a record to the open batch of its partition. The batch is sealed at ``batch.size`` or after
``linger.ms``, and is sent as one frame. The thread that fills a batch encodes it, outside the lock; threads of the
producer do the rest (`sender`, `broker_sender`). Keys go where Kafka would put them (`partitioner`), records without a
key round robin.

A record is in the log once, however often its batch has to be sent (``enable.idempotence``, which needs ``acks=all``
and is on unless ``acks`` says otherwise). Without idempotence, a batch whose acknowledgement was lost is there twice.
If a topic is deleted and recreated, the producer continues with the new topic, as Kafka's does: records that are in no
log yet go there; if it has another schema or fewer partitions, they fail with `InconsistentTopicIdError`.
Thread-safe. After ``os.fork`` the child's producer works and is empty: records that were not sent yet are sent by the
parent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import repeat, starmap
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from broker_runtime.contract import forking
from broker_runtime.contract.errors import (
    ClientStateError,
    ClientTimeoutError,
    ClosedError,
    InvalidTimestampError,
    InvalidTxnStateError,
    PylogError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import ProducerKeywords, ProducerSettings, resolve
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.meters import NO_PRODUCER_METERS, ProducerMeters
from pyspark_log.client.producer.accumulator import Accumulator, TransactionalNumbering
from pyspark_log.client.producer.batch_builder import RECORD_OVERHEAD_BYTES, Headers, headers_bytes
from pyspark_log.client.producer.delivery import BatchFuture, Delivery, OnDelivery, RecordFuture, wait_for
from pyspark_log.client.producer.partition_queue import PartitionQueue, ProducerBatch
from pyspark_log.client.producer.partitioner import key_bytes, utf8
from pyspark_log.client.producer.record_batches import batch_frames
from pyspark_log.client.producer.sender import Sender
from pyspark_log.client.producer.topic_queues import TopicQueues
from pyspark_log.client.producer.transactions import TransactionManager, TransactionState
from pyspark_log.client.records import GroupMetadata, timestamp_ms_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_CLOSE_LIMIT_S = 30.0
_FUTURE_LIMIT_MS = 3_600_000


class Producer(forking.Forkable):
    """Sends records and batches. One for a whole program is enough; any number may write to a topic at once.

    Settings by keyword (``linger_ms=5``) or by dotted name in ``config``: the reference lists them. Nothing is
    connected before the first record. As a context manager it is closed at the end. With ``metrics``, a registry of
    ``prometheus_client``, it counts what it does there; several clients may share one.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        metrics: CollectorRegistry | None = None,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        """``metrics`` None: it counts nothing. Nor does the child's after ``os.fork``: the registry is the parent's.

        Raises `InvalidConfigError` for unknown or wrong settings.
        """
        self._settings: ProducerSettings = resolve(
            "producer", config, {"bootstrap_servers": bootstrap_servers, **settings}
        )
        self._meters = _meters_of(metrics, self._settings.client_id)
        self._is_closed = False
        self._start()
        forking.register(self)

    def _start(self) -> None:
        self._cluster = Cluster.from_settings(self._settings)
        self._transactions: TransactionManager | None = None
        numbering: TransactionalNumbering | None = None
        if self._settings.transactional_id is not None:
            numbering = TransactionalNumbering()
            self._transactions = TransactionManager(
                self._cluster,
                numbering,
                transactional_id=self._settings.transactional_id,
                timeout_ms=self._settings.transaction_timeout_ms,
            )
        self._accumulator = Accumulator(
            buffer_bytes=self._settings.buffer_memory,
            linger_s=self._settings.linger_ms / 1000,
            max_block_s=self._settings.max_block_ms / 1000,
            delivery_timeout_s=self._settings.delivery_timeout_ms / 1000,
            is_idempotent=self._settings.enable_idempotence,
            transactions=numbering,
            meters=self._meters,
        )
        self._meters.watch(self._accumulator.buffered_bytes)
        self._lock = self._accumulator.lock
        self._acquired = starmap(self._lock.acquire, repeat(()))  # each step acquires the lock
        plain_topics: dict[str, TopicQueues | None] = {}
        self._plain_topics = plain_topics  # whose records may take the fast path of `send`; None: they may not
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            self._settings,
            on_forget=lambda name: plain_topics.pop(name, None),
            meters=self._meters,
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
        also with a key. ``headers``: pairs of name and bytes. ``timestamp``: an aware datetime or ms; else now. The
        log's times are whole milliseconds, as Kafka's are: microseconds are cut off (rounded down).
        ``on_delivery(metadata, error)`` is called from a thread of the producer.

        Blocks for the topic's metadata and while ``buffer_memory`` is full, at most ``max_block_ms`` each:
        `BufferExhaustedError`. Raises `UnknownTopicOrPartitionError`, `SchemaMismatchError`, `InvalidPartitionsError`,
        `RecordTooLargeError`, `InvalidTimestampError`, `ClosedError`, `BrokerUnavailableError`. What happens later is
        in the future, and in `flush`.
        """
        # The fast paths: bytes without a key, round robin, and bytes with a key that was seen before. All other records
        # take `_send`. Measured per record: 0.4 µs, of which the lock 0.05 and the future 0.07. A signal's exception
        # (Ctrl-C) is raised when a call returns: one between ``acquire()`` and ``try`` would leave the lock held for
        # ever. A `for` loop that acquires has no such place, and is cheaper than `with`.
        if type(value) is bytes and partition is None and timestamp is None and not headers and on_delivery is None:
            queues = self._plain_topics.get(topic)
            if queues is not None:
                size = len(value) + RECORD_OVERHEAD_BYTES
                if key is None:
                    for _ in self._acquired:
                        try:
                            queue = next(queues.unkeyed)
                            if queue.room >= size:
                                queue.room -= size
                                values = queue.values
                                future = RecordFuture((queue.delivery, len(values)))
                                values.append(value)
                                return future
                        finally:
                            self._lock.release()
                        break
                    return self._append(queues, queue, value, None, None, None, size)
                if type(key) is bytes and (known := queues.queue_of_key.get(key)) is not None:
                    size += len(key)
                    for _ in self._acquired:
                        try:
                            if known.room >= size:
                                known.room -= size
                                return RecordFuture((known.delivery, known.add(value, key, None, None)))
                        finally:
                            self._lock.release()
                        break
                    return self._append(queues, known, value, key, None, None, size)
        return self._send(topic, value, key, partition, headers, timestamp, on_delivery)

    def send_batch(self, topic: str, data: Any, *, partition: int | None = None) -> BatchFuture:
        """Takes columns: anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (pyarrow, pandas ≥ 2.2, Polars,
        DuckDB). No row becomes a Python object.

        Topics with a schema: by column name, cast safely; without one: ``value`` (binary or string), and ``key``,
        ``headers``, ``timestamp`` if they are there. Rows with a key go to its partition, in their order; the
        others are spread over the partitions in contiguous slices. The future has a `BatchMetadata` for each frame, in
        the order of the data's parts. Blocks and raises as `send`; after an error nothing more of ``data`` is sent.
        """
        deliveries: list[Delivery] = []
        self._send_batch(topic, data, partition, deliveries)
        return BatchFuture(deliveries)

    def _send_batch(self, topic: str, data: Any, partition: int | None, deliveries: list[Delivery]) -> None:
        """Appends to ``deliveries`` as it proceeds, so the caller knows what was taken even if this raises."""
        queues = self._queues_of(topic, partition)
        for queue, delivery, frame in batch_frames(
            queues,
            data,
            partition,
            self._settings.compression_type,
            self._lock,
            refreshed=lambda: self._sender.refreshed_queues_of(topic),
        ):
            self._accumulator.add_frame(queue, delivery, frame)
            deliveries.append(delivery)

    def flush(self, timeout: float | None = None) -> None:
        """Sends all records at once and blocks until each is acknowledged or has failed, and its callbacks have
        returned.

        Raises the first delivery error since the last flush, even if a record's future or callback has reported it; no
        later `flush` or `close` raises it again. Raises `ClientTimeoutError` after ``timeout`` seconds, and
        `ClosedError` if a thread of the producer met a defect. Without a ``timeout`` it takes at most
        ``delivery_timeout_ms``, the time of a request, and what callbacks take.
        """
        self._accumulator.flush_all(timeout)
        error = self._accumulator.take_first_error()
        if error is not None:
            raise error
        self._sender.raise_failure()

    # --- transactions -----------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Takes the ``transactional_id`` over now, and not with the first transaction: from the producer that had it
        before, whose open transaction is aborted. Worth calling before anything is read that transactions depend on.

        Raises as `begin_transaction`.
        """
        self.transaction_manager().init()

    def begin_transaction(self) -> None:
        """Begins a transaction: what is sent from now on becomes visible when it is committed, all of it or nothing.

        The first one of a producer takes the ``transactional_id`` over from the producer that had it before, whose
        open transaction is aborted. Soon after another one it asks no broker: where another producer has taken over,
        sending or committing fails. Raises `ProducerFencedError` (fatal: another producer has taken over; close this
        one), `ClientStateError` if a transaction is open, or without a ``transactional_id`` (nothing has changed),
        `InvalidRequestError` for a ``transaction_timeout_ms`` above the broker's (fatal), `ClosedError`; what asking a
        broker raises, as `RetriableError` (retriable: call again).
        """
        self.transaction_manager().begin()

    def commit_transaction(self) -> None:
        """Sends what is left, waits until all is acknowledged, and commits: when it returns, the outcome is decided for
        good, and readers of committed records see it a moment later.

        Raises the first delivery error (abortable: call `abort_transaction`); `ProducerFencedError` (fatal: another
        producer has taken over, or the transaction was open for longer than ``transaction_timeout_ms``; after an answer
        that was lost it leaves open whether the transaction was committed before);
        `StaleMemberEpochError`, `UnknownMemberIdError` and `FencedInstanceIdError` for offsets of a consumer that has
        lost its partitions, `NonEmptyGroupError`, `UnknownTopicOrPartitionError` and `InconsistentTopicIdError` for
        other offsets (abortable); `ClientStateError` if none is open, or if it can only be aborted (nothing has
        changed), `ClosedError`. After what asking a broker raises (`RetriableError`, retriable) the outcome is unknown:
        calling again finds it out. A delivery error may be a `RetriableError`, too: then calling again raises
        `ClientStateError`, which says that the transaction can only be aborted.
        """
        manager = self.transaction_manager()
        manager.require("commit")
        self._plain_topics.clear()
        self._accumulator.flush_all(None)
        error = self._accumulator.take_first_error()
        if error is not None:
            manager.fail(error)
            raise error
        self._sender.raise_failure()
        manager.require("commit")
        manager.end(is_commit=True)

    def abort_transaction(self) -> None:
        """Drops what was not sent yet, and aborts: nobody who reads committed records gets any of it.

        Blocks until what was sent already is acknowledged or has failed, up to ``delivery_timeout_ms``: over a quota
        that may be long. Futures of records that were not acknowledged fail. Raises `InvalidTxnStateError` if the
        transaction turns out to have been committed, because the answer to `commit_transaction` was lost (it has ended,
        and the next one may begin); `ProducerFencedError` (fatal: it is aborted by who took over, or was),
        `ClientStateError` if none is open, `ClosedError`, `RetriableError` (retriable: only aborting is possible from
        then on).
        """
        manager = self.transaction_manager()
        manager.give_up()
        self._plain_topics.clear()
        unsent = self._accumulator.fail_open(ClientStateError("the transaction was aborted"))
        wait_for(unsent, None)
        self._accumulator.take_first_error()
        manager.end(is_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """``with producer.transaction():`` begins one, and commits it at the end, or aborts it if the body raises.

        Raises what the body raises, and as `begin_transaction` and `commit_transaction`; by then the transaction is
        aborted (after `ProducerFencedError`: by who took over; if no broker can be asked even for that, the next call
        says that `abort_transaction` is needed). If only the answer to its commit was lost, that is no error.
        """
        self.begin_transaction()
        try:
            yield
        except BaseException:
            self._abort_after_error()
            raise
        try:
            self.commit_transaction()
        except BaseException:
            if not self._abort_after_error():
                raise

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """The next offsets of a consumer's group that become committed with the transaction, in one step.

        ``group``: ``consumer.group_metadata()``, asked for after the records were polled. Offsets of one group only.
        Raises `ClientStateError`, `InvalidRequestError`, `UnknownTopicOrPartitionError`, `NotSupportedError` (the
        transaction goes on without them), what asking for metadata raises (retriable: call again),
        `ProducerFencedError` (fatal). What the group refuses is raised by `commit_transaction`.
        """
        self.transaction_manager().add_offsets({TopicPartition(*at): offset for at, offset in offsets.items()}, group)

    def transaction_manager(self) -> TransactionManager:
        """For this package. Raises `ClientStateError` without a ``transactional_id``, `ClosedError`."""
        if self._transactions is None:
            raise ClientStateError("the producer has no transactional_id")
        if self._is_closed:
            raise ClosedError("the producer was closed")
        return self._transactions

    def _abort_after_error(self) -> bool:
        """Aborts the transaction if that is possible; if not, its time limit or the next producer does. Returns whether
        it turns out that a commit, whose answer was lost, had been carried out."""
        assert self._transactions is not None
        is_in_doubt = self._transactions.state is TransactionState.IN_DOUBT
        try:
            self.abort_transaction()
        except InvalidTxnStateError:
            return is_in_doubt
        except PylogError:
            pass
        return False

    @property
    def cluster(self) -> Cluster:
        """For this package."""
        return self._cluster

    def partitions_for(self, topic: str) -> list[int]:
        """The topic's partitions. Raises `UnknownTopicOrPartitionError`."""
        return list(range(len(self._sender.queues_with(topic, None).partitions)))

    def close(self, timeout: float | None = None) -> None:
        """Flushes (at most ``timeout`` seconds, else 30), then ends all threads and connections. May be called again.
        A transaction that is open is aborted before.

        ``timeout`` is not the whole time: a connection to a broker that is silent, or holds this client back over a
        quota, ends after up to 12 s more, and an abort takes as long as `abort_transaction`.

        What is not acknowledged by then fails with `ClosedError`. Raises as `flush`.
        """
        if self._is_closed:
            return
        if self._transactions is not None and self._transactions.is_open:
            self._abort_after_error()
        self._is_closed = True
        deadline_error: ClientTimeoutError | None = None
        try:
            self._accumulator.flush_all(_CLOSE_LIMIT_S if timeout is None else timeout)
        except ClientTimeoutError as error:
            deadline_error = error
        finally:
            self.abandon()
        failure = deadline_error or self._accumulator.take_first_error()
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Ends all threads and connections at once: what is not acknowledged fails. Raises nothing. For this
        package."""
        self._is_closed = True
        self._plain_topics.clear()
        self._accumulator.close()
        self._sender.stop()
        self._accumulator.abandon_all(ClosedError("the producer was closed before the record was acknowledged"))
        self._cluster.close()
        self._meters.closed()
        forking.unregister(self)

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

    def _after_fork_in_child(self) -> None:
        """See `forking`: starts again, empty. The counts are the parent's."""
        self._meters = NO_PRODUCER_METERS
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
        queues = self._queues_of(topic, partition)
        if settings.value_serializer is not None and value is not None:
            value = settings.value_serializer(value)
        if settings.key_serializer is not None and key is not None:
            key = settings.key_serializer(key)
        if queues.rows is not None:
            if key is not None:
                raise SchemaMismatchError(
                    f"topic {topic!r} has a schema: "
                    + (f"its key is its column {queues.topic.key!r}" if queues.topic.key else "its records have no key")
                    + ", so key= is not taken"
                )
            rows = queues.rows
            try:
                row = rows.row(value)
            except SchemaMismatchError:
                queues = self._sender.refreshed_queues_of(topic)  # the column may have been added since
                rows = queues.rows or rows
                row = rows.row(value)
            value = row
            encoded_key = rows.key_bytes(row)
            size = rows.size(row)
        else:
            value = value if type(value) is bytes else _value_bytes(topic, value)
            encoded_key = key if key is None or type(key) is bytes else key_bytes(key)
            size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(encoded_key or b"")
        checked_headers = _checked_headers(headers) if headers else None
        if checked_headers:
            size += headers_bytes(checked_headers)
        timestamp_ms = None if timestamp is None else _checked_timestamp(timestamp)
        queue = queues.partition_of(encoded_key, partition)
        stored_key = None if queues.rows is not None else encoded_key
        future = self._append(queues, queue, value, stored_key, timestamp_ms, checked_headers, size)
        if on_delivery is not None:
            delivery, index = future
            delivery.when_done(lambda: _report(on_delivery, delivery, index))
        return future

    def _append(
        self,
        queues: TopicQueues,
        queue: PartitionQueue | None,
        value: Any,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        size: int,
    ) -> RecordFuture:
        """Adds a record where a batch may have to be opened or sealed, or to wait for memory.

        ``queue`` None: the record has no key, and goes to the next partition, or to the sticky one.
        """
        if size > queues.max_message_bytes:
            raise RecordTooLargeError(
                f"a record of about {size} bytes; topic {queues.topic.name!r} takes {queues.max_message_bytes} "
                "(max.message.bytes, and never above segment.bytes)"
            )
        is_unkeyed = queue is None
        while True:
            full: ProducerBatch | None = None
            for _ in self._acquired:
                try:
                    # The lock is held from the opening of a batch to its first record: no thread may seal an empty one.
                    while full is None:
                        if queue is None:
                            queue = next(queues.unkeyed)
                        if is_unkeyed and queue.delivery is None:
                            queue = queues.queue_of_new_batch(queue)
                            is_unkeyed = False
                        if queue.delivery is not None and queue.room >= size:
                            queue.room -= size
                            index = queue.add(value, key, timestamp_ms, headers)
                            return RecordFuture((queue.delivery, index))
                        full = self._accumulator.make_room(queue, size)
                finally:
                    self._lock.release()
                break
            assert full is not None
            self._encode(full)

    def _encode(self, full: ProducerBatch) -> None:
        assert full.builder is not None
        try:
            frame = full.builder.encode(self._settings.compression_type)
        except PylogError as error:
            self._accumulator.encoded(full, None, error)
        except BaseException:  # Ctrl-C, or no memory: else what comes behind it would wait for it
            self._accumulator.not_encoded(full)
            raise
        else:
            self._accumulator.encoded(full, frame)

    def _queues_of(self, topic: str, partition: int | None = None) -> TopicQueues:
        if self._transactions is not None and not self._is_closed:
            self._transactions.require("send")
        queues = self._sender.queues_with(topic, partition)
        if topic not in self._plain_topics:
            settings = self._settings
            is_plain = queues.is_plain and settings.value_serializer is None and settings.key_serializer is None
            self._plain_topics[topic] = queues if is_plain else None
            if queues.is_given_up:  # just now: before this, or it is taken out after this
                self._plain_topics.pop(topic, None)
        return queues


def _meters_of(registry: CollectorRegistry | None, client_id: str) -> ProducerMeters:
    if registry is None:
        return NO_PRODUCER_METERS
    from pyspark_log.client.metrics.counts import ProducerCounts  # only here is prometheus_client needed

    return ProducerCounts(registry, client_id)


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


def _report(on_delivery: OnDelivery, delivery: Delivery, index: int) -> None:
    if delivery.error is not None:
        on_delivery(None, delivery.error)
    else:
        on_delivery(delivery.record(index), None)
