"""Order, bounds and memory of what a producer buffers: no thread, no socket."""

import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    BufferExhaustedError,
    ClientTimeoutError,
    ClosedError,
    DeliveryTimeoutError,
    LogStorageError,
    NotEnoughReplicasError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.frame import decode_frame
from broker_runtime.contract.schema import UNTYPED, SchemaHistory
from pyspark_log.client.producer.accumulator import MAX_IN_FLIGHT, Accumulator
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import NO_LEADER, PartitionQueue, ProducerBatch
from tests.waiting import LIMIT_S, wait_until

LEADER = 7


def make(**settings: float) -> tuple[Accumulator, PartitionQueue]:
    given = {"buffer_bytes": 1 << 20, "linger_s": 0.0, "max_block_s": 0.0, "delivery_timeout_s": 100.0, **settings}
    accumulator = Accumulator(**given)  # type: ignore[arg-type]
    queue = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
    with accumulator.lock:
        accumulator.set_leader(queue, LEADER, 3)
    return accumulator, queue


def add(accumulator: Accumulator, queue: PartitionQueue, value: bytes, size: int = 100) -> tuple[Delivery, int]:
    """One record as `Producer` adds it; full batches are encoded at once."""
    while True:
        with accumulator.lock:
            if queue.delivery is not None and queue.room >= size:
                queue.room -= size
                return queue.delivery, queue.add(value, None, None, None)
            full = accumulator.make_room(queue, size)
        if full is not None:
            assert full.builder is not None
            accumulator.encoded(full, full.builder.encode("none"))


def take(accumulator: Accumulator, later_s: float = 0.0) -> ProducerBatch | None:
    with accumulator.lock:
        return accumulator.take(LEADER, now_s=time.monotonic() + later_s)[0]


def values_of(batch: ProducerBatch) -> list[bytes]:
    if batch.builder is not None:
        return list(batch.builder.values)
    frame = decode_frame(batch.frame, SchemaHistory())
    return frame.batch.column("value").to_pylist()


def test_accumulator_seals_a_batch_that_would_grow_beyond_the_batch_size() -> None:
    """Ten records of 100 bytes fit into a batch of 1000; the eleventh begins the next."""
    accumulator, queue = make()
    deliveries = [add(accumulator, queue, b"%d" % n) for n in range(11)]
    assert [index for _, index in deliveries] == [*range(10), 0]
    first, second = take(accumulator), take(accumulator)
    assert first is not None
    assert second is not None
    assert values_of(first) == [b"%d" % n for n in range(10)]
    assert values_of(second) == [b"10"]
    assert first.delivery is deliveries[0][0]


def finish(accumulator: Accumulator, callback: Callable[[], object]) -> threading.Thread:
    """Finishes a batch with one record on another thread, which calls ``callback`` then."""
    queue = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
    with accumulator.lock:
        accumulator.set_leader(queue, LEADER, 3)
    delivery, _ = add(accumulator, queue, b"x")
    delivery.when_done(callback)
    batch = take(accumulator)
    assert batch is not None
    thread = threading.Thread(target=accumulator.finish, args=(batch,), kwargs={"base_offset": 0}, daemon=True)
    thread.start()
    return thread


def test_flush_waits_for_callbacks() -> None:
    """Also for those of a batch that was finished when it began."""
    accumulator, _ = make()
    began, may_return, flushed = threading.Event(), threading.Event(), threading.Event()
    finish(accumulator, lambda: began.set() or may_return.wait(LIMIT_S))
    assert began.wait(LIMIT_S)
    with pytest.raises(ClientTimeoutError, match=r"not all callbacks .* within 0\.05 s"):
        accumulator.flush_all(0.05)
    thread = threading.Thread(target=lambda: accumulator.flush_all(LIMIT_S) or flushed.set(), daemon=True)
    thread.start()
    assert not flushed.wait(0.05)
    may_return.set()
    assert flushed.wait(LIMIT_S)


