"""Sequence numbers of an idempotent producer's frames: which frame gets which, and what a failure means for others."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    NetworkError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    PylogError,
    RecordTooLargeError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.frame import encode_frame, parse_header, verify_frame
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.schema import UNTYPED
from broker_runtime.contract.streams import ProduceResponse
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.broker_sender import settle
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import PartitionQueue, ProducerBatch
from pyspark_log.client.producer.sequence import FrameNumber, Sequence

LEADER = 7
ID = 40


class Sender:
    """One partition's frames of two records each, sent and answered by hand."""

    def __init__(self, *, with_id: bool = True, frames: int = 5) -> None:
        self.accumulator = Accumulator(
            buffer_bytes=1 << 20, linger_s=0.0, max_block_s=0.0, delivery_timeout_s=100.0, is_idempotent=True
        )
        assert self.accumulator.numbering is not None
        self.numbering = self.accumulator.numbering
        self.queue = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
        with self.accumulator.lock:
            self.accumulator.set_leader(self.queue, LEADER, 3)
        if with_id:
            self.accumulator.provide_id(ID)
        self.deliveries = [self.add() for _ in range(frames)]

    def add(self, queue: PartitionQueue | None = None) -> Delivery:
        delivery = Delivery("t", 0, base_timestamp_ms=0)
        delivery.count = 2
        frame = encode_frame(pa.record_batch({"value": pa.array([b"a", b"b"])}), UNTYPED, timestamps=0)
        self.accumulator.add_frame(queue or self.queue, delivery, frame)
        return delivery

    def take(self, leader: int = LEADER) -> ProducerBatch | None:
        with self.accumulator.lock:
            batch, _ = self.accumulator.take(leader, now_s=time.monotonic() + 100)
        if batch is not None:
            batch.write_number()
        return batch

    def take_all(self) -> list[ProducerBatch]:
        taken = []
        while (batch := self.take()) is not None:
            taken.append(batch)
        return taken

    def answer(self, batch: ProducerBatch, error: PylogError | None = None) -> None:
        settle(
            self.accumulator,
            batch,
            ProduceResponse(request_id=0, error=None if error is None else ErrorInfo.of(error)),
        )

    def break_off(self, *batches: ProducerBatch) -> None:
        self.accumulator.retry(batches, NetworkError("broken"), is_doubtful=True)

    def expire(self, batch: ProducerBatch) -> None:
        batch.deadline_s = 0.0
        self.accumulator.expire(time.monotonic())


def numbers(batches: list[ProducerBatch]) -> list[tuple[int, int, int]]:
    """The numbers in the frames' headers."""
    for batch in batches:
        header = verify_frame(memoryview(batch.frame))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == batch.number[:3]  # type: ignore[index]
    return [batch.number[:3] for batch in batches]  # type: ignore[arg-type, misc]


def test_frames_are_numbered_in_the_order_of_sending_five_at_a_time() -> None:
    """Sequences begin at 0 in each partition and count records."""
    sender = Sender(frames=7)
    other = PartitionQueue("t", bytes(16), 1, UNTYPED, 1000)
    with sender.accumulator.lock:
        sender.accumulator.set_leader(other, LEADER, 3)
    sender.add(other)
    taken = sender.take_all()
    assert numbers([o for o in taken if o.queue is sender.queue]) == [(ID, 0, n) for n in (0, 2, 4, 6, 8)]
    assert numbers([o for o in taken if o.queue is other]) == [(ID, 0, 0)]
    sender.answer(taken[0])
    assert numbers(sender.take_all()) == [(ID, 0, 10)]


def test_repeated_frame_keeps_its_number_and_its_bytes() -> None:
    """A retry is the same frame, or the broker could not recognise it."""
    sender = Sender()
    taken = sender.take_all()
    before = [batch.frame.to_pybytes() for batch in taken]  # type: ignore[union-attr]
    sender.answer(taken[0], NotLeaderOrFollowerError("moved"))
    sender.break_off(*taken[1:])
    again = sender.take_all()
    assert again == taken
    assert [batch.frame.to_pybytes() for batch in again] == before  # type: ignore[union-attr]


