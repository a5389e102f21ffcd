"""What makes a log shorter: truncation at its end; deletion of records and retention at its start; a new beginning.

Rule: the checkpoints are durable before a file goes, so that a crash between the two leaves nothing that looks like
damage. Readers keep what they hold.
"""

from __future__ import annotations

from broker_runtime.contract.errors import OffsetOutOfRangeError
from broker_runtime.log import restart
from broker_runtime.log.appending import MAX_TIMESTAMP_AHEAD_MS
from broker_runtime.log.log_state import LogState
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.producer_state import ProducerState
from broker_runtime.log.retention import is_expired, segments_to_remove
from broker_runtime.log.segment import LOG_SUFFIX

_LONGEST_FSYNC_S = 60.0


def truncate_to(state: LogState, offset: int) -> int:
    """See `PartitionLog.truncate_to`, which flushes afterwards."""
    with state.using("truncate"):
        commit = state.commit
    with commit.held_back(_LONGEST_FSYNC_S), state.using("truncate"):
        end = state.segments.end_offset
        if offset >= end:
            state.epochs.truncate_from_end(end)  # an epoch that began here has no record
            return end
        if offset < state.log_start_offset:
            raise OffsetOutOfRangeError(f"offset {offset} is below the log's start, {state.log_start_offset}")
        segment = state.segments.find(offset)
        with segment.hold() as held:
            _, header = state.with_sound_index(segment, lambda: segment.locate(held, segment.extent, offset))
        offset = header.base_offset
        commit.truncated(offset)
        state.high_watermark = min(state.high_watermark, offset)
        state.log_start_offset = min(state.log_start_offset, offset)
        state.save()
        state.positions.clear()
        state.segments.truncate(offset, state.config.index_interval_bytes)
        state.epochs.truncate_from_end(offset)
        state.reload_producers(offset)
    return offset


def restart_at(state: LogState, offset: int) -> None:
    """See `PartitionLog.restart_at`."""
    with state.using("restart"):
        commit = state.commit
    with commit.held_back(_LONGEST_FSYNC_S), state.using("restart"):
        restart.intend(state.files, state.directory, offset)
        state.segments.release()
        segment = restart.carry_out(state.open_files, state.directory, offset, state.config.index_interval_bytes)
        state.begin_with(segment)
        state.epochs.replace([])
        state.producers = ProducerState()
        state.log_start_offset = state.high_watermark = offset
        state.save()
        restart.forget(state.files, state.directory)


def delete_records(state: LogState, offset: int, timeout_s: float = -1) -> int:
    """See `PartitionLog.delete_records`."""
    with state.using("delete records", timeout_s):
        if not 0 <= offset <= state.high_watermark:
            raise OffsetOutOfRangeError(
                f"records of {state.name} can be deleted up to the high watermark, {state.high_watermark}, "
                f"not to {offset}"
            )
        if offset > state.log_start_offset:
            state.remove_oldest(sum(base <= offset for base in state.segments.base_offsets[1:]), offset)
        return state.log_start_offset


def apply_retention(state: LogState, now_ms: int) -> int:
    """See `PartitionLog.apply_retention`."""
    with state.using("apply retention"):
        maybe_roll(state, now_ms)
        ages = state.segments.ages(now_ms)
        if ages[-1].size_bytes and is_expired(ages[-1], state.config, now_ms):
            state.roll()
            ages = state.segments.ages(now_ms)
        count = segments_to_remove(ages, state.config, bound=state.high_watermark, now_ms=now_ms)
        if count:
            start = max(state.segments.base_offsets[count], state.log_start_offset)
            state.remove_oldest(count, start)
        return count


def is_retained_whole(state: LogState, now_ms: int) -> bool:
    """Whether the sizes and times of its files rule out that retention removes anything of a log that is not loaded.

    A file's time is that of its last append or later (a restored copy's is later, and keeps the segment longer). One
    that is ahead of the clock rules out nothing.
    """
    if state.offline is not None:
        return False
    try:
        bases = PartitionFiles.find(state.files, state.directory).base_offsets
        paths = [state.directory / f"{base:020d}{LOG_SUFFIX}" for base in bases]
        size = sum(state.files.file_size(path) or 0 for path in paths)
        oldest_ms = state.files.modified_ms(paths[0]) if paths else None
    except FileNotFoundError:
        return False  # it was set aside or deleted meanwhile
    except OSError as error:
        state.fail("apply retention", error)
    if not size:
        return True
    is_young = (
        oldest_ms is not None and now_ms - state.config.retention_ms <= oldest_ms <= now_ms + MAX_TIMESTAMP_AHEAD_MS
    )
    return (state.config.retention_ms < 0 or is_young) and not 0 <= state.config.retention_bytes < size


def maybe_roll(state: LogState, now_ms: int) -> bool:
    """See `PartitionLog.maybe_roll`."""
    with state.using("roll"):
        active = state.segments.find(state.segments.end_offset)
        if not active.size_bytes or now_ms - active.first_append_ms < state.config.segment_ms:
            return False
        state.roll()
        return True
