"""Producers and consumers as a broker meets them: they believe what metadata says, ask again, and time out.

The models keep the rules that the real clients keep: at most five frames in flight per partition, retried in order and
unchanged; positions only go on; an answer of an older leader epoch than one that was seen is not believed. Rule: what
they see goes into the history as it is; whether it is right is for the checkers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from broker_runtime.contract.frame import encode_frame
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from broker_runtime.contract.requests import ListOffsetsRequest, ListOffsetsResponse, OffsetQuery, PartitionKey
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.streams import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ProduceRequest,
    ProduceResponse,
)
from tests.simulation.partitions.broker.node import EPOCH_MS
from tests.simulation.partitions.broker.serving import Fetched
from tests.simulation.partitions.history import Batch, body_of
from tests.simulation.partitions.world import Metadata, World
from tests.simulation.simulator.scheduler import MS, SECOND

IN_FLIGHT = 5
# Answers that say for certain that a batch is not in the log.
_NEVER_APPENDED = {
    "FENCED_LEADER_EPOCH",
    "NOT_ENOUGH_REPLICAS",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_PRODUCER_ID",
}
_UNTYPED = TopicSchema.untyped()


class Client:
    """What all clients have: what they believe of the cluster, and how they ask."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.metadata = Metadata()
        self._is_asking = False
        world.clients.append(name)
        world.scheduler.after(world.scheduler.between(0, 200 * MS), name, self.refresh)

    def refresh(self) -> None:
        """Asks some broker who leads what."""
        if self._is_asking:
            return
        self._is_asking = True

        def answered(answer: object) -> None:
            assert isinstance(answer, Metadata)
            self._is_asking = False
            self.metadata = self.metadata.newer(answer)

        def failed(reason: str) -> None:
            self._is_asking = False
            self.world.scheduler.after(300 * MS, self.name, self.refresh)

        nodes = self.world.nodes
        broker_id = self.world.rng.choice(sorted(nodes))
        self.world.call(
            self.name,
            broker_id,
            lambda life, reply: reply(Metadata.of(life)),
            on_answer=answered,
            on_failure=failed,
            timeout_us=SECOND,
        )

    def _every(self, interval_us: int, action: Callable[[], None]) -> None:
        def run() -> None:
            action()
            self.world.scheduler.after(interval_us, self.name, run)

        self.world.scheduler.after(self.world.scheduler.between(0, interval_us), self.name, run)


@dataclass(slots=True, eq=False)
class Queued:
    """A batch on its way. ``attempt`` 0: not sent yet. ``is_doubtful``: a try was left open, so it may be there."""

    batch: Batch
    is_in_flight: bool = False
    attempt: int = 0
    is_doubtful: bool = False
    was_first: bool = False  # whether everything before it was acknowledged when it was sent


@dataclass(slots=True)
class ProducerPartition:
    """One partition of a producer. ``producer_id`` -1: it is not idempotent."""

    producer_id: int
    queue: list[Queued] = field(default_factory=list)
    made: int = 0
    next_sequence: int = 0
    wait_until_us: int = 0


