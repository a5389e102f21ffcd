"""Appends, reads and lookups of one log, on the file layer in memory."""

from __future__ import annotations

import dataclasses

import msgspec
import pyarrow as pa
import pytest
from frame_samples import pruned_answer

from broker_runtime.contract.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    InvalidTimestampError,
    LogStorageError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnsupportedVersionError,
)
from broker_runtime.contract.frame import decode_frame, encode_frame, iter_frames, parse_header
from broker_runtime.contract.schema import SchemaHistory, TopicSchema
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.log_state import maybe_roll
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import (
    SMALL,
    TOPIC_ID,
    append,
    fill,
    frame,
    index_files,
    open_directory,
    open_log,
    read_frames,
)


@pytest.fixture
def log():
    with open_directory() as directory:
        yield open_log(directory)


def test_append_gives_dense_offsets_and_stamps_epoch_time_and_high_watermark(log):
    """W1: the leader's part of the header has the offset, the time, and the high watermark at the append."""
    append(log, frame(3, seed=1), now_ms=5000, leader_epoch=2)
    result = log.append_as_leader([frame(2, seed=2), frame(1, seed=3)], leader_epoch=2, now_ms=6000)
    assert (result.base_offset, result.next_offset, result.append_time_ms) == (3, 6, 6000)
    headers = [header for header, _ in read_frames(log)]
    assert [(h.base_offset, h.leader_epoch, h.append_time_ms, h.high_watermark) for h in headers] == [
        (0, 2, 5000, 0),
        (3, 2, 6000, 3),
        (5, 2, 6000, 3),
    ]
    assert log.leader_epochs == ((2, 0),)


def test_append_keeps_the_producers_bytes(log):
    """The leader stamps without touching the rest."""
    sample = frame(4, seed=7)
    append(log, sample)
    [(_, stored)] = read_frames(log)
    assert stored[40:] == sample[40:]


def test_append_refuses_a_frame_with_any_byte_of_the_producers_part_changed(log):
    """The leader verifies all checksums before it appends."""
    sample = bytearray(frame(2))
    for position in range(40, len(sample), 7):
        sample[position] ^= 0x10
        with pytest.raises((CorruptRecordError, UnsupportedVersionError)):
            log.append_as_leader([bytes(sample)], leader_epoch=0, now_ms=0)
        sample[position] ^= 0x10
    assert log.log_end_offset == 0


def test_append_refuses_a_pruned_frame(log):
    """A pruned frame can never be appended."""
    wide = pa.record_batch({"key": pa.array([b"k" * 700_000], pa.binary()), "value": pa.array([b"v" * 700_000])})
    whole = encode_frame(wide, TopicSchema.untyped(), timestamps=1)
    answer = pruned_answer(whole, [0])
    assert parse_header(answer).is_pruned
    log.config = topic_settings()
    with pytest.raises(CorruptRecordError, match="pruned"):
        log.append_as_leader([answer], leader_epoch=0, now_ms=0)


def test_append_refuses_frames_above_the_message_and_the_segment_limit():
    """Frames are at most ``max.message.bytes`` and never above ``segment.bytes``; the limit is named."""
    with open_directory() as directory:
        log = open_log(directory, topic_settings(max_message_bytes=1024))
        with pytest.raises(RecordTooLargeError, match="at most 1024"):
            log.append_as_leader([frame(size=2000)], leader_epoch=0, now_ms=0)
        log.config = topic_settings(segment_bytes=2048)
        with pytest.raises(RecordTooLargeError, match="at most 2048"):
            log.append_as_leader([frame(size=4000)], leader_epoch=0, now_ms=0)


def test_append_refuses_timestamps_more_than_an_hour_ahead_unless_the_log_sets_them(log):
    """Timestamps more than an hour ahead are refused; an hour is not."""
    append(log, frame(timestamps=3_600_000 + 5), now_ms=5)
    with pytest.raises(InvalidTimestampError, match="more than an hour"):
        log.append_as_leader([frame(timestamps=3_600_001 + 5)], leader_epoch=0, now_ms=5)
    log.config = dataclasses.replace(SMALL, message_timestamp_type="LogAppendTime")
    result = log.append_as_leader([frame(timestamps=10**13)], leader_epoch=0, now_ms=7)
    assert result.max_timestamp_ms == 7


def test_append_writes_all_frames_of_a_call_or_none(log):
    """A call's frames are verified before the first is written."""
    with pytest.raises(CorruptRecordError):
        log.append_as_leader([frame(), b"x" * 256], leader_epoch=0, now_ms=0)
    assert log.log_end_offset == 0


def test_append_refuses_an_older_leader_epoch_and_records_newer_ones(log):
    """A stale leader's append is refused; epochs and their first offsets are kept."""
    append(log, frame(2), leader_epoch=3)
    append(log, frame(2), leader_epoch=5)
    with pytest.raises(FencedLeaderEpochError, match="older than 5"):
        log.append_as_leader([frame()], leader_epoch=4, now_ms=0)
    assert log.leader_epochs == ((3, 0), (5, 2))


