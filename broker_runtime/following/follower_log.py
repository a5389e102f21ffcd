"""What a follower does to its log after an answer of its leader: append, cut, restart elsewhere, take over the marks.

Rules: these are called within `Partition.following`, in the epoch in which the answer was given. A log is shortened
by leader epochs only, never by a high watermark. A cut that would remove committed records, or all of them, is not
made: the log is set aside, and the leader's is fetched from its start. After an election of a replica that was not in
sync this is what the operator chose, and the records may still be wanted; otherwise it is damage somewhere.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from broker_runtime.contract.errors import CorruptRecordError, OffsetOutOfRangeError
from broker_runtime.contract.events import event
from broker_runtime.log import PartitionLog
from broker_runtime.replication.divergence import NO_EPOCH, last_epoch, truncation_offset

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """Where a follower's log is: what it reports to its leader."""

    offset: int
    durable_end: int
    last_fetched_epoch: int
    log_start: int


def position_of(log: PartitionLog) -> LogPosition:
    """Loads the log if necessary."""
    extent = log.extent()
    return LogPosition(
        offset=extent.log_end,
        durable_end=extent.durable_end,
        last_fetched_epoch=last_epoch(extent.leader_epochs, extent.log_end),
        log_start=extent.log_start,
    )


def cut_to_common_part(log: PartitionLog, diverging: tuple[int, int], leader_epoch: int) -> None:
    """Removes records that the leader does not have. Durable when it returns.

    Raises as `PartitionLog.refuse_to_lose`, and `CorruptRecordError` for an answer that shortens nothing: it does not
    answer what this log reported.
    """
    before, watermark = position_of(log), log.high_watermark
    offset = truncation_offset(log.leader_epochs, log_end=before.offset, diverging=diverging)
    if before.last_fetched_epoch != NO_EPOCH:
        log.refuse_to_lose(offset, leader_epoch)
    event(
        _logger,
        "truncate log",
        topic=log.topic,
        partition=log.partition,
        leader_epoch=leader_epoch,
        from_offset=before.offset,
        to_offset=offset,
        high_watermark=watermark,
        diverging_epoch=diverging[0],
        diverging_end=diverging[1],
    )
    if offset < before.log_start:
        log.restart_at(offset)
    else:
        log.truncate_to(offset)
    if position_of(log) == before:
        raise CorruptRecordError(
            f"{log.topic}-{log.partition}: the leader says that epoch {diverging[0]} ended at {diverging[1]}, which "
            f"shortens nothing of a log that ends at {before.offset} with epoch {before.last_fetched_epoch}"
        )


def restart_at_leader(log: PartitionLog, leader_start: int, leader_end: int) -> None:
    """Restarts a log that does not meet the leader's: it ends below the leader's start, or is empty and starts above.
    Durable when it returns.

    Raises `OffsetOutOfRangeError` where neither is so: there is no reason to restart.
    """
    here = position_of(log)
    is_empty = here.last_fetched_epoch == NO_EPOCH
    if leader_start < 0 or not (here.offset < leader_start or (is_empty and here.offset > leader_start)):
        raise OffsetOutOfRangeError(
            f"{log.topic}-{log.partition}: the leader's log goes from {leader_start} to {leader_end}, "
            f"this one ends at {here.offset} with epoch {here.last_fetched_epoch}"
        )
    event(
        _logger,
        "restart log",
        level=logging.WARNING,
        topic=log.topic,
        partition=log.partition,
        new_start=leader_start,
        log_start=here.log_start,
        log_end=here.offset,
        high_watermark=log.high_watermark,
    )
    log.restart_at(leader_start)


def adopt_marks(log: PartitionLog, high_watermark: int, log_start: int) -> None:
    """Takes over how far the leader's log is committed and where it starts, as far as this log goes.

    The high watermark stays where it is if an earlier leader reported a higher one: what is committed stays so.
    """
    extent = log.extent()
    known = extent.high_watermark
    committed = min(high_watermark, extent.durable_end)
    if committed > known:
        known = log.set_high_watermark(committed)
    start = min(log_start, known)
    if start > extent.log_start:
        log.delete_records(start)
