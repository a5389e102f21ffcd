"""Whether bytes read from a log are what was appended: every checksum, before anybody gets them.

Asked of all but what this process appended to the segment that takes the appends: that was verified then, and is
mostly read from memory. Rule: a bad frame is never given out, nor what is behind it together with what is before it.
"""

from __future__ import annotations

import pyarrow as pa

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import verify_answer
from broker_runtime.log.damage import note_damage
from broker_runtime.log.log_state import LogState


class SliceCheck:
    """Of one log. Thread-safe."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def suspect(self, error: CorruptRecordError, offset: int) -> None:
        """A read of ``offset`` met ``error``: if the log is at fault, that is noted."""
        note_damage(self._state, error, offset)

    def sound_part(self, frames: pa.Buffer, offset: int, next_offset: int) -> tuple[pa.Buffer, int]:
        """The good frames that ``frames``, whole or pruned, of offsets [offset, next_offset) begins with, and the
        offset behind them.

        Damage is noted, which reads the segment once more. Raises `CorruptRecordError` where the first frame is bad.
        """
        topic_id, partition = self._state.identity.topic_id.bytes, self._state.identity.partition
        view = memoryview(frames).cast("B")
        good_bytes, good_end = 0, offset
        try:
            while good_bytes < len(view):
                header = verify_answer(view[good_bytes:], topic_id=topic_id, partition=partition)
                if header.base_offset != good_end:
                    raise CorruptRecordError(f"a frame begins with offset {header.base_offset} instead of {good_end}")
                good_bytes += header.stored_bytes
                good_end = header.next_offset
        except CorruptRecordError as error:
            damage = CorruptRecordError(f"{self._state.name} is damaged at offset {good_end}: {error.message}")
            self.suspect(damage, good_end)
            if not good_bytes:
                raise damage from None
            return frames.slice(0, good_bytes), good_end
        return frames, next_offset