def test_callbacks_that_flush_do_not_wait_for_each_other() -> None:
    accumulator, _ = make()
    both = threading.Barrier(2)

    def flush() -> None:
        both.wait(LIMIT_S)
        accumulator.flush_all(None)

    threads = [finish(accumulator, flush) for _ in range(2)]
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_flush_does_not_wait_for_callbacks_of_what_was_sent_after_it() -> None:
    """Or it might never return while others send."""
    accumulator, queue = make()
    add(accumulator, queue, b"x")
    flushed = threading.Event()
    thread = threading.Thread(target=lambda: accumulator.flush_all(LIMIT_S) or flushed.set(), daemon=True)
    thread.start()
    wait_until(lambda: queue.delivery is None, "sealed")
    batch = take(accumulator)
    assert batch is not None
    later, may_return = threading.Event(), threading.Event()
    finish(accumulator, lambda: later.set() or may_return.wait(LIMIT_S))
    assert later.wait(LIMIT_S)
    accumulator.finish(batch, base_offset=0)
    assert flushed.wait(LIMIT_S)
    may_return.set()


def test_accumulator_lets_batches_linger() -> None:
    """No batch is due before ``linger.ms`` unless somebody waits for it."""
    accumulator, queue = make(linger_s=5.0)
    add(accumulator, queue, b"a")
    with accumulator.lock:
        batch, wait_s = accumulator.take(LEADER, now_s=time.monotonic())
    assert batch is None
    assert 4 < wait_s <= 5
    assert take(accumulator, later_s=5.1) is not None
    delivery, _ = add(accumulator, queue, b"b")
    accumulator.flush(delivery)
    assert take(accumulator) is not None


def test_accumulator_has_at_most_five_batches_of_a_partition_in_flight() -> None:
    """The sixth batch waits until one is answered."""
    accumulator, queue = make()
    for n in range(60):
        add(accumulator, queue, b"%d" % n)
    taken = [take(accumulator) for _ in range(MAX_IN_FLIGHT)]
    assert all(taken)
    assert take(accumulator) is None
    assert taken[0] is not None
    accumulator.acknowledged(taken[0], base_offset=40, append_time_ms=-1)
    assert taken[0].delivery.record(9) == ("t", 0, 49, taken[0].delivery.base_timestamp_ms)
    assert take(accumulator) is not None


def test_accumulator_retries_in_order_once_none_is_in_flight() -> None:
    """Failed frames are sent again before all later ones, in their old order, once none is in flight."""
    accumulator, queue = make()
    for n in range(50):
        add(accumulator, queue, b"%d" % n)
    taken = [take(accumulator) for _ in range(4)]
    accumulator.retry([taken[2]])  # type: ignore[list-item]
    assert take(accumulator, later_s=10) is None
    accumulator.acknowledged(taken[0], base_offset=0, append_time_ms=-1)  # type: ignore[arg-type]
    accumulator.retry([taken[3], taken[1]])  # type: ignore[list-item]
    assert take(accumulator, later_s=0) is None
    again = [take(accumulator, later_s=10) for _ in range(4)]
    assert again[:3] == taken[1:]
    assert values_of(again[3]) == [b"%d" % n for n in range(40, 50)]  # type: ignore[arg-type]


def test_accumulator_bounds_memory_and_releases_it() -> None:
    """A full buffer refuses by name; an answer makes room."""
    accumulator, queue = make(buffer_bytes=2000, max_block_s=0.0)
    with pytest.raises(BufferExhaustedError, match=r"buffer\.memory=2000"):
        [add(accumulator, queue, b"%d" % n) for n in range(100)]
    batch = take(accumulator)
    assert batch is not None
    accumulator.acknowledged(batch, base_offset=0, append_time_ms=-1)
    add(accumulator, queue, b"again")


def test_accumulator_accepts_one_frame_larger_than_the_buffer() -> None:
    """A frame larger than ``buffer.memory`` is sent alone and does not block forever."""
    accumulator, queue = make(buffer_bytes=1000)
    delivery = Delivery("t", 0, base_timestamp_ms=0)
    accumulator.add_frame(queue, delivery, pa.py_buffer(bytes(5000)))
    with pytest.raises(BufferExhaustedError):
        add(accumulator, queue, b"x")
    batch = take(accumulator)
    assert batch is not None
    accumulator.acknowledged(batch, base_offset=0, append_time_ms=-1)
    add(accumulator, queue, b"x")