def test_frames_wait_for_an_id_and_fail_with_the_reason_for_its_absence() -> None:
    """No frame is sent without a number; if the cluster gives no id, the error says why."""
    sender = Sender(with_id=False, frames=1)
    asked = []
    sender.numbering.on_id_wanted = lambda: asked.append(1)
    assert sender.numbering.wants_id
    assert sender.take() is None
    assert asked
    sender.numbering.id_error = ZooKeeperUnavailableError("away")
    sender.accumulator.expire(time.monotonic() + 200)
    assert "The last try: [ZOOKEEPER_UNAVAILABLE] away" in str(sender.deliveries[0].error)
    sender.add()
    assert sender.take() is None
    sender.accumulator.provide_id(5)
    assert numbers(sender.take_all()) == [(5, 0, 0)]
    assert not sender.numbering.wants_id


def test_refused_batch_gives_later_ones_a_new_epoch_once_all_are_answered() -> None:
    """A frame that is too large was never in the log: later ones get numbers of a new epoch, and the old epoch ends."""
    sender = Sender()
    a, b, c, d, e = sender.take_all()
    sender.answer(a)
    sender.answer(b, RecordTooLargeError("no"))
    assert isinstance(sender.deliveries[1].error, RecordTooLargeError)
    sender.answer(c, OutOfOrderSequenceError("gap"))
    sender.add()
    assert sender.take() is None
    sender.answer(d, OutOfOrderSequenceError("gap"))
    sender.answer(e, OutOfOrderSequenceError("gap"))
    again = sender.take_all()
    assert again[:3] == [c, d, e]
    assert numbers(again) == [(ID, 1, n) for n in (0, 2, 4, 6)]


def test_frame_older_than_the_refused_one_is_settled_under_its_old_number_first() -> None:
    """It may be in the log, and a new epoch would fence it."""
    sender = Sender(frames=3)
    a, b, c = sender.take_all()
    sender.answer(a, NotLeaderOrFollowerError("moved"))  # appended, maybe
    sender.answer(b, RecordTooLargeError("no"))
    sender.answer(c, OutOfOrderSequenceError("gap"))
    assert numbers(sender.take_all()) == [(ID, 0, 0)]
    sender.answer(a)
    assert numbers(sender.take_all()) == [(ID, 1, 0)]


def test_gap_is_waited_out_while_an_earlier_frame_is_open() -> None:
    """The broker refused only the first; the others follow under their numbers, even those in doubt."""
    sender = Sender(frames=3)
    sender.break_off(*sender.take_all())
    a, b, c = sender.take_all()
    sender.answer(a, NotEnoughReplicasError("too few"))
    sender.answer(b, OutOfOrderSequenceError("gap"))
    sender.answer(c, UnknownProducerIdError("unknown"))
    again = sender.take_all()
    assert again == [a, b, c]
    assert numbers(again) == [(ID, 0, n) for n in (0, 2, 4)]


@pytest.mark.parametrize("error", [UnknownProducerIdError("forgotten"), OutOfOrderSequenceError("gap")])
def test_forgotten_producer_uses_a_new_epoch_when_nothing_can_be_duplicated(error: PylogError) -> None:
    """All earlier frames are acknowledged, and the frame itself was never sent before."""
    sender = Sender(frames=3)
    a, b, c = sender.take_all()
    sender.answer(a)
    sender.answer(b, error)
    sender.answer(c, error)
    again = sender.take_all()
    assert again == [b, c]
    assert numbers(again) == [(ID, 1, 0), (ID, 1, 2)]


@pytest.mark.parametrize("kind", [UnknownProducerIdError, OutOfOrderSequenceError])
def test_forgotten_producer_fails_by_name_when_a_record_could_be_duplicated(kind: type[PylogError]) -> None:
    """An earlier attempt was not answered: under another number the frame could be in the log twice."""
    sender = Sender(frames=2)
    a, b = sender.take_all()
    sender.break_off(a)
    sender.answer(b, NotEnoughReplicasError("too few"))
    assert sender.take_all() == [a, b]
    sender.answer(a, kind("lost"))
    assert isinstance(sender.deliveries[0].error, kind)
    assert "unknown" in str(sender.deliveries[0].error)
    sender.answer(b, kind("lost"))
    assert numbers(sender.take_all()) == [(ID, 1, 0)]


