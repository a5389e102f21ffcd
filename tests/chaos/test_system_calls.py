"""The faults of system calls, each observed in a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.system_calls import FAILED_SYNC, FAILED_WRITE, NO_ROOM, CallFault, CallFaults, can_inject, stalled_sync

_LIMIT_S = 20.0
# Writes and syncs at each request; prints the outcome of both and whether the sync took long.
_VICTIM = """
import os, sys, time
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
for line in sys.stdin:
    said = []
    began = time.monotonic()
    for call in (lambda: os.pwritev(descriptor, [b"x"], 0), lambda: os.fdatasync(descriptor)):
        try:
            call()
            said.append("done")
        except OSError as error:
            said.append(error.strerror)
    said.append("slow" if time.monotonic() - began > 1.5 else "quick")
    print(*said, sep=",", flush=True)
"""


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (FAILED_SYNC, ["done,Input/output error,quick"] * 3),
        (NO_ROOM, ["No space left on device,done,quick"] * 3),
        (FAILED_WRITE, ["done,done,quick", "done,done,quick", "Input/output error,done,quick"]),
        (stalled_sync(2.0), ["done,done,slow"] * 3),
    ],
    ids=["failed sync", "no room", "failed write", "stalled sync"],
)
def test_calls_fail_or_stall_until_the_fault_ends(tmp_path: Path, fault: CallFault, expected: list[str]) -> None:
    """A broker under a fault gets exactly the named failures, and nothing of them is left afterwards."""
    if not can_inject(tmp_path):
        return  # strace is missing here, or may not attach
    victim = subprocess.Popen(
        [sys.executable, "-c", _VICTIM, str(tmp_path / "file")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert victim.stdin is not None
    assert victim.stdout is not None

    def ask() -> str:
        victim.stdin.write("\n")
        return victim.stdout.readline().strip()

    try:
        assert ask() == "done,done,quick"
        injection = CallFaults(victim.pid, fault, tmp_path / "strace.out")
        try:
            assert [ask() for _ in range(3)] == expected
        finally:
            injection.end()
        assert ask() == "done,done,quick"
    finally:
        victim.kill()
        victim.wait(_LIMIT_S)
