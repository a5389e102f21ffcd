"""What a producer holds of one partition, and what its threads pass around: frames to send, by broker.

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
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.gathering import Gathered, Headers, filled
from pyspark_log.client.producer.sequence import FrameNumber, Sequence

NO_LEADER = -1
"""The leader of a partition whose leader is not known."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A closed frame on its way. ``gathered`` is there until it is encoded, ``frame`` from then on.

    ``number`` is an idempotent producer's; ``written_number`` is the one that is in the frame's header.
    ``is_doubtful``: a try of it was left open, so it may be in the log already, or still come to be.
    """

    queue: PartitionQueue
    delivery: Delivery
    serial: int  # rises in the order of closing
    reserved_bytes: int
    deadline_s: float
    gathered: Gathered | None = None
    frame: pa.Buffer | None = None
    is_being_encoded: bool = False
    number: FrameNumber | None = None
    written_number: FrameNumber | None = None
    is_doubtful: bool = False

    def write_number(self) -> None:
        """Puts the frame's number into its header, if it is not there. The frame is encoded."""
        number = self.number
        if number is None or number == self.written_number:
            return
        assert self.frame is not None
        if self.written_number is not None or not self.frame.is_mutable:
            self.frame = pa.py_buffer(bytearray(self.frame))  # a stream that broke may still read the old bytes
        number_frame(
            self.frame, producer_id=number.producer_id, producer_epoch=number.epoch, base_sequence=number.sequence
        )
        self.written_number = number


class PartitionQueue:
    """One partition's records. The first fields are what `Producer.send` touches for every record.

    Invariant: ``room`` < 0 before the next record means: no list is open, or its grant is used up; ask the accumulator.
    """

    __slots__ = (  # noqa: RUF023 — by subject
        "values", "room", "delivery",
        "keys", "timestamps", "headers", "granted_bytes", "batch_bytes", "opened_s",
        "topic", "topic_id", "partition", "schema", "leader", "leader_epoch",
        "closed", "in_flight", "sent_to", "to_repeat", "not_before_s", "is_listed", "backoff", "trouble", "given_up",
        "sequence",
    )  # fmt: skip

    def __init__(self, topic: str, topic_id: bytes, partition: int, schema: TopicSchema, batch_bytes: int) -> None:
        """``batch_bytes``: how large a list grows."""
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
        self.closed: deque[Outgoing] = deque()
        self.in_flight = 0
        self.sent_to = NO_LEADER  # whom those in flight went to
        self.to_repeat: list[Outgoing] = []
        self.not_before_s = 0.0
        self.is_listed = False
        self.backoff = Backoff()
        self.trouble: PylogError | None = None  # why frames came back; None once one is acknowledged
        self.given_up: PylogError | None = None  # why nothing is sent any more: its topic is gone
        self.sequence = Sequence()

    def add(self, value: object, key: bytes | None, timestamp_ms: int | None, headers: Headers | None) -> int:
        """Appends one record to the open list; returns its index. Room was made before."""
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
    """Partitions that one broker leads, as far as they have something: open lists by age, and frames to send."""

    wake: threading.Condition
    lingering: deque[tuple[PartitionQueue, Delivery]] = field(default_factory=deque)
    ready: deque[PartitionQueue] = field(default_factory=deque)
    delayed: list[tuple[float, int, PartitionQueue]] = field(default_factory=list)
