"""Transactions, as requests: see `contract.transactions` for who answers what.

Rule: translates between requests and `transactions`; what is decided is decided there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from broker_runtime.contract.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    NotCoordinatorError,
    PylogError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import (
    MOST_ENTRIES,
    Empty,
    InitProducerIdRequest,
    PartitionKey,
)
from broker_runtime.contract.settings import TRANSACTIONAL_ID_RULE, is_transactional_id
from broker_runtime.contract.transactions import (
    AbortTransactionsRequest,
    BeginTransactionRequest,
    BeginTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    FinishTransactionsRequest,
    FinishTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransactionInfo,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
    TransactionalIdInfo,
    TransactionIdentity,
)
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.services.caller import Caller, logged_change
from broker_runtime.services.groups import GroupService
from broker_runtime.services.producer_ids import ProducerIdService
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.transactions.ending import TransactionEnding
from broker_runtime.transactions.finishing import TransactionFinishing
from broker_runtime.transactions.transactional_id import last_batch
from broker_runtime.zookeeper.guarded import Guard, GuardFailedError
from broker_runtime.zookeeper.session import Operation
from broker_runtime.zookeeper.znodes import DecidedPartitions, TransactionRecord

_logger = logging.getLogger(__name__)


class TransactionService:
    """Thread-safe. Calls block on ZooKeeper, in bounds, and raise `ZooKeeperUnavailableError`."""

    def __init__(
        self,
        registry: PartitionRegistry,
        *,
        coordinator: TransactionCoordinator,
        ending: TransactionEnding,
        finishing: TransactionFinishing,
        producer_ids: ProducerIdService,
        groups: GroupService,
        longest_ms: int,
        wall_ms: Callable[[], int],
    ) -> None:
        """``longest_ms``: ``transaction.max.timeout.ms``."""
        self._registry = registry
        self._coordinator = coordinator
        self._ending = ending
        self._finishing = finishing
        self._producer_ids = producer_ids
        self._groups = groups
        self._longest_ms = longest_ms
        self._wall_ms = wall_ms

    def begin_transaction(self, caller: Caller, request: BeginTransactionRequest) -> BeginTransactionResponse:
        """Raises as `machine.begin`; `InvalidRequestError` for a time limit above ``transaction.max.timeout.ms``."""
        _check_id(request.transactional_id)
        if request.timeout_ms > self._longest_ms:
            raise InvalidRequestError(
                f"transaction.timeout.ms={request.timeout_ms}: this broker allows at most {self._longest_ms} "
                "(transaction.max.timeout.ms)"
            )
        self._coordinator.require_zookeeper()
        record, batch_id, is_decided = self._coordinator.begin(
            request.transactional_id,
            run_id=request.run_id,
            batch_id=request.batch_id,
            epoch=request.epoch,
            timeout_ms=request.timeout_ms,
            keep_ms=request.keep_ms,
        )
        producer_id = -1
        if not is_decided:
            producer_id = self._producer_ids.init_producer_id(caller, InitProducerIdRequest()).producer_id
        return BeginTransactionResponse(
            epoch=record.epoch,
            created_at_ms=record.created_at_ms,
            batch_id=batch_id,
            is_decided=is_decided,
            producer_id=producer_id,
        )

    def require_may_begin(self, identity: TransactionIdentity, producer_id: int) -> None:
        """Whether a transaction may begin in a partition of this broker. Raises as `machine.may_begin`."""
        _check_id(identity.transactional_id)
        self._coordinator.require_may_begin(
            identity.transactional_id, epoch=identity.epoch, batch_id=identity.batch_id, producer_id=producer_id
        )

    def forget_if_anew(self, partition: Partition, name: str) -> bool:
        """See `TransactionEnding.forget_if_anew`."""
        return self._ending.forget_if_anew(partition, name)

    def end_transaction(self, caller: Caller, request: EndTransactionRequest) -> EndTransactionResponse:
        """Decides a batch; when it returns, the decision is in ZooKeeper, and readers see it a moment later. Raises as
        `machine.decide`; with offsets of a group also as `GroupService.commit_offsets`: then nothing is decided."""
        _check_id(request.transactional_id)
        numbers: dict[tuple[str, bytes], list[int]] = {}
        for each in request.partitions:
            numbers.setdefault((each.topic, each.topic_id), []).append(each.partition)
        partitions = [
            DecidedPartitions(topic=topic, topic_id=topic_id, partitions=tuple(found))
            for (topic, topic_id), found in numbers.items()
        ]
        with ExitStack() as stack:
            beside: Callable[[], Sequence[Operation]] = tuple
            guard: Guard | None = None
            if request.group is not None and request.is_commit:
                try:
                    guard, beside = stack.enter_context(self._groups.committing(request.group))
                except PylogError:
                    if not self._is_decided(request):
                        raise  # the offsets of a decision that is made are committed: its reply was lost
            try:
                decided = self._coordinator.decide(
                    request.transactional_id,
                    run_id=request.run_id,
                    epoch=request.epoch,
                    created_at_ms=request.created_at_ms,
                    batch_id=request.batch_id,
                    is_commit=request.is_commit,
                    producer_ids=request.producer_ids,
                    partitions=partitions,
                    rows=request.rows,
                    payload_bytes=request.payload_bytes,
                    keeps_first=request.keeps_first,
                    beside=beside,
                    guard=guard,
                )
            except GuardFailedError:
                assert request.group is not None
                raise NotCoordinatorError(
                    f"this broker no longer coordinates group {request.group.group_id!r}; find its coordinator again"
                ) from None
        if decided.record.unfinished:
            self._finishing.add(request.transactional_id, decided.record, is_followed=request.begins_next)
        begins_next = request.begins_next and (decided.record.run_id, decided.record.epoch) == (
            request.run_id,
            request.epoch,
        )
        return EndTransactionResponse(
            is_commit=decided.decision.is_commit,
            is_replay=decided.is_replay,
            decided_rows=decided.decision.rows,
            decided_payload_bytes=decided.decision.payload_bytes,
            next_producer_id=self._producer_ids.ready_producer_id() if begins_next else -1,
        )

    def abort_transactions(self, caller: Caller, request: AbortTransactionsRequest) -> Empty:
        """Nothing that is open will be committed, and its run begins nothing any more. Raises `InvalidTxnStateError` if
        nothing is known of the id."""
        name = request.transactional_id
        _check_id(name)
        with logged_change(_logger, "abort transactions", caller, transactional_id=name, run=request.run_id):
            self._coordinator.require_zookeeper()
            if self._coordinator.abort_run(name, request.run_id) is None:
                raise InvalidTxnStateError(f"no transactional id {name!r}")
        return Empty()

    def list_transactions(self, caller: Caller, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """What ZooKeeper has. Any broker answers."""
        for name in request.transactional_ids or ():
            _check_id(name)
        self._coordinator.require_zookeeper()
        if request.is_current:
            self._coordinator.catch_up()
        records: Mapping[str, TransactionRecord | None]
        if request.transactional_ids is None:
            records = self._coordinator.read_sound(self._coordinator.names())
        else:
            names = sorted(request.transactional_ids)
            records = dict(zip(names, self._coordinator.read_all(names), strict=True))
        return ListTransactionsResponse(
            transactional_ids=tuple(_info(name, record) for name, record in records.items() if record is not None)
        )

    def open_transactions(self, caller: Caller, request: OpenTransactionsRequest) -> OpenTransactionsResponse:
        """What has begun and not ended in the partitions that this broker leads."""
        found = self._ending.open_here(request.transactional_id)
        return OpenTransactionsResponse(
            now_ms=self._wall_ms(),
            transactions=tuple(
                OpenTransactionInfo(
                    transactional_id=each.begin.transactional_id,
                    epoch=each.begin.epoch,
                    batch_id=each.begin.batch_id,
                    run_id=each.begin.run_id,
                    attempt=each.begin.attempt,
                    producer_id=each.producer_id,
                    topic=partition.topic,
                    partition=partition.partition,
                    first_offset=each.first_offset,
                    began_ms=each.began_ms,
                )
                for partition, each in found[:MOST_ENTRIES]
            ),
            is_complete=len(found) <= MOST_ENTRIES,
        )

    def finish_transactions(self, caller: Caller, request: FinishTransactionsRequest) -> FinishTransactionsResponse:
        """See `TransactionEnding.finish`. A topic that is gone has nothing to be finished."""
        _check_id(request.transactional_id)
        partitions = [self._led(key) for key in request.partitions]
        finished = self._ending.finish(
            request.transactional_id,
            epoch=request.epoch,
            batch_id=request.batch_id,
            partitions=partitions,
        )
        return FinishTransactionsResponse(are_finished=tuple(finished))

    def _is_decided(self, request: EndTransactionRequest) -> bool:
        record = self._coordinator.read(request.transactional_id, at_least=(request.epoch, request.batch_id))
        return record is not None and last_batch(record) == request.batch_id

    def _led(self, key: PartitionKey) -> Partition | None:
        try:
            partition = self._registry.find(key.topic, key.partition, key.topic_id)
            partition.require_leader()
        except PylogError as error:
            event(
                _logger,
                "finish transactions",
                level=logging.DEBUG,
                topic=key.topic,
                partition=key.partition,
                error=error,
            )
            return None
        return partition


def _check_id(transactional_id: str) -> None:
    if not is_transactional_id(transactional_id):
        raise InvalidRequestError(f"{transactional_id!r} is no transactional id: {TRANSACTIONAL_ID_RULE}")


def _info(name: str, record: TransactionRecord) -> TransactionalIdInfo:
    last = record.last
    return TransactionalIdInfo(
        transactional_id=name,
        epoch=record.epoch,
        run_id=record.run_id,
        batch_id=last_batch(record),
        is_commit=last is not None and last.is_commit,
        rows=0 if last is None else last.rows,
        payload_bytes=0 if last is None else last.payload_bytes,
        decided_at_ms=-1 if last is None else last.decided_at_ms,
        used_at_ms=record.used_at_ms,
        timeout_ms=record.timeout_ms,
        unfinished=tuple(each.batch_id for each in record.unfinished),
    )
