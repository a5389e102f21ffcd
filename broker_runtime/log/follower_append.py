"""A follower's append: the leader's bytes, unchanged, behind what is there.

Rule: nothing is written unless it continues the log: by offset, by leader epoch, and not by a leader that was not the
one to write it. The checksums were verified before (appending.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.log.appending import VerifiedFrame
from broker_runtime.log.log_state import LogState
from broker_runtime.log.segment import Segment


def append_from_leader(state: LogState, frames: Sequence[VerifiedFrame], leader_epoch: int | None) -> tuple[int, int]:
    """See `PartitionLog.append_as_follower`. The offsets [first, next) that were written. Call outside `using`."""
    with state.using("append"):
        end = state.segments.end_offset
        _check_epochs(state, frames, leader_epoch, end)
        news = [frame for frame in frames if frame.header.next_offset > end]
        if not news:
            return end, end
        first, last = news[0].header, news[-1].header
        if first.base_offset > end or (first.base_offset < end and not _is_empty(state)):
            raise CorruptRecordError(
                f"frames from the leader begin with offset {first.base_offset}, the log ends at {end}"
            )
        if first.leader_epoch < state.epochs.latest:  # one that began here, and then wrote nothing
            state.epochs.truncate_from_end(end)
        for frame in news:
            state.epochs.assign(frame.header.leader_epoch, frame.header.base_offset)
        if first.base_offset < end:  # the leader's log starts within this frame
            _begin_lower(state, first.base_offset)
        state.append([([frame.buffer], frame.header) for frame in news], last.append_time_ms)
    return first.base_offset, last.next_offset


def lies_across(state: LogState, frames: Sequence[VerifiedFrame], leader_start: int) -> bool:
    """Whether the log ends within the first frame that is new, and all it holds is below the leader's start.

    Its last records are of another history than the leader's, which was cut to the leader's start, or ended there: what
    the leader has deleted cannot be compared.
    """
    with state.using("append"):
        end = state.segments.end_offset
        first = next((frame.header for frame in frames if frame.header.next_offset > end), None)
        return first is not None and first.base_offset < end <= leader_start and not _is_empty(state)


def _check_epochs(state: LogState, frames: Sequence[VerifiedFrame], leader_epoch: int | None, end: int) -> None:
    """Epochs never fall along a log, none is newer than the leader's own, and what is here is what comes again."""
    entries = [entry for entry in state.epochs.entries if entry[1] < end]  # those with records
    newest = entries[-1][0] if entries else -1
    for frame in frames:
        header = frame.header
        if header.next_offset <= end:
            known = next((epoch for epoch, start in reversed(entries) if start <= header.base_offset), None)
            if known is not None and known != header.leader_epoch:
                raise CorruptRecordError(
                    f"offset {header.base_offset} is of leader epoch {known} here, of {header.leader_epoch} in what "
                    "the leader sent again"
                )
        elif header.leader_epoch < newest or (leader_epoch is not None and header.leader_epoch > leader_epoch):
            raise CorruptRecordError(
                f"offset {header.base_offset} is of leader epoch {header.leader_epoch}, behind records of epoch "
                f"{newest}, from a leader in epoch {leader_epoch}"
            )
        else:
            newest = header.leader_epoch


def _is_empty(state: LogState) -> bool:
    return len(state.segments) == 1 and not state.segments.active.size_bytes


def _begin_lower(state: LogState, offset: int) -> None:
    """The log is empty; its only segment begins at ``offset`` from now on, below its start, which stays.

    After a crash in between the next load begins at the start again, empty.
    """
    state.commit.begin_at(offset)
    state.save()  # first: a log that ends below its recovery point is damaged
    above = state.segments.active
    segment = Segment(
        state.open_files,
        state.directory,
        offset,
        index_interval_bytes=state.config.index_interval_bytes,
        is_closed=False,
    )
    segment.create()
    above.delete()
    state.files.sync_directory(state.directory)
    state.begin_with(segment)
