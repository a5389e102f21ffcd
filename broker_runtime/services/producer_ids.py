"""Ids for idempotent producers: numbers that are given out once, from blocks that a broker claims in ZooKeeper.

Frames of an id that no block covers are refused (`require_given_out`): nobody can use an id before its owner does.

Rule: a block is this broker's only once its claim is known to have been written. What is left of a block when the
broker stops, or when the outcome of a claim is unknown, is never used. A reserve is kept, so that new producers can
begin while ZooKeeper is away.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from broker_runtime.contract.errors import (
    BrokerOverloadedError,
    InvalidRequestError,
    PylogError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import InitProducerIdRequest, InitProducerIdResponse
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline
from broker_runtime.services.caller import Caller
from broker_runtime.zookeeper.guarded import Planned, change
from broker_runtime.zookeeper.session import Create, Set, ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock, from_json, to_json

BLOCK_SIZE: Final = 1_000
RESERVE: Final = BLOCK_SIZE // 2
_READ_PAUSE_S: Final = 0.1

_logger = logging.getLogger(__name__)


class ProducerIdService:
    """Gives out ids. Thread-safe; a call blocks for ZooKeeper only where the reserve is used up."""

    def __init__(self, client: ZooKeeperClient, *, clock: Clock = CLOCK) -> None:
        self._client = client
        self._clock = clock
        self._given_out_below = 0  # as far as is known here; only rises
        self._reading = threading.Lock()
        self._pause = Deadline(0.0, clock=clock)  # no reading before its end
        self._claiming = threading.Lock()  # held during a claim: a call that waits for it needs its outcome
        self._lock = threading.Lock()
        self._ids: deque[int] = deque()

    def init_producer_id(self, caller: Caller, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """An id that no producer of the cluster had before. Raises `ZooKeeperUnavailableError`."""
        producer_id = self._take()
        if producer_id is None:
            with self._claiming:
                producer_id = self._take()
                if producer_id is None:
                    self._add(self._claim())
                    producer_id = self._take()
        assert producer_id is not None
        return InitProducerIdResponse(producer_id=producer_id)

    def ready_producer_id(self) -> int:
        """As `init_producer_id`, without asking ZooKeeper; -1 if the reserve is used up."""
        producer_id = self._take()
        return -1 if producer_id is None else producer_id

    def keep_ready(self) -> None:
        """Claims another block if less than `RESERVE` ids are left and ZooKeeper is connected. To be called regularly.

        Blocks for ZooKeeper. Raises nothing: what fails is tried again by the next call.
        """
        if len(self._ids) >= RESERVE or not self._client.is_connected:
            return
        try:
            with self._claiming:
                if len(self._ids) < RESERVE:
                    self._add(self._claim())
        except (PylogError, ZNodeError) as error:
            event(_logger, "claim producer ids", level=logging.WARNING, error=error)

    def require_given_out(self, producer_id: int) -> None:
        """Raises `InvalidRequestError` for an id that no broker of the cluster has given out.

        Asks ZooKeeper only for ids above all that are known here, at most every `_READ_PAUSE_S`; an id that comes in
        between is refused with `BrokerOverloadedError` and may be tried again. Raises `ZooKeeperUnavailableError`.
        """
        if producer_id < self._given_out_below:
            return
        if not self._reading.acquire(blocking=False):
            raise _unknown_yet(producer_id)
        try:
            if not self._pause.expired:
                raise _unknown_yet(producer_id)
            found = self._client.find(PRODUCER_ID_BLOCK)
            if found is not None:
                self._learn(from_json(found.data, ProducerIdBlock, PRODUCER_ID_BLOCK).next)
            self._pause = Deadline(_READ_PAUSE_S, clock=self._clock)
        finally:
            self._reading.release()
        if producer_id >= self._given_out_below:
            raise InvalidRequestError(f"producer id {producer_id} was never given out: ask for one (init_producer_id)")

    def _learn(self, given_out_below: int) -> None:
        with self._lock:
            self._given_out_below = max(self._given_out_below, given_out_below)

    def _take(self) -> int | None:
        with self._lock:
            return self._ids.popleft() if self._ids else None

    def _add(self, ids: range) -> None:
        with self._lock:
            self._ids.extend(ids)

    def _claim(self) -> range:
        """Claims a block of ids by compare-and-set. One whose claim got no answer may be another's: it is left."""

        def plan() -> Planned[int]:
            found = self._client.find(PRODUCER_ID_BLOCK)
            first = 0 if found is None else from_json(found.data, ProducerIdBlock, PRODUCER_ID_BLOCK).next
            claimed = to_json(ProducerIdBlock(next=first + BLOCK_SIZE))
            if found is None:
                return Planned(first, [Create(PRODUCER_ID_BLOCK, claimed)])
            return Planned(first, [Set(PRODUCER_ID_BLOCK, claimed, found.version)])

        first = change(self._client, plan, what=PRODUCER_ID_BLOCK)
        event(_logger, "claim producer ids", first=first, count=BLOCK_SIZE)
        self._learn(first + BLOCK_SIZE)
        return range(first, first + BLOCK_SIZE)


def _unknown_yet(producer_id: int) -> BrokerOverloadedError:
    return BrokerOverloadedError(f"whether producer id {producer_id} was given out is being looked up; try again")
