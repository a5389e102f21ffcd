"""What a sink's driver asks brokers about a micro-batch without rows."""

from __future__ import annotations

from typing import Any, cast

from broker_runtime.contract.transactions import (
    BeginTransactionRequest,
    BeginTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionalIdInfo,
)
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.attempts import BatchScope, decide_empty

SCOPE = BatchScope(transactional_id="q", run_id="r", batch_id=3, timeout_ms=1_000, keep_ms=2_000)


class Brokers:
    def __init__(self, *known: TransactionalIdInfo) -> None:
        self.known = known
        self.asked: list[Any] = []

    def call(self, action: str, request: Any, response: type[Any], **_: Any) -> Any:
        self.asked.append(request)
        if isinstance(request, ListTransactionsRequest):
            return ListTransactionsResponse(transactional_ids=self.known)
        if isinstance(request, BeginTransactionRequest):
            return BeginTransactionResponse(epoch=6, batch_id=request.batch_id, producer_id=9)
        return EndTransactionResponse(is_commit=True)


def asked_about(*known: TransactionalIdInfo) -> list[Any]:
    brokers = Brokers(*known)
    decide_empty(cast(Cluster, brokers), SCOPE, keeps_first=True, timeout_s=1)
    return brokers.asked


KNOWN = ListTransactionsRequest(transactional_ids=("q",), is_current=True)


def test_nothing_is_written_about_an_id_that_is_not_known() -> None:
    """S6: nothing for a query whose micro-batches have no rows."""
    assert asked_about() == [KNOWN]


def test_batch_is_decided_without_producers() -> None:
    """So that no other run decides it with rows."""
    assert asked_about(TransactionalIdInfo(transactional_id="q", epoch=5, run_id="before", batch_id=2)) == [
        KNOWN,
        BeginTransactionRequest(transactional_id="q", run_id="r", batch_id=3, timeout_ms=1_000, keep_ms=2_000),
        EndTransactionRequest(transactional_id="q", run_id="r", epoch=6, batch_id=3, is_commit=True, keeps_first=True),
    ]
