"""A producer's transactions, one after another: what may be called when, and which records belong to which.

    READY ──begin──▶ OPEN ──commit──▶ READY                           (Kafka's TransactionManager)
                      │ ├──commit, no answer──▶ IN_DOUBT ──commit──▶ READY
                      │ │                             └────abort───▶ READY, aborted, or known to be committed
                      │ └──abort──▶ READY; no answer ──▶ ABORTABLE
                      └─ a record or its offsets are refused ─▶ ABORTABLE ──abort──▶ READY
    any ── another process takes over, or the transaction is too old ──▶ FATAL: close the producer

Rule: each transaction has a producer id of its own, from the broker that begins it, or from the one that decided the
transaction before. Then beginning asks nobody, and a producer that was taken over from finds out when it sends or
commits, as in Kafka. All batches of a transaction carry its id, and the first one in each partition carries the
transaction's identity as well. The decision names the id and the partitions.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker_runtime.contract.errors import (
    ClientStateError,
    InvalidRequestError,
    InvalidTxnStateError,
    NotSupportedError,
    ProducerFencedError,
    PylogError,
    RetriableError,
    UnknownMemberIdError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import CommittedOffset, PartitionKey
from broker_runtime.contract.transactions import (
    NEXT_BATCH,
    BeginTransactionRequest,
    BeginTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    GroupCommit,
    TransactionIdentity,
    TransactionPartition,
)
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from pyspark_log.client.connection.offsets import check_offset
from pyspark_log.client.producer.accumulator import TransactionalNumbering
from pyspark_log.client.producer.partition_queue import PartitionQueue
from pyspark_log.client.records import GroupMetadata

_NEXT_S: Final = 60.0
"""How long after a decision the next transaction may begin by its answer: far less than an id is remembered."""


class TransactionState(enum.Enum):
    """See the module."""

    READY = "ready"
    OPEN = "open"
    IN_DOUBT = "in doubt"
    ABORTABLE = "abortable"
    FATAL = "fatal"


MOVES: Final[dict[TransactionState, frozenset[str]]] = {
    TransactionState.READY: frozenset({"begin"}),
    TransactionState.OPEN: frozenset({"send", "commit", "abort"}),
    TransactionState.IN_DOUBT: frozenset({"commit", "abort"}),
    TransactionState.ABORTABLE: frozenset({"abort"}),
    TransactionState.FATAL: frozenset(),
}
"""What may be called in each state."""

_WHAT_NOW: Final = {
    TransactionState.READY: "no transaction is open: call begin_transaction() first",
    TransactionState.OPEN: "a transaction is open: commit or abort it first",
    TransactionState.IN_DOUBT: (
        "whether the transaction was committed is not known: call commit_transaction() again, which finds out"
    ),
    TransactionState.ABORTABLE: "the transaction can only be aborted: call abort_transaction()",
    TransactionState.FATAL: "the producer cannot continue: close it",
}


class EndedAttempt(NamedTuple):
    """``producer_id`` -1: the batch had been decided. ``created_at_ms``: see `BeginTransactionResponse`."""

    epoch: int
    created_at_ms: int
    producer_id: int
    partitions: tuple[TransactionPartition, ...]


class TransactionManager:
    """The transactions of one producer. For one thread at a time, as Kafka's."""

    def __init__(
        self, cluster: Cluster, numbering: TransactionalNumbering, *, transactional_id: str, timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._numbering = numbering
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._run_id = uuid.uuid4().hex
        self._begun: tuple[str, int] = ("", -1)  # the run that began last, and its epoch
        self._created_at_ms = -1  # of the transactional id, as the last answer to a beginning had it
        self._identity: TransactionIdentity | None = None
        self._group: GroupCommit | None = None
        self._ended_batch = -1  # the last one that this run has decided
        self._next_producer_id = -1  # for the batch after it; -1: to be asked for
        self._asks_again_at = Deadline(0.0)
        self._error: PylogError | None = None  # why the state is ABORTABLE or FATAL
        self.state = TransactionState.READY

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that can be aborted."""
        return "abort" in MOVES[self.state]

    def require(self, call: str) -> None:
        """Raises `ClientStateError` unless ``call`` is allowed now, `ProducerFencedError` if none ever will be. Why the
        producer stopped is the cause. ``call`` "commit" raises what a record failed with, the first time."""
        if self.state is TransactionState.OPEN and self._numbering.failure is not None:
            self.fail(self._numbering.failure)
            if call == "commit":
                raise self._numbering.failure
        if call in MOVES[self.state]:
            return
        text = f"{call}: {_WHAT_NOW[self.state]}"
        if self._error is not None:
            text = f"{text}. {self._error}"
        if self.state is TransactionState.FATAL:
            raise ProducerFencedError(text) from self._error
        raise ClientStateError(text) from self._error

    def init(self) -> None:
        """See `Producer.init_transactions`."""
        self.require("begin")
        request = self._next_batch()
        try:
            begun = self._cluster.call("begin_transaction", request, BeginTransactionResponse)
        except ProducerFencedError as error:
            self.fail(error)
            raise
        self._begun = (request.run_id, begun.epoch)

    def begin(self) -> None:
        """See `Producer.begin_transaction`."""
        self.require("begin")
        if self._next_producer_id >= 0 and not self._asks_again_at.expired:
            run_id, epoch = self._begun
            self._open(run_id, epoch, self._ended_batch + 1, self._next_producer_id, attempt=-1)
            return
        try:
            self._begin(self._next_batch(), attempt=-1)
        except ProducerFencedError as error:
            self.fail(error)
            raise

    def _next_batch(self) -> BeginTransactionRequest:
        return BeginTransactionRequest(
            transactional_id=self._transactional_id,
            run_id=self._run_id,
            batch_id=NEXT_BATCH if self._ended_batch < 0 else self._ended_batch + 1,
            epoch=self._epoch_of(self._run_id),
            timeout_ms=self._timeout_ms,
        )

    def begin_attempt(self, *, run_id: str, batch_id: int, attempt: int, timeout_ms: int, keep_ms: int) -> bool:
        """Begins one of the transactions of a batch that is decided elsewhere; False: it has been decided, and nothing
        may be sent. Raises what the broker answers."""
        self.require("begin")
        request = BeginTransactionRequest(
            transactional_id=self._transactional_id,
            run_id=run_id,
            batch_id=batch_id,
            epoch=self._epoch_of(run_id),
            timeout_ms=timeout_ms,
            keep_ms=keep_ms,
        )
        return self._begin(request, attempt=attempt)

    def end_attempt(self) -> EndedAttempt:
        """Ends a transaction whose records are all acknowledged. Raises `ClientStateError` if one failed."""
        self.require("commit")
        assert self._identity is not None
        attempt = EndedAttempt(
            epoch=self._identity.epoch,
            created_at_ms=self._created_at_ms,
            producer_id=self._numbering.producer_id,
            partitions=_in_order(self._numbering.sent_to),
        )
        self._numbering.end_transaction()
        self._identity = None
        self.state = TransactionState.READY
        return attempt

    def _begin(self, request: BeginTransactionRequest, *, attempt: int) -> bool:
        begun = self._cluster.call("begin_transaction", request, BeginTransactionResponse)
        self._begun = (request.run_id, begun.epoch)
        self._created_at_ms = begun.created_at_ms
        self._open(request.run_id, begun.epoch, begun.batch_id, begun.producer_id, attempt=attempt)
        return not begun.is_decided

    def _open(self, run_id: str, epoch: int, batch_id: int, producer_id: int, *, attempt: int) -> None:
        self._identity = TransactionIdentity(
            transactional_id=self._transactional_id, epoch=epoch, batch_id=batch_id, run_id=run_id, attempt=attempt
        )
        self._group = None
        self._next_producer_id = -1
        self._numbering.begin_transaction(self._identity, producer_id)
        self.state = TransactionState.OPEN

    def _epoch_of(self, run_id: str) -> int:
        last_run_id, epoch = self._begun
        return epoch if run_id == last_run_id else -1

    def add_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        self.require("send")
        if not isinstance(group, GroupMetadata):
            raise InvalidRequestError(f"group is what consumer.group_metadata() returns, not {group!r:.80}")
        if not group.group_id:
            raise InvalidRequestError("the consumer has no group.id: it commits no offsets")
        if self._group is not None and self._group.group_id != group.group_id:
            raise NotSupportedError(
                f"offsets of group {group.group_id!r} in a transaction with those of {self._group.group_id!r}: a "
                "transaction commits offsets of one group"
            )
        member_epoch = group.member_epoch
        before: tuple[CommittedOffset, ...] = ()
        if self._group is not None:
            if group.member_id != self._group.member_id:
                error = UnknownMemberIdError(
                    f"the consumer has left group {group.group_id!r}, or joined it again, since it gave the first "
                    "offsets of the transaction: others may have processed these records meanwhile"
                )
                self.fail(error)
                raise error
            before = self._group.offsets
            # What was given first holds only if nobody else has had those partitions since.
            member_epoch = min(member_epoch, self._group.member_epoch)
        committed = {(each.at.topic, each.at.partition): each for each in before}
        read_now = dict(group.topic_ids)
        for at, offset in offsets.items():
            key = self._partition_key(at, read_now.get(at))
            committed[at] = CommittedOffset(at=key, offset=check_offset(at, offset))
        self._group = GroupCommit(
            group_id=group.group_id,
            offsets=tuple(committed.values()),
            member_id=group.member_id,
            member_epoch=member_epoch,
        )

    def _partition_key(self, at: TopicPartition, topic_id: bytes | None) -> PartitionKey:
        if topic_id is not None:
            return PartitionKey(topic=at.topic, partition=at.partition, topic_id=topic_id)
        topic = self._cluster.topic(at.topic)
        if at.partition >= len(topic.partitions):
            topic = self._cluster.topic(at.topic, max_age=topic)
        topic.partition(at.partition)
        return topic.partition_key(at.partition)

    def end(self, *, is_commit: bool) -> None:
        """Decides the transaction; nothing of it is in flight any more. Raises as `Producer.commit_transaction`."""
        assert self._identity is not None
        identity, group = self._identity, self._group if is_commit else None
        producer_id = self._numbering.producer_id
        request = EndTransactionRequest(
            transactional_id=self._transactional_id,
            run_id=self._run_id,
            epoch=identity.epoch,
            batch_id=identity.batch_id,
            is_commit=is_commit,
            producer_ids=((producer_id, producer_id),),
            partitions=_in_order(self._numbering.sent_to),
            group=group,
            begins_next=True,
        )
        try:
            ended = self._cluster.call(
                "end_transaction",
                request,
                EndTransactionResponse,
                to="any" if group is None else Coordinator(group.group_id),
            )
        except RetriableError:
            if is_commit:
                self.state = TransactionState.IN_DOUBT  # the same call finds out
            raise
        except InvalidTxnStateError:
            self._ended()  # it was decided otherwise, and that stays
            raise
        except PylogError as error:
            self.fail(error)
            raise
        self._ended()
        self._next_producer_id, self._asks_again_at = ended.next_producer_id, Deadline(_NEXT_S)
        if ended.is_replay:
            raise InvalidTxnStateError(
                f"transaction {identity.batch_id} of transactional id {self._transactional_id!r} was committed before "
                "with other records: these are aborted"
            )

    def give_up(self) -> None:
        """The open transaction is to be aborted: nothing more is sent for it, and it cannot be committed any more."""
        self.require("abort")
        self._numbering.stop_sending()
        self.state = TransactionState.ABORTABLE

    def fail(self, error: PylogError) -> None:
        """The transaction cannot be committed because of this."""
        self._error = error
        is_fatal = isinstance(error, ProducerFencedError)
        self.state = TransactionState.FATAL if is_fatal else TransactionState.ABORTABLE

    def _ended(self) -> None:
        """It was decided: the next transaction may begin."""
        assert self._identity is not None
        self._ended_batch = self._identity.batch_id
        self._numbering.end_transaction()
        self._identity = self._group = self._error = None
        self.state = TransactionState.READY


def _in_order(queues: Mapping[PartitionQueue, bytes]) -> tuple[TransactionPartition, ...]:
    found = sorted((queue.topic, topic_id, queue.partition) for queue, topic_id in queues.items())
    return tuple(
        TransactionPartition(topic=topic, topic_id=topic_id, partition=partition)
        for topic, topic_id, partition in found
    )
