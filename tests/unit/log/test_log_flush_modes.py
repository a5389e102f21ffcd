"""What a log knows of the modes in which it was written: the mark ``unflushed``, and what waits for the device."""

from __future__ import annotations

import random

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import PartitionLog
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.log.partition_files import UNFLUSHED_NAME
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, append, fill, frame, open_directory, open_log, read_frames

ACK, OS, INTERVAL = (topic_settings(flush_mode=mode) for mode in ("ack", "os", "interval"))
MARK = ROOT / "t-0" / UNFLUSHED_NAME


def is_marked(files: FaultyFiles) -> bool:
    return files.file_size(MARK) is not None


def write(log: PartitionLog, count: int = 3) -> None:
    """Appends without a flush, as brokers do where acknowledgements do not wait."""
    fill(log, count, start=log.log_end_offset, commit=False)


@pytest.mark.parametrize(("config", "is_there"), [(ACK, False), (OS, True), (INTERVAL, True)])
def test_log_that_does_not_wait_for_the_device_is_marked_before_its_first_record(config, is_there):
    files = FaultyFiles()
    assert open_log(open_directory(files), config).log_end_offset == 0
    files.lose_power(random.Random(1))
    assert is_marked(files) == is_there


def test_records_wait_for_the_device_until_the_mark_is_there():
    """From ``ack`` to ``os``: an acknowledgement that does not wait comes after the mark."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory, ACK)
        write(log)
        log.config = OS
        assert (log.waits_for_device, log.durable_end_offset, is_marked(files)) == (True, 0, False)
        log.maybe_flush(1000)
        assert (log.waits_for_device, log.durable_end_offset, is_marked(files)) == (False, 3, True)


def test_mark_goes_only_after_everything_was_flushed():
    """From ``os`` to ``ack``: records wait at once, and the mark goes with what did not wait."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory, OS)
        write(log)
        assert (log.waits_for_device, log.durable_end_offset) == (False, 3)
        log.config = ACK
        assert (log.waits_for_device, log.durable_end_offset, is_marked(files)) == (True, 0, True)
        assert log.maybe_flush(1000)
        assert (log.durable_end_offset, is_marked(files)) == (3, False)
        assert not log.maybe_flush(2000)


def test_mark_stays_if_that_flush_fails():
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory, OS)
        write(log)
        log.config = ACK
        files.faults.append(Fault("sync", times=1, matches=lambda path: path.suffix == ".log"))
        with pytest.raises(LogStorageError):
            log.maybe_flush(1000)
    assert is_marked(files)


def test_mark_outlives_a_restart_until_the_log_was_loaded_and_flushed():
    files = FaultyFiles()
    directory = open_directory(files)
    write(open_log(directory, OS))
    files.kill()
    with open_directory(files) as directory:
        assert directory.is_unflushed(TopicPartition("t", 0))
        log = open_log(directory, ACK)
        assert not log.maybe_flush(1000), "it is not loaded"
        assert log.log_end_offset == 3
        assert is_marked(files)
        log.maybe_flush(1000)
        assert not is_marked(files)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_acknowledged_is_on_a_disk_without_the_mark(seed):
    """Modes change, records are acknowledged as the mode in force says, and the power fails at any moment."""
    rng = random.Random(seed)
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, rng.choice([ACK, OS, INTERVAL]))
    acknowledged = 0
    for number in range(rng.randrange(5, 60)):
        what = rng.randrange(4)
        if what == 0:
            log.config = rng.choice([ACK, OS, INTERVAL])
        elif what == 1:
            log.maybe_flush(1000 + 500 * number)
        else:
            end = append(log, frame(seed=number), commit=False)
            if log.waits_for_device:
                log.flush(end)
            acknowledged = end
    files.lose_power(rng)
    with open_directory(files) as directory:
        if not is_marked(files):
            assert len(read_frames(open_log(directory, ACK))) >= acknowledged
