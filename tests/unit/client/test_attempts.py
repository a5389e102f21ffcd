"""The decision about a batch names attempts that can all be committed, or is not made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_runtime.contract.errors import ProducerFencedError
from broker_runtime.contract.transactions import BeginTransactionRequest, EndTransactionResponse
from broker_runtime.services.producer_ids import ProducerIdService
from broker_runtime.services.transactions import TransactionService
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import TRANSACTIONS
from pyspark_log.client.producer.attempts import AttemptResult, BatchScope, decide
from tests.callers import CLIENT

KEEP_MS = 60_000
SCOPE = BatchScope(transactional_id="x", run_id="r", batch_id=0, timeout_ms=1_000, keep_ms=KEEP_MS)


class Broker:
    """Answers what a client asks, by a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000_000
        client = MemoryZooKeeper().client()
        client.ensure_path(TRANSACTIONS)
        self.coordinator = TransactionCoordinator(client, steady_ms=lambda: self.now_ms, wall_ms=lambda: self.now_ms)
        nothing = cast(Any, SimpleNamespace(add=lambda name, record, is_followed: None))
        self.service = TransactionService(
            nothing,
            coordinator=self.coordinator,
            ending=nothing,
            finishing=nothing,
            producer_ids=ProducerIdService(client),
            groups=nothing,
            longest_ms=60_000,
            wall_ms=lambda: self.now_ms,
        )

    def call(self, action: str, request: Any, response: type, **options: Any) -> Any:
        answer = getattr(self.service, action)(CLIENT, request)
        assert isinstance(answer, response)
        return answer

    def attempt(self) -> AttemptResult:
        """One that has written."""
        begun = self.service.begin_transaction(
            CLIENT,
            BeginTransactionRequest(transactional_id="x", run_id="r", batch_id=0, timeout_ms=1_000, keep_ms=KEEP_MS),
        )
        return AttemptResult(
            scope=SCOPE, epoch=begun.epoch, created_at_ms=begun.created_at_ms, producer_id=begun.producer_id
        )

    def decide(self, *attempts: AttemptResult) -> EndTransactionResponse:
        return decide(cast(Any, self), attempts, rows=5, payload_bytes=5, keeps_first=False, timeout_s=1.0)


def test_attempts_of_one_batch_are_decided_together() -> None:
    broker = Broker()
    assert broker.decide(broker.attempt(), broker.attempt()).is_commit
    record = broker.coordinator.read("x")
    assert record is not None
    assert record.last is not None
    assert sum(last - first + 1 for first, last in record.last.producer_ids) == 2


@pytest.mark.parametrize("has_been_aborted", [False, True])
def test_rows_of_an_attempt_from_before_the_id_was_forgotten_are_not_lost_in_silence(has_been_aborted: bool) -> None:
    """What the first attempt wrote is aborted: a job of which one task was done early and another begins late."""
    broker = Broker()
    early = broker.attempt()
    broker.now_ms += KEEP_MS + 1
    assert broker.coordinator.forget("x", now_ms=broker.now_ms)
    if has_been_aborted:  # by the leader that had it open
        broker.coordinator.abort_producers("x", (), epoch=early.epoch)
    late = broker.attempt()
    with pytest.raises(ProducerFencedError, match="'x' was aborted, or forgotten"):
        broker.decide(early, late)
    with pytest.raises(ProducerFencedError):
        broker.decide(early)
    record = broker.coordinator.read("x")
    assert record is not None
    assert record.last is None
    assert broker.decide(late).is_commit
