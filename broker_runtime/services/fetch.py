"""What a broker does for a fetch: it gathers frames of several partitions, and waits for them if there are none.

Rule: an answer never waits while there is enough to give, and to a consumer never holds a frame at or above the last
stable offset (the high watermark, where it reads uncommitted records as well). A follower (`BrokerCaller`) gets all up
to the log's end, reports how far its own logs go, and is given the high watermark of every partition that it reports.
Partitions end a wait (`Partition.add_waiter`); nothing is polled. Errors are per partition and end the wait: one broken
partition holds up no other. Knows nothing of streams. Never decodes rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

from broker_runtime.contract.errors import OffsetOutOfRangeError, PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.predicate.frames import prepared
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, READ_COMMITTED
from broker_runtime.contract.streams import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline, Signal
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.security.authorizer import ALLOW_ALL, Authorizer
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.caller import BrokerCaller, Caller
from broker_runtime.services.fetch_wait import FetchWait
from broker_runtime.services.follower_session import FOLLOWER_FETCH, FollowerSession
from broker_runtime.services.leadership_check import Denied, LeadershipCheck
from broker_runtime.services.partition_read import (
    FetchAnswer,
    PartitionRead,
    answer_of,
    close_reads,
    is_enough,
    load_found,
    read_for_consumer,
    read_for_follower,
)

__all__ = ["FETCH", "FOLLOWER_FETCH", "FetchAnswer", "FetchService"]

FETCH = "fetch"
"""A consumer's, as a request among the metrics, and its kind of stream."""
_MAX_BUDGET_WAIT_S = 20.0
_SEARCH_S = 0.5  # for frames in which a row can match; then the client is told how far that went
_REPLICA_BUDGET_BYTES = 64 << 20

_logger = logging.getLogger(__name__)


