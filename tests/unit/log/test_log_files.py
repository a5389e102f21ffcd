"""The real file layer and the one in memory keep the same promises; and what the latter adds."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.log.files import RealFiles, copy_prefix, read_file, replace_file
from broker_runtime.log.open_files import OpenFiles


@pytest.fixture(params=["real", "memory"])
def place(request, tmp_path):
    """(files, an existing directory)."""
    files = RealFiles() if request.param == "real" else FaultyFiles()
    files.make_directory(tmp_path / "d")
    return files, tmp_path / "d"


def written(files, path: Path, data: bytes) -> int:
    descriptor = files.open(path, create=True)
    files.write(descriptor, [data], 0)
    return descriptor


def test_files_write_and_read_at_positions(place):
    """Writes gather buffers; reads are short only at the end."""
    files, directory = place
    descriptor = written(files, directory / "f", b"0123456789")
    files.write(descriptor, [b"ab", b"", memoryview(b"cd")], 4)
    assert files.read(descriptor, 100, 0) == b"0123abcd89"
    assert files.read(descriptor, 3, 8) == b"89"
    assert files.read(descriptor, 3, 50) == b""
    first, second = bytearray(4), bytearray(20)
    assert files.read_into(descriptor, [memoryview(first), memoryview(second)], 1) == 9
    assert (bytes(first), bytes(second[:5])) == (b"123a", b"bcd89")
    files.write(descriptor, [b"x"] * 1500, 10)
    assert files.size(descriptor) == files.file_size(directory / "f") == 1510
    files.sync(descriptor)
    files.drop_cached(descriptor)
    assert files.read(descriptor, 3, 8) == b"89x"
    files.close(descriptor)


def test_files_keep_an_open_file_when_its_name_is_removed(place):
    """Unlinked and replaced files stay readable through their descriptors."""
    files, directory = place
    one = written(files, directory / "one", b"one")
    two = written(files, directory / "two", b"two")
    files.rename(directory / "two", directory / "one")
    assert files.list(directory) == ["one"]
    assert read_file(files, directory / "one") == b"two"
    files.unlink(directory / "one")
    assert (files.read(one, 9, 0), files.read(two, 9, 0)) == (b"one", b"two")
    assert read_file(files, directory / "one") is None


def test_files_refuse_missing_files(place):
    """Missing files are FileNotFoundError, missing sizes None."""
    files, directory = place
    for call in (lambda: files.open(directory / "no"), lambda: files.unlink(directory / "no")):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(FileNotFoundError):
        files.list(directory / "no")
    assert files.file_size(directory / "no") is None
    files.remove_tree(directory / "no")


def test_files_directories_are_created_removed_and_renamed_with_their_content(place):
    """Trees are removed; a renamed directory takes its files along."""
    files, directory = place
    files.make_directory(directory / "a" / "b")
    files.close(written(files, directory / "a" / "b" / "f", b"x"))
    files.rename(directory / "a", directory / "c")
    assert files.is_directory(directory / "c")
    assert not files.is_directory(directory / "a")
    assert read_file(files, directory / "c" / "b" / "f") == b"x"
    files.remove_tree(directory / "c")
    assert files.list(directory) == []
    assert files.free_bytes(directory) > 0


def test_files_lock_is_exclusive_until_closed(place):
    """One holder at a time."""
    files, directory = place
    one, two = files.open(directory / "l", create=True), files.open(directory / "l")
    assert files.lock(one)
    assert not files.lock(two)
    files.close(one)
    assert files.lock(two)


def test_replace_and_copy_leave_no_temporary_file(place):
    """Small files are replaced whole; a stale temporary file is no obstacle."""
    files, directory = place
    files.close(written(files, directory / "f.tmp", b"stale and longer"))
    replace_file(files, directory / "f", b"new")
    assert read_file(files, directory / "f") == b"new"
    source = files.open(directory / "f")
    copy_prefix(files, source, directory / "f", 2)
    assert read_file(files, directory / "f") == b"ne"
    assert files.read(source, 9, 0) == b"new"
    assert files.list(directory) == ["f"]


def test_power_loss_keeps_what_was_synced_and_its_name():
    """Whatever `sync` and `sync_directory` returned for is there, whatever else is lost."""
    for seed in range(50):
        files = FaultyFiles()
        root = Path("/d")
        files.make_directory(root)
        replace_file(files, root / "kept", b"kept")
        descriptor = files.open(root / "kept")
        files.write(descriptor, [b"torn"], 4)
        files.close(written(files, root / "unsynced name", b"?"))
        files.lose_power(random.Random(seed))
        content = files.content(root / "kept")
        assert content[:4] == b"kept"
        assert b"torn".startswith(content[4:])
        with pytest.raises(OSError, match="Bad file descriptor"):
            files.read(descriptor, 1, 0)


def test_power_loss_really_loses_tears_and_keeps():
    """Over several seeds each fate of an unsynced write and name occurs."""
    fates, names = set(), set()
    for seed in range(60):
        files = FaultyFiles()
        files.make_directory(Path("/d"))
        replace_file(files, Path("/d/f"), b"")
        descriptor = files.open(Path("/d/f"))
        files.write(descriptor, [b"ab"], 0)
        files.open(Path("/d/new"), create=True)
        files.lose_power(random.Random(seed))
        fates.add(files.content(Path("/d/f")))
        names.add(files.file_size(Path("/d/new")) is not None)
    assert fates == {b"", b"a", b"ab"}
    assert names == {True, False}


def test_faults_strike_the_calls_they_name():
    """The n-th call of a kind on chosen paths fails the given number of times; a failing write may tear."""
    files = FaultyFiles(capacity_bytes=100)
    files.make_directory(Path("/d"))
    descriptor = files.open(Path("/d/f"), create=True)
    files.faults.append(Fault("write", after=1, times=1, torn_bytes=2))
    files.write(descriptor, [b"1"], 0)
    with pytest.raises(OSError, match="Input/output error"):
        files.write(descriptor, [b"2222"], 1)
    files.write(descriptor, [b"3"], 3)
    assert files.content(Path("/d/f")) == b"1223"
    with pytest.raises(OSError, match="No space left") as caught:
        files.write(descriptor, [b"x" * 200], 4)
    assert caught.value.errno == errno.ENOSPC
    assert len(files.content(Path("/d/f"))) == 100
    files.faults.append(Fault("sync", times=1))
    with pytest.raises(OSError, match="Input/output"):
        files.sync(descriptor)
    files.sync(descriptor)  # as on Linux: the second succeeds, and the data is lost all the same
    files.lose_power(random.Random(0))


def test_open_files_close_unused_files_beyond_the_limit(place):
    """The cache is bounded: files in use stay, others are closed, least recently used first."""
    files, directory = place
    cache = OpenFiles(files, limit=2)
    holds = [cache.hold(directory / str(number), create=True) for number in range(4)]
    assert cache.open_count() == 4
    for held in holds:
        held.release()
    cache.hold(directory / "9", create=True).release()
    assert cache.open_count() == 2
    cache.close()
    assert cache.open_count() == 0


def test_open_files_forget_a_replaced_path_but_not_its_holders(place):
    """After `forget` the path means the new file; holders of the old one continue to read it."""
    files, directory = place
    cache = OpenFiles(files)
    files.close(written(files, directory / "f", b"old"))
    old = cache.hold(directory / "f")
    replace_file(files, directory / "f", b"new")
    cache.forget(directory / "f")
    with cache.hold(directory / "f") as new:
        assert files.read(new.descriptor, 9, 0) == b"new"
    assert files.read(old.hold().descriptor, 9, 0) == b"old"
    old.release()
    old.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.read(old.descriptor, 1, 0)


def after_failed_sync_of(written: bytes, *, behind: bytes) -> tuple[FaultyFiles, int]:
    """``/d/f``, whose last write has just failed to sync, and its descriptor."""
    files = FaultyFiles()
    files.make_directory(Path("/d"))
    replace_file(files, Path("/d/f"), behind)
    descriptor = files.open(Path("/d/f"))
    files.write(descriptor, [written], len(behind))
    files.faults.append(Fault("sync", times=1))
    with pytest.raises(OSError, match="Input/output"):
        files.sync(descriptor)
    return files, descriptor


def test_failed_sync_leaves_pages_clean_that_the_device_does_not_have():
    """As on Linux reads see it, the next sync succeeds without writing it, and a power failure loses it."""
    for evict in (False, True):
        files, descriptor = after_failed_sync_of(b"lost", behind=b"old.")
        files.write(descriptor, [b"new."], 8)
        files.sync(descriptor)
        assert files.read(descriptor, 99, 0) == b"old.lostnew."
        if evict:
            files.drop_cached(descriptor)
            assert files.read(descriptor, 99, 0) == b"old.\0\0\0\0new."
        files.lose_power(random.Random(0))
        assert files.content(Path("/d/f")) == b"old.\0\0\0\0new."


def test_bytes_written_again_after_a_failed_sync_reach_the_device():
    """Writing makes pages dirty again, even with the same content."""
    files, descriptor = after_failed_sync_of(b"lost", behind=b"")
    files.write(descriptor, [b"lost"], 0)
    files.sync(descriptor)
    files.lose_power(random.Random(0))
    assert files.content(Path("/d/f")) == b"lost"


def test_descriptor_is_waited_for_when_none_is_left(tmp_path, monkeypatch):
    """A log operation would otherwise stop halfway. The wait is short: then the error is raised."""
    files, left = RealFiles(), [3]
    files.make_directory(tmp_path)
    open_, scan = os.open, os.scandir

    def failing(take):
        def maybe(*args):
            left[0] -= 1
            if left[0] >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return take(*args)

        return maybe

    monkeypatch.setattr(os, "open", failing(open_))
    monkeypatch.setattr(os, "scandir", failing(scan))
    files.close(files.open(tmp_path / "f", create=True))
    for use in (lambda: files.list(tmp_path), lambda: files.sync_directory(tmp_path)):
        left[0] = 3
        use()
    monkeypatch.setattr("broker_runtime.log.files._NO_DESCRIPTOR_LIMIT_S", 0.05)
    left[0] = 1_000
    with pytest.raises(OSError, match="Too many open files"):
        files.open(tmp_path / "f")
    left[0] = 0
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "none")
