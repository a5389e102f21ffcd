"""The transactions of one log: which are open, how they end, and how far the log is stable.

    BEGIN ── frames of that producer id ── END (committed or aborted)

    last stable offset = the first offset of the first transaction that is open, or whose end is not committed yet;
                         the high watermark if there is none

Rules:

- The state follows from the frames alone (`contract.frame.control`), so a follower's is its leader's, and that of a
  truncated log is that of its remaining frames. It is part of the producers' snapshots (`producer_state`).
- A transaction has a producer id of its own, which serves no other. So an outcome belongs to a producer id for good,
  and outcomes may arrive late, twice, or in any order.
- A log ends transactions only by outcomes that their coordinator has recorded (`Outcomes`).
- What is remembered of a transactional id outlives its transactions, so that a frame that was sent long ago cannot
  begin one that has ended, or one of a run that another has taken over from. It is forgotten like a producer, and where
  the id's coordinator has forgotten it and begins anew: a `TransactionBegin` that contradicts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from broker_runtime.contract.errors import InvalidTxnStateError, ProducerFencedError
from broker_runtime.contract.frame import (
    MOST_ENDED,
    EndedTransaction,
    FrameHeader,
    TransactionBegin,
    TransactionEnd,
)

ProducerIds = tuple[int, int]
"""A range of producer ids: first, last."""


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A transaction that has begun in this partition. ``first_offset``: of its `TransactionBegin`; ``began_ms``: the
    append time of that."""

    producer_id: int
    first_offset: int
    began_ms: int
    begin: TransactionBegin


class KnownId(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What is remembered of a transactional id: the newest ``epoch`` that was seen, and the ``batch_id`` up to which
    everything has ended. ``log_time_ms``: the log's time when that was last seen."""

    epoch: int
    batch_id: int
    log_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How transactions of ``transactional_id`` ended, as their coordinator recorded it.

    Over are those of epochs below ``epoch``, those up to ``batch_id`` (-1: none), and those of a producer id in
    ``aborted``. Of these, the producer ids in ``committed`` are committed, all others are aborted.
    """

    transactional_id: str
    epoch: int
    batch_id: int = -1
    committed: Sequence[ProducerIds] = ()
    aborted: Sequence[ProducerIds] = ()

    def ends(self, transaction: OpenTransaction) -> bool:
        """Whether the transaction is over."""
        begin = transaction.begin
        return begin.transactional_id == self.transactional_id and (
            begin.epoch < self.epoch
            or begin.batch_id <= self.batch_id
            or _has(self.aborted, transaction.producer_id)
            or _has(self.committed, transaction.producer_id)
        )

    def commits(self, producer_id: int) -> bool:
        """Whether a transaction that is over is committed."""
        return _has(self.committed, producer_id)


class Transactions:
    """See the module. Not thread-safe: the log's lock guards it."""

    def __init__(self, opened: Sequence[OpenTransaction] = (), known: dict[str, KnownId] | None = None) -> None:
        """``known``: the log's time begins at 0 now, so its times are 0 or less."""
        self.open = {each.producer_id: each for each in opened}  # in the order of their first offsets
        self.known = known if known is not None else {}
        # (offset of the end, first offset) of transactions whose end may not be committed yet, in the order of the ends
        self._ending: deque[tuple[int, int]] = deque()

    def last_stable_offset(self, high_watermark: int) -> int:
        """How far the log is stable. Never falls while ``high_watermark`` does not, unless the log is truncated."""
        while self._ending and self._ending[0][0] < high_watermark:
            self._ending.popleft()
        first = min((first for _, first in self._ending), default=high_watermark)
        return min(high_watermark, first, self._first_open(high_watermark))

    def check_begin(self, begin: TransactionBegin) -> None:
        """Raises `ProducerFencedError` if a later epoch was seen, `InvalidTxnStateError` if the batch has ended."""
        known = self.known.get(begin.transactional_id)
        if known is None:
            return
        if begin.epoch < known.epoch:
            raise ProducerFencedError(
                f"transactional id {begin.transactional_id!r} is in epoch {known.epoch}, the transaction in "
                f"{begin.epoch}: another process has taken over"
            )
        if begin.batch_id <= known.batch_id:
            raise InvalidTxnStateError(
                f"batch {begin.batch_id} of transactional id {begin.transactional_id!r} has ended: everything up to "
                f"batch {known.batch_id} was decided"
            )

    def plan_end(self, outcomes: Outcomes, offset: int) -> TransactionEnd | None:
        """What ends now, for a frame at ``offset``; None: nothing. Names `MOST_ENDED` at most: call again."""
        over = [each for each in self.open.values() if outcomes.ends(each)]
        if not over:
            return None
        chosen = over[:MOST_ENDED]
        ends_all = len(chosen) == len(over)
        kept = self.open.keys() - {each.producer_id for each in chosen}
        return TransactionEnd(
            transactional_id=outcomes.transactional_id,
            epoch=outcomes.epoch,
            batch_id=outcomes.batch_id if ends_all else -1,
            last_stable_offset=min((self.open[each].first_offset for each in kept), default=offset + 1),
            ended=tuple(
                EndedTransaction(
                    producer_id=each.producer_id,
                    first_offset=each.first_offset,
                    is_committed=outcomes.commits(each.producer_id),
                )
                for each in chosen
            ),
        )

    def begin(self, header: FrameHeader, begin: TransactionBegin, log_time_ms: int) -> None:
        """A `TransactionBegin` was appended."""
        known = self.known.get(begin.transactional_id)
        if known is not None and (begin.epoch < known.epoch or begin.batch_id <= known.batch_id):
            del self.known[begin.transactional_id]
        self.open[header.producer_id] = OpenTransaction(
            producer_id=header.producer_id,
            first_offset=header.base_offset,
            began_ms=header.append_time_ms,
            begin=begin,
        )
        self._learn(begin.transactional_id, begin.epoch, -1, log_time_ms)

    def end(self, header: FrameHeader, end: TransactionEnd, log_time_ms: int) -> None:
        """A `TransactionEnd` was appended."""
        ended = [self.open.pop(each.producer_id) for each in end.ended if each.producer_id in self.open]
        if ended:
            self._ending.append((header.base_offset, min(each.first_offset for each in ended)))
        self._learn(end.transactional_id, end.epoch, end.batch_id, log_time_ms)

    def end_again(self, header: FrameHeader, end: TransactionEnd) -> None:
        """A `TransactionEnd` that was appended before this state was saved may not be committed yet."""
        if end.ended:
            self._ending.append((header.base_offset, min(each.first_offset for each in end.ended)))

    def known_since(self, after_ms: int) -> dict[str, KnownId]:
        """The transactional ids that were seen at that time of the log or later, or have something open."""
        in_use = {each.begin.transactional_id for each in self.open.values()}
        return {name: each for name, each in self.known.items() if each.log_time_ms >= after_ms or name in in_use}

    def _first_open(self, default: int) -> int:
        return next(iter(self.open.values())).first_offset if self.open else default

    def _learn(self, transactional_id: str, epoch: int, batch_id: int, log_time_ms: int) -> None:
        known = self.known.get(transactional_id)
        if known is not None:
            epoch, batch_id = max(epoch, known.epoch), max(batch_id, known.batch_id)
        self.known[transactional_id] = KnownId(epoch=epoch, batch_id=batch_id, log_time_ms=log_time_ms)


def _has(ranges: Sequence[ProducerIds], producer_id: int) -> bool:
    return any(first <= producer_id <= last for first, last in ranges)
