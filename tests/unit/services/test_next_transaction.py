"""The answer to a decision lets its producer begin the next transaction without another request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_runtime.contract.errors import ProducerFencedError
from broker_runtime.contract.transactions import BeginTransactionRequest, EndTransactionRequest
from broker_runtime.services.producer_ids import BLOCK_SIZE, ProducerIdService
from broker_runtime.services.transactions import TransactionService
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import TRANSACTIONS
from tests.callers import CLIENT

NOW_MS = 1_000_000_000


@pytest.fixture
def service() -> TransactionService:
    client = MemoryZooKeeper().client()
    client.ensure_path(TRANSACTIONS)
    coordinator = TransactionCoordinator(client, steady_ms=lambda: NOW_MS, wall_ms=lambda: NOW_MS)
    nothing = cast(Any, SimpleNamespace(add=lambda name, record, is_followed: None))
    return TransactionService(
        nothing,
        coordinator=coordinator,
        ending=nothing,
        finishing=nothing,
        producer_ids=ProducerIdService(client),
        groups=nothing,
        longest_ms=60_000,
        wall_ms=lambda: NOW_MS,
    )


def begin(service: TransactionService, run_id: str = "r") -> int:
    return service.begin_transaction(CLIENT, BeginTransactionRequest(transactional_id="x", run_id=run_id)).producer_id


def end(service: TransactionService, producer_id: int, batch_id: int, *, begins_next: bool = True) -> int:
    request = EndTransactionRequest(
        transactional_id="x",
        run_id="r",
        epoch=0,
        batch_id=batch_id,
        is_commit=True,
        producer_ids=((producer_id, producer_id),),
        begins_next=begins_next,
    )
    return service.end_transaction(CLIENT, request).next_producer_id


def test_each_decision_gives_another_producer_id(service: TransactionService) -> None:
    given = [begin(service)]
    for batch_id in range(3):
        given.append(end(service, given[-1], batch_id))
    assert len(set(given)) == 4
    assert min(given) >= 0


def test_who_does_not_ask_gets_none(service: TransactionService) -> None:
    """A sink's batches are decided by a driver, which writes nothing."""
    assert end(service, begin(service), 0, begins_next=False) == -1


def test_decision_does_not_wait_for_producer_ids(service: TransactionService) -> None:
    """It is made; the producer asks for an id when it begins."""
    producer_id = begin(service)
    for _ in range(BLOCK_SIZE - 1):
        begin(service)
    assert end(service, producer_id, 0) == -1


def test_run_that_was_taken_over_from_gets_none(service: TransactionService) -> None:
    """Though its own decision, asked for once more, stands."""
    producer_id = begin(service)
    assert end(service, producer_id, 0) >= 0
    begin(service, "later")
    assert end(service, producer_id, 0) == -1
    with pytest.raises(ProducerFencedError):
        end(service, producer_id, 1)
