"""Transactions, as messages: how they begin and end, and how one looks at them.

    begin_transaction      any broker: a producer id for one transaction of a transactional id
    end_transaction        any broker (with a group's offsets: its coordinator): the one decision about a batch
    abort_transactions     any broker: nothing that is open and undecided will be committed
    list_transactions      any broker: what ZooKeeper knows of transactional ids
    open_transactions      the leader of partitions: what has begun and not ended there
    finish_transactions    between brokers: the leader of partitions looks what was decided, and ends what is over

A transaction is a batch's work by one attempt. Attempts of one batch are decided together, by `EndTransactionRequest`:
those that it lists are committed, all others are aborted.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from broker_runtime.contract.requests import (
    MOST_IN_ONE,
    CommittedOffset,
    Entries,
    Int32,
    Int64,
    Message,
    Name,
    PartitionKey,
    PartitionNumber,
    Request,
    Uuid,
    make_decoders,
)

TransactionalId = Annotated[
    str, msgspec.Meta(min_length=1, max_length=255, pattern="^[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]+\\Z")
]
"""As ZooKeeper allows the names of znodes."""
RunId = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Attempt = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
BatchId = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
ProducerIds = tuple[Int64, Int64]
"""A range: first, last."""

NEXT_BATCH = -1
"""The batch after the last one that was decided."""


class TransactionIdentity(Message, frozen=True, kw_only=True):
    """Beside the first frame of a transaction in each partition. See `TransactionBegin`."""

    transactional_id: TransactionalId
    epoch: Epoch
    batch_id: BatchId
    run_id: RunId
    attempt: Attempt = -1


class BeginTransactionRequest(Request, frozen=True, kw_only=True):
    """``run_id``: of the process that has the transactional id, unique for each. One that was never seen takes over
    from the one before. ``epoch``: that the run was given before, -1 if it begins for the first time: one that has
    begun before takes over from nobody. ``timeout_ms``: how long a transaction of the id may stay open. ``keep_ms``:
    how long the id is remembered after its last use."""

    transactional_id: TransactionalId
    run_id: RunId
    batch_id: Annotated[int, msgspec.Meta(ge=NEXT_BATCH, le=2**62)] = NEXT_BATCH
    epoch: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=2**40)] = 60_000
    keep_ms: Annotated[int, msgspec.Meta(ge=1, le=2**40)] = 30 * 86_400_000


class BeginTransactionResponse(Message, frozen=True, kw_only=True):
    """``is_decided``: the batch has been decided already; then there is no producer id, and nothing may be written.
    ``created_at_ms``: since when the id is known; -1: the broker does not say."""

    epoch: Int64
    created_at_ms: Int64 = -1
    batch_id: Int64
    is_decided: bool = False
    producer_id: Int64 = -1
    producer_epoch: Int32 = 0


class TransactionPartition(Message, frozen=True, kw_only=True):
    topic: Name
    topic_id: Uuid
    partition: PartitionNumber


class GroupCommit(Message, frozen=True, kw_only=True):
    """The next offsets of a consumer group that become committed with the transaction. Members: as in
    `CommitOffsetsRequest`."""

    group_id: str
    offsets: Entries[CommittedOffset]
    member_id: Annotated[str, msgspec.Meta(max_length=64)] = ""
    member_epoch: Int32 = -1


class EndTransactionRequest(Request, frozen=True, kw_only=True):
    """Decides a batch: exactly the transactions of ``producer_ids`` are committed (without ``is_commit``: none).

    ``partitions``: all that these wrote to. ``rows`` and ``payload_bytes``: of all attempts that count, also of those
    that found the batch decided. A batch that was decided stays as it was; one whose rows or bytes differ from that is
    refused, unless ``keeps_first``. ``created_at_ms``: as the attempts were told when they began; -1: not known.
    ``begins_next``: the same producer will begin the next batch.
    """

    MOST_BYTES: ClassVar[int] = 5 << 20

    transactional_id: TransactionalId
    run_id: RunId
    epoch: Epoch
    created_at_ms: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    batch_id: BatchId
    is_commit: bool
    producer_ids: Annotated[tuple[ProducerIds, ...], msgspec.Meta(max_length=MOST_IN_ONE)] = ()
    partitions: Annotated[tuple[TransactionPartition, ...], msgspec.Meta(max_length=MOST_IN_ONE)] = ()
    rows: Count = 0
    payload_bytes: Count = 0
    keeps_first: bool = False
    group: GroupCommit | None = None
    begins_next: bool = False


class EndTransactionResponse(Message, frozen=True, kw_only=True):
    """``is_replay``: the batch had been decided before, by other attempts, whose rows count and not these.
    ``decided_rows`` and ``decided_payload_bytes``: of that decision. ``next_producer_id``: for the next batch, where
    the request asks for one: it may begin without another request. -1: it has to be asked for."""

    is_commit: bool
    is_replay: bool = False
    decided_rows: Count = 0
    decided_payload_bytes: Count = 0
    next_producer_id: Int64 = -1


class AbortTransactionsRequest(Request, frozen=True, kw_only=True):
    """``run_id``: of which run; empty: of whichever has the transactional id. That run can begin nothing any more."""

    transactional_id: TransactionalId
    run_id: Annotated[str, msgspec.Meta(max_length=255)] = ""


class ListTransactionsRequest(Request, frozen=True, kw_only=True):
    """``transactional_ids=None``: all. ``is_current``: nothing older than what was written when this was asked."""

    transactional_ids: Entries[TransactionalId] | None = None
    is_current: bool = False


class TransactionalIdInfo(Message, frozen=True, kw_only=True):
    """What ZooKeeper has. ``batch_id``: the last one that was decided, -1: none. ``unfinished``: decided batches that
    not all partitions know of yet."""

    transactional_id: str
    epoch: Int64
    run_id: str
    batch_id: Int64
    is_commit: bool = False
    rows: Count = 0
    payload_bytes: Count = 0
    decided_at_ms: Int64 = -1
    used_at_ms: Int64 = -1
    timeout_ms: Int64 = -1
    unfinished: tuple[Int64, ...] = ()


class ListTransactionsResponse(Message, frozen=True, kw_only=True):
    """Sorted by transactional id; those that are unknown are left out."""

    transactional_ids: tuple[TransactionalIdInfo, ...]


class OpenTransactionsRequest(Request, frozen=True, kw_only=True):
    """Of the partitions that this broker leads."""

    transactional_id: Annotated[str, msgspec.Meta(max_length=255)] = ""


class OpenTransactionInfo(Message, frozen=True, kw_only=True):
    """A transaction that has begun in a partition and not ended there. ``began_ms``: by the leader's clock."""

    transactional_id: str
    epoch: Int64
    batch_id: Int64
    run_id: str
    attempt: Int64
    producer_id: Int64
    topic: Name
    partition: PartitionNumber
    first_offset: Int64
    began_ms: Int64


