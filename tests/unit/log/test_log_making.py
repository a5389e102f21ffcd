"""Creating and deleting logs: the cost, and the state after a death at any moment."""

from __future__ import annotations

import random
import uuid

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.checkpoint import encode_entries
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from tests.unit.log.log_samples import (
    ROOT,
    SMALL,
    append,
    fill,
    frame,
    open_directory,
    open_log,
    read_frames,
    segment_path,
)

OTHER_ID = uuid.UUID("11111111-2222-3333-4444-555555555555")
MOMENTS = 400


class ProcessDies(BaseException):
    """Simulates the death of the process."""


class DyingFiles(FaultyFiles):
    """The files of a process that dies before the n-th effect: nothing happens afterwards."""

    calls_left: int | None = None

    def _fault(self, operation, path):
        if self.calls_left is not None:
            if not self.calls_left:
                raise ProcessDies
            self.calls_left -= 1
        return super()._fault(operation, path)

    def dies_within(self, moment, act) -> bool:
        self.calls_left = moment
        try:
            act()
        except ProcessDies:
            return True
        finally:
            self.calls_left = None
        return False


def syncs(files):
    return [path for operation, path in files.calls if operation.startswith("sync")]


def test_creating_many_logs_costs_no_fsync():
    """Creating 1,000 partitions takes about a second; nothing is acknowledged yet."""
    files = FaultyFiles()
    directory = open_directory(files)
    open_log(directory, partition=0)
    files.calls.clear()
    for number in range(1, 50):
        open_log(directory, partition=number)
    assert not syncs(files)
    assert len(directory.partitions) == 50


def test_first_use_makes_a_created_log_durable_before_anything_is_acknowledged():
    """A partition's files and directory are durable before its first acknowledgement."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    files.calls.clear()
    append(log, frame())
    first_write = files.calls.index(("write", ROOT / "t-0" / f"{0:020d}.log"))
    before = files.calls[:first_write]
    for call in (
        ("sync", ROOT / "t-0" / "partition.json"),
        ("sync_directory", ROOT / "t-0"),
        ("sync_directory", ROOT),
    ):
        assert call in before


def test_first_use_of_a_new_log_costs_few_fsyncs():
    """Empty files need no recovery."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    files.calls.clear()
    assert log.log_end_offset == 0
    assert len(syncs(files)) <= 5


def test_checkpoints_name_every_created_log_with_the_first_one_that_is_used():
    """A log that anybody relied on is missed if it is gone; 1,000 new partitions do not cost 1,000 large files."""
    files = FaultyFiles()
    directory = open_directory(files)
    logs = [open_log(directory, partition=number) for number in range(50)]
    files.calls.clear()
    for log in logs:
        assert log.log_end_offset == 0
    assert len([path for path in syncs(files) if path.name == "recovery-point-checkpoint.tmp"]) == 1
    files.lose_power(random.Random(0))
    for number in range(50):
        files.remove_tree(ROOT / f"t-{number}")
    assert len(open_directory(files).missing) == 50


def test_log_whose_directory_is_gone_is_not_forgotten_before_it_is_replaced():
    files = FaultyFiles()
    with open_directory(files) as directory:
        fill(open_log(directory), 5)
    files.remove_tree(ROOT / "t-0")
    for _ in range(2):
        with open_directory(files) as directory:
            directory.checkpoint()
            assert directory.missing == {TopicPartition("t", 0)}
    with open_directory(files) as directory:
        assert open_log(directory).log_end_offset == 0
        assert not directory.missing
    assert not open_directory(files).missing


def _directory_of(files, name="t-0"):
    return {each: files.content(ROOT / name / each) for each in files.list(ROOT / name)}


def _put_back(files, content, name="t-0"):
    files.make_directory(ROOT / name)
    for each, data in content.items():
        files.overwrite(ROOT / name / each, data)


def _lose_checkpoints(files):
    for name in ("recovery-point-checkpoint", "high-watermark-checkpoint", "log-start-offset-checkpoint"):
        if files.file_size(ROOT / name) is not None:
            files.unlink(ROOT / name)


