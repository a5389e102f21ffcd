"""What membership does on a data directory (logs are made, deleted, set aside), on a thread of that directory's own.

Rules: one piece of work at a time for each directory, in the order in which it was asked for. Who asks waits in bounds:
what takes longer goes on alone, and until it is done everything else is refused. What became of it is learned by asking
again, so all work here may be done twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from broker_runtime.contract.errors import LogStorageError, PylogError
from broker_runtime.contract.events import event

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)

WORK_LIMIT_S: Final = 2.0
"""How long membership waits for one piece of work: a healthy disk that is busy needs less."""


class DiskWork(Protocol):
    """Does the work of one directory. Used by one thread at a time."""

    @property
    def is_free(self) -> bool:
        """Whether nothing is under way, so that work would begin at once."""

    def do(self, work: Callable[[], _T]) -> _T:
        """What ``work`` returns or raises. Raises `LogStorageError` where it takes too long (it goes on), or other work
        is under way (it is not begun)."""


class WorkInLine:
    """`DiskWork` by the caller itself: where no disk can stand still, and nothing may depend on threads."""

    @property
    def is_free(self) -> bool:
        """See `DiskWork`."""
        return True

    def do(self, work: Callable[[], _T]) -> _T:
        """See `DiskWork`."""
        return work()


class _Task:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.is_done = False
        self.is_left = False  # nobody waits for it any more
        self.result: Any = None
        self.error: BaseException | None = None


class DiskWorker:
    """`DiskWork` by the thread that calls `step` again and again."""

    def __init__(self, path: Path, *, on_late: Callable[[], None], limit_s: float = WORK_LIMIT_S) -> None:
        """``on_late`` is called, on that thread, when work is done that nobody waited for any more."""
        self._path = path
        self._on_late = on_late
        self._limit_s = limit_s
        self._moved = threading.Condition()
        self._task: _Task | None = None  # under way, or to be begun
        self._is_woken = False

    @property
    def is_free(self) -> bool:
        """See `DiskWork`."""
        return self._task is None

    def do(self, work: Callable[[], _T]) -> _T:
        """See `DiskWork`."""
        task = _Task(work)
        with self._moved:
            if self._task is not None:
                raise self._refusal()
            self._task = task
            self._moved.notify_all()
            if not self._moved.wait_for(lambda: task.is_done, self._limit_s):
                task.is_left = True
                event(_logger, "abandon disk work", level=logging.WARNING, directory=self._path, waited_s=self._limit_s)
                raise self._refusal()
        if task.error is not None:
            raise task.error
        result: _T = task.result
        return result

    def step(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` for work, or until `wake`, and does it."""
        with self._moved:
            self._moved.wait_for(lambda: self._task is not None or self._is_woken, timeout_s)
            self._is_woken = False
            task = self._task
        if task is None:
            return
        try:
            task.result = task.work()
        except BaseException as error:  # noqa: BLE001 - raised again, by whoever waits for it or below
            task.error = error
        with self._moved:
            task.is_done = True
            self._task = None
            self._moved.notify_all()
        if not task.is_left:
            return
        if task.error is not None:
            if not isinstance(task.error, (PylogError, OSError)):
                raise task.error
            event(_logger, "finish abandoned disk work", level=logging.WARNING, directory=self._path, error=task.error)
        self._on_late()

    def wake(self) -> None:
        """Ends a `step` that waits for work."""
        with self._moved:
            self._is_woken = True
            self._moved.notify_all()

    def _refusal(self) -> LogStorageError:
        return LogStorageError(
            f"{self._path} is busy: what was begun there takes more than {self._limit_s:g} s. This is tried again when "
            "that is done"
        )
