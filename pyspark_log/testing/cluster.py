"""`LocalCluster`: real brokers and a real ZooKeeper as processes on this machine, for tests.

Rule: no process outlives the one that created the cluster, not even if that one is killed with SIGKILL. Nothing is
simulated: a test sees what a user would see.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from broker_runtime.contract.errors import BrokerUnavailableError, ClientStateError, InvalidConfigError, RetriableError
from broker_runtime.contract.requests import MetadataRequest, MetadataResponse, PartitionInfo
from broker_runtime.contract.security import access_of
from broker_runtime.contract.settings import resolve
from broker_runtime.contract.waiting import Deadline
from broker_runtime.zookeeper.bundled import BundledZooKeeper
from pyspark_log.client.connection.channel import Channel
from pyspark_log.local.broker_process import BrokerProcess
from pyspark_log.local.ensemble import ZooKeeperEnsemble
from pyspark_log.local.starting import start_together

READY_LIMIT_S: Final = 60.0
_CHROOT: Final = "/pylog"
_POLL_S: Final = 0.05
_ANSWER_LIMIT_S: Final = 5.0


class LocalCluster:
    """A cluster of ``brokers`` brokers and ``zookeepers`` ZooKeeper servers, both numbered from 1.

    ``directory``: where its data is kept, and found again; None: a temporary directory that `close` removes.
    ``settings``: broker settings by dotted name, for every broker. ``client_settings``: by dotted name, with which
    somebody who sees all topics reaches the first listener; without them it must be open to everybody. Entering the
    ``with`` statement starts the cluster and waits until it is ready; leaving it stops all processes. A server that is
    started again keeps its port.
    All methods block until they have done what they say. Not thread-safe.
    """

    def __init__(
        self,
        brokers: int = 1,
        zookeepers: int = 1,
        directory: str | Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        client_settings: Mapping[str, str] | None = None,
    ) -> None:
        """Starts nothing. Raises `InvalidConfigError` unless ``brokers`` and ``zookeepers`` are at least 1."""
        for name, number in (("brokers", brokers), ("zookeepers", zookeepers)):
            if number < 1:
                raise InvalidConfigError(f"{name}={number}: must be at least 1")
        self._first_brokers = brokers
        self._servers = zookeepers
        self._settings = dict(settings or {})
        self._access = access_of(resolve("admin", client_settings))
        self._given_directory = None if directory is None else Path(directory)
        self._directory: Path | None = None
        self._ensemble: ZooKeeperEnsemble | None = None
        self._brokers: dict[int, BrokerProcess] = {}

    # --- lifecycle -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Starts all servers and waits until they are ready. After an error nothing is left running.

        Raises `ClientStateError` if it is open; as `BrokerProcess.start` and `ZooKeeperEnsemble`, and as
        `wait_until_ready`.
        """
        if self._directory is not None:
            raise ClientStateError("the cluster is open already: close() it first")
        if self._given_directory is not None:
            self._directory = self._given_directory
            self._directory.mkdir(parents=True, exist_ok=True)
        else:
            self._directory = Path(tempfile.mkdtemp(prefix="pylog-cluster-"))
        try:
            self._ensemble = ZooKeeperEnsemble(self._directory, self._servers)
            self._ensemble.start()
            start_together([self._new_broker(broker_id) for broker_id in range(1, self._first_brokers + 1)])
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops all processes, brokers first, and removes a temporary directory. May be called twice."""
        for broker in self._brokers.values():
            broker.stop()
        self._brokers.clear()
        if self._ensemble is not None:
            self._ensemble.stop()
            self._ensemble = None
        if self._directory is not None and self._given_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def __enter__(self) -> LocalCluster:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- addresses and directories -----------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every broker, for clients and for Spark's ``pylog.bootstrap.servers``."""
        return ",".join(broker.address for broker in self._opened().values())

    def bootstrap_servers_of(self, listener: str) -> str:
        """``host:port`` of every broker's listener of that name. Raises `InvalidConfigError` if there is none."""
        return ",".join(broker.address_of(listener) for broker in self._opened().values())

    @property
    def zookeeper_connect(self) -> str:
        """The brokers' ``zookeeper.connect``."""
        return self._zookeepers().connect_string + _CHROOT

    @property
    def broker_ids(self) -> Sequence[int]:
        """The ids of all brokers, running or not."""
        return sorted(self._opened())

    def log_dirs(self, broker_id: int) -> list[Path]:
        """A broker's data directories."""
        return self._broker(broker_id).log_dirs

    def http_address(self, broker_id: int) -> str | None:
        """``host:port`` where a broker has ``/metrics``; None without the setting ``http.listener``."""
        return self._broker(broker_id).http_address

    def pid(self, broker_id: int) -> int:
        """A broker's process id; that of its last process if it is not running."""
        return self._broker(broker_id).pid

    # --- brokers --------------------------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """Sends SIGKILL to a broker."""
        self._broker(broker_id).kill()

    def stop(self, broker_id: int) -> None:
        """Sends SIGTERM: the broker shuts down cleanly."""
        self._broker(broker_id).stop()

    def pause(self, broker_id: int) -> None:
        """Sends SIGSTOP: the broker freezes, and its connections stay open."""
        self._broker(broker_id).pause()

    def resume(self, broker_id: int) -> None:
        """Sends SIGCONT: a paused broker continues."""
        self._broker(broker_id).resume()

    def start(self, broker_id: int) -> None:
        """Starts a broker that was stopped or killed, on its former port; returns when it is ready."""
        self._broker(broker_id).start()

    def add_broker(self) -> int:
        """Starts another broker with the next id, and returns the id when the broker is ready.

        It has no partitions at first: new topics use it, existing partitions must be moved to it. Raises as
        `BrokerProcess.start`; the cluster is unchanged then.
        """
        broker_id = max(self._opened()) + 1
        try:
            self._new_broker(broker_id).start()
        except BaseException:
            del self._brokers[broker_id]
            raise
        return broker_id

    def wait_until_ready(self, timeout_s: float = READY_LIMIT_S) -> None:
        """Blocks until the cluster is as healthy as the running brokers allow; paused brokers do not count.

        That is: each of these brokers knows all others, and one of them as the controller; each partition is led by one
        of them, which serves it; each replica on them is in sync. Raises `BrokerUnavailableError`, which says what is
        missing, after ``timeout_s``, or at once if no broker is running.
        """
        active = [broker for broker in self._opened().values() if broker.is_running and not broker.is_paused]
        if not active:
            raise BrokerUnavailableError("no broker of this cluster is running; start(1) starts broker 1")
        channels = {
            broker.broker_id: Channel(broker.socket_address, client_id="ready", access=self._access)
            for broker in active
        }
        deadline = Deadline(timeout_s)
        try:
            while (missing := _look(channels)) is not None:
                if deadline.expired:
                    raise BrokerUnavailableError(f"the cluster is not ready after {timeout_s:g} s: {missing}")
                deadline.sleep(_POLL_S)
        finally:
            for channel in channels.values():
                channel.close()

    # --- ZooKeeper ------------------------------------------------------------------------------------------

    def kill_zookeeper(self, server_id: int) -> None:
        """Sends SIGKILL to a ZooKeeper server."""
        self._zookeeper(server_id).kill()

    def stop_zookeeper(self, server_id: int) -> None:
        """Sends SIGTERM to a ZooKeeper server."""
        self._zookeeper(server_id).stop()

    def start_zookeeper(self, server_id: int) -> None:
        """Starts a ZooKeeper server that was stopped or killed, on its former port.

        Returns when it serves or, while there is no majority, when it answers.
        """
        self._zookeeper(server_id)
        self._zookeepers().start_one(server_id)

    # --- private --------------------------------------------------------------------------------------------

    def _new_broker(self, broker_id: int) -> BrokerProcess:
        assert self._directory is not None
        broker = self._brokers[broker_id] = BrokerProcess(
            self._directory / f"broker-{broker_id}",
            broker_id=broker_id,
            zookeeper_connect=self.zookeeper_connect,
            settings=self._settings,
        )
        return broker

    def _opened(self) -> dict[int, BrokerProcess]:
        if not self._brokers:
            raise BrokerUnavailableError("the cluster is not open: use it in a with statement, or call open()")
        return self._brokers

    def _zookeepers(self) -> ZooKeeperEnsemble:
        if self._ensemble is None:
            raise BrokerUnavailableError("the cluster is not open: use it in a with statement, or call open()")
        return self._ensemble

    def _broker(self, broker_id: int) -> BrokerProcess:
        brokers = self._opened()
        if broker_id not in brokers:
            raise BrokerUnavailableError(f"there is no broker {broker_id}; the brokers are {sorted(brokers)}")
        return brokers[broker_id]

    def _zookeeper(self, server_id: int) -> BundledZooKeeper:
        servers = self._zookeepers().servers
        if server_id not in servers:
            raise BrokerUnavailableError(f"there is no ZooKeeper {server_id}; the servers are {sorted(servers)}")
        return servers[server_id]


