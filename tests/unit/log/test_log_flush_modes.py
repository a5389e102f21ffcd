"""What a log knows of the modes in which it was written: the mark ``unflushed``, and what waits for the device."""

from __future__ import annotations

import random

import pytest

from broker_runtime.contract.errors import CorruptRecordError, LogStorageError
from broker_runtime.contract.frame import iter_frames
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import TopicSettings
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


def follow(leaders: FaultyFiles, followers: FaultyFiles, config: TopicSettings) -> None:
    """Twelve records, of which the leader's device has each at once, the follower's the first three."""
    with open_directory(leaders) as leading:
        leader = open_log(leading, config)
        following = open_directory(followers)
        follower = open_log(following, config)
        for number in range(12):
            leader.append_as_leader([frame(1, seed=number)], leader_epoch=0, now_ms=1000 + number)
            piece = leader.read(number, max_bytes=1 << 20, upto=number + 1)
            assert piece is not None
            with piece:
                follower.append_as_follower(piece.load(), leader_epoch=0)
            if number == 2:
                follower.flush()
                following.checkpoint()
            leader.flush()
            for log in (leader, follower):
                log.set_high_watermark(number + 1)


@pytest.mark.parametrize("config", [INTERVAL, OS])
@pytest.mark.parametrize("starts", [0, 2])
def test_what_the_leader_had_flushed_makes_no_damage_of_a_followers_torn_tail(config, starts):
    """Frames say how far the leader's disk was, and a follower has the same bytes, but not on its disk. ``starts``: of
    processes that end before they use the log."""
    lost = 0
    for seed in range(20):
        followers = FaultyFiles()
        follow(FaultyFiles(), followers, config)
        followers.lose_power(random.Random(seed))
        for _ in range(starts):
            open_directory(followers)
            followers.kill()
        with open_directory(followers) as following:
            end = open_log(following, config).log_end_offset
            assert 3 <= end <= 12
            lost += end < 12
    assert lost > 10


