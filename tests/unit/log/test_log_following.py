"""A log that begins again elsewhere, and a follower's appends to it."""

from __future__ import annotations

import errno
import os
import random

import pytest

from broker_runtime.contract.errors import CorruptRecordError, LogStorageError, OffsetOutOfRangeError
from broker_runtime.log import PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from tests.unit.log.log_samples import SMALL, append, fill, frame, open_directory, open_log, read_frames


def _is_sound(log: PartitionLog) -> bool:
    return log.log_start_offset <= log.high_watermark <= log.log_end_offset


def _leader(*epochs: int) -> PartitionLog:
    """A log with a frame of three records for each epoch given."""
    log = open_log(open_directory())
    for seed, epoch in enumerate(epochs):
        append(log, frame(3, seed=seed), leader_epoch=epoch)
    return log


def _frames(log: PartitionLog, offset: int, *, count: int = 100) -> bytes:
    found = b""
    for _ in range(count):
        piece = log.read(offset, max_bytes=1, upto=log.log_end_offset)
        if piece is None:
            break
        with piece:
            found += piece.load().to_pybytes()
            offset = piece.next_offset
    return found


# --- restart_at ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 60, 100, 101, 179, 180, 181, 5000])
@pytest.mark.parametrize("is_clean", [False, True])
def test_restart_leaves_an_empty_log_at_any_offset(offset, is_clean):
    """A follower begins again at its leader's log start, also after a restart of its broker."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 60, rows=3)
    log.delete_records(100)
    log.restart_at(offset)
    assert (log.log_start_offset, log.high_watermark, log.durable_end_offset, log.log_end_offset) == (offset,) * 4
    assert (log.leader_epochs, log.size_bytes, log.segment_base_offsets) == ((), 0, (offset,))
    assert not log._state.producers.producers
    if is_clean:
        directory.close()
    else:
        files.kill()
    log = open_log(open_directory(files))
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (offset,) * 3
    assert append(log, frame(2), leader_epoch=1) == offset + 2
    assert log.leader_epochs == ((1, offset),)
    assert len(read_frames(log)) == 1


def test_restart_keeps_slices_of_readers():
    """Files are unlinked, never shortened."""
    log = open_log(open_directory())
    fill(log, 10)
    piece = log.read(0, max_bytes=1 << 20, upto=10)
    before = _frames(log, 0)
    log.restart_at(50)
    with piece:
        assert piece.load().to_pybytes() == before[: piece.size_bytes]


class _Dies(FaultyFiles):
    """The process dies at the ``steps``-th change on disk."""

    steps = 1 << 30

    def _fault(self, operation, path):
        if operation not in ("read", "open"):
            self.steps -= 1
            if self.steps < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return super()._fault(operation, path)


@pytest.mark.parametrize("has_lost_power", [False, True])
@pytest.mark.parametrize("offset", [0, 30, 100, 120, 180, 500])
def test_crash_at_any_line_of_a_restart_leaves_the_old_log_or_an_empty_one(offset, has_lost_power):
    """No crash leaves anything that looks like damage, a hole, or half a log."""
    outcomes = set()
    for steps in range(100):
        files = _Dies()
        directory = open_directory(files)
        log = open_log(directory)
        fill(log, 60, rows=3)
        log.delete_records(100)
        directory.checkpoint()
        old = [data for _, data in read_frames(log)]
        files.steps = steps
        try:
            log.restart_at(offset)
            is_done = True
        except LogStorageError:
            is_done = False
        files.steps = 1 << 30
        files.lose_power(random.Random(steps)) if has_lost_power else files.kill()
        log = open_log(open_directory(files))
        assert _is_sound(log)
        found = [data for _, data in read_frames(log)]
        assert found in (old, [])
        if found:
            assert not is_done
            outcomes.add("old")
        else:
            assert log.log_start_offset == log.log_end_offset
            assert log.log_start_offset == offset
            assert log.leader_epochs == ()
            outcomes.add("empty")
        assert append(log, frame(), leader_epoch=7) == log.log_end_offset
        if is_done:
            break
    assert is_done
    assert outcomes == {"old", "empty"}


# --- a follower's append ------------------------------------------------------------------------------------------


def test_existing_frames_are_not_appended_again():
    """A follower's append is idempotent: of an overlapping answer only new frames are added."""
    leader, log = _leader(1, 1, 2), open_log(open_directory())
    assert log.append_as_follower(_frames(leader, 0, count=2)).next_offset == 6
    result = log.append_as_follower(_frames(leader, 0), leader_epoch=2)
    assert (result.base_offset, result.next_offset, log.log_end_offset) == (6, 9, 9)
    result = log.append_as_follower(_frames(leader, 0), leader_epoch=2)
    assert (result.base_offset, result.next_offset, log.log_end_offset) == (9, 9, 9)
    assert read_frames(log) == read_frames(leader)
    assert log.leader_epochs == leader.leader_epochs


