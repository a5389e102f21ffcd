"""Which segments retention removes. Pure.

Rule: whole segments from the oldest on, never one with records at or above the bound (the last stable offset), never
the last segment. Age is that of the newest append in the segment by the leader's clock, not of the records'
timestamps: a backfill of old events stays, one timestamp from the future pins nothing.

A wrong clock must not delete anything: `BelievedClock` says how far the clock may be believed. A segment whose newest
append is ahead of that, because it was stamped while a clock was wrong, ages from the moment when that was first seen,
so that it is deleted some day.

The same clock decides which groups' offsets are removed. Records and offsets are stamped by the wall clock as it is:
one that looks newer than it is only stays longer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker_runtime.contract.events import event
from broker_runtime.contract.settings import TopicSettings

LARGEST_STEP_MS: Final = 60_000
DRIFT_PARTS: Final = 1_000
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """What retention must know about a segment. ``last_append_ms`` -1: it has no frame; never ahead of the clock."""

    next_offset: int
    size_bytes: int
    last_append_ms: int


def segments_to_remove(segments: Sequence[SegmentAge], config: TopicSettings, *, bound: int, now_ms: int) -> int:
    """How many of ``segments`` (all of a log, oldest first) are to be removed."""
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    for count, segment in enumerate(segments[:-1]):
        is_old = config.retention_ms >= 0 and is_expired(segment, config, now_ms)
        is_excess = config.retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        if segment.next_offset > bound or not (is_old or is_excess):
            return count
        excess_bytes -= segment.size_bytes
    return max(len(segments) - 1, 0)


def is_expired(segment: SegmentAge, config: TopicSettings, now_ms: int) -> bool:
    """Whether the newest append in the segment is older than ``retention.ms``."""
    return config.retention_ms >= 0 and segment.last_append_ms < now_ms - config.retention_ms


class BelievedClock:
    """The wall clock, but no more time than has passed since this process began.

    The clock is believed as it is at the start, unless `compare` finds it wrong. If it is later set ahead by more than
    `LARGEST_STEP_MS`, time continues here as if it had not been set, and a warning says so: records stay that much
    longer, until the broker restarts. If it is set back, it is followed at once, which deletes nothing. Smaller steps,
    as those of a synchronized clock, are followed: altogether by no more than `LARGEST_STEP_MS` plus one part in
    `DRIFT_PARTS` of the time that passes, however often and by whichever thread the clock is read. Thread-safe.
    """

    def __init__(self, *, wall_ms: int, uptime_ms: int) -> None:
        """``uptime_ms``: of a clock that is never set, and that runs on while the machine sleeps."""
        self._started_ms = wall_ms - uptime_ms
        self._earned_at_ms = uptime_ms  # the uptime at which time enough has passed for all steps that were followed
        self._is_ahead = False
        self._lock = threading.Lock()

    def believed_ms(self, wall_ms: int, uptime_ms: int) -> int:
        """The time that deletion may act on, now."""
        with self._lock:
            return self._believed_ms(wall_ms, uptime_ms)

    def compare(self, zookeeper_ms: int, *, from_ms: int, to_ms: int) -> None:
        """At the broker's start: ``zookeeper_ms`` is what ZooKeeper's clock showed at a moment between these uptimes.

        This detects a clock that was set ahead while no broker ran: if it is ahead of ZooKeeper's by more than
        `LARGEST_STEP_MS`, ZooKeeper's is believed instead, and a warning names both. If it is ZooKeeper's that is
        wrong, records only stay longer.
        """
        with self._lock:
            here_ms = self._started_ms + from_ms
            if here_ms - zookeeper_ms <= LARGEST_STEP_MS:
                return
            self._started_ms = zookeeper_ms - to_ms
            self._is_ahead = True
        here, zookeeper = _as_text(here_ms), _as_text(zookeeper_ms)
        event(_logger, "follow zookeeper's clock", level=logging.WARNING, here=here, zookeeper=zookeeper)

    def _believed_ms(self, wall_ms: int, uptime_ms: int) -> int:
        believed_ms = self._started_ms + uptime_ms
        ahead_ms = wall_ms - believed_ms
        if ahead_ms <= 0:
            self._is_ahead = False
            return wall_ms
        earned_at_ms = max(self._earned_at_ms, uptime_ms) + ahead_ms * DRIFT_PARTS
        is_ahead = earned_at_ms - uptime_ms > LARGEST_STEP_MS * DRIFT_PARTS
        if is_ahead and not self._is_ahead:
            event(_logger, "ignore clock set ahead", level=logging.WARNING, ahead_s=ahead_ms // 1000, until="restart")
        self._is_ahead = is_ahead
        if is_ahead:
            return believed_ms
        self._earned_at_ms = earned_at_ms
        self._started_ms += ahead_ms
        return wall_ms


def uptime_ms() -> int:
    """Milliseconds of a clock that is never set and, where the system has such a one, runs on while the machine
    sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


def _as_text(since_epoch_ms: int) -> str:
    return datetime.fromtimestamp(since_epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")
