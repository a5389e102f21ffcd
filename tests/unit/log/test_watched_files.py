"""The oldest call that a disk has not answered is known, whatever it is and whichever thread made it."""

import threading
from pathlib import Path

import pytest

from broker_runtime.log import LogDirectory
from broker_runtime.log.watched_files import WatchedFiles
from broker_runtime.membership.disk_room import DiskRoom
from tests.clocks import ReadClock
from tests.unit.standing_disk import LIMIT_S, StandingFiles

LIMIT_OF_STALL_S = 30.0
PATH = Path("/data")


class Disk:
    """A directory over watched files, with a clock that only tests move."""

    def __init__(self):
        self.now_s = 1_000.0
        self.standing = StandingFiles()
        self.watched = WatchedFiles(self.standing, clock=ReadClock(lambda: self.now_s))
        self.directory = LogDirectory.open(PATH, cluster_id="c", broker_id=1, files=self.watched)
        self.room = DiskRoom(self.directory, min_free_bytes=0, stall_limit_s=LIMIT_OF_STALL_S)
        self.threads = []

    def begin(self, call):
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        self.threads.append(thread)
        self.standing.wait_until_one_waits()

    def go_on(self):
        self.standing.go_on()
        for thread in self.threads:
            thread.join(LIMIT_S)


@pytest.fixture
def disk():
    made = Disk()
    yield made
    made.go_on()


def test_oldest_call_is_none_when_all_have_returned(disk):
    """A disk that answers is no older than its calls."""
    disk.now_s += 3_600
    assert disk.watched.oldest_call_s == 0.0
    assert disk.room.takes_appends


def test_disk_is_stalled_only_after_the_limit_and_until_it_answers(disk):
    """It accepts records until one call has waited for longer than the limit, and again when that has returned."""
    disk.standing.stand_still("free_bytes")
    disk.begin(disk.room.look)
    disk.now_s += LIMIT_OF_STALL_S
    assert disk.watched.oldest_call_s == LIMIT_OF_STALL_S
    assert (disk.room.stands_still, disk.room.takes_appends, disk.room.trouble) == (False, True, None)
    disk.now_s += 0.001
    assert (disk.room.stands_still, disk.room.takes_appends, disk.room.trouble) == (True, False, "stands still")
    disk.go_on()
    assert (disk.room.stands_still, disk.room.takes_appends, disk.room.trouble) == (False, True, None)


def test_oldest_of_several_calls_counts(disk):
    """A younger call that returns, or a later one, changes nothing."""
    disk.standing.stand_still("free_bytes")
    disk.begin(lambda: disk.watched.free_bytes(PATH))
    disk.now_s += 10
    disk.begin(lambda: disk.watched.free_bytes(PATH))
    disk.now_s += 5
    assert disk.watched.list(PATH)  # answers
    assert disk.watched.file_size(PATH / "none") is None
    assert disk.watched.oldest_call_s == 15


def test_call_that_fails_has_returned(disk):
    """An error is an answer."""
    with pytest.raises(OSError, match="none"):
        disk.watched.open(PATH / "none")
    disk.now_s += 100
    assert disk.watched.oldest_call_s == 0.0


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("open", lambda files: files.open(PATH / "new", create=True)),
        ("sync", lambda files: files.sync(files.open(PATH / "new", create=True))),
        ("write", lambda files: files.write(files.open(PATH / "new", create=True), [b"x"], 0)),
        ("rename", lambda files: files.rename(PATH / "meta.json", PATH / "other")),
        ("free_bytes", lambda files: files.free_bytes(PATH)),
    ],
)
def test_each_call_that_waits_for_the_disk_is_watched(disk, operation, call):
    """Whichever operation stalls, it is noticed."""
    disk.standing.stand_still(operation)
    disk.begin(lambda: call(disk.watched))
    disk.now_s += 7
    assert disk.watched.oldest_call_s == 7


def test_watched_files_behave_like_those_below(disk):
    """Writes through them reach the files below."""
    descriptor = disk.watched.open(PATH / "f", create=True)
    disk.watched.write(descriptor, [b"ab", b"c"], 0)
    disk.watched.sync(descriptor)
    assert disk.watched.read(descriptor, 3, 0) == b"abc"
    assert disk.watched.size(descriptor) == 3
    disk.watched.close(descriptor)
    disk.watched.rename(PATH / "f", PATH / "g")
    assert disk.watched.file_size(PATH / "g") == 3
    disk.watched.unlink(PATH / "g")
    assert disk.watched.file_size(PATH / "g") is None
