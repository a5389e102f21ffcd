"""Idempotent producers through a whole log: no frame is written twice, whatever happened in between."""

from __future__ import annotations

import random

import pytest

from broker_runtime.contract.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from broker_runtime.log import PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.producer_state import EXPIRY_MS, LARGEST_STEP_MS, ProducerState
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, append, frame, open_directory, open_log, read_frames

TINY = topic_settings(segment_bytes=4 << 10, index_interval_bytes=1 << 10)


def numbered(producer: int, sequence: int, rows: int = 2, *, epoch: int = 0, size: int = 20) -> bytes:
    return frame(rows, seed=sequence, size=size, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def as_the_frames_say(log: PartitionLog) -> bytes:
    state = ProducerState()
    for header, _ in read_frames(log):
        state.add(header)
    return state.encode()


def test_repeated_frame_is_not_written_again():
    """It is acknowledged with its first offset, and waits for the same condition as its original."""
    with open_directory() as directory:
        log = open_log(directory)
        for number in range(7):
            append(log, numbered(1, number * 2), now_ms=1000 + number)
        again = log.append_as_leader([numbered(1, 8)], leader_epoch=0, now_ms=5000)
        assert (again.is_duplicate, again.base_offset, again.next_offset, again.append_time_ms) == (True, 8, 10, 1004)
        with pytest.raises(DuplicateSequenceError, match="before its last 5 frames"):
            log.append_as_leader([numbered(1, 0)], leader_epoch=0, now_ms=5000)
        fresh = log.append_as_leader([numbered(1, 14)], leader_epoch=0, now_ms=5000)
        assert (fresh.is_duplicate, fresh.base_offset) == (False, 14)
        assert log.log_end_offset == 16


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_frame_whose_sequence_was_used_by_another_is_refused(rows: int, is_reopened: bool) -> None:
    """Another client that guesses a producer's id may take its next sequence; the producer's own frame must not be
    acknowledged then.
    """
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, TINY)
    for number in range(30):
        append(log, numbered(1, number * rows, rows, size=300))
    if is_reopened:
        directory.close()
        directory = open_directory(files)
        log = open_log(directory, TINY)
    for number in range(25, 30):
        other = frame(rows, seed=99, size=300, producer_id=1, producer_epoch=0, base_sequence=number * rows)
        with pytest.raises(DuplicateSequenceError, match=f"sequence {number * rows}, .* at offset {number * rows}:"):
            log.append_as_leader([other], leader_epoch=0, now_ms=5000)
        again = log.append_as_leader([numbered(1, number * rows, rows, size=300)], leader_epoch=0, now_ms=5000)
        assert (again.is_duplicate, again.base_offset) == (True, number * rows)
    assert log.log_end_offset == 30 * rows
    assert not log.is_damaged
    directory.close()


def test_frame_is_not_acknowledged_after_many_others_used_its_sequence() -> None:
    """Six frames under another producer's id must not make that producer's next frame count as appended."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, numbered(1, 0))
        for number in range(1, 7):
            append(log, frame(2, seed=90 + number, producer_id=1, producer_epoch=0, base_sequence=number * 2))
        with pytest.raises(DuplicateSequenceError, match="producer 1 sent sequences 2 to 3"):
            log.append_as_leader([numbered(1, 2)], leader_epoch=0, now_ms=5000)


def test_frame_that_was_appended_and_deleted_stays_a_duplicate() -> None:
    """Deleted records cannot be compared; partly deleted frames can."""
    with open_directory() as directory:
        log = open_log(directory)
        for number in range(3):
            append(log, numbered(1, number * 2))
        log.delete_records(3)
        other = frame(2, seed=99, producer_id=1, producer_epoch=0, base_sequence=2)
        with pytest.raises(DuplicateSequenceError, match="at offset 2:"):
            log.append_as_leader([other], leader_epoch=0, now_ms=5000)
        log.delete_records(4)
        deleted = log.append_as_leader([other], leader_epoch=0, now_ms=5000)
        assert (deleted.is_duplicate, deleted.base_offset) == (True, 2)


def test_repeated_frame_is_refused_as_damage_when_the_stored_one_is_damaged() -> None:
    """The disk's fault is not the producer's."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    append(log, numbered(1, 0))
    directory.close()
    path = ROOT / "t-0" / f"{0:020d}.log"
    data = bytearray(files.content(path))
    data[125] ^= 1
    descriptor = files.open(path)
    files.write(descriptor, [bytes(data)], 0)
    files.close(descriptor)
    log = open_log(open_directory(files))
    with pytest.raises(CorruptRecordError, match="damaged"):
        log.append_as_leader([numbered(1, 0)], leader_epoch=0, now_ms=5000)
    assert log.is_damaged


