"""A really full disk: a small tmpfs where this user may mount one, else a limit on file sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("full_disk_appender.py")


def run(*arguments: str) -> dict[str, object]:
    child = subprocess.run(
        [sys.executable, str(CHILD), *arguments],
        stdout=subprocess.PIPE,
        timeout=100,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    return json.loads(child.stdout)


@pytest.fixture
def small_disk(tmp_path):
    """(Directory of a file system of 2 MiB, "enospc"); where none can be mounted (any directory, "fsize")."""
    target = tmp_path / "disk"
    target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(target)]
    try:
        mounted = subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    yield target, "enospc" if mounted else "fsize"
    if mounted:
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_full_disk_takes_the_log_offline_and_a_restart_with_space_finds_everything(small_disk):
    """Appends fail with a storage error, other partitions continue, and no acknowledged record is missing once there
    is space.
    """
    path, how = small_disk
    report = run(str(path), how)
    assert report["error_code"] == "KAFKA_STORAGE_ERROR"
    assert report["acknowledged"] > 20
    assert report["offline_calls_refused"] == 3
    assert report["other_partition_served"] is True
    assert report["found_after_restart"] >= report["acknowledged"]
    assert report["missing_after_restart"] == 0
    assert report["appended_after_restart"] is True