def test_follower_writes_the_leaders_bytes_and_has_the_same_files():
    """Replicas are byte-identical, indexes included."""
    leader_files, follower_files = FaultyFiles(), FaultyFiles()
    with open_directory(leader_files) as one, open_directory(follower_files) as other:
        leader, follower = open_log(one), open_log(other)
        fill(leader, 100, rows=3)
        while (piece := leader.read(follower.log_end_offset, max_bytes=3000, upto=300)) is not None:
            with piece:
                follower.append_as_follower(piece.load())
        follower.flush()
        assert [data for _, data in read_frames(follower)] == [data for _, data in read_frames(leader)]
        assert follower.segment_base_offsets == leader.segment_base_offsets
        assert follower.leader_epochs == leader.leader_epochs
        assert index_files(follower_files) == index_files(leader_files)


def test_follower_refuses_frames_that_do_not_continue_its_log_or_belong_to_another(log):
    """Followers verify all checksums, and that the stamp is for this very partition."""
    with open_directory() as directory:
        leader = directory.log("t", 1, TOPIC_ID, SMALL)
        append(leader, frame(2))
        with leader.read(0, max_bytes=1, upto=2) as piece:
            data = piece.load()
    with pytest.raises(CorruptRecordError, match="another partition"):
        log.append_as_follower(data)
    fill(log, 3)
    with log.read(2, max_bytes=1, upto=3) as piece:
        last = piece.load()
    log.truncate_to(1)
    with pytest.raises(CorruptRecordError, match="begin with offset 2, the log ends at 1"):
        log.append_as_follower(last)


def test_log_rolls_segments_at_their_size_and_reads_across_them(log):
    """W3: a partition is a set of segment files of equal size, and the broker appends to the last one."""
    end = fill(log, 60, rows=5)
    assert end == 300
    assert len(log.segment_base_offsets) > 3
    assert log.segment_base_offsets[0] == 0
    assert [h.base_offset for h, _ in read_frames(log)] == list(range(0, 300, 5))


def test_log_rolls_a_segment_whose_first_frame_is_segment_ms_old():
    """``segment.ms``: an append rolls by age, as does the scheduler on an idle log."""
    with open_directory() as directory:
        log = open_log(directory, topic_settings(segment_ms=1000))
        append(log, frame(), now_ms=0)
        append(log, frame(), now_ms=999)
        append(log, frame(), now_ms=1000)
        assert log.segment_base_offsets == (0, 2)
        assert not maybe_roll(log._state, 1999)
        assert maybe_roll(log._state, 2000)
        assert not maybe_roll(log._state, 9000)  # the last segment is empty
        assert log.segment_base_offsets == (0, 2, 3)


@pytest.mark.parametrize("max_bytes", [1, 500, 1500, 4096, 100_000])
def test_read_returns_whole_frames_within_the_limit_but_at_least_one(log, max_bytes):
    """Reads end at a frame's end within the limit; a first frame above the limit is returned alone."""
    fill(log, 60, rows=5)
    assert len(read_frames(log, max_bytes=max_bytes)) == 60
    piece = log.read(7, max_bytes=max_bytes, upto=300)
    with piece:
        assert piece.start_offset == 5
        headers = [header for header, _ in iter_frames(piece.load())]
    assert piece.size_bytes <= max_bytes or len(headers) == 1
    refused = log.read(7, max_bytes=1, upto=300, at_least_one=False)
    assert refused is None


def test_read_from_any_offset_finds_its_frame_whatever_was_read_before(log):
    """Lookups by offset go through the sparse index, and from remembered positions."""
    end = fill(log, 80, rows=3)
    for offset in [*range(end), *range(end - 1, -1, -1)]:
        with log.read(offset, max_bytes=1, upto=end) as piece:
            assert piece.start_offset == offset - offset % 3
            [(header, _)] = iter_frames(piece.load())
            assert header.base_offset == piece.start_offset


def test_read_ends_at_the_bound_exactly(log):
    """Consumers see nothing at or above the high watermark: a frame across the bound is not served."""
    fill(log, 20, rows=3)
    for upto in range(0, 61, 3):
        served = [header.next_offset for header, _ in read_frames(log, 0, upto=upto)]
        assert max(served, default=0) == upto
    assert log.read(3, max_bytes=1000, upto=5) is None  # the bound lies inside the frame
    assert log.read(60, max_bytes=1000, upto=60) is None
    assert log.read(30, max_bytes=1000, upto=30) is None


def test_read_out_of_range_names_the_logs_range(log):
    """A fetch below the start or above the end is an error that names both."""
    fill(log, 2, rows=5)
    for offset in (-1, 11):
        with pytest.raises(OffsetOutOfRangeError, match=r"0 \(log start\) to 10 \(log end\)"):
            log.read(offset, max_bytes=1, upto=10)