def test_frame_whose_sequence_was_taken_fails_and_later_ones_keep_their_numbers() -> None:
    """They may be in the log under these numbers: under others they could be there twice, or too early."""
    sender = Sender(frames=4)
    a, b, c, d = sender.take_all()
    sender.answer(a)
    sender.answer(b, DuplicateSequenceError("other content"))
    assert isinstance(sender.deliveries[1].error, DuplicateSequenceError)
    sender.break_off(c, d)
    assert numbers(sender.take_all()) == [(ID, 0, 4), (ID, 0, 6)]
    sender.answer(c)
    sender.answer(d)
    assert [delivery.error for delivery in sender.deliveries[2:]] == [None, None]


def test_frame_after_an_expired_one_is_not_sent_under_its_number() -> None:
    """Whether the first is in the log is unknown: the next has its own number, and shows it."""
    sender = Sender(frames=3)
    a, b, c = sender.take_all()
    sender.expire(a)
    sender.break_off(a, b)
    sender.answer(c, NotEnoughReplicasError("too few"))
    assert numbers(sender.take_all()) == [(ID, 0, 2), (ID, 0, 4)]
    sender.answer(b)  # so the first was there
    sender.answer(c)
    sender.add()
    assert numbers(sender.take_all()) == [(ID, 0, 6)]


def test_expired_frame_that_was_surely_not_appended_leaves_no_gap() -> None:
    """It was refused each time, or never sent: later batches get new numbers without a failed attempt."""
    sender = Sender(frames=2)
    a, b = sender.take_all()
    sender.answer(a, NotEnoughReplicasError("too few"))
    sender.answer(b, OutOfOrderSequenceError("gap"))
    sender.expire(a)
    assert numbers(sender.take_all()) == [(ID, 1, 0)]


def test_frame_that_is_refused_after_it_expired_leaves_no_gap() -> None:
    """It expired in flight; then the answer says that it was not appended."""
    sender = Sender(frames=2)
    a, b = sender.take_all()
    sender.expire(a)
    sender.answer(a, NotEnoughReplicasError("too few"))
    sender.answer(b, OutOfOrderSequenceError("gap"))
    assert numbers(sender.take_all()) == [(ID, 1, 0)]


def test_doubtful_batch_after_a_surely_absent_one_gets_a_new_number() -> None:
    """No broker appends it without the one before it: it is absent, too."""
    sender = Sender(frames=3)
    a, b, c = sender.take_all()
    sender.answer(a, RecordTooLargeError("no"))
    sender.break_off(b, c)
    again = sender.take_all()
    assert numbers(again) == [(ID, 1, 0), (ID, 1, 2)]
    sender.answer(again[0], RecordTooLargeError("no"))  # it was in doubt under the old number only
    sender.answer(again[1], OutOfOrderSequenceError("gap"))
    assert numbers(sender.take_all()) == [(ID, 2, 0)]


def test_batches_fenced_by_a_newer_epoch_fail_and_the_next_use_another() -> None:
    """A producer that owns its id alone never gets there; if it does, it continues."""
    sender = Sender(frames=1)
    (a,) = sender.take_all()
    sender.answer(a, InvalidProducerEpochError("old"))
    assert isinstance(sender.deliveries[0].error, InvalidProducerEpochError)
    sender.add()
    assert numbers(sender.take_all()) == [(ID, 1, 0)]


def test_frames_of_a_partition_wait_until_its_old_leader_answered_all() -> None:
    """A new leader must not get a later frame before an earlier one."""
    sender = Sender(frames=2)
    a = sender.take()
    with sender.accumulator.lock:
        sender.accumulator.set_leader(sender.queue, 8, 4)
    assert sender.take(8) is None
    sender.break_off(a)  # type: ignore[arg-type]
    first, second = sender.take(8), sender.take(8)
    assert first is a
    assert numbers([first, second]) == [(ID, 0, 0), (ID, 0, 2)]  # type: ignore[list-item]


def test_topic_that_was_given_up_and_comes_back_gets_another_id() -> None:
    """Under the old id its frames would be taken for repeated ones."""
    sender = Sender(frames=1)
    sender.take_all()
    sender.accumulator.give_up([sender.queue], UnknownTopicOrPartitionError("gone"))
    assert sender.numbering.wants_id
    sender.accumulator.provide_id(ID + 1)
    again = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
    with sender.accumulator.lock:
        sender.accumulator.set_leader(again, LEADER, 5)
    sender.add(again)
    assert numbers(sender.take_all()) == [(ID + 1, 0, 0)]


