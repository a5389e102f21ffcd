"""One data directory: its lock, its identity, its start and its logs."""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from broker_runtime.contract.errors import (
    CorruptRecordError,
    DirectoryLockedError,
    InconsistentTopicIdError,
    LogStorageError,
    NotLeaderOrFollowerError,
    SetupError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import LogDirectory
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.files import RealFiles
from broker_runtime.log.identity import META_NAME, PartitionIdentity, require_apart
from tests.unit.log.log_samples import (
    ROOT,
    SMALL,
    TOPIC_ID,
    append,
    fill,
    frame,
    open_directory,
    open_log,
    read_frames,
)

OTHER_ID = uuid.UUID("11111111-2222-3333-4444-555555555555")


def test_open_refuses_a_directory_in_use_and_names_the_process():
    """The error names the owner of the lock; closing releases it."""
    files = FaultyFiles()
    directory = open_directory(files)
    with pytest.raises(DirectoryLockedError, match=f"in use by process {os.getpid()}"):
        open_directory(files)
    directory.close()
    open_directory(files).close()


@pytest.mark.parametrize(("cluster", "broker"), [("other", 1), ("test", 2)])
def test_open_refuses_a_directory_of_another_cluster_or_broker(cluster, broker):
    """By meta.json a directory belongs to one broker of one cluster."""
    files = FaultyFiles()
    open_directory(files).close()
    with pytest.raises(DirectoryLockedError, match="belongs to broker 1 of cluster test"):
        LogDirectory.open(ROOT, cluster_id=cluster, broker_id=broker, files=files)
    open_directory(files).close()  # the refused one released the lock


def refused(*paths: Path) -> str:
    with pytest.raises(SetupError) as raised:
        require_apart(RealFiles(), paths)
    return raised.value.message


def test_equal_or_nested_data_directories_of_a_broker_are_refused(tmp_path: Path) -> None:
    """Deleting a log deletes everything below it: both directories are named before anything is created."""
    data, other, link = tmp_path / "data", tmp_path / "other", tmp_path / "link"
    link.symlink_to(data)
    require_apart(RealFiles(), [data, other])
    assert refused(data, data) == f"log.dirs: {data} and {data} are the same directory; name it once"
    assert refused(other, data, link) == f"log.dirs: {data} and {link} are the same directory; name it once"
    assert f"{data}/a/b lies in {data}" in refused(data, data / "a" / "b")
    assert f"{link}/a lies in {data}" in refused(link / "a", data)
    assert f"{data}/../data/a lies in {data}" in refused(data, data / ".." / "data" / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_directory_in_or_around_a_data_directory_is_refused(tmp_path: Path) -> None:
    """It does not matter whether the other broker runs, or whether its identity can be read."""
    data, link = tmp_path / "data", tmp_path / "link"
    with open_directory(RealFiles(), data) as directory:
        append(open_log(directory), frame())
        link.symlink_to(data / "t-0")
        require_apart(RealFiles(), [data])
        for path in (data / "t-0", data / "t-0" / "deeper", link):
            assert refused(path).startswith(f"log.dirs: {path} lies in {data}, which is a data directory")
        assert f"{data}, in {tmp_path}, is a data directory" in refused(tmp_path)
    assert str(data) in refused(data / "t-0")
    (data / META_NAME).write_bytes(b"{")
    assert str(data) in refused(data / "t-0")
    require_apart(RealFiles(), [data, tmp_path / "another"])


def test_directory_beside_foreign_files_is_no_data_directory(tmp_path: Path) -> None:
    """Other programs have a meta.json, too."""
    (tmp_path / META_NAME).write_text('{"name": "mine"}')
    (tmp_path / "child").mkdir()
    (tmp_path / "child" / META_NAME).write_text("[]")
    require_apart(RealFiles(), [tmp_path / "data"])
    require_apart(RealFiles(), [tmp_path])
    open_directory(RealFiles(), tmp_path / "ours").close()
    for meta, place in ((tmp_path, tmp_path / "data"), (tmp_path / "child", tmp_path)):
        (meta / META_NAME).write_bytes((tmp_path / "ours" / META_NAME).read_bytes())
        assert "is a data directory" in refused(place), "by its content, and not by its name"
        (meta / META_NAME).unlink()


def test_open_refuses_a_damaged_identity_and_says_what_to_do():
    """A flipped bit in meta.json is reported, not ignored."""
    files = FaultyFiles()
    open_directory(files).close()
    data = files.content(ROOT / "meta.json").replace(b"test", b"tesu")
    files.overwrite(ROOT / "meta.json", data)
    with pytest.raises(CorruptRecordError, match=r"meta\.json is damaged.*remove meta\.json and start again"):
        open_directory(files)


def test_open_reads_names_and_checkpoints_only_however_many_logs_there_are():
    """Start is lazy: neither opening the directory nor requesting a log touches a log's files."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        for number in range(50):
            fill(open_log(directory, partition=number), 2)
    touched = []
    files.faults.clear()
    original = files.open

    def open_and_note(path, **more):
        touched.append(path)
        return original(path, **more)

    files.open = open_and_note
    directory = open_directory(files)
    assert len(directory.partitions) == 50
    assert not [path for path in touched if path.parent != ROOT]
    logs = [open_log(directory, partition=number) for number in range(50)]
    assert not [path for path in touched if path.parent != ROOT]
    assert not any(log.is_loaded for log in logs)
    assert logs[7].log_end_offset == 2
    assert {path.parent.name for path in touched if path.parent != ROOT} == {"t-7"}


def test_clean_start_trusts_the_last_segments_end_and_verifies_no_frame():
    """A cleanly closed log costs a read of its last headers, however large it is."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        end = fill(open_log(directory), 300, rows=3)
    read: list[int] = []
    original = files.read
    files.read = lambda descriptor, length, position: read.append(length) or original(descriptor, length, position)
    with open_directory(files) as directory:
        read.clear()
        log = open_log(directory)
        assert log.log_end_offset == end
        assert log.high_watermark == end
        assert sum(read) < 20_000


def test_clean_mark_is_gone_while_the_directory_is_in_use():
    """A crash after a clean start is an unclean stop."""
    files = FaultyFiles()
    open_directory(files).close()
    assert files.file_size(ROOT / "clean-shutdown") is not None
    directory = open_directory(files)
    assert files.file_size(ROOT / "clean-shutdown") is None
    directory.close(clean=False)
    assert files.file_size(ROOT / "clean-shutdown") is None


def test_log_not_recovered_before_a_clean_stop_is_recovered_after_it():
    """A clean stop proves nothing about logs that nobody opened since a crash."""
    files = FaultyFiles()
    directory = open_directory(files)
    for number in (0, 1):
        fill(open_log(directory, partition=number), 5)
    files.kill()
    with open_directory(files) as directory:
        open_log(directory, partition=0).log_end_offset  # noqa: B018
        open_log(directory, partition=1)
    path = ROOT / "t-1" / f"{0:020d}.log"
    data = bytearray(files.content(path))
    data[-30] ^= 1  # in the last frame, which only recovery verifies
    files.overwrite(path, bytes(data))
    with open_directory(files) as directory:
        assert open_log(directory, partition=0).log_end_offset == 5
        assert open_log(directory, partition=1).log_end_offset == 4


@pytest.mark.parametrize("is_identified", [True, False])
@pytest.mark.parametrize("found", [("t", 1), ("u", 0)])
def test_directory_of_another_log_is_damage_when_the_log_is_relied_on(found, is_identified):
    """An empty log in its place would count as everything committed. Nothing is read, and the files stay."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        topic_id = TOPIC_ID if found[0] == "t" else OTHER_ID
        fill(directory.log(*found, topic_id, SMALL), 3)
        fill(open_log(directory), 5)
    files.remove_tree(ROOT / "t-0")
    files.rename(ROOT / f"{found[0]}-{found[1]}", ROOT / "t-0")
    if not is_identified:
        files.unlink(ROOT / "t-0" / "partition.json")
    with open_directory(files) as directory:
        log = directory.log("t", 0, TOPIC_ID, SMALL, is_counted_on=True)
        with pytest.raises(CorruptRecordError, match="is not the directory that the replica had"):
            _ = log.log_end_offset
        assert log.is_damaged
        assert files.file_size(ROOT / "t-0" / f"{0:020d}.log")
        directory.set_aside_damaged(TopicPartition("t", 0))
        assert open_log(directory).log_end_offset == 0


def test_directories_that_were_swapped_are_both_kept_when_they_are_set_aside():
    """Each holds the other partition's records, which may be nowhere else."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        for number in range(2):
            fill(open_log(directory, partition=number), 3)
    for old, new in (("t-0", "x"), ("t-1", "t-0"), ("x", "t-1")):
        files.rename(ROOT / old, ROOT / new)
    with open_directory(files) as directory:
        for number in range(2):
            log = directory.log("t", number, TOPIC_ID, SMALL, is_counted_on=True)
            with pytest.raises(CorruptRecordError):
                _ = log.log_end_offset
        for number in range(2):
            directory.set_aside_damaged(TopicPartition("t", number))
            assert open_log(directory, partition=number).log_end_offset == 0
    assert len([name for name in files.list(ROOT) if name.endswith(".stray")]) == 2


def test_directory_of_another_topic_id_is_set_aside_and_never_read():
    """A directory whose topic id does not match is set aside."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        fill(open_log(directory), 5)
    with open_directory(files) as directory:
        log = directory.log("t", 0, OTHER_ID, SMALL)
        assert log.log_end_offset == 0
        assert append(log, frame()) == 1
        [stray] = [name for name in files.list(ROOT) if name.endswith(".stray")]
        assert files.file_size(ROOT / stray / f"{0:020d}.log")
    with open_directory(files) as directory:
        assert directory.partitions == [TopicPartition("t", 0)]
        assert directory.log("t", 0, OTHER_ID, SMALL).log_end_offset == 1


def test_log_in_use_is_not_returned_for_another_topic_id():
    """A recreated topic waits for the deletion of the old one."""
    directory = open_directory()
    open_log(directory)
    with pytest.raises(InconsistentTopicIdError):
        directory.log("t", 0, OTHER_ID, SMALL)


def test_directory_of_another_topic_id_has_none_of_its_frames_read():
    """The first use sets it aside before it opens anything else in it."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        fill(open_log(directory), 5)
    opened = []
    original = files.open

    def open_and_note(path, **more):
        opened.append((path, files.file_size(path)))
        return original(path, **more)

    with open_directory(files) as directory:
        log = directory.log("t", 0, OTHER_ID, SMALL)
        files.open = open_and_note
        assert log.high_watermark == 0
        assert [path.name for path, size in opened if size] == ["partition.json", "partition.json"]


def test_closed_directory_writes_nothing_more():
    """Another process may have the directory by then."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    append(log, frame())
    directory.close(clean=False)
    files.calls.clear()
    append(log, frame())
    with pytest.raises(LogStorageError, match="/data is closed"):
        directory.checkpoint()
    assert not [path for _, path in files.calls if path.parent == ROOT]


def test_recreated_topic_begins_empty_even_after_a_crash():
    """W20: checkpoints of the deleted topic's log do not apply to the new one's."""
    files = FaultyFiles()
    directory = open_directory(files)
    fill(open_log(directory), 5)
    directory.checkpoint()
    directory.delete(TopicPartition("t", 0))
    assert directory.partitions == []
    fill(directory.log("t", 0, OTHER_ID, SMALL), 2)
    files.kill()
    with open_directory(files) as directory:
        log = directory.log("t", 0, OTHER_ID, SMALL)
        assert (log.log_end_offset, len(read_frames(log))) == (2, 2)


def test_reader_that_opens_a_file_while_its_directory_is_renamed_leaves_nothing_behind(caplog):
    """A file opened between the decision and the rename is not taken for the new log's file of that name."""
    files = FaultyFiles()
    directory = open_directory(files)
    fill(open_log(directory), 5)
    original = files.rename

    def rename_after_a_reader(source, target):
        if source.name == "t-0":
            directory.open_files.hold(source / f"{0:020d}.log").release()
        original(source, target)

    files.rename = rename_after_a_reader
    directory.delete(TopicPartition("t", 0))
    log = directory.log("t", 0, OTHER_ID, SMALL)
    fill(log, 2)
    assert len(read_frames(log)) == 2
    assert "cut torn tail" not in caplog.text, "the new log found the old one's bytes"
    assert files.content(ROOT / "t-0" / f"{0:020d}.log") == b"".join(data for _, data in read_frames(log))


def test_deleted_log_refuses_and_leaves_no_file():
    """W20: deletion removes the directory, and calls in flight fail."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        fill(log, 5)
        directory.delete(TopicPartition("t", 0))
        directory.delete(TopicPartition("t", 0))
        with pytest.raises(NotLeaderOrFollowerError, match="t-0 is not on this broker any more"):
            append(log, frame())
        assert not [name for name in files.list(ROOT) if name.startswith("t-0")]


def test_deletion_cut_short_by_a_crash_is_finished_at_the_next_start():
    """A renamed directory is no longer a log."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        fill(open_log(directory), 5)
    files.rename(ROOT / "t-0", ROOT / ("t-0." + "a" * 32 + ".deleted"))
    with open_directory(files) as directory:
        assert directory.partitions == []
        assert not [name for name in files.list(ROOT) if name.startswith("t-0")]


def test_longest_topic_names_can_be_deleted_and_set_aside(tmp_path):
    """Names of 249 characters leave no room for a suffix, so the name is cut."""
    with open_directory(RealFiles(), tmp_path) as directory:
        topic = "x" * 249
        append(directory.log(topic, 99_999, TOPIC_ID, SMALL), frame())
        directory.set_aside(TopicPartition(topic, 99_999))
        append(directory.log(topic, 99_999, TOPIC_ID, SMALL), frame())
        directory.delete(TopicPartition(topic, 99_999))
        assert directory.partitions == []


def schema_versions(files):
    identity = PartitionIdentity.read(files, ROOT / "t-0")
    assert identity is not None
    return identity.schemas


def test_schemas_are_kept_beside_the_segments():
    """Each partition's directory has every version of the schema."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = directory.log("t", 0, TOPIC_ID, SMALL, [(0, b"zero")])
        append(log, frame())
        log.add_schemas([(0, b"zero"), (1, b"one")])
    assert schema_versions(files) == ((0, b"zero"), (1, b"one"))
    with open_directory(files) as directory:
        log = directory.log("t", 0, TOPIC_ID, SMALL, [(2, b"two")])
        log.add_schemas([(3, b"three")])
        assert directory.log("t", 0, TOPIC_ID, SMALL, [(4, b"four")]) is log
        assert not log.is_loaded, "a topic's new column loads none of its logs"
        append(log, frame())
        assert schema_versions(files) == ((0, b"zero"), (1, b"one"), (2, b"two"), (3, b"three"), (4, b"four"))


def test_directory_knows_whether_its_last_stop_was_clean(tmp_path):
    """After an unclean stop a broker leaves the in-sync sets; a new disk has no acknowledged record."""

    def reopened(clean):
        with_log = LogDirectory.open(tmp_path, cluster_id="c", broker_id=1)
        was_clean = with_log.was_clean
        with_log.close(clean=clean)
        return was_clean

    assert [reopened(clean) for clean in (True, False, True, True)] == [False, True, False, True]


@pytest.mark.parametrize("is_stopped", [True, False])
def test_copy_of_a_running_brokers_data_directory_is_recognised(tmp_path, is_stopped):
    """Inode numbers reveal the copy; a copy from after an orderly stop has everything."""
    original, copy, moved = tmp_path / "original", tmp_path / "copy", tmp_path / "moved"
    directory = LogDirectory.open(original, cluster_id="c", broker_id=1)
    assert not directory.is_copy
    directory.remember_epoch(3)
    assert not directory.is_copy
    directory.close(clean=is_stopped)
    shutil.copytree(original, copy)
    original.rename(moved)

    def is_copy(path):
        with LogDirectory.open(path, cluster_id="c", broker_id=1) as opened:
            found = opened.is_copy
            opened.remember_epoch(4)
            assert not opened.is_copy
            return found

    assert is_copy(copy) == (not is_stopped)
    assert not is_copy(copy)
    assert not is_copy(moved)
    (moved / "meta.json").unlink()  # as its damage requires
    assert not is_copy(moved)


def test_copy_is_recognised_even_with_the_same_inode_numbers(tmp_path):
    """A file system reuses inode numbers for new files, but their creation times differ."""
    path, backup = tmp_path / "data", tmp_path / "backup"
    directory = LogDirectory.open(path, cluster_id="c", broker_id=1)
    directory.remember_epoch(3)
    disk, born_ns = directory.disk, RealFiles().born_ns(path / "meta.json")
    directory.close(clean=False)
    assert disk.born_ns == born_ns
    assert disk.is_of(disk.inode, born_ns)
    assert not replace(disk, born_ns=7).is_of(disk.inode, 8)
    assert replace(disk, born_ns=7).is_of(disk.inode, 0)  # a file system without creation times
    assert replace(disk, inode=0, born_ns=0).is_of(5, 6)  # written by an earlier version
    shutil.copytree(path, backup)
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    with LogDirectory.open(path, cluster_id="c", broker_id=1) as opened:
        assert opened.is_copy or not born_ns
