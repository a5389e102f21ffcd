"""What a producer asks brokers about its transactions, and what it makes of their answers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker_runtime.contract.errors import InvalidTxnStateError
from broker_runtime.contract.transactions import (
    NEXT_BATCH,
    BeginTransactionRequest,
    BeginTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
)
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.accumulator import TransactionalNumbering
from pyspark_log.client.producer.transactions import TransactionManager, TransactionState


class Brokers:
    """Any of them: answers as if the transactional id were this producer's alone."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []  # batch and epoch that were asked for
        self.batch_id = 4
        self.is_replay = False

    def call(self, action: str, request: Any, response: type[Any], **_: Any) -> Any:
        if isinstance(request, BeginTransactionRequest):
            self.begun.append((request.batch_id, request.epoch))
            return BeginTransactionResponse(epoch=3, batch_id=self.batch_id, producer_id=len(self.begun))
        assert isinstance(request, EndTransactionRequest)
        assert request.batch_id == self.batch_id
        self.batch_id += 1
        return EndTransactionResponse(is_commit=request.is_commit, is_replay=self.is_replay)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def manager(brokers: Brokers) -> TransactionManager:
    return TransactionManager(cast(Cluster, brokers), TransactionalNumbering(), transactional_id="x", timeout_ms=60_000)


def test_broker_is_told_which_transaction_comes_next(manager: TransactionManager, brokers: Brokers) -> None:
    """One that lags behind the others would give out the last one again."""
    for is_commit in (True, False, True):
        manager.begin()
        manager.end(is_commit=is_commit)
    assert brokers.begun == [(NEXT_BATCH, -1), (5, 3), (6, 3)]


def test_commit_that_another_transaction_took_the_place_of_is_an_error(
    manager: TransactionManager, brokers: Brokers
) -> None:
    """Its records are aborted; the next transaction can begin."""
    manager.begin()
    brokers.is_replay = True
    with pytest.raises(InvalidTxnStateError, match="transaction 4 of transactional id 'x' was committed before"):
        manager.end(is_commit=True)
    assert manager.state is TransactionState.READY
    manager.begin()
