"""What one process of a broker in the simulation has in memory, and what it sees of the others."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from broker_runtime.cluster_identity import cluster_id, instance_id
from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.contract.waiting import Signal
from broker_runtime.log import LogDirectory
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.membership.disk_room import DiskReport
from broker_runtime.membership.hosting import Hosting
from broker_runtime.membership.isr_updater import IsrUpdater
from broker_runtime.membership.own_disks import GenerationReport, OwnDisks
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.services.movement import MovementService
from broker_runtime.services.topics import TopicService
from broker_runtime.zookeeper.membership import BrokerIdentity
from tests.simulation.partitions.broker.follower_sessions import FollowerSessions
from tests.simulation.partitions.broker.replica_fetching import ReplicaFetching
from tests.simulation.partitions.broker.serving import Observer, Serving
from tests.simulation.simulator.scheduler import MS
from tests.simulation.simulator.zookeeper import SimClient

if TYPE_CHECKING:
    from tests.simulation.partitions.broker.node import Node

DATA = Path("/data")
MIN_FREE_BYTES = 20_000
"""``log.dir.min.free.bytes``."""
LAG_LIMIT_MS = 4_000
"""``replica.lag.time.max.ms``: short, so that a run sees replicas leave and come back."""


class SimIsrUpdater(IsrUpdater):
    """The real one; nobody waits in it; ``on_wake`` is called when somebody should."""

    on_wake: Callable[[], None] = staticmethod(lambda: None)

    situation: Callable[[str], None] = staticmethod(lambda name: None)

    def wake(self) -> None:
        super().wake()
        self.on_wake()

    def _send(self, *args: Any) -> list[int]:
        try:
            return super()._send(*args)
        except ZooKeeperUnavailableError:
            self.situation("in-sync write of unknown outcome")
            raise


class _Rises(Signal):
    """Woken under the partition's lock, so while the role is still that under which the high watermark rose."""

    __slots__ = ("_high_watermark", "_on_rise", "_partition")

    def __init__(self, partition: Partition, on_rise: Callable[[], None]) -> None:
        super().__init__()
        self._partition = partition
        self._on_rise = on_rise
        self._high_watermark = -1

    def set(self) -> None:
        high_watermark = self._partition.log._state.high_watermark
        if self._partition.is_leader and high_watermark != self._high_watermark:
            self._high_watermark = high_watermark
            self._on_rise()


class SimRegistry(PartitionRegistry):
    """The real one; ``on_rise`` is called when a leader here moves a high watermark.

    A leader whose disk holds it up may do so after it has learned that its role ends: the end is left with the lock's
    holder, and comes in the same step (`RoleLock`). Who looks after the step sees a follower alone.
    """

    def __init__(self, on_rise: Callable[[], None]) -> None:
        super().__init__()
        self._on_rise = on_rise

    def host(self, partition: Partition) -> None:
        super().host(partition)
        partition.add_waiter(_Rises(partition, self._on_rise))


class Peers(Protocol):
    """The other brokers, over the network."""

    def call(
        self,
        source: str,
        broker_id: int,
        handle: Callable[[Life, Callable[[object], None]], None],
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
        may_repeat: bool = False,
        thread: str = "",
        reply_thread: str = "serve",
        what: str = "",
    ) -> None:
        """See `World.call`."""

    def refuses(self, source: str, broker_id: int) -> bool:
        """Whether the port of the broker refuses; False as well where no answer comes."""

    def answers(self, source: str, broker_id: int) -> bool:
        """Whether the broker serves."""


class NodeObserver(Observer, Protocol):
    """Is called with what a broker does, and when it dies."""

    def observe(self, node: Node) -> None:
        """It did something."""

    def died(self, node: Node) -> None:
        """Its process ended."""


class Life:
    """What one process of a broker has in memory."""

    def __init__(self, node: Node, client: SimClient) -> None:
        self.client = client
        self.actor = node.actor
        self.suspect = node.suspect
        self.is_stepping = False
        self.is_updating = False
        self.directory = LogDirectory.open(
            DATA, cluster_id=cluster_id(client), broker_id=node.broker_id, files=node.files
        )
        self.registry = SimRegistry(lambda: node.observer.observe(node))
        self.fetching = ReplicaFetching(
            node.actor,
            node.broker_id,
            node.scheduler,
            broker_epoch=lambda: self.member.broker_epoch,
            broker_secret=lambda: self.member.broker_secret,
            ask=node.ask_leader,
            on_broken=node.suspect,
            on_diverging=node.diverges,
        )
        self.hosting = Hosting(
            self.registry,
            [self.directory],
            broker_id=node.broker_id,
            min_free_bytes=MIN_FREE_BYTES,
            followers=self.fetching,
            now_ms=lambda: node.scheduler.now_us // MS,
            on_in_sync_news=lambda: self.isr_updater.wake(),
            on_damage=node.found_damage,
        )
        disks = OwnDisks([self.directory])
        self.generations = GenerationReport(client, disks)
        self.member = ClusterMember(
            client,
            BrokerIdentity(
                broker_id=node.broker_id,
                host=node.actor,
                port=node.broker_id,
                instance=instance_id(node.files, DATA),
                pid=node.lives,
                boot_id=f"boot {node.boots}",
                software_version="simulated",
                was_clean=self.directory.was_clean,
                disks=disks,
                secret=f"secret of {node.broker_id}",
            ),
            self.hosting,
            now_ms=node.now_ms,
            steady_ms=lambda: node.scheduler.now_us // MS,
            probe=node.probe,
            answers=node.answers,
            report=node.report,
            ask_log_ends=node.ask_log_ends,
        )
        self.isr_updater = SimIsrUpdater(
            client,
            self.registry,
            lambda: self.member.membership,
            lag_limit_ms=LAG_LIMIT_MS,
            electorate=lambda: self.member.electorate,
            report=DiskReport(
                client,
                self.hosting.troubles,
                self.hosting.damaged_logs,
                self.hosting.diverged,
                self.hosting.failed_logs,
            ),
        )
        self.isr_updater.on_wake = node.update_in_sync_soon
        self.isr_updater.situation = node.trace.situation
        self.serving = Serving(
            node.actor,
            node.broker_id,
            node.scheduler,
            self.registry,
            node.observer,
            node.now_ms,
            stalled_until_us=lambda: node.stalled_until_us,
        )
        self.followers = FollowerSessions(node.actor, node.scheduler, self.serving.fetch_service)
        self.movements = MovementService(self.member, self.registry, now_ms=node.now_ms)
        self.topics = TopicService(
            self.member, node.settings, now_ms=node.now_ms, new_id=lambda: uuid.UUID(int=node.rng.getrandbits(128))
        )

    def serve(self, node: Node) -> None:
        """The broker serves from now on: whatever else it does begins."""
