"""The composition root: one broker of a cluster.

    start   port free? → ZooKeeper → cluster id → lock the data directories → register → claim, elect, host → serve
    stop    hand leaderships and groups over → step down and deregister → end fetching and the streams → close the logs
            with the clean mark → end the session

    threads   cluster-member: what changed in the cluster       follow-<leader>, follow-watchdog: what it follows
              in-sync: changes of in-sync sets                   disk <path>: checkpoints, flushes, retention
              peers: whether other brokers' ports refuse         groups, group-removal: those it coordinates
              disk-work <path>: logs created and deleted         disk-generations: reports how new the disks' copies are
              producer-ids: a reserve of ids                     gRPC's: one per call
              group-lag: how far groups are behind               http-listener: /metrics (with http.listener)

Rules: nothing is served before this broker knows its cluster; an error on the way leaves nothing behind. Stopping is
bounded, whatever peers, disks and ZooKeeper do. This module creates objects and connects them; it decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from broker_runtime.broker_groups import BrokerGroups
from broker_runtime.broker_metrics import BrokerMetrics
from broker_runtime.broker_replication import BrokerReplication
from broker_runtime.broker_security import BrokerSecurity
from broker_runtime.broker_services import make_services, wall_ms
from broker_runtime.broker_transactions import BrokerTransactions
from broker_runtime.cluster_identity import cluster_id
from broker_runtime.contract.errors import BrokerUnavailableError, PylogError, SetupError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import Address, BrokerSettings
from broker_runtime.contract.threads import may_start, run_within
from broker_runtime.contract.waiting import Deadline, Worker
from broker_runtime.following.peers import Peers, port_refuses
from broker_runtime.log import LogDirectory
from broker_runtime.log.files import RealFiles
from broker_runtime.log.identity import require_apart
from broker_runtime.log.watched_files import WatchedFiles
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.membership.disk_work import DiskWorker
from broker_runtime.membership.hosting import Hosting
from broker_runtime.membership.own_disks import OwnDisks
from broker_runtime.memory import limit_bytes
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.metrics.log_sizes import EVERY_S as SIZES_S
from broker_runtime.periodic import PeriodicTask, Schedule
from broker_runtime.ports import choose_port, is_same_address, require_free_port
from broker_runtime.server.flight import PylogFlightServer
from broker_runtime.services.producer_ids import ProducerIdService
from broker_runtime.zookeeper.client import KazooZooKeeper, ZooKeeperAccess
from broker_runtime.zookeeper.membership import note_stopped
from broker_runtime.zookeeper.session import ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import Endpoint

_logger = logging.getLogger(__name__)

STOP_LIMIT_S: Final = 20.0

_CONNECT_S: Final = 5.0
_CHECKPOINT_S: Final = 5.0
_ROLLED_CHECK_S: Final = 0.5  # no shorter: while many segments roll, each check writes checkpoints
_ROOM_CHECK_S: Final = 1.0
_KEPT_CHECK_S: Final = 5.0
_FLUSH_CHECK_S: Final = 0.1
_CERTIFICATES_S: Final = 2.0
_PRODUCER_IDS_S: Final = 1.0
_STEP_S: Final = 5.0
_HAND_OVER_S: Final = 6.0
_GIVE_UP_S: Final = 3.0
_LEAVE_S: Final = 3.0
_FETCHING_STOP_S: Final = 2.0
_SERVER_STOP_S: Final = 5.0
_SESSION_END_S: Final = 3.0
_NOTE_STOP_S: Final = 1.0
_SESSION_END_RESERVE_S: Final = 1.0  # of the time to stop in, for what comes after the directories


class Broker:
    """One broker in this process. `start` once, `stop` once, from one thread."""

    def __init__(self, settings: BrokerSettings, *, on_failure: Callable[[], None] = lambda: None) -> None:
        """``on_failure``: called, on any thread, when the broker must be stopped: it met a defect of its own, or
        another broker has taken its id. The log says which."""
        self._settings = settings
        self._on_failure = on_failure
        self._ending = contextlib.ExitStack()
        self._directories: list[LogDirectory] = []
        self._stop_deadline = Deadline(None)
        self._is_all_closed = True
        self._stopped = threading.Event()
        self._workers: list[Worker] = []
        self._address: Address | None = None
        self._member: ClusterMember | None = None
        self._groups: BrokerGroups | None = None
        self._client: ZooKeeperClient | None = None
        self._is_stopping = False
        self._metrics: BrokerMetrics | None = None
        self._joining: BrokerReplication | None = None

    @property
    def broker_id(self) -> int:
        """``broker.id``."""
        return self._settings.broker_id

    @property
    def address(self) -> Address:
        """Where it serves. Raises `BrokerUnavailableError` before it does."""
        if self._address is None:
            raise BrokerUnavailableError(f"broker {self.broker_id} does not serve yet")
        return self._address

    @property
    def http_address(self) -> Address | None:
        """Where it tells how it is; None without ``http.listener``, and before it listens."""
        return None if self._metrics is None else self._metrics.address

    @property
    def not_ready(self) -> str | None:
        """Why it does not serve at present; None: it does."""
        if self._is_stopping:
            return "it is stopping"
        if self._address is None or self._member is None:
            return "it is starting"
        if self._client is not None and not self._client.is_connected:
            return "ZooKeeper does not answer"
        return None if self._member.membership is not None else "it is not registered in ZooKeeper"

    def start(self) -> None:
        """Returns when the broker serves, is registered, and leads the partitions that it has to.

        Raises `PortInUseError`, `ZooKeeperUnavailableError`, `DirectoryLockedError`, `SetupError` (the id is taken),
        `CorruptRecordError` (a directory's identity is damaged), `OSError`. Nothing is left behind then.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = STOP_LIMIT_S) -> bool:
        """Stops in order. False: not all was closed within ``timeout_s``, or a data directory could not be closed;
        what is left is as after a kill, which the next start repairs. Idempotent."""
        self._is_stopping = True
        deadline = self._stop_deadline = Deadline(timeout_s)
        closing = threading.Thread(target=self._close, name="broker-stop", daemon=True)
        if may_start(closing):
            closing.join(timeout_s)
        else:
            self._close()
        self._stop_workers()
        for worker in self._workers:
            worker.join(deadline.remaining_s())
        is_complete = self._is_all_closed and not closing.is_alive()
        if not is_complete:
            event(_logger, "stop broker", level=logging.WARNING, broker=self.broker_id, waited_s=timeout_s)
        self._stopped.set()
        return is_complete

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until `stop` has ended; False after ``timeout_s``."""
        return self._stopped.wait(timeout_s)

    # --- private ----------------------------------------------------------------------------------------------

    def _secret(self) -> str:
        return "" if self._joining is None else self._joining.member.broker_secret

    @property
    def _meters(self) -> Meters:
        return NO_METERS if self._metrics is None else self._metrics.meters

    def _start(self) -> None:
        settings = self._settings
        for _, at in settings.listeners:
            require_free_port(at.host, at.port)
            if is_same_address(settings.http_listener, at):
                raise SetupError(
                    f"http.listener={settings.http_listener} is the address of listeners: it needs its own"
                )
        require_apart(RealFiles(), settings.log_dirs)
        metrics = self._metrics = BrokerMetrics(settings.http_listener, not_ready=lambda: self.not_ready)
        self._ending.callback(metrics.stop)
        security = BrokerSecurity(settings, wall_ms=wall_ms, meters=metrics.meters)
        client = KazooZooKeeper.connect(
            settings.zookeeper_connect,
            session_timeout_ms=settings.zookeeper_session_timeout_ms,
            connect_timeout_s=max(_CONNECT_S, settings.zookeeper_session_timeout_ms / 1_000),
            access=ZooKeeperAccess.of(settings),
            meters=metrics.meters,
        )
        self._client = client
        self._ending.callback(_in_bounds, "end session", client.close, _SESSION_END_S)
        cluster = cluster_id(client)
        self._ending.callback(_in_bounds, "note stop", lambda: self._note_stopped(client), _NOTE_STOP_S)
        directories = [self._open_directory(path, cluster) for path in settings.log_dirs]
        peers = Peers(settings.broker_id, access=security.access(self._secret))
        self._ending.callback(peers.close)
        ports = {name: at.port or choose_port(at.host) for name, at in settings.listeners}
        security.connect(client)
        replication = self._join(client, directories, peers, security.endpoints(ports))
        producer_ids = ProducerIdService(client)
        groups, transactions = self._coordinators(client, replication, peers, producer_ids)
        services = make_services(
            settings,
            client=client,
            registry=replication.registry,
            member=replication.member,
            directories=directories,
            cluster_id=cluster,
            producer_ids=producer_ids,
            groups=groups.service,
            transactions=transactions.service,
            peers=peers,
            meters=metrics.meters,
            security=security.service,
            authorizer=security.authorizer,
            is_current=security.is_current,
            quotas=security.quotas,
        )
        server = PylogFlightServer(
            security.plans(ports),
            services=services,
            max_streams=settings.max_connections,
            memory_bytes=limit_bytes(settings),
        )
        self._ending.callback(server.stop, _SERVER_STOP_S)
        self._leave_at_end(replication)
        self._ending.callback(_in_bounds, "give groups up", groups.give_up, _GIVE_UP_S)
        self._member = replication.member
        self._groups = groups
        self._address = Address(settings.listeners[0].address.host, server.port)
        lag = metrics.group_lag(
            settings,
            positions=groups.positions.read,
            member=replication.member,
            registry=replication.registry,
            peers=peers,
        )
        metrics.show(
            lag=lag,
            broker_id=settings.broker_id,
            cluster_id=cluster,
            partitions=replication.registry,
            cluster=lambda: replication.member.state,
            directories=directories,
            stream_kinds=server.stream_kinds,
            is_connected=lambda: client.is_connected,
        )
        self._run_replication(replication)
        self._run("groups", lambda _: groups.step(), interrupt=groups.wake)
        self._run("group-removal", lambda worker: groups.step_removal(worker))
        self._run("transactions", lambda _: transactions.step(), interrupt=transactions.wake)
        self._run("transaction-ends", lambda worker: transactions.step_ending(worker))
        self._run("security-records", lambda _: security.records.step(), interrupt=security.records.wake)
        if security.openid is not None:
            self._run("openid-keys", lambda _: security.step_openid(), interrupt=security.openid.wake)
        if security.tls is not None:
            self._run("certificates", lambda _: _step_certificates(server))
        if lag is not None:
            self._run("group-lag", lambda _: lag.step())
        self._run("producer-ids", lambda _: _step_producer_ids(producer_ids))
        for directory in directories:
            self._run_disk(replication.hosting, directory)
        event(_logger, "serve clients", broker=settings.broker_id, address=self._address, pid=os.getpid())

    def _join(
        self,
        client: ZooKeeperClient,
        directories: Sequence[LogDirectory],
        peers: Peers,
        endpoints: Sequence[Endpoint],
    ) -> BrokerReplication:
        """What is returned has joined the cluster, and leaves it when this broker stops."""
        settings = self._settings
        replication = BrokerReplication(
            settings,
            client=client,
            directories=directories,
            endpoints=endpoints,
            peers=peers,
            steady_ms=_steady_ms,
            wall_ms=wall_ms,
            on_failure=self._on_failure,
            meters=self._meters,
        )
        self._joining = replication
        self._leave_at_end(replication)
        for path, work in replication.disk_work.items():
            self._run(f"disk-work {path}", partial(_step_disk_work, work), interrupt=work.wake)
        replication.join()
        return replication

    def _coordinators(
        self,
        client: ZooKeeperClient,
        replication: BrokerReplication,
        peers: Peers,
        producer_ids: ProducerIdService,
    ) -> tuple[BrokerGroups, BrokerTransactions]:
        groups = BrokerGroups(
            self._settings,
            client=client,
            member=replication.member,
            refuses=port_refuses,
            steady_ms=_steady_ms,
            wall_ms=wall_ms,
            believed_ms=replication.believed_ms,
        )
        transactions = BrokerTransactions(
            self._settings,
            client=client,
            member=replication.member,
            registry=replication.registry,
            peers=peers,
            producer_ids=producer_ids,
            groups=groups.service,
            steady_ms=_steady_ms,
            wall_ms=wall_ms,
            believed_ms=replication.believed_ms,
        )
        return groups, transactions

    def _leave_at_end(self, replication: BrokerReplication) -> None:
        """Stopping is in reverse order: first roles and registration, then fetching, the streams, the logs, the
        session. What is served later is stopped earlier, so this is said once more then."""
        self._ending.callback(replication.fetching.stop, _FETCHING_STOP_S)
        self._ending.callback(_in_bounds, "leave cluster", replication.member.leave, _LEAVE_S)

    def _run_replication(self, replication: BrokerReplication) -> None:
        self._run("cluster-member", lambda _: replication.step_member(), interrupt=replication.member.wake)
        self._run("in-sync", replication.step_in_sync, interrupt=replication.wake_in_sync)
        self._run("peers", lambda _: replication.step_peers())
        self._run("disk-generations", replication.step_generations)

    def _close(self) -> None:
        member, groups = self._member, self._groups
        if member is not None and groups is not None and self._settings.controlled_shutdown_enable:
            _in_bounds("hand roles over", lambda: _hand_over(member, groups), _HAND_OVER_S)
        self._stop_workers()
        self._ending.close()

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _open_directory(self, path: Any, cluster: str) -> LogDirectory:
        try:
            files = WatchedFiles(RealFiles(), on_sync=partial(self._meters.synced, str(path)))
            directory = LogDirectory.open(path, cluster_id=cluster, broker_id=self._settings.broker_id, files=files)
        except OSError as error:
            if isinstance(error, PylogError):
                raise
            raise SetupError(f"log.dirs: {path} cannot be used: {error.strerror or error}") from None
        if not self._directories:
            self._ending.callback(self._close_directories)
        self._directories.append(directory)
        return directory

    def _close_directories(self) -> None:
        """Closes all at once: one whose disk stands still, or that has many logs, takes no time from the others."""
        limit_s = max(0.0, self._stop_deadline.remaining_s() - _SESSION_END_RESERVE_S)
        directories = {f"close {each.path}": each for each in self._directories}
        failed = run_within(limit_s, {name: each.close for name, each in directories.items()})
        for name, error in failed.items():
            self._is_all_closed = False
            path = directories[name].path
            if error is None:
                event(_logger, "close directory", level=logging.WARNING, path=path, waited_s=limit_s)
            elif isinstance(error, (PylogError, OSError)):
                event(_logger, "close directory", level=logging.ERROR, path=path, error=error)
            else:
                raise error

    def _note_stopped(self, client: KazooZooKeeper) -> None:
        """Without ZooKeeper nothing is noted: the next start judges the directories by what is in them."""
        try:
            failed = [at for each in self._directories for at in each.failed]
            note_stopped(client, self._settings.broker_id, OwnDisks(self._directories), failed)
        except (PylogError, ZNodeError) as error:
            event(_logger, "note stop", level=logging.WARNING, broker=self._settings.broker_id, error=error)

    def _run_disk(self, hosting: Hosting, directory: LogDirectory) -> None:
        """Runs the periodic tasks of a directory on a thread of its own: a disk that stands still holds up no other."""
        retention_s = self._settings.log_retention_check_interval_ms / 1_000
        schedule = Schedule(
            [
                PeriodicTask(name="checkpoint", interval_s=_CHECKPOINT_S, run=directory.checkpoint),
                PeriodicTask(name="rolled segments", interval_s=_ROLLED_CHECK_S, run=directory.maybe_checkpoint),
                PeriodicTask(name="flush", interval_s=_FLUSH_CHECK_S, run=lambda: directory.maybe_flush(wall_ms())),
                PeriodicTask(name="room", interval_s=_ROOM_CHECK_S, run=lambda: hosting.look_at_disk(directory)),
                PeriodicTask(name="kept logs", interval_s=_KEPT_CHECK_S, run=lambda: hosting.look_at_kept(directory)),
                PeriodicTask(
                    name="retention",
                    interval_s=retention_s,
                    run=lambda: hosting.apply_retention_in(directory, wall_ms()),
                ),
                *_sizes_of(self._metrics, directory),
            ],
            start_s=time.monotonic(),
            path=directory.path,
        )

        self._run(f"disk {directory.path}", lambda _: max(0.0, schedule.step(time.monotonic()) - time.monotonic()))

    def _run(
        self, name: str, step: Callable[[Worker], float | None], *, interrupt: Callable[[], object] = lambda: None
    ) -> None:
        """Runs a `Worker` until the broker stops; its steps are given it. A defect ends the broker."""

        def step_or_fail() -> float | None:
            try:
                return step(worker)
            except SetupError as error:  # no defect: another broker has the id
                event(_logger, "run broker", level=logging.CRITICAL, broker=self.broker_id, error=error)
                worker.stop()
                self._on_failure()
                return None

        def fail(_: BaseException) -> None:
            if not worker.is_stopping:
                self._on_failure()

        worker = Worker(name, step_or_fail, on_defect=fail, interrupt=interrupt)
        self._workers.append(worker)
        worker.start()


def _sizes_of(metrics: BrokerMetrics | None, directory: LogDirectory) -> list[PeriodicTask]:
    if metrics is None or not metrics.is_on:
        return []
    return [PeriodicTask(name="sizes", interval_s=SIZES_S, run=lambda: metrics.sizes.look(directory))]


def _step_disk_work(work: DiskWorker, _: Worker) -> None:
    work.step(_STEP_S)


def _step_certificates(server: PylogFlightServer) -> float:
    server.renew_certificates()
    return _CERTIFICATES_S


def _step_producer_ids(producer_ids: ProducerIdService) -> float:
    producer_ids.keep_ready()
    return _PRODUCER_IDS_S


def _in_bounds(what: str, call: Callable[[], object], limit_s: float) -> None:
    """Runs what may wait for an absent peer, and continues without it after ``limit_s``. ``what``: for the log."""
    failed = run_within(limit_s, {what: call})
    if what not in failed:
        return
    error = failed[what]
    if error is not None:
        raise error
    event(_logger, what, level=logging.WARNING, waited_s=limit_s)


def _hand_over(member: ClusterMember, groups: BrokerGroups) -> None:
    if len(member.state.brokers) > 1:
        member.begin_stopping()
        groups.give_up()
        member.wait_until_handed_over(_HAND_OVER_S)


def _steady_ms() -> int:
    """The clock of in-sync sets and of all that is done after a while: it never jumps."""
    return time.monotonic_ns() // 1_000_000
