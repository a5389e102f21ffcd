"""A consumer's own thread: commits in the background, fresh metadata, broken sessions.

Rule: it never touches positions and never calls the user back, but for callbacks of the commits that it writes; what it
learns about topics waits until the consumer's caller comes by. If it breaks, the caller is told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from broker_runtime.contract.errors import PylogError, RetriableError
from pyspark_log.client.commits import Commits
from pyspark_log.client.retry import Backoff
from pyspark_log.client.topics import Topic

_STEP_S = 1.0
REFRESH_S = 3.0
"""How often a subscription looks for new partitions, topics and leaders."""
IDLE_REFRESH_S = 15.0
"""The same, where the group's coordinator says what is new and there are no leaders to ask."""
_JOIN_LIMIT_S = 35.0

_logger = logging.getLogger(__name__)


class Keeper:
    """One thread, started when it is made, ended by `stop`. The callables it is given are thread-safe."""

    def __init__(
        self,
        *,
        commits: Commits,
        describe: Callable[[], list[Topic]],
        tell: Callable[[list[Topic] | PylogError], None],
        watch: Callable[[], None],
        refresh_s: Callable[[], float],
        on_failure: Callable[[Exception], None],
        auto_commit_s: float,
    ) -> None:
        """``describe`` asks for the topics, each ``refresh_s``, ``tell`` takes the answer; ``on_failure`` is told what
        broke the thread."""
        self._commits = commits
        self._describe = describe
        self._tell = tell
        self._watch = watch
        self._refresh_s = refresh_s
        self._on_failure = on_failure
        self._auto_commit_s = auto_commit_s if commits.is_automatic else None
        self._wake = threading.Event()
        self._is_stale = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="pylog-consumer", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def hurry(self) -> None:
        """A commit waits. Any thread."""
        self._wake.set()

    def ask_for_metadata(self) -> None:
        """Metadata is old. Any thread."""
        self._is_stale = True
        self._wake.set()

    def stop(self) -> None:
        """Does the commits that wait, then ends. Blocks a bounded time."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join(_JOIN_LIMIT_S)

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:  # noqa: BLE001 - the thread's edge: a defect must not leave the caller in silence
            self._on_failure(error)

    def _keep(self) -> None:
        backoff = Backoff()
        commit_at_s = time.monotonic() + (self._auto_commit_s or 0.0)
        refreshed_s, interval_s = time.monotonic(), self._refresh_s()
        earliest_s = 0.0
        while True:
            self._logging_what_fails(self._commits.write_waiting)
            if self._is_stopped:
                return
            now_s = time.monotonic()
            if self._auto_commit_s is not None and now_s >= commit_at_s:
                self._logging_what_fails(self._commits.commit_finished)
                commit_at_s = now_s + self._auto_commit_s
            # A wait that has become shorter holds at once, a longer one from the next look on.
            is_due = now_s >= refreshed_s + min(interval_s, self._refresh_s())
            if is_due or (self._is_stale and now_s >= earliest_s):
                self._is_stale = False
                if self._refresh():
                    backoff.reset()
                else:
                    self._is_stale = True
                refreshed_s, interval_s = time.monotonic(), self._refresh_s()
                earliest_s = refreshed_s + backoff.next_s()
            self._watch()
            wait_s = _STEP_S
            if self._auto_commit_s is not None:
                wait_s = min(wait_s, commit_at_s - now_s)
            if self._is_stale:
                wait_s = min(wait_s, earliest_s - now_s)
            self._wake.wait(max(0.0, wait_s))
            self._wake.clear()

    def _logging_what_fails(self, commit: Callable[[], None]) -> None:
        try:
            commit()
        except PylogError as error:
            _logger.warning("auto-commit failed error=%s", error)

    def _refresh(self) -> bool:
        try:
            self._tell(self._describe())
        except RetriableError as error:
            _logger.info("metadata refresh failed error=%s", error)
            return False
        except PylogError as error:
            self._tell(error)
        return True