class Producer(Client):
    """Sends ``batches`` to each of its partitions.

    ``producer_id`` None: not idempotent; each batch is then sent once, whatever becomes of it.
    """

    def __init__(
        self,
        world: World,
        name: str,
        partitions: list[TopicPartition],
        *,
        batches: int,
        producer_id: int | None,
        acks: int = -1,
        value_bytes: int = 0,
        interval_us: int = 150 * MS,
    ) -> None:
        super().__init__(world, name)
        self.partitions = {at: ProducerPartition(-1 if producer_id is None else producer_id) for at in partitions}
        self._batches = batches
        self._is_idempotent = producer_id is not None
        self._acks = acks
        self._filler = bytes(value_bytes)
        self._every(interval_us, self._work)

    @property
    def is_done(self) -> bool:
        """Whether everything was made and acknowledged (or given up, where it is sent once)."""
        return all(state.made >= self._batches and not state.queue for state in self.partitions.values())

    def stop_making(self) -> None:
        """No further batches."""
        self._batches = 0

    def make(self, at: TopicPartition, values: tuple[str, ...] = ()) -> Batch:
        """A new batch for the partition, of these values or some; it is sent when it is its turn."""
        state = self.partitions[at]
        count = len(values) or self.world.rng.randint(1, 3)
        values = values or tuple(f"{self.name}/{at.partition}/{state.made}.{row}" for row in range(count))
        batch = self._encoded(at, state, state.made, values)
        state.made += 1
        state.queue.append(Queued(batch))
        return batch

    def _encoded(self, at: TopicPartition, state: ProducerPartition, number: int, values: tuple[str, ...]) -> Batch:
        """A batch with the next sequence."""
        base_sequence = state.next_sequence if self._is_idempotent else -1
        frame = encode_frame(
            pa.record_batch({"value": pa.array([value.encode() + self._filler for value in values], pa.binary())}),
            _UNTYPED,
            timestamps=EPOCH_MS,
            producer_id=state.producer_id,
            producer_epoch=0 if self._is_idempotent else -1,
            base_sequence=base_sequence,
        )
        state.next_sequence += len(values)
        batch = Batch(
            producer=self.name,
            at=at,
            number=number,
            base_sequence=base_sequence,
            values=values,
            frame=frame,
            body=body_of(frame),
            acks=self._acks,
        )
        self.world.history.made(batch)
        return batch

    def _work(self) -> None:
        for at, state in self.partitions.items():
            if state.made < self._batches and len(state.queue) < IN_FLIGHT and self.world.rng.random() < 0.7:
                self.make(at)
            self._pump(at, state)

    def _pump(self, at: TopicPartition, state: ProducerPartition) -> None:
        if self.world.scheduler.now_us < state.wait_until_us:
            return
        leader = self.metadata.leaders.get(at)
        if leader is None or leader.broker_id is None:
            self.refresh()
            return
        for position, queued in enumerate(state.queue[:IN_FLIGHT]):
            # Never further ahead than a broker remembers, as a producer whose answers come in order.
            if not queued.is_in_flight and queued.batch.number < state.queue[0].batch.number + IN_FLIGHT:
                queued.was_first = position == 0
                self._send(at, state, queued, leader.broker_id, leader.leader_epoch)

    def _send(
        self, at: TopicPartition, state: ProducerPartition, queued: Queued, broker_id: int, leader_epoch: int
    ) -> None:
        queued.is_in_flight = True
        queued.attempt += 1
        attempt, batch = queued.attempt, queued.batch
        request = ProduceRequest(
            request_id=batch.number,
            topic=at.topic,
            partition=at.partition,
            topic_id=self.metadata.topic_ids[at.topic],
            leader_epoch=leader_epoch,
            acks=self._acks,
            timeout_ms=2_000,
        )

        def answered(answer: object) -> None:
            assert isinstance(answer, ProduceResponse)
            if queued.attempt == attempt and queued in state.queue:
                self._answered(at, state, queued, answer)

        def failed(reason: str) -> None:
            if queued.attempt == attempt and queued in state.queue:
                queued.is_doubtful |= reason != "refused"
                self._failed(at, state, queued, reason)

        self.world.call(
            self.name,
            broker_id,
            lambda life, reply: life.serving.produce(request, batch.frame, reply),
            on_answer=answered,
            on_failure=failed,
            timeout_us=3 * SECOND,
            may_repeat=self._is_idempotent,
            what=str(batch),
        )

    def _answered(self, at: TopicPartition, state: ProducerPartition, queued: Queued, answer: ProduceResponse) -> None:
        if answer.error is None:
            state.queue.remove(queued)
            self._pump(at, state)
            return
        code = answer.error.code
        if code == "NOT_ENOUGH_REPLICAS":
            self.world.trace.situation("produce refused for want of in-sync replicas")
        elif code == "NOT_ENOUGH_REPLICAS_AFTER_APPEND":
            self.world.trace.situation("produce appended, then too few in sync")
        if queued.was_first and code in {"OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"}:
            self.world.invariants.refused_first(queued.batch, state.producer_id, answer.error)
            self._start_again(at, state)
        queued.is_doubtful |= code not in _NEVER_APPENDED
        self._failed(at, state, queued, code)

    def _start_again(self, at: TopicPartition, state: ProducerPartition) -> None:
        """Nothing that the leader has knows this producer any more: what is surely nowhere goes again under another
        id; what may be in the log, or may have been, is given up."""
        self.world.trace.situation("producer begins anew")
        state.producer_id, state.next_sequence = state.producer_id + 1_000, 0
        for queued in list(state.queue):
            if queued.is_doubtful:
                self.world.trace.line(self.name, f"{queued.batch} of {at} is given up: it may be there")
                state.queue.remove(queued)
            else:
                queued.batch = self._encoded(at, state, queued.batch.number, queued.batch.values)

    def _failed(self, at: TopicPartition, state: ProducerPartition, queued: Queued, reason: str) -> None:
        self.world.trace.line(self.name, f"{queued.batch} of {at} failed: {reason}")
        if not self._is_idempotent:
            state.queue.remove(queued)
        else:
            # All behind it are sent again too, in order.
            first = state.queue.index(queued) if queued in state.queue else 0
            for later in state.queue[first:]:
                later.is_doubtful |= later.is_in_flight and later is not queued
                later.is_in_flight = False
                later.attempt += 1
        state.wait_until_us = self.world.scheduler.now_us + self.world.scheduler.between(50 * MS, 250 * MS)
        self.refresh()


