"""What one partition has for a fetch at one moment, and how that becomes an answer: functions that never wait.

Rule: the error of a partition is that partition's answer and holds up no other. Rows are never decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from broker_runtime.contract.errors import OffsetOutOfRangeError, PylogError
from broker_runtime.contract.frame import AbortedRange
from broker_runtime.contract.predicate.frames import FrameTest
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.streams import FetchedPartition, FetchPartition, FetchResponse
from broker_runtime.contract.waiting import Deadline
from broker_runtime.log import LogSlice
from broker_runtime.replication import FollowerFetch, Partition
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.caller import BrokerCaller


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """The response and the frames its rows name. ``close`` it when the frames are written."""

    response: FetchResponse
    cells: Sequence[pa.Buffer]
    held_bytes: int
    _budget: ByteBudget

    def close(self) -> None:
        """Gives the answer's bytes back to the budget. Call exactly once."""
        self._budget.release(self.held_bytes)


@dataclass(slots=True)
class PartitionRead:
    """What one partition has for a fetch at this moment. Offsets are -1 where they are not known."""

    wanted: FetchPartition
    partition: Partition | None = None
    found: LogSlice | None = None
    error: PylogError | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    log_end: int = -1
    leader_epoch: int = -1
    readable_end: int = -1  # this peer may read up to here
    diverging: tuple[int, int] | None = None
    test: FrameTest | None = None  # frames in which no row can match are left out
    searched_to: int = -1  # in no frame before that offset a row can match
    aborted: Sequence[AbortedRange] = ()  # of what was found


def read_for_consumer(
    read: PartitionRead, room_bytes: int, *, is_first: bool, is_committed: bool, search: Deadline | None = None
) -> None:
    """``is_committed``: the consumer reads committed records only. ``search``: how long to look for frames in which a
    row can match. Raises as `Partition.read`; what was read until then is in ``read``."""
    wanted, partition = read.wanted, read.partition
    assert partition is not None
    read.last_stable_offset, read.high_watermark = partition.last_stable_offset, partition.high_watermark
    read.readable_end = read.last_stable_offset if is_committed else read.high_watermark
    read.log_start = partition.log_start
    read.log_end = partition.log.log_end_offset
    if room_bytes <= 0 and not is_first:
        partition.require_leader(wanted.leader_epoch)
        return
    if read.test is None:
        found = partition.read(
            wanted.offset,
            max_bytes=room_bytes,
            leader_epoch=wanted.leader_epoch,
            at_least_one=is_first,
            is_committed=is_committed,
        )
    else:
        read.searched_to, found = find_matching(
            partition,
            wanted.offset,
            read.test,
            max_bytes=room_bytes,
            leader_epoch=wanted.leader_epoch,
            at_least_one=is_first,
            is_committed=is_committed,
            limit_s=None if search is None else search.remaining_s(),
        )
    if found is not None and is_committed:
        try:
            read.aborted = partition.log.aborted_transactions(found.start_offset, found.next_offset)
        except PylogError:
            found.close()
            raise
    read.found = found


def find_matching(
    partition: Partition,
    offset: int,
    test: FrameTest,
    *,
    max_bytes: int,
    leader_epoch: int,
    is_committed: bool,
    at_least_one: bool = True,
    stop: int | None = None,
    limit_s: float | None = None,
) -> tuple[int, LogSlice | None]:
    """Of what `Partition.read` may return, the next frames in which a row can match, and where they begin; None: there
    are none before that offset. See `PartitionLog.next_match`. Raises as `Partition.read`."""
    partition.require_leader(leader_epoch)
    end = partition.last_stable_offset if is_committed else partition.high_watermark
    if offset >= end:  # there is nothing, or there is no such offset
        return offset, partition.read(offset, max_bytes=0, leader_epoch=leader_epoch, is_committed=is_committed)
    start, upto = partition.log.next_match(
        offset, test, max_bytes=max_bytes, upto=end, stop=end if stop is None else stop, limit_s=limit_s
    )
    if start == upto:
        return start, None
    # The first frame may begin before the log does.
    return start, partition.log.read(max(start, offset), max_bytes=max_bytes, upto=upto, at_least_one=at_least_one)


