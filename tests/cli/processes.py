"""The process table, for tests that prove that no process is left. Reads /proc where there is one, else asks `ps`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.waiting import wait_until

_PROC = Path("/proc")


class ProcessEntry(NamedTuple):
    """A line of the process table. ``state`` begins with ps's letter: Z a zombie, T stopped."""

    pid: int
    parent: int
    state: str


def process_table() -> dict[int, ProcessEntry]:
    """All processes of this machine, by pid."""
    if (_PROC / "self" / "stat").exists():
        found = [entry for name in _PROC.iterdir() if name.name.isdecimal() and (entry := _from_proc(name)) is not None]
    else:
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True, timeout=60
        )
        fields = [line.split() for line in listed.stdout.splitlines()]
        found = [ProcessEntry(int(pid), int(parent), state) for pid, parent, state in fields]
    return {entry.pid: entry for entry in found}


def children_of(pid: int) -> set[int]:
    """All descendants of ``pid``."""
    table = process_table().values()
    found = {pid}
    while more := {entry.pid for entry in table if entry.parent in found} - found:
        found |= more
    return found - {pid}


def is_alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    entry = process_table().get(pid)
    return entry is not None and not entry.state.startswith("Z")


def wait_until_gone(pids: set[int], limit_s: float = 20.0) -> None:
    """Fails unless all processes have ended in time."""
    wait_until(lambda: {pid for pid in pids if is_alive(pid)} == set(), "all are gone", limit_s)


def _from_proc(directory: Path) -> ProcessEntry | None:
    try:
        text = (directory / "stat").read_text()
    except OSError:
        return None  # it ended while we looked
    # pid (name) state ppid …; the name may contain anything, so count from its last bracket
    state, parent = text.rpartition(")")[2].split()[:2]
    return ProcessEntry(int(directory.name), int(parent), state)
