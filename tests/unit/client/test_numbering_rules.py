"""Which frame may be sent under which number, rule by rule, without an accumulator or a broker."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.contract.schema import UNTYPED
from pyspark_log.client.producer.accumulator import Numbering
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import PartitionQueue, ProducerBatch
from pyspark_log.client.producer.sequence import FrameNumber

LAST_EPOCH = (1 << 15) - 1


class Producer:
    """A producer's numbering, and how often it requested an id."""

    def __init__(self, *producer_ids: int) -> None:
        self.numbering = Numbering()
        self.asked = 0
        self.numbering.on_id_wanted = self._ask
        for producer_id in producer_ids:
            self.numbering.provide(producer_id)

    def _ask(self) -> None:
        self.asked += 1


def partition() -> PartitionQueue:
    return PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)


def batch(queue: PartitionQueue, serial: int, count: int = 2) -> ProducerBatch:
    delivery = Delivery("t", 0, base_timestamp_ms=0)
    delivery.count = count
    return ProducerBatch(queue, delivery, serial, 0, 0.0, 0.0)


def numbered(producer: Producer, queue: PartitionQueue, *serials: int) -> list[ProducerBatch]:
    frames = [batch(queue, serial) for serial in serials]
    for frame in frames:
        assert producer.numbering.number(frame)
    return frames


def test_frame_waits_for_an_id_and_each_partition_is_named_once_when_it_comes() -> None:
    """W14: no frame is sent without a number."""
    producer, first, second = Producer(), partition(), partition()
    assert producer.numbering.wants_id
    for queue in (first, second, first):
        assert not producer.numbering.number(batch(queue, 1))
    assert producer.asked == 3
    producer.numbering.id_error = ZooKeeperUnavailableError("away")
    assert producer.numbering.provide(40) == [first, second]
    assert (producer.numbering.id_error, producer.numbering.wants_id) == (None, False)
    assert producer.numbering.provide(41) == []
    (frame,) = numbered(producer, second, 2)
    assert frame.number == FrameNumber(41, 0, 0)


def test_partitions_that_begin_after_the_id_was_given_up_wait_for_another() -> None:
    """A topic of that name may have been sent to before; a partition that has begun keeps its id."""
    producer, old, new = Producer(40), partition(), partition()
    numbered(producer, old, 1)
    producer.numbering.give_up_id()
    assert (producer.asked, producer.numbering.wants_id) == (1, True)
    assert not producer.numbering.number(batch(new, 2))
    assert [frame.number for frame in numbered(producer, old, 3)] == [FrameNumber(40, 0, 2)]


def test_number_stays_as_long_as_it_is_valid() -> None:
    """A retried frame is the same to the broker; one whose number is void gets the next."""
    producer, queue = Producer(40), partition()
    first, second, third = numbered(producer, queue, 1, 2, 3)
    assert producer.numbering.number(second)
    assert second.number == FrameNumber(40, 0, 2)
    second.is_doubtful = third.is_doubtful = True
    queue.sequence.void_from(2)
    queue.in_flight = 1
    assert not producer.numbering.number(second), "frames of the old epoch are still unanswered"
    queue.in_flight = 0
    assert producer.numbering.number(second)
    assert producer.numbering.number(third)
    assert (second.number, third.number, first.number) == (
        FrameNumber(40, 1, 0),
        FrameNumber(40, 1, 2),
        FrameNumber(40, 0, 0),
    )
    assert not second.is_doubtful, "under its new number it was never sent"
    assert not third.is_doubtful


def test_partition_whose_epochs_are_used_up_takes_another_id() -> None:
    """No partition begins with the old id from then on."""
    producer, queue = Producer(40), partition()
    numbered(producer, queue, 0)
    for serial in range(1, LAST_EPOCH + 1):
        queue.sequence.void_from(serial)
        numbered(producer, queue, serial)
    assert numbered(producer, queue, LAST_EPOCH + 1)[0].number == FrameNumber(40, LAST_EPOCH, 2)
    queue.sequence.void_from(LAST_EPOCH + 2)
    late = batch(queue, LAST_EPOCH + 2)
    assert not producer.numbering.number(late)
    assert (producer.asked, producer.numbering.wants_id) == (1, True)
    assert producer.numbering.provide(41) == [queue]
    assert producer.numbering.number(late)
    assert late.number == FrameNumber(41, 0, 0)


def test_partition_that_needs_another_id_takes_one_that_was_fetched_meanwhile() -> None:
    """Another partition requested it: it is not requested again."""
    producer, queue = Producer(40), partition()
    numbered(producer, queue, 0)
    for serial in range(1, LAST_EPOCH + 1):
        queue.sequence.void_from(serial)
        numbered(producer, queue, serial)
    queue.sequence.void_from(LAST_EPOCH + 1)
    producer.numbering.provide(41)
    assert [frame.number for frame in numbered(producer, queue, LAST_EPOCH + 1)] == [FrameNumber(41, 0, 0)]
    assert producer.asked == 0


@pytest.mark.parametrize(
    ("is_numbered", "is_doubtful", "is_void", "begins_new_epoch"),
    [
        (True, False, False, True),
        (True, True, False, False),
        (False, False, False, False),
        (True, False, True, False),
    ],
    ids=["surely nowhere", "may be there", "never had a number", "had a number that does not count"],
)
def test_failed_frame_voids_later_numbers_only_when_it_is_surely_in_no_log(
    is_numbered: bool, is_doubtful: bool, is_void: bool, begins_new_epoch: bool
) -> None:
    """W14: if the frame may be in the log, so may later ones, under their numbers."""
    producer, queue = Producer(40), partition()
    numbered(producer, queue, 1)
    frame = batch(queue, 2)
    if is_numbered:
        assert producer.numbering.number(frame)
    if is_void:
        queue.sequence.void_from(2)
        numbered(producer, queue, 3)  # of the next epoch
    frame.is_doubtful = is_doubtful
    producer.numbering.dropped(frame)
    assert queue.sequence.begins_new_epoch is begins_new_epoch


@pytest.mark.parametrize(
    ("is_oldest", "is_void", "is_doubtful", "goes", "begins_new_epoch"),
    [
        (False, False, False, True, False),
        (False, False, True, True, False),
        (True, False, False, True, True),
        (True, False, True, False, False),
        (True, True, True, True, True),
    ],
    ids=["waits for others", "waits for others, doubtful", "nothing before it", "may be there", "gets a new number"],
)
def test_gap_before_a_frame_is_closed_by_other_frames_or_another_number(
    is_oldest: bool, is_void: bool, is_doubtful: bool, goes: bool, begins_new_epoch: bool
) -> None:
    """W14: these are the last three lines of the module's table."""
    producer, queue = Producer(40), partition()
    _, frame = numbered(producer, queue, 1, 2)
    frame.is_doubtful = is_doubtful
    if is_void:
        queue.sequence.void_from(1)
    assert producer.numbering.is_retryable(frame, is_oldest=is_oldest) is goes
    assert queue.sequence.begins_new_epoch is begins_new_epoch
