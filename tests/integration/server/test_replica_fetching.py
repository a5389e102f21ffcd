"""A broker that follows others: threads and sessions of `ReplicaFetching` against logs served by other processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import Address, resolve
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.following.replica_fetching import ReplicaFetching
from broker_runtime.log import LogDirectory
from broker_runtime.log.files import RealFiles
from broker_runtime.replication import Leadership, Partition
from tests.integration.server.serving import TOPICS, Server, serving, untyped_frame
from tests.integration.server.streams import ProduceStream
from tests.unit.replication.partitions import RoomyDisk
from tests.waiting import SOON_S, wait_until

LEADER_EPOCH = 3  # of everything that a `Server` leads


class Follower:
    """Broker 2: its logs, its fetching, and the failures that it reported."""

    def __init__(self, directory: Path) -> None:
        self.addresses: dict[int, Address] = {}
        self.broken: list[int] = []
        self.failed = threading.Event()
        self.logs = LogDirectory.open(directory, cluster_id="test", broker_id=2)
        self.fetching = ReplicaFetching(
            2,
            max_bytes=10 << 20,
            max_wait_ms=500,
            address_of=self.addresses.get,
            broker_epoch=lambda: 1,
            on_broken=self.broken.append,
            on_failure=self.failed.set,
        )

    def partition(self, number: int) -> Partition:
        """This broker's replica of a partition of the untyped topic."""
        log = self.logs.log("untyped", number, TOPICS["untyped"][0], resolve("topic", {}))
        return Partition(log, broker_id=2, disk=RoomyDisk())

    def follow(self, partition: Partition, leader: int) -> None:
        """Follows as hosting does."""
        leadership = Leadership(
            leader=leader, leader_epoch=LEADER_EPOCH, replicas=(leader, 2), in_sync=frozenset({leader})
        )
        partition.become_follower(leadership)
        self.fetching.follow(partition, leadership)

    def knows(self, leader: int, server: Server) -> None:
        """The follower knows where the leader listens."""
        self.addresses[leader] = Address("127.0.0.1", server.port)


@contextmanager
def following(directory: Path) -> Iterator[Follower]:
    """A follower that is stopped at the end and whose threads met no defect."""
    follower = Follower(directory)
    try:
        yield follower
    finally:
        assert follower.fetching.stop(20.0)
        follower.logs.close()
    assert not follower.failed.is_set()


def produce(server: Server, *values: bytes, partition: int = 0, acks: int = -1) -> None:
    with server.connect() as client, ProduceStream(client) as stream:
        for value in values:
            assert stream.produce([untyped_frame([value])], partition=partition, acks=acks).error is None


def has(partition: Partition, end: int) -> None:
    """Waits until the log ends there durably."""
    wait_until(lambda: partition.log.durable_end_offset == end, f"{partition} ends at {end}", SOON_S)


def test_follower_fetches_old_and_new_records_byte_for_byte(tmp_path: Path) -> None:
    """W11, W12: a follower fetches like a consumer and appends to its own log; replicas are identical."""
    with serving(tmp_path / "leader") as server, following(tmp_path / "follower") as follower:
        produce(server, b"1", b"2")
        first, second = follower.partition(0), follower.partition(1)
        follower.knows(1, server)
        follower.follow(first, 1)
        has(first, 2)
        assert server.open_streams() == ["follower"]
        follower.follow(second, 1)
        produce(server, b"3", partition=1)
        produce(server, b"4", partition=0)
        has(first, 3)
        has(second, 1)
        wait_until(lambda: first.log.high_watermark == 3, "the high watermark is reported", SOON_S)
        # A request that waited for the first partition's data was ended for the second: the leader releases it soon.
        wait_until(lambda: server.open_streams() == ["follower"], "one session for all", SOON_S)
        assert follower.broken == []
        follower.fetching.unfollow(TopicPartition("untyped", 0))
        follower.fetching.unfollow(TopicPartition("untyped", 1))
        wait_until(lambda: server.open_streams() == [], "no connection without anything to follow", SOON_S)
        stored = {path.split("/")[-2]: data for path, data in server.stored_bytes().items()}
        for path in (tmp_path / "follower").rglob("*.log"):
            assert path.read_bytes() == stored[path.parent.name]


def test_follower_switches_to_another_leader_and_follows_a_restarted_one(tmp_path: Path) -> None:
    """A partition moves from one leader to another; a dead leader is reported, and found at its new address."""
    with following(tmp_path / "follower") as follower:
        partition = follower.partition(0)
        with serving(tmp_path / "one") as one:
            produce(one, b"1")
            follower.knows(1, one)
            follower.follow(partition, 1)
            has(partition, 1)
        wait_until(lambda: 1 in follower.broken, "the dead leader is reported", SOON_S)
        with serving(tmp_path / "one") as one, serving(tmp_path / "three") as three:
            follower.knows(1, one)
            produce(one, b"2")
            has(partition, 2)
            follower.knows(3, three)
            follower.follow(partition, 3)
            assert follower.fetching.leaders == [3]
            wait_until(lambda: one.open_streams() == [], "the first leader's session ends", SOON_S)
            wait_until(lambda: three.open_streams() == ["follower"], "the other's begins", SOON_S)


