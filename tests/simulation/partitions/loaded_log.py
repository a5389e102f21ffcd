"""Whether what a broker made of a log's frames agrees with them: leader epochs and idempotent producers.

Rule: looks at a log that nobody is at work on, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_runtime.log.log_state import LogState
from tests.simulation.partitions.log_view import StoredFrame


def is_locked(lock: Any) -> bool:
    """Whether somebody is in the middle of something under the lock."""
    return bool(lock.locked())


def disagreement(state: LogState, frames: Sequence[StoredFrame], *, was_cut: bool = False) -> str | None:
    """What is wrong with the epochs or producers of a log whose files hold ``frames``; None: nothing. ``was_cut``: the
    last that happened to it, since it was loaded, is that its end was cut off."""
    kept = [frame for frame in frames if frame.next_offset > state.log_start_offset]
    return _of_epochs(state, kept, was_cut) or _of_producers(state, kept)


def _of_epochs(state: LogState, frames: Sequence[StoredFrame], was_cut: bool) -> str | None:
    entries = state.epochs.entries
    end = state.segments.end_offset
    for epoch, start in entries:
        # One may begin at the very end, where its first record was lost or never written; none does after a cut.
        if start > end or (was_cut and start == end):
            return f"leader epoch {epoch} begins at {start}, and the log {'was cut to' if was_cut else 'ends at'} {end}"
    for frame in frames:
        offset = max(frame.base_offset, state.log_start_offset)
        known = [epoch for epoch, start in entries if start <= offset]
        if not known or known[-1] != frame.header.leader_epoch:
            return f"offset {offset} is of leader epoch {frame.header.leader_epoch}, the epochs say {entries}"
    return None


def _of_producers(state: LogState, frames: Sequence[StoredFrame]) -> str | None:
    newest = {frame.header.producer_id: frame.header for frame in frames if frame.header.producer_id >= 0}
    for producer_id, header in newest.items():
        entry = state.producers.producers.get(producer_id)
        expected = header.base_sequence + header.record_count
        if entry is None or (entry.epoch, entry.next_sequence) != (header.producer_epoch, expected):
            return f"producer {producer_id} comes next with {expected} by its frames, what is known of it is {entry}"
    return None
