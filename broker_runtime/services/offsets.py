"""Offsets of partitions' logs: where they begin and end, which offset a time has, and moving where they begin.

Rule: each of a request's entries has its own answer; one that fails takes no other with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_runtime.contract.errors import InvalidRequestError, PylogError
from broker_runtime.contract.model import EARLIEST, LATEST, MAX_TIMESTAMP
from broker_runtime.contract.requests import (
    READ_COMMITTED,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ErrorInfo,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
    RecordDeletion,
)
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.services.caller import Caller, logged_change, some_of

_HIGH_WATERMARK = -1
_DELETION_LIMIT_S = 10.0

_logger = logging.getLogger(__name__)


class LogOffsetService:
    """Offsets of the logs this broker leads. Thread-safe."""

    def __init__(self, registry: PartitionRegistry, *, clock: Clock = CLOCK) -> None:
        self._registry = registry
        self._clock = clock

    def list_offsets(self, caller: Caller, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Where a log begins, where its committed part ends, or the first record at or after a time."""
        is_committed = request.isolation_level == READ_COMMITTED
        return ListOffsetsResponse(
            answers=tuple(_answer(lambda q=q: self._look_up(q, is_committed=is_committed)) for q in request.queries)  # type: ignore[misc]
        )

    def delete_records(self, caller: Caller, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Moves the starts of logs. An answer without an error is durable on all in-sync replicas. Blocks for
        `_DELETION_LIMIT_S` in all; what is not done by then is answered with `REQUEST_TIMED_OUT`."""
        deadline = Deadline(_DELETION_LIMIT_S, clock=self._clock)
        wanted = some_of(f"{each.at.topic}-{each.at.partition}:{each.offset}" for each in request.deletions)
        with logged_change(_logger, "delete records", caller, before=wanted) as failed:
            answers = [_answer(lambda d=d: self._delete(d, deadline)) for d in request.deletions]  # type: ignore[misc]
            failed += [answer.error for answer in answers if answer.error is not None]
        return DeleteRecordsResponse(answers=tuple(answers))

    def _look_up(self, query: OffsetQuery, *, is_committed: bool) -> OffsetAnswer:
        at = query.at
        partition = self._registry.find(at.topic, at.partition, at.topic_id)
        with partition.refusing():
            return _look_up_in(partition, query, is_committed=is_committed)

    def _delete(self, deletion: RecordDeletion, deadline: Deadline) -> OffsetAnswer:
        at = deletion.at
        partition = self._registry.find(at.topic, at.partition, at.topic_id)
        epoch = partition.require_leader()
        offset = None if deletion.offset == _HIGH_WATERMARK else deletion.offset
        start = partition.delete_records(offset, timeout_s=deadline.remaining_s())
        return OffsetAnswer(offset=start, leader_epoch=epoch)


def _look_up_in(partition: Partition, query: OffsetQuery, *, is_committed: bool) -> OffsetAnswer:
    epoch = partition.require_leader(query.leader_epoch)
    if query.timestamp == EARLIEST:
        return OffsetAnswer(offset=partition.log_start, leader_epoch=epoch)
    if query.timestamp == LATEST:
        latest = partition.latest_offsets()
        offset = latest.last_stable_offset if is_committed else latest.high_watermark
        return OffsetAnswer(offset=offset, leader_epoch=epoch)
    if query.timestamp < 0 and query.timestamp != MAX_TIMESTAMP:
        raise InvalidRequestError(
            f"timestamp {query.timestamp} is neither a time in ms nor one of -1 (latest), -2 (earliest), "
            "-3 (largest timestamp)"
        )
    end = partition.last_stable_offset if is_committed else partition.high_watermark
    timestamp = partition.log.max_timestamp_ms() if query.timestamp == MAX_TIMESTAMP else query.timestamp
    found = None if timestamp < 0 else partition.log.offset_for_timestamp(timestamp)
    # Records that are not committed are not visible; but a new leader must first know which are.
    if found is None or found[0] >= end:
        partition.latest_offsets()
        return OffsetAnswer(leader_epoch=epoch)
    return OffsetAnswer(offset=found[0], timestamp=found[1], leader_epoch=epoch)


def _answer(look_up: Callable[[], OffsetAnswer]) -> OffsetAnswer:
    try:
        return look_up()
    except PylogError as error:
        return OffsetAnswer(error=ErrorInfo.of(error))
