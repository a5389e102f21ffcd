"""An idempotent producer against a broker in one thread, with everything that can go wrong between them: no record
is duplicated, lost after its acknowledgement, or out of order. The accumulator and the producer state are the real
ones.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    FencedLeaderEpochError,
    NetworkError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    PylogError,
    RecordTooLargeError,
    RequestTimedOutError,
)
from broker_runtime.contract.frame import FrameHeader, decode_frame, encode_frame, parse_header
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.schema import UNTYPED, SchemaHistory
from broker_runtime.contract.streams import ProduceResponse
from broker_runtime.log.producer_state import ProducerState
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.broker_sender import settle
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import PartitionQueue, ProducerBatch

LEADER = 1


@dataclass
class Stream:
    """Frames that the producer wrote and the broker has not read, and answers that the producer has not read."""

    inbox: deque[tuple[bytes, int]] = field(default_factory=deque)  # frame, leader epoch
    pending: deque[tuple[int, ProduceResponse]] = field(default_factory=deque)  # log end to be committed, answer
    outbox: deque[ProduceResponse] = field(default_factory=deque)


class Broker:
    """The successive leaders of one partition: committed frames stay, others may vanish with their leader."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log: list[tuple[FrameHeader, int]] = []  # with the tag in the frame's only value
        self.committed = 0
        self.epoch = 1
        self.state = ProducerState()
        self.is_kind = False  # refuses nothing without reason

    def process(self, stream: Stream) -> None:
        frame, leader_epoch = stream.inbox.popleft()
        response = ProduceResponse(request_id=0)
        needed = self.committed
        try:
            if leader_epoch != self.epoch:
                raise FencedLeaderEpochError("old")
            whim = 1.0 if self.is_kind else self.rng.random()
            if whim < 0.03:
                raise RecordTooLargeError("a smaller limit just now")
            if whim < 0.08:
                raise NotEnoughReplicasError("too few just now")
            header = parse_header(frame)
            repeated = self.state.check(header)
            if repeated is None:
                header = msgspec.structs.replace(header, base_offset=len(self.log), append_time_ms=0)
                values = decode_frame(frame, SchemaHistory()).batch.column("value").to_pylist()
                self.log.extend((header, int(value)) for value in values)
                self.state.add(header)
                needed = len(self.log)
            else:
                needed = repeated.next_offset
            if 0.08 < whim < 0.12:
                raise self.rng.choice([RequestTimedOutError, NotEnoughReplicasAfterAppendError])("not in time")
        except PylogError as error:
            response = ProduceResponse(request_id=0, error=ErrorInfo.of(error))
            needed = min(needed, self.committed)
        stream.pending.append((needed, response))
        self.answer(stream)

    def answer(self, stream: Stream) -> None:
        while stream.pending and stream.pending[0][0] <= self.committed:
            stream.outbox.append(stream.pending.popleft()[1])

    def fail_over(self, streams: list[Stream]) -> None:
        end = self.rng.randint(self.committed, len(self.log))
        while end < len(self.log) and end and self.log[end][0].base_offset < end:
            end -= 1  # whole frames
        del self.log[max(end, self.committed) :]
        self.epoch += 1
        self.state = ProducerState()
        for header in dict.fromkeys(header.base_offset for header, _ in self.log):
            self.state.add(self.log[header][0])
        gone = ProduceResponse(request_id=0, error=ErrorInfo.of(NotLeaderOrFollowerError("moved")))
        for stream in streams:
            stream.outbox.extend(gone if needed > self.committed else answer for needed, answer in stream.pending)
            stream.pending.clear()


