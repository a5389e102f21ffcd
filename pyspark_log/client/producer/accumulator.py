"""The batches of a producer that are not acknowledged yet: by partition, in order, within ``buffer.memory``.

    open      records are added to it; at most one per partition, in its `PartitionQueue`
    sealed    no more records; it waits to be sent (`PartitionQueue.sealed`), encoded or still to be
    in flight taken by the thread of the partition's leader (`take`), and not answered yet
    to retry  it came back; it is sealed again once nothing of its partition is in flight

Rule: the batches of a partition are sent in the order in which they were sealed, with at most `MAX_IN_FLIGHT`
unanswered. After a failure, or when the leader has changed, none is sent until all unanswered ones have come back;
then they are sent again, in their old order. An `Outbox` per broker holds the partitions that it leads. A batch of an
idempotent producer has its sequence number when it is taken (`Numbering`).

One lock guards it all. A thread that holds it never touches the network, encodes, or runs a user's callback.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable

import pyarrow as pa

from broker_runtime.contract.errors import (
    BufferExhaustedError,
    ClientTimeoutError,
    ClosedError,
    DeliveryTimeoutError,
    InconsistentTopicIdError,
    PylogError,
)
from broker_runtime.contract.transactions import TransactionIdentity
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.meters import NO_PRODUCER_METERS, ProducerMeters
from pyspark_log.client.producer.batch_builder import BatchBuilder
from pyspark_log.client.producer.delivery import Delivery, wait_for
from pyspark_log.client.producer.partition_queue import NO_LEADER, Outbox, PartitionQueue, ProducerBatch
from pyspark_log.client.producer.sequence import Sequence

MAX_IN_FLIGHT = 5
"""How many batches of one partition may be unanswered."""
_FIRST_GRANT_BYTES = 16 << 10


class Accumulator:
    """See the module. Thread-safe; methods that say "locked" must be called with `lock` held."""

    def __init__(
        self,
        *,
        buffer_bytes: int,
        linger_s: float,
        max_block_s: float,
        delivery_timeout_s: float,
        is_idempotent: bool = False,
        transactions: TransactionalNumbering | None = None,
        meters: ProducerMeters = NO_PRODUCER_METERS,
    ) -> None:
        """``transactions``: of a transactional producer."""
        self.lock = threading.Lock()
        self.numbering = transactions if transactions is not None else Numbering() if is_idempotent else None
        self._memory = BufferMemory(self.lock, total_bytes=buffer_bytes, max_block_s=max_block_s)
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._outboxes: dict[int, Outbox] = {}
        self._serials = itertools.count()
        self._unfinished: dict[Delivery, ProducerBatch | PartitionQueue] = {}
        self._reporting: dict[Delivery, int] = {}  # whose callbacks are being run → by which thread
        self._has_reported = threading.Condition(self.lock)
        self._first_error: PylogError | None = None
        self._meters = meters

    def buffered_bytes(self) -> int:
        """The bytes of ``buffer.memory`` that are taken. Any thread, without the lock."""
        return self._memory.used_bytes

    # --- batches are filled -----------------------------------------------------------------------------------

    def make_room(self, queue: PartitionQueue, record_bytes: int) -> ProducerBatch | None:
        """Locked: one step towards an open batch of ``queue`` with room for a record of ``record_bytes``.

        If the open batch is too full for the record, it is sealed and returned: the caller encodes it after it has
        released the lock, and then calls `encoded`. May release the lock while it runs, so the caller has to look at
        the queue again afterwards, and to call again if ``room`` is still too small. Blocks while the buffer is full;
        raises `BufferExhaustedError` after ``max.block.ms``, and `ClosedError`.
        """
        delivery = queue.delivery
        if delivery is None:
            wanted = max(record_bytes, min(_FIRST_GRANT_BYTES, queue.batch_bytes))
            self._reserve(wanted)
            if queue.delivery is None:
                self._open_batch(queue, wanted)
                return None
        else:
            held = queue.granted_bytes - queue.room
            if held + record_bytes > queue.batch_bytes:
                return self._seal(queue, is_being_encoded=True)
            wanted = max(record_bytes, min(queue.granted_bytes, queue.batch_bytes - queue.granted_bytes))
            self._reserve(wanted)
            if queue.delivery is not delivery:  # the batch was sealed while this thread waited
                self._memory.release(wanted)
                return None
        queue.granted_bytes += wanted
        queue.room += wanted
        return None

    def add_frame(self, queue: PartitionQueue, delivery: Delivery, frame: pa.Buffer) -> None:
        """Adds a sealed batch that is encoded already. Blocks and raises as `make_room`."""
        with self.lock:
            self._memory.check_open()
            size = min(frame.size, self._memory.total_bytes)
            self._reserve(size)
            self._seal(queue)
            batch = self._sealed_batch(queue, delivery, size, time.monotonic())
            batch.frame = frame
            self._unfinished[delivery] = batch
            queue.sealed.append(batch)
            self._mark_ready(queue)

    def encoded(self, batch: ProducerBatch, frame: pa.Buffer | None, error: PylogError | None = None) -> None:
        """The batch that `make_room` returned is encoded, or cannot be."""
        with self.lock:
            batch.frame = frame
            batch.builder = None
            batch.is_being_encoded = False
            if error is not None and batch in batch.queue.sealed:
                batch.queue.sealed.remove(batch)
            self._mark_ready(batch.queue)
        if error is not None:
            self.finish(batch, error=error)

    def not_encoded(self, batch: ProducerBatch) -> None:
        """Encoding the batch that `make_room` returned was interrupted: the thread that sends it does it."""
        with self.lock:
            batch.is_being_encoded = False
            self._mark_ready(batch.queue)

    # --- batches are sent -------------------------------------------------------------------------------------

    def outbox(self, leader: int) -> Outbox:
        """Locked: the outbox of a broker."""
        found = self._outboxes.get(leader)
        if found is None:
            found = self._outboxes[leader] = Outbox(threading.Condition(self.lock))
        return found

    def take(self, leader: int, *, now_s: float) -> tuple[ProducerBatch | None, float]:
        """Locked: the next batch to send to ``leader``, in flight from now on; or None and the seconds until one may be
        due."""
        outbox = self.outbox(leader)
        wait_s = self._seal_due(outbox, now_s)
        while outbox.delayed and outbox.delayed[0][0] <= now_s:
            self._mark_ready(heapq.heappop(outbox.delayed)[2])
        if outbox.delayed:
            wait_s = min(wait_s, outbox.delayed[0][0] - now_s)
        while outbox.ready:
            queue = outbox.ready.popleft()
            queue.is_ready = False
            if queue.leader != leader:
                self._mark_ready(queue)
                continue
            if not queue.sealed or queue.sealed[0].is_being_encoded or queue.in_flight >= MAX_IN_FLIGHT:
                continue  # marked as ready again when that changes
            if queue.to_retry or (queue.in_flight and queue.sent_to != leader):
                continue
            if queue.not_before_s > now_s:
                heapq.heappush(outbox.delayed, (queue.not_before_s, next(self._serials), queue))
                wait_s = min(wait_s, queue.not_before_s - now_s)
                continue
            if self.numbering is not None and not self.numbering.number(queue.sealed[0]):
                continue
            batch = queue.sealed.popleft()
            queue.in_flight += 1
            queue.sent_to = leader
            self._mark_ready(queue)
            return batch, 0.0
        return None, wait_s

    def is_first_in_flight(self, batch: ProducerBatch) -> bool:
        """Whether no other batch of its partition is in flight, or came back and waits for ``batch`` to do so, too."""
        with self.lock:
            return batch.queue.in_flight == 1 and not batch.queue.to_retry

    def acknowledged(self, batch: ProducerBatch, *, base_offset: int, append_time_ms: int) -> None:
        """The batch was acknowledged."""
        with self.lock:
            batch.queue.backoff.reset()
            batch.queue.last_error = None
            self._answered(batch.queue)
        self.finish(batch, base_offset=base_offset, append_time_ms=append_time_ms)

    def failed(self, batch: ProducerBatch, error: PylogError, *, is_doubtful: bool = False) -> None:
        """The batch failed and is not sent again. ``is_doubtful``: it may be in the log."""
        with self.lock:
            batch.is_doubtful = batch.is_doubtful or is_doubtful
            self._dropped(batch, error)
            self._answered(batch.queue)
        self.finish(batch, error=error)

    def retry(
        self, batches: Collection[ProducerBatch], reason: PylogError | None = None, *, is_doubtful: bool = False
    ) -> None:
        """These batches came back unacknowledged: they are sent again, in order, after a pause.

        All that came back together are passed in one call. ``reason`` becomes part of the error if the batches expire
        before a later attempt succeeds; None: they were not sent at all. ``is_doubtful``: they may be in the log.
        """
        if reason is not None:
            for batch in batches:
                self._meters.retried(batch.queue.topic, batch.delivery.count)
        with self.lock:
            queues = []
            for batch in batches:
                batch.is_doubtful = batch.is_doubtful or is_doubtful
                batch.queue.last_error = reason or batch.queue.last_error
                batch.queue.to_retry.append(batch)
                queues.append(batch.queue)
            for queue in queues:
                self._answered(queue)
            failed = self._take_given_up(dict.fromkeys(queues))
        self._fail(failed)

    def out_of_order(self, batch: ProducerBatch, error: PylogError) -> None:
        """The broker refused the batch because its sequence number leaves a gap, or because it does not know the
        producer."""
        with self.lock:
            assert self.numbering is not None
            is_oldest = not any(
                held.queue is batch.queue and held.number is not None and held.serial < batch.serial
                for held in self._unfinished.values()
                if isinstance(held, ProducerBatch)
            )
            is_retryable = self.numbering.is_retryable(batch, is_oldest=is_oldest)
        if is_retryable:
            self.retry([batch], error)
            return
        message = f"{error.message}. An earlier try was not answered: whether its records were appended is unknown"
        self.failed(batch, type(error)(message))

    def finish(
        self, batch: ProducerBatch, *, base_offset: int = -1, append_time_ms: int = -1, error: PylogError | None = None
    ) -> None:
        """Sets the outcome of a batch and returns its memory. Not locked, because it runs callbacks."""
        delivery = batch.delivery
        with self.lock:
            if self._unfinished.pop(delivery, None) is None:
                return
            self._reporting[delivery] = threading.get_ident()
            self._memory.release(batch.reserved_bytes)
            if error is not None:
                self._first_error = self._first_error or error
                if self.numbering is not None:
                    self.numbering.failed(error)
        try:
            self._count(batch, error)
            delivery.finish(base_offset=base_offset, append_time_ms=append_time_ms, error=error)
        finally:
            with self.lock:
                del self._reporting[delivery]
                self._has_reported.notify_all()

    # --- the partitions' leaders, time limits, the end --------------------------------------------------------

    def set_leader(self, queue: PartitionQueue, leader: int, leader_epoch: int) -> None:
        """Locked: who leads the partition, in which epoch."""
        queue.leader_epoch = leader_epoch
        if queue.leader == leader:
            return
        queue.leader = leader
        queue.not_before_s = 0.0  # the pause was meant for the previous leader
        queue.backoff.reset()
        queue.is_ready = False
        if queue.delivery is not None:
            self._linger(queue, queue.delivery)
        self._mark_ready(queue)

    def seal_batch(self, queue: PartitionQueue) -> None:
        """Locked: seals the open batch of ``queue``, if there is one."""
        self._seal(queue)

    def flush(self, delivery: Delivery) -> None:
        """Seals the batch of ``delivery`` if it is still open: a caller waits for it."""
        with self.lock:
            held = self._unfinished.get(delivery)
            if isinstance(held, PartitionQueue) and held.delivery is delivery:
                self._seal(held)

    def flush_all(self, timeout_s: float | None) -> None:
        """Seals all open batches, and blocks until each is finished and its callbacks have returned. A callback that
        calls this waits for no other callback. Raises `ClientTimeoutError` after ``timeout_s``."""
        deadline = Deadline(timeout_s)
        with self.lock:
            self._seal_all()
            unfinished = list(self._unfinished)
            awaited = {*unfinished, *self._reporting}
        wait_for(unfinished, timeout_s)
        with self._has_reported:
            if threading.get_ident() in self._reporting.values():
                return
            left_s = None if timeout_s is None else deadline.remaining_s()
            if not self._has_reported.wait_for(lambda: awaited.isdisjoint(self._reporting), left_s):
                raise ClientTimeoutError(f"not all callbacks of what was sent have returned within {timeout_s:g} s")

    def expire(self, now_s: float) -> float:
        """Fails the batches that are older than ``delivery.timeout.ms``; returns the seconds until the next may be."""
        expired: list[ProducerBatch] = []
        next_s = 3600.0
        with self.lock:
            # A thread may have added records to them while they were given up.
            failed = self._take_given_up(self._unfinished_queues())
            for held in list(self._unfinished.values()):
                if isinstance(held, PartitionQueue):
                    if held.opened_s + self._linger_s <= now_s:
                        self._seal(held)  # without a leader, no other thread does
                    continue
                if held.deadline_s <= now_s:
                    expired.append(held)
                else:
                    next_s = min(next_s, held.deadline_s - now_s)
            for batch in expired:
                queue = batch.queue
                if batch in queue.sealed:
                    queue.sealed.remove(batch)
                    self._mark_ready(queue)  # those behind it may have waited for it
                elif batch in queue.to_retry:
                    queue.to_retry.remove(batch)
                else:
                    continue  # in flight: decided when it is answered
                self._dropped(batch)
            id_error = None if self.numbering is None else self.numbering.id_error
        self._fail(failed)
        for batch in expired:
            last_error = batch.queue.last_error or id_error
            count = batch.delivery.count
            records, they = ("1 record was", "it was") if count == 1 else (f"{count} records were", "they were")
            self.finish(
                batch,
                error=DeliveryTimeoutError(
                    f"{batch.queue.topic}-{batch.queue.partition}: {records} not acknowledged within "
                    f"{self._delivery_timeout_s:g} s; whether {they} appended is unknown"
                    + ("" if last_error is None else f". The last try: {last_error}")
                ),
            )
        return next_s

    def fail_all(self, error: PylogError, topic: str | None = None) -> None:
        """Fails all batches (of ``topic``) that are not in flight."""
        with self.lock:
            failed = [
                (batch, error)
                for queue in self._unfinished_queues()
                if topic is None or queue.topic == topic
                for batch in self._take_unsent(queue)
            ]
        self._fail(failed)

    def fail_open(self, error: PylogError) -> list[Delivery]:
        """Fails all batches that are not in flight; returns those that are, which are not sent again."""
        self.fail_all(error)
        with self.lock:
            return list(self._unfinished)

    def abandon_all(self, error: PylogError) -> None:
        """Fails all batches that are not finished, in flight or not. Called last."""
        self.fail_all(error)
        with self.lock:
            left = [held for held in self._unfinished.values() if isinstance(held, ProducerBatch)]
        for batch in left:
            self.finish(batch, error=error)

    def provide_id(self, producer_id: int) -> None:
        """The producer id that `numbering` asked for."""
        assert self.numbering is not None
        with self.lock:
            for queue in self.numbering.provide(producer_id):
                self._mark_ready(queue)

    def give_up(self, queues: Iterable[PartitionQueue], error: PylogError) -> None:
        """These partitions no longer exist. Their batches fail: those in flight when they come back unacknowledged, and
        so do records that are still added. If the topic comes back, another producer id is used for it."""
        with self.lock:
            for queue in queues:
                queue.given_up = error
            failed = self._take_given_up(queues)
            self._give_up_id(queues)
        self._fail(failed)

    def recreate(self, queues: Collection[PartitionQueue], topic_id: bytes) -> bool:
        """Locked: the topic of these partitions was deleted and recreated. Their batches go to the new topic, under
        another producer id, as soon as none is in flight to the old one: False, and nothing is sent until the next
        call, while one is."""
        for queue in queues:
            self.set_leader(queue, NO_LEADER, queue.leader_epoch)
        if any(queue.in_flight for queue in queues):
            return False
        self._give_up_id(queues)
        for queue in queues:
            queue.topic_id = topic_id
            queue.sequence = Sequence()
        return True

    def take_first_error(self) -> PylogError | None:
        """The first error since this was last asked."""
        with self.lock:
            error, self._first_error = self._first_error, None
            return error

    def close(self, reason: str = "the producer was closed") -> None:
        """No more records are taken; callers that wait for room raise `ClosedError`."""
        with self.lock:
            self._memory.close(reason)
            for outbox in self._outboxes.values():
                outbox.wake.notify_all()

    def _count(self, batch: ProducerBatch, error: PylogError | None) -> None:
        topic, records = batch.queue.topic, batch.delivery.count
        if error is not None:
            self._meters.failed(topic, error, records)
            return
        size_bytes = 0 if batch.frame is None else batch.frame.size
        self._meters.acknowledged(topic, records=records, size_bytes=size_bytes, began_s=batch.began_s)

    def _fail(self, failed: Iterable[tuple[ProducerBatch, PylogError]]) -> None:
        for batch, error in failed:
            self.finish(batch, error=error)

    # --- private, all locked ----------------------------------------------------------------------------------

    def _open_batch(self, queue: PartitionQueue, granted_bytes: int) -> None:
        delivery = Delivery(
            queue.topic, queue.partition, base_timestamp_ms=time.time_ns() // 1_000_000, flush=self.flush
        )
        queue.delivery = delivery
        queue.values = []
        queue.keys = queue.timestamps = queue.headers = None
        queue.granted_bytes = queue.room = granted_bytes
        queue.opened_s = time.monotonic()
        self._unfinished[delivery] = queue
        self._linger(queue, delivery)

    def _linger(self, queue: PartitionQueue, delivery: Delivery) -> None:
        if queue.leader != NO_LEADER:
            outbox = self.outbox(queue.leader)
            outbox.lingering.append((queue, delivery))
            if len(outbox.lingering) == 1:
                outbox.wake.notify()

    def _seal(self, queue: PartitionQueue, *, is_being_encoded: bool = False) -> ProducerBatch | None:
        """Seals the open batch, if there is one, and puts it behind those sealed before."""
        delivery = queue.delivery
        if delivery is None:
            return None
        delivery.count = len(queue.values)
        delivery.timestamps = queue.timestamps
        batch = self._sealed_batch(queue, delivery, queue.granted_bytes, queue.opened_s)
        batch.builder = BatchBuilder(delivery, queue.schema, queue.values, queue.keys, queue.timestamps, queue.headers)
        batch.is_being_encoded = is_being_encoded
        self._unfinished[delivery] = batch
        queue.delivery = None
        queue.values = []
        queue.room = -1
        queue.sealed.append(batch)
        if not is_being_encoded:
            self._mark_ready(queue)
        return batch

    def _sealed_batch(
        self, queue: PartitionQueue, delivery: Delivery, reserved_bytes: int, began_s: float
    ) -> ProducerBatch:
        deadline_s = time.monotonic() + self._delivery_timeout_s
        return ProducerBatch(queue, delivery, next(self._serials), reserved_bytes, deadline_s, began_s)

    def _give_up_id(self, queues: Iterable[PartitionQueue]) -> None:
        if self.numbering is not None and any(queue.sequence.producer_id >= 0 for queue in queues):
            self.numbering.give_up_id()

    def _mark_ready(self, queue: PartitionQueue) -> None:
        """``queue`` may have a batch to send: wakes the thread of its leader."""
        if queue.sealed and not queue.is_ready and queue.leader != NO_LEADER:
            queue.is_ready = True
            outbox = self.outbox(queue.leader)
            outbox.ready.append(queue)
            outbox.wake.notify()

    def _unfinished_queues(self) -> list[PartitionQueue]:
        queues = (held if isinstance(held, PartitionQueue) else held.queue for held in self._unfinished.values())
        return list(dict.fromkeys(queues))

    def _take_given_up(self, queues: Iterable[PartitionQueue]) -> list[tuple[ProducerBatch, PylogError]]:
        """The unsent batches of those ``queues`` that were given up, to be failed (`_fail`) without the lock."""
        return [
            (batch, queue.given_up)
            for queue in queues
            if queue.given_up is not None
            for batch in self._take_unsent(queue)
        ]

    def _take_unsent(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """Removes the batches of ``queue`` that are not in flight, and returns them."""
        self._seal(queue)
        unsent = [*queue.sealed, *queue.to_retry]
        queue.sealed.clear()
        queue.to_retry.clear()
        for batch in unsent:
            self._dropped(batch)
        return unsent

    def _dropped(self, batch: ProducerBatch, error: PylogError | None = None) -> None:
        if self.numbering is not None:
            self.numbering.dropped(batch, error)

    def _answered(self, queue: PartitionQueue) -> None:
        queue.in_flight -= 1
        if queue.in_flight == 0 and queue.to_retry:
            again = []
            for batch in sorted(queue.to_retry, key=lambda batch: batch.serial):
                if batch.delivery in self._unfinished:
                    again.append(batch)
                else:
                    self._dropped(batch)
            queue.sealed.extendleft(reversed(again))
            queue.to_retry = []
            queue.not_before_s = time.monotonic() + queue.backoff.next_s()
        self._mark_ready(queue)

    def _seal_due(self, outbox: Outbox, now_s: float) -> float:
        while outbox.lingering:
            queue, delivery = outbox.lingering[0]
            if queue.delivery is delivery:
                left_s = queue.opened_s + self._linger_s - now_s
                if left_s > 0 and not self._memory.is_closed:
                    return left_s
                self._seal(queue)
            outbox.lingering.popleft()
        return 3600.0

    def _reserve(self, size: int) -> None:
        """Takes ``size`` bytes of the buffer; releases the lock while it waits for them."""
        self._memory.reserve(size, self._seal_all)

    def _seal_all(self) -> int:
        """Seals all open batches, which would otherwise never return their memory. Returns how many are unfinished."""
        for held in list(self._unfinished.values()):
            if isinstance(held, PartitionQueue):
                self._seal(held)
        return len(self._unfinished)


class BufferMemory:
    """``buffer.memory``: the bytes of all batches that are not acknowledged, and the callers that wait for room.

    Rule: all methods are called with the accumulator's lock held, which is released while a caller waits. Never above
    its bound, except for one batch that is larger than the whole buffer.
    """

    def __init__(self, lock: threading.Lock, *, total_bytes: int, max_block_s: float) -> None:
        self.total_bytes = total_bytes
        self.is_closed = False
        self._reason = ""
        self._freed = threading.Condition(lock)
        self._free_bytes = total_bytes
        self._max_block_s = max_block_s

    @property
    def used_bytes(self) -> int:
        """What is taken."""
        return self.total_bytes - self._free_bytes

    def reserve(self, size: int, make_room: Callable[[], int]) -> None:
        """Takes ``size`` bytes; releases the lock while it waits for them.

        ``make_room`` is called once before the wait, and returns how many batches are not acknowledged. Raises
        `BufferExhaustedError` after ``max.block.ms``, and `ClosedError`.
        """
        self.check_open()
        if self._free_bytes < size:
            waiting = make_room()
            deadline = Deadline(self._max_block_s)
            while self._free_bytes < min(size, self.total_bytes):
                if deadline.expired:
                    raise BufferExhaustedError(
                        f"buffer.memory={self.total_bytes} stayed full for {self._max_block_s:g} s "
                        f"(max.block.ms); {waiting} batches are not acknowledged yet"
                    )
                self._freed.wait(deadline.remaining_s())
                self.check_open()
        self._free_bytes -= size

    def release(self, size: int) -> None:
        """Returns ``size`` bytes."""
        self._free_bytes += size
        self._freed.notify_all()

    def close(self, reason: str = "the producer was closed") -> None:
        """Callers that wait, and all later ones, raise `ClosedError` with the ``reason`` that was given first."""
        if not self.is_closed:
            self.is_closed = True
            self._reason = reason
        self._freed.notify_all()

    def check_open(self) -> None:
        """Raises `ClosedError`."""
        if self.is_closed:
            raise ClosedError(self._reason)


class Numbering:
    """The sequence numbers of an idempotent producer: which batch may be sent, under which number, and what its failure
    means for later batches of the partition. The accumulator's lock guards it.

        a batch comes back …                            its number             later batches
        no answer, or an error after which it may be    kept; `is_doubtful`    wait, then are sent again in order
          in the log
        refused for good, certainly not appended        void                   get new numbers
        refused for a gap, earlier ones unanswered      kept                   wait for those
        refused for a gap, no earlier one unanswered    void; gets a new one   get new numbers
          … but it is doubtful                          none: it fails         are answered for themselves

    Rule: a batch gets another number only if it is certain that it is in no log under its old one and never will be:
    it was never sent, or each attempt was refused before it was appended, or an earlier batch to which that applies
    leaves a gap before it. Otherwise it is sent again as it is, or it fails with an error that says that it may be in
    the log. The first batch of a new epoch is sent only after all of the old one have come back.
    """

    def __init__(self) -> None:
        self.on_id_wanted: Callable[[], object] = lambda: None
        self.id_error: PylogError | None = None  # why there is no id yet
        self._producer_id = -1  # for partitions that are sent to for the first time
        self._waiting: dict[PartitionQueue, None] = {}

    @property
    def wants_id(self) -> bool:
        """Whether a new producer id should be fetched."""
        return self._producer_id < 0

    def provide(self, producer_id: int) -> list[PartitionQueue]:
        """A producer id that has never been used. Returns the partitions that waited for it."""
        self._producer_id = producer_id
        self.id_error = None
        waiting, self._waiting = list(self._waiting), {}
        return waiting

    def give_up_id(self) -> None:
        """Partitions that are sent to for the first time from now on use another id: one that is recreated may have
        been sent to under this one."""
        self._producer_id = -1
        self.on_id_wanted()

    def number(self, batch: ProducerBatch) -> bool:
        """Gives a batch that is about to be sent its number, if it has none. False: it may not be sent yet, but only
        when the batches in flight have come back, or when an id is provided.
        """
        queue, sequence = batch.queue, batch.queue.sequence
        if batch.number is not None:
            if sequence.holds(batch.number, batch.serial):
                return True
            batch.number = None
            batch.is_doubtful = False
        if sequence.begins_new_epoch and queue.in_flight:
            return False
        if sequence.needs_id:
            if self._producer_id == sequence.producer_id:
                self._producer_id = -1
            if self._producer_id < 0:
                self._waiting[queue] = None
                self.on_id_wanted()
                return False
            sequence.begin(self._producer_id)
        batch.number = sequence.take(batch.delivery.count)
        return True

    def dropped(self, batch: ProducerBatch, error: PylogError | None = None) -> None:
        """The batch is not sent again: because of ``error``, or because its time is up."""
        number = batch.number
        if number is not None and not batch.is_doubtful and batch.queue.sequence.holds(number, batch.serial):
            batch.queue.sequence.void_from(batch.serial)

    def failed(self, error: PylogError) -> None:
        """The records of a batch have failed, for good."""

    def is_retryable(self, batch: ProducerBatch, *, is_oldest: bool) -> bool:
        """Whether a batch that was refused for a gap may be sent again. False: it may be in the log already.

        ``is_oldest``: no earlier batch of the partition is unacknowledged.
        """
        assert batch.number is not None
        sequence = batch.queue.sequence
        if not is_oldest or not sequence.holds(batch.number, batch.serial):
            return True
        if batch.is_doubtful:
            return False
        sequence.void_from(batch.serial)
        return True


class TransactionalNumbering(Numbering):
    """The sequence numbers of a transactional producer: each transaction has a producer id of its own, and one epoch.

    Rule: a number is never taken back. If a batch is certainly not appended, those behind it are refused for the gap,
    and fail: then the transaction can only be aborted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._identity: TransactionIdentity | None = None
        self.sent_to: dict[PartitionQueue, bytes] = {}
        """The partitions that the transaction was sent to, and their topics' ids."""
        self.failure: PylogError | None = None  # why the transaction cannot be committed

    @property
    def wants_id(self) -> bool:
        """Never: an id comes with a transaction."""
        return False

    @property
    def producer_id(self) -> int:
        """Of the present transaction."""
        return self._producer_id

    def begin_transaction(self, identity: TransactionIdentity, producer_id: int) -> None:
        """From now on batches belong to this transaction. Nothing of the one before is unfinished."""
        self.sent_to = {}
        self.failure = None
        self._identity = identity
        self._producer_id = producer_id

    def stop_sending(self) -> None:
        """No batch gets a number any more."""
        self._identity = None

    def end_transaction(self) -> None:
        """The transaction has been decided."""
        self._identity = None

    def give_up_id(self) -> None:
        """A topic that was sent to is gone, or was recreated: what is in the old one cannot be committed."""
        if self._identity is not None:
            self.failure = InconsistentTopicIdError("a topic of the transaction was deleted or recreated")

    def number(self, batch: ProducerBatch) -> bool:
        """See `Numbering.number`. False also outside of a transaction."""
        if batch.number is not None:
            return True
        if self._identity is None:
            return False
        queue = batch.queue
        if queue.sequence.producer_id != self._producer_id:
            queue.sequence.begin(self._producer_id)
        batch.number = queue.sequence.take(batch.delivery.count)._replace(is_transactional=True)
        if batch.number.sequence == 0:
            batch.transaction = self._identity
        self.sent_to[queue] = queue.topic_id
        return True

    def dropped(self, batch: ProducerBatch, error: PylogError | None = None) -> None:
        """The batch is not sent again: its transaction lacks it."""
        if batch.number is not None and self.failure is None:
            late = DeliveryTimeoutError("a batch of the transaction was not acknowledged in time")
            self.failure = error or batch.queue.last_error or late

    def failed(self, error: PylogError) -> None:
        """The transaction lacks these records, also if they were never sent, and whoever was told of it."""
        if self._identity is not None and self.failure is None:
            self.failure = error

    def is_retryable(self, batch: ProducerBatch, *, is_oldest: bool) -> bool:
        """See `Numbering.is_retryable`."""
        return not is_oldest
