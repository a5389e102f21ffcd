"""Messages beside streams of frames: produce (DoPut), fetch (DoExchange), read (DoGet), and the plain dialect."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, ClassVar, Final

import msgspec

from broker_runtime.contract.predicate.frames import Steps
from broker_runtime.contract.requests import (
    MOST_COLUMN_IDS,
    PROTOCOL_VERSION,
    READ_COMMITTED,
    ByteCount,
    Columns,
    Entries,
    ErrorInfo,
    Int32,
    Int64,
    IsolationLevel,
    Message,
    Name,
    PartitionNumber,
    Request,
    Uuid,
    WaitMs,
    make_decoders,
)
from broker_runtime.contract.transactions import TransactionIdentity

MOST_PREDICATES: Final = 100
"""Of a fetch: as many topics as have one of their own."""
MOST_STEPS_IN_ALL: Final = 1_000
"""Of the predicates of a fetch: the request is kept while it waits for data."""


class ProduceHello(Request, frozen=True, kw_only=True):
    """The descriptor's command: opens a produce stream."""

    protocol_version: int = PROTOCOL_VERSION
    client_id: str = ""


class ProduceRequest(Request, frozen=True, kw_only=True):
    """Beside a record batch of one row whose only cell is the frame. ``request_id`` rises by one in a stream.

    ``acks``: 0 no response, 1 the leader has it (durable as ``flush.mode`` says), -1 all in-sync replicas have it.
    ``leader_epoch`` -1: the client does not know it. ``transaction``: beside the first frame of a transaction in this
    partition, and when that is sent again. Without a frame (a metadata-only message) it is a heartbeat.
    """

    MOST_BYTES: ClassVar[int] = 64 << 10

    request_id: Int64
    topic: Name = "-"
    partition: PartitionNumber = 0
    topic_id: Uuid | None = None
    leader_epoch: Int32 = -1
    acks: Annotated[int, msgspec.Meta(ge=-1, le=1)] = -1
    timeout_ms: WaitMs = 30_000
    heartbeat: bool = False
    transaction: TransactionIdentity | None = None


class ProduceResponse(Message, frozen=True, kw_only=True):
    """Answers one request; ``request_id`` -1 is a heartbeat. Offsets are -1 beside an error.

    ``throttle_ms``: the client is over a quota, and for so long the broker takes no further request of the stream.
    """

    request_id: Int64
    base_offset: Int64 = -1
    append_time_ms: Int64 = -1  # -1: records keep their own timestamps
    log_start: Int64 = -1
    leader_epoch: Int32 = -1
    error: ErrorInfo | None = None
    throttle_ms: Int64 = 0


class FetchHello(Request, frozen=True, kw_only=True):
    """The descriptor's command: opens a fetch session. ``replica_id`` and its epoch are a follower's; -1 a consumer.

    ``secret``: of the follower's registration, by which it proves that it is that broker.
    """

    protocol_version: int = PROTOCOL_VERSION
    client_id: str = ""
    replica_id: Int32 = -1
    broker_epoch: Int64 = -1
    secret: Annotated[str, msgspec.Meta(max_length=128)] = ""

    def __repr__(self) -> str:
        return f"FetchHello(client_id={self.client_id!r}, replica_id={self.replica_id}, epoch={self.broker_epoch})"


class FetchPartition(Message, frozen=True, kw_only=True):
    """``columns``: ids of those wanted (`frame`); None: all. ``predicate``: which of the request's predicates a row
    must match to be wanted; -1: none. ``durable_end`` and ``log_start`` are a follower's own.
    """

    topic: Name
    partition: PartitionNumber
    topic_id: Uuid
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    leader_epoch: Int32 = -1
    last_fetched_epoch: Int32 = -1
    max_bytes: ByteCount = 16 << 20
    columns: Columns | None = None
    predicate: Int32 = -1
    durable_end: Int64 = -1
    log_start: Int64 = -1


