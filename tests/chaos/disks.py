"""Small disks: a tmpfs for each broker's data, so that one can be filled without harm to the machine.

Rule: none outlives its process. `SmallDisks.close` unmounts; if the process was killed, a shell that waits for the end
of a pipe does it; what even that could not do, the next run sweeps. Linux, and only for root: where `mount` is refused
there are no small disks, and nothing is ever filled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

DISK_BYTES: Final = 192 << 20
_SOURCE: Final = "pylog-chaos-"  # and the process number of its owner, in the table of mounts
_LIMIT_S: Final = 10.0


class SmallDisks:
    """Mounts in directories of their own. Not thread-safe. Close it at the end."""

    def __init__(self) -> None:
        self._watched: dict[Path, subprocess.Popen[bytes]] = {}

    def make(self, directory: Path) -> None:
        """Mounts a disk of `DISK_BYTES` at the directory, which is created. Raises `OSError` where that is not
        allowed.
        """
        directory.mkdir(parents=True, exist_ok=True)
        source = f"{_SOURCE}{os.getpid()}"
        options = f"size={DISK_BYTES},mode=700"
        found = _run("mount", "-t", "tmpfs", "-o", options, source, str(directory))
        if found is None or found.returncode:
            raise OSError(f"no tmpfs at {directory}: {'no mount here' if found is None else found.stderr.strip()}")
        # It reads until the end of the pipe, which the death of this process causes as well.
        self._watched[directory] = subprocess.Popen(
            ["/bin/sh", "-c", 'cat >/dev/null; umount -l "$1" 2>/dev/null', "small-disk", str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        """Unmounts all; their content is gone. Idempotent."""
        for directory, watcher in self._watched.items():
            _run("umount", "-l", str(directory))
            assert watcher.stdin is not None
            watcher.stdin.close()
            try:
                watcher.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                watcher.kill()
                watcher.wait(_LIMIT_S)
        self._watched.clear()


def can_mount() -> bool:
    """Whether small disks are possible here, found out by trying."""
    directory = Path(tempfile.mkdtemp(prefix="pylog-chaos-disk-"))
    disks = SmallDisks()
    try:
        disks.make(directory)
    except OSError:
        return False
    finally:
        disks.close()
        shutil.rmtree(directory, ignore_errors=True)
    return True


def sweep() -> list[Path]:
    """Unmounts what dead owners have left; returns the directories."""
    swept = []
    with contextlib.suppress(OSError):  # no such table: no Linux, no small disks
        for line in Path("/proc/self/mounts").read_text().splitlines():
            source, where, *_ = line.split(" ")
            owner = source.removeprefix(_SOURCE)
            if owner != source and not Path(f"/proc/{owner}").exists():
                _run("umount", "-l", where)
                swept.append(Path(where))
    return swept


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Returns None if there is no such command."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except FileNotFoundError:
        return None