class Consumer(Client):
    """Reads partitions from their beginning, for ever."""

    def __init__(self, world: World, name: str, partitions: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.positions = dict.fromkeys(partitions, 0)
        self._epochs = dict.fromkeys(partitions, -1)
        self._fetching: set[int] = set()
        self._rotation = 0
        self._every(200 * MS, self._work)
        self._every(2 * SECOND, self._ask_offsets)

    def _work(self) -> None:
        by_leader: dict[int, list[TopicPartition]] = {}
        for at in self.positions:
            leader = self.metadata.leaders.get(at)
            if leader is None or leader.broker_id is None:
                self.refresh()
            else:
                by_leader.setdefault(leader.broker_id, []).append(at)
        for broker_id, partitions in by_leader.items():
            if broker_id not in self._fetching:
                self._fetch(broker_id, partitions)

    def _fetch(self, broker_id: int, partitions: list[TopicPartition]) -> None:
        self._fetching.add(broker_id)
        self._rotation += 1
        asked = {at: self.positions[at] for at in partitions}
        request = FetchRequest(
            request_id=self._rotation,
            partitions=tuple(
                FetchPartition(
                    topic=at.topic,
                    partition=at.partition,
                    topic_id=self.metadata.topic_ids[at.topic],
                    offset=position,
                    leader_epoch=self.metadata.leaders[at].leader_epoch,
                )
                for at, position in asked.items()
            ),
            max_wait_ms=1_000,
        )

        def answered(answer: object) -> None:
            assert isinstance(answer, Fetched)
            self._fetching.discard(broker_id)
            for each in answer.response.partitions:
                at = TopicPartition(each.topic, each.partition)
                if self.positions[at] == asked[at]:
                    self._fetched(at, each, answer)

        def failed(reason: str) -> None:
            self._fetching.discard(broker_id)
            self.refresh()

        self.world.call(
            self.name,
            broker_id,
            lambda life, reply: life.serving.fetch(request, reply, rotation=self._rotation),
            on_answer=answered,
            on_failure=failed,
            timeout_us=3 * SECOND,
        )

    def _fetched(self, at: TopicPartition, each: FetchedPartition, answer: Fetched) -> None:
        invariants = self.world.invariants
        if each.error is not None:
            if each.error.code == "OFFSET_OUT_OF_RANGE":
                self.positions[at] = invariants.fell_out(
                    at, self.positions[at], self.name, self.metadata.topic_ids[at.topic]
                )
            self.refresh()
            return
        if each.leader_epoch < self._epochs[at]:
            return
        self._epochs[at] = each.leader_epoch
        if each.row >= 0:
            self.positions[at] = invariants.consumed(
                self.name, at, self.metadata.topic_ids[at.topic], self.positions[at], answer.cells[each.row]
            )

    def _ask_offsets(self) -> None:
        for at in self.positions:
            leader = self.metadata.leaders.get(at)
            if leader is None or leader.broker_id is None or self.world.rng.random() < 0.5:
                continue
            key = PartitionKey(topic=at.topic, partition=at.partition, topic_id=self.metadata.topic_ids[at.topic])
            request = ListOffsetsRequest(
                queries=tuple(
                    OffsetQuery(at=key, timestamp=when, leader_epoch=leader.leader_epoch) for when in (EARLIEST, LATEST)
                )
            )
            self.world.call(
                self.name,
                leader.broker_id,
                lambda life, reply, request=request: life.serving.list_offsets(request, reply),
                on_answer=lambda answer, at=at: self._told_offsets(at, answer),
                on_failure=lambda reason: self.refresh(),
                timeout_us=SECOND,
            )

    def _told_offsets(self, at: TopicPartition, answer: object) -> None:
        assert isinstance(answer, ListOffsetsResponse)
        if any(each.error is not None for each in answer.answers):
            self.refresh()
