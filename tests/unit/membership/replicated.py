"""Brokers with real logs in memory that follow each other: members over a ZooKeeper in memory, fetches as calls."""

from __future__ import annotations

from pathlib import Path

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.log import LogDirectory
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.membership.disk_room import DiskReport
from broker_runtime.membership.hosting import Hosting
from broker_runtime.membership.isr_updater import IsrUpdater
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchService
from broker_runtime.zookeeper.membership import BrokerIdentity
from tests.callers import fetch_once, follower
from tests.clocks import ReadClock
from tests.unit.log.log_samples import flip
from tests.unit.membership.members import Broker, CountingClient
from tests.unit.replication.partitions import NOW_MS, frame

DATA = Path("/data")
T0 = TopicPartition("t", 0)
LAG_MS = 10_000


class ReplicatedBroker(Broker):
    """One broker; it can `start` again after `stop`, with its disk. All clocks are ``clock``."""

    def __init__(self, server, broker_id, clock, *, min_free_bytes=0, files=None):
        self.server, self.broker_id, self.clock = server, broker_id, clock
        self.min_free_bytes = min_free_bytes
        self.files = FaultyFiles() if files is None else files
        self.start()

    def start(self):
        self.client = CountingClient(self.server.client())
        self.directory = LogDirectory.open(DATA, cluster_id="c", broker_id=self.broker_id, files=self.files)
        self.registry = PartitionRegistry()
        self.fetchers = {}
        self.wakeups = []
        self.hosting = Hosting(
            self.registry,
            [self.directory],
            broker_id=self.broker_id,
            min_free_bytes=self.min_free_bytes,
            followers=self,
            now_ms=lambda: self.clock[0],
            on_in_sync_news=lambda: self.wakeups.append(1),
            on_damage=lambda: self.member.wake(),
        )
        identity = BrokerIdentity(
            broker_id=self.broker_id,
            host=f"h{self.broker_id}",
            port=1,
            instance=f"data-{self.broker_id}",
            pid=1,
            boot_id="",
            software_version="",
            was_clean=self.directory.was_clean,
        )
        self.member = ClusterMember(self.client, identity, self.hosting, now_ms=lambda: self.clock[0])
        self.updater = IsrUpdater(
            self.client,
            self.registry,
            lambda: self.member.membership,
            lag_limit_ms=LAG_MS,
            electorate=lambda: self.member.electorate,
            report=DiskReport(
                self.client,
                self.hosting.troubles,
                self.hosting.damaged_logs,
                self.hosting.diverged,
                self.hosting.failed_logs,
            ),
        )
        self.service = FetchService(
            self.registry, max_bytes=1 << 20, budget=ByteBudget(1 << 20), clock=ReadClock(lambda: self.clock[0] / 1000)
        )
        self.member.join()

    def stop(self, *, clean=True):
        """Ends the process, in order or not."""
        if clean:
            self.member.leave()
            self.directory.close()
        else:
            self.files.kill()
        self.client.close()

    # --- its leaders ---

    def follow(self, partition, leadership):
        self.unfollow(T0)
        self.fetchers.setdefault(
            leadership.leader,
            FollowerFetcher(
                self.broker_id, leadership.leader, max_bytes=1 << 20, partition_max_bytes=1 << 16, max_wait_ms=0
            ),
        ).follow(partition, leadership.leader_epoch)

    def unfollow(self, at):
        for fetcher in self.fetchers.values():
            fetcher.unfollow(at)

    def request(self, leader_id):
        """Its next request to that broker, and its identity."""
        caller = follower(self.broker_id, self.member.broker_epoch)
        return self.fetchers[leader_id].next_request(caller.broker_epoch, self.clock[0]), caller

    def answer(self, request, caller):
        return fetch_once(self.service, caller, request)

    # --- its partition t-0 ---

    @property
    def partition(self):
        return self.registry.find("t", 0)

    @property
    def log(self):
        return self.partition.log

    def append(self, *values):
        """Appends as the leader, one frame per value; they are durable on this broker."""
        for value in values:
            pending = self.partition.append([frame(value)], acks=1, leader_epoch=-1, now_ms=NOW_MS)
            self.partition.complete(pending, acks=1, timeout_s=0)

    def frames(self):
        """All frames of its log."""
        log, found = self.log, []
        offset = log.log_start_offset
        while (piece := log.read(offset, max_bytes=1, upto=log.log_end_offset)) is not None:
            with piece:
                found.append(piece.load().to_pybytes())
                offset = piece.next_offset
        return found

    def segments(self):
        """The paths of its segments."""
        return sorted(path for path in self.files._names if path.parent == DATA / "t-0" and path.suffix == ".log")

    def flip(self, path, position):
        """Flips one bit on its disk."""
        flip(self.files, path, position)

    def set_aside(self):
        return [name for name in self.files.list(DATA) if name.endswith(".damaged")]


def live_on(brokers, clock, rounds=30):
    """Runs everything that happens in a cluster without faults, for a while."""
    for _ in range(rounds):
        clock[0] += 200
        for each in brokers.values():
            each.directory.maybe_checkpoint()
        for each in brokers.values():
            each.member.step(0)
            each.updater.step(clock[0])
        for each in brokers.values():
            for leader_id, fetcher in each.fetchers.items():
                request, caller = each.request(leader_id)
                if request is None:
                    continue
                if leader_id not in brokers:
                    fetcher.failed(PylogError("nobody there"), clock[0])
                    continue
                answer = brokers[leader_id].answer(request, caller)
                fetcher.handle(answer.response, answer.cells, clock[0])
