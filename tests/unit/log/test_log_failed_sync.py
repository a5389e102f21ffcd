"""After a failed fsync at any point the next start never takes unwritten bytes for durable."""

from __future__ import annotations

import random

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.log import LogDirectory, PartitionLog
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.log.log_state import maybe_roll
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import (
    ROOT,
    append,
    fill,
    frame,
    index_files,
    open_directory,
    open_log,
    read_frames,
    segment_path,
)


def restarted(files: FaultyFiles) -> tuple[LogDirectory, PartitionLog]:
    """The log as the next process opens it, without the fault."""
    files.faults.clear()
    files.kill()
    directory = open_directory(files)
    return directory, open_log(directory)


def bodies(log: PartitionLog) -> dict[int, bytes]:
    """The producers' bytes by offset."""
    return {header.base_offset: data[40:] for header, data in read_frames(log)}


@pytest.mark.parametrize("is_stopped", [False, True])
def test_restart_after_a_failed_fsync_makes_durable_what_it_reports_as_durable(is_stopped):
    """The next start acknowledges a retry as a duplicate, so its original must survive a power failure."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    for sequence in range(3):
        append(log, frame(producer_id=7, producer_epoch=0, base_sequence=sequence, seed=sequence))
    directory.checkpoint()
    retried = frame(producer_id=7, producer_epoch=0, base_sequence=3, seed=3)
    log.append_as_leader([retried], leader_epoch=0, now_ms=1000)
    files.faults.append(Fault("sync", times=1, matches=lambda path: path.suffix == ".log"))
    with pytest.raises(LogStorageError, match="fsync failed"):
        log.flush()
    if is_stopped:
        directory.close()
    _, log = restarted(files)
    result = log.append_as_leader([retried], leader_epoch=0, now_ms=1000)
    assert result.is_duplicate
    assert log.flush(result.next_offset) == 4
    files.lose_power(random.Random(1))
    _, log = restarted(files)
    assert list(bodies(log)) == [0, 1, 2, 3]


def test_recovery_rewrites_nothing_that_is_known_to_be_durable():
    """Below the recovery point an fsync has succeeded; a start after a kill does not rewrite gigabytes."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, topic_settings())
    fill(log, 20)
    directory.checkpoint()
    size = len(files.content(segment_path(0)))
    fill(log, 2, start=20)
    written: list[int] = []
    write = files.write
    files.kill()
    directory = open_directory(files)
    files.write = lambda descriptor, buffers, position: (
        written.append(position) if files._file(descriptor)[0] == segment_path(0) else None,
        write(descriptor, buffers, position),
    )
    assert open_log(directory, topic_settings()).log_end_offset == 22
    assert min(written) == size
    files.kill()
    written.clear()
    assert open_log(open_directory(files), topic_settings()).durable_end_offset == 22


def test_restart_after_a_failed_fsync_of_an_index_makes_it_durable():
    """An index that is correct in the page cache need not be so on the device."""
    config = topic_settings(segment_bytes=1 << 20, segment_ms=1000, index_interval_bytes=100)
    for suffix in (".index", ".timeindex"):
        files = FaultyFiles()
        directory = open_directory(files)
        log = open_log(directory, config)
        fill(log, 20)
        directory.checkpoint()
        fault = Fault("sync", times=1, matches=lambda path, suffix=suffix: path.suffix == suffix)
        files.faults.append(fault)
        with pytest.raises(LogStorageError):
            maybe_roll(log._state, 1 << 60)
        assert fault.times == 0
        files.faults.clear()
        files.kill()
        directory = open_directory(files)
        log = open_log(directory, config)
        assert maybe_roll(log._state, 1 << 60)
        directory.checkpoint()
        before = index_files(files)
        files.lose_power(random.Random(1))
        assert index_files(files) == before


def test_restart_after_a_failed_fsync_of_the_identity_makes_it_durable():
    """The owner of the directory is recorded before anything is acknowledged."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    files.faults.append(Fault("sync", times=1, matches=lambda path: path.name.startswith("partition.json")))
    with pytest.raises(LogStorageError):
        append(log, frame())
    _, log = restarted(files)
    append(log, frame())
    before = files.content(ROOT / "t-0" / "partition.json")
    files.lose_power(random.Random(1))
    assert files.content(ROOT / "t-0" / "partition.json") == before


def test_stop_after_a_failed_fsync_is_not_marked_clean():
    """This includes the fsync of the stop itself."""
    for is_early in (True, False):
        files = FaultyFiles()
        directory = open_directory(files)
        log = open_log(directory)
        fill(log, 3)
        log.append_as_leader([frame()], leader_epoch=0, now_ms=0)
        files.faults.append(Fault("sync", times=1, matches=lambda path: path.suffix == ".log"))
        if is_early:
            with pytest.raises(LogStorageError):
                log.flush()
        directory.close()
        files.faults.clear()
        directory = open_directory(files)
        assert not directory.was_clean
        assert open_log(directory).start_state().recovery_point == 3
        assert open_log(directory).durable_end_offset == 4
        files.lose_power(random.Random(1))
        assert open_log(open_directory(files)).log_end_offset == 4


@pytest.mark.parametrize("unsynced", [2, 10])  # the kept records are in the active segment, in a closed one
def test_truncation_takes_nothing_for_durable_whose_write_back_failed(unsynced):
    """What is kept may not have reached the device: only an fsync of the old file says so, never one of its copy."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    end = fill(log, 1, size=2000)
    fill(log, unsynced, size=2000, commit=False, start=1)
    assert (len(log.segment_base_offsets) > 1) == (unsynced > 2)
    files.faults.append(Fault("sync", matches=lambda path: path == segment_path(0)))
    with pytest.raises(LogStorageError, match="truncate failed"):
        log.truncate_to(end + 1)
    assert log.is_offline


