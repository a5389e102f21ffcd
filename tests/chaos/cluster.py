"""A `LocalCluster` whose whole network goes through proxies, so that it can be cut and slowed down."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

from broker_runtime.ports import choose_port
from pyspark_log.local.broker_process import BrokerProcess
from pyspark_log.local.starting import start_together
from pyspark_log.testing.cluster import LocalCluster
from tests.chaos.disks import SmallDisks
from tests.chaos.proxy import Network

MEMORY_BYTES = 1 << 30
SETTINGS = {
    "memory.max.bytes": str(MEMORY_BYTES),
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
    "log.dir.min.free.bytes": "1MiB",
    "default.replication.factor": "3",
}


# ZooKeeper's ConnectResponse: length, protocol version, timeout, then the session's id, and its password by length.
_SESSION = struct.Struct(">12xq4x16s")


def broker_name(broker_id: int) -> str:
    """The broker's name in the network."""
    return f"broker-{broker_id}"


class ChaosCluster(LocalCluster):
    """Brokers advertise a proxy's address and reach ZooKeeper through others. Not thread-safe."""

    def __init__(
        self,
        *,
        brokers: int,
        zookeepers: int,
        directory: Path,
        disks: SmallDisks | None = None,
    ) -> None:
        """``disks``: each broker keeps its data on a disk of its own; the caller closes them. None: in
        ``directory``.
        """
        super().__init__(brokers=brokers, zookeepers=zookeepers, directory=directory, settings=SETTINGS)
        self.network = Network(self._processes)
        self._disks = disks
        self._proxies: dict[int, int] = {}

    def close(self) -> None:
        """Ends the cluster and the proxies. Call it once."""
        try:
            super().close()
        finally:
            self.network.close()

    @property
    def proxied_servers(self) -> str:
        """The addresses that clients use: those of the proxies."""
        return ",".join(f"127.0.0.1:{port}" for port in self._proxies.values())

    @property
    def directory(self) -> Path:
        """The directory of everything that the cluster writes."""
        assert self._directory is not None
        return self._directory

    def address(self, broker_id: int) -> str:
        """``host:port`` of the broker itself, not of its proxy."""
        return self._broker(broker_id).address

    @property
    def zookeeper_ids(self) -> list[int]:
        """All servers of the ensemble."""
        return sorted(self._zookeepers().servers)

    def pause_zookeeper(self, server_id: int) -> None:
        """Sends SIGSTOP."""
        os.kill(self._zookeeper(server_id).pid, signal.SIGSTOP)

    def resume_zookeeper(self, server_id: int) -> None:
        """Sends SIGCONT."""
        os.kill(self._zookeeper(server_id).pid, signal.SIGCONT)

    def is_running(self, broker_id: int) -> bool:
        """Whether the broker's process exists."""
        return self._broker(broker_id).is_running

    def serving(self) -> list[int]:
        """The brokers whose process runs and is not frozen. May be called by any thread."""
        return [each for each, broker in list(self._brokers.items()) if broker.is_running and not broker.is_paused]

    def zookeeper_session(self, broker_id: int) -> tuple[int, bytes] | None:
        """Id and password of a broker's last ZooKeeper session, as its proxy saw them; None: it had none."""
        answer = self.network.first_answers.get((broker_name(broker_id), "zookeeper"), b"")
        if len(answer) < _SESSION.size:
            return None
        session_id, password = _SESSION.unpack_from(answer)
        return (session_id, password) if session_id else None

    def kill(self, broker_id: int) -> None:
        """Sends SIGKILL; the proxy refuses connections from then on, like the port of a dead process."""
        super().kill(broker_id)
        self.network.refuse(broker_name(broker_id), True)

    def stop(self, broker_id: int) -> None:
        """Sends SIGTERM; the proxy refuses connections as well."""
        super().stop(broker_id)
        self.network.refuse(broker_name(broker_id), True)

    def start(self, broker_id: int) -> None:
        """Starts the broker, and its proxy accepts again."""
        self.network.refuse(broker_name(broker_id), False)
        super().start(broker_id)

    def start_all(self) -> None:
        """Starts all brokers concurrently."""
        for broker_id in self.broker_ids:
            self.network.refuse(broker_name(broker_id), False)
        start_together([self._broker(broker_id) for broker_id in self.broker_ids])

    def _new_broker(self, broker_id: int) -> BrokerProcess:
        assert self._directory is not None
        port = choose_port()
        self._proxies[broker_id] = proxy = self.network.add(broker_name(broker_id), port)
        settings = {**self._settings, "advertised.listeners": f"127.0.0.1:{proxy}"}
        if self._disks is not None:
            disk = self._directory / f"disk-{broker_id}"
            self._disks.make(disk)
            settings["log.dirs"] = str(disk / "log")
        broker = self._brokers[broker_id] = BrokerProcess(
            self._directory / f"broker-{broker_id}",
            broker_id=broker_id,
            zookeeper_connect=self._proxied_zookeeper(broker_id),
            port=port,
            settings=settings,
        )
        return broker

    def _proxied_zookeeper(self, broker_id: int) -> str:
        """Each broker has its own proxies for it."""
        ports = [int(server.connect_string.rpartition(":")[2]) for server in self._zookeepers().servers.values()]
        proxies = [self.network.add("zookeeper", port, source=broker_name(broker_id)) for port in ports]
        return ",".join(f"127.0.0.1:{proxy}" for proxy in proxies) + "/pylog"

    def _processes(self) -> dict[str, int]:
        running = {broker_id: broker for broker_id, broker in list(self._brokers.items()) if broker.is_running}
        return {broker_name(broker_id): broker.pid for broker_id, broker in running.items()}
