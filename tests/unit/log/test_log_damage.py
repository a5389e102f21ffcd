"""Damage found while a log is in use is never served, is verified, reported once, and set aside on request."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import CorruptRecordError, LogStorageError
from broker_runtime.contract.frame import CHUNK_PER_COLUMN_BYTES, encode_frame, iter_frames
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.log import PartitionLog
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.log.log_state import note_damage
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import (
    ROOT,
    append,
    fill,
    flip,
    frame,
    open_directory,
    open_log,
    read_frames,
    segment_path,
)

T0 = TopicPartition("t", 0)


def closed_in_order(files: FaultyFiles, frames: int = 60) -> list[tuple[int, int]]:
    """A log of several segments that was closed in order; (position, base offset) of the first segment's frames."""
    with open_directory(files) as directory:
        log = open_log(directory)
        fill(log, frames, size=200)
        assert len(log.segment_base_offsets) > 2
        first = [header for header, _ in read_frames(log, upto=log.segment_base_offsets[1])]
    positions = [sum(header.frame_bytes for header in first[:number]) for number in range(len(first))]
    return [(position, header.base_offset) for position, header in zip(positions, first, strict=True)]


def wakeups(log: PartitionLog) -> list[int]:
    """Returns a list that gets an entry at each wake-up by the log."""
    found: list[int] = []
    log.on_damage(lambda: found.append(1))
    return found


def load_all(log: PartitionLog, offset: int, columns: list[int] | None = None) -> tuple[list[int], int]:
    """The base offsets of one read's frames, and the end of the read."""
    piece = log.read(offset, max_bytes=1 << 20, upto=log.log_end_offset)
    assert piece is not None
    with piece:
        data = piece.load() if columns is None else piece.load_projected(columns)
        return [header.base_offset for header, _ in iter_frames(memoryview(data))], piece.next_offset


@pytest.mark.parametrize("columns", [None, [1]])
@pytest.mark.parametrize("within", [5, 40, 200], ids=["stamp", "header", "rows"])
def test_bit_flipped_in_a_closed_segment_of_a_clean_log_is_never_served(within, columns):
    """Frames before and after it are served, but not the frame itself; the damage is reported once."""
    files = FaultyFiles()
    frames = closed_in_order(files)
    flip(files, segment_path(0), frames[3][0] + within)
    log = open_log(open_directory(files))
    woken = wakeups(log)
    assert load_all(log, 0, columns) == ([offset for _, offset in frames[:3]], frames[3][1])
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="damaged at"):
            load_all(log, frames[3][1], columns)
    assert log.is_damaged
    assert not log.is_offline
    assert woken == [1]
    assert load_all(log, log.segment_base_offsets[1], columns)[0]
    assert append(log, frame()) == 61


def test_bit_flipped_in_a_pruned_frame_is_found_in_requested_chunks():
    """A chunk that nobody requested is not read."""
    files = FaultyFiles()
    rows = 4_000
    batch = pa.record_batch({"key": pa.array([b"k" * 20] * rows), "value": pa.array([b"v" * 60] * rows)})
    assert batch.nbytes > CHUNK_PER_COLUMN_BYTES
    with open_directory(files) as directory:
        append(
            open_log(directory, topic_settings()), bytes(encode_frame(batch, TopicSchema.untyped(), timestamps=1000))
        )
    size = files.file_size(segment_path(0))
    flip(files, segment_path(0), size - 80_000)  # among the values, which come last except for the timestamps
    log = open_log(open_directory(files))
    assert load_all(log, 0, [0]) == ([0], rows)
    assert not log.is_damaged
    with pytest.raises(CorruptRecordError, match="CRC of the frame's chunk"):
        load_all(log, 0, [1])
    assert log.is_damaged


