"""Brokers with replicas of the topic ``t``, their logs in memory, and the network between them as function calls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import SchemaHistory, TopicSchema
from broker_runtime.contract.streams import FetchRequest, FetchResponse
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.log import LogDirectory, PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.rates import RateLimit
from broker_runtime.replication import Leadership, Partition, PartitionRegistry
from broker_runtime.replication.registry import KnownTopic
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchService
from tests.callers import fetch_once, follower
from tests.clocks import ReadClock
from tests.topic_settings import topic_settings
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, RoomyDisk, frame

ROOT = Path("/data")


class Replica:
    """One broker's replicas, without a role until one is assigned. Its clock stays at ``now_ms``."""

    def __init__(self, broker_id: int, count: int = 1, **config: object) -> None:
        self.broker_id = broker_id
        self.broker_epoch = 1
        self.files = FaultyFiles()
        self.now_ms = 0
        self._count = count
        self._config = topic_settings(**config)  # type: ignore[arg-type]
        self._open()

    def _open(self) -> None:
        self.directory = LogDirectory.open(ROOT, cluster_id="c", broker_id=self.broker_id, files=self.files)
        self.registry = PartitionRegistry()
        schemas = SchemaHistory([TopicSchema.untyped()])
        known = KnownTopic(topic_id=TOPIC_ID.bytes, partition_count=self._count, schemas=schemas)
        self.registry.know_topic("t", known)
        self.partitions = []
        for number in range(self._count):
            log = self.directory.log("t", number, TOPIC_ID, self._config)
            partition = Partition(log, broker_id=self.broker_id, disk=RoomyDisk())
            self.registry.host(partition)
            self.partitions.append(partition)
        self.service = FetchService(
            self.registry, max_bytes=1 << 20, budget=ByteBudget(1 << 20), clock=ReadClock(lambda: self.now_ms / 1000)
        )
        self.fetchers: dict[int, FollowerFetcher] = {}

    @property
    def only(self) -> Partition:
        (partition,) = self.partitions
        return partition

    @property
    def log(self) -> PartitionLog:
        return self.only.log

    def append(self, *values: bytes, partition: int = 0) -> int:
        """Appends as the leader and makes it durable, without waiting for followers; returns the log's end."""
        hosted = self.partitions[partition]
        pending = hosted.append([frame(*values)], acks=1, leader_epoch=-1, now_ms=NOW_MS)
        hosted.complete(pending, acks=1, timeout_s=0)
        return pending.next_offset

    def lead(self, leadership: Leadership) -> None:
        """Leads every partition."""
        for partition in self.partitions:
            partition.become_leader(leadership, self.now_ms)

    def follow(self, leadership: Leadership, *, throttle: RateLimit | None = None) -> FollowerFetcher:
        """Follows every partition; returns the fetcher."""
        leader = leadership.leader
        assert leader is not None
        for fetcher in self.fetchers.values():
            for partition in self.partitions:
                fetcher.unfollow(TopicPartition("t", partition.partition))
        if leader not in self.fetchers:
            self.fetchers[leader] = FollowerFetcher(
                self.broker_id,
                leader,
                max_bytes=1 << 20,
                partition_max_bytes=1 << 16,
                max_wait_ms=0,
                throttle=throttle,
                rng=random.Random(leader),
            )
        for partition in self.partitions:
            partition.become_follower(leadership)
            self.fetchers[leader].follow(partition, leadership.leader_epoch)
        return self.fetchers[leader]

    def answer(
        self, request: FetchRequest, broker_id: int, broker_epoch: int
    ) -> tuple[FetchResponse, Sequence[pa.Buffer]]:
        """This broker's answer to a follower's request."""
        answer = fetch_once(self.service, follower(broker_id, broker_epoch), request)
        return answer.response, answer.cells

    def fetch_from(self, leader: Replica) -> FetchResponse | None:
        """Makes one exchange; None: there was nothing to ask."""
        fetcher = self.fetchers[leader.broker_id]
        request = fetcher.next_request(self.broker_epoch, self.now_ms)
        if request is None:
            return None
        response, cells = leader.answer(request, self.broker_id, self.broker_epoch)
        fetcher.handle(response, cells, self.now_ms)
        self.set_diverged_aside()
        return response

    def set_diverged_aside(self) -> None:
        """Sets the log aside as a broker's hosting does."""
        for number, partition in enumerate(self.partitions):
            if not partition.log.is_diverged:
                continue
            self.directory.set_aside_damaged(TopicPartition("t", number))
            leadership = partition.leadership
            assert leadership is not None
            assert leadership.leader is not None
            recreated = self.partitions[number] = Partition(
                self.directory.log("t", number, TOPIC_ID, self._config),
                broker_id=self.broker_id,
                disk=partition.disk,
            )
            recreated.min_in_sync_replicas = partition.min_in_sync_replicas
            self.registry.host(recreated)
            recreated.become_follower(leadership)
            self.fetchers[leadership.leader].follow(recreated, leadership.leader_epoch)

    def catch_up_with(self, leader: Replica, *, exchanges: int = 12) -> None:
        """Makes exchanges until both know that nothing is missing; fails if that takes too long."""
        for _ in range(exchanges):
            self.fetch_from(leader)
            at_ends = [one.log.log_end_offset for one in self.partitions]
            if at_ends == [other.log.log_end_offset for other in leader.partitions]:
                self.fetch_from(leader)  # reports it
                self.fetch_from(leader)  # and learns the marks
                return
        raise AssertionError(f"{self.only.log} does not catch up with {leader.only.log}")

    def restart(self, *, lost_power: random.Random | None = None, clean: bool = False) -> None:
        """The process ends and starts again, in its next registration and without a role."""
        if clean:
            self.directory.close()
        elif lost_power is not None:
            self.files.lose_power(lost_power)
        else:
            self.files.kill()
        self.broker_epoch += 1
        self._open()

    def records(self, partition: int = 0) -> list[tuple[int, bytes]]:
        """(offset, frame) of every frame in the log."""
        log, found = self.partitions[partition].log, []
        offset = log.log_start_offset
        while (piece := log.read(offset, max_bytes=1, upto=log.log_end_offset)) is not None:
            with piece:
                found.append((piece.start_offset, piece.load().to_pybytes()))
                offset = piece.next_offset
        return found


def led_by(
    leader: int | None,
    epoch: int = 1,
    *,
    replicas: Sequence[int] = (1, 2, 3),
    in_sync: Sequence[int] | None = None,
    version: int = 0,
    eligible: Sequence[int] = (),
) -> Leadership:
    """A partition's state; all replicas are in sync unless ``in_sync`` says otherwise."""
    return Leadership(
        leader=leader,
        leader_epoch=epoch,
        replicas=tuple(replicas),
        in_sync=frozenset(replicas if in_sync is None else in_sync),
        eligible=frozenset(eligible),
        version=version,
    )