@pytest.mark.parametrize("boot_id", ["the same", "unknown"])
def test_same_tail_is_damage_where_the_machine_kept_its_power(monkeypatch, boot_id):
    """Then the file system still has every byte that was written, and what is bad was damaged. Where no boot id is
    known, the end of a process counts as a power loss."""
    if boot_id == "unknown":
        monkeypatch.setattr(FaultyFiles, "boot_id", "")
    followers = FaultyFiles()
    follow(FaultyFiles(), followers, OS)
    followers.kill()
    path = ROOT / "t-0" / f"{0:020}.log"
    data = bytearray(followers.content(path))
    data[len(data) // 2] ^= 1
    followers.overwrite(path, bytes(data))
    with open_directory(followers) as following:
        log = open_log(following, OS)
        if boot_id == "unknown":
            assert 3 <= log.log_end_offset < 12
        else:
            with pytest.raises(CorruptRecordError, match="were acknowledged, so this is no torn tail"):
                _ = log.log_end_offset


def test_log_that_only_ever_led_goes_by_what_its_frames_say_after_a_power_loss():
    """They say what was on its own device."""
    files = FaultyFiles()
    log = open_log(open_directory(files), OS)
    for number in range(12):
        log.append_as_leader([frame(1, seed=number)], leader_epoch=0, now_ms=1000 + number)
        log.flush()
        log.set_high_watermark(number + 1)
    files.lose_power(random.Random(1))
    path = ROOT / "t-0" / f"{0:020}.log"
    data = bytearray(files.content(path))
    data[len(data) // 2] ^= 1
    files.overwrite(path, bytes(data))
    with open_directory(files) as directory, pytest.raises(CorruptRecordError, match="this is no torn tail"):
        _ = open_log(directory, OS).log_end_offset


def test_log_that_was_recovered_counts_as_lost_to_the_power_only_when_it_has_followed_again():
    """All that was found is on the device then, and damage of it is damage."""
    followers = FaultyFiles()
    follow(FaultyFiles(), followers, OS)
    followers.lose_power(random.Random(3))
    with open_directory(followers) as following:
        log = open_log(following, OS)
        assert log.log_end_offset >= 3
        assert followers.content(MARK) == b""
        with open_directory(leaders := FaultyFiles()) as leading:
            leader = open_log(leading, OS)
            for number in range(log.log_end_offset + 1):
                leader.append_as_leader([frame(1, seed=number)], leader_epoch=0, now_ms=1000 + number)
            piece = leader.read(log.log_end_offset, max_bytes=1 << 20, upto=log.log_end_offset + 1)
            assert piece is not None
            with piece:
                log.append_as_follower(piece.load(), leader_epoch=0)
        assert leaders.content(MARK) == b""
        assert followers.content(MARK) == followers.boot_id.encode() == b"boot-2"


@pytest.mark.parametrize("config", [ACK, INTERVAL, OS])
def test_damage_of_deleted_records_costs_no_other(config):
    """Nobody reads them: only that their headers lead on counts."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, config)
    fill(log, 100, commit=False)
    if config is ACK:
        log.flush()
    log.set_high_watermark(100)
    log.delete_records(60)
    directory.checkpoint()
    files.kill()
    path = ROOT / "t-0" / f"{0:020}.log"
    data = bytearray(files.content(path))
    data[len(data) // 100 * 20 + 300] ^= 1
    files.overwrite(path, bytes(data))
    for _ in range(2):
        with open_directory(files) as directory:
            log = open_log(directory, config)
            assert (log.log_start_offset, log.log_end_offset, len(read_frames(log, 60))) == (60, 100, 40)


def test_damage_of_the_last_deleted_record_does_cost_what_is_behind_it():
    """Its frame has one that is not deleted."""
    files = FaultyFiles()
    log = open_log(open_directory(files), OS)
    for seed in range(4):
        log.append_as_leader([frame(10, seed=seed)], leader_epoch=0, now_ms=1000)
    log.set_high_watermark(40)
    log.delete_records(15)
    files.kill()
    path = ROOT / "t-0" / f"{0:020}.log"
    data = bytearray(files.content(path))
    data[len(data) // 4 + 300] ^= 1
    files.overwrite(path, bytes(data))
    with open_directory(files) as directory:
        assert open_log(directory, OS).log_end_offset < 40


def follow_and_lead(files: FaultyFiles, *, follows_again: bool) -> None:
    """Six records from a leader in epoch 1, then six that the log leads with in epoch 2, each flushed; and if it
    ``follows_again``, six more from a leader in epoch 3, which are not."""
    leader = open_log(open_directory(FaultyFiles()), OS)
    log = open_log(open_directory(files), OS)

    def fetch(count: int, epoch: int) -> None:
        for _ in range(count):
            number = leader.log_end_offset
            leader.append_as_leader([frame(1, seed=number)], leader_epoch=epoch, now_ms=1000 + number)
            leader.flush()
            piece = leader.read(number, max_bytes=1 << 20, upto=number + 1)
            assert piece is not None
            with piece:
                log.append_as_follower(piece.load(), leader_epoch=epoch)
            leader.set_high_watermark(number + 1)

    fetch(6, 1)
    for _ in range(6):
        number = log.log_end_offset
        sent = frame(1, seed=number)
        log.append_as_leader([sent], leader_epoch=2, now_ms=1000 + number)
        log.flush()
        log.set_high_watermark(number + 1)
        piece = log.read(number, max_bytes=1 << 20, upto=number + 1)
        assert piece is not None
        with piece:
            leader.append_as_follower(piece.load(), leader_epoch=2)
    assert files.content(MARK) == b"boot-1 2"
    leader.set_high_watermark(12)
    if follows_again:
        fetch(6, 3)
        assert files.content(MARK) == b"boot-1"


@pytest.mark.parametrize("follows_again", [False, True])
@pytest.mark.parametrize("bad", [3, 8])
def test_frames_that_a_log_led_show_what_was_on_its_device_after_a_power_loss(follows_again, bad):
    """Until it follows again: then a later frame may say so of another device."""
    files = FaultyFiles()
    follow_and_lead(files, follows_again=follows_again)
    path = ROOT / "t-0" / f"{0:020}.log"
    frames = [header.frame_bytes for header, _ in iter_frames(files.content(path))]
    files.lose_power(random.Random(1))
    data = bytearray(files.content(path))
    data[sum(frames[:bad]) + 200] ^= 1
    files.overwrite(path, bytes(data))
    with open_directory(files) as directory:
        log = open_log(directory, OS)
        if follows_again:
            assert log.log_end_offset == bad
        else:
            with pytest.raises(CorruptRecordError, match="this is no torn tail"):
                _ = log.log_end_offset


def test_frames_that_a_log_followed_with_before_it_led_show_nothing():
    """They are of the leader before it."""
    for seed in range(20):
        followers = FaultyFiles()
        follow(FaultyFiles(), followers, OS)
        followers.overwrite(MARK, b"boot-1 1")  # it leads in epoch 1, and has written nothing in it
        followers.lose_power(random.Random(seed))
        with open_directory(followers) as following:
            assert 3 <= open_log(following, OS).log_end_offset <= 12


def test_mark_is_written_when_its_content_changes_and_not_with_each_append():
    """Each time costs fsyncs."""
    files = FaultyFiles()
    follow_and_lead(files, follows_again=True)
    written = [
        path for operation, path in files.calls if operation == "rename" and path.name.startswith(UNFLUSHED_NAME)
    ]
    assert len(written) == 4
