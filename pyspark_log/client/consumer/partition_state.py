"""One assigned partition: its position, what was fetched ahead, what was decoded, what went wrong.

Rule: plain state. The fetcher's lock guards all but ``position``, ``finished`` and ``batches``: those belong to the
caller's thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.frame import AbortedRange
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading.rows import RowFilter
from pyspark_log.client.records import ConsumedBatch

_generations = itertools.count()  # never the same twice, so that a partition assigned again differs from the first time


class CompletedFetch(NamedTuple):
    """Frames of one partition, back to back, not decoded yet; and which of them are not for the reader."""

    generation: int
    buffer: pa.Buffer
    next_offset: int
    aborted: Sequence[AbortedRange] = ()


class PartitionState:
    """One assigned partition. Changed under the fetcher's lock; ``batches``, ``position`` by the caller only."""

    __slots__ = (  # noqa: RUF023 — by subject
        "at", "topic", "columns", "names", "where",
        "position", "finished", "batches", "decoded_to",
        "fetch_offset", "generation", "completed_fetches", "is_paused", "error", "retry_pause", "backoff",
        "end_offset", "log_start",
    )  # fmt: skip

    def __init__(
        self,
        topic: Topic,
        partition: int,
        position: int,
        columns: tuple[int, ...] | None,
        *,
        names: Sequence[str] | None = None,
        where: RowFilter | None = None,
    ) -> None:
        """``columns``: ids of those that are fetched; None: all. ``names``: of those that the caller gets, if these are
        fewer. ``where``: the caller gets only rows that match."""
        self.at = TopicPartition(topic.name, partition)
        self.topic = topic
        self.columns = columns
        self.names = names
        self.where = where
        self.position = position  # the next record the caller gets
        self.finished = position  # the caller is done with everything before it. Invariant: finished ≤ position
        self.batches: deque[ConsumedBatch] = deque()  # decoded, not given to the caller yet
        self.decoded_to = -1  # behind ``batches``, and behind marks and aborted records that come after them
        self.fetch_offset = position
        self.generation = next(_generations)
        self.completed_fetches: deque[CompletedFetch] = deque()
        self.is_paused = False
        self.error: PylogError | None = None
        self.retry_pause = Deadline(0.0)  # not asked for until it is over, after a retriable error
        self.backoff = Backoff()
        self.end_offset = -1  # for readers of the consumer's isolation level
        self.log_start = -1

    def begin_generation(self) -> None:
        """Answers to requests that were made until now no longer count."""
        self.generation = next(_generations)

    @property
    def has_output(self) -> bool:
        """Whether there is something for the caller, an error included."""
        return not self.is_paused and bool(self.batches or self.completed_fetches or self.error)