def test_accumulator_follows_a_partition_to_its_new_leader() -> None:
    """Batches that waited for one broker go to the next; those without a leader wait for one."""
    accumulator, queue = make()
    add(accumulator, queue, b"a")
    with accumulator.lock:
        accumulator.set_leader(queue, -1, 3)
    assert take(accumulator) is None
    with accumulator.lock:
        accumulator.set_leader(queue, 8, 4)
        assert accumulator.take(LEADER, now_s=time.monotonic())[0] is None
        assert accumulator.take(8, now_s=time.monotonic())[0] is not None


def test_accumulator_tries_a_new_leader_at_once_whatever_the_last_ones_backoff() -> None:
    """W12: repeated failures lengthen pauses to a second, but not for a new leader."""
    accumulator, queue = make()
    add(accumulator, queue, b"a")
    for _ in range(8):
        batch = take(accumulator, later_s=10.0)
        assert batch is not None
        accumulator.retry([batch])
    assert take(accumulator) is None
    with accumulator.lock:
        accumulator.set_leader(queue, LEADER + 1, 4)
        assert accumulator.take(LEADER + 1, now_s=time.monotonic())[0] is batch


def test_accumulator_expires_old_records_wherever_they_are() -> None:
    """``delivery.timeout.ms`` ends every wait, for a partition without a leader and for frames in flight, too."""
    accumulator, queue = make(delivery_timeout_s=1.0, linger_s=0.5)
    in_flight, _ = add(accumulator, queue, b"a")
    batch = take(accumulator, later_s=0.6)
    assert batch is not None
    with accumulator.lock:
        accumulator.set_leader(queue, -1, 3)
    waiting, _ = add(accumulator, queue, b"b")
    accumulator.expire(time.monotonic() + 0.6)  # seals the batch that no thread takes
    accumulator.expire(time.monotonic() + 2.0)
    assert isinstance(in_flight.error, DeliveryTimeoutError)
    assert isinstance(waiting.error, DeliveryTimeoutError)
    accumulator.acknowledged(batch, base_offset=5, append_time_ms=-1)
    assert in_flight.base_offset == -1
    assert accumulator.take_first_error() is in_flight.error
    assert accumulator.take_first_error() is None


def test_accumulator_reports_why_a_frame_was_not_acknowledged_in_time() -> None:
    """The error names a full disk and not the timeout."""
    accumulator, queue = make(delivery_timeout_s=1.0)
    refused, _ = add(accumulator, queue, b"a")
    batch = take(accumulator)
    assert batch is not None
    accumulator.retry([batch], LogStorageError("t-0: No space left on device"))
    accumulator.expire(time.monotonic() + 2.0)
    assert isinstance(refused.error, DeliveryTimeoutError)
    assert "The last try: [KAFKA_STORAGE_ERROR] t-0: No space left on device" in str(refused.error)


def test_accumulator_expires_a_frame_while_a_thread_encodes_it() -> None:
    """The thread that took or sealed the batch still finds its records: otherwise it would die, and fail others'
    frames.
    """
    accumulator, queue = make(delivery_timeout_s=1.0)
    taken_delivery, _ = add(accumulator, queue, b"a")
    taken = take(accumulator)
    closed_delivery, _ = add(accumulator, queue, b"b")
    with accumulator.lock:
        queue.room = 0
        closed = accumulator.make_room(queue, 1000)
    accumulator.expire(time.monotonic() + 2.0)
    assert taken_delivery.is_done
    assert closed_delivery.is_done
    assert taken is not None
    assert taken.builder is not None
    assert closed is not None
    assert closed.builder is not None
    accumulator.encoded(closed, closed.builder.encode("none"))
    accumulator.acknowledged(taken, base_offset=0, append_time_ms=-1)
    delivery, _ = add(accumulator, queue, b"c")
    following = take(accumulator)
    assert following is not None
    assert following.delivery is delivery


def test_accumulator_fails_a_batch_that_cannot_be_encoded_and_continues() -> None:
    """A batch that fails affects no other."""
    accumulator, queue = make()
    deliveries = [add(accumulator, queue, b"%d" % n)[0] for n in range(9)]
    with accumulator.lock:
        queue.room = 0
        full = accumulator.make_room(queue, 1000)
    assert full is not None
    assert take(accumulator) is None
    accumulator.encoded(full, None, SchemaMismatchError("no"))
    assert deliveries[0].error is not None
    add(accumulator, queue, b"next")
    assert take(accumulator) is not None