@pytest.mark.parametrize("is_resumed", [True, False])
def test_frozen_leader_is_noticed_and_delays_no_stop(tmp_path: Path, is_resumed: bool) -> None:
    """Nothing waits forever for a frozen process: a watchdog cancels, and stopping is bounded."""
    with serving(tmp_path / "leader") as server, following(tmp_path / "follower") as follower:
        partition = follower.partition(0)
        produce(server, b"1")
        follower.knows(1, server)
        follower.follow(partition, 1)
        has(partition, 1)
        server.process.signal(signal.SIGSTOP)
        if is_resumed:
            wait_until(lambda: 1 in follower.broken, "the frozen leader is reported", 40.0)
            server.process.signal(signal.SIGCONT)
            produce(server, b"2")
            has(partition, 2)
        else:
            assert follower.fetching.stop(20.0)


def test_unregistered_follower_is_refused_and_suspects_nobody(tmp_path: Path) -> None:
    """A leader that answers is alive, whatever the answer is, so it is not suspected."""
    with serving(tmp_path / "leader") as server, following(tmp_path / "follower") as follower:
        partition = follower.partition(0)
        produce(server, b"1")
        follower.knows(1, server)
        opened: list[int] = []
        unregistered = ReplicaFetching(
            7,
            max_bytes=1 << 20,
            max_wait_ms=500,
            address_of=lambda leader: opened.append(leader) or follower.addresses[leader],
            broker_epoch=lambda: 1,
            on_broken=follower.broken.append,
        )
        leadership = Leadership(leader=1, leader_epoch=LEADER_EPOCH, replicas=(1, 7), in_sync=frozenset({1}))
        partition.become_follower(leadership)
        unregistered.follow(partition, leadership)
        follower.follow(partition, 1)
        has(partition, 1)
        wait_until(lambda: len(opened) > 2, "refused, and tried again", SOON_S)
        assert unregistered.stop(20.0)
        assert follower.broken == []


class _StandingDisk(RealFiles):
    """A disk whose fsyncs wait while it is stalled."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def sync(self, descriptor: int) -> None:
        self.goes_on.wait(60.0)
        super().sync(descriptor)


def test_stalled_disk_holds_up_no_partition_on_another(tmp_path: Path) -> None:
    """Of one leader's partitions, those on the other disk are still fetched; the rest when the disk recovers."""
    disk = _StandingDisk()
    with serving(tmp_path / "leader") as server, following(tmp_path / "follower") as follower:
        other = LogDirectory.open(tmp_path / "other", cluster_id="test", broker_id=2, files=disk)
        log = other.log("untyped", 0, TOPICS["untyped"][0], resolve("topic", {}))
        standing, good = Partition(log, broker_id=2, disk=RoomyDisk()), follower.partition(1)
        follower.knows(1, server)
        for partition in (standing, good):
            follower.follow(partition, 1)
        produce(server, b"1", partition=0)
        produce(server, b"1", partition=1)
        has(standing, 1)
        has(good, 1)
        disk.goes_on.clear()
        try:
            produce(server, b"2", partition=0, acks=1)  # the follower is in sync, and so holds up acks=all
            wait_until(lambda: standing.log.log_end_offset == 2, "appended, and not durable", SOON_S)
            for value in (b"2", b"3", b"4"):
                produce(server, value, partition=1)
            has(good, 4)
            assert standing.log.durable_end_offset == 1
        finally:
            disk.goes_on.set()
        has(standing, 2)
        follower.fetching.unfollow(TopicPartition("untyped", 0))
        other.close()


def test_thread_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started for loading, following or flushing, nothing ends, and all works once threads are
    available.
    """
    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("follow-"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with serving(tmp_path / "leader") as server, following(tmp_path / "follower") as follower:
        produce(server, b"1")
        produce(server, b"1", partition=1)
        follower.knows(1, server)
        loaded, unloaded = follower.partition(0), follower.partition(1)
        assert loaded.log.log_end_offset == 0
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            follower.follow(loaded, 1)
            follower.follow(unloaded, 1)
            wait_until(lambda: {"follow-1", "follow-load"} <= set(refused), "both were tried", SOON_S)
        has(loaded, 1)
        has(unloaded, 1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            produce(server, b"2")
            has(loaded, 2)
        assert not follower.failed.is_set()


def test_lack_of_memory_for_a_session_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lack of memory ends neither the thread nor the following, and no leader is blamed for it."""
    real, refused = FollowerFetcher.next_request, threading.Event()

    def next_request(fetcher: FollowerFetcher, *args: Any, **kwargs: Any) -> Any:
        if not refused.is_set():
            refused.set()
            raise pa.ArrowMemoryError("malloc of size 1048576 failed")
        return real(fetcher, *args, **kwargs)

    monkeypatch.setattr(FollowerFetcher, "next_request", next_request)
    with serving(tmp_path / "leader") as server, following(tmp_path / "follower") as follower:
        produce(server, b"1")
        follower.knows(1, server)
        partition = follower.partition(0)
        follower.follow(partition, 1)
        has(partition, 1)
        assert refused.is_set()
        assert not follower.failed.is_set()
        assert follower.broken == []
