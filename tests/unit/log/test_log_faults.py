"""Full or broken disks take the log offline, others continue, and a restart finds everything acknowledged."""

from __future__ import annotations

import errno
import random

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.log.log_state import maybe_roll
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, SMALL, append, fill, frame, open_directory, open_log, read_frames


def of_partition(number: int):
    """Selects the files of one partition for a fault."""
    return lambda path: f"t-{number}" in path.parts


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("torn_bytes", [0, 1, 200])
def test_failed_write_takes_the_log_offline_and_loses_nothing_acknowledged(error, torn_bytes):
    """A full disk and an I/O error are clear errors, and everything acknowledged is there after a restart."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 20, rows=2)
    frames = [data for _, data in read_frames(log)]
    files.faults.append(Fault("write", error=error, matches=of_partition(0), torn_bytes=torn_bytes))
    with pytest.raises(LogStorageError, match=r"t-0: to append failed: .*offline until its broker is restarted"):
        append(log, frame(2))
    files.faults.clear()
    for call in (lambda: append(log, frame()), lambda: log.read(0, max_bytes=1, upto=1), log.flush):
        with pytest.raises(LogStorageError, match="offline"):
            call()
    directory.close()
    log = open_log(open_directory(files))
    assert [data for _, data in read_frames(log)] == frames
    assert append(log, frame()) == 41


def test_other_partitions_continue_when_one_fails():
    """Only the affected log goes offline."""
    files = FaultyFiles()
    directory = open_directory(files)
    logs = [open_log(directory, partition=number) for number in range(3)]
    for log in logs:
        fill(log, 5)
    files.faults.append(Fault("write", matches=of_partition(1)))
    with pytest.raises(LogStorageError):
        append(logs[1], frame())
    assert append(logs[0], frame()) == 6
    assert append(logs[2], frame()) == 6
    directory.checkpoint()
    directory.close()
    with open_directory(files) as directory:
        files.faults.clear()
        assert [open_log(directory, partition=number).log_end_offset for number in range(3)] == [6, 5, 6]


def test_full_disk_refuses_and_serves_again_after_space_is_back_and_a_restart():
    """After a restart with free space no acknowledged record is missing."""
    files = FaultyFiles(capacity_bytes=60_000)
    directory = open_directory(files)
    log = open_log(directory)
    ends: list[int] = []
    with pytest.raises(LogStorageError, match="No space left"):
        ends.extend(append(log, frame(3, seed=seed, size=100)) for seed in range(1000))
    acknowledged = log.start_state().recovery_point
    assert acknowledged > 60
    directory.close(clean=False)
    files.capacity_bytes = 1 << 20
    log = open_log(open_directory(files))
    assert log.log_end_offset >= acknowledged
    assert [header.base_offset for header, _ in read_frames(log)][: acknowledged // 3] == list(
        range(0, acknowledged, 3)
    )
    assert append(log, frame()) == log.log_end_offset


def test_failed_fdatasync_is_never_retried():
    """The kernel may have dropped the dirty pages; a second fdatasync would lie."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 5)
    frames = [data for _, data in read_frames(log)]
    log.append_as_leader([frame()], leader_epoch=0, now_ms=0)
    files.faults.append(Fault("sync", times=1, matches=of_partition(0)))
    with pytest.raises(LogStorageError, match="fsync failed"):
        log.flush()
    files.calls.clear()
    for _ in range(3):
        with pytest.raises(LogStorageError, match="fsync failed"):
            log.flush()
    assert not log.try_flush()
    assert log.start_state().recovery_point == 5
    directory.close()
    assert not [path for operation, path in files.calls if operation == "sync" and path.suffix == ".log"]
    files.lose_power(random.Random(1))
    log = open_log(open_directory(files))
    assert [data for _, data in read_frames(log)][:5] == frames


