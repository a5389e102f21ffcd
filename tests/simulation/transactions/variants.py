"""Brokers that are broken on purpose, each in one way: the checker has to find every one.

``python -m tests.simulation --workload transactions --variant NAME`` runs one over many seeds. See
`tests.simulation.simulator.variants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import msgspec

from broker_runtime.contract.requests import PartitionKey
from broker_runtime.contract.transactions import NEXT_BATCH, EndTransactionRequest, EndTransactionResponse
from broker_runtime.log import Outcomes
from broker_runtime.log.indexes import IndexFile
from broker_runtime.log.log_state import LogState
from broker_runtime.log.producer_state import ProducerState
from broker_runtime.log.transactions import Transactions
from broker_runtime.services.caller import Caller
from broker_runtime.services.transactions import TransactionService
from broker_runtime.transactions import coordination
from broker_runtime.transactions import transactional_id as machine
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.zookeeper.guarded import Planned, change
from broker_runtime.zookeeper.session import ANY_VERSION, Set
from broker_runtime.zookeeper.znodes import TransactionRecord
from tests.simulation.simulator.variants import Patches, Variants
from tests.simulation.transactions import query

VARIANTS = Variants()
variant = VARIANTS.variant


# --- decisions --------------------------------------------------------------------------------------------------------


@variant
def ends_before_it_is_decided() -> Patches:
    """Partitions are told that a transaction is committed before that is recorded."""
    real = TransactionService.end_transaction

    def end_transaction(
        self: TransactionService, caller: Caller, request: EndTransactionRequest
    ) -> EndTransactionResponse:
        over = Outcomes(transactional_id=request.transactional_id, epoch=request.epoch, committed=request.producer_ids)
        for each in request.partitions if request.is_commit else ():
            key = PartitionKey(topic=each.topic, partition=each.partition, topic_id=each.topic_id)
            partition = self._led(key)
            if partition is not None:
                partition.end_transactions(over, now_ms=self._wall_ms(), timeout_s=1)
        return real(self, caller, request)

    yield mock.patch.object(TransactionService, "end_transaction", end_transaction)


@variant(faults=("transactions aborted", "driver stands still", "checkpoint copied"))
def decides_without_compare_and_set() -> Patches:
    """A decision is written over whatever is there by then."""

    def set_any(path: str, data: bytes, version: int) -> Set:
        return Set(path, data, ANY_VERSION)

    yield mock.patch.object(coordination, "Set", set_any)


@variant(faults=("checkpoint copied", "driver stands still", "transactions aborted"))
def decides_in_any_epoch() -> Patches:
    """A run that was taken over from can still decide."""
    real = machine.decide

    def decide(record: TransactionRecord | None, name: str, **fields: Any) -> machine.Decided:
        if record is not None:
            fields |= {"run_id": record.run_id, "epoch": record.epoch}
        return real(record, name, **fields)

    yield mock.patch.object(machine, "decide", decide)


@variant(faults=("checkpoint copied", "driver killed"))
def leaves_batches_without_rows_undecided() -> Patches:
    """Nothing is known of a batch that had no rows: another run writes some as the same one."""
    yield mock.patch.object(query, "decide_empty", return_value=None)


@variant(faults=("driver killed after a decision",))
def takes_a_decided_batch_for_open() -> Patches:
    """A batch that is replayed is written and decided once more."""
    begin, decide, may_begin = machine.begin, machine.decide, machine.may_begin

    def without(record: TransactionRecord | None, batch_id: int) -> TransactionRecord | None:
        if record is None or record.last is None or record.last.batch_id != batch_id:
            return record
        last = msgspec.structs.replace(record.last, batch_id=batch_id - 1)
        return msgspec.structs.replace(record, last=last)

    def begins(record: TransactionRecord | None, name: str, **fields: Any) -> machine.Begun:
        return begin(without(record, fields["batch_id"]), name, **fields)

    def decides(record: TransactionRecord | None, name: str, **fields: Any) -> machine.Decided:
        return decide(without(record, fields["batch_id"]), name, **fields)

    def may(record: TransactionRecord, name: str, **fields: Any) -> None:
        may_begin(without(record, fields["batch_id"]) or record, name, **fields)

    yield mock.patch.object(machine, "begin", begins)
    yield mock.patch.object(machine, "decide", decides)
    yield mock.patch.object(machine, "may_begin", may)
    yield mock.patch.object(Transactions, "check_begin")


@variant(faults=("process killed", "process taken over from"))
def commits_offsets_outside_of_the_decision() -> Patches:
    """A group's offsets are written first, and then the decision."""
    real = TransactionCoordinator.decide

    def decide(self: TransactionCoordinator, name: str, **fields: Any) -> machine.Decided:
        beside, guard = fields.pop("beside", tuple), fields.pop("guard", None)
        change(self._client, lambda: Planned(None, list(beside())), what=name, guard=guard)
        return real(self, name, **fields)

    yield mock.patch.object(TransactionCoordinator, "decide", decide)


