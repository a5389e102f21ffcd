"""The objects with which a broker takes part in its cluster and keeps its replicas, created and connected here, and the
steps of their loops.

Rule: as in `broker_services`, nothing is decided here.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from broker_runtime.cluster_identity import instance_id
from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import Empty, LogEndsRequest, LogEndsResponse, ReportBrokerRequest
from broker_runtime.contract.settings import Address, BrokerSettings
from broker_runtime.contract.threads import run_within
from broker_runtime.contract.waiting import Worker
from broker_runtime.following.peers import Peers, broker_answers, port_refuses
from broker_runtime.following.replica_fetching import ReplicaFetching
from broker_runtime.log import BelievedClock, LogDirectory, uptime_ms
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.membership.disk_room import DiskReport
from broker_runtime.membership.disk_work import DiskWorker
from broker_runtime.membership.hosting import Hosting
from broker_runtime.membership.isr_updater import IsrUpdater
from broker_runtime.membership.own_disks import GenerationReport, OwnDisks
from broker_runtime.meters import Meters
from broker_runtime.rates import RateLimit
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.metadata import software_version
from broker_runtime.zookeeper.membership import BrokerIdentity, zookeepers_ms
from broker_runtime.zookeeper.session import ZooKeeperClient
from broker_runtime.zookeeper.znodes import Endpoint

_logger = logging.getLogger(__name__)

_STEP_S: Final = 5.0
_PROBE_S: Final = 0.5
_STARTING_PROBE_S: Final = 0.05
_GENERATIONS_S: Final = 5.0
_IN_SYNC_PAUSE_S: Final = 0.1
_LONGEST_IN_SYNC_PAUSE_S: Final = 0.5
_REPORT_LIMIT_S: Final = 2.0
_LOG_ENDS_LIMIT_S: Final = 2.0
_SESSIONS_OF_PATIENCE: Final = 2


class BrokerReplication:
    """The replicas of one broker, and its part in the cluster."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        client: ZooKeeperClient,
        directories: Sequence[LogDirectory],
        endpoints: Sequence[Endpoint],
        peers: Peers,
        steady_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        on_failure: Callable[[], None],
        meters: Meters,
    ) -> None:
        """``endpoints``: where clients reach this broker; other brokers, at the first. ``steady_ms``: a clock that
        never jumps. ``on_failure``: see `Broker`."""
        self._settings = settings
        self._client = client
        self._peers = peers
        self._steady_ms = steady_ms
        self._wall_ms = wall_ms
        self._clock = BelievedClock(wall_ms=wall_ms(), uptime_ms=uptime_ms())
        self.disk_work = {each.path: DiskWorker(each.path, on_late=lambda: self.member.wake()) for each in directories}
        disks = OwnDisks(directories, disk_work=self.disk_work)
        self.registry = PartitionRegistry()
        self._updater = IsrUpdater(
            client,
            self.registry,
            lambda: self.member.membership,
            lag_limit_ms=settings.replica_lag_time_max_ms,
            electorate=lambda: self.member.electorate,
            report=DiskReport(
                client,
                lambda: self.hosting.troubles(),
                lambda: self.hosting.damaged_logs(),
                lambda: self.hosting.diverged(),
                lambda: self.hosting.failed_logs(),
            ),
            meters=meters,
        )
        self.fetching = ReplicaFetching(
            settings.broker_id,
            max_bytes=settings.replica_fetch_max_bytes,
            max_wait_ms=settings.replica_fetch_wait_max_ms,
            address_of=self._address_of,
            broker_epoch=lambda: self.member.broker_epoch,
            broker_secret=lambda: self.member.broker_secret,
            on_broken=lambda broker_id: self.member.suspect(broker_id),
            throttle=_throttle(settings),
            meters=meters,
            on_failure=on_failure,
            access=peers.access,
        )
        self.hosting = Hosting(
            self.registry,
            directories,
            broker_id=settings.broker_id,
            min_free_bytes=settings.log_dir_min_free_bytes,
            followers=self.fetching,
            now_ms=steady_ms,
            on_in_sync_news=self._updater.wake,
            on_damage=self._on_damage,
            stall_limit_s=settings.replica_lag_time_max_ms / 1_000,
            disk_work=self.disk_work,
            clock=self._clock,
        )
        self.member = ClusterMember(
            client,
            BrokerIdentity(
                broker_id=settings.broker_id,
                host=endpoints[0].host,
                port=endpoints[0].port,
                endpoints=tuple(endpoints),
                instance=instance_id(directories[0].files, directories[0].path),
                pid=os.getpid(),
                boot_id=directories[0].files.boot_id,
                software_version=software_version(),
                was_clean=all(directory.was_clean for directory in directories),
                disks=disks,
                secret=secrets.token_hex(32),
            ),
            self.hosting,
            now_ms=wall_ms,
            steady_ms=steady_ms,
            probe=port_refuses,
            answers=partial(broker_answers, access=peers.access),
            report=self._report,
            ask_log_ends=self._ask_log_ends,
            run_all=_run_all,
            rebalances_leaders=settings.auto_leader_rebalance_enable,
            meters=meters,
        )
        self._generations = GenerationReport(client, disks)
        self.wake_in_sync = self._updater.wake

    def believed_ms(self) -> int:
        """The time of `BelievedClock`."""
        return self._clock.believed_ms(self._wall_ms(), uptime_ms())

    def join(self) -> None:
        """Registers the broker, and returns when it leads what it has to. Raises as `ClusterMember.join`."""
        began_ms = uptime_ms()
        self.member.join(patience_s=_SESSIONS_OF_PATIENCE * self._settings.zookeeper_session_timeout_ms / 1_000)
        membership = self.member.membership
        zookeeper_ms = None if membership is None else zookeepers_ms(self._client, membership)
        if zookeeper_ms is not None:
            self._clock.compare(zookeeper_ms, from_ms=began_ms, to_ms=uptime_ms())

    def step_member(self) -> None:
        """Waits for what changes in the cluster, and deals with it. Raises as `ClusterMember.step`."""
        self.member.step(_STEP_S)

    def step_in_sync(self, worker: Worker) -> None:
        """Changes in-sync sets, then rests on the thread of ``worker`` and waits for news."""
        began_s = time.monotonic()
        self._updater.step(self._steady_ms())
        # Followers of many partitions catch up one after the other. All brokers read what each write announces, and the
        # more there is to read, the longer that takes them.
        took_s = time.monotonic() - began_s
        if not worker.rest(min(max(_IN_SYNC_PAUSE_S, 4 * took_s), _LONGEST_IN_SYNC_PAUSE_S)):
            self._updater.wait(self._settings.replica_lag_time_max_ms / 1_000 / 2)

    def step_peers(self) -> float:
        """Looks whether other brokers' ports refuse; returns when to look again, in seconds."""
        return _STARTING_PROBE_S if self.member.probe_peers() else _PROBE_S

    def step_generations(self, worker: Worker) -> None:
        """Reports how new the disks' copies are, now and then."""
        if not worker.rest(_GENERATIONS_S):  # else the broker stops, and `note_stopped` says more
            self._generations.report(self.member.membership)

    # --- private ----------------------------------------------------------------------------------------------

    def _on_damage(self) -> None:
        """A log is damaged: this broker leaves its in-sync set where another can lead, and reports it."""
        self.member.wake()
        self._updater.wake()

    def _address_of(self, broker_id: int) -> Address | None:
        broker = self.member.state.brokers.get(broker_id)
        return None if broker is None else Address(broker.host, broker.port)

    def _report(self, broker_id: int) -> None:
        """Reports a broker whose port refuses to the controller, which probes it in time anyway: errors are only
        logged."""
        controller = self.member.state.controller
        address = None if controller is None else self._address_of(controller.broker_id)
        if address is None:
            return
        try:
            request = ReportBrokerRequest(broker_id=broker_id)
            self._peers.call(address, "report_broker", request, Empty, timeout_s=_REPORT_LIMIT_S)
        except PylogError as error:
            event(_logger, "report broker", broker=broker_id, address=address, error=error)

    def _ask_log_ends(self, broker_id: int, request: LogEndsRequest) -> LogEndsResponse | None:
        if broker_id == self._settings.broker_id:  # which may not reach the address it advertises
            return self.member.log_ends(request)
        address = self._address_of(broker_id)
        if address is None:
            return None
        try:
            return self._peers.call(address, "log_ends", request, LogEndsResponse, timeout_s=_LOG_ENDS_LIMIT_S)
        except PylogError as error:
            event(_logger, "ask for log ends", broker=broker_id, address=address, error=error)
            return None


def _throttle(settings: BrokerSettings) -> RateLimit | None:
    rate = settings.replication_throttled_rate
    return None if rate == -1 else RateLimit(rate)


def _run_all(calls: Mapping[str, Callable[[], object]]) -> None:
    """Within a time limit: a peer may be silent, and this broker's own logs may take long to load."""
    for name, error in run_within(_LOG_ENDS_LIMIT_S, calls).items():
        waited_s = _LOG_ENDS_LIMIT_S if error is None else None
        event(_logger, "wait for answer", level=logging.WARNING, call=name, waited_s=waited_s, error=error)
