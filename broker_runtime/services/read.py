"""What a broker does for a read: it gives the frames of a range of offsets of one partition, piece by piece.

Rule: a piece is loaded when the one before it was taken, so a reader that takes nothing costs one piece. Pieces are
whole frames; the first may begin before the range and the last may end after it (the reader cuts them). A stretch in
which no frame can match the reader's predicate costs nothing but a word now and then of how far the search is. Where
retention removes records during a read, the read fails with `OffsetOutOfRangeError`; it never has a gap.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from broker_runtime.contract.errors import OffsetOutOfRangeError, RequestTimedOutError
from broker_runtime.contract.frame import AbortedRange
from broker_runtime.contract.model import EARLIEST, LATEST
from broker_runtime.contract.predicate.frames import FrameTest, prepared
from broker_runtime.contract.quotas import CONSUMER_BYTE_RATE
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, READ_COMMITTED
from broker_runtime.contract.streams import ReadRequest, ReadResponse
from broker_runtime.contract.waiting import Deadline
from broker_runtime.log import LogSlice
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.security.authorizer import ALLOW_ALL, Authorizer
from broker_runtime.security.quotas import UNLIMITED, Allowance
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.caller import Caller
from broker_runtime.services.leadership_check import Denied, LeadershipCheck
from broker_runtime.services.partition_read import find_matching

_MAX_PIECE_BYTES = 16 << 20
_MAX_BUDGET_WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """A resolved read: ``[start, end)`` of a partition, ``end`` at most its readable end at that moment.

    ``is_committed``: of committed records only, below the last stable offset; otherwise below the high watermark.
    """

    partition: Partition
    start: int
    end: int
    columns: Sequence[int] | None
    piece_bytes: int
    leader_epoch: int
    is_committed: bool
    test: FrameTest | None = None


class ReadService:
    """Reads of the partitions this broker leads. Thread-safe."""

    def __init__(
        self,
        registry: PartitionRegistry,
        *,
        budget: ByteBudget,
        leadership: LeadershipCheck | None = None,
        authorizer: Authorizer = ALLOW_ALL,
        meters: Meters = NO_METERS,
    ) -> None:
        """``budget``: for the bytes of all pieces being written, shared with fetches. ``leadership``: as of
        `FetchService`."""
        self._registry = registry
        self._budget = budget
        self._leadership = leadership
        self._authorizer = authorizer
        self._meters = meters

    def plan(self, caller: Caller, request: ReadRequest) -> ReadRange:
        """The range that ``request`` means now. Raises as `PartitionRegistry.find` and `Partition.require_leader`;
        `OffsetOutOfRangeError` unless log start ≤ start ≤ end ≤ readable end; `OffsetNotAvailableError` where a new
        leader does not know yet whether so much is committed, or a broker whether it still leads;
        `InvalidRequestError` for a predicate that is none; `TopicAuthorizationError`.
        """
        self._authorizer.require(caller, "Read", "Topic", request.topic)
        test = None if request.where is None else prepared(request.where)
        partition = self._registry.find(request.topic, request.partition, request.topic_id)
        leader_epoch = partition.require_leader(request.leader_epoch)
        with partition.refusing():
            is_committed = request.isolation_level == READ_COMMITTED
            log_start = partition.log_start
            readable_end = partition.last_stable_offset if is_committed else partition.high_watermark
            if LATEST in (request.start, request.end) or max(request.start, request.end) > readable_end:
                latest = partition.latest_offsets()
                readable_end = latest.last_stable_offset if is_committed else latest.high_watermark
        start = log_start if request.start == EARLIEST else request.start
        end = readable_end if request.end == LATEST else request.end
        if start == LATEST:
            start = readable_end
        if not log_start <= start <= end <= readable_end:
            error = OffsetOutOfRangeError(
                f"{partition}: offsets {start} to {end} asked for, {log_start} to {readable_end} are here"
            )
            if self._leadership is None:
                raise error
            raise self._leadership.verified([Denied(partition, leader_epoch, error)])[0]
        # Sizes are those of whole frames; of projected ones more fit into a piece.
        wanted_bytes = request.batch_bytes if request.columns is None else request.batch_bytes * 4
        piece_bytes = max(1, min(wanted_bytes, _MAX_PIECE_BYTES))
        return ReadRange(
            partition=partition,
            start=start,
            end=end,
            columns=request.columns,
            piece_bytes=piece_bytes,
            leader_epoch=request.leader_epoch,
            is_committed=is_committed,
            test=test,
        )

    def pieces(
        self, caller: Caller, plan: ReadRange, allowance: Allowance = UNLIMITED
    ) -> Generator[tuple[ReadResponse, pa.Buffer | None], None, None]:
        """The range's frames, up to ``piece_bytes`` at a time (at least one frame), each piece with its next offset.

        There is at least one piece; that of an empty range has no frames (None), nor has one of a stretch in which no
        frame can match. Close the iterator to stop early. ``allowance``: what the caller may take; over it, each piece
        waits.
        """
        position = plan.start
        silence = Deadline(HEARTBEAT_INTERVAL_S)
        if position == plan.end:
            allowance.wait()
            yield ReadResponse(start=plan.start, end=plan.end, next_offset=position), None
        while position < plan.end:
            allowance.wait()  # with nothing in hand
            self._authorizer.require(caller, "Read", "Topic", plan.partition.topic)  # it may have been withdrawn
            piece_bytes = allowance.most_in_one_second(CONSUMER_BYTE_RATE, plan.piece_bytes)
            with plan.partition.refusing():
                before, (position, found) = position, self._find(plan, position, piece_bytes)
            if found is None and plan.test is not None and position > before:
                if position == plan.end or silence.expired:
                    yield ReadResponse(start=plan.start, end=plan.end, next_offset=position), None
                    silence = Deadline(HEARTBEAT_INTERVAL_S)
                continue
            if found is None:  # the log was truncated below the range
                raise OffsetOutOfRangeError(f"{plan.partition}: offset {position} is not committed any more")
            with found:
                size_bytes = found.size_bytes
                if not self._budget.acquire(size_bytes, _MAX_BUDGET_WAIT_S):
                    raise RequestTimedOutError(f"the broker had no {size_bytes} bytes free for a piece of a read")
                try:
                    aborted: Sequence[AbortedRange] = ()
                    with plan.partition.refusing():
                        frames = found.load() if plan.columns is None else found.load_projected(plan.columns)
                        if plan.is_committed:
                            aborted = plan.partition.log.aborted_transactions(found.start_offset, found.next_offset)
                    position = found.next_offset
                    self._meters.read(plan.partition.log.topic, frames.size)
                    allowance.spend(CONSUMER_BYTE_RATE, frames.size)
                    response = ReadResponse(
                        start=plan.start,
                        end=plan.end,
                        next_offset=position,
                        aborted=tuple(aborted),
                        throttle_ms=allowance.throttle_ms(),
                    )
                    yield response, frames
                    silence = Deadline(HEARTBEAT_INTERVAL_S)
                    del frames
                finally:
                    self._budget.release(size_bytes)

    def _find(self, plan: ReadRange, position: int, piece_bytes: int) -> tuple[int, LogSlice | None]:
        """The next frames of the range, and where they begin; None: there are none before that offset."""
        if plan.test is None:
            return position, plan.partition.read(
                position,
                max_bytes=piece_bytes,
                leader_epoch=plan.leader_epoch,
                is_committed=plan.is_committed,
                stop=plan.end,
            )
        position, found = find_matching(
            plan.partition,
            position,
            plan.test,
            max_bytes=piece_bytes,
            leader_epoch=plan.leader_epoch,
            is_committed=plan.is_committed,
            stop=plan.end,
            limit_s=HEARTBEAT_INTERVAL_S,
        )
        if position < plan.end:
            return position, found
        if found is not None:
            found.close()
        return plan.end, None
