"""Transactions of attempts that are decided elsewhere: a task writes, and its driver commits.

    begin ──▶ send_batch* ──▶ finish: what the decision needs to know of this attempt
          └── the batch has been decided already: nothing may be written

Rule: one attempt after another over one producer, so that a process keeps its connections. What an attempt wrote stays
invisible until the decision; one that is given up is aborted by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from broker_runtime.contract.errors import ProducerFencedError
from broker_runtime.contract.requests import Empty
from broker_runtime.contract.transactions import (
    AbortTransactionsRequest,
    BeginTransactionRequest,
    BeginTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionPartition,
)
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.delivery import BatchFuture
from pyspark_log.client.producer.producer import Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScope:
    """What attempts of one batch have in common. ``keep_ms``: how long the transactional id is remembered."""

    transactional_id: str
    run_id: str
    batch_id: int
    timeout_ms: int
    keep_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """What the decision needs to know. ``producer_id`` -1: the batch had been decided. ``partitions``: those that were
    written to, as (topic, its id, number). ``created_at_ms``: of the transactional id, by which it began."""

    scope: BatchScope
    epoch: int
    created_at_ms: int
    producer_id: int
    partitions: tuple[tuple[str, bytes, int], ...] = ()


class AttemptProducer:
    """See the module. For one thread."""

    def __init__(self, settings: Mapping[str, Any], transactional_id: str) -> None:
        """``settings``: the producer's, by dotted name."""
        self._producer = Producer(config={**settings, "transactional.id": transactional_id})
        self._scope: BatchScope | None = None

    @property
    def is_idle(self) -> bool:
        """Whether an attempt may begin: the last one was finished."""
        return self._scope is None

    @property
    def cluster(self) -> Cluster:
        """The producer's connections, to ask about topics."""
        return self._producer.cluster

    def begin(self, scope: BatchScope, attempt: int) -> bool:
        """Begins an attempt; False: the batch has been decided, and nothing may be written. Raises as
        `machine.begin` in the broker, and what asking a broker raises."""
        is_open = self._producer.transaction_manager().begin_attempt(
            run_id=scope.run_id,
            batch_id=scope.batch_id,
            attempt=attempt,
            timeout_ms=scope.timeout_ms,
            keep_ms=scope.keep_ms,
        )
        self._scope = scope
        return is_open

    def send_batch(self, topic: str, data: Any, *, partition: int | None = None) -> BatchFuture:
        """See `Producer.send_batch`."""
        return self._producer.send_batch(topic, data, partition=partition)

    def finish(self) -> AttemptResult:
        """Waits until all is acknowledged. Raises the first delivery error."""
        assert self._scope is not None
        self._producer.flush()
        ended = self._producer.transaction_manager().end_attempt()
        scope, self._scope = self._scope, None
        return AttemptResult(
            scope=scope,
            epoch=ended.epoch,
            created_at_ms=ended.created_at_ms,
            producer_id=ended.producer_id,
            partitions=tuple((each.topic, each.topic_id, each.partition) for each in ended.partitions),
        )

    def close(self) -> None:
        """Ends the connections; what an attempt under way has not sent is dropped. Raises nothing."""
        self._producer.abandon()


def decide(
    cluster: Cluster,
    results: Iterable[AttemptResult],
    *,
    rows: int,
    payload_bytes: int,
    keeps_first: bool,
    timeout_s: float,
) -> EndTransactionResponse:
    """The one decision about the batch of these attempts. Raises as `machine.decide` in the broker, and what asking a
    broker raises; after a `RetriableError` whether it was decided is unknown."""
    found = list(results)
    scope = found[0].scope
    began_as = {(result.epoch, result.created_at_ms) for result in found if result.producer_id >= 0}
    if len(began_as) > 1:
        raise ProducerFencedError(
            f"transactional id {scope.transactional_id!r} was aborted, or forgotten, while attempts of batch "
            f"{scope.batch_id} were at work: what some of them have written was aborted"
        )
    epoch, created_at_ms = next(iter(began_as), (max(result.epoch for result in found), -1))
    partitions = {partition for result in found for partition in result.partitions}
    request = EndTransactionRequest(
        transactional_id=scope.transactional_id,
        run_id=scope.run_id,
        epoch=epoch,
        created_at_ms=created_at_ms,
        batch_id=scope.batch_id,
        is_commit=True,
        producer_ids=tuple(_ranges(result.producer_id for result in found if result.producer_id >= 0)),
        partitions=tuple(
            TransactionPartition(topic=topic, topic_id=topic_id, partition=partition)
            for topic, topic_id, partition in sorted(partitions)
        ),
        rows=rows,
        payload_bytes=payload_bytes,
        keeps_first=keeps_first,
    )
    return cluster.call("end_transaction", request, EndTransactionResponse, timeout_s=timeout_s)


def decide_empty(
    cluster: Cluster, scope: BatchScope, *, keeps_first: bool, timeout_s: float
) -> EndTransactionResponse | None:
    """The one decision about a batch without rows, of which nothing is in any log; None where the transactional id has
    never been used. Without it a copy of the query could write other rows as this batch. Raises as `decide`."""
    name = scope.transactional_id
    known = ListTransactionsRequest(transactional_ids=(name,), is_current=True)
    found = cluster.call("list_transactions", known, ListTransactionsResponse, timeout_s=timeout_s)
    if not found.transactional_ids:
        return None
    begin = BeginTransactionRequest(
        transactional_id=name,
        run_id=scope.run_id,
        batch_id=scope.batch_id,
        timeout_ms=scope.timeout_ms,
        keep_ms=scope.keep_ms,
    )
    begun = cluster.call("begin_transaction", begin, BeginTransactionResponse, timeout_s=timeout_s)
    nothing = AttemptResult(
        scope=scope, epoch=begun.epoch, created_at_ms=begun.created_at_ms, producer_id=-1, partitions=()
    )
    return decide(cluster, [nothing], rows=0, payload_bytes=0, keeps_first=keeps_first, timeout_s=timeout_s)


def wait_until_visible(cluster: Cluster, transactional_id: str, *, timeout_s: float) -> bool:
    """Waits until all partitions know what was decided of the id; returns whether they do in time. Raises what asking a
    broker raises."""
    deadline, backoff = Deadline(timeout_s), Backoff(first_s=0.004, limit_s=0.5)  # mostly they know within 10 ms
    request = ListTransactionsRequest(transactional_ids=(transactional_id,), is_current=True)
    while True:
        found = cluster.call("list_transactions", request, ListTransactionsResponse, timeout_s=deadline.remaining_s())
        if not any(each.unfinished for each in found.transactional_ids):
            return True
        if deadline.expired:
            return False
        deadline.sleep(backoff.next_s())


def abort(cluster: Cluster, scope: BatchScope, *, timeout_s: float) -> None:
    """Nothing that this run has open will be committed; what was decided stays. Raises what asking a broker raises."""
    request = AbortTransactionsRequest(transactional_id=scope.transactional_id, run_id=scope.run_id)
    cluster.call("abort_transactions", request, Empty, timeout_s=timeout_s)


def _ranges(producer_ids: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for each in sorted(producer_ids):
        if found and each == found[-1][1] + 1:
            found[-1] = (found[-1][0], each)
        else:
            found.append((each, each))
    return found