def _missed(clean=True):
    """A log that had 8 records and is missing now; a copy of it from when it had 5, and the last one."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        fill(open_log(directory), 5)
    older = _directory_of(files)
    with open_directory(files) as directory:
        fill(open_log(directory), 3, start=5)
    last = _directory_of(files)
    files.remove_tree(ROOT / "t-0")
    open_directory(files).close(clean=clean)
    return files, older, last


@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_shorter_copy_of_a_missing_log_is_damaged_and_not_served(has_checkpoints, clean, restarts):
    """The former end of the log is remembered until it counts as put back, whatever became of the checkpoints."""
    files, older, _ = _missed(clean)
    _put_back(files, older)
    for _ in range(restarts):
        open_directory(files).close(clean=clean)
    if not has_checkpoints:
        _lose_checkpoints(files)
    directory = open_directory(files)
    assert directory.put_back == {TopicPartition("t", 0)}
    log = open_log(directory)
    with pytest.raises(CorruptRecordError, match="the log ends there, but records up to offset 7 were written"):
        _ = log.log_end_offset
    assert log.is_damaged


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_log_that_is_put_back_unchanged_is_verified_completely_and_served(has_checkpoints):
    """It was out of reach, so records below the recovery point are verified, too."""
    files, _, last = _missed()
    _put_back(files, last)
    if not has_checkpoints:
        _lose_checkpoints(files)
    directory = open_directory(files)
    log = open_log(directory)
    assert (log.log_end_offset, len(read_frames(log))) == (8, 8)
    directory.close()
    files.remove_tree(ROOT / "t-0")
    with open_directory(files):
        pass
    segment = segment_path(0).name
    data = bytearray(last[segment])
    data[-1] ^= 1
    _put_back(files, {**last, segment: bytes(data)})
    log = open_log(open_directory(files))
    with pytest.raises(CorruptRecordError, match="Records up to offset 7 were acknowledged"):
        _ = log.log_end_offset


def test_high_watermark_of_a_log_that_is_put_back_is_not_above_the_committed_end():
    """Uncommitted records may have to be truncated."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        fill(log, 3)
        end = fill(log, 2, start=3, commit=False)
        log.flush(end)
    last = _directory_of(files)
    files.remove_tree(ROOT / "t-0")
    open_directory(files).close()
    _put_back(files, last)
    log = open_log(open_directory(files))
    assert (log.high_watermark, log.log_end_offset) == (3, 5)


def test_log_that_was_put_back_and_accepted_is_like_any_other():
    """This holds even if it is shorter by now, as it may be from then on."""
    files, _, last = _missed()
    _put_back(files, last)
    with open_directory(files) as directory:
        directory.forget_put_back()
        log = open_log(directory)
        assert log.truncate_to(2) == 2
        directory.close(clean=False)
    directory = open_directory(files)
    assert not directory.put_back
    assert open_log(directory).log_end_offset == 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_asked_for", [True, False])
def test_log_that_was_put_back_is_verified_by_its_first_use_after_any_number_of_starts(is_asked_for, clean):
    """The broker registered with it, and stopped before anybody used it."""
    files, older, last = _missed()
    segment = segment_path(0).name
    data = bytearray(last[segment])
    data[200] ^= 1
    for content, words in ((older, "the log ends there"), ({**last, segment: bytes(data)}, "were acknowledged")):
        _put_back(files, content)
        for _ in range(2):
            directory = open_directory(files)
            directory.forget_put_back()
            if is_asked_for:
                open_log(directory)
            directory.checkpoint()
            directory.close(clean=clean)
        with pytest.raises(CorruptRecordError, match=words):
            _ = open_log(open_directory(files)).log_end_offset
        files.kill()


def test_log_that_was_put_back_and_deleted_is_not_missed():
    files, _, last = _missed()
    _put_back(files, last)
    with open_directory(files) as directory:
        directory.delete(TopicPartition("t", 0))
    assert not open_directory(files).missing


def test_missing_logs_of_an_older_version_are_put_back_as_before():
    """The older version recorded 0 for logs that were put back."""
    files, _, last = _missed()
    _put_back(files, last)
    files.overwrite(ROOT / "missing-logs", encode_entries([("t", 0, 0)]))
    directory = open_directory(files)
    assert directory.put_back == {TopicPartition("t", 0)}
    assert open_log(directory).log_end_offset == 8


