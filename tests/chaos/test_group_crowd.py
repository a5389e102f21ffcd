"""What counts as an orderly end of a group's worker."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.group_crowd import Crowd, Worker


def crowd_of(directory: Path, program: str) -> Crowd:
    """One worker that runs the program and has begun: it wrote a line."""
    crowd = Crowd(directory, "127.0.0.1:1", topic="t", group="g", size=1, rng=random.Random(1))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"here\n"
    crowd.workers.append(Worker("w0", process, directory / "w0.diary"))
    return crowd


def test_worker_signalled_before_it_had_begun_ends_in_order(tmp_path: Path) -> None:
    """It has no handler yet, so the signal ends it."""
    with crowd_of(tmp_path, "import time; print('here', flush=True); time.sleep(60)") as crowd:
        assert crowd.leave() == []
        assert crowd.workers[0].process.returncode == -signal.SIGTERM
        assert crowd.broken() == []


@pytest.mark.parametrize("status", [1, 143])
def test_worker_that_ends_by_a_defect_is_reported(tmp_path: Path, status: int) -> None:
    """Any exit status except 0 and the signal itself is a defect."""
    program = f"import signal, sys; signal.signal(15, lambda *_: sys.exit({status})); print('here', flush=True); "
    program += "signal.pause()"
    with crowd_of(tmp_path, program) as crowd:
        assert [line for line in crowd.leave() if f"ended with status {status}" in line]
        assert crowd.broken()


def test_worker_that_had_begun_and_is_ended_by_the_signal_is_reported(tmp_path: Path) -> None:
    """It has a handler by then, and leaves its group."""
    with crowd_of(tmp_path, "import time; print('here', flush=True); time.sleep(60)") as crowd:
        (tmp_path / "w0.diary").write_text("1 assign 0\n")
        assert [line for line in crowd.leave() if "ended with status -15" in line]
        assert crowd.broken()
