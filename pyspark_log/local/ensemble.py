"""The bundled ZooKeeper as one server or as an ensemble, on this machine.

Rules: a server keeps its three ports as long as this object lives, and its directory ``zookeeper-<number>`` for good.
The number of servers belongs to the data and never changes: servers without data could outvote the one that has it, and
the cluster would start from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import SetupError
from broker_runtime.ports import choose_port
from broker_runtime.zookeeper.bundled import BundledZooKeeper, EnsembleMember
from pyspark_log.local.starting import start_together

SERVING_LIMIT_S: Final = 60.0
_HOST: Final = "127.0.0.1"


class ZooKeeperEnsemble:
    """Servers numbered from 1. Not thread-safe."""

    def __init__(self, directory: Path, servers: int) -> None:
        """Starts nothing. Raises `SetupError` if the directory has the data of another number of servers."""
        found = present_servers(directory)
        if found not in {0, servers}:
            raise SetupError(
                f"{directory} contains the data of {found} ZooKeeper server{'' if found == 1 else 's'}, not {servers}. "
                f"Use {found}, or another directory"
            )
        ports: list[int] = []
        for _ in range(3 * servers):
            ports.append(choose_port(_HOST, besides=ports))
        clients, quorums, elections = ports[:servers], ports[servers : 2 * servers], ports[2 * servers :]
        numbers = range(1, servers + 1)
        members = [
            EnsembleMember(server_id=number, host=_HOST, quorum_port=quorum, election_port=election)
            for number, quorum, election in zip(numbers, quorums, elections, strict=True)
        ]
        self._servers = {
            number: BundledZooKeeper(
                directory / f"zookeeper-{number}",
                port=port,
                server_id=number,
                ensemble=members if servers > 1 else (),
            )
            for number, port in zip(numbers, clients, strict=True)
        }

    @property
    def servers(self) -> Mapping[int, BundledZooKeeper]:
        """All servers by number, running or not."""
        return self._servers

    @property
    def connect_string(self) -> str:
        """``host:port`` of each server, separated by commas: `zookeeper.connect` without a chroot."""
        return ",".join(server.connect_string for server in self._servers.values())

    @property
    def has_majority(self) -> bool:
        """Whether enough servers are running to serve."""
        running = sum(server.is_running for server in self._servers.values())
        return 2 * running > len(self._servers)

    def start(self) -> None:
        """Starts all servers and returns when they serve. Raises as `BundledZooKeeper.start`; none is running then."""
        start_together(list(self._servers.values()))
        try:
            for server in self._servers.values():
                server.wait_until_serving(SERVING_LIMIT_S)
        except BaseException:
            self.stop()
            raise

    def start_one(self, number: int) -> None:
        """Starts one server; returns when it serves or, while there is no majority, when it answers.

        Raises as `BundledZooKeeper.start`.
        """
        server = self._servers[number]
        server.start()
        if self.has_majority:
            server.wait_until_serving(SERVING_LIMIT_S)

    def stop(self) -> None:
        """Sends SIGTERM to each server in turn, and SIGKILL to one that does not end in time."""
        for server in self._servers.values():
            server.stop()


def present_servers(directory: Path) -> int:
    """The number of servers that have data in the directory."""
    numbers = (path.name.removeprefix("zookeeper-") for path in directory.glob("zookeeper-*") if path.is_dir())
    return sum(number.isdecimal() for number in numbers)
