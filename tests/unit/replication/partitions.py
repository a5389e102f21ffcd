"""A hosted partition over a log in memory, for unit tests."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.contract.frame import encode_frame
from broker_runtime.contract.schema import SchemaHistory, TopicSchema
from broker_runtime.log import LogDirectory
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.replication import FollowerAnswer, FollowerFetch, Leadership, Partition, PartitionRegistry
from broker_runtime.replication.registry import KnownTopic
from tests.topic_settings import topic_settings

TOPIC_ID = uuid.UUID(int=7)
NOW_MS = 1_700_000_000_000


def frame(*values: bytes) -> memoryview:
    """A frame of an untyped topic with these values."""
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    return memoryview(encode_frame(batch, TopicSchema.untyped(), timestamps=NOW_MS))


def leadership(
    epoch: int = 1,
    *,
    replicas: tuple[int, ...] = (1,),
    in_sync: tuple[int, ...] = (1,),
    eligible: tuple[int, ...] = (),
    leader: int | None = 1,
    version: int = 0,
) -> Leadership:
    """A leadership of broker 1, unless ``leader`` says otherwise."""
    return Leadership(
        leader=leader,
        leader_epoch=epoch,
        replicas=replicas,
        in_sync=frozenset(in_sync),
        eligible=frozenset(eligible),
        version=version,
    )


def reports(
    partition: Partition,
    broker_id: int,
    end: int,
    *,
    durable_end: int | None = None,
    last_epoch: int | None = None,
    broker_epoch: int = 1,
    leader_epoch: int | None = None,
    now_ms: int = 0,
) -> FollowerAnswer:
    """A follower fetches and so reports: its log ends at ``end``, by default with the leader's records below it."""
    if last_epoch is None:
        last_epoch = max((epoch for epoch, start in partition.log.leader_epochs if start < end), default=-1)
    fetch = FollowerFetch(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        offset=end,
        durable_end=end if durable_end is None else durable_end,
        leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
        last_fetched_epoch=last_epoch,
    )
    return partition.follower_fetch(fetch, max_bytes=1 << 20, now_ms=now_ms)


class RoomyDisk:
    """A disk that accepts records, unless ``takes_appends`` is false, and answers. ``takes_urgent``: what is urgent."""

    def __init__(self) -> None:
        self.takes_appends = True
        self.takes_urgent = True

    def require_room(self, *, is_urgent: bool = False) -> None:
        if not self.takes_appends and not (is_urgent and self.takes_urgent):
            raise LogStorageError("no room")

    def require_answers(self) -> None:
        pass


class Hosted:
    """One broker's directory in memory, its registry, and topic ``t`` with ``count`` partitions, all led by it."""

    def __init__(self, count: int = 1, *, files: FaultyFiles | None = None, **config: object) -> None:
        self.files = files if files is not None else FaultyFiles()
        self.directory = LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=self.files)
        self.registry = PartitionRegistry()
        schemas = SchemaHistory([TopicSchema.untyped()])
        self.registry.know_topic("t", KnownTopic(topic_id=TOPIC_ID.bytes, partition_count=count, schemas=schemas))
        self.partitions = []
        for number in range(count):
            log = self.directory.log("t", number, TOPIC_ID, topic_settings(**config))  # type: ignore[arg-type]
            partition = Partition(log, broker_id=1, disk=RoomyDisk())
            partition.become_leader(leadership())
            self.registry.host(partition)
            self.partitions.append(partition)

    @property
    def only(self) -> Partition:
        (partition,) = self.partitions
        return partition

    def append(self, *values: bytes, partition: int = 0) -> int:
        """Appends and commits; returns the base offset."""
        hosted = self.partitions[partition]
        pending = hosted.append([frame(*values)], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
        hosted.complete(pending, acks=-1, timeout_s=0)
        return pending.base_offset