def test_truncation_to_what_is_durable_syncs_no_old_file():
    """A truncation waits for the disk no longer than it must: its caller holds the partition's lock."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 3, size=200)
    files.faults.append(Fault("sync", matches=lambda path: path == segment_path(0)))
    assert log.truncate_to(2) == log.durable_end_offset == 2


def test_cut_of_a_torn_tail_syncs_what_it_keeps_before_it_copies_it():
    """Else the copy could be made of pages whose write-back has just failed."""
    files = FaultyFiles()
    fill(open_log(open_directory(files)), 3)
    files.write(files.open(segment_path(0)), [b"torn" * 16], len(files.content(segment_path(0))))
    files.kill()
    files.calls.clear()
    assert open_log(open_directory(files)).log_end_offset == 3
    synced = [path for operation, path in files.calls if operation == "sync" and path.name.startswith("0" * 20)]
    assert [path.suffix for path in synced if ".log" in path.name][:2] == [".log", ".tmp"]


def test_checkpoint_whose_fsync_failed_does_not_replace_the_last():
    """A file is renamed only when its content is on the device."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 3)
    directory.checkpoint()
    before = files.content(ROOT / "recovery-point-checkpoint")
    fill(log, 3, start=3)
    files.faults.append(Fault("sync", times=1, matches=lambda path: path.name.startswith("recovery-point")))
    with pytest.raises(OSError, match="Input/output"):
        directory.checkpoint()
    assert files.content(ROOT / "recovery-point-checkpoint") == before
    directory.checkpoint()
    after = files.content(ROOT / "recovery-point-checkpoint")
    assert after != before
    files.lose_power(random.Random(1))
    assert files.content(ROOT / "recovery-point-checkpoint") == after


@pytest.mark.parametrize("seed", range(60))
def test_whatever_counts_as_durable_survives_failed_fsyncs_restarts_and_power_failures(seed):
    """Every restart yields a prefix with everything acknowledged, or reported as durable by an earlier start."""
    rng = random.Random(seed)
    files = FaultyFiles()
    config = topic_settings(
        segment_bytes=rng.choice([1500, 4000, 1 << 20]), index_interval_bytes=rng.choice([1, 300, 2000])
    )
    durable: dict[int, bytes] = {}
    sent: dict[int, set[bytes]] = {}
    sequences = 0
    for life in range(8):
        files.faults[:] = [
            Fault(
                rng.choice(["sync", "sync", "sync", "write", "rename", "sync_directory"]),
                after=rng.randrange(40),
                times=1,
                torn_bytes=rng.randrange(200),
            )
        ]
        try:
            directory = open_directory(files)
            log = open_log(directory, config)
            found = bodies(log)
            assert durable.items() <= found.items(), life
            assert all(body in sent[offset] for offset, body in found.items())
            assert log.durable_end_offset == log.log_end_offset
            content = found
            durable = dict(content)  # from now on a repeated frame of these is acknowledged at once
            log.set_high_watermark(log.log_end_offset)
            epoch = log.leader_epochs[-1][0] + 1 if log.leader_epochs else 0
            for _ in range(rng.randrange(25)):
                action = rng.random()
                end = log.log_end_offset
                if action < 0.75:
                    sequences += 1
                    sample = frame(1, seed=sequences, timestamps=1000 + sequences, size=rng.randrange(20, 200))
                    sent.setdefault(end, set()).add(sample[40:])
                    result = log.append_as_leader([sample], leader_epoch=epoch, now_ms=1000 + sequences)
                    content[end] = sample[40:]
                    if rng.random() < 0.7:
                        log.flush(result.next_offset)
                        durable = dict(content)
                        log.set_high_watermark(result.next_offset)
                elif action < 0.85:
                    directory.checkpoint()
                elif action < 0.92:
                    maybe_roll(log._state, 1 << 60)
                elif end > log.high_watermark:
                    content = {offset: body for offset, body in content.items() if offset < log.high_watermark}
                    durable = {offset: body for offset, body in durable.items() if offset < log.high_watermark}
                    log.truncate_to(log.high_watermark)
            if rng.random() < 0.3:
                directory.close()
        except (LogStorageError, OSError):
            pass  # of the log's, or of the directory's own files
        files.faults.clear()
        fate = rng.random()
        if fate < 0.4:
            files.lose_power(rng)
        elif fate < 0.6:
            files.kill()
            for path in [path for path in files._names if path.suffix in (".log", ".index", ".timeindex")]:
                descriptor = files.open(path)
                files.drop_cached(descriptor)  # the kernel needs the memory
                files.close(descriptor)
        else:
            files.kill()
    log = open_log(open_directory(files), config)
    found = bodies(log)
    assert durable.items() <= found.items()
    assert [header.next_offset for header, _ in read_frames(log)] == list(range(1, log.log_end_offset + 1))
    epochs = {header.leader_epoch for header, _ in read_frames(log)}
    assert epochs <= {epoch for epoch, _ in log.leader_epochs}
    for header, _ in read_frames(log):
        assert log.offset_for_timestamp(header.max_timestamp_ms) == (header.base_offset, header.max_timestamp_ms)
