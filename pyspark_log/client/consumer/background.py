"""A consumer's background thread: it commits, refreshes metadata, and watches the fetch sessions.

Rule: it never touches positions and never calls the user back, except for the callbacks of futures whose commits it
writes. What it learns about topics waits until the consumer's caller polls. A defect that ends it reaches the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import PylogError, RetriableError
from broker_runtime.contract.events import event
from broker_runtime.contract.waiting import Backoff, Deadline, Worker
from pyspark_log.client.consumer.assignment import Assignment
from pyspark_log.client.consumer.committer import Committer
from pyspark_log.client.consumer.fetcher import Fetcher

_STEP_S: Final = 1.0
_JOIN_LIMIT_S: Final = 35.0

_logger = logging.getLogger(__name__)


class Background:
    """The thread is started when this is made, and ended by `stop`."""

    def __init__(
        self,
        *,
        committer: Committer,
        assignment: Assignment,
        fetcher: Fetcher,
        on_defect: Callable[[BaseException], object],
        auto_commit_s: float,
    ) -> None:
        """``on_defect`` is called with what ended the thread."""
        self._committer = committer
        self._assignment = assignment
        self._fetcher = fetcher
        self._auto_commit_s = auto_commit_s if committer.is_automatic else None
        self._backoff = Backoff()
        self._next_commit = Deadline(self._auto_commit_s)  # without auto-commit: never
        self._next_refresh = Deadline(assignment.metadata_interval_s)
        self._pause = Deadline(0.0)  # until it is over, metadata is not fetched again
        self._is_stale = False
        # What waits is written also at the end: `close` promises it.
        self._worker = Worker("pylog-consumer", self._step, on_defect=on_defect, at_end=self._write_queued)
        self._worker.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._worker.is_running

    def wake(self) -> None:
        """A commit waits. Any thread."""
        self._worker.wake()

    def request_metadata(self) -> None:
        """What is known of leaders is out of date. Any thread."""
        self._is_stale = True
        self._worker.wake()

    def stop(self) -> None:
        """Writes the commits that wait, then ends. Blocks a bounded time."""
        self._worker.stop()
        self._worker.join(_JOIN_LIMIT_S)

    # --- private: on the thread -------------------------------------------------------------------------------

    def _step(self) -> float:
        self._write_queued()
        if self._next_commit.expired:
            self._next_commit = Deadline(self._auto_commit_s)
            self._logging_what_fails(self._committer.commit_finished)
        if self._is_refresh_due or (self._is_stale and self._pause.expired):
            self._is_stale = False
            if self._refresh():
                self._backoff.reset()
            else:
                self._is_stale = True
            self._next_refresh = Deadline(self._assignment.metadata_interval_s)
            self._pause = Deadline(self._backoff.next_s())
        self._fetcher.watch()
        pause_s = self._next_commit.remaining_s(_STEP_S)
        return self._pause.remaining_s(pause_s) if self._is_stale else pause_s

    @property
    def _is_refresh_due(self) -> bool:
        """An interval that has become shorter counts at once, a longer one from the next refresh on."""
        interval_s = self._next_refresh.timeout_s
        assert interval_s is not None
        elapsed_s = interval_s - self._next_refresh.remaining_s()
        return elapsed_s >= min(interval_s, self._assignment.metadata_interval_s)

    def _write_queued(self) -> None:
        self._logging_what_fails(self._committer.write_queued)

    def _logging_what_fails(self, commit: Callable[[], None]) -> None:
        try:
            commit()
        except PylogError as error:
            event(_logger, "commit offsets", level=logging.WARNING, error=error)

    def _refresh(self) -> bool:
        try:
            self._assignment.take_metadata(self._assignment.fetch_metadata())
        except RetriableError as error:
            event(_logger, "fetch metadata", error=error)
            return False
        except PylogError as error:
            self._assignment.take_metadata(error)
        return True