def test_bit_flipped_below_the_end_of_a_clean_log_is_found_when_it_is_read():
    """Records of an earlier process in the last segment are verified as well."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        fill(open_log(directory), 5)
    flip(files, segment_path(0), 300)
    log = open_log(open_directory(files))
    with pytest.raises(CorruptRecordError):
        load_all(log, 0)
    assert log.is_damaged


def test_damage_found_by_the_first_use_takes_the_log_offline_and_wakes():
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 10)
    directory.checkpoint()
    directory.close(clean=False)
    files.kill()
    flip(files, segment_path(0), 68)
    log = open_log(open_directory(files))
    woken = wakeups(log)
    with pytest.raises(CorruptRecordError):
        log.log_end_offset  # noqa: B018
    assert log.is_damaged
    assert log.is_offline
    assert not log.is_loaded
    assert woken == [1]


def test_suspicion_that_the_segment_does_not_confirm_is_dropped():
    """A stale position, or a segment that was replaced meanwhile, is no damage."""
    files = FaultyFiles()
    closed_in_order(files)
    log = open_log(open_directory(files))
    woken = wakeups(log)
    for offset in (0, 59, 60, 100, None):
        note_damage(log._state, CorruptRecordError("suspicion"), offset)
    assert not log.is_damaged
    assert woken == []


def test_disk_that_fails_during_the_check_for_damage_takes_the_log_offline():
    files = FaultyFiles()
    closed_in_order(files)
    log = open_log(open_directory(files))
    assert log.log_end_offset == 60
    files.faults.append(Fault("read"))
    note_damage(log._state, CorruptRecordError("suspicion"), 0)
    assert log.is_offline
    assert not log.is_damaged


@pytest.mark.parametrize("act", ["truncate", "retention", "time"])
def test_every_reader_of_headers_reports_their_damage(act):
    """A follower that cannot truncate its log, or a leader that cannot find what is old, does not retry forever."""
    files = FaultyFiles()
    frames = closed_in_order(files)
    for position, _ in frames:  # all, so that the index leads to no sound frame
        flip(files, segment_path(0), position)
    for suffix in (".index", ".timeindex"):
        files.unlink(segment_path(0, suffix))
    log = open_log(open_directory(files))
    with pytest.raises(CorruptRecordError):
        {
            "truncate": lambda: log.truncate_to(1),
            "retention": lambda: log.apply_retention(1 << 50),
            "time": lambda: log.offset_for_timestamp(1001),
        }[act]()
    assert log.is_damaged


# --- setting aside -------------------------------------------------------------------------------------------------


def names(files: FaultyFiles, suffix: str = ".damaged") -> list[str]:
    return [name for name in files.list(ROOT) if name.endswith(suffix)]


def test_damaged_log_is_set_aside_for_good_and_an_empty_one_takes_its_place():
    """Its files stay under another name, whatever happens next."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 5)
    before = files._names[segment_path(0)].content
    directory.set_aside_damaged(T0)
    files.lose_power(random.Random(1))
    (name,) = names(files)
    assert files._names[ROOT / name / segment_path(0).name].content == before
    directory = open_directory(files)
    assert directory.partitions == []
    recreated = open_log(directory)
    assert recreated.log_end_offset == 0
    assert append(recreated, frame()) == 1
    assert read_frames(recreated)
    with pytest.raises(LogStorageError, match="set aside"):
        log.log_end_offset  # noqa: B018


def test_damaged_log_is_set_aside_while_its_directory_is_in_use():
    directory = open_directory(FaultyFiles())
    fill(open_log(directory), 5)
    directory.set_aside_damaged(T0)
    recreated = open_log(directory)
    fill(recreated, 3)
    directory.checkpoint()
    assert recreated.start_state().recovery_point == 3


def test_one_damaged_copy_of_a_partition_is_kept():
    """Repeated damage fills no disk; the copies of other partitions stay."""
    files = FaultyFiles()
    directory = open_directory(files)
    for number in (0, 1):
        fill(open_log(directory, partition=number), 1)
        directory.set_aside_damaged(TopicPartition("t", number))
    first = set(names(files))
    fill(open_log(directory), 1, start=7)
    directory.set_aside_damaged(T0)
    assert len(names(files)) == 2
    assert len(first & set(names(files))) == 1
    open_log(directory)
    directory.delete(T0)
    assert [name.split(".")[0] for name in names(files)] == ["t-1"]


@pytest.mark.parametrize("counts", [(5, 2), (2, 5)])
def test_every_diverged_copy_of_a_partition_is_kept(counts):
    """A record in one may be nowhere else, whichever is longer; damage does not remove them either."""
    files = FaultyFiles()
    directory = open_directory(files)
    for count in counts:
        log = open_log(directory)
        fill(log, count)
        with pytest.raises(CorruptRecordError):
            log.refuse_to_lose(0, 1)
        directory.set_aside_damaged(T0)
    diverged = [name for name in files.list(ROOT) if name.endswith(".diverged")]
    assert len(diverged) == 2
    fill(open_log(directory), 1)
    directory.set_aside_damaged(T0)
    assert set(diverged) < set(files.list(ROOT))


def test_damaged_copy_whose_name_was_cut_is_recognised_by_its_content():
    files = FaultyFiles()
    directory = open_directory(files)
    config = open_log(directory).config
    long = "x" * 249
    for number in (0, 1, 1):
        log = directory.log(long, number, open_log(directory).topic_id, config)
        append(log, frame())
        directory.set_aside_damaged(TopicPartition(long, number))
    assert len(names(files)) == 2


def test_log_that_cannot_be_set_aside_is_set_aside_at_the_next_attempt():
    files = FaultyFiles()
    directory = open_directory(files)
    fill(open_log(directory), 5)
    files.faults.append(Fault("rename", times=1))
    with pytest.raises(OSError, match="error"):
        directory.set_aside_damaged(T0)
    directory.set_aside_damaged(T0)
    assert open_log(directory).log_end_offset == 0


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_epoch_of_a_damaged_stamp_is_not_trusted_after_an_unclean_stop(damaged):
    """Below the recovery point nothing is verified at the start; a follower with a fictitious epoch could follow
    nobody. The frame itself is refused when it is read.
    """
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    epochs, positions, position = (0, 0, 2, 2), [], 0
    for seed, epoch in enumerate(epochs):
        positions.append(position)
        position += len(frame(3, seed=seed))
        append(log, frame(3, seed=seed), leader_epoch=epoch)
    directory.checkpoint()
    before = log.leader_epochs
    files.kill()
    flip(files, segment_path(0), positions[damaged] + 24)  # the stamp's leader epoch
    log = open_log(open_directory(files))
    assert log.leader_epochs == before == ((0, 0), (2, 6))
    assert load_all(log, 0) == ([3 * number for number in range(damaged)], 3 * damaged)
    with pytest.raises(CorruptRecordError, match="damaged at"):
        load_all(log, 3 * damaged)
    assert log.is_damaged