@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory", "rename", "open", "unlink"])
def test_failure_at_any_call_of_any_kind_loses_nothing_acknowledged(operation):
    """A failure of the n-th call, whatever its purpose, ends in an error of ours, and a restart finds everything."""
    for after in range(0, 200, 3):
        files = FaultyFiles()
        acknowledged: list[bytes] = []
        start = 0
        fault = Fault(operation, after=after)
        files.faults.append(fault)
        try:
            directory = open_directory(files)
            log = open_log(directory, topic_settings(segment_bytes=1500, index_interval_bytes=300))
            for seed in range(12):
                sample = frame(2, seed=seed, timestamps=1000 + seed)
                append(log, sample)
                acknowledged.append(sample[40:])
                if seed == 6:
                    start = log.delete_records(6)
                    directory.checkpoint()
        except (LogStorageError, OSError):
            pass  # of the log's, or of the directory's own files
        files.faults.clear()
        files.kill()
        log = open_log(open_directory(files))
        found = [data[40:] for _, data in read_frames(log, max(start, log.log_start_offset))]
        assert found[: len(acknowledged) - log.log_start_offset // 2] == acknowledged[log.log_start_offset // 2 :]
        if fault.times == 1 << 30:
            return  # no call that late
    pytest.fail("the fault was always hit: more calls than were tried")


def test_read_error_takes_the_log_offline():
    """An I/O error while reading is a storage error, not a corrupt record."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 5)
    with log.read(0, max_bytes=1000, upto=5) as piece:
        files.faults.append(Fault("read"))
        with pytest.raises(LogStorageError, match=r"to read .* failed"):
            piece.load()
    assert log.is_offline


@pytest.mark.parametrize("seed", range(60))
def test_power_loss_at_any_moment_loses_nothing_acknowledged(seed):
    """Unsynced writes are lost, kept or torn at random; everything acknowledged remains."""
    rng = random.Random(seed)
    files = FaultyFiles()
    config = topic_settings(
        segment_bytes=rng.choice([1500, 4000, 1 << 20]), index_interval_bytes=rng.choice([1, 300, 2000])
    )
    acknowledged: dict[int, bytes] = {}
    log_start = 0
    for _ in range(6):
        directory = open_directory(files)
        log = open_log(directory, config)
        assert log.log_start_offset == log_start
        found = {header.base_offset: data[40:] for header, data in read_frames(log)}
        assert {offset: data for offset, data in acknowledged.items() if offset >= log_start}.items() <= found.items()
        log.flush()
        log.set_high_watermark(log.log_end_offset)
        acknowledged = found
        for _ in range(rng.randrange(20)):
            action = rng.random()
            if action < 0.6:
                sample = frame(rng.randrange(1, 4), seed=rng.randrange(1 << 30), size=rng.randrange(200))
                base = log.log_end_offset
                append(log, sample, now_ms=rng.randrange(10_000))
                acknowledged[base] = sample[40:]
            elif action < 0.85:  # appended, never acknowledged
                log.append_as_leader([frame(seed=rng.randrange(1 << 30))], leader_epoch=0, now_ms=0)
            elif action < 0.9:
                directory.checkpoint()
            elif action < 0.93 and log.high_watermark > log_start:
                log_start = log.delete_records(rng.choice([o for o in acknowledged if log_start <= o]))
            elif action < 0.96:
                maybe_roll(log._state, 1 << 60)
            else:
                end = log.truncate_to(max(log.high_watermark, log_start))
                acknowledged = {offset: data for offset, data in acknowledged.items() if offset < end}
        if rng.random() < 0.2:
            directory.close()
        files.lose_power(rng)


@pytest.mark.parametrize("flush_mode", ["os", "interval"])
@pytest.mark.parametrize("seed", range(20))
def test_power_loss_without_fsync_costs_the_unsynced_end_and_not_the_partition(flush_mode, seed):
    """The page Guarantees: fsynced records are there, others may be lost in any order; the partition continues to
    serve.
    """
    rng = random.Random(seed)
    files = FaultyFiles()
    config = topic_settings(segment_bytes=rng.choice([1500, 1 << 20]), index_interval_bytes=300, flush_mode=flush_mode)
    log = open_log(open_directory(files), config)
    frames = [frame(seed=number) for number in range(20)]
    for number, sample in enumerate(frames):
        append(log, sample, commit=False)
        log.set_high_watermark(number + 1)  # as replication does when an append counts without an fsync
        if number == 7:
            log.flush()
    files.lose_power(rng)
    log = open_log(open_directory(files), config)
    assert 8 <= log.log_end_offset <= 20
    assert [data[40:] for _, data in read_frames(log)] == [data[40:] for data in frames[: log.log_end_offset]]
    assert append(log, frame()) == log.log_end_offset


def test_acknowledgement_waits_for_the_name_of_a_new_segment():
    """A new segment's directory is fsynced before its first acknowledgement."""
    files = FaultyFiles()
    log = open_log(open_directory(files), SMALL)
    files.calls.clear()
    maybe_roll(log._state, 0)
    end = fill(log, 60, rows=3)
    synced_names = [n for n, call in enumerate(files.calls) if call == ("sync_directory", ROOT / "t-0")]
    assert len(log.segment_base_offsets) > 2
    for base in log.segment_base_offsets[1:]:
        path = ROOT / "t-0" / f"{base:020d}.log"
        first_sync = files.calls.index(("sync", path))
        first_write = files.calls.index(("write", path))
        assert any(n < first_write for n in synced_names)
        assert first_write < first_sync
    assert end == 180


@pytest.mark.parametrize("flushed", [True, False])
def test_indexes_of_a_closed_segment_are_durable_before_the_next_segment_is_there(flushed):
    """From then on the recovery point may be above the closed segment, and recovery does not rebuild its indexes."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, topic_settings(segment_ms=1000, index_interval_bytes=100))
    fill(log, 20, commit=flushed)
    directory.checkpoint()
    files.calls.clear()
    assert maybe_roll(log._state, 1 << 60)
    created = max(n for n, call in enumerate(files.calls) if call == ("sync_directory", ROOT / "t-0"))
    for suffix in (".index", ".timeindex"):
        assert ("sync", ROOT / "t-0" / f"{0:020d}{suffix}") in files.calls[:created]
    if flushed:
        files.lose_power(random.Random(1))
        log = open_log(open_directory(files))
        assert log.max_timestamp_ms() == 1019
        assert log.offset_for_timestamp(1019) == (19, 1019)


def test_log_that_could_not_be_created_on_a_full_disk_is_created_once_there_is_space():
    """Until then there is nothing to delete."""
    files = FaultyFiles()
    directory = open_directory(files)
    files.faults.append(Fault("write", error=errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        open_log(directory)
    assert directory.partitions == []
    files.faults.clear()
    assert append(open_log(directory), frame()) == 1
    directory.close()
