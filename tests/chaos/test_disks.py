"""Small disks exist as long as the process that made them. Where mounts are not allowed, that is what is checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.disks import DISK_BYTES, SmallDisks, can_mount, sweep
from tests.waiting import wait_until

_LIMIT_S = 20.0
_OWNER = """
import sys, time
from pathlib import Path
from tests.chaos.disks import SmallDisks
SmallDisks().make(Path(sys.argv[1]))
print("made", flush=True)
time.sleep(600)
"""


def test_disk_is_small_and_gone_after_close(tmp_path: Path) -> None:
    """The machine's own disk is never filled."""
    disks, at = SmallDisks(), tmp_path / "disk"
    if not can_mount():
        with pytest.raises(OSError, match="no tmpfs"):
            disks.make(at)
        return
    disks.make(at)
    try:
        assert os.path.ismount(at)
        assert os.statvfs(at).f_blocks * os.statvfs(at).f_frsize == DISK_BYTES
    finally:
        disks.close()
    assert not os.path.ismount(at)


def test_disk_does_not_outlive_its_process_when_that_is_killed(tmp_path: Path) -> None:
    """Nothing is left of a run, however it ends."""
    if not can_mount():
        return
    at = tmp_path / "disk"
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(at)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"made\n"
        assert os.path.ismount(at)
        owner.kill()
        owner.wait(_LIMIT_S)
    wait_until(lambda: not os.path.ismount(at), "it is unmounted", _LIMIT_S)


def test_sweep_unmounts_disks_of_dead_owners_only(tmp_path: Path) -> None:
    """The disks of a running run are not the next run's to unmount."""
    if not can_mount():
        return
    ended = subprocess.Popen(["true"])
    ended.wait(_LIMIT_S)
    left, mine, disks = tmp_path / "left", tmp_path / "mine", SmallDisks()
    left.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", f"pylog-chaos-{ended.pid}", str(left)], check=True)
    try:
        disks.make(mine)
        assert left in sweep()
        assert (os.path.ismount(left), os.path.ismount(mine)) == (False, True)
    finally:
        disks.close()
        if os.path.ismount(left):
            subprocess.run(["umount", "-l", str(left)], check=True)
