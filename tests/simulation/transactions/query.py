"""A streaming query into pylog, as Spark runs one: a driver plans micro-batches, notes them in its checkpoint, has
tasks write them, and decides.

    plan a batch ─▶ offset log ─▶ attempts of its tasks, on executors ─▶ decision ─▶ commit log ─▶ the next batch

A driver that dies or fails begins again from its checkpoint, as a new run. A checkpoint can be copied, with a driver of
its own, and rewound. What an operator does about an error is what the error's text says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from broker_runtime.contract.transactions import (
    AbortTransactionsRequest,
    EndTransactionRequest,
    EndTransactionResponse,
)
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.attempts import BatchScope, decide_empty
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.stacks import OWN_THREAD, Stack
from tests.simulation.transactions import situations
from tests.simulation.transactions.attempts import Executor, Row, Scope, Writer, Written
from tests.simulation.transactions.calls import NoAnswerError, patiently

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

_LOOK_US = 300 * MS
_MOST_FAILURES = 4
_DECIDE_US = 15 * SECOND
_KEPT_IN_TURN = 4  # rows that a filtered query writes, and then as many that it does not
_KEEP_MS = 30 * 86_400_000


class QueryFailedError(Exception):
    """The query ends with an error. ``code``: which."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Checkpoint:
    """What is on the query's disk. ``ends``: of each planned batch the row behind its last; ``committed``: the last
    batch in the commit log."""

    ends: list[int] = field(default_factory=list)
    committed: int = -1

    def copy(self) -> Checkpoint:
        """Another one with the same content."""
        return Checkpoint(list(self.ends), self.committed)


class Query:
    """A query with everything that works for it."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        tasks: int,
        partitions: int,
        timeout_ms: int,
        is_random: bool,
        is_filtered: bool,
    ) -> None:
        """``is_random``: what a row holds differs each time it is made. ``is_filtered``: it writes some rows only, and
        whole batches have none."""
        self.world = world
        self.name = name
        self.tasks = tasks
        self.partitions = partitions
        self.timeout_ms = timeout_ms
        self.is_random = is_random
        self.is_filtered = is_filtered
        self.available = 0  # rows of the input
        self.is_over = False  # there will be no more
        self.runs = 0
        self.attempts = 0
        self.checkpoint_of: dict[str, Checkpoint] = {}  # by run
        self.drivers: list[Driver] = []
        self._grow()

    def add_driver(self, checkpoint: Checkpoint) -> Driver:
        """One more driver, over a checkpoint of its own. Those before it are older."""
        driver = Driver(self.world, f"{self.name}d{len(self.drivers) + 1}", self, checkpoint)
        self.drivers.append(driver)
        driver.start()
        return driver

    @property
    def newest(self) -> Driver:
        """The driver that an operator wants to go on."""
        return self.drivers[-1]

    @property
    def is_done(self) -> bool:
        """Whether the newest driver has committed all of the input."""
        checkpoint = self.newest.checkpoint
        end = checkpoint.ends[-1] if checkpoint.ends else 0
        return self.is_over and end == self.available and checkpoint.committed == len(checkpoint.ends) - 1

    def row_name(self, number: int) -> str:
        """What the row is called wherever it is written."""
        return f"{self.name}/{number}"

    def is_kept(self, number: int) -> bool:
        """Whether the row is written."""
        return not self.is_filtered or number // _KEPT_IN_TURN % 2 == 0

    def make_row(self, number: int) -> Row:
        """A row of the query's output."""
        filler = "x" * self.world.rng.randrange(30) if self.is_random else ""
        return Row(name=self.row_name(number), partition=number % self.partitions, filler=filler)

    def _grow(self) -> None:
        if not self.is_over:
            self.available += self.world.rng.randint(0, 3)
            self.world.scheduler.after(400 * MS, "net", self._grow)

    def end_input(self) -> None:
        """There is no more of it."""
        self.is_over = True


@dataclass(slots=True, eq=False)
class _Task:
    """A task of a batch. ``running``: attempt → executor and its life when it began."""

    rows: range
    done: Written | None = None
    failures: int = 0
    running: dict[int, tuple[Executor, int]] = field(default_factory=dict)
    began_us: int = 0


