"""Many threads on one log, on the real file system: readers during file removal, and group commit."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from broker_runtime.log.files import RealFiles
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import append, frame, open_directory, open_log
from tests.waiting import wait_until


def test_readers_keep_their_slices_through_retention_deletion_and_truncation(tmp_path):
    """No SIGBUS ever occurs. The test has a process of its own, so that a crash of the interpreter is seen."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("shrinking_reader.py")), str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert child.returncode == 0, f"ended with {child.returncode} (negative: a signal)"
    report = json.loads(child.stdout)
    assert report["errors"] == []
    assert report["reads"] > 500
    assert report["held_reads"] > 50, "slices must be loaded after their segment went"
    assert min(report["truncations"], report["deletions"], report["retentions"], report["recreations"]) > 3


class SlowSync(RealFiles):
    """Real files whose fsync waits until ``gate`` opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        assert self.gate.wait(30)
        super().sync(descriptor)


def test_one_fsync_serves_all_waiters_and_appends_continue_meanwhile(tmp_path):
    """``flush.mode=ack`` commits in groups, and the append lock is not held during an fsync."""
    files = SlowSync()
    files.gate.set()
    with open_directory(files, tmp_path) as directory:
        log = open_log(directory, topic_settings())
        append(log, frame())
        files.gate.clear()
        files.syncs = 0
        log.append_as_leader([frame()], leader_epoch=0, now_ms=0)
        first = threading.Thread(target=log.flush)
        first.start()
        wait_until(lambda: files.syncs, "the first syncs", pause_s=0.001)
        ends = [log.append_as_leader([frame()], leader_epoch=0, now_ms=0).next_offset for _ in range(20)]
        durable: list[int] = []
        waiting = [threading.Thread(target=lambda end=end: durable.append(log.flush(end))) for end in ends]
        for thread in waiting:
            thread.start()
        assert log.durable_end_offset == 1
        files.gate.set()
        for thread in [first, *waiting]:
            thread.join(30)
        assert len(durable) == 20
        assert min(durable) >= 22 - 20
        assert log.durable_end_offset == 22
        assert files.syncs == 2, "one for the first, one for the twenty who came while it ran"