class FetchService:
    """Serves consumers and followers of the partitions this broker leads. Thread-safe; one call per waiting thread."""

    def __init__(
        self,
        registry: PartitionRegistry,
        *,
        max_bytes: int,
        budget: ByteBudget,
        replica_budget: ByteBudget | None = None,
        leadership: LeadershipCheck | None = None,
        authorizer: Authorizer = ALLOW_ALL,
        clock: Clock = CLOCK,
        meters: Meters = NO_METERS,
    ) -> None:
        """``max_bytes``: the broker's ``fetch.max.bytes``. ``budget``: for the bytes of all answers being written to
        consumers; ``replica_budget``: of those to followers, which consumers must not hold up. ``leadership``: checks
        this broker's before a consumer is told that its offset does not exist (None: that is not checked).

        ``clock``: also that of in-sync sets: `Partition.propose_in_sync` must be given the time of the same one.
        """
        self._registry = registry
        self._max_bytes = max_bytes
        self._budget = budget
        self._replica_budget = replica_budget if replica_budget is not None else ByteBudget(_REPLICA_BUDGET_BYTES)
        self._leadership = leadership
        self._authorizer = authorizer
        self._clock = clock
        self._meters = meters

    def fetch(
        self,
        caller: Caller,
        request: FetchRequest,
        *,
        rotation: int = 0,
        still_waiting: Callable[[], None] = lambda: None,
    ) -> FetchAnswer:
        """Answers as soon as ``min_bytes`` are there or a partition has an error, else after ``max_wait_ms``.

        For consumers: a follower fetches in its `follower_session`. ``rotation`` says which of the partitions is read
        first; raise it by one per request so that a byte limit starves none. ``still_waiting`` is called every
        `HEARTBEAT_INTERVAL_S` of a wait; what it raises ends the fetch. The first partition that has data gives at
        least one frame, however large.
        """
        wait = FetchWait(request.max_wait_ms, still_waiting, self._clock)
        start = rotation % len(request.partitions) if request.partitions else 0
        wanted = request.partitions[start:] + request.partitions[:start]
        reads = self._read(caller, request, wanted)
        try:
            reads = self._wait(caller, request, wanted, reads, wait)
            answer = self._load(caller, request, reads, still_waiting)
            wait.note(self._meters, FETCH)
            return answer
        finally:
            close_reads(reads)

    def follower_session(self, caller: BrokerCaller) -> FollowerSession:
        """For all fetches of a follower over one connection. Close it."""
        return FollowerSession(
            caller, self._registry, read=self._read, load=self._load, clock=self._clock, meters=self._meters
        )

    def _read(
        self,
        caller: Caller,
        request: FetchRequest,
        wanted: Sequence[FetchPartition],
        *,
        reported: Collection[TopicPartition] = (),
    ) -> list[PartitionRead]:
        """``reported``: of which of them a follower has just reported something."""
        reads: list[PartitionRead] = []
        denied: list[tuple[PartitionRead, Denied]] = []
        left_bytes = min(request.max_bytes, self._max_bytes)
        search = Deadline(_SEARCH_S, clock=self._clock)
        is_first = True
        for each in wanted:
            read = PartitionRead(each)
            reads.append(read)
            try:
                if not isinstance(caller, BrokerCaller):  # again after each wait: it may have been withdrawn
                    self._authorizer.require(caller, "Read", "Topic", each.topic)
                partition = read.partition = self._registry.find(each.topic, each.partition, each.topic_id)
                read.leader_epoch = partition.leader_epoch
                if each.predicate >= 0:
                    read.test = prepared(request.predicates[each.predicate])
                room_bytes = min(each.max_bytes, max(left_bytes, 0))
                if isinstance(caller, BrokerCaller):
                    now_ms = int(self._clock.now_s() * 1000)
                    is_report = (each.topic, each.partition) in reported
                    read_for_follower(read, room_bytes, caller, now_ms, is_first=is_first, is_report=is_report)
                else:
                    is_committed = request.isolation_level == READ_COMMITTED
                    read_for_consumer(read, room_bytes, is_first=is_first, is_committed=is_committed, search=search)
            except PylogError as error:
                if read.partition is None:
                    read.error = error
                elif isinstance(error, OffsetOutOfRangeError) and not isinstance(caller, BrokerCaller):
                    read.error = error
                    denied.append((read, Denied(read.partition, read.leader_epoch, error)))
                else:
                    read.error = read.partition.refusal(error)
            if read.found is not None:
                left_bytes -= read.found.size_bytes
                is_first = False
        if denied and self._leadership is not None:
            verified = self._leadership.verified([each for _, each in denied])
            for (read, _), verified_error in zip(denied, verified, strict=True):
                read.error = verified_error
        return reads

    def _wait(
        self,
        caller: Caller,
        request: FetchRequest,
        wanted: Sequence[FetchPartition],
        reads: list[PartitionRead],
        wait: FetchWait,
    ) -> list[PartitionRead]:
        waiter = Signal()
        watched: set[Partition] = set()
        try:
            while not is_enough(reads, request.min_bytes) and not wait.is_over:
                close_reads(reads)
                # Also those that were hosted during the wait.
                fresh = {read.partition for read in reads if read.partition is not None} - watched
                for partition in fresh:
                    partition.add_waiter(waiter)
                watched |= fresh
                if not fresh:
                    wait.until(waiter.wait)
                # Read again after the waiter was added: what came in between is seen here, what comes later wakes it.
                reads = self._read(caller, request, wanted)
            return reads
        finally:
            for partition in watched:
                partition.remove_waiter(waiter)

    def _load(
        self,
        caller: Caller,
        request: FetchRequest,
        reads: list[PartitionRead],
        still_waiting: Callable[[], None],
    ) -> FetchAnswer:
        is_replica = isinstance(caller, BrokerCaller)
        budget = self._replica_budget if is_replica else self._budget
        held_bytes = sum(read.found.size_bytes for read in reads if read.found is not None)
        if not self._acquire(budget, held_bytes, still_waiting):
            close_reads(reads)  # no room for an answer: it is empty, and the client fetches again
            held_bytes = 0
        cells: list[pa.Buffer] = []
        partitions: list[FetchedPartition] = []
        try:
            for read in reads:
                try:
                    cell = load_found(read)
                except PylogError as error:
                    assert read.partition is not None
                    read.error, cell = read.partition.refusal(error), None
                if cell is not None:
                    cells.append(cell)
                    self._meters.read(read.wanted.topic, cell.size, is_replica=is_replica)
                answer = answer_of(read, row=len(cells) - 1 if cell is not None else -1, is_replica=is_replica)
                if answer is not None:
                    partitions.append(answer)
                    if read.error is not None:
                        self._meters.refused(FOLLOWER_FETCH if is_replica else FETCH, read.error)
                        _log_failure(caller, read.wanted, read.error)
        except BaseException:
            budget.release(held_bytes)
            raise
        response = FetchResponse(request_id=request.request_id, partitions=tuple(partitions))
        return FetchAnswer(response=response, cells=cells, held_bytes=held_bytes, _budget=budget)

    def _acquire(self, budget: ByteBudget, size_bytes: int, still_waiting: Callable[[], None]) -> bool:
        deadline = Deadline(_MAX_BUDGET_WAIT_S, clock=self._clock)
        while not budget.acquire(size_bytes, HEARTBEAT_INTERVAL_S):
            if deadline.expired:
                return False
            still_waiting()
        return True


def _log_failure(caller: Caller, wanted: FetchPartition, error: PylogError) -> None:
    event(
        _logger,
        "fetch partition",
        level=logging.DEBUG,
        topic=wanted.topic,
        partition=wanted.partition,
        **caller.log_fields,
        error=error,
    )
