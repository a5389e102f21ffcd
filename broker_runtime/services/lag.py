"""How far a position lies behind the end of a partition: in offsets, and in time.

Rule: each of a request's entries has its own answer; one that fails takes no other with it. Of the log at most the head
of one frame is read for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.frame import parse_header
from broker_runtime.contract.requests import DescribeLagRequest, DescribeLagResponse, ErrorInfo, LagAnswer, LagQuery
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.caller import Caller

_BUSY_S: Final = 0.05


class LagService:
    """Lag in the partitions that this broker leads. Thread-safe."""

    def __init__(
        self, registry: PartitionRegistry, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        """``now_ms``: the time that appends carry."""
        self._registry = registry
        self._now_ms = now_ms

    def describe_lag(self, caller: Caller, request: DescribeLagRequest) -> DescribeLagResponse:
        """How many offsets readers of committed records have before them, and how long the first of these has waited.

        The time is that since its frame was appended, whatever timestamps its records have. Blocks on the disk.
        """
        return DescribeLagResponse(answers=tuple(map(self._answer, request.queries)))

    def _answer(self, query: LagQuery) -> LagAnswer:
        try:
            return self._look_up(query)
        except PylogError as error:
            return LagAnswer(error=ErrorInfo.of(error))

    def _look_up(self, query: LagQuery) -> LagAnswer:
        partition = self._registry.find(query.at.topic, query.at.partition, query.at.topic_id)
        partition.require_leader()
        with partition.refusing():
            # One that is in use is answered for the next time.
            end = partition.latest_offsets(_BUSY_S).last_stable_offset
            start = max(query.offset, partition.log_start)  # what lies below was deleted
            found = None if start >= end else partition.log.read(start, max_bytes=0, upto=end)
            if found is None:
                return LagAnswer(records=0, waiting_ms=0)
            with found:
                appended_ms = parse_header(found.load_head()).append_time_ms
        return LagAnswer(records=end - start, waiting_ms=max(0, self._now_ms() - appended_ms))
