"""What producers sent and how they were answered, and what consumers saw: what a checker needs to know beside the logs.

Rule: a history only grows. A frame is known by a checksum over the producer's part of it (`body_of`), which no broker
changes; every frame that a producer makes is different from all others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pyarrow as pa

from broker_runtime.contract.frame import STAMP_BYTES
from broker_runtime.contract.model import TopicPartition


def body_of(frame: pa.Buffer) -> int:
    """What a frame is known by, wherever it is. No CRC: frames hold their own, so those of two frames are equal sooner
    than by chance."""
    digest = hashlib.blake2b(memoryview(frame).cast("B")[STAMP_BYTES:], digest_size=8).digest()
    return int.from_bytes(digest, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a producer sends, again and again until it knows what became of it. ``sent_once``: it is never repeated."""

    producer: str
    at: TopicPartition
    number: int  # of this producer in this partition
    base_sequence: int
    values: tuple[str, ...]
    frame: pa.Buffer
    body: int
    acks: int

    def __str__(self) -> str:
        return f"{self.values[0]}..{self.values[-1]}" if len(self.values) > 1 else self.values[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A broker said that a batch counts. ``base_offset`` -1: it does not know any more where."""

    batch: Batch
    base_offset: int
    broker_id: int
    leader_epoch: int


@dataclass(slots=True)
class History:
    """All that happened outside the brokers."""

    batches: dict[int, Batch] = field(default_factory=dict)  # by body
    acknowledged: dict[int, Acknowledgement] = field(default_factory=dict)  # by body; the first one
    records_acknowledged: int = 0
    records_consumed: int = 0

    def made(self, batch: Batch) -> None:
        """A producer is about to send the batch for the first time."""
        assert batch.body not in self.batches, f"two batches with the same content: {batch}"
        self.batches[batch.body] = batch

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """A broker said that the batch counts."""
        if acknowledgement.batch.body not in self.acknowledged:
            self.acknowledged[acknowledgement.batch.body] = acknowledgement
            self.records_acknowledged += len(acknowledgement.batch.values)
