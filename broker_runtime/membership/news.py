"""What a broker's loop is to look at: flags that any thread raises and the loop takes, all at once.

Rule: raising never blocks and never calls anything, so watches and listeners may do it in ZooKeeper's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class News:
    """What there is to be looked at."""

    is_lost: bool = False  # the session ended
    is_stale: bool = False  # anything may have changed
    has_changes: bool = False  # something did, and the cluster tells what; or a broker is dead, or alive after all

    @property
    def is_any(self) -> bool:
        """Whether there is something."""
        return self.is_lost or self.is_stale or self.has_changes


class NewsBoard:
    """Raised by any thread, taken by one. Thread-safe."""

    def __init__(self) -> None:
        self._rung = threading.Condition()
        self._news = News()

    def tell(self, *, is_lost: bool = False, is_stale: bool = False, has_changes: bool = False) -> None:
        """Adds to what is to be looked at, and ends a `take` that waits."""
        with self._rung:
            self._news.is_lost |= is_lost
            self._news.is_stale |= is_stale
            self._news.has_changes |= has_changes
            self._rung.notify_all()

    def take(self, timeout_s: float) -> News:
        """What was told since the last call; waits for something up to ``timeout_s``, with 0 not at all."""
        with self._rung:
            if timeout_s > 0:
                self._rung.wait_for(lambda: self._news.is_any, timeout_s)
            news, self._news = self._news, News()
        return news

    def pause(self, limit_s: float) -> None:
        """Waits ``limit_s``, or until the session ends; with 0 not at all."""
        with self._rung:
            if limit_s > 0:
                self._rung.wait_for(lambda: self._news.is_lost, limit_s)

    def looked(self) -> None:
        """The loop has dealt with news: who waits in `wait_for` looks again."""
        with self._rung:
            self._rung.notify_all()

    def wait_for(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Returns when ``condition`` holds, looked at after everything that happens here, or after ``limit_s``.
        ``condition`` must not take a lock under which anything is told."""
        with self._rung:
            self._rung.wait_for(condition, max(0.0, limit_s))
