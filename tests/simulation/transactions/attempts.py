"""One attempt of a task, as Spark's sink makes it: begins, writes invisible rows, waits for them, and reports.

Rule: keeps the sink's rules (`pyspark_log.spark.sink`). An attempt that finds its batch decided counts its rows and
sends nothing; the first frame in each partition carries the transaction's identity; a frame is sent again, unchanged,
until it is acknowledged or refused for good.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker_runtime.contract.frame import encode_frame
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.streams import ProduceRequest, ProduceResponse
from broker_runtime.contract.transactions import (
    BeginTransactionRequest,
    BeginTransactionResponse,
    TransactionIdentity,
    TransactionPartition,
)
from tests.callers import CLIENT
from tests.simulation.partitions.broker.node import EPOCH_MS
from tests.simulation.partitions.clients import Client
from tests.simulation.partitions.history import Batch, body_of
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.stacks import OWN_THREAD
from tests.simulation.transactions import situations
from tests.simulation.transactions.broker import TransactionalLife
from tests.simulation.transactions.calls import NoAnswerError, ask, patiently

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

PATIENCE_US = 12 * SECOND
_PRODUCE_US = 3 * SECOND
_UNTYPED = TopicSchema.untyped()
_NEVER_RIGHT = {"OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID", "DUPLICATE_SEQUENCE_NUMBER"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the attempts of a batch have in common."""

    transactional_id: str
    run_id: str
    batch_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row to be written: ``name`` says which, whoever writes it; ``filler`` is what else it holds."""

    name: str
    partition: int
    filler: str = ""

    @property
    def payload_bytes(self) -> int:
        """What the sink counts."""
        return len(self.name) + len(self.filler)


@dataclass(slots=True, kw_only=True)
class Written:
    """What was sent in one transaction, and what is known of it. ``producer_id`` -1: the batch had been decided."""

    scope: Scope
    attempt: int
    epoch: int
    producer_id: int
    batches: list[Batch] = field(default_factory=list)
    rows: int = 0
    payload_bytes: int = 0

    def partitions(self, topic_ids: dict[str, bytes]) -> tuple[TransactionPartition, ...]:
        """All that were written to."""
        found = sorted({batch.at for batch in self.batches})
        return tuple(
            TransactionPartition(topic=at.topic, topic_id=topic_ids[at.topic], partition=at.partition) for at in found
        )


class Writer(Client):
    """A process that writes in transactions. Its calls block: for events with threads of their own."""

    world: World

    _numbers = itertools.count()

    def ask(
        self,
        handle: Callable[[TransactionalLife, Callable[[object], None]], None],
        *,
        broker_id: int | None = None,
        timeout_us: int = 4 * SECOND,
        what: str,
    ) -> Any:
        """Asks a broker, any one by default. Raises `NoAnswerError`."""
        world = self.world
        chosen = world.rng.choice(sorted(world.nodes)) if broker_id is None else broker_id
        return ask(world, world.scheduler, self.name, chosen, handle, timeout_us=timeout_us, may_repeat=True, what=what)

    def act(self, action: str, request: Any, *, broker_id: int | None = None) -> Any:
        """Asks the service of transactions. Raises `NoAnswerError`."""
        return self.ask(
            lambda life, reply: reply(getattr(life.transactions.service, action)(CLIENT, request)),
            broker_id=broker_id,
            what=action,
        )

    def begin(self, scope: Scope, attempt: int, *, epoch: int = -1) -> Written:
        """A transaction begins at the coordinator. ``epoch``: that the run was given before. Raises `NoAnswerError`."""
        request = BeginTransactionRequest(
            transactional_id=scope.transactional_id,
            run_id=scope.run_id,
            batch_id=scope.batch_id,
            epoch=epoch,
            timeout_ms=scope.timeout_ms,
        )
        begun = patiently(self.world.scheduler, lambda: self.act("begin_transaction", request), patience_us=PATIENCE_US)
        assert isinstance(begun, BeginTransactionResponse)
        if begun.is_decided:
            self.world.trace.situation(situations.DECIDED)
        elif scope.batch_id < 0:
            scope = Scope(
                transactional_id=scope.transactional_id,
                run_id=scope.run_id,
                batch_id=begun.batch_id,
                timeout_ms=scope.timeout_ms,
            )
        written = Written(scope=scope, attempt=attempt, epoch=begun.epoch, producer_id=begun.producer_id)
        if not begun.is_decided:
            self.world.checker.began(written)
        return written

    def begin_by_decision(self, scope: Scope, epoch: int, producer_id: int) -> Written:
        """A transaction begins with what the answer to the decision before gave."""
        written = Written(scope=scope, attempt=-1, epoch=epoch, producer_id=producer_id)
        self.world.checker.began(written)
        return written

    def write(self, written: Written, rows: Sequence[Row]) -> None:
        """Writes the rows, and waits until they are acknowledged. Raises `NoAnswerError`."""
        written.rows += len(rows)
        written.payload_bytes += sum(row.payload_bytes for row in rows)
        if written.producer_id < 0:
            return
        by_partition: dict[int, list[Row]] = {}
        for row in rows:
            by_partition.setdefault(row.partition, []).append(row)
        for number, some in sorted(by_partition.items()):
            sequence = 0
            for start in range(0, len(some), 2):
                batch = self._encoded(written, number, sequence, some[start : start + 2])
                sequence += len(batch.values)
                self._send(written, batch)

    def _encoded(self, written: Written, number: int, sequence: int, rows: Sequence[Row]) -> Batch:
        values = tuple(f"{row.name}|{written.attempt}|{row.filler}" for row in rows)
        frame = encode_frame(
            pa.record_batch({"value": pa.array([value.encode() for value in values], pa.binary())}),
            _UNTYPED,
            timestamps=EPOCH_MS,
            producer_id=written.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        batch = Batch(
            producer=f"{written.scope.transactional_id} {written.producer_id}",
            at=TopicPartition(self.world.topic, number),
            number=len(written.batches),
            base_sequence=sequence,
            values=values,
            frame=frame,
            body=body_of(frame),
            acks=-1,
        )
        self.world.history.made(batch)
        written.batches.append(batch)
        return batch

    def _send(self, written: Written, batch: Batch) -> None:
        scope, world = written.scope, self.world
        identity = TransactionIdentity(
            transactional_id=scope.transactional_id,
            epoch=written.epoch,
            batch_id=scope.batch_id,
            run_id=scope.run_id,
            attempt=written.attempt,
        )

        def once() -> None:
            leader = self.metadata.leaders.get(batch.at)
            if leader is None or leader.broker_id is None:
                self.refresh()
                raise NoAnswerError("LEADER_NOT_AVAILABLE")
            request = ProduceRequest(
                request_id=batch.number,
                topic=batch.at.topic,
                partition=batch.at.partition,
                topic_id=self.metadata.topic_ids[batch.at.topic],
                leader_epoch=leader.leader_epoch,
                acks=-1,
                timeout_ms=2_000,
                transaction=identity if batch.base_sequence == 0 else None,
            )
            try:
                answer = self.ask(
                    lambda life, reply: life.serving.produce(request, batch.frame, reply),
                    broker_id=leader.broker_id,
                    timeout_us=_PRODUCE_US,
                    what=str(batch),
                )
            except NoAnswerError:
                self.refresh()
                raise
            assert isinstance(answer, ProduceResponse)
            if answer.error is None:
                return
            self.refresh()
            code = answer.error.code
            if code in _NEVER_RIGHT:
                raise ViolationError(3, f"{batch.at}: {batch} of transaction {written.producer_id} is refused: {code}")
            if code == "PRODUCER_FENCED":
                world.trace.situation(situations.FENCED_AT_PARTITION)
            raise NoAnswerError(code)

        patiently(world.scheduler, once, patience_us=PATIENCE_US)


class Executor(Writer):
    """A process that runs attempts of tasks, some at once."""

    def run(
        self,
        scope: Scope,
        attempt: int,
        rows: Sequence[Row],
        on_written: Callable[[Written], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Asked by a driver, which hears of the outcome unless this process ends before."""
        scheduler = self.world.scheduler

        def work() -> None:
            if not rows:
                on_written(Written(scope=scope, attempt=attempt, epoch=-1, producer_id=-1))
                return
            try:
                written = self.begin(scope, attempt)
                self.write(written, rows)
            except NoAnswerError as error:
                if error.code == "PRODUCER_FENCED":
                    self.world.trace.situation(situations.FENCED_ATTEMPT)
                on_failed(error.code)
            else:
                on_written(written)

        scheduler.after(scheduler.between(MS, 30 * MS), self.name, work, thread=OWN_THREAD)

    def kill(self) -> None:
        """The process ends where it stands, and another takes its place."""
        self.world.scheduler.end_life(self.name)
        self._is_asking = False
        self.world.scheduler.after(self.world.scheduler.between(0, 200 * MS), self.name, self.refresh)