def test_sequence_wraps_and_takes_another_id_when_its_epochs_are_used_up() -> None:
    """After 2^31 - 1 comes 0; after epoch 32767 another id."""
    sequence = Sequence()
    assert sequence.needs_id
    sequence.begin(1)
    for _ in range(255):
        sequence.take(1 << 23)
    assert sequence.take((1 << 23) - 3) == FrameNumber(1, 0, 255 << 23)
    assert sequence.take(5) == FrameNumber(1, 0, (1 << 31) - 3)
    assert sequence.take(1) == FrameNumber(1, 0, 2)
    for epoch in range(1, 1 << 15):
        sequence.void_from(0)
        assert not sequence.needs_id
        assert sequence.take(1) == FrameNumber(1, epoch, 0)
    sequence.void_from(0)
    assert sequence.needs_id
    sequence.begin(2)
    assert sequence.take(1) == FrameNumber(2, 0, 0)


def test_producer_whose_epochs_are_used_up_waits_for_another_id() -> None:
    """It requests one and continues."""
    sender = Sender(frames=1)
    sender.take_all()
    sender.queue.sequence._epoch = (1 << 15) - 1
    sender.queue.sequence.void_from(0)
    sender.queue.in_flight = 0
    sender.add()
    assert sender.take() is None
    assert sender.numbering.wants_id
    sender.accumulator.provide_id(ID + 1)
    assert numbers(sender.take_all()) == [(ID + 1, 0, 0)]


def test_frame_in_read_only_memory_is_numbered_in_a_copy() -> None:
    """Memory of the caller, or of a stream that may still read it, is not written to."""
    sender = Sender(frames=0)
    frame = encode_frame(pa.record_batch({"value": pa.array([b"a"])}), UNTYPED, timestamps=0).to_pybytes()
    delivery = Delivery("t", 0, base_timestamp_ms=0)
    delivery.count = 1
    sender.accumulator.add_frame(sender.queue, delivery, pa.py_buffer(frame))
    (taken,) = sender.take_all()
    assert numbers([taken]) == [(ID, 0, 0)]
    assert parse_header(frame).producer_id == -1
    sent = taken.frame
    sender.answer(taken, OutOfOrderSequenceError("gap"))
    (again,) = sender.take_all()
    assert numbers([again]) == [(ID, 1, 0)]
    assert parse_header(sent).producer_epoch == 0


def test_frames_in_flight_keep_a_recreated_topic_from_being_sent_to() -> None:
    """A frame that is not answered may be in the old topic's log: none that follows it goes to the new one before."""
    sender = Sender(frames=3)
    in_flight = sender.take()
    assert in_flight is not None
    with sender.accumulator.lock:
        assert not sender.accumulator.recreate([sender.queue], b"n" * 16)
    assert (sender.take(), sender.queue.topic_id, sender.queue.in_flight) == (None, bytes(16), 1)
    sender.break_off(in_flight)
    with sender.accumulator.lock:
        assert sender.accumulator.recreate([sender.queue], b"n" * 16)
        sender.accumulator.set_leader(sender.queue, LEADER, 0)
    sender.accumulator.provide_id(ID + 1)
    assert numbers(sender.take_all()) == [(ID + 1, 0, n) for n in (0, 2, 4)]


def test_frames_go_to_a_recreated_topic_under_another_id() -> None:
    """Whatever became of them in the old topic's log, none of them is in the new one's."""
    sender = Sender(frames=2)
    sender.break_off(*sender.take_all())
    with sender.accumulator.lock:
        assert sender.accumulator.recreate([sender.queue], b"n" * 16)
        sender.accumulator.set_leader(sender.queue, LEADER, 0)
    assert sender.take() is None  # it waits for the id
    sender.accumulator.provide_id(ID + 1)
    assert numbers(sender.take_all()) == [(ID + 1, 0, 0), (ID + 1, 0, 2)]
    assert sender.queue.topic_id == b"n" * 16