def test_log_whose_directory_was_emptied_is_damaged_and_not_recreated():
    """Its records were acknowledged."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        fill(open_log(directory), 5)
    for name in files.list(ROOT / "t-0"):
        files.unlink(ROOT / "t-0" / name)
    log = open_log(open_directory(files))
    with pytest.raises(CorruptRecordError, match="has no segment, but records below offset 5 were written there"):
        _ = log.log_end_offset
    assert log.is_damaged


@pytest.mark.parametrize("seed", range(30))
def test_power_loss_while_logs_are_created_leaves_them_usable(seed):
    """Acknowledged records are there; logs that were only created can be used."""
    rng = random.Random(seed)
    files = FaultyFiles()
    directory = open_directory(files)
    logs = [open_log(directory, partition=number) for number in range(4)]
    acknowledged = {number: fill(logs[number], rng.randrange(3)) for number in rng.sample(range(4), 2)}
    files.lose_power(rng)
    directory = open_directory(files)
    for number in range(4):
        log = open_log(directory, partition=number)
        assert log.log_end_offset == acknowledged.get(number, 0)
        assert append(log, frame()) == acknowledged.get(number, 0) + 1
    assert not [name for name in files.list(ROOT) if name.endswith(".stray") and files.list(ROOT / name)]


@pytest.mark.parametrize("power", [False, True])
def test_death_at_any_moment_of_the_first_use_keeps_another_topics_log_and_never_reads_it(power):
    """A directory whose topic id does not match is set aside whole, whenever the process dies."""
    for moment in range(MOMENTS):
        files = DyingFiles()
        with open_directory(files) as directory:
            fill(open_log(directory), 5)
            frames = [data for _, data in read_frames(open_log(directory))]
        directory = open_directory(files)
        log = directory.log("t", 0, OTHER_ID, SMALL)
        died = files.dies_within(moment, lambda log=log: append(log, frame(seed=9)))
        files.lose_power(random.Random(moment)) if power else files.kill()
        log = open_directory(files).log("t", 0, OTHER_ID, SMALL)
        assert log.high_watermark <= 1
        end = log.log_end_offset
        assert end in ((0, 1) if died else (1,))
        assert len(read_frames(log)) == end
        assert append(log, frame()) == end + 1
        kept = [name for name in files.list(ROOT) if name.endswith(".stray")]
        logs = [
            files.content(ROOT / name / f"{0:020d}.log")
            for name in kept
            if files.file_size(ROOT / name / f"{0:020d}.log")
        ]
        assert logs[0] == b"".join(frames)
        if not died:
            return
    pytest.fail("the process always died: more moments than were tried")


def test_death_at_any_moment_of_a_deletion_leaves_each_log_whole_or_gone():
    """The next start completes the deletion of many logs, or it had not begun."""
    for moment in range(MOMENTS):
        files = DyingFiles()
        directory = open_directory(files)
        ends = {number: fill(open_log(directory, partition=number), 2 + number) for number in range(4)}
        directory.checkpoint()
        gone = [TopicPartition("t", number) for number in (0, 1, 2)]
        died = files.dies_within(moment, lambda directory=directory, gone=gone: directory.delete_all(gone))
        files.kill()
        directory = open_directory(files)
        left = {at.partition for at in directory.partitions}
        assert 3 in left
        assert not [name for name in files.list(ROOT) if name.endswith(".deleted")]
        for number in range(4):
            log = open_log(directory, partition=number)
            assert log.log_end_offset == (ends[number] if number in left else 0)
            append(log, frame())
        if not died:
            assert left == {3}
            return
    pytest.fail("the process always died: more moments than were tried")


def test_deleting_many_logs_costs_the_fsyncs_of_one():
    """Deleting 1,000 partitions takes seconds."""
    costs = []
    for count in (1, 40):
        files = FaultyFiles()
        directory = open_directory(files)
        for number in range(40):
            open_log(directory, partition=number)
        directory.checkpoint()
        files.calls.clear()
        directory.delete_all([TopicPartition("t", number) for number in range(count)])
        costs.append(len(syncs(files)))
        assert len(directory.partitions) == 40 - count
    assert costs[0] == costs[1]


def test_failed_deletion_can_be_repeated():
    """A log that a disk error left undeleted is still a log; a deleted one is not."""
    files = FaultyFiles()
    directory = open_directory(files)
    keys = [TopicPartition("t", number) for number in range(4)]
    for key in keys:
        fill(open_log(directory, partition=key.partition), 2)
    files.faults.append(
        Fault("rename", after=2, times=1, matches=lambda path: path.parent == ROOT and "-" in path.name)
    )
    with pytest.raises(OSError, match="Input/output error"):
        directory.delete_all(keys)
    assert directory.partitions == keys[2:]
    directory.delete_all(keys)
    assert directory.partitions == []
    directory.close()
    with open_directory(files) as directory:
        assert [name for name in files.list(ROOT) if name.startswith("t-")] == []
