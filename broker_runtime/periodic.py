"""What a broker does again and again for a data directory: checkpoints, flushes, retention, looks at its room.

Rule: one thread for each directory, one `step` that does what is due; a task that fails is logged, and due again after
its interval. Time is an argument. Nothing here decides anything about another broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from broker_runtime.contract.errors import PylogError

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class PeriodicTask:
    """``run`` is called each ``interval_s``, the first time one interval after the start."""

    name: str
    interval_s: float
    run: Callable[[], object]
    due_s: float = 0.0


class Schedule:
    """The tasks of a data directory. Used by one thread."""

    def __init__(self, tasks: list[PeriodicTask], *, start_s: float, about: str = "") -> None:
        """``about``: the directory, for the log."""
        self._tasks = tasks
        self._about = about
        for task in tasks:
            task.due_s = start_s + task.interval_s

    def step(self, now_s: float) -> float:
        """Runs what is due at ``now_s`` and returns when the next task is, on the same clock."""
        for task in self._tasks:
            if task.due_s > now_s:
                continue
            # An interval from now on, not from when it was due: what was missed is not made up for.
            task.due_s = now_s + task.interval_s
            try:
                task.run()
            except (PylogError, OSError) as error:
                log.warning("task failed name=%s path=%s error=%s", task.name, self._about, error)
        return min((task.due_s for task in self._tasks), default=now_s + 1.0)
