"""The machine of one transactional id: whose it is, which batch was decided last, and how.

Pure: a record as it is in ZooKeeper goes in, and the record to be written comes out; the writer compares and sets.

    state of a batch    event                          next
    ------------------  -----------------------------  -----------------------------------------------
    OPEN                decide                         DECIDED    its outcome never changes from here on
    OPEN                another run begins, abort,     ABORTED    of all its attempts until now; others
                        time limit                                of a later run may begin
    ABORTED             decide by a later run          DECIDED
    DECIDED             finish                         COMPLETED  all its partitions know the outcome
    DECIDED, COMPLETED  decide again                   unchanged  a lost reply, or a replay: see `decide`

Every other event in a state is refused by an error that says why. Rules:

- A run takes the transactional id over when it first begins something, and from then on nothing of the runs before it
  can be decided. Run ids have no order: the last ones are remembered (`EARLIER_RUNS`), and whoever has begun before
  says so.
- Batches are decided in rising order, gaps allowed. The decision names the producer ids that are committed. All other
  transactions of that batch and those before are aborted by it.
- A decision is kept until all partitions know it, and the last one for good. `MOST_UNFINISHED` are kept at most.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from broker_runtime.contract.errors import (
    CheckpointBehindSinkError,
    ConcurrentTransactionsError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    ReplayDiffersError,
)
from broker_runtime.contract.transactions import NEXT_BATCH, behind_text, differs_text
from broker_runtime.log import Outcomes
from broker_runtime.zookeeper.znodes import DecidedPartitions, DecisionRecord, TransactionRecord

MOST_UNFINISHED: Final = 5
EARLIER_RUNS: Final = 64
MOST_ABORTED: Final = 1_000
"""Ranges of aborted producer ids; where there would be more, the epoch rises, which aborts all that is open."""

ProducerIds = tuple[int, int]


class BatchState(enum.Enum):
    """What has become of a batch. See the module's table."""

    OPEN = "open"
    DECIDED = "decided"
    COMPLETED = "completed"


class Begun(NamedTuple):
    """``record``: to be written if it is not the one that was read."""

    record: TransactionRecord
    batch_id: int
    is_decided: bool


class Decided(NamedTuple):
    """``record``: to be written if it is not the one that was read. ``decision``: the one that counts."""

    record: TransactionRecord
    decision: DecisionRecord
    is_replay: bool


def last_batch(record: TransactionRecord) -> int:
    """The last batch that was decided; -1: none."""
    return -1 if record.last is None else record.last.batch_id


def state_of(record: TransactionRecord, batch_id: int) -> BatchState:
    """What has become of a batch."""
    if batch_id > last_batch(record):
        return BatchState.OPEN
    is_unfinished = any(each.batch_id == batch_id for each in record.unfinished)
    return BatchState.DECIDED if is_unfinished else BatchState.COMPLETED


def begin(
    record: TransactionRecord | None,
    name: str,
    *,
    run_id: str,
    batch_id: int,
    epoch: int = -1,
    timeout_ms: int,
    keep_ms: int,
    now_ms: int,
) -> Begun:
    """An attempt of ``run_id`` begins to work on a batch (`NEXT_BATCH`: the one after the last that was decided).
    ``epoch``: that the run was given when it began before; -1: it did not.

    Raises `ProducerFencedError` if another run has taken over since, `CheckpointBehindSinkError` for a batch before the
    last that was decided: then nobody is taken over from.
    """
    if record is None:
        new = TransactionRecord(
            epoch=0, run_id=run_id, timeout_ms=timeout_ms, keep_ms=keep_ms, used_at_ms=now_ms, created_at_ms=now_ms
        )
        return Begun(new, max(batch_id, 0), False)
    last = last_batch(record)
    if batch_id == NEXT_BATCH:
        batch_id = last + 1
    if run_id != record.run_id and (run_id in record.earlier_runs or epoch >= 0):
        raise _fenced(name, record, run_id)
    if batch_id < last:
        raise _behind(name, batch_id, last)
    if run_id != record.run_id:
        record = _taken_over(record, run_id)
    changed = msgspec.structs.replace(record, timeout_ms=timeout_ms, keep_ms=keep_ms)
    is_due = now_ms - record.used_at_ms > keep_ms // 4  # to show that it is in use is worth a write only now and then
    if changed != record or is_due:
        changed = msgspec.structs.replace(changed, used_at_ms=max(now_ms, record.used_at_ms))
    return Begun(changed, batch_id, batch_id == last)