class OpenTransactionsResponse(Message, frozen=True, kw_only=True):
    """``now_ms``: the broker's clock. ``is_complete``: false where there are more than fit into an answer."""

    now_ms: Int64
    transactions: tuple[OpenTransactionInfo, ...]
    is_complete: bool = True


class FinishTransactionsRequest(Request, frozen=True, kw_only=True):
    """``epoch``, ``batch_id``: the decision that the leader must have read before it answers."""

    transactional_id: TransactionalId
    epoch: Int64
    batch_id: Int64
    partitions: Entries[PartitionKey]


class FinishTransactionsResponse(Message, frozen=True, kw_only=True):
    """By partition, in order: whether everything that is over has ended, on all in-sync replicas."""

    are_finished: tuple[bool, ...]


def behind_text(transactional_id: str, batch_id: int, last_batch_id: int) -> str:
    """The text of `CheckpointBehindSinkError`, of brokers and clients."""
    return (
        f"batch {batch_id} of transactional id {transactional_id!r} is written again after batch {last_batch_id} was "
        "committed: the checkpoint was rewound, or is an old copy. Start from the present checkpoint, or, to write "
        "everything from there on once more, with another pylog.transactional.id"
    )


def differs_text(transactional_id: str, batch_id: int, first: tuple[int, int], now: tuple[int, int]) -> str:
    """The text of `ReplayDiffersError`, of brokers and clients. ``first``, ``now``: rows and payload bytes."""
    return (
        f"batch {batch_id} of transactional id {transactional_id!r} was committed with {first[0]} rows and {first[1]} "
        f"bytes, and is written again with {now[0]} rows and {now[1]} bytes. The first ones stay. Either its query is "
        "not deterministic (rand(), order of arrival), or the checkpoint was rewound or copied. To go on with what is "
        "there, start once with the option pylog.replay.differs=keep"
    )


make_decoders()