def _look(channels: Mapping[int, Channel]) -> str | None:
    """Asks all brokers once: what is missing; None: nothing."""
    request = MetadataRequest(with_offsets=True)
    answers = {}
    for broker_id, channel in channels.items():
        try:
            answers[broker_id] = channel.call("metadata", request, MetadataResponse, timeout_s=_ANSWER_LIMIT_S)
        except RetriableError as error:
            return f"broker {broker_id}: {error}"
    return what_is_missing(answers)


def what_is_missing(answers: Mapping[int, MetadataResponse]) -> str | None:
    """The first thing that keeps a cluster from being as healthy as its running brokers allow; None: nothing does.

    ``answers``: each running broker's answer to a metadata request for all topics, with offsets. Every running broker
    is asked, because each knows only what it read last, and only the leader itself knows whether it leads (it reports
    its high watermark). Pure.
    """
    running = set(answers)
    leading = {
        (topic.name, partition.partition, partition.leader_epoch)
        for broker_id, answer in answers.items()
        for topic in answer.topics
        for partition in topic.partitions
        if partition.leader == broker_id and partition.high_watermark >= 0
    }
    for broker_id, answer in answers.items():
        unknown = running - {broker.broker_id for broker in answer.brokers}
        if unknown:
            return f"broker {broker_id} does not know broker {min(unknown)}"
        if answer.controller_id not in running:
            if answer.controller_id is None:
                return f"broker {broker_id} knows no controller"
            return f"broker {broker_id} knows broker {answer.controller_id} as the controller, which is not running"
        for topic in answer.topics:
            for partition in topic.partitions:
                missing = _of_partition(partition, running)
                if missing is None and (topic.name, partition.partition, partition.leader_epoch) not in leading:
                    missing = f"broker {partition.leader} is not leading it yet"
                if missing is not None:
                    return f"{topic.name}-{partition.partition}, according to broker {broker_id}: {missing}"
    return None


def _of_partition(partition: PartitionInfo, running: set[int]) -> str | None:
    if partition.leader is None:
        return "it has no leader"
    if partition.leader not in running:
        return f"its leader is broker {partition.leader}, which is not running"
    behind = (set(partition.replicas) & running) - set(partition.isr)
    if behind:
        return f"broker {min(behind)} is not in sync; in sync are {list(partition.isr)}"
    return None
