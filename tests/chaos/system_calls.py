"""System calls of a real broker that fail or stall: strace stands between its process and the kernel.

So the disk behaves as disks do: a failed fsync has failed for good, the next one succeeds without writing anything, and
a stalled call holds up its own thread and no other.

Rule: no fault outlives its process, nor `CallFaults.end`; a broker continues by itself when strace has left. Linux, and
only where strace is installed and may attach; elsewhere `can_inject` says so.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker_runtime.zookeeper.guarded_process import GuardedProcess
from tests.waiting import comes_true

_LIMIT_S: Final = 10.0
_SYNCS: Final = "fdatasync,fsync"
_WRITES: Final = "pwritev,pwritev2,pwrite64"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFault:
    """Which calls are affected and how, in strace's notation."""

    calls: str
    what: str

    @property
    def expression(self) -> str:
        """The argument of strace's option ``-e``."""
        return f"inject={self.calls}:{self.what}"


FAILED_SYNC: Final = CallFault(calls=_SYNCS, what="error=EIO")
FAILED_WRITE: Final = CallFault(calls=_WRITES, what="error=EIO:when=3+5")
NO_ROOM: Final = CallFault(calls=_WRITES, what="error=ENOSPC")


def stalled_sync(stall_s: float) -> CallFault:
    """Each fsync takes that long."""
    return CallFault(calls=_SYNCS, what=f"delay_enter={int(stall_s * 1e6)}")


def stalled_write(stall_s: float) -> CallFault:
    """Each write takes that long."""
    return CallFault(calls=_WRITES, what=f"delay_enter={int(stall_s * 1e6)}")


class CallFaults:
    """One fault of one process, from here to `end`. Raises `OSError` where strace cannot attach."""

    def __init__(self, pid: int, fault: CallFault, output: Path) -> None:
        """``output``: where strace's own messages go."""
        self._pid = pid
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={fault.calls}", "-e", fault.expression]
        self._strace = GuardedProcess([*command, "-p", str(pid)], output=output)
        comes_true(lambda: _tracer_of(pid) or self._strace.poll() is not None, _LIMIT_S)
        if not _tracer_of(pid):
            self.end()
            raise OSError(f"strace cannot attach to process {pid}: {output.read_text()[-500:].strip()}")

    def end(self) -> None:
        """The process's calls are its own again when this returns. Idempotent."""
        if self._strace.poll() is None:
            self._strace.stop(_LIMIT_S)


def can_inject(directory: Path) -> bool:
    """Whether system calls can be made to fail here, found out by trying. ``directory``: for strace's messages."""
    if shutil.which("strace") is None or not sys.platform.startswith("linux"):
        return False
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        CallFaults(victim.pid, FAILED_SYNC, directory / "strace.out").end()
    except OSError:
        return False
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait(_LIMIT_S)
    return True


def _tracer_of(pid: int) -> int:
    """Who traces the process's threads; 0: one is not traced yet, or the process is gone."""
    tracers = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # that thread has just ended
        tracers.append(next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:")))
    return min(tracers, default=0)
