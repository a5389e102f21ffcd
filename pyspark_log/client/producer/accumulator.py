"""All that a producer holds and has not been acknowledged for: by partition, in order, within ``buffer.memory``.

Rule: per partition, frames leave in the order in which they were closed, at most `MAX_IN_FLIGHT` unanswered; after a
failure, or when the leader changed, none leaves until all unanswered ones came back, and then they go again in their
old order. What leaves is handed out to one thread per broker (`take`), over an `Outbox` of the partitions that the
broker leads; an idempotent producer's frames have their numbers by then (`numbering`).

One lock guards it all; whoever holds it never touches the network, encodes, or runs a user's callback.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from broker_runtime.contract.errors import BufferExhaustedError, ClosedError, DeliveryTimeoutError, PylogError
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.gathering import Gathered
from pyspark_log.client.producer.partition_queue import NO_LEADER, Outbox, Outgoing, PartitionQueue
from pyspark_log.client.producer.sequence import Sequence

MAX_IN_FLIGHT = 5
"""Frames of one partition that may be unanswered."""
_FIRST_GRANT_BYTES = 16 << 10


class Accumulator:
    """See the module. Thread-safe; methods that say "locked" are called with `lock` held."""

    def __init__(
        self,
        *,
        buffer_bytes: int,
        linger_s: float,
        max_block_s: float,
        delivery_timeout_s: float,
        is_idempotent: bool = False,
    ) -> None:
        self.lock = threading.Lock()
        self.numbering = Numbering() if is_idempotent else None
        self._memory = BufferMemory(self.lock, total_bytes=buffer_bytes, max_block_s=max_block_s)
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._outboxes: dict[int, Outbox] = {}
        self._serials = itertools.count()
        self._unfinished: dict[Delivery, Outgoing | PartitionQueue] = {}
        self._first_error: PylogError | None = None

    # --- records come in --------------------------------------------------------------------------------------

    def make_room(self, queue: PartitionQueue, record_bytes: int) -> Outgoing | None:
        """Locked: makes ``queue`` ready for one record more of ``record_bytes``, or gets nearer to that.

        Returns a frame that would be too full with it, for the caller to encode (`encoded`) after it let go of the
        lock. May let go of the lock meanwhile: callers look at the queue again, and call again if ``room`` is short.
        Blocks while the buffer is full; raises `BufferExhaustedError` after ``max.block.ms``, `ClosedError`.
        """
        delivery = queue.delivery
        if delivery is None:
            wanted = max(record_bytes, min(_FIRST_GRANT_BYTES, queue.batch_bytes))
            self._reserve(wanted)
            if queue.delivery is None:
                self._open(queue, wanted)
                return None
        else:
            held = queue.granted_bytes - queue.room
            if held + record_bytes > queue.batch_bytes:
                return self._close(queue, is_being_encoded=True)
            wanted = max(record_bytes, min(queue.granted_bytes, queue.batch_bytes - queue.granted_bytes))
            self._reserve(wanted)
            if queue.delivery is not delivery:  # it was sent off while this thread waited
                self._memory.release(wanted)
                return None
        queue.granted_bytes += wanted
        queue.room += wanted
        return None

    def add_frame(self, queue: PartitionQueue, delivery: Delivery, frame: pa.Buffer) -> None:
        """A whole frame, behind what the partition has. Blocks while the buffer is full, as `make_room`."""
        with self.lock:
            self._memory.check_open()
            size = min(frame.size, self._memory.total_bytes)
            self._reserve(size)
            self._close(queue)
            outgoing = self._outgoing(queue, delivery, size)
            outgoing.frame = frame
            self._unfinished[delivery] = outgoing
            queue.closed.append(outgoing)
            self._list(queue)

    def encoded(self, outgoing: Outgoing, frame: pa.Buffer | None, error: PylogError | None = None) -> None:
        """A frame that `make_room` handed out is encoded, or cannot be."""
        with self.lock:
            outgoing.frame = frame
            outgoing.gathered = None
            outgoing.is_being_encoded = False
            if error is not None and outgoing in outgoing.queue.closed:
                outgoing.queue.closed.remove(outgoing)
            self._list(outgoing.queue)
        if error is not None:
            self.finish(outgoing, error=error)

    # --- frames go out ----------------------------------------------------------------------------------------

    def outbox(self, leader: int) -> Outbox:
        """The outbox of a broker. Locked."""
        found = self._outboxes.get(leader)
        if found is None:
            found = self._outboxes[leader] = Outbox(threading.Condition(self.lock))
        return found

    def take(self, leader: int, *, now_s: float) -> tuple[Outgoing | None, float]:
        """Locked: the next frame for ``leader``, in flight from now on; or None and how long nothing will be due."""
        outbox = self.outbox(leader)
        wait_s = self._close_due(outbox, now_s)
        while outbox.delayed and outbox.delayed[0][0] <= now_s:
            self._list(heapq.heappop(outbox.delayed)[2])
        if outbox.delayed:
            wait_s = min(wait_s, outbox.delayed[0][0] - now_s)
        while outbox.ready:
            queue = outbox.ready.popleft()
            queue.is_listed = False
            if queue.leader != leader:
                self._list(queue)
                continue
            if not queue.closed or queue.closed[0].is_being_encoded or queue.in_flight >= MAX_IN_FLIGHT:
                continue  # listed again when that changes
            if queue.to_repeat or (queue.in_flight and queue.sent_to != leader):
                continue
            if queue.not_before_s > now_s:
                heapq.heappush(outbox.delayed, (queue.not_before_s, next(self._serials), queue))
                wait_s = min(wait_s, queue.not_before_s - now_s)
                continue
            if self.numbering is not None and not self.numbering.number(queue.closed[0]):
                continue
            outgoing = queue.closed.popleft()
            queue.in_flight += 1
            queue.sent_to = leader
            self._list(queue)
            return outgoing, 0.0
        return None, wait_s

    def answered(self, outgoing: Outgoing, *, base_offset: int, append_time_ms: int) -> None:
        """The frame was acknowledged."""
        with self.lock:
            outgoing.queue.backoff.reset()
            outgoing.queue.trouble = None
            self._landed(outgoing.queue)
        self.finish(outgoing, base_offset=base_offset, append_time_ms=append_time_ms)

    def refused(self, outgoing: Outgoing, error: PylogError, *, is_doubtful: bool = False) -> None:
        """The frame failed for good. ``is_doubtful``: it may be in the log."""
        with self.lock:
            outgoing.is_doubtful = outgoing.is_doubtful or is_doubtful
            self._failed(outgoing)
            self._landed(outgoing.queue)
        self.finish(outgoing, error=error)

    def repeat(
        self, outgoings: Iterable[Outgoing], reason: PylogError | None = None, *, is_doubtful: bool = False
    ) -> None:
        """These came back unacknowledged: they go again, in order, after a pause. Call with all that came together.

        ``reason`` is told with the error if their time is over before it goes away. ``is_doubtful``: they may be in
        the log.
        """
        with self.lock:
            queues = []
            for outgoing in outgoings:
                outgoing.is_doubtful = outgoing.is_doubtful or is_doubtful
                outgoing.queue.trouble = reason or outgoing.queue.trouble
                outgoing.queue.to_repeat.append(outgoing)
                queues.append(outgoing.queue)
            for queue in queues:
                self._landed(queue)
            failed = self._take_given_up(dict.fromkeys(queues))
        self._fail(failed)

    def disordered(self, outgoing: Outgoing, error: PylogError) -> None:
        """The broker did not append the frame because it found a gap before it, or does not know the producer."""
        with self.lock:
            assert self.numbering is not None
            is_oldest = not any(
                held.queue is outgoing.queue and held.number is not None and held.serial < outgoing.serial
                for held in self._unfinished.values()
                if isinstance(held, Outgoing)
            )
            goes_again = self.numbering.goes_again(outgoing, is_oldest=is_oldest)
        if goes_again:
            self.repeat([outgoing], error)
            return
        message = f"{error.message}. An earlier try was not answered: whether its records were appended is unknown"
        self.refused(outgoing, type(error)(message))

    def finish(
        self, outgoing: Outgoing, *, base_offset: int = -1, append_time_ms: int = -1, error: PylogError | None = None
    ) -> None:
        """Settles a frame's outcome and gives its memory back. Not locked: runs callbacks."""
        with self.lock:
            if self._unfinished.pop(outgoing.delivery, None) is None:
                return
            self._memory.release(outgoing.reserved_bytes)
            if error is not None and self._first_error is None:
                self._first_error = error
        outgoing.delivery.finish(base_offset=base_offset, append_time_ms=append_time_ms, error=error)

    # --- the partitions' leaders, time limits, the end --------------------------------------------------------

    def move(self, queue: PartitionQueue, leader: int, leader_epoch: int) -> None:
        """Locked: the partition's leader is another one now."""
        queue.leader_epoch = leader_epoch
        if queue.leader == leader:
            return
        queue.leader = leader
        queue.not_before_s = 0.0  # the pauses were for the one before
        queue.backoff.reset()
        queue.is_listed = False
        if queue.delivery is not None:
            self._linger(queue, queue.delivery)
        self._list(queue)

    def end_list(self, queue: PartitionQueue) -> None:
        """Locked: what ``queue`` gathered until now goes out as it is."""
        self._close(queue)

    def hurry(self, delivery: Delivery) -> None:
        """Somebody waits for this frame: it gathers no longer."""
        with self.lock:
            held = self._unfinished.get(delivery)
            if isinstance(held, PartitionQueue) and held.delivery is delivery:
                self._close(held)

    def hurry_all(self) -> list[Delivery]:
        """Nothing gathers any longer. Returns all that is not finished."""
        with self.lock:
            self._close_all()
            return list(self._unfinished)

    def expire(self, now_s: float) -> float:
        """Fails what is older than ``delivery.timeout.ms``; returns the seconds until the next can be."""
        expired: list[Outgoing] = []
        next_s = 3600.0
        with self.lock:
            # A thread may have sent to them while they were given up.
            failed = self._take_given_up(self._unfinished_queues())
            for held in list(self._unfinished.values()):
                if isinstance(held, PartitionQueue):
                    if held.opened_s + self._linger_s <= now_s:
                        self._close(held)  # nobody else does where there is no leader
                    continue
                if held.deadline_s <= now_s:
                    expired.append(held)
                else:
                    next_s = min(next_s, held.deadline_s - now_s)
            for outgoing in expired:
                queue = outgoing.queue
                if outgoing in queue.closed:
                    queue.closed.remove(outgoing)
                elif outgoing in queue.to_repeat:
                    queue.to_repeat.remove(outgoing)
                else:
                    continue  # in flight: what becomes of it is seen when it lands
                self._failed(outgoing)
            no_id = None if self.numbering is None else self.numbering.trouble
        self._fail(failed)
        for outgoing in expired:
            trouble = outgoing.queue.trouble or no_id
            count = outgoing.delivery.count
            records, they = ("1 record was", "it was") if count == 1 else (f"{count} records were", "they were")
            self.finish(
                outgoing,
                error=DeliveryTimeoutError(
                    f"{outgoing.queue.topic}-{outgoing.queue.partition}: {records} not acknowledged within "
                    f"{self._delivery_timeout_s:g} s; whether {they} appended is unknown"
                    + ("" if trouble is None else f". The last try: {trouble}")
                ),
            )
        return next_s

    def fail_all(self, error: PylogError, topic: str | None = None) -> None:
        """Fails everything (of ``topic``) that is not in flight or acknowledged."""
        with self.lock:
            failed = [
                (outgoing, error)
                for queue in self._unfinished_queues()
                if topic is None or queue.topic == topic
                for outgoing in self._take_unsent(queue)
            ]
        self._fail(failed)

    def abandon_all(self, error: PylogError) -> None:
        """Fails all that is not finished, in flight or not: the end."""
        self.fail_all(error)
        with self.lock:
            left = [held for held in self._unfinished.values() if isinstance(held, Outgoing)]
        for outgoing in left:
            self.finish(outgoing, error=error)

    def provide_id(self, producer_id: int) -> None:
        """What `numbering` wants."""
        assert self.numbering is not None
        with self.lock:
            for queue in self.numbering.provide(producer_id):
                self._list(queue)

    def give_up(self, queues: Iterable[PartitionQueue], error: PylogError) -> None:
        """These partitions are no more: what they hold fails, what is in flight when it comes back unacknowledged, and
        whatever is still added. Should the topic come back, it is sent to under another producer id."""
        with self.lock:
            for queue in queues:
                queue.given_up = error
            failed = self._take_given_up(queues)
            self._give_up_id(queues)
        self._fail(failed)

    def begin_anew(self, queues: Iterable[PartitionQueue], topic_id: bytes) -> None:
        """Locked: these partitions, of which nothing is in flight, are another topic's now, of the same name. What they
        hold goes to that one, under another producer id."""
        self._give_up_id(queues)
        for queue in queues:
            assert queue.in_flight == 0
            queue.topic_id = topic_id
            queue.sequence = Sequence()

    def take_first_error(self) -> PylogError | None:
        """The first error since this was last asked."""
        with self.lock:
            error, self._first_error = self._first_error, None
            return error

    def close(self, reason: str = "the producer was closed") -> None:
        """No more records come in; those waiting for room raise `ClosedError`."""
        with self.lock:
            self._memory.close(reason)
            for outbox in self._outboxes.values():
                outbox.wake.notify_all()

    def _fail(self, failed: Iterable[tuple[Outgoing, PylogError]]) -> None:
        for outgoing, error in failed:
            self.finish(outgoing, error=error)

    # --- private, all locked ----------------------------------------------------------------------------------

    def _open(self, queue: PartitionQueue, granted_bytes: int) -> None:
        delivery = Delivery(
            queue.topic, queue.partition, base_timestamp_ms=time.time_ns() // 1_000_000, hurry=self.hurry
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

    def _close(self, queue: PartitionQueue, *, is_being_encoded: bool = False) -> Outgoing | None:
        """Ends the open list, if there is one, and puts it behind the closed ones."""
        delivery = queue.delivery
        if delivery is None:
            return None
        delivery.count = len(queue.values)
        delivery.timestamps = queue.timestamps
        outgoing = self._outgoing(queue, delivery, queue.granted_bytes)
        outgoing.gathered = Gathered(delivery, queue.schema, queue.values, queue.keys, queue.timestamps, queue.headers)
        outgoing.is_being_encoded = is_being_encoded
        self._unfinished[delivery] = outgoing
        queue.delivery = None
        queue.values = []
        queue.room = -1
        queue.closed.append(outgoing)
        if not is_being_encoded:
            self._list(queue)
        return outgoing

    def _outgoing(self, queue: PartitionQueue, delivery: Delivery, reserved_bytes: int) -> Outgoing:
        return Outgoing(
            queue, delivery, next(self._serials), reserved_bytes, time.monotonic() + self._delivery_timeout_s
        )

    def _give_up_id(self, queues: Iterable[PartitionQueue]) -> None:
        if self.numbering is not None and any(queue.sequence.producer_id >= 0 for queue in queues):
            self.numbering.give_up_id()

    def _list(self, queue: PartitionQueue) -> None:
        """``queue`` may have something to send: its broker's thread looks at it."""
        if queue.closed and not queue.is_listed and queue.leader != NO_LEADER:
            queue.is_listed = True
            outbox = self.outbox(queue.leader)
            outbox.ready.append(queue)
            outbox.wake.notify()

    def _unfinished_queues(self) -> list[PartitionQueue]:
        queues = (held if isinstance(held, PartitionQueue) else held.queue for held in self._unfinished.values())
        return list(dict.fromkeys(queues))

    def _take_given_up(self, queues: Iterable[PartitionQueue]) -> list[tuple[Outgoing, PylogError]]:
        """What those of ``queues`` that were given up hold, to be failed (`_fail`) without the lock."""
        return [
            (outgoing, queue.given_up)
            for queue in queues
            if queue.given_up is not None
            for outgoing in self._take_unsent(queue)
        ]

    def _take_unsent(self, queue: PartitionQueue) -> list[Outgoing]:
        """What ``queue`` holds that is not in flight: it holds that no more."""
        self._close(queue)
        unsent = [*queue.closed, *queue.to_repeat]
        queue.closed.clear()
        queue.to_repeat.clear()
        for outgoing in unsent:
            self._failed(outgoing)
        return unsent

    def _failed(self, outgoing: Outgoing) -> None:
        if self.numbering is not None:
            self.numbering.failed(outgoing)

    def _landed(self, queue: PartitionQueue) -> None:
        queue.in_flight -= 1
        if queue.in_flight == 0 and queue.to_repeat:
            again = []
            for outgoing in sorted(queue.to_repeat, key=lambda outgoing: outgoing.serial):
                if outgoing.delivery in self._unfinished:
                    again.append(outgoing)
                else:
                    self._failed(outgoing)
            queue.closed.extendleft(reversed(again))
            queue.to_repeat = []
            queue.not_before_s = time.monotonic() + queue.backoff.next_s()
        self._list(queue)

    def _close_due(self, outbox: Outbox, now_s: float) -> float:
        while outbox.lingering:
            queue, delivery = outbox.lingering[0]
            if queue.delivery is delivery:
                left_s = queue.opened_s + self._linger_s - now_s
                if left_s > 0 and not self._memory.is_closed:
                    return left_s
                self._close(queue)
            outbox.lingering.popleft()
        return 3600.0

    def _reserve(self, size: int) -> None:
        """Takes ``size`` bytes of the buffer; lets go of the lock while it waits for them."""
        self._memory.reserve(size, self._close_all)

    def _close_all(self) -> int:
        """Nothing gathers any longer: it would never give its memory back. Returns how much is unfinished."""
        for held in list(self._unfinished.values()):
            if isinstance(held, PartitionQueue):
                self._close(held)
        return len(self._unfinished)


class BufferMemory:
    """All methods are called with the lock held.

    ``buffer.memory``: the bytes that wait to be acknowledged, and who waits for room among them.

    Rule: the accumulator's lock guards it, and is let go of while somebody waits. Never above its bound, but for one
    piece that is larger than the whole.
    """

    def __init__(self, lock: threading.Lock, *, total_bytes: int, max_block_s: float) -> None:
        self.total_bytes = total_bytes
        self.is_closed = False
        self._reason = ""
        self._freed = threading.Condition(lock)
        self._free_bytes = total_bytes
        self._max_block_s = max_block_s

    def reserve(self, size: int, make_room: Callable[[], int]) -> None:
        """Takes ``size`` bytes; lets go of the lock while it waits for them.

        ``make_room`` is called once before that, and returns how many frames wait for their acknowledgement. Raises
        `BufferExhaustedError` after ``max.block.ms``, `ClosedError`.
        """
        self.check_open()
        if self._free_bytes < size:
            waiting = make_room()
            deadline = Deadline(self._max_block_s)
            while self._free_bytes < min(size, self.total_bytes):
                if deadline.expired:
                    raise BufferExhaustedError(
                        f"buffer.memory={self.total_bytes} stayed full for {self._max_block_s:g} s "
                        f"(max.block.ms); {waiting} frames wait for their acknowledgement"
                    )
                self._freed.wait(deadline.remaining_s())
                self.check_open()
        self._free_bytes -= size

    def release(self, size: int) -> None:
        """Gives ``size`` bytes back."""
        self._free_bytes += size
        self._freed.notify_all()

    def close(self, reason: str = "the producer was closed") -> None:
        """Those who wait, and all later ones, raise `ClosedError` with the ``reason`` that was given first."""
        if not self.is_closed:
            self.is_closed = True
            self._reason = reason
        self._freed.notify_all()

    def check_open(self) -> None:
        """Raises `ClosedError`."""
        if self.is_closed:
            raise ClosedError(self._reason)


class Numbering:
    """Of one producer. Not thread-safe: the accumulator's lock guards it.

    Which frames of an idempotent producer may leave, under which number, and what their failures mean for the others.

        a frame comes back …                          its number            the frames behind it
        no answer, or one that leaves it open         stays; `is_doubtful`  wait, then go again in order
        refused, surely not appended, for good        is void               are numbered anew
        a gap before it, frames before it are open    stays                 wait for those
        a gap before it, nothing before it is open    void; numbered anew   likewise
          … but it is doubtful                        it fails by name      find out by themselves

    Rule: a frame is given another number only if it is certain that it is in no log under its old one and will never
    be: it was never sent, or every try was answered with a refusal, or it lies behind such a frame. Else it goes again
    as it is, or fails, and its error says that it may be there. Before the first frame of a new epoch leaves, all of
    the old one have come back.
    """

    def __init__(self) -> None:
        self.on_id_wanted: Callable[[], object] = lambda: None
        self.trouble: PylogError | None = None  # why there is no id yet
        self._producer_id = -1  # for partitions that begin
        self._waiting: dict[PartitionQueue, None] = {}

    @property
    def wants_id(self) -> bool:
        """Whether a new producer id should be fetched."""
        return self._producer_id < 0

    def provide(self, producer_id: int) -> list[PartitionQueue]:
        """An id that nobody had. Returns the partitions that waited for it."""
        self._producer_id = producer_id
        self.trouble = None
        waiting, self._waiting = list(self._waiting), {}
        return waiting

    def give_up_id(self) -> None:
        """Partitions that begin from now on do so under another id: they may be of a topic that was sent to before."""
        self._producer_id = -1
        self.on_id_wanted()

    def number(self, outgoing: Outgoing) -> bool:
        """Sees to it that a frame which is about to leave has a number. False: it may not leave yet.

        It may when what is in flight has come back, or when an id is provided.
        """
        queue, sequence = outgoing.queue, outgoing.queue.sequence
        if outgoing.number is not None:
            if sequence.holds(outgoing.number, outgoing.serial):
                return True
            outgoing.number = None
            outgoing.is_doubtful = False
        if sequence.begins_anew and queue.in_flight:
            return False
        if sequence.needs_id:
            if self._producer_id == sequence.producer_id:
                self._producer_id = -1
            if self._producer_id < 0:
                self._waiting[queue] = None
                self.on_id_wanted()
                return False
            sequence.begin(self._producer_id)
        outgoing.number = sequence.take(outgoing.delivery.count)
        return True

    def failed(self, outgoing: Outgoing) -> None:
        """The frame goes nowhere any more."""
        number = outgoing.number
        if number is not None and not outgoing.is_doubtful and outgoing.queue.sequence.holds(number, outgoing.serial):
            outgoing.queue.sequence.void_from(outgoing.serial)

    def goes_again(self, outgoing: Outgoing, *, is_oldest: bool) -> bool:
        """Whether a frame before which the broker found a gap may be sent again. False: whether it is there is unknown.

        ``is_oldest``: no earlier frame of the partition is still to be acknowledged.
        """
        assert outgoing.number is not None
        sequence = outgoing.queue.sequence
        if not is_oldest or not sequence.holds(outgoing.number, outgoing.serial):
            return True
        if outgoing.is_doubtful:
            return False
        sequence.void_from(outgoing.serial)
        return True