@variant(faults=("executor stands still", "executor killed"))
def commits_all_attempts_of_a_batch() -> Patches:
    """A decision commits whatever was written for its batch, and not what it names."""
    yield mock.patch.object(Outcomes, "commits", lambda self, producer_id: self.batch_id >= 0)


@variant(faults=("lagging zookeeper", "process killed"))
def begins_by_what_a_lagging_server_has() -> Patches:
    """The next batch is the one after the last that this broker has heard of."""
    real = machine.begin

    def begin(record: TransactionRecord | None, name: str, **fields: Any) -> machine.Begun:
        return real(record, name, **{**fields, "batch_id": NEXT_BATCH if fields["epoch"] >= 0 else fields["batch_id"]})

    yield mock.patch.object(machine, "begin", begin)
    yield mock.patch.object(coordination, "barrier")


# --- logs -------------------------------------------------------------------------------------------------------------


@variant(faults=("executor stands still", "driver killed"))
def accepts_what_comes_after_the_end() -> Patches:
    """A frame that was sent long ago begins a transaction that has ended."""
    yield mock.patch.object(Transactions, "check_begin")
    yield mock.patch.object(TransactionCoordinator, "require_may_begin")


@variant
def is_stable_beyond_open_transactions() -> Patches:
    """The last stable offset does not wait for transactions that are open."""
    yield mock.patch.object(Transactions, "_first_open", lambda self, default: default)


@variant
def hides_nothing_that_was_aborted() -> Patches:
    """Readers are not told which transactions were aborted."""
    yield mock.patch.object(LogState, "aborted", return_value=[])


@variant(faults=("kill", "isolate", "pause", "driver killed", "transactions aborted"))
def keeps_the_index_when_the_log_is_cut() -> Patches:
    """The index of aborted transactions names what was cut off with the log's end."""
    replace, delete = IndexFile.replace, IndexFile.delete

    def replaced(self: IndexFile, entries: Sequence[Sequence[int]], **fields: Any) -> None:
        if self.path.suffix != ".txnindex":
            replace(self, entries, **fields)

    def deleted(self: IndexFile) -> None:
        if self.path.suffix != ".txnindex":
            delete(self)

    yield mock.patch.object(IndexFile, "replace", replaced)
    yield mock.patch.object(IndexFile, "delete", deleted)


@variant(faults=("restart", "stop", "kill", "driver killed"))
def forgets_open_transactions_at_a_start() -> Patches:
    """A snapshot's open transactions are not read."""
    real = ProducerState.decode.__func__

    def decode(cls: type[ProducerState], data: bytes) -> ProducerState:
        found: ProducerState = real(cls, data)
        found.transactions = Transactions((), found.transactions.known)
        return found

    yield mock.patch.object(ProducerState, "decode", classmethod(decode))


@variant(faults=("driver stands still", "executor stands still"))
def commits_what_was_aborted_for_its_age() -> Patches:
    """A decision does not look which producer ids were aborted before."""
    real = machine.decide

    def decide(record: TransactionRecord | None, name: str, **fields: Any) -> machine.Decided:
        if record is not None:
            record = msgspec.structs.replace(record, aborted=())
        return real(record, name, **fields)

    yield mock.patch.object(machine, "decide", decide)
