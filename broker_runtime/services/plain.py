"""Ordinary record batches in and out, for clients that know Arrow Flight and nothing of pylog.

Rule: only here does a broker encode and decode rows. What it appends goes through `ProduceService` like everything
else. Never chooses a partition by key: that is the producer's work, so a keyed topic with several partitions needs the
partition named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import closing

import pyarrow as pa

from broker_runtime.contract.errors import InvalidPartitionsError, NotSupportedError, PylogError, RequestTimedOutError
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.frame import decode_frame, split_into_frames, visible_frames
from broker_runtime.contract.schema import SchemaHistory, cast_to_topic
from broker_runtime.contract.streams import PlainPutResult, PlainTicket, ProduceRequest, ReadRequest
from broker_runtime.replication import PartitionRegistry
from broker_runtime.security.authorizer import ALLOW_ALL, Authorizer
from broker_runtime.security.quotas import UNLIMITED, Allowance
from broker_runtime.services.caller import Caller
from broker_runtime.services.produce import MAX_TIMEOUT_S, PendingProduce, ProduceService
from broker_runtime.services.read import ReadRange, ReadService

_ACKS_ALL = -1


class PlainService:
    """The plain dialect over the partitions this broker leads. Thread-safe."""

    def __init__(
        self,
        registry: PartitionRegistry,
        *,
        produce: ProduceService,
        read: ReadService,
        now_ms: Callable[[], int],
        authorizer: Authorizer = ALLOW_ALL,
    ) -> None:
        self._registry = registry
        self._produce = produce
        self._read = read
        self._now_ms = now_ms
        self._authorizer = authorizer
        self._turn = itertools.count()

    def topic_names(self, caller: Caller) -> list[str]:
        """The topics of the cluster that the caller may see, sorted."""
        names = self._registry.topic_names()
        return [name for name in names if self._authorizer.allows(caller, "Describe", "Topic", name)]

    def schema(self, caller: Caller, topic: str) -> pa.Schema:
        """The topic's columns in their newest version. Raises `UnknownTopicOrPartitionError`,
        `TopicAuthorizationError`."""
        self._authorizer.require(caller, "Describe", "Topic", topic)
        return self._registry.topic(topic).schemas.latest.arrow

    def partitions(self, caller: Caller, topic: str) -> list[tuple[int, PlainTicket, int]]:
        """The topic's partitions: number, ticket, and the offsets it has now where this broker leads it (else -1)."""
        self._authorizer.require(caller, "Describe", "Topic", topic)
        known = self._registry.topic(topic)
        found = []
        for number in range(known.partition_count):
            ticket = PlainTicket(topic=topic, partition=number, topic_id=known.topic_id)
            try:
                partition = self._registry.find(topic, number)
                records = partition.last_stable_offset - partition.log_start
            except PylogError:
                records = -1  # another broker's, or offline: its ticket will say so
            found.append((number, ticket, records))
        return found

    def read(
        self, caller: Caller, ticket: PlainTicket, allowance: Allowance = UNLIMITED
    ) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]:
        """The ticket's records as batches of the topic's columns; ``allowance``: see `ReadService.pieces`. Raises as
        `ReadService.plan`."""
        self._authorizer.require(caller, "Read", "Topic", ticket.topic)
        schemas = self._registry.topic(ticket.topic, ticket.topic_id).schemas
        request = ReadRequest(
            topic=ticket.topic, partition=ticket.partition, topic_id=ticket.topic_id, start=ticket.start, end=ticket.end
        )
        return schemas.latest.arrow, self._batches(caller, self._read.plan(caller, request), schemas, allowance)

    def _batches(
        self, caller: Caller, plan: ReadRange, schemas: SchemaHistory, allowance: Allowance
    ) -> Generator[pa.RecordBatch, None, None]:
        columns = tuple(range(len(schemas.latest.arrow)))
        partition, start, end = plan.partition, plan.start, plan.end
        with closing(self._read.pieces(caller, plan, allowance)) as pieces:
            for response, frames in pieces:
                for header, frame in visible_frames(frames, response.aborted) if frames is not None else ():
                    if header.next_offset <= start or header.base_offset >= end:
                        continue
                    decoded = decode_frame(
                        frame, schemas, columns=columns, topic_id=partition.topic_id, partition=partition.partition
                    )
                    first = max(0, start - header.base_offset)
                    last = min(header.record_count, end - header.base_offset)
                    yield decoded.batch.slice(first, last - first)

    def put(self, caller: Caller, topic: str, partition: int | None, batch: pa.RecordBatch) -> PlainPutResult:
        """Appends a batch of the topic's columns (matched by name, safely cast); returns when all is committed.

        ``partition=None``: contiguous slices, dealt to the topic's partitions in turn. Timestamps are the broker's
        clock. Not atomic: after an error some slices may be there. Raises `SchemaMismatchError`,
        `NotSupportedError` (a keyed topic without a named partition), and as producing does.
        """
        self._authorizer.require(caller, "Write", "Topic", topic)
        known = self._registry.topic(topic)
        schema = known.schemas.latest
        rows = cast_to_topic(batch, schema)
        if not rows.num_rows:
            return PlainPutResult(rows=0, slices=())
        if partition is not None and not 0 <= partition < known.partition_count:
            raise InvalidPartitionsError(f"topic {topic!r} has partitions 0 to {known.partition_count - 1}")
        if partition is None and known.partition_count > 1:
            key = schema.key if schema.is_typed else "key"
            if key in rows.schema.names and rows.column(key).null_count < rows.num_rows:
                raise NotSupportedError(
                    f"rows have keys ({key!r}), and equal keys belong into one partition, which is for the client to "
                    f"choose: name it, as in the path [{topic!r}, '0']"
                )
        led = [partition] if partition is not None else list(range(known.partition_count))
        waiting = []
        for first, count in _slices(rows.num_rows, len(led)):
            number = led[next(self._turn) % len(led)]
            max_bytes = self._registry.find(topic, number, known.topic_id).log.config.max_message_bytes
            frames = split_into_frames(rows.slice(first, count), schema, timestamps=self._now_ms(), max_bytes=max_bytes)
            for frame in frames:
                request = ProduceRequest(
                    request_id=0, topic=topic, partition=number, topic_id=known.topic_id, acks=_ACKS_ALL
                )
                waiting.append((number, self._produce.append(caller, request, [frame])))
        return PlainPutResult(
            rows=rows.num_rows, slices=tuple((number, self._committed(caller, pending)) for number, pending in waiting)
        )

    def _committed(self, caller: Caller, pending: PendingProduce) -> int:
        response = self._produce.complete(caller, pending, MAX_TIMEOUT_S)
        if response is None:
            raise RequestTimedOutError("rows were appended, but not committed in time")
        if response.error is not None:
            raise error_of(response.error)
        return response.base_offset


def _slices(rows: int, count: int) -> list[tuple[int, int]]:
    """``rows`` in at most ``count`` contiguous slices of nearly equal length, as (first, length)."""
    count = min(rows, count)
    ends = [rows * number // count for number in range(count + 1)]
    return [(start, end - start) for start, end in itertools.pairwise(ends)]