class FetchRequest(Request, frozen=True, kw_only=True):
    """All partitions the session wants now. Answered with ``min_bytes`` there, an error, or after ``max_wait_ms``.

    ``is_incremental`` (followers only): partitions of the session's earlier requests that are neither here nor in
    ``forgotten`` are still wanted as last requested.

    At least one frame is returned, however large, so a reader always makes progress. ``heartbeat`` asks for nothing.
    ``predicates``: frames in which no row can match are left out; an answer may then have no frame at all, and says
    all the same where to continue.
    """

    MOST_BYTES: ClassVar[int] = 2 << 20

    request_id: Int64
    partitions: Entries[FetchPartition] = ()
    max_wait_ms: WaitMs = 500
    min_bytes: ByteCount = 1
    max_bytes: ByteCount = 50 << 20
    isolation_level: IsolationLevel = READ_COMMITTED
    heartbeat: bool = False
    is_incremental: bool = False
    forgotten: Entries[tuple[Name, PartitionNumber]] = ()
    predicates: Annotated[tuple[Steps, ...], msgspec.Meta(max_length=MOST_PREDICATES)] = ()

    def __post_init__(self) -> None:
        steps = sum(map(len, self.predicates))
        if steps > MOST_STEPS_IN_ALL:
            raise ValueError(f"predicates have {steps} steps in all; at most {MOST_STEPS_IN_ALL} are allowed")
        if (most := max((each.predicate for each in self.partitions), default=-1)) >= len(self.predicates):
            raise ValueError(f"a partition names predicate {most} of {len(self.predicates)}")
        named = sum(len(each.columns) for each in self.partitions if each.columns is not None)
        if named > MOST_COLUMN_IDS:
            raise ValueError(f"partitions name {named} columns in all; at most {MOST_COLUMN_IDS} are allowed")
        if len({(each.topic, each.partition) for each in self.partitions}) != len(self.partitions):
            counts = Counter(f"{each.topic}-{each.partition}" for each in self.partitions)
            name, times = counts.most_common(1)[0]
            raise ValueError(f"partitions name {name} {times} times; each is fetched once")


class FetchedPartition(Message, frozen=True, kw_only=True):
    """``row``: which row of the record batch holds its frames, back to back (-1: none).

    The first frame may begin before the offset asked for; the reader skips. ``next_offset``: where to continue.
    ``diverging_epoch`` and ``diverging_end`` are for followers; ``aborted``: see `AbortedRange`, for readers of
    committed records.
    """

    topic: Name
    partition: PartitionNumber
    row: int = -1
    next_offset: Int64 = -1
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = -1
    log_start: Int64 = -1
    log_end: Int64 = -1
    leader_epoch: Int32 = -1
    diverging_epoch: Int32 = -1
    diverging_end: Int64 = -1
    aborted: tuple[tuple[Int64, Int64, Int64], ...] = ()
    error: ErrorInfo | None = None


class FetchResponse(Message, frozen=True, kw_only=True):
    """Beside a record batch with one row per partition that has data. ``request_id`` -1: a heartbeat.

    Partitions of the request that have neither data, news nor an error may be left out. ``throttle_ms``: see
    `ProduceResponse`; heartbeats go on meanwhile.
    """

    request_id: Int64
    partitions: tuple[FetchedPartition, ...] = ()
    throttle_ms: Int64 = 0


class ReadRequest(Request, frozen=True, kw_only=True):
    """A ticket: frames of ``[start, end)`` of one partition, as batches of one row with frames back to back.

    ``end`` -1: the last stable offset (``isolation_level`` 0: the high watermark) at the time of the call. ``start``
    -2: the log's start. ``where``: frames in which no row can match are left out.
    """

    protocol_version: int = PROTOCOL_VERSION
    client_id: str = ""
    topic: Name
    partition: PartitionNumber
    topic_id: Uuid | None = None
    leader_epoch: Int32 = -1
    start: Int64
    end: Int64 = -1
    columns: Columns | None = None
    isolation_level: IsolationLevel = READ_COMMITTED
    batch_bytes: ByteCount = 4 << 20
    where: Steps | None = None


class ReadResponse(Message, frozen=True, kw_only=True):
    """Beside each batch: the range it covers, and the resolved range of the whole read. ``aborted``: see
    `AbortedRange`; of the batch's frames. A message without a batch, of a read with a predicate, says that all frames
    before ``next_offset`` were looked at. ``throttle_ms``: how long the next one is held back, because the client is
    over a quota."""

    start: Int64
    end: Int64
    next_offset: Int64
    aborted: tuple[tuple[Int64, Int64, Int64], ...] = ()
    throttle_ms: Int64 = 0


class PlainTicket(Request, frozen=True, kw_only=True):
    """A ticket from GetFlightInfo, opaque to its holder: records of ``[start, end)`` as ordinary batches.

    ``start`` -2: the log's start when it is redeemed; ``end`` -1: the last stable offset then.
    """

    protocol_version: int = PROTOCOL_VERSION
    topic: Name
    partition: PartitionNumber
    topic_id: Uuid | None = None
    start: Int64 = -2
    end: Int64 = -1


class PlainPutResult(Message, frozen=True, kw_only=True):
    """Answers one batch of a plain DoPut: all its rows are durable. ``slices``: where each part of it went."""

    rows: Int64
    slices: tuple[tuple[PartitionNumber, Int64], ...]  # (partition, offset of the slice's first row)


make_decoders()
