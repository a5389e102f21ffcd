"""What membership does on a data directory (logs are made, deleted, set aside), on a thread of that directory's own.

Rules: one piece of work at a time for each directory, in the order in which it was asked for. A caller waits for a
bounded time: work that takes longer continues without it, and until it is done all other work is refused. A caller
learns the outcome by asking again, so all work here must be idempotent.
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
        """Whether no work is under way, so that new work would begin at once."""

    def do(self, work: Callable[[], _T]) -> _T:
        """What ``work`` returns or raises. Raises `LogStorageError` if it takes too long (it continues), or if other
        work is under way (it is not begun)."""


class WorkInLine:
    """`DiskWork` on the caller's own thread: where no disk can stand still, and nothing may depend on threads."""

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
        self.is_left = False  # its caller no longer waits
        self.result: Any = None
        self.error: BaseException | None = None


class DiskWorker:
    """`DiskWork` on the thread that calls `step` in a loop."""

    def __init__(self, path: Path, *, on_late: Callable[[], None], limit_s: float = WORK_LIMIT_S) -> None:
        """``on_late`` is called on that thread when work is done whose caller no longer waited."""
        self._path = path
        self._on_late = on_late
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._task: _Task | None = None  # under way, or about to begin
        self._is_woken = False

    @property
    def is_free(self) -> bool:
        """See `DiskWork`."""
        return self._task is None

    def do(self, work: Callable[[], _T]) -> _T:
        """See `DiskWork`."""
        task = _Task(work)
        with self._changed:
            if self._task is not None:
                raise self._refusal()
            self._task = task
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: task.is_done, self._limit_s):
                task.is_left = True
                event(_logger, "abandon disk work", level=logging.WARNING, directory=self._path, waited_s=self._limit_s)
                raise self._refusal()
        if task.error is not None:
            raise task.error
        result: _T = task.result
        return result

    def step(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` for work, or until `wake`, and does it."""
        with self._changed:
            self._changed.wait_for(lambda: self._task is not None or self._is_woken, timeout_s)
            self._is_woken = False
            task = self._task
        if task is None:
            return
        try:
            task.result = task.work()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller that waits, or below
            task.error = error
        with self._changed:
            task.is_done = True
            self._task = None
            self._changed.notify_all()
        if not task.is_left:
            return
        if task.error is not None:
            if not isinstance(task.error, (PylogError, OSError)):
                raise task.error
            event(_logger, "finish abandoned disk work", level=logging.WARNING, directory=self._path, error=task.error)
        self._on_late()

    def wake(self) -> None:
        """Ends a `step` that waits for work."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _refusal(self) -> LogStorageError:
        return LogStorageError(
            f"{self._path} is busy: what was begun there takes more than {self._limit_s:g} s. This is tried again when "
            "that is done"
        )