def test_frame_after_a_gap_is_refused_and_nothing_is_written():
    """An earlier frame of the producer is missing, so this one would be out of order."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, numbered(1, 0))
        with pytest.raises(OutOfOrderSequenceError):
            append(log, numbered(1, 4))
        with pytest.raises(InvalidRequestError, match="comes alone"):
            append(log, numbered(1, 2), numbered(1, 4))
        assert log.log_end_offset == 2
        append(log, numbered(1, 2))
        append(log, frame(), frame())


def test_follower_knows_the_producers_of_its_frames():
    """A new leader refuses and recognises the same frames as the old one, also after a restart."""
    leader = open_log(open_directory(), TINY)
    for number in range(60):
        append(leader, numbered(number % 3, number // 3 * 2, size=100))
    frames = [data for _, data in read_frames(leader)]
    files = FaultyFiles()
    follower = open_log(open_directory(files), TINY)
    follower.append_as_follower(b"".join(frames))  # many frames, many segments, in one append
    assert len(follower.segment_base_offsets) > 4
    assert follower._state.producers.encode() == leader._state.producers.encode()
    follower.flush()
    files.kill()
    again = open_log(open_directory(files), TINY)
    assert again.log_end_offset == leader.log_end_offset
    assert again._state.producers.encode() == leader._state.producers.encode()
    assert again.append_as_leader([numbered(2, 38, size=100)], leader_epoch=1, now_ms=1).is_duplicate
    assert not again.append_as_leader([numbered(2, 40, size=100)], leader_epoch=1, now_ms=1).is_duplicate


def test_snapshot_at_a_new_segment_knows_all_frames_before_it():
    """One append may fill several segments; each snapshot covers everything before it."""
    leader = open_log(open_directory(), TINY)
    for number in range(30):
        append(leader, numbered(1, number * 2, size=200))
    files = FaultyFiles()
    follower = open_log(open_directory(files), TINY)
    follower.append_as_follower(b"".join(data for _, data in read_frames(leader)))
    headers = [header for header, _ in read_frames(follower)]
    for offset in follower.segment_base_offsets[1:]:
        expected = ProducerState()
        for header in headers:
            if header.base_offset < offset:
                expected.add(header)
        assert files.content(follower._state.directory / f"{offset:020d}.snapshot") == expected.encode()


def test_truncated_frame_may_be_appended_again():
    """A frame truncated by a follower is no duplicate when the producer sends it to the next leader."""
    with open_directory() as directory:
        log = open_log(directory, TINY)
        for number in range(20):
            append(log, numbered(1, number * 2, size=200), commit=False)
        log.truncate_to(13)
        assert log.log_end_offset == 12
        again = log.append_as_leader([numbered(1, 12, size=200)], leader_epoch=1, now_ms=1)
        assert (again.is_duplicate, again.base_offset) == (False, 12)
        assert log.append_as_leader([numbered(1, 10, size=200)], leader_epoch=1, now_ms=1).is_duplicate


def test_producers_outlive_their_records_but_not_a_day_of_the_log():
    """Retention removes frames, but not the memory of their producers, which lasts for a day of the log."""
    config = topic_settings(segment_bytes=4 << 10, retention_ms=1000)
    with open_directory() as directory:
        log = open_log(directory, config)
        for number in range(20):
            append(log, numbered(1, number * 2, size=200), now_ms=1000)
        log.apply_retention(10_000)
        assert log.log_start_offset == log.log_end_offset == 40
        assert log.append_as_leader([numbered(1, 38, size=200)], leader_epoch=0, now_ms=10_000).is_duplicate
    with open_directory(directory.files) as again:
        log = open_log(again, config)
        log.apply_retention(1001 + 5 * EXPIRY_MS)
        assert log.append_as_leader([numbered(1, 38, size=200)], leader_epoch=0, now_ms=10_000).is_duplicate
        append(log, frame(), now_ms=1001 + 5 * EXPIRY_MS)
        assert log.append_as_leader([numbered(1, 38, size=200)], leader_epoch=0, now_ms=10_000).is_duplicate
        for hour in range(25):
            append(log, frame(), now_ms=1001 + 5 * EXPIRY_MS + hour * LARGEST_STEP_MS)
        with pytest.raises(UnknownProducerIdError):
            log.append_as_leader([numbered(1, 38, size=200)], leader_epoch=0, now_ms=10_000)


def test_followers_forget_the_producers_that_their_leader_forgets():
    """All replicas remember, and save, the same: while running, after a restart, and after a crash."""
    leader = open_log(open_directory(), TINY)
    files = FaultyFiles()
    directory = open_directory(files)
    follower = open_log(directory, TINY)
    for number in range(120):
        append(leader, numbered(number, 0, size=100), now_ms=number * EXPIRY_MS // 30)
        if number % 10 == 9:
            follower.append_as_follower(b"".join(data for _, data in read_frames(leader, follower.log_end_offset)))
        if number % 30 == 29:
            leader.apply_retention(number * EXPIRY_MS // 30)
            follower.flush()
            directory.close(clean=number % 60 == 29)
            files.kill()
            directory = open_directory(files)
            follower = open_log(directory, TINY)
            assert follower.log_end_offset == 2 * number + 2
            assert follower._state.producers.encode() == leader._state.producers.encode()
            assert len(follower._state.producers.producers) <= len(leader._state.producers.producers) <= 34
    for name in files.list(ROOT / "t-0"):
        if name.endswith(".snapshot"):
            saved = ProducerState.decode(files.content(ROOT / "t-0" / name)).producers
            assert len(saved) <= 31, "snapshots contain no forgotten producer"


@pytest.mark.parametrize("seed", range(40))
def test_producers_are_those_of_the_frames_after_power_failures_and_truncations(seed):
    """After any power failures the state equals that of the existing frames."""
    rng = random.Random(seed)
    files = FaultyFiles()
    log = open_log(open_directory(files), TINY)
    append(log, frame())
    for _ in range(60):
        what = rng.random()
        if what < 0.7:
            producer = rng.randrange(3)
            entry = log._state.producers.producers.get(producer)
            sequence = 0 if entry is None else entry.next_sequence
            append(log, numbered(producer, sequence, rng.randint(1, 3), size=rng.choice([20, 400])), commit=False)
        elif what < 0.8:
            log.flush()
        elif what < 0.9:
            log.truncate_to(rng.randint(log.high_watermark, log.log_end_offset))
        else:
            files.lose_power(rng) if rng.random() < 0.8 else files.kill()
            log = open_log(open_directory(files), TINY)
        assert log.log_end_offset >= log.log_start_offset  # loads it
        assert log._state.producers.encode() == as_the_frames_say(log), f"seed {seed}"