def read_for_follower(
    read: PartitionRead, room_bytes: int, follower: BrokerCaller, now_ms: int, *, is_first: bool, is_report: bool
) -> None:
    """Raises as `Partition.follower_fetch`; what was read until then is in ``read``."""
    wanted, partition = read.wanted, read.partition
    assert partition is not None
    fetch = FollowerFetch(
        broker_id=follower.broker_id,
        broker_epoch=follower.broker_epoch,
        offset=wanted.offset,
        durable_end=wanted.durable_end,
        leader_epoch=wanted.leader_epoch,
        last_fetched_epoch=wanted.last_fetched_epoch,
        log_start=wanted.log_start,
    )
    try:
        answer = partition.follower_fetch(
            fetch, max_bytes=room_bytes, now_ms=now_ms, at_least_one=is_first, is_first_look=is_report
        )
    except OffsetOutOfRangeError:
        # It starts again where this log starts, if the answer is of its own leader epoch.
        read.leader_epoch = partition.require_leader(wanted.leader_epoch)
        extent = partition.log.extent()
        read.log_start, read.log_end = extent.log_start, extent.log_end
        raise
    read.found, read.diverging = answer.found, answer.diverging
    read.high_watermark, read.leader_epoch = answer.high_watermark, answer.leader_epoch
    read.log_start, read.log_end = answer.log_start, answer.log_end
    read.readable_end = answer.log_end


def is_enough(reads: Sequence[PartitionRead], min_bytes: int) -> bool:
    """Whether there is enough to answer with before the time is over."""
    found_bytes = 0
    for read in reads:
        if read.error is not None or read.diverging is not None:
            return True
        if 0 <= read.wanted.log_start < read.log_start:
            return True  # the follower still has records that were deleted
        if 0 <= read.wanted.offset < read.searched_to < read.readable_end and read.found is None:
            return True  # the search is not over, and takes long: the reader hears how far it is
        if read.found is None:
            continue
        if read.found.next_offset < read.readable_end:
            return True  # there is more than one answer takes (a limit, the end of a segment)
        found_bytes += read.found.size_bytes
    return found_bytes >= min_bytes


def load_found(read: PartitionRead) -> pa.Buffer | None:
    """The frames that were found, whole or with only the wanted columns. Raises as `LogSlice.load`."""
    if read.found is None:
        return None
    if read.wanted.columns is None:
        return read.found.load()
    return read.found.load_projected(read.wanted.columns)


def answer_of(read: PartitionRead, row: int, *, is_replica: bool) -> FetchedPartition | None:
    """The answer of a partition; None: the client knows everything it would say."""
    wanted, error = read.wanted, read.error
    if error is None and row < 0 and not is_replica and read.high_watermark <= wanted.offset:
        return None
    next_offset = wanted.offset
    if error is None and read.found is not None and row >= 0:
        next_offset = read.found.next_offset
    elif error is None:
        next_offset = max(next_offset, read.searched_to)
    diverging_epoch, diverging_end = read.diverging if read.diverging is not None else (-1, -1)
    return FetchedPartition(
        topic=wanted.topic,
        partition=wanted.partition,
        row=row,
        next_offset=next_offset,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start=read.log_start,
        log_end=read.log_end,
        leader_epoch=read.leader_epoch,
        diverging_epoch=diverging_epoch,
        diverging_end=diverging_end,
        aborted=tuple(read.aborted) if row >= 0 else (),
        error=ErrorInfo.of(error) if error is not None else None,
    )


def close_reads(reads: Sequence[PartitionRead]) -> None:
    """Closes what was found. Idempotent."""
    for read in reads:
        if read.found is not None:
            read.found.close()
            read.found = None