def test_projected_read_equals_pruning_in_memory_for_frames_of_all_sizes():
    """A pruned answer omits chunks and copies the rest byte for byte; frames up to a kilobyte are copied whole."""
    with open_directory() as directory:
        log = open_log(directory, topic_settings())
        schema = TopicSchema.untyped()
        for size in (10, 3_000, 90_000, 400_000, 50, 120_000):
            batch = pa.record_batch(
                {"key": pa.array([b"k" * size] * 2, pa.binary()), "value": pa.array([b"v" * size] * 2, pa.binary())}
            )
            append(log, bytes(encode_frame(batch, schema, timestamps=pa.array([5, 6]))))
        stored = read_frames(log, max_bytes=1 << 24)
        for columns in ([0], [1], [0, 1], [0xFFFE], []):
            with log.read(0, max_bytes=1 << 24, upto=12) as piece:
                answer = piece.load_projected(columns)
            expected = b"".join(
                bytes(data) if len(data) <= 1024 else pruned_answer(data, columns) for _, data in stored
            )
            assert bytes(answer) == expected
            for header, part in iter_frames(answer):
                decoded = decode_frame(part, SchemaHistory(), columns=columns, topic_id=TOPIC_ID.bytes, partition=0)
                assert decoded.batch.num_rows == header.record_count


def test_offset_for_timestamp_is_the_first_record_at_or_after_it(log):
    """Lookups by time work within frames, across segments, and with unordered timestamps."""
    times = [[100, 90, 105], [80, 80, 80], [300, 200, 100], [301, 302, 250]]
    flat = [time for group in times for time in group]
    for group in times:
        append(log, frame(3, timestamps=group, size=900), now_ms=1000)
    for wanted in (0, 80, 90, 91, 100, 101, 105, 106, 200, 299, 300, 301, 302):
        first = next(n for n, time in enumerate(flat) if time >= wanted)
        assert log.offset_for_timestamp(wanted) == (first, flat[first]), wanted
    assert log.offset_for_timestamp(303) is None
    assert log.max_timestamp_ms() == 302
    log.delete_records(7)
    assert log.offset_for_timestamp(201) == (9, 301)


def test_offset_for_timestamp_uses_the_append_time_when_the_log_sets_it():
    """``message.timestamp.type=LogAppendTime``: the leader's clock counts."""
    with open_directory() as directory:
        log = open_log(directory, dataclasses.replace(SMALL, message_timestamp_type="LogAppendTime"))
        append(log, frame(3, timestamps=[9, 1, 5]), now_ms=5000)
        append(log, frame(3, timestamps=[9, 1, 5]), now_ms=6000)
        assert log.offset_for_timestamp(9) == (0, 5000)
        assert log.offset_for_timestamp(5001) == (3, 6000)
        assert log.max_timestamp_ms() == 6000


def test_flush_mode_ack_counts_as_durable_only_what_was_fsynced():
    """``flush.mode=ack``: the durable end moves with the fdatasync and not before."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        end = append(log, frame(2), commit=False)
        assert (log.durable_end_offset, log.log_end_offset) == (0, 2)
        files.calls.clear()
        assert log.flush(end) == 2
        assert [operation for operation, _ in files.calls] == ["sync"]
        assert log.flush(end) == 2  # nothing to do
        assert [operation for operation, _ in files.calls] == ["sync"]
        assert log.durable_end_offset == 2


def test_flush_mode_interval_syncs_when_due_and_os_never():
    """``flush.mode=interval`` and ``os``: appended records count as durable; the scheduler's step syncs, or does
    not.
    """
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory, topic_settings(flush_mode="interval", flush_ms=100))
        append(log, frame(), commit=False)
        assert log.durable_end_offset == 1
        files.calls.clear()
        assert log.maybe_flush(1000)
        assert [operation for operation, _ in files.calls] == ["sync"]
        append(log, frame(), commit=False)
        assert not log.maybe_flush(1099)
        assert log.maybe_flush(1100)
        log.config = topic_settings(flush_mode="os")
        append(log, frame(), commit=False)
        assert not log.maybe_flush(10**9)
        assert log.durable_end_offset == 3


def test_closed_log_refuses_every_call_by_name():
    """After ``close`` every call fails with an error that says so."""
    directory = open_directory()
    log = open_log(directory)
    append(log, frame())
    directory.close()
    for call in (lambda: log.log_end_offset, lambda: append(log, frame()), lambda: log.flush(), log.max_timestamp_ms):
        with pytest.raises(LogStorageError, match="t-0 is closed"):
            call()
    assert log.is_offline


def test_header_copy_of_an_append_equals_the_header_on_disk(log):
    """The index is fed with the header as stamped, not as sent."""
    log.append_as_leader([frame(3, timestamps=[1, 5, 3])], leader_epoch=4, now_ms=77)
    [(header, data)] = read_frames(log)
    assert header == parse_header(data)
    assert msgspec.structs.asdict(header)["leader_epoch"] == 4