def decide(
    record: TransactionRecord | None,
    name: str,
    *,
    run_id: str,
    epoch: int,
    created_at_ms: int = -1,
    batch_id: int,
    is_commit: bool,
    producer_ids: Sequence[ProducerIds],
    partitions: Sequence[DecidedPartitions],
    rows: int,
    payload_bytes: int,
    keeps_first: bool,
    now_ms: int,
) -> Decided:
    """The decision about a batch: exactly ``producer_ids`` are committed. ``created_at_ms``: of the record by which
    they began (-1: not known).

    The same decision again is a success: its reply was lost. With other producer ids it is a replay of a batch that was
    decided before: the first decision stays, and the rows that were written now are aborted by it. Raises
    `ReplayDiffersError` if such a replay has other rows or bytes, unless ``keeps_first``; `CheckpointBehindSinkError`
    for an earlier batch; `ProducerFencedError` if another run has taken over, if a producer id was aborted, or if the
    transactional id has been forgotten since, which aborts everything; `ConcurrentTransactionsError` while
    `MOST_UNFINISHED` decisions are not finished; `InvalidTxnStateError` if the transactional id is not known.
    """
    if record is None:
        raise InvalidTxnStateError(f"transactional id {name!r} has begun nothing, or has been forgotten")
    if created_at_ms not in {-1, record.created_at_ms}:
        raise ProducerFencedError(
            f"transactional id {name!r} was out of use for so long that it was forgotten, after transactions of batch "
            f"{batch_id} had begun: they were aborted"
        )
    ids = tuple(merged(producer_ids))
    last = record.last
    if last is not None and batch_id == last.batch_id:
        return _decided_before(record, name, last, run_id, is_commit, ids, rows, payload_bytes, keeps_first)
    if run_id != record.run_id or epoch != record.epoch:
        raise _fenced(name, record, run_id)
    if last is not None and batch_id < last.batch_id:
        raise _behind(name, batch_id, last.batch_id)
    if is_commit and any(overlap(ids, record.aborted)):
        raise ProducerFencedError(
            f"batch {batch_id} of transactional id {name!r} was aborted before it could be committed: it was open for "
            f"longer than {record.timeout_ms} ms, or somebody aborted it"
        )
    if len(record.unfinished) >= MOST_UNFINISHED:
        raise ConcurrentTransactionsError(
            f"{len(record.unfinished)} decisions of transactional id {name!r} are not known to all their partitions "
            "yet. Try again"
        )
    decision = DecisionRecord(
        batch_id=batch_id,
        run_id=run_id,
        is_commit=is_commit,
        producer_ids=ids if is_commit else (),
        partitions=tuple(partitions),
        rows=rows if is_commit else 0,
        payload_bytes=payload_bytes if is_commit else 0,
        decided_at_ms=now_ms,
    )
    unfinished = (*record.unfinished, decision) if partitions else record.unfinished
    used_at_ms = max(now_ms, record.used_at_ms)
    changed = msgspec.structs.replace(record, last=decision, unfinished=unfinished, aborted=(), used_at_ms=used_at_ms)
    return Decided(changed, decision, False)


def abort_run(record: TransactionRecord | None, run_id: str = "") -> TransactionRecord | None:
    """Nothing that is open will be committed, and ``run_id`` ("": whichever run has the id) begins nothing any more.
    What was decided stays. None: there is nothing to write."""
    if record is None or (run_id and run_id != record.run_id) or not record.run_id:
        return None
    return _taken_over(record, "")


def abort_producers(record: TransactionRecord, producer_ids: Iterable[int]) -> TransactionRecord:
    """These producer ids will not be committed, unless that was decided before."""
    committed = [each for decision in _decisions(record) for each in decision.producer_ids]
    new = [(each, each) for each in producer_ids if not any(overlap([(each, each)], committed))]
    aborted = tuple(merged([*record.aborted, *new]))
    if len(aborted) > MOST_ABORTED:
        return _taken_over(record, "")
    return msgspec.structs.replace(record, aborted=aborted)


def unknown(epoch: int, now_ms: int) -> TransactionRecord:
    """The record of an id that partitions know and ZooKeeper does not: everything of it up to ``epoch`` is aborted. An
    absent record is no decision; this one is."""
    return TransactionRecord(epoch=epoch + 1, run_id="", used_at_ms=now_ms, created_at_ms=now_ms)


