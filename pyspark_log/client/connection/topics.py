"""What a client knows about a topic: its partitions' leaders, its id, its schemas. Immutable; replaced by a refresh."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from broker_runtime.contract.errors import CorruptRecordError, UnknownTopicOrPartitionError
from broker_runtime.contract.frame import DecodedFrame, FrameHeader, decode_frame
from broker_runtime.contract.model import PartitionDescription, TopicDescription
from broker_runtime.contract.requests import MetadataResponse, PartitionInfo, PartitionKey, TopicInfo, portions
from broker_runtime.contract.schema import SchemaHistory, TopicSchema, schema_history_from_info


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as some broker described it. ``partitions`` is dense: index = partition number."""

    info: TopicInfo
    schemas: SchemaHistory

    @classmethod
    def from_info(cls, info: TopicInfo) -> Topic:
        """Parses the schemas once. Raises `CorruptRecordError` or `InvalidSchemaError` if they are not schemas."""
        return cls(info, schema_history_from_info(info))

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.info.name

    @property
    def topic_id(self) -> bytes:
        """16 bytes, different for each topic that is created, also under the same name."""
        return self.info.topic_id

    @property
    def partitions(self) -> Sequence[PartitionInfo]:
        """In order, without gaps."""
        return self.info.partitions

    @property
    def schema(self) -> TopicSchema:
        """The latest schema."""
        return self.schemas.latest

    @property
    def is_typed(self) -> bool:
        """Whether the topic has a schema of its own (else: Kafka's columns)."""
        return bool(self.info.schemas)

    @property
    def key(self) -> str | None:
        """The key column of a typed topic."""
        return self.info.key

    def partition(self, partition: int) -> PartitionInfo:
        """One partition; raises `UnknownTopicOrPartitionError`."""
        if not 0 <= partition < len(self.info.partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {self.name!r} has {len(self.info.partitions)} partitions, no partition {partition}"
            )
        return self.info.partitions[partition]

    def is_older_than(self, other: Topic) -> bool:
        """Whether it was found out before ``other``, which is the same topic: by schemas, partitions and their leader
        epochs."""
        if len(self.info.schemas) < len(other.info.schemas) or len(self.info.partitions) < len(other.info.partitions):
            return True
        pairs = zip(self.info.partitions, other.info.partitions, strict=False)
        return any(mine.leader_epoch < others.leader_epoch for mine, others in pairs)

    def partition_key(self, partition: int) -> PartitionKey:
        """How requests name a partition of this topic, and of no other of the same name."""
        return PartitionKey(topic=self.name, partition=partition, topic_id=self.topic_id)

    def decode(
        self, frame: pa.Buffer, header: FrameHeader, partition: int, columns: Sequence[int] | None
    ) -> DecodedFrame:
        """Decodes a frame of the partition, as `decode_frame`; its schema must be known.

        Raises `CorruptRecordError`, which names partition and offsets.
        """
        try:
            return decode_frame(frame, self.schemas, columns=columns, topic_id=self.topic_id, partition=partition)
        except CorruptRecordError as error:
            if error.unreadable is not None:
                raise CorruptRecordError(self._unreadable(header, partition, *error.unreadable)) from None
            raise CorruptRecordError(
                f"{self.name}-{partition} is damaged at offset {header.base_offset} to {header.last_offset}: "
                f"{error.message}. `pylog log verify` on the broker's machine says where; seek past it to continue"
            ) from None

    def _unreadable(self, header: FrameHeader, partition: int, row: int, value: str) -> str:
        offset, after = header.base_offset + row, header.next_offset
        others = ""
        if header.record_count > 1:
            others = f" Nor can records {header.base_offset} to {header.last_offset} be read, which were sent with it."
        return (
            f"Record {offset} of {self.name}-{partition} holds a value that no reader accepts ({value}).{others} "
            f"To skip {'them' if others else 'it'}: seek to {after}, or pylog group reset GROUP "
            f"-t {self.name}:{partition} --to {after} --execute"
        )

    def describe(self) -> TopicDescription:
        """The public description."""
        return TopicDescription(
            name=self.name,
            topic_id=uuid.UUID(bytes=self.topic_id),
            partitions=tuple(
                PartitionDescription(
                    partition=p.partition,
                    leader=p.leader,
                    leader_epoch=p.leader_epoch,
                    replicas=p.replicas,
                    isr=p.isr,
                    log_start=p.log_start,
                    high_watermark=p.high_watermark,
                    last_stable_offset=p.last_stable_offset,
                    lost=p.lost,
                    eligible=p.eligible,
                    damaged=p.damaged,
                )
                for p in self.info.partitions
            ),
            schema=self.schemas.latest.arrow if self.is_typed else None,
            key=self.info.key,
            config=dict(self.info.config),
        )


def portions_of_names(names: Iterable[str] | None) -> Sequence[tuple[str, ...] | None]:
    """The names (None: all) in portions, one for each metadata request."""
    return [None] if names is None else portions(names)


def as_one(responses: Iterable[MetadataResponse]) -> MetadataResponse:
    """The answers to such requests as one; brokers and controller are those of the last."""
    answers = list(responses)
    return msgspec.structs.replace(
        answers[-1],
        topics=tuple(topic for each in answers for topic in each.topics),
        errors={name: error for each in answers for name, error in each.errors.items()},
    )