class Driver(Writer):
    """See the module. ``checkpoint``: its own."""

    def __init__(self, world: World, name: str, query: Query, checkpoint: Checkpoint) -> None:
        super().__init__(world, name)
        self.query = query
        self.checkpoint = checkpoint
        self.is_ended = False  # for good
        self.is_to_keep_first = False  # at the next start
        self._run_id = ""
        self._waiting: list[Stack] = []
        self._inbox: list[Callable[[], None]] = []

    def start(self, delay_us: int = 0) -> None:
        """A run begins, unless it was ended."""
        life = self.world.scheduler.life_of(self.name)

        def begin() -> None:
            if not self.is_ended and self.world.scheduler.life_of(self.name) == life:
                self.world.scheduler.after(0, self.name, self._run, thread=OWN_THREAD)

        self.world.scheduler.after(delay_us, "net", begin)

    def kill(self, restart_us: int) -> None:
        """The process ends where it stands; another begins a new run in ``restart_us``."""
        self.world.scheduler.end_life(self.name)
        self._is_asking = False
        self._waiting.clear()
        self._inbox.clear()
        self.start(restart_us)

    # --- a run ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        query, trace = self.query, self.world.trace
        query.runs += 1
        self._run_id = f"{self.name}r{query.runs}"
        keeps_first, self.is_to_keep_first = self.is_to_keep_first, False
        query.checkpoint_of[self._run_id] = self.checkpoint
        trace.line(self.name, f"run {self._run_id}, batch {self.checkpoint.committed + 1}")
        self.refresh()
        try:
            while True:
                number = self._planned()
                self._write_batch(number, keeps_first=keeps_first)
                self.checkpoint.committed = number
        except QueryFailedError as error:
            trace.line(self.name, f"run {self._run_id} fails: {error.code}")
            self._failed(error.code)

    def _planned(self) -> int:
        """The next batch, as the checkpoint has it, or as soon as there is input."""
        checkpoint, scheduler = self.checkpoint, self.world.scheduler
        if len(checkpoint.ends) - 1 > checkpoint.committed:
            return len(checkpoint.ends) - 1
        while self.query.available <= self._end():
            scheduler.block(100 * MS)
        checkpoint.ends.append(self.query.available)
        return len(checkpoint.ends) - 1

    def _end(self) -> int:
        return self.checkpoint.ends[-1] if self.checkpoint.ends else 0

    def _write_batch(self, number: int, *, keeps_first: bool) -> None:
        ends = self.checkpoint.ends
        start, end = (ends[number - 1] if number else 0), ends[number]
        scope = Scope(
            transactional_id=self.query.name,
            run_id=self._run_id,
            batch_id=number,
            timeout_ms=self.query.timeout_ms,
        )
        step = max(1, -(-(end - start) // self.query.tasks))
        tasks = [_Task(range(first, min(first + step, end))) for first in range(start, end, step)]
        self._inbox.clear()
        for task in tasks:
            self._launch(scope, task)
        while any(task.done is None for task in tasks):
            self.world.scheduler.park(self.world.scheduler.now_us + _LOOK_US, waiting=self._waiting)
            inbox, self._inbox = self._inbox, []
            for message in inbox:
                message()
            for task in tasks:
                self._look_at(scope, task)
        self._decide(scope, [task.done for task in tasks if task.done is not None], keeps_first=keeps_first)

    def _launch(self, scope: Scope, task: _Task) -> None:
        world, query = self.world, self.query
        query.attempts += 1
        attempt = query.attempts
        executor = world.rng.choice(world.executors)
        task.running[attempt] = (executor, world.scheduler.life_of(executor.name))
        task.began_us = world.scheduler.now_us
        run_id, life = self._run_id, world.scheduler.life_of(self.name)

        def tell(message: Callable[[], None]) -> None:
            """A message to this run of the driver, over the network."""

            def deliver() -> None:
                if self._run_id == run_id:
                    self._inbox.append(message)
                    for stack in list(self._waiting):
                        world.scheduler.wake(stack)

            if world.scheduler.life_of(self.name) == life:
                world.network.send(executor.name, self.name, deliver, thread="messages")

        def on_written(written: Written) -> None:
            tell(lambda: self._done(task, attempt, written))

        def on_failed(code: str) -> None:
            tell(lambda: self._attempt_failed(task, attempt, code))

        rows = [query.make_row(number) for number in task.rows if query.is_kept(number)]
        world.network.send(
            self.name,
            executor.name,
            lambda: executor.run(scope, attempt, rows, on_written, on_failed),
            thread="tasks",
        )

    def _done(self, task: _Task, attempt: int, written: Written) -> None:
        if task.done is not None:
            self.world.trace.situation(situations.TWO_ATTEMPTS)
        elif attempt in task.running:
            task.done = written
        task.running.pop(attempt, None)

    def _attempt_failed(self, task: _Task, attempt: int, code: str) -> None:
        if task.running.pop(attempt, None) is None or task.done is not None:
            return
        if code in {"PRODUCER_FENCED", "CHECKPOINT_BEHIND_SINK"}:
            raise QueryFailedError(code)
        task.failures += 1
        if task.failures >= _MOST_FAILURES:
            raise QueryFailedError(f"task failed: {code}")

    def _look_at(self, scope: Scope, task: _Task) -> None:
        """Tasks whose executor is lost are begun again, and those that take long a second time."""
        if task.done is not None:
            return
        scheduler = self.world.scheduler
        for attempt, (executor, life) in list(task.running.items()):
            if scheduler.life_of(executor.name) != life:
                del task.running[attempt]
        waited_us = scheduler.now_us - task.began_us
        is_slow = waited_us > 20 * SECOND or (waited_us > 1_500 * MS and len(task.running) < 2)
        if not task.running or is_slow:
            self._launch(scope, task)

    # --- the decision ---------------------------------------------------------------------------------------------

    def _decide(self, scope: Scope, written: list[Written], *, keeps_first: bool) -> None:
        world = self.world
        if all(each.epoch < 0 for each in written):
            self._decide_empty(scope, keeps_first=keeps_first)
            return
        ids = sorted(each.producer_id for each in written if each.producer_id >= 0)
        topic_ids = {world.topic: world.states.topics[world.topic].topic_id}
        partitions = sorted({key for each in written for key in each.partitions(topic_ids)}, key=str)
        request = EndTransactionRequest(
            transactional_id=scope.transactional_id,
            run_id=scope.run_id,
            epoch=max(each.epoch for each in written),
            batch_id=scope.batch_id,
            is_commit=True,
            producer_ids=tuple((each, each) for each in ids),
            partitions=tuple(partitions),
            rows=sum(each.rows for each in written),
            payload_bytes=sum(each.payload_bytes for each in written),
            keeps_first=keeps_first,
        )
        world.checker.to_be_decided(written)
        answer = self._decided(lambda: self._end_transaction(request))
        assert isinstance(answer, EndTransactionResponse)
        self._answered(scope, answer, (request.rows, request.payload_bytes), keeps_first=keeps_first)

    def _decide_empty(self, scope: Scope, *, keeps_first: bool) -> None:
        """A batch without rows: what the sink does then is the product's own code."""
        brokers = cast(Cluster, SimpleNamespace(call=lambda action, request, *_, **__: self.act(action, request)))
        batch = BatchScope(
            transactional_id=scope.transactional_id,
            run_id=scope.run_id,
            batch_id=scope.batch_id,
            timeout_ms=scope.timeout_ms,
            keep_ms=_KEEP_MS,
        )
        answer = self._decided(lambda: decide_empty(brokers, batch, keeps_first=keeps_first, timeout_s=1))
        if answer is not None:
            assert isinstance(answer, EndTransactionResponse)
            self.world.trace.situation(situations.EMPTY_BATCH)
            self._answered(scope, answer, (0, 0), keeps_first=keeps_first)

    def _decided(self, ask: Callable[[], object]) -> object:
        world = self.world
        try:
            return patiently(world.scheduler, ask, patience_us=_DECIDE_US)
        except NoAnswerError as error:
            if error.code == "PRODUCER_FENCED":
                world.trace.situation(situations.FENCED_DECISION)
            if error.code == "REPLAY_DIFFERS":
                world.trace.situation(situations.REPLAY_DIFFERS)
            raise QueryFailedError(error.code) from None

    def _answered(
        self, scope: Scope, answer: EndTransactionResponse, contents: tuple[int, int], *, keeps_first: bool
    ) -> None:
        is_same = (answer.decided_rows, answer.decided_payload_bytes) == contents
        if answer.is_replay:
            self.world.trace.situation(situations.REPLAY_SAME if is_same else situations.FIRST_KEPT)
        self.world.checker.answered(scope, answer, keeps_first=keeps_first, is_same=is_same)

    def _end_transaction(self, request: EndTransactionRequest) -> object:
        before = self.world.decisions.last_batch(request.transactional_id)
        try:
            return self.act("end_transaction", request)
        except NoAnswerError as error:
            if error.is_retriable and before < request.batch_id <= self.world.decisions.last_batch(self.query.name):
                self.world.trace.situation(situations.OUTCOME_UNKNOWN)
            raise

    # --- failures -------------------------------------------------------------------------------------------------

    def _failed(self, code: str) -> None:
        query, world = self.query, self.world
        if world.rng.random() < 0.5:  # Spark calls abort, if it gets as far as that
            self._abort()
        if code == "PRODUCER_FENCED" and query.newest is not self:
            self.is_ended = True  # another driver has the query
            return
        if code in {"CHECKPOINT_BEHIND_SINK", "REPLAY_DIFFERS"}:
            self._mend(code)
        self.start(world.scheduler.between(300 * MS, 3 * SECOND))

    def _abort(self) -> None:
        request = AbortTransactionsRequest(transactional_id=self.query.name, run_id=self._run_id)
        try:
            self.act("abort_transactions", request)
        except NoAnswerError as error:
            self.world.trace.line(self.name, f"cannot abort: {error.code}")

    def _mend(self, code: str) -> None:
        """The present checkpoint is that of the run whose batch was decided last."""
        if code == "CHECKPOINT_BEHIND_SINK":
            self.world.trace.situation(situations.BEHIND)
        present = self.query.checkpoint_of[self.world.decisions.last_run(self.query.name)]
        if present == self.checkpoint:
            self.is_to_keep_first = code == "REPLAY_DIFFERS"
            return
        self.checkpoint = present.copy()
        self.world.trace.line(self.name, f"takes the checkpoint over: batch {self.checkpoint.committed}")