def test_overlap_of_another_epoch_is_refused():
    """The overlapping records are not the same."""
    log = open_log(open_directory())
    log.append_as_follower(_frames(_leader(1, 1), 0))
    with pytest.raises(CorruptRecordError, match="offset 3 is of leader epoch 1 here, of 2 in what the leader sent"):
        log.append_as_follower(_frames(_leader(1, 2, 2), 3))
    assert log.log_end_offset == 6


def test_gap_and_overlap_within_a_frame_are_refused():
    log = open_log(open_directory())
    log.append_as_follower(_frames(_leader(1), 0))
    with pytest.raises(CorruptRecordError, match="begin with offset 6, the log ends at 3"):
        log.append_as_follower(_frames(_leader(1, 1, 1), 6))
    other = open_log(open_directory())
    append(other, frame(2), leader_epoch=1)
    append(other, frame(2), leader_epoch=1)
    with pytest.raises(CorruptRecordError, match="begin with offset 2, the log ends at 3"):
        log.append_as_follower(_frames(other, 2))


def test_epochs_never_fall_and_none_is_newer_than_the_leaders():
    """(partition, epoch) has one leader: frames of a later epoch cannot come from this one."""
    log = open_log(open_directory())
    log.append_as_follower(_frames(_leader(1, 3), 0))
    with pytest.raises(CorruptRecordError, match="epoch 2, behind records of epoch 3"):
        log.append_as_follower(_frames(_leader(1, 2, 2), 6))
    with pytest.raises(CorruptRecordError, match="from a leader in epoch 4"):
        log.append_as_follower(_frames(_leader(1, 3, 5), 6), leader_epoch=4)
    assert (log.log_end_offset, log.leader_epochs) == (6, ((1, 0), (3, 3)))


def test_epoch_without_records_is_dropped_for_the_leaders():
    """A leader died between recording its epoch and its first record; older records follow."""
    log = open_log(open_directory())
    log.append_as_follower(_frames(_leader(1), 0))
    log._state.epochs.assign(4, 3)
    log.append_as_follower(_frames(_leader(1, 2, 5), 3))
    assert log.leader_epochs == ((1, 0), (2, 3), (5, 6))


def test_truncation_to_the_end_forgets_an_epoch_without_records():
    """Otherwise leader and follower would never agree."""
    log = _leader(1)
    log._state.epochs.assign(4, 3)
    assert log.truncate_to(3) == 3
    assert log.leader_epochs == ((1, 0),)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_log_that_starts_within_a_frame_is_copied_with_the_whole_frame(is_restarted):
    """Records were deleted up to the middle of a frame: the follower has the same bytes, and the same start."""
    leader, files = _leader(1, 1, 2), FaultyFiles()
    leader.delete_records(4)
    log = open_log(open_directory(files))
    log.restart_at(4)
    log.append_as_follower(_frames(leader, 4))
    assert (log.log_start_offset, log.segment_base_offsets, log.high_watermark) == (4, (3,), 4)
    log.flush()
    log.set_high_watermark(9)
    if is_restarted:
        files.kill()
        log = open_log(open_directory(files))
    assert (log.log_start_offset, log.log_end_offset) == (4, 9)
    assert read_frames(log) == read_frames(leader)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(3, max_bytes=1, upto=9)


def test_log_that_ends_within_a_frame_begins_again_when_the_leader_deleted_all_its_records():
    """Its last records are another leader's; up to the leader's log start nothing is left to compare them with."""
    leader = _leader(1, 2, 2)
    leader.delete_records(4)
    log = open_log(open_directory())
    append(log, frame(4, seed=9), leader_epoch=1)
    with pytest.raises(CorruptRecordError, match="begin with offset 3, the log ends at 4"):
        log.append_as_follower(_frames(leader, 4), leader_start=3)
    log.append_as_follower(_frames(leader, 4), leader_start=4)
    log.set_high_watermark(9)
    assert (log.log_start_offset, log.log_end_offset) == (4, 9)
    assert read_frames(log) == read_frames(leader)


def test_crash_while_a_log_moves_to_the_beginning_of_a_frame_leaves_it_empty_or_filled():
    leader = _leader(1, 1, 2)
    leader.delete_records(4)
    frames = _frames(leader, 4)
    for steps in range(60):
        files = _Dies()
        log = open_log(open_directory(files))
        log.restart_at(4)
        files.steps = steps
        try:
            log.append_as_follower(frames)
            is_done = True
        except LogStorageError:
            is_done = False
        files.steps = 1 << 30
        files.lose_power(random.Random(steps))
        log = open_log(open_directory(files))
        assert _is_sound(log)
        assert log.log_start_offset == 4
        assert read_frames(log) in ([], read_frames(leader)[:1], read_frames(leader))
        if is_done:
            break
    assert is_done


def test_small_segments_of_a_follower_roll_like_the_leaders():
    """Replicas are byte-identical, in whatever parts the bytes arrive."""
    leader, log = open_log(open_directory(), SMALL), open_log(open_directory(), SMALL)
    fill(leader, 200, rows=2)
    log.append_as_follower(_frames(leader, 0, count=3))
    log.append_as_follower(_frames(leader, 0, count=400))
    assert log.segment_base_offsets == leader.segment_base_offsets
