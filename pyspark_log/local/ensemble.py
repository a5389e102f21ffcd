"""The bundled ZooKeeper as one server or as an ensemble, on this machine.

Rules: a server keeps its three ports for as long as this object lives; its directory ``zookeeper-<number>`` is found
again by the next. The number of servers belongs to the data and never changes: servers without data could outvote the
one that has it, and the cluster would begin anew.
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
                f"{directory} has the data of {found} ZooKeeper server{'' if found == 1 else 's'}, not of {servers}. "
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
        """All, running or not, by number."""
        return self._servers

    @property
    def connect_string(self) -> str:
        """``host:port`` of each, with commas: `zookeeper.connect` without a chroot."""
        return ",".join(server.connect_string for server in self._servers.values())

    @property
    def has_majority(self) -> bool:
        """Whether enough of them run to serve."""
        running = sum(server.is_running for server in self._servers.values())
        return 2 * running > len(self._servers)

    def start(self) -> None:
        """Starts all at once and returns when they serve. Raises as `BundledZooKeeper.start`; then none runs."""
        start_together(list(self._servers.values()))
        try:
            for server in self._servers.values():
                server.wait_until_serving(SERVING_LIMIT_S)
        except BaseException:
            self.stop()
            raise

    def start_one(self, number: int) -> None:
        """Starts one that does not run; returns when it serves or, where too few run for that, when it answers.

        Raises as `BundledZooKeeper.start`.
        """
        server = self._servers[number]
        server.start()
        if self.has_majority:
            server.wait_until_serving(SERVING_LIMIT_S)

    def stop(self) -> None:
        """SIGTERM to each, one after the other; SIGKILL to one that does not end in time."""
        for server in self._servers.values():
            server.stop()


def present_servers(directory: Path) -> int:
    """How many servers have their data in the directory."""
    numbers = (path.name.removeprefix("zookeeper-") for path in directory.glob("zookeeper-*") if path.is_dir())
    return sum(number.isdecimal() for number in numbers)
