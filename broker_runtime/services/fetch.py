"""What a broker does for a fetch: gather frames of several partitions, waiting for them if there are none.

Rule: an answer never waits while there is enough to give, and to a consumer never holds a frame at or above the high
watermark. A follower, which says which broker it is, gets all up to the log's end, tells how far its own logs go, and
is told the marks of every partition that it tells of. A wait ends by a bell that partitions ring (`FetchWaiter`), not
by looking every so often. Errors are per partition and end the wait: one broken partition holds up no other. Knows
nothing of streams; rows are never decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, MAX_SERVER_WAIT_S
from broker_runtime.contract.streams import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker_runtime.replication import FetchWaiter, Partition, PartitionRegistry
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.caller import BrokerCaller, Caller
from broker_runtime.services.fetch_look import (
    FetchAnswer,
    Look,
    close_looks,
    is_enough,
    load_slice,
    look_for_consumer,
    look_for_follower,
    tell,
)
from broker_runtime.services.follower_session import FollowerSession

__all__ = ["FetchAnswer", "FetchService"]

_MAX_BUDGET_WAIT_S = 20.0
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
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``max_bytes``: the broker's ``fetch.max.bytes``. ``budget``: for the bytes of all answers being written to
        consumers; ``replica_budget``: of those to followers, which consumers must not hold up.

        ``monotonic_s`` is also the clock that in-sync sets go by: `Partition.propose_in_sync` must be given the same.
        """
        self._registry = registry
        self._max_bytes = max_bytes
        self._budget = budget
        self._replica_budget = replica_budget if replica_budget is not None else ByteBudget(_REPLICA_BUDGET_BYTES)
        self._monotonic_s = monotonic_s

    def fetch(
        self,
        caller: Caller,
        request: FetchRequest,
        *,
        rotation: int = 0,
        still_waiting: Callable[[], None] = lambda: None,
    ) -> FetchAnswer:
        """Answers as soon as ``min_bytes`` are there or a partition has an error, else after ``max_wait_ms``.

        A `BrokerCaller` is a follower, any other caller a consumer. ``rotation`` says which of the partitions is looked
        at first; raise it by one per request so that a byte limit starves none. ``still_waiting`` is called each
        `HEARTBEAT_INTERVAL_S` of a wait; what it raises ends the fetch. The first partition that has data gives at
        least one frame, however large.
        """
        deadline_s = self._monotonic_s() + min(request.max_wait_ms / 1000, MAX_SERVER_WAIT_S)
        start = rotation % len(request.partitions) if request.partitions else 0
        wanted = request.partitions[start:] + request.partitions[:start]
        looks = self._look(caller, request, wanted)
        try:
            if not is_enough(looks, request.min_bytes) and self._monotonic_s() < deadline_s:
                looks = self._wait(caller, request, wanted, looks, deadline_s, still_waiting)
            return self._load(caller, request, looks, still_waiting)
        finally:
            close_looks(looks)

    def follower_session(self, caller: BrokerCaller) -> FollowerSession:
        """For all fetches of a follower over one connection. Close it."""
        return FollowerSession(caller, self._registry, look=self._look, load=self._load, monotonic_s=self._monotonic_s)

    def _look(
        self,
        caller: Caller,
        request: FetchRequest,
        wanted: Sequence[FetchPartition],
        *,
        is_first_look: bool = True,
        told: Collection[TopicPartition] | None = None,
    ) -> list[Look]:
        """``told``: of which of them the request says something new; None: of all, at its first look."""
        looks: list[Look] = []
        left_bytes = min(request.max_bytes, self._max_bytes)
        is_first = True
        for each in wanted:
            look = Look(each)
            looks.append(look)
            try:
                partition = look.partition = self._registry.find(each.topic, each.partition, each.topic_id)
                look.leader_epoch = partition.leader_epoch
                room_bytes = min(each.max_bytes, max(left_bytes, 0))
                if isinstance(caller, BrokerCaller):
                    now_ms = int(self._monotonic_s() * 1000)
                    tells = is_first_look if told is None else (each.topic, each.partition) in told
                    look_for_follower(look, room_bytes, caller, now_ms, is_first=is_first, tells=tells)
                else:
                    look_for_consumer(look, room_bytes, is_first=is_first)
            except PylogError as error:
                look.error = error if look.partition is None else look.partition.refusal(error)
            if look.found is not None:
                left_bytes -= look.found.size_bytes
                is_first = False
        return looks

    def _wait(
        self,
        caller: Caller,
        request: FetchRequest,
        wanted: Sequence[FetchPartition],
        looks: list[Look],
        deadline_s: float,
        still_waiting: Callable[[], None],
    ) -> list[Look]:
        waiter = FetchWaiter()
        rung_by: set[Partition] = set()
        try:
            next_sign_s = self._monotonic_s() + HEARTBEAT_INTERVAL_S
            while True:
                now_s = self._monotonic_s()
                if is_enough(looks, request.min_bytes) or now_s >= deadline_s:
                    return looks
                close_looks(looks)
                # Also those that came to be hosted while we waited.
                fresh = {look.partition for look in looks if look.partition is not None} - rung_by
                for partition in fresh:
                    partition.add_waiter(waiter, at_append=isinstance(caller, BrokerCaller))
                rung_by |= fresh
                if not fresh and not waiter.wait(min(deadline_s, next_sign_s) - now_s):
                    now_s = self._monotonic_s()
                    if next_sign_s <= now_s < deadline_s:
                        still_waiting()
                        next_sign_s = now_s + HEARTBEAT_INTERVAL_S
                # Looking after adding the waiter, and after each wait: what came in between is seen here.
                looks = self._look(caller, request, wanted, is_first_look=False)
        finally:
            for partition in rung_by:
                partition.remove_waiter(waiter)

    def _load(
        self,
        caller: Caller,
        request: FetchRequest,
        looks: list[Look],
        still_waiting: Callable[[], None],
    ) -> FetchAnswer:
        is_replica = isinstance(caller, BrokerCaller)
        budget = self._replica_budget if is_replica else self._budget
        held_bytes = sum(look.found.size_bytes for look in looks if look.found is not None)
        if not self._acquire(budget, held_bytes, still_waiting):
            close_looks(looks)  # no room for an answer: an empty one, and the client asks again
            held_bytes = 0
        cells: list[pa.Buffer] = []
        told: list[FetchedPartition] = []
        try:
            for look in looks:
                try:
                    cell = load_slice(look)
                except PylogError as error:
                    assert look.partition is not None
                    look.error, cell = look.partition.refusal(error), None
                if cell is not None:
                    cells.append(cell)
                answer = tell(look, row=len(cells) - 1 if cell is not None else -1, is_replica=is_replica)
                if answer is not None:
                    told.append(answer)
                    if look.error is not None:
                        _log_failure(caller, look.wanted, look.error)
        except BaseException:
            budget.release(held_bytes)
            raise
        response = FetchResponse(request_id=request.request_id, partitions=tuple(told))
        return FetchAnswer(response=response, cells=cells, held_bytes=held_bytes, _budget=budget)

    def _acquire(self, budget: ByteBudget, size_bytes: int, still_waiting: Callable[[], None]) -> bool:
        deadline_s = self._monotonic_s() + _MAX_BUDGET_WAIT_S
        while not budget.acquire(size_bytes, HEARTBEAT_INTERVAL_S):
            if self._monotonic_s() >= deadline_s:
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
