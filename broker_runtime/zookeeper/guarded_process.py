"""A child process that dies with its parent, however the parent dies.

    parent ──writes nothing──▶ pipe ──▶ watcher (a shell, child of the child): line: exit; end of file: kill -9

Linux's PR_SET_PDEATHSIG would need Python code between fork and exec (which runs every at-fork handler of the parent)
and ends the child with the *thread* that started it; a pipe has neither fault and works on macOS. The parent writes
the line once it has seen the child's end, so a reused process number is never hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# The shell becomes the child itself (exec), so the child's pid is the one the parent knows.
_SCRIPT: Final = 'exec 3<&0 </dev/null; ( if read -r _ <&3; then exit; fi; kill -9 $$ ) & exec "$@" 3<&-'

_guards: weakref.WeakSet[GuardedProcess] = weakref.WeakSet()


class GuardedProcess:
    """A started child with the watcher beside it. Thread-safe. Output goes to ``output``, appended; no standard input.

    It has a session of its own: a terminal's Ctrl-C reaches the parent alone, which then stops it in order.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        output: Path,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        """``directory``: where it runs; None: where this process does."""
        self._lock = threading.Lock()
        reader, self._guard = os.pipe()
        try:
            with output.open("ab") as file:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT, "guarded", *command],
                    stdin=reader,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=directory,
                    pass_fds=inherited,
                    env=None if environment is None else dict(environment),
                )
        except BaseException:
            os.close(self._guard)
            raise
        finally:
            os.close(reader)
        _guards.add(self)

    @property
    def pid(self) -> int:
        """The child's process number."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code (negative: the signal) once it has ended, otherwise None."""
        return self._ended(0)

    def wait(self, timeout_s: float) -> int | None:
        """As `poll`, but waits for the end up to ``timeout_s``."""
        return self._ended(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        self._process.send_signal(number)

    def has_stopped(self) -> bool:
        """Whether SIGSTOP has reached it (all its threads stand still), or it has ended. True where the system cannot
        tell (macOS)."""
        if not hasattr(os, "waitid") or self.poll() is not None:
            return True
        # WNOWAIT leaves the exit status to be collected by `wait`.
        return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, then SIGKILL if that has not ended it within ``timeout_s``. Blocks until the end; returns its
        code."""
        self.signal(signal.SIGTERM)
        code = self.wait(timeout_s)
        if code is None:
            self.signal(signal.SIGKILL)
            # A killed process only waits for the kernel; without its end there is no code to return.
            code = self.wait(60.0)
            if code is None:
                raise TimeoutError(f"process {self.pid} did not end within 60 s of SIGKILL")
        return code

    def _ended(self, timeout_s: float) -> int | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        with self._lock:
            guard, self._guard = self._guard, -1
        if guard >= 0:
            # A broken pipe: the watcher is gone as well, so nothing is left that could kill.
            with contextlib.suppress(BrokenPipeError):
                os.write(guard, b"\n")
            os.close(guard)
        return code

    def _forget_in_fork(self) -> None:
        """A forked copy of the parent must not keep the pipe open after the parent's death."""
        if self._guard >= 0:
            os.close(self._guard)
            self._guard = -1


def _forget_all_in_fork() -> None:
    for guarded in list(_guards):
        guarded._forget_in_fork()


os.register_at_fork(after_in_child=_forget_all_in_fork)
