"""Transactions as an administrator sees and ends them.

Rule: what was decided is in ZooKeeper, and any broker knows it; what is open is in the logs, and only leaders know it.
"""

from __future__ import annotations

from collections.abc import Collection

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import OpenTransactionDescription, TransactionListing
from broker_runtime.contract.requests import Empty
from broker_runtime.contract.transactions import (
    AbortTransactionsRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransactionInfo,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
    TransactionalIdInfo,
)
from pyspark_log.client.connection.cluster import Cluster


def list_transactions(cluster: Cluster, *, timeout_s: float | None = None) -> list[TransactionListing]:
    """All transactional ids. Raises what asking a broker raises."""
    response = cluster.call(
        "list_transactions", ListTransactionsRequest(is_current=True), ListTransactionsResponse, timeout_s=timeout_s
    )
    return [_listing(info) for info in response.transactional_ids]


def open_transactions(
    cluster: Cluster, transactional_id: str = "", *, timeout_s: float | None = None, without: Collection[int] = ()
) -> tuple[list[OpenTransactionDescription], list[int]]:
    """What is open, the oldest first ("": of all ids), and the brokers that did not say what is open there
    in ``timeout_s`` each. ``without``: brokers that are known to say nothing; they are not asked."""
    found: list[OpenTransactionDescription] = []
    silent: list[int] = []
    request = OpenTransactionsRequest(transactional_id=transactional_id)
    for broker_id in sorted(cluster.describe().brokers):
        if broker_id in without:
            silent.append(broker_id)
            continue
        try:
            response = cluster.call(
                "open_transactions", request, OpenTransactionsResponse, to=broker_id, timeout_s=timeout_s
            )
        except PylogError:
            silent.append(broker_id)
            continue
        found += [_open(info, response.now_ms) for info in response.transactions]
    return sorted(found, key=lambda each: (-each.open_ms, each.topic, each.partition)), silent


def abort_transactions(cluster: Cluster, transactional_id: str) -> None:
    """Raises `InvalidTxnStateError` if the id is unknown."""
    cluster.call("abort_transactions", AbortTransactionsRequest(transactional_id=transactional_id), Empty)


def _listing(info: TransactionalIdInfo) -> TransactionListing:
    return TransactionListing(
        transactional_id=info.transactional_id,
        epoch=info.epoch,
        run_id=info.run_id,
        batch_id=info.batch_id,
        outcome="" if info.batch_id < 0 else "committed" if info.is_commit else "aborted",
        rows=info.rows,
        decided_at_ms=info.decided_at_ms,
        timeout_ms=info.timeout_ms,
        unfinished=info.unfinished,
    )


def _open(info: OpenTransactionInfo, now_ms: int) -> OpenTransactionDescription:
    return OpenTransactionDescription(
        transactional_id=info.transactional_id,
        batch_id=info.batch_id,
        run_id=info.run_id,
        attempt=info.attempt,
        producer_id=info.producer_id,
        topic=info.topic,
        partition=info.partition,
        first_offset=info.first_offset,
        open_ms=max(0, now_ms - info.began_ms),
    )
