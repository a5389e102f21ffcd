"""How much of the wall clock deletion by age believes: of segments, and of groups' offsets.

Rule: a clock that is wrong deletes nothing. Who stamps what is kept takes the wall clock as it is: what looks newer
than it is only stays longer.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import Final

LARGEST_STEP_MS: Final = 60_000
DRIFT_PARTS: Final = 1_000
log = logging.getLogger(__name__)


class BelievedClock:
    """The wall clock, but no more time than has passed since this process began.

    The clock is believed as it is found at the start, unless `compare` finds it wrong. If it is then set ahead by more
    than `LARGEST_STEP_MS`, the time goes on as if it had not been, and a warning says so; records stay longer by that
    much until the broker is started anew, and no longer. Set back, it is followed at once, which deletes nothing.
    Smaller steps, as of a clock that is kept in time, are followed: together by no more than `LARGEST_STEP_MS` and one
    part in `DRIFT_PARTS` of the time that passes, however often and from wherever the clock is looked at. Thread-safe.
    """

    def __init__(self, *, wall_ms: int, uptime_ms: int) -> None:
        """``uptime_ms``: of a clock that nobody sets, and that goes on while the machine sleeps."""
        self._started_ms = wall_ms - uptime_ms
        self._earned_at_ms = uptime_ms  # the uptime at which time enough has passed for all steps that were followed
        self._is_ahead = False
        self._lock = threading.Lock()

    def believed_ms(self, wall_ms: int, uptime_ms: int) -> int:
        """The time that deletion may act on, now."""
        with self._lock:
            return self._believed_ms(wall_ms, uptime_ms)

    def compare(self, zookeeper_ms: int, *, from_ms: int, to_ms: int) -> None:
        """Tells what ZooKeeper's clock said at some moment between these uptimes, at the broker's start.

        A clock that was set ahead while no broker ran is found out so: where it is ahead of ZooKeeper's by more than
        `LARGEST_STEP_MS`, the time is believed to have been ZooKeeper's, and a warning names both. If it is ZooKeeper's
        that is wrong, records only stay longer.
        """
        with self._lock:
            here_ms = self._started_ms + from_ms
            if here_ms - zookeeper_ms <= LARGEST_STEP_MS:
                return
            self._started_ms = zookeeper_ms - to_ms
            self._is_ahead = True
        log.warning(
            "clock is ahead of ZooKeeper's: retention believes that one here=%s zookeeper=%s",
            _told(here_ms),
            _told(zookeeper_ms),
        )

    def _believed_ms(self, wall_ms: int, uptime_ms: int) -> int:
        believed_ms = self._started_ms + uptime_ms
        ahead_ms = wall_ms - believed_ms
        if ahead_ms <= 0:
            self._is_ahead = False
            return wall_ms
        earned_at_ms = max(self._earned_at_ms, uptime_ms) + ahead_ms * DRIFT_PARTS
        is_ahead = earned_at_ms - uptime_ms > LARGEST_STEP_MS * DRIFT_PARTS
        if is_ahead and not self._is_ahead:
            log.warning("clock was set ahead by_s=%d: retention does not follow before a restart", ahead_ms // 1000)
        self._is_ahead = is_ahead
        if is_ahead:
            return believed_ms
        self._earned_at_ms = earned_at_ms
        self._started_ms += ahead_ms
        return wall_ms


def uptime_ms() -> int:
    """Goes on while the machine sleeps, where the system has such a clock, and is never set."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


def _told(since_epoch_ms: int) -> str:
    return datetime.fromtimestamp(since_epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")
