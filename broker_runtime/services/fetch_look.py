"""What one partition has for a fetch at a moment, and how that becomes an answer: functions without a wait.

Rule: what goes wrong with a partition is its own answer and holds up no other. Rows are never decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from broker_runtime.contract.errors import OffsetOutOfRangeError, PylogError
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.streams import FetchedPartition, FetchPartition, FetchResponse
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
class Look:
    """What one partition has for a fetch at this moment. Offsets are -1 where it could not tell."""

    wanted: FetchPartition
    partition: Partition | None = None
    found: LogSlice | None = None
    error: PylogError | None = None
    high_watermark: int = -1
    log_start: int = -1
    log_end: int = -1
    leader_epoch: int = -1
    readable_end: int = -1  # up to where this peer may read
    diverging: tuple[int, int] | None = None


def look_for_consumer(look: Look, room_bytes: int, *, is_first: bool) -> None:
    """Raises as `Partition.read`; what was found out until then is in ``look``."""
    wanted, partition = look.wanted, look.partition
    assert partition is not None
    look.high_watermark = look.readable_end = partition.high_watermark
    look.log_start = partition.log_start
    look.log_end = partition.log.log_end_offset
    if room_bytes <= 0 and not is_first:
        partition.require_leader(wanted.leader_epoch)
        return
    look.found = partition.read(
        wanted.offset, max_bytes=room_bytes, leader_epoch=wanted.leader_epoch, at_least_one=is_first
    )


def look_for_follower(
    look: Look, room_bytes: int, follower: BrokerCaller, now_ms: int, *, is_first: bool, tells: bool
) -> None:
    """Raises as `Partition.follower_fetch`; what was found out until then is in ``look``."""
    wanted, partition = look.wanted, look.partition
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
            fetch, max_bytes=room_bytes, now_ms=now_ms, at_least_one=is_first, is_first_look=tells
        )
    except OffsetOutOfRangeError:
        # It begins anew where this log starts, if that was said in its own leader epoch.
        look.leader_epoch = partition.require_leader(wanted.leader_epoch)
        extent = partition.log.extent()
        look.log_start, look.log_end = extent.log_start, extent.log_end
        raise
    look.found, look.diverging = answer.found, answer.diverging
    look.high_watermark, look.leader_epoch = answer.high_watermark, answer.leader_epoch
    look.log_start, look.log_end = answer.log_start, answer.log_end
    look.readable_end = answer.log_end


def is_enough(looks: Sequence[Look], min_bytes: int) -> bool:
    """Whether there is something to answer with before the time is over."""
    found_bytes = 0
    for look in looks:
        if look.error is not None or look.diverging is not None:
            return True
        if 0 <= look.wanted.log_start < look.log_start:
            return True  # a follower has records that were deleted
        if look.found is None:
            continue
        if look.found.next_offset < look.readable_end:
            return True  # there is more than one answer takes (a limit, the end of a segment)
        found_bytes += look.found.size_bytes
    return found_bytes >= min_bytes


def load_slice(look: Look) -> pa.Buffer | None:
    """The frames that were found, whole or with the columns wanted. Raises as `LogSlice.load`."""
    if look.found is None:
        return None
    if look.wanted.columns is None:
        return look.found.load()
    return look.found.load_projected(look.wanted.columns)


def tell(look: Look, row: int, *, is_replica: bool) -> FetchedPartition | None:
    """What the answer says of a partition; None: nothing that the client does not know."""
    wanted, error = look.wanted, look.error
    if error is None and row < 0 and not is_replica and look.high_watermark <= wanted.offset:
        return None
    diverging_epoch, diverging_end = look.diverging if look.diverging is not None else (-1, -1)
    return FetchedPartition(
        topic=wanted.topic,
        partition=wanted.partition,
        row=row,
        next_offset=look.found.next_offset if row >= 0 and look.found is not None else wanted.offset,
        high_watermark=look.high_watermark,
        last_stable_offset=look.high_watermark,
        log_start=look.log_start,
        log_end=look.log_end,
        leader_epoch=look.leader_epoch,
        diverging_epoch=diverging_epoch,
        diverging_end=diverging_end,
        error=ErrorInfo.of(error) if error is not None else None,
    )


def close_looks(looks: Sequence[Look]) -> None:
    """Lets go of what was found. Again is fine."""
    for look in looks:
        if look.found is not None:
            look.found.close()
            look.found = None
