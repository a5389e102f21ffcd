"""What a follower does to its log after an answer of its leader: append, cut, begin anew, take over the marks.

Rule: to be called within `Partition.following`, in whose epoch the answer was given. A log is shortened by leader
epochs only, never by a high watermark. What would cut off committed records, or everything, is not done: that log is
set aside, and the leader's fetched anew. After an election of a replica that was not in sync that is what the operator
chose, and the records may be wanted yet; else it is damage somewhere.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from broker_runtime.contract.errors import CorruptRecordError, OffsetOutOfRangeError
from broker_runtime.log import PartitionLog
from broker_runtime.replication.divergence import NO_EPOCH, last_epoch, truncation_offset

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """Where a follower's log is: what it tells its leader."""

    offset: int
    durable_end: int
    last_fetched_epoch: int
    log_start: int


def position_of(log: PartitionLog) -> LogPosition:
    """Loads the log if need be."""
    extent = log.extent()
    return LogPosition(
        offset=extent.log_end,
        durable_end=extent.durable_end,
        last_fetched_epoch=last_epoch(extent.leader_epochs, extent.log_end),
        log_start=extent.log_start,
    )


def cut_to_common_part(log: PartitionLog, diverging: tuple[int, int], leader_epoch: int) -> None:
    """Removes records that the leader does not have. Durable when it returns.

    Raises `CorruptRecordError` for an answer that shortens nothing: it is none to what this log told; and as
    `PartitionLog.refuse_to_lose`.
    """
    before, watermark = position_of(log), log.high_watermark
    offset = truncation_offset(log.leader_epochs, log_end=before.offset, diverging=diverging)
    if before.last_fetched_epoch != NO_EPOCH:
        log.refuse_to_lose(offset, leader_epoch)
    _log.info(
        "truncate log topic=%s partition=%d leader_epoch=%d from=%d to=%d high_watermark=%d diverging_epoch=%d "
        "diverging_end=%d",
        log.topic, log.partition, leader_epoch, before.offset, offset, watermark, *diverging,
    )  # fmt: skip
    if offset < before.log_start:
        log.restart_at(offset)
    else:
        log.truncate_to(offset)
    if position_of(log) == before:
        raise CorruptRecordError(
            f"{log.topic}-{log.partition}: the leader says that epoch {diverging[0]} ended at {diverging[1]}, which "
            f"shortens nothing of a log that ends at {before.offset} with epoch {before.last_fetched_epoch}"
        )


def begin_anew(log: PartitionLog, leader_start: int, leader_end: int) -> None:
    """The leader's log lies elsewhere: this one ends below its start, or has no record and begins above. Durable.

    Raises `OffsetOutOfRangeError` where that is not so: there is nothing to begin anew for.
    """
    here = position_of(log)
    is_empty = here.last_fetched_epoch == NO_EPOCH
    if leader_start < 0 or not (here.offset < leader_start or (is_empty and here.offset > leader_start)):
        raise OffsetOutOfRangeError(
            f"{log.topic}-{log.partition}: the leader's log goes from {leader_start} to {leader_end}, "
            f"this one ends at {here.offset} with epoch {here.last_fetched_epoch}"
        )
    _log.warning(
        "begin log anew topic=%s partition=%d at=%d log_start=%d log_end=%d high_watermark=%d",
        log.topic, log.partition, leader_start, here.log_start, here.offset, log.high_watermark,
    )  # fmt: skip
    log.restart_at(leader_start)


def adopt_marks(log: PartitionLog, high_watermark: int, log_start: int) -> None:
    """Takes over how far the leader's log is committed and where it starts, as far as this one goes.

    The high watermark stays where it is if it was told a higher one by an earlier leader: what is committed stays so.
    """
    extent = log.extent()
    known = extent.high_watermark
    told = min(high_watermark, extent.durable_end)
    if told > known:
        known = log.set_high_watermark(told)
    start = min(log_start, known)
    if start > extent.log_start:
        log.delete_records(start)