class World:
    """The producer's side as `Sender` and `BrokerSender` drive it, step by step, and all streams so far."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = Broker(self.rng)
        self.accumulator = Accumulator(
            buffer_bytes=1 << 30, linger_s=0.0, max_block_s=0.0, delivery_timeout_s=1e6, is_idempotent=True
        )
        self.queue = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
        with self.accumulator.lock:
            self.accumulator.set_leader(self.queue, LEADER, 1)
        self.stream = Stream()
        self.old_streams: list[Stream] = []
        self.unanswered: deque[ProducerBatch] = deque()
        self.deliveries: list[tuple[Delivery, list[int]]] = []
        self.next_tag = 0
        self.next_id = 100

    def step(self) -> None:
        actions = [
            (6, self.produce), (8, self.send), (8, self.process), (6, self.commit), (8, self.read),
            (1, self.break_stream), (2, self.process_old), (0.5, self.fail_over), (1, self.learn_leader),
            (0.4, self.expire_one), (1, self.provide_id), (0.2, self.forget_producers),
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        self.rng.choices([action for _, action in actions], weights)[0]()

    def produce(self) -> None:
        tags = [self.next_tag + n for n in range(self.rng.randint(1, 3))]
        self.next_tag += len(tags)
        delivery = Delivery("t", 0, base_timestamp_ms=0)
        delivery.count = len(tags)
        batch = pa.record_batch({"value": pa.array([b"%d" % tag for tag in tags])})
        self.accumulator.add_frame(self.queue, delivery, encode_frame(batch, UNTYPED, timestamps=0))
        self.deliveries.append((delivery, tags))

    def send(self) -> None:
        with self.accumulator.lock:
            batch, _ = self.accumulator.take(LEADER, now_s=time.monotonic() + 100)
        if batch is not None:
            batch.write_number()
            assert batch.frame is not None
            self.stream.inbox.append((batch.frame.to_pybytes(), self.queue.leader_epoch))
            self.unanswered.append(batch)

    def process(self) -> None:
        if self.stream.inbox:
            self.broker.process(self.stream)

    def process_old(self) -> None:
        """Frames that were written to a broken stream arrive late, or never."""
        stream = self.rng.choice(self.old_streams) if self.old_streams else None
        if stream is not None and stream.inbox:
            self.broker.process(stream)

    def commit(self) -> None:
        self.broker.committed = len(self.broker.log)
        for stream in (self.stream, *self.old_streams):
            self.broker.answer(stream)

    def read(self) -> None:
        if self.stream.outbox:
            settle(self.accumulator, self.unanswered.popleft(), self.stream.outbox.popleft())

    def break_stream(self) -> None:
        if self.rng.random() < 0.5:
            self.old_streams.append(self.stream)
        self.stream = Stream()
        came_back, self.unanswered = list(self.unanswered), deque()
        self.accumulator.retry(came_back, NetworkError("broken"), is_doubtful=True)
        if self.rng.random() < 0.2:
            self.expire_one()

    def fail_over(self) -> None:
        self.broker.fail_over([self.stream, *self.old_streams])

    def learn_leader(self) -> None:
        with self.accumulator.lock:
            self.accumulator.set_leader(self.queue, LEADER, self.broker.epoch)

    def expire_one(self) -> None:
        held = [one for one in self.accumulator._unfinished.values() if isinstance(one, ProducerBatch)]
        if held:
            (held[0] if self.rng.random() < 0.7 else self.rng.choice(held)).deadline_s = 0.0
            self.accumulator.expire(time.monotonic())

    def provide_id(self) -> None:
        numbering = self.accumulator.numbering
        assert numbering is not None
        if numbering.wants_id:
            self.accumulator.provide_id(self.next_id)
            self.next_id += 1

    def forget_producers(self) -> None:
        """The producer's last frame is a day old, older than any retry."""
        is_quiet = not self.unanswered and not any(stream.inbox for stream in self.old_streams)
        held = [
            one for one in self.accumulator._unfinished.values() if isinstance(one, ProducerBatch) and one.is_doubtful
        ]
        if is_quiet and not held:
            self.broker.state = ProducerState()

    def settle_everything(self) -> None:
        self.broker.is_kind = True
        for _ in range(100_000):
            if all(delivery.is_done for delivery, _ in self.deliveries):
                return
            for action in (self.provide_id, self.learn_leader, self.send, self.process, self.commit, self.read):
                action()
        raise AssertionError("the producer does not get on")


@pytest.mark.parametrize("first_seed", range(0, 300, 20))
def test_idempotent_producer_neither_duplicates_nor_loses_nor_reorders(first_seed: int) -> None:
    """W9: acknowledgements get lost, requests arrive late, leaders change, requests are refused or expire, ids are
    forgotten.
    """
    acknowledged = failed = renumbered = 0
    for seed in range(first_seed, first_seed + 20):
        world = World(seed)
        for _ in range(600):
            world.step()
        world.settle_everything()
        log = [tag for _, tag in world.broker.log]
        assert len(set(log)) == len(log), f"seed {seed}: duplicated"
        assert log == sorted(log), f"seed {seed}: out of order"
        there = set(log)
        for delivery, tags in world.deliveries:
            if delivery.error is None:
                assert there.issuperset(tags), f"seed {seed}: acknowledged and lost"
                acknowledged += 1
            else:
                assert not there.intersection(tags) or there.issuperset(tags)
                failed += 1
        renumbered += len({(header.producer_id, header.producer_epoch) for header, _ in world.broker.log}) > 1
    assert acknowledged > 2 * failed > 0
    assert renumbered > 3
