"""One segment as a reader found it under the log's lock: the file held, and how far it went.

Rule: what is found here stays readable though the log is truncated, or the segment removed, meanwhile.
"""

from __future__ import annotations

from broker_runtime.contract.frame import HEADER_BYTES, FrameHeader
from broker_runtime.log.frame_walk import header_at
from broker_runtime.log.log_slice import LogSlice
from broker_runtime.log.log_state import LogState
from broker_runtime.log.segment import Segment
from broker_runtime.log.slice_check import SliceCheck


class SegmentView:
    """Made under the log's lock, used once, outside of it."""

    def __init__(self, state: LogState, segment: Segment) -> None:
        """Holds the segment's file. Raises `OSError`."""
        self._state = state
        self._segment = segment
        self._extent = segment.extent
        # Only there is everything from an offset on what this process appended, and hardly ever read from the device.
        self._verified_from = segment.next_offset if segment.is_closed else state.verified_from
        self._held = segment.hold()

    def find(self, offset: int, *, max_bytes: int, upto: int, at_least_one: bool) -> LogSlice | None:
        """The slice as `PartitionLog.read` says. Raises `CorruptRecordError` for index or frames, `OSError`."""
        with self._held:
            start = self._start(offset)
            position, header = start
            end = self._segment.end_within(self._held, self._extent, start, max_bytes, upto)
            if end is None:
                if not at_least_one or header.next_offset > upto:
                    return None
                end = (position + header.frame_bytes, header.next_offset)
            end_position, next_offset = end
            self._state.positions.remember(next_offset, self._segment.base_offset, end_position)
            return LogSlice(
                self._state.files,
                self._held.hold(),
                position=position,
                size_bytes=end_position - position,
                start_offset=header.base_offset,
                next_offset=next_offset,
                fail=self._state.fail,
                check=SliceCheck(self._state),
                is_verified=header.base_offset >= self._verified_from,
            )

    def _start(self, offset: int) -> tuple[int, FrameHeader]:
        position = self._state.positions.find(offset, self._segment.base_offset)
        if position is None or position >= self._extent.size_bytes:
            return self._segment.locate(self._held, self._extent, offset)
        data = self._state.files.read(self._held.descriptor, HEADER_BYTES, position)
        return position, header_at(data, 0, self._segment.path, position, self._extent.size_bytes, offset)
