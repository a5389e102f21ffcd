"""The workers of a group as processes that join, leave, are killed and frozen."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.group_verdict import Diaries

log = logging.getLogger(__name__)

SESSION_MS: Final = 6_000
_LEAVE_LIMIT_S: Final = 60.0


@dataclass(slots=True)
class Worker:
    """One process. ``resumed_ns``: when it was resumed after it was frozen."""

    name: str
    process: subprocess.Popen[bytes]
    diary: Path
    resumed_ns: list[int] = field(default_factory=list)
    frozen_until_s: float | None = None

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def ended_in_order(self) -> bool:
        """Whether it left when it was asked to. The signal itself ends a worker that has not begun to work yet, and,
        where it is asked a second time, one that has left."""
        status = self.process.poll()
        diary = self.diary.read_bytes() if self.diary.exists() else b""
        return status == 0 or (status == -signal.SIGTERM and (not diary or diary.endswith(b" end\n")))


class Crowd:
    """About ``size`` workers, with a fault now and then. Not thread-safe; a context manager that ends all processes."""

    def __init__(self, directory: Path, servers: str, *, topic: str, group: str, size: int, rng: random.Random) -> None:
        self._directory = directory
        self._arguments = ["--servers", servers, "--topic", topic, "--group", group, "--session-ms", str(SESSION_MS)]
        self._size = size
        self._rng = rng
        self.workers: list[Worker] = []
        self.counts: dict[str, int] = {}

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self.workers:
            if worker.is_running:
                worker.process.kill()
            worker.process.wait()

    def join(self) -> None:
        """Starts one more."""
        name = f"w{len(self.workers)}"
        diary = self._directory / f"{name}.diary"
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.chaos.group_member", *self._arguments]
        with (self._directory / f"{name}.log").open("wb") as output:
            process = subprocess.Popen([*command, "--name", name, "--diary", str(diary)], stdout=output, stderr=output)
        self.workers.append(Worker(name, process, diary))

    def step(self) -> None:
        """Something happens to one worker, or to none. Quick."""
        self._thaw()
        running = [w for w in self.workers if w.is_running and w.frozen_until_s is None]
        if len(running) < self._size // 2:
            self._note("join")
            self.join()
            return
        what = self._rng.choice(["join", "leave", "kill", "freeze", "nothing"])
        if what == "join" and len(running) >= self._size:
            what = "nothing"
        self._note(what)
        if what == "join":
            self.join()
        elif what != "nothing":
            worker = self._rng.choice(running)
            log.info("worker=%s what=%s", worker.name, what)
            if what == "freeze":
                os.kill(worker.process.pid, signal.SIGSTOP)
                worker.frozen_until_s = time.monotonic() + self._rng.uniform(0.5, 2.5 * SESSION_MS / 1_000)
            else:
                worker.process.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)

    def calm(self, size: int) -> None:
        """No worker is frozen any more, and ``size`` of them work."""
        self._thaw(everybody=True)
        running = [worker for worker in self.workers if worker.is_running]
        for _ in range(size - len(running)):
            self.join()

    def leave(self) -> list[str]:
        """Ends all in order; returns a line for each that did not."""
        running = [worker for worker in self.workers if worker.is_running]
        for worker in running:
            worker.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _LEAVE_LIMIT_S
        wrong = []
        for worker in running:
            try:
                worker.process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong.append(f"{worker.name} has not ended {_LEAVE_LIMIT_S:.0f} s after SIGTERM")
                continue
            if not worker.ended_in_order:
                wrong.append(self._how(worker))
        return wrong

    def broken(self) -> list[str]:
        """Workers that ended by a defect, a line each."""
        return [
            self._how(worker)
            for worker in self.workers
            if not (worker.is_running or worker.process.returncode == -signal.SIGKILL or worker.ended_in_order)
        ]

    def diaries(self) -> Diaries:
        """What all workers wrote."""
        diaries = Diaries()
        for worker in self.workers:
            diaries.read(worker.name, worker.diary, worker.resumed_ns)
        return diaries

    def _how(self, worker: Worker) -> str:
        return f"{worker.name} ended with status {worker.process.returncode}: {self._directory / worker.name}.log"

    def _thaw(self, *, everybody: bool = False) -> None:
        for worker in self.workers:
            if worker.frozen_until_s is not None and (everybody or time.monotonic() >= worker.frozen_until_s):
                worker.frozen_until_s = None
                worker.resumed_ns.append(time.monotonic_ns())
                if worker.is_running:
                    os.kill(worker.process.pid, signal.SIGCONT)

    def _note(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