def test_batch_whose_encoding_was_interrupted_is_encoded_by_who_sends_it() -> None:
    """Ctrl-C in `send`: what comes behind it in the partition does not wait for it."""
    accumulator, queue = make()
    for number in range(9):
        add(accumulator, queue, b"%d" % number)
    with accumulator.lock:
        queue.room = 0
        full = accumulator.make_room(queue, 1000)
    assert full is not None
    accumulator.not_encoded(full)
    taken = take(accumulator)
    assert taken is full
    assert taken.builder is not None


def test_batches_behind_one_that_expires_are_sent() -> None:
    accumulator, queue = make()
    add(accumulator, queue, b"first")
    with accumulator.lock:
        queue.room = 0
        full = accumulator.make_room(queue, 1000)  # never encoded
    assert full is not None
    full.deadline_s = 0.0
    add(accumulator, queue, b"next")
    with accumulator.lock:
        accumulator.seal_batch(queue)
    assert take(accumulator) is None
    accumulator.expire(1.0)
    taken = take(accumulator)
    assert taken is not None
    assert values_of(taken) == [b"next"]


def test_accumulator_refuses_records_when_closed() -> None:
    """After the end no record is accepted, and remaining ones fail."""
    accumulator, queue = make()
    delivery, _ = add(accumulator, queue, b"a")
    accumulator.close()
    with pytest.raises(ClosedError):
        add(accumulator, PartitionQueue("t", bytes(16), 1, UNTYPED, 1000), b"b")
    accumulator.abandon_all(NotEnoughReplicasError("over"))
    assert isinstance(delivery.error, NotEnoughReplicasError)


def test_accumulator_reports_each_failure_once() -> None:
    """`flush` and `close` raise each failure, even if the record's own future has raised it."""
    accumulator, queue = make()
    for reason in ("one", "two"):
        delivery, _ = add(accumulator, queue, b"x")
        batch = take(accumulator)
        assert batch is not None
        accumulator.failed(batch, SchemaMismatchError(reason))
        assert delivery.error is not None
        error = accumulator.take_first_error()
        assert error is not None
        assert error.message == reason
        assert accumulator.take_first_error() is None


def test_frame_in_flight_when_its_topic_is_given_up_fails_with_its_answer() -> None:
    """It fails without waiting for its timeout: nobody refreshes that topic's metadata any more."""
    accumulator, queue = make()
    waits, _ = add(accumulator, queue, b"a")
    flies = take(accumulator)
    assert flies is not None
    behind, _ = add(accumulator, queue, b"b")
    gone = UnknownTopicOrPartitionError("gone")
    accumulator.give_up([queue], gone)
    assert (behind.error, waits.is_done) == (gone, False)
    accumulator.retry([flies], LogStorageError("tried"))
    assert waits.error is gone
    assert take(accumulator, later_s=100) is None


@pytest.mark.parametrize("linger_s", [0.0, 60.0])
def test_record_that_is_added_when_its_topic_was_given_up_fails(linger_s: float) -> None:
    """This holds for a thread that had found the partition before, and for a partition without a leader."""
    accumulator, queue = make(linger_s=linger_s)
    with accumulator.lock:
        accumulator.set_leader(queue, NO_LEADER, 3)
    gone = UnknownTopicOrPartitionError("gone")
    accumulator.give_up([queue], gone)
    late, _ = add(accumulator, queue, b"a")
    other, _ = add(accumulator, PartitionQueue("u", bytes(16), 0, UNTYPED, 1000), b"b")
    accumulator.expire(time.monotonic())
    assert late.error is gone
    assert not other.is_done


def test_recreated_topic_keeps_the_records_sent_to_it() -> None:
    """Only the partitions of the old topic are given up."""
    accumulator, queue = make()
    again = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
    kept, _ = add(accumulator, again, b"a")
    accumulator.give_up([queue], UnknownTopicOrPartitionError("gone"))
    assert not kept.is_done
