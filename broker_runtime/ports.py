"""Ports of this machine: free ones that a server can use again when it restarts, and who listens on one that is taken.

Rules: ports are chosen below the range from which the kernel takes ports for outgoing connections. In that range a
restarting server could find its port in use, by another program or by a client of its own: a client that keeps trying
to connect to a port of that range on its own host ends up connected to itself. And a server checks the port before it
listens: gRPC listens with SO_REUSEPORT, so a second broker on the same port would start without an error and take half
of the first one's connections.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import subprocess
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import PortInUseError, SetupError
from broker_runtime.contract.settings import Address

RANGE: Final = range(20_000, 32_000)
"""The ports to choose from."""
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
RANGE_VARIABLE: Final = "PYLOG_TEST_PORTS"
"""The environment variable ``first-last``: other ports to choose from, both included. Not for users: tests that run
side by side keep apart by it, so that none takes the port of another's server that is down for a moment."""
_ATTEMPTS: Final = 200
_LINUX_TABLE: Final = Path("/proc/net/tcp")
_LISTEN: Final = "0A"


_chosen: Final[deque[int]] = deque(maxlen=500)
"""The last ports that this process chose: whoever they are for may not listen there yet."""


def choose_port(host: str = "127.0.0.1", *, besides: Collection[int] = ()) -> int:
    """A port that is free at this moment, and neither in ``besides`` nor chosen a moment ago. Raises `PortInUseError`
    if there is none."""
    ports = _range()
    tried = random.sample(ports, min(_ATTEMPTS, len(ports)))
    for port in sorted(tried, key=set(_chosen).__contains__):  # those chosen before only if no other is free
        if port not in besides and is_free(host, port):
            _chosen.append(port)
            return port
    raise PortInUseError(f"{host}: {_ATTEMPTS} ports tried between {ports.start} and {ports.stop}, all taken")


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # Past connections (TIME_WAIT) do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def require_free_port(host: str, port: int) -> None:
    """Raises `PortInUseError` if somebody listens on ``host:port``, `SetupError` if it cannot be bound. 0 is free."""
    if port == 0:
        return
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SetupError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    family, kind, protocol, _, address = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise SetupError(f"cannot listen on {host}:{port}: {error.strerror}") from None
            raise port_in_use(host, port, advice="Set listeners={host}:{port}, or stop it") from None


def port_in_use(host: str, port: int, *, advice: str = "Use: pylog up --port {port}") -> PortInUseError:
    """The error that says who holds the port and which one to use instead: ``{port}`` in ``advice``."""
    owner = listener_pid(port)
    holder = "another process" if owner is None else f"pid {owner}"
    candidates = (candidate for candidate in range(9300, 9400) if candidate != port)
    other = next((candidate for candidate in candidates if is_free(host, candidate)), 0) or choose_port(host)
    return PortInUseError(f"{host}:{port} is taken by {holder}. {advice.format(host=host, port=other)}")


def listener_pid(port: int) -> int | None:
    """The process that listens on a TCP port of this machine; None if there is none, or if it cannot be seen."""
    if _LINUX_TABLE.exists():
        return _listener_by_proc(port)
    try:
        found = subprocess.run(
            ["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"], capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    pids = found.stdout.split()
    return int(pids[0]) if pids else None


def _range() -> range:
    first, separator, last = os.environ.get(RANGE_VARIABLE, "").partition("-")
    return range(int(first), int(last) + 1) if separator else RANGE


def _listener_by_proc(port: int) -> int | None:
    inodes = set()
    for table in (_LINUX_TABLE, _LINUX_TABLE.with_name("tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir() if inodes else ():
        if process.name.isdecimal() and _holds(process / "fd", inodes):
            return int(process.name)
    return None


def _holds(descriptors: Path, inodes: set[str]) -> bool:
    # Processes end meanwhile, and those of other users cannot be read.
    with contextlib.suppress(OSError):
        for descriptor in descriptors.iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in inodes:
                    return True
    return False


def is_same_address(one: Address | None, other: Address) -> bool:
    """Whether only one of the two can be listened at. None is no address; port 0 is any free one."""
    if one is None or one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or not _EVERYWHERE.isdisjoint((one.host, other.host))
