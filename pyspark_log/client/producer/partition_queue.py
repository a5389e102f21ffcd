"""A producer's batches: the open one of a partition, those that are sealed, and the partitions of each broker.

Rule: plain state, changed only by the `Accumulator` and `Producer.send`, under the accumulator's lock.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.frame import number_frame
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.transactions import TransactionIdentity
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.producer.batch_builder import BatchBuilder, Headers, filled
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.sequence import FrameNumber, Sequence

NO_LEADER = -1
"""The leader of a partition whose leader is not known."""


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A sealed batch: waiting to be sent, in flight, or waiting to be sent again (Kafka's ``ProducerBatch``).

    It has a ``builder`` until it is encoded, and a ``frame`` from then on. ``number``: an idempotent producer's;
    ``written_number``: the one in the frame's header. ``is_doubtful``: the outcome of an attempt is unknown, so the
    batch may be in the log, or may still get there.
    """

    queue: PartitionQueue
    delivery: Delivery
    serial: int  # rises in the order in which batches are sealed
    reserved_bytes: int
    deadline_s: float
    began_s: float  # when its first record was sent
    builder: BatchBuilder | None = None
    frame: pa.Buffer | None = None
    is_being_encoded: bool = False
    number: FrameNumber | None = None
    written_number: FrameNumber | None = None
    transaction: TransactionIdentity | None = None  # of the first batch of a transaction in its partition
    is_doubtful: bool = False

    def write_number(self) -> None:
        """Writes the batch's number into the header of its frame, if it is not there. The batch is encoded."""
        number = self.number
        if number is None or number == self.written_number:
            return
        assert self.frame is not None
        if self.written_number is not None or not self.frame.is_mutable:
            self.frame = pa.py_buffer(bytearray(self.frame))  # a broken stream may still read the old bytes
        number_frame(
            self.frame,
            producer_id=number.producer_id,
            producer_epoch=number.epoch,
            base_sequence=number.sequence,
            is_transactional=number.is_transactional,
        )
        self.written_number = number


class PartitionQueue:
    """The batches of one partition. The first fields are those that `Producer.send` touches for every record.

    Invariant: ``room`` is what is left of the memory granted to the open batch. If a record does not fit it, or no
    batch is open (``room`` < 0), the accumulator must be asked.
    """

    __slots__ = (  # noqa: RUF023 — by subject
        "values", "room", "delivery",
        "keys", "timestamps", "headers", "granted_bytes", "batch_bytes", "opened_s",
        "topic", "topic_id", "partition", "schema", "leader", "leader_epoch",
        "sealed", "in_flight", "sent_to", "to_retry", "not_before_s", "is_ready", "backoff", "last_error", "given_up",
        "sequence",
    )  # fmt: skip

    def __init__(self, topic: str, topic_id: bytes, partition: int, schema: TopicSchema, batch_bytes: int) -> None:
        """``batch_bytes``: how large a batch grows."""
        self.values: list[object] = []
        self.room = -1
        self.delivery: Delivery | None = None
        self.keys: list[bytes | None] | None = None
        self.timestamps: list[int | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.granted_bytes = 0
        self.batch_bytes = batch_bytes
        self.opened_s = 0.0
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.schema = schema
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.sealed: deque[ProducerBatch] = deque()
        self.in_flight = 0
        self.sent_to = NO_LEADER  # the broker that those in flight were sent to
        self.to_retry: list[ProducerBatch] = []
        self.not_before_s = 0.0
        self.is_ready = False
        self.backoff = Backoff()
        self.last_error: PylogError | None = None  # why batches came back; None once one is acknowledged
        self.given_up: PylogError | None = None  # why nothing is sent any more: the topic is gone
        self.sequence = Sequence()

    def add(self, value: object, key: bytes | None, timestamp_ms: int | None, headers: Headers | None) -> int:
        """Adds one record to the open batch, which has room for it; returns its index."""
        index = len(self.values)
        self.values.append(value)
        if key is not None:
            self.keys = filled([] if self.keys is None else self.keys, index)
            self.keys.append(key)
        if timestamp_ms is not None:
            self.timestamps = filled([] if self.timestamps is None else self.timestamps, index)
            self.timestamps.append(timestamp_ms)
        if headers is not None:
            self.headers = filled([] if self.headers is None else self.headers, index)
            self.headers.append(headers)
        return index


@dataclass(slots=True, eq=False)
class Outbox:
    """The partitions led by one broker that have batches: open ones by age, and those with a batch to send."""

    wake: threading.Condition
    lingering: deque[tuple[PartitionQueue, Delivery]] = field(default_factory=deque)
    ready: deque[PartitionQueue] = field(default_factory=deque)
    delayed: list[tuple[float, int, PartitionQueue]] = field(default_factory=list)
