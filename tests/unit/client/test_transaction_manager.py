"""What a producer asks brokers about its transactions, and what it makes of their answers."""

from __future__ import annotations

import time
from typing import Any, cast

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import DeliveryTimeoutError, InvalidTxnStateError, UnknownMemberIdError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import UNTYPED
from broker_runtime.contract.transactions import (
    NEXT_BATCH,
    BeginTransactionRequest,
    BeginTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
)
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer import transactions
from pyspark_log.client.producer.accumulator import TransactionalNumbering
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import PartitionQueue
from pyspark_log.client.producer.producer import Producer
from pyspark_log.client.producer.transactions import TransactionManager, TransactionState
from pyspark_log.client.records import GroupMetadata


class Brokers:
    """Any of them: answers as if the transactional id were this producer's alone."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []  # batch and epoch that were asked for
        self.batch_id = 4
        self.is_replay = False
        self.error: Exception | None = None  # of decisions
        self.next_producer_ids = [-1] * 10  # given with decisions

    def call(self, action: str, request: Any, response: type[Any], **_: Any) -> Any:
        if isinstance(request, BeginTransactionRequest):
            self.begun.append((request.batch_id, request.epoch))
            return BeginTransactionResponse(epoch=3, batch_id=self.batch_id, producer_id=len(self.begun))
        assert isinstance(request, EndTransactionRequest)
        if self.error is not None:
            raise self.error
        assert request.batch_id == self.batch_id
        assert request.begins_next
        self.batch_id += 1
        return EndTransactionResponse(
            is_commit=request.is_commit, is_replay=self.is_replay, next_producer_id=self.next_producer_ids.pop(0)
        )


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def numbering() -> TransactionalNumbering:
    return TransactionalNumbering()


@pytest.fixture
def manager(brokers: Brokers, numbering: TransactionalNumbering) -> TransactionManager:
    return TransactionManager(cast(Cluster, brokers), numbering, transactional_id="x", timeout_ms=60_000)


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


def test_transaction_begins_with_what_the_decision_before_gave(
    manager: TransactionManager, brokers: Brokers, numbering: TransactionalNumbering
) -> None:
    """No broker is asked, and each transaction has a producer id of its own."""
    brokers.next_producer_ids = [71, 72, -1, -1]
    used = []
    for is_commit in (True, False, True, True):
        manager.begin()
        assert manager.state is TransactionState.OPEN
        used.append(numbering.producer_id)
        manager.end(is_commit=is_commit)
    assert used == [1, 71, 72, 2]
    assert brokers.begun == [(NEXT_BATCH, -1), (7, 3)]
    assert brokers.batch_id == 8


def test_what_a_decision_gave_is_not_used_when_it_is_old(
    manager: TransactionManager, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transactional id may have been forgotten since."""
    monkeypatch.setattr(transactions, "_NEXT_S", 0.0)
    brokers.next_producer_ids = [71, -1]
    for _ in range(2):
        manager.begin()
        manager.end(is_commit=True)
    assert brokers.begun == [(NEXT_BATCH, -1), (5, 3)]


def test_what_a_decision_gave_is_used_once(
    manager: TransactionManager, brokers: Brokers, numbering: TransactionalNumbering
) -> None:
    """A decision whose answer is lost gives nothing for the one after it."""
    brokers.next_producer_ids = [71]
    manager.begin()
    manager.end(is_commit=True)
    manager.begin()
    brokers.error = InvalidTxnStateError("it was aborted")
    with pytest.raises(InvalidTxnStateError):
        manager.end(is_commit=True)
    manager.begin()
    assert numbering.producer_id == 2
    assert brokers.begun[1:] == [(6, 3)]


@pytest.mark.parametrize("is_flushed", [False, True])
def test_record_that_was_never_sent_is_missed_by_commit(brokers: Brokers, is_flushed: bool) -> None:
    """No broker was there to send it to until its time was up. That `flush` has reported it changes nothing."""
    with Producer(bootstrap_servers="127.0.0.1:1", transactional_id="x", delivery_timeout_ms=1) as producer:
        manager, accumulator = producer.transaction_manager(), producer._accumulator
        manager._cluster = cast(Cluster, brokers)
        producer.begin_transaction()
        delivery = Delivery("t", 0, base_timestamp_ms=0, flush=accumulator.flush)
        delivery.count = 1
        accumulator.add_frame(PartitionQueue("t", bytes(16), 0, UNTYPED, 1 << 20), delivery, pa.py_buffer(bytes(128)))
        accumulator.expire(time.monotonic() + 1)
        if is_flushed:
            with pytest.raises(DeliveryTimeoutError):
                producer.flush()
        with pytest.raises(DeliveryTimeoutError):
            producer.commit_transaction()
        assert manager.state is TransactionState.ABORTABLE
        producer.abort_transaction()
        producer.begin_transaction()
        producer.commit_transaction()


def with_offsets(manager: TransactionManager, *given: tuple[int, int, str, int]) -> tuple[int, list[tuple[int, bytes]]]:
    """Offsets of partitions by members in epochs: the epoch that signs them all, and what is asked for."""
    for partition, offset, member_id, epoch in given:
        at = TopicPartition("t", partition)
        manager.add_offsets({at: offset}, GroupMetadata("g", member_id, epoch, None, ((at, b"i" * 16),)))
    group = manager._group
    assert group is not None
    return group.member_epoch, [(each.offset, each.at.topic_id) for each in group.offsets]


def test_offsets_of_a_transaction_are_signed_as_they_were_given_first(manager: TransactionManager) -> None:
    """In between, another member may have had the partition, and gone further. The topic is the one that was read."""
    manager.begin()
    epoch, asked = with_offsets(manager, (0, 100, "a", 3), (1, 7, "a", 5))
    assert (epoch, asked) == (3, [(100, b"i" * 16), (7, b"i" * 16)])


def test_offsets_of_a_consumer_that_has_joined_again_meanwhile_are_refused(manager: TransactionManager) -> None:
    manager.begin()
    with_offsets(manager, (0, 100, "a", 3))
    with pytest.raises(UnknownMemberIdError, match="joined it again"):
        with_offsets(manager, (1, 7, "b", 1))
    assert manager.state is TransactionState.ABORTABLE
