"""What a broker does again and again for a data directory: checkpoints, flushes, retention, checks of its free space.

Rule: one thread for each directory, one `step` that runs what is due. A task that fails is logged, and is due again
after its interval. Time is an argument. Nothing here decides anything about another broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event

_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class PeriodicTask:
    """``run`` is called every ``interval_s``, for the first time one interval after the start."""

    name: str
    interval_s: float
    run: Callable[[], object]
    due_s: float = 0.0


class Schedule:
    """The tasks of a data directory. Used by one thread."""

    def __init__(self, tasks: list[PeriodicTask], *, start_s: float, path: Path | None = None) -> None:
        """``path``: of the directory, for the log."""
        self._tasks = tasks
        self._path = path
        for task in tasks:
            task.due_s = start_s + task.interval_s

    def step(self, now_s: float) -> float:
        """Runs what is due at ``now_s`` and returns when the next task is due, on the same clock."""
        for task in self._tasks:
            if task.due_s > now_s:
                continue
            # One interval from now, not from when it was due: missed runs are not made up for.
            task.due_s = now_s + task.interval_s
            try:
                task.run()
            except (PylogError, OSError) as error:
                event(_logger, "run task", level=logging.WARNING, task=task.name, path=self._path, error=error)
        return min((task.due_s for task in self._tasks), default=now_s + 1.0)
