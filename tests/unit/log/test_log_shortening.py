"""Truncation, deletion of records and retention; their results survive a restart."""

from __future__ import annotations

import dataclasses
import random

import pytest

from broker_runtime.contract.errors import OffsetOutOfRangeError
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.retention import SegmentAge, segments_to_remove
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import (
    ROOT,
    SMALL,
    append,
    fill,
    frame,
    index_files,
    open_directory,
    open_log,
    read_frames,
    segment_path,
)


@pytest.mark.parametrize("offset", [0, 1, 29, 30, 90, 91, 177, 179, 180, 500])
def test_truncate_to_leaves_the_log_as_if_the_rest_had_never_been_appended(offset):
    """KIP-101: frames, indexes, epochs and producers are those of the prefix."""
    end = min(offset - offset % 3, 180)
    files, expected_files = FaultyFiles(), FaultyFiles()
    log, expected = open_log(open_directory(files)), open_log(open_directory(expected_files))
    for number in range(60):
        sample = frame(
            3, seed=number, timestamps=number, producer_id=number % 4, producer_epoch=0, base_sequence=number // 4 * 3
        )
        append(log, sample, leader_epoch=number // 7, commit=False)
        if number * 3 < end:
            append(expected, sample, leader_epoch=number // 7, commit=False)
    assert log.truncate_to(offset) == end == log.log_end_offset
    assert log.durable_end_offset == end
    assert [data for _, data in read_frames(log)] == [data for _, data in read_frames(expected)]
    assert log.leader_epochs == expected.leader_epochs
    assert log._state.producers.encode() == expected._state.producers.encode()
    append(log, frame(seed=7), leader_epoch=9)
    append(expected, frame(seed=7), leader_epoch=9)
    for segment in set(log.segment_base_offsets) & set(expected.segment_base_offsets):
        for suffix in (".log", ".index", ".timeindex"):
            path = segment_path(segment, suffix)
            assert files.content(path) == expected_files.content(path)
    files.kill()
    again = open_log(open_directory(files))
    assert [data for _, data in read_frames(again)] == [data for _, data in read_frames(log_of(expected_files))]


def log_of(files: FaultyFiles):
    files.kill()
    return open_log(open_directory(files))


def test_truncate_lowers_the_high_watermark_and_refuses_what_lies_below_the_start():
    """The order of offsets is kept: log start ≤ high watermark ≤ log end."""
    log = open_log(open_directory())
    fill(log, 20)
    log.delete_records(10)
    with pytest.raises(OffsetOutOfRangeError, match="below the log's start, 10"):
        log.truncate_to(9)
    log.truncate_to(15)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (10, 15, 15)


def test_crash_right_after_a_truncation_leaves_no_damage():
    """The checkpoints are lowered before a byte is removed: a shorter log must not look damaged."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 60, rows=3)
    directory.checkpoint()
    files.calls.clear()
    log.truncate_to(90)
    lowered = files.calls.index(("rename", ROOT / "recovery-point-checkpoint.tmp"))
    first_gone = next(
        n for n, (operation, path) in enumerate(files.calls) if operation == "unlink" or path.suffix == ".log"
    )
    assert lowered < first_gone
    log = log_of(files)
    assert (log.log_end_offset, log.high_watermark, len(read_frames(log))) == (90, 90, 30)


def test_delete_records_moves_the_start_removes_whole_segments_and_survives_restarts():
    """W5: deletion is durable at once, after a clean stop and after a crash."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 60, rows=3)
    bases = log.segment_base_offsets
    assert log.delete_records(100) == 100
    assert log.delete_records(50) == 100
    assert log.segment_base_offsets == tuple(base for base in bases if base >= max(b for b in bases if b <= 100))
    with pytest.raises(OffsetOutOfRangeError, match=r"100 \(log start\)"):
        log.read(99, max_bytes=1, upto=180)
    with pytest.raises(OffsetOutOfRangeError, match="high watermark, 180, not to 181"):
        log.delete_records(181)
    for _ in range(2):
        files.kill()
        log = open_log(directory := open_directory(files))
        assert (log.log_start_offset, log.log_end_offset) == (100, 180)
        assert read_frames(log)[0][0].base_offset == 99  # whole frames: the reader skips
    directory.close()
    log = open_log(open_directory(files))
    assert log.log_start_offset == 100
    assert log.delete_records(180) == 180
    assert len(log.segment_base_offsets) == 1
    assert append(log, frame()) == 181
    names = [name for name in files.list(ROOT / "t-0") if name.endswith((".log", ".index", ".timeindex", ".txnindex"))]
    assert len(names) == 3


def test_crash_between_the_new_start_and_the_removal_leaves_no_damage():
    """The start is made durable first; the next start removes the segments below it."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 60, rows=3)
    gone = segment_path(log.segment_base_offsets[0])
    content = files.content(gone)
    log.delete_records(100)
    files.overwrite(gone, content)
    log = log_of(files)
    assert log.log_start_offset == 100
    assert files.file_size(gone) is None


@pytest.mark.parametrize("segment_bytes", [1500, 1 << 20])
def test_power_loss_after_a_deletion_leaves_a_log_that_continues_at_its_start(segment_bytes):
    """The start that `delete_records` made durable is never above the next record's offset."""
    config = topic_settings(segment_bytes=segment_bytes, index_interval_bytes=300, flush_mode="os")
    for seed in range(20):
        files = FaultyFiles()
        log = open_log(open_directory(files), config)
        assert fill(log, 10, commit=False) == 10
        log.set_high_watermark(10)
        assert log.delete_records(10) == 10
        files.lose_power(random.Random(seed))
        for end in (10, 11):  # once more after a kill: the empty log is one like all others
            log = open_log(open_directory(files), config)
            assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (10, 10, end)
            assert append(log, frame(seed=99)) == end + 1
            assert read_frames(log)[0][0].base_offset == 10
            files.kill()


def test_retention_by_time_uses_append_time_not_timestamps():
    """A backfill of old events is not deleted at once, and one future timestamp pins nothing."""
    config = dataclasses.replace(SMALL, retention_ms=1000)
    log = open_log(open_directory(), config)
    for number in range(60):
        append(log, frame(timestamps=1 if number else 3_600_000, size=300), now_ms=10_000 + number)
    bases = log.segment_base_offsets
    assert log.apply_retention(10_500) == 0
    assert log.log_start_offset == 0
    removed = log.apply_retention(11_030)
    assert 0 < removed < len(bases) - 1
    assert log.log_start_offset == log.segment_base_offsets[0] == bases[removed]
    assert log.apply_retention(20_000) > 0  # the last segment too: it is closed first
    assert (log.log_start_offset, log.log_end_offset) == (60, 60)
    assert append(log, frame(), now_ms=20_000) == 61


def test_retention_by_size_keeps_at_least_that_much():
    """W5: whole segments are removed while no less than ``retention.bytes`` remains."""
    config = dataclasses.replace(SMALL, retention_bytes=20_000)
    log = open_log(open_directory(), config)
    fill(log, 200)
    before = log.size_bytes
    assert before > 40_000
    log.apply_retention(2000)
    assert 20_000 <= log.size_bytes < 20_000 + SMALL.segment_bytes
    assert log.apply_retention(2000) == 0


def test_retention_never_passes_the_high_watermark():
    """Uncommitted records are not removed, however old or large."""
    config = dataclasses.replace(SMALL, retention_bytes=0, retention_ms=0)
    log = open_log(open_directory(), config)
    fill(log, 100, commit=False)
    log.set_high_watermark(50)
    log.apply_retention(10**9)
    assert 0 < log.log_start_offset <= 50
    assert log.log_end_offset == 100


def test_retention_of_a_range_of_segments_is_decided_from_the_oldest_on():
    """Pure: an old segment after a young one stays; the last one always stays; -1 is no limit."""
    segments = [
        SegmentAge(next_offset=end, size_bytes=10, last_append_ms=ms) for end, ms in ((5, 0), (10, 90), (15, 1))
    ]
    by_time = topic_settings(retention_ms=50)
    assert segments_to_remove(segments, by_time, bound=100, now_ms=100) == 1
    assert segments_to_remove(segments, by_time, bound=100, now_ms=1000) == 2
    assert segments_to_remove(segments, by_time, bound=7, now_ms=1000) == 1
    assert segments_to_remove(segments, topic_settings(retention_ms=-1), bound=100, now_ms=10**15) == 0
    by_size = topic_settings(retention_ms=-1, retention_bytes=15)
    assert segments_to_remove(segments, by_size, bound=100, now_ms=0) == 1
    assert segments_to_remove(segments[:1], by_size, bound=100, now_ms=0) == 0


def test_readers_keep_their_slices_through_retention_deletion_and_truncation():
    """A slice returns the same bytes, whatever happens to the log meanwhile."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, dataclasses.replace(SMALL, retention_ms=0))
    fill(log, 60, rows=3)
    pieces = [log.read(offset, max_bytes=2000, upto=180) for offset in range(0, 180, 6)]
    before = [bytes(piece.load()) for piece in pieces]
    log.truncate_to(170)
    log.delete_records(90)
    log.apply_retention(10**9)
    fill(log, 30)
    directory.delete(directory.partitions[0])
    assert [bytes(piece.load()) for piece in pieces] == before
    for piece in pieces:
        piece.close()
        piece.close()


def test_indexes_of_a_truncated_segment_equal_those_of_its_prefix():
    """They are durable, and survive a restart."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 40, rows=3)
    log.truncate_to(60)
    live = index_files(files)
    files.overwrite(ROOT / "recovery-point-checkpoint", b"")
    for name in live:
        files.overwrite(ROOT / "t-0" / name, b"")
    assert log_of(files).log_end_offset == 60
    assert index_files(files) == live
