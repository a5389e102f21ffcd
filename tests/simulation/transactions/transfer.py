"""A producer as Kafka's users write one: consumes, transforms, produces, and commits a group's offset with its output.

Each transaction writes record ``n`` and moves the group's offset from ``n`` to ``n + 1``. So each record is there once
exactly if the two become visible together. Where two processes have one transactional id, the older one is a zombie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_runtime.contract.requests import (
    CommittedOffset,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    PartitionKey,
)
from broker_runtime.contract.transactions import NEXT_BATCH, EndTransactionRequest, EndTransactionResponse, GroupCommit
from tests.callers import CLIENT
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.stacks import OWN_THREAD
from tests.simulation.transactions import situations
from tests.simulation.transactions.attempts import PATIENCE_US, Row, Scope, Writer, Written
from tests.simulation.transactions.calls import NoAnswerError, patiently

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

_ABORTED = 0.15


class Transfer:
    """A transactional id and its processes. ``records``: how many were written, once it is done."""

    def __init__(self, world: World, name: str, *, partitions: int, timeout_ms: int) -> None:
        self.world = world
        self.name = name
        self.records = 0
        self.partitions = partitions
        self.timeout_ms = timeout_ms
        self.is_over = False  # no more is to be written
        self.is_done = False
        self.runs = 0
        self.processes: list[TransferProcess] = []

    def add_process(self) -> TransferProcess:
        """One more process of the same transactional id. Those before it are zombies."""
        process = TransferProcess(self.world, f"{self.name}p{len(self.processes) + 1}", self)
        self.processes.append(process)
        process.start()
        return process

    def row_name(self, number: int) -> str:
        """What the record is called."""
        return f"{self.name}/{number}"


class TransferProcess(Writer):
    """One process, in all its lives."""

    def __init__(self, world: World, name: str, transfer: Transfer) -> None:
        super().__init__(world, name)
        self.transfer = transfer
        self._run_id = ""
        self._epoch = -1  # of the run
        self._ended_batch = -1  # the last one that the run has decided
        self._next_producer_id = -1  # for the batch after it

    def start(self, delay_us: int = 0) -> None:
        """It begins, unless it died since."""
        life = self.world.scheduler.life_of(self.name)

        def begin() -> None:
            if self.world.scheduler.life_of(self.name) == life:
                self.world.scheduler.after(0, self.name, self._run, thread=OWN_THREAD)

        self.world.scheduler.after(delay_us, "net", begin)

    def kill(self, restart_us: int) -> None:
        """It ends where it stands, and begins again."""
        self.world.scheduler.end_life(self.name)
        self._is_asking = False
        self.start(restart_us)

    def _run(self) -> None:
        transfer, world = self.transfer, self.world
        transfer.runs += 1
        self._run_id = f"{self.name}r{transfer.runs}"
        self._epoch = self._ended_batch = self._next_producer_id = -1
        self.refresh()
        try:
            while self._transfer_one():
                world.scheduler.block(world.scheduler.between(50 * MS, 600 * MS))
        except NoAnswerError as error:
            world.trace.line(self.name, f"run {self._run_id} fails: {error.code}")
            if transfer.processes[-1] is self:  # else another has taken over
                self.start(world.scheduler.between(200 * MS, 2 * SECOND))
            elif error.code == "PRODUCER_FENCED":
                world.trace.situation(situations.FENCED_PROCESS)

    def _transfer_one(self) -> bool:
        """Whether there may be more. Raises `NoAnswerError`: the process is to begin again."""
        transfer, world = self.transfer, self.world
        scope = Scope(
            transactional_id=transfer.name,
            run_id=self._run_id,
            batch_id=NEXT_BATCH if self._ended_batch < 0 else self._ended_batch + 1,
            timeout_ms=transfer.timeout_ms,
        )
        if self._next_producer_id >= 0:
            world.trace.situation(situations.BEGUN_BY_DECISION)
            written = self.begin_by_decision(scope, self._epoch, self._next_producer_id)
            self._next_producer_id = -1
        else:
            written = self.begin(scope, -1, epoch=self._epoch)  # first: only then nobody else moves the offset
            self._epoch = written.epoch
        number = patiently(world.scheduler, self._committed, patience_us=PATIENCE_US)
        if transfer.is_over:
            self._end(written, None)
            transfer.records, transfer.is_done = number, True
            return False
        self.write(written, [Row(name=transfer.row_name(number), partition=number % transfer.partitions)])
        self._end(written, None if world.rng.random() < _ABORTED else number + 1)
        return True

    def _committed(self) -> int:
        request = FetchOffsetsRequest(group_id=self.transfer.name)
        answer = self.ask(
            lambda life, reply: reply(life.groups.service.fetch_offsets(CLIENT, request)),
            broker_id=self._coordinator(),
            what="fetch_offsets",
        )
        assert isinstance(answer, FetchOffsetsResponse)
        return answer.offsets[0].offset if answer.offsets else 0

    def _coordinator(self) -> int:
        request = FindCoordinatorRequest(group_id=self.transfer.name)
        answer = self.ask(
            lambda life, reply: reply(life.groups.service.find_coordinator(CLIENT, request)), what="find_coordinator"
        )
        assert isinstance(answer, FindCoordinatorResponse)
        return answer.broker_id

    def _end(self, written: Written, offset: int | None) -> None:
        """Commits, with the offset, or aborts (None)."""
        world, transfer = self.world, self.transfer
        topic_id = world.states.topics[world.topic].topic_id
        group = None
        if offset is not None:
            at = PartitionKey(topic=world.topic, partition=0, topic_id=topic_id)
            group = GroupCommit(group_id=transfer.name, offsets=(CommittedOffset(at=at, offset=offset),))
        request = EndTransactionRequest(
            transactional_id=transfer.name,
            run_id=self._run_id,
            epoch=written.epoch,
            batch_id=written.scope.batch_id,
            is_commit=group is not None,
            producer_ids=((written.producer_id, written.producer_id),),
            partitions=written.partitions({world.topic: topic_id}),
            group=group,
            begins_next=True,
        )
        if group is not None:
            world.checker.to_be_decided([written])

        def end() -> object:
            broker_id = None if group is None else self._coordinator()
            return self.act("end_transaction", request, broker_id=broker_id)

        answer = patiently(world.scheduler, end, patience_us=PATIENCE_US)
        assert isinstance(answer, EndTransactionResponse)
        self._ended_batch, self._next_producer_id = written.scope.batch_id, answer.next_producer_id
        if group is not None:
            world.checker.committed(written, answer)
            world.trace.situation(situations.OFFSET_WITH_DECISION)