def finish(record: TransactionRecord, batch_id: int) -> TransactionRecord:
    """All partitions of the decision about this batch know it."""
    unfinished = tuple(each for each in record.unfinished if each.batch_id != batch_id)
    last = record.last
    if last is not None and last.batch_id == batch_id:
        last = msgspec.structs.replace(last, partitions=())
    return msgspec.structs.replace(record, unfinished=unfinished, last=last)


def outcomes(name: str, record: TransactionRecord) -> Outcomes:
    """What is over by this record, for the partitions' logs. Producer ids serve one transaction, so those of several
    decisions can be named together."""
    return Outcomes(
        transactional_id=name,
        epoch=record.epoch,
        batch_id=last_batch(record),
        committed=tuple(merged(each for decision in _decisions(record) for each in decision.producer_ids)),
        aborted=record.aborted,
    )


def may_begin(record: TransactionRecord, name: str, *, epoch: int, batch_id: int, producer_id: int) -> None:
    """Whether a partition may let a transaction begin. Raises `ProducerFencedError`, `InvalidTxnStateError`."""
    if epoch != record.epoch:
        raise ProducerFencedError(
            f"transactional id {name!r} is in epoch {record.epoch}, the transaction in {epoch}: another process has "
            "taken over"
        )
    if batch_id <= last_batch(record):
        raise InvalidTxnStateError(f"batch {batch_id} of transactional id {name!r} was decided")
    if any(overlap([(producer_id, producer_id)], record.aborted)):
        raise ProducerFencedError(f"producer {producer_id} of transactional id {name!r} was aborted")


def is_forgotten(record: TransactionRecord, now_ms: int) -> bool:
    """Whether the record has been out of use for so long that it goes."""
    return not record.unfinished and now_ms - record.used_at_ms > record.keep_ms


def merged(ranges: Iterable[ProducerIds]) -> list[ProducerIds]:
    """The same ids in the fewest ranges, rising. Raises `InvalidRequestError` for a range that ends before it
    begins."""
    found: list[ProducerIds] = []
    for first, last in sorted(ranges):
        if not 0 <= first <= last:
            raise InvalidRequestError(f"{first} to {last} is no range of producer ids")
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def overlap(some: Iterable[ProducerIds], others: Sequence[ProducerIds]) -> Iterable[ProducerIds]:
    """Those of ``some`` that have an id in common with one of ``others``."""
    return (
        (first, last)
        for first, last in some
        if any(first <= other_last and other_first <= last for other_first, other_last in others)
    )


def _decided_before(
    record: TransactionRecord,
    name: str,
    last: DecisionRecord,
    run_id: str,
    is_commit: bool,
    ids: tuple[ProducerIds, ...],
    rows: int,
    payload_bytes: int,
    keeps_first: bool,
) -> Decided:
    is_same = (is_commit, ids if is_commit else ()) == (last.is_commit, last.producer_ids)
    if is_same and run_id == last.run_id:
        return Decided(record, last, False)
    if run_id != record.run_id:
        raise _fenced(name, record, run_id)
    if not is_commit or not last.is_commit:
        raise InvalidTxnStateError(
            f"batch {last.batch_id} of transactional id {name!r} was {'committed' if last.is_commit else 'aborted'}"
        )
    if (rows, payload_bytes) != (last.rows, last.payload_bytes) and not keeps_first:
        raise ReplayDiffersError(
            differs_text(name, last.batch_id, (last.rows, last.payload_bytes), (rows, payload_bytes))
        )
    return Decided(record, last, True)


def _decisions(record: TransactionRecord) -> tuple[DecisionRecord, ...]:
    if record.last is None or record.last in record.unfinished:
        return record.unfinished
    return (*record.unfinished, record.last)


def _taken_over(record: TransactionRecord, run_id: str) -> TransactionRecord:
    earlier = [each for each in record.earlier_runs if each != record.run_id]
    if record.run_id:
        earlier.append(record.run_id)
    return msgspec.structs.replace(
        record, epoch=record.epoch + 1, run_id=run_id, earlier_runs=tuple(earlier[-EARLIER_RUNS:]), aborted=()
    )


def _fenced(name: str, record: TransactionRecord, run_id: str) -> ProducerFencedError:
    by = f"run {record.run_id}" if record.run_id else "an administrator, or the end of the run before"
    return ProducerFencedError(f"transactional id {name!r} is no longer that of run {run_id}: {by} has ended it")


def _behind(name: str, batch_id: int, last: int) -> CheckpointBehindSinkError:
    return CheckpointBehindSinkError(behind_text(name, batch_id, last))
