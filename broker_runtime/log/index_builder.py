"""The entries of a segment's offset and time index, from its frames' headers: what appends write live, at once.

Rule: kept in step with `Segment.append`; tests/unit/log/test_log_recovery.py compares the two byte by byte.
"""

from __future__ import annotations

from broker_runtime.contract.frame import FrameHeader
from broker_runtime.log.time_index import NO_TIMESTAMP


class IndexBuilder:
    """Gathers entries, and the figures of a segment, frame by frame."""

    def __init__(self, base_offset: int, index_interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self.offset_entries: list[tuple[int, int]] = []
        self.time_entries: list[tuple[int, int]] = []
        self.next_offset = base_offset
        self.last_indexed_position = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        self.first_append_ms = -1
        self.last_append_ms = -1

    def add(self, position: int, header: FrameHeader) -> None:
        """The next frame, which begins at ``position``."""
        if position - self.last_indexed_position >= self._interval_bytes:
            self.offset_entries.append((header.base_offset - self._base_offset, position))
            self._add_time(header.base_offset)
            self.last_indexed_position = position
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.latest_timestamp_ms)
        if self.first_append_ms < 0:
            self.first_append_ms = header.append_time_ms
        self.last_append_ms = header.append_time_ms
        self.next_offset = header.next_offset

    def close(self) -> None:
        """The segment takes no more frames: its maximum timestamp gets an entry."""
        self._add_time(self.next_offset)

    def _add_time(self, offset: int) -> None:
        if self.max_timestamp_ms > (self.time_entries[-1][0] if self.time_entries else NO_TIMESTAMP):
            self.time_entries.append((self.max_timestamp_ms, offset - self._base_offset))
