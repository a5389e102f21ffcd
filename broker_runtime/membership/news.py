"""What a broker's loop has to deal with: flags that any thread raises and the loop takes, all at once.

Rule: raising a flag never blocks and calls nothing, so watches and listeners may do it on ZooKeeper's own thread. (A
condition and no `Signal`: it guards the flags, and a second thread waits for the loop to have dealt with them.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class News:
    """What there is to deal with."""

    is_lost: bool = False  # the session ended
    is_stale: bool = False  # anything may have changed
    has_changes: bool = False  # ZooKeeper says what changed; or a broker is dead, or alive after all

    @property
    def is_any(self) -> bool:
        """Whether there is anything."""
        return self.is_lost or self.is_stale or self.has_changes


class NewsBoard:
    """Raised by any thread, taken by one. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news = News()

    def add(self, *, is_lost: bool = False, is_stale: bool = False, has_changes: bool = False) -> None:
        """Raises these flags, and ends a `take` that waits."""
        with self._changed:
            self._news.is_lost |= is_lost
            self._news.is_stale |= is_stale
            self._news.has_changes |= has_changes
            self._changed.notify_all()

    def take(self, timeout_s: float) -> News:
        """The flags raised since the last call; waits for one up to ``timeout_s``, with 0 not at all."""
        with self._changed:
            if timeout_s > 0:
                self._changed.wait_for(lambda: self._news.is_any, timeout_s)
            news, self._news = self._news, News()
        return news

    def pause(self, limit_s: float) -> None:
        """Waits ``limit_s``, or until the session ends; with 0 not at all."""
        with self._changed:
            if limit_s > 0:
                self._changed.wait_for(lambda: self._news.is_lost, limit_s)

    def looked(self) -> None:
        """The loop has dealt with what it took: `wait_for` evaluates its condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Returns when ``condition`` holds, which is evaluated after everything that happens here, or after
        ``limit_s``. ``condition`` must not take a lock under which flags are raised."""
        with self._changed:
            self._changed.wait_for(condition, max(0.0, limit_s))
