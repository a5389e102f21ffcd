"""Faults from outside: processes that send a broker what it must refuse, and how much that may cost it."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Final

from broker_runtime.zookeeper.guarded_process import GuardedProcess
from tests.chaos.cluster import MEMORY_BYTES
from tests.chaos.faults import Faults, Undo
from tests.waiting import comes_true

log = logging.getLogger(__name__)

# Calls beside streams, and gRPC's own; a burst of refused calls holds threads for a moment, and none afterwards.
MOST_THREADS: Final = 1_000
_SETTLED_S: Final = 5.0
_LIMIT_S: Final = 10.0
_FIRST_LIMIT_S: Final = 60.0  # for a process that starts beside many others
_POLL_S: Final = 0.1


def hostile_client(faults: Faults, broker_id: int, kind: str) -> Undo:
    """A process of `hostile_clients` attacks the broker, which must survive it within its bounds."""
    cluster = faults.cluster
    pid = cluster.pid(broker_id)
    output = cluster.directory / f"hostile-{broker_id}.out"
    command = [sys.executable, "-m", "tests.chaos.hostile_clients", kind, cluster.address(broker_id)]
    output.unlink(missing_ok=True)
    process = GuardedProcess(command, output=output)
    comes_true(lambda: output.read_text().strip() or process.poll() is not None, _FIRST_LIMIT_S)

    def mend() -> None:
        ended_early = process.poll()
        if ended_early is None:
            if not output.read_text().strip():
                faults.wrong.append(f"hostile client: {kind} has not begun, see {output}")
            process.stop(_LIMIT_S)
            time.sleep(_SETTLED_S)  # what it left behind may still cost memory, so all that time counts
        else:
            faults.wrong.append(f"hostile client: {kind} ended by itself with {ended_early}, see {output}")
        if not cluster.is_running(broker_id) or cluster.pid(broker_id) != pid:
            faults.wrong.append(f"hostile client: broker {broker_id} did not survive {kind}")
            return
        memory_bytes, threads = peak_bytes(pid), thread_count(pid)
        log.info("survived kind=%s broker=%d peak_mb=%d threads=%d", kind, broker_id, memory_bytes >> 20, threads)
        faults.wrong += over_bounds(kind, broker_id, memory_bytes=memory_bytes, threads=threads)

    return mend


def over_bounds(kind: str, broker_id: int, *, memory_bytes: int, threads: int) -> list[str]:
    """What a hostile client cost the broker beyond its settings."""
    return [
        f"hostile client: {kind} cost broker {broker_id} {found:,} {what}, more than {most:,}"
        for what, found, most in (
            ("bytes of memory", memory_bytes, MEMORY_BYTES),
            ("threads", threads, MOST_THREADS),
        )
        if found > most
    ]


def peak_bytes(pid: int) -> int:
    """The peak memory of the process."""
    return 1024 * _status(pid, "VmHWM:")


def thread_count(pid: int) -> int:
    """The number of threads of the process."""
    return _status(pid, "Threads:")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
