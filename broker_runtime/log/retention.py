"""Which segments retention removes. Pure.

Rule: whole segments from the oldest on, never one with records at or above the bound (the last stable offset), never
the last segment. Age is that of the newest append in the segment by the leader's clock, not of the records'
timestamps: a backfill of old events stays, one timestamp from the future pins nothing.

A clock that is wrong must not delete: `BelievedClock` says how far it may be believed. And a segment whose newest
append lies ahead of that, because it was stamped while a clock was wrong, counts from when it was first looked at, so
that it goes some day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker_runtime.log.config import LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """What retention must know of a segment. ``last_append_ms`` -1: no frame in it; never ahead of the clock."""

    next_offset: int
    size_bytes: int
    last_append_ms: int


def segments_to_remove(segments: Sequence[SegmentAge], config: LogConfig, *, bound: int, now_ms: int) -> int:
    """How many of ``segments`` (all of a log, oldest first) go."""
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    for count, segment in enumerate(segments[:-1]):
        is_old = config.retention_ms >= 0 and is_expired(segment, config, now_ms)
        is_excess = config.retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        if segment.next_offset > bound or not (is_old or is_excess):
            return count
        excess_bytes -= segment.size_bytes
    return max(len(segments) - 1, 0)


def is_expired(segment: SegmentAge, config: LogConfig, now_ms: int) -> bool:
    """Whether the newest append in the segment is older than ``retention.ms``."""
    return config.retention_ms >= 0 and segment.last_append_ms < now_ms - config.retention_ms
