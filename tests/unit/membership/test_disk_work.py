"""A stalled disk delays the creation, deletion and setting aside of its own logs, and nothing else."""

import threading
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_runtime.contract.errors import CorruptRecordError, LogStorageError, NotLeaderOrFollowerError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import LogDirectory
from broker_runtime.membership.disk_work import DiskWorker
from broker_runtime.membership.hosting import Hosting
from broker_runtime.membership.own_disks import OwnDisks
from broker_runtime.replication import PartitionRegistry
from tests.unit.membership.test_hosting import EPOCH, cluster, topic
from tests.unit.membership.test_hosting_roles import topic as replicated_topic
from tests.unit.standing_disk import LIMIT_S, StandingFiles

PATIENCE_S = 0.6  # work that is not stalled ends within it, even on a busy machine
A, B = Path("/a"), Path("/b")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@contextmanager
def working(*paths, limit_s=PATIENCE_S):
    """A worker for each directory, and a semaphore that counts late completions."""
    late, ended = threading.Semaphore(0), threading.Event()
    workers = {path: DiskWorker(path, on_late=late.release, limit_s=limit_s) for path in paths}

    def run(worker):
        while not ended.is_set():
            worker.step(LIMIT_S)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers.values()]
    for thread in threads:
        thread.start()
    try:
        yield workers, late
    finally:
        ended.set()
        for worker in workers.values():
            worker.wake()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


class Disks:
    """A broker's two directories in memory, and what it hosts in them."""

    def __init__(self, workers):
        self.files = {path: StandingFiles() for path in (A, B)}
        self.directories = {
            path: LogDirectory.open(path, cluster_id="c", broker_id=1, files=files)
            for path, files in self.files.items()
        }
        self.registry = PartitionRegistry()
        self.hosting = Hosting(
            self.registry, list(self.directories.values()), broker_id=1, min_free_bytes=0, disk_work=workers
        )

    def apply(self, *topics):
        self.hosting.apply(cluster(*topics), EPOCH)

    def led(self):
        return [str(partition) for partition in self.registry.hosted() if partition.is_leader]

    def held(self, path):
        return [str(at) for at in self.directories[path].partitions]


@pytest.fixture
def workers():
    with working(A, B) as made:
        yield made


@pytest.fixture
def disks(workers):
    return Disks(workers[0])


def await_late(workers):
    assert workers[1].acquire(timeout=LIMIT_S)


def test_disk_worker_returns_and_raises_what_the_work_does():
    """Work that ends in time behaves as if the caller had done it."""
    with working(A) as (workers, _):
        assert workers[A].do(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            workers[A].do(lambda: 1 // 0)
        assert workers[A].is_free


def test_disk_worker_refuses_other_work_until_late_work_is_done():
    """Work that takes too long continues alone; other work does not begin before its end, which is reported."""
    with working(A) as (workers, late):
        goes_on, done = threading.Event(), []

        def stuck():
            goes_on.wait(LIMIT_S)
            done.append("first")

        with pytest.raises(LogStorageError, match="/a is busy"):
            workers[A].do(stuck)
        assert not workers[A].is_free
        with pytest.raises(LogStorageError, match="/a is busy"):
            workers[A].do(lambda: done.append("refused"))
        goes_on.set()
        assert late.acquire(timeout=LIMIT_S)
        workers[A].do(lambda: done.append("second"))
        assert done == ["first", "second"]


def test_failed_late_work_is_reported_all_the_same():
    """The caller asks again, and learns the outcome."""
    with working(A) as (workers, late):
        goes_on = threading.Event()

        def fails():
            goes_on.wait(LIMIT_S)
            raise OSError("gone")

        with pytest.raises(LogStorageError):
            workers[A].do(fails)
        goes_on.set()
        assert late.acquire(timeout=LIMIT_S)
        assert workers[A].do(lambda: 1) == 1


def test_roles_on_other_disks_change_while_a_log_is_created_on_a_stalled_one(disks, workers):
    """Only logs for that disk wait, and they are hosted when the disk recovers; no log is created twice."""
    disks.apply(topic("s", (1, 1), number=2))
    assert (disks.held(A), disks.held(B)) == (["s-0"], ["s-1"])
    disks.files[A].stand_still("open")
    disks.apply(topic("s", (1, 1), number=2, leader_epoch=1), topic("t", (1, 1)))
    assert disks.led() == ["s-0", "s-1", "t-1"]
    assert {each.leader_epoch for each in disks.registry.hosted() if each.topic == "s"} == {1}
    assert list(disks.hosting.failures("t")) == [0]
    for epoch in (2, 3):  # more roles change, and nothing is created on the other disk instead
        disks.apply(topic("s", (1, 1), number=2, leader_epoch=epoch), topic("t", (1, 1)))
    assert disks.held(B) == ["s-1", "t-1"]
    disks.files[A].go_on()
    await_late(workers)
    disks.apply(topic("s", (1, 1), number=2, leader_epoch=4), topic("t", (1, 1)))
    assert disks.led() == ["s-0", "s-1", "t-0", "t-1"]
    assert (disks.held(A), disks.held(B)) == (["s-0", "t-0"], ["s-1", "t-1"])
    assert disks.hosting.failures("t") == {}


def test_new_logs_are_created_where_no_work_is_stalled(disks):
    """While one disk is stalled, a new topic's logs go to the other."""
    disks.apply(topic("s"))
    disks.files[B].stand_still("open")
    disks.apply(topic("s"), topic("t", number=3))  # would be on the second disk, and is stalled there
    disks.apply(topic("s"), topic("t", number=3), topic("u", (1, 1, 1), number=4))
    assert disks.led() == ["s-0", "u-0", "u-1", "u-2"]
    assert disks.held(A) == ["s-0", "u-0", "u-1", "u-2"]
    disks.files[B].go_on()


def test_log_whose_creation_failed_late_is_created_on_the_other_disk(disks, workers, monkeypatch):
    """A stalled creation that failed in the end is tried elsewhere."""
    disks.files[A].stand_still("open")
    disks.apply(topic("t"))
    assert disks.led() == []

    def fails(*args, **kwargs):
        raise OSError("no room")

    monkeypatch.setattr(disks.files[A], "write", fails)
    disks.files[A].go_on()
    await_late(workers)
    disks.apply(topic("t"))
    assert disks.led() == ["t-0"]
    assert (disks.held(A), disks.held(B)) == ([], ["t-0"])
    assert disks.hosting.directory_of(T0) is disks.directories[B]


def test_logs_of_a_deleted_topic_are_removed_from_other_disks_while_one_is_stalled(disks, workers):
    """Logs on that disk are deleted when it recovers, and are forgotten then."""
    disks.apply(topic("t", (1, 1)))
    topic_id = uuid.UUID(int=1).bytes
    disks.files[A].stand_still("open", "rename")
    with pytest.raises(LogStorageError):
        disks.hosting.remove_logs("t", topic_id)
    assert disks.held(B) == []
    disks.apply(topic("u", number=5))
    assert disks.led() == ["u-0"]
    disks.files[A].go_on()
    await_late(workers)
    disks.hosting.remove_logs("t", topic_id)
    assert disks.held(A) == []
    assert disks.hosting.directory_of(T0) is None
    assert disks.hosting.directory_of(T1) is None


def test_moved_replica_delays_nobody_while_its_disk_is_stalled(disks, workers):
    """It is not served any more at once; its files are deleted when the disk recovers."""
    disks.apply(topic("t", (1, 1)))
    disks.files[A].stand_still("rename")
    disks.apply(topic("t", (2, 1), leader_epoch=1))
    assert disks.led() == ["t-1"]
    with pytest.raises(NotLeaderOrFollowerError):
        disks.registry.find("t", 0)
    disks.files[A].go_on()
    await_late(workers)
    disks.apply(topic("t", (2, 1), leader_epoch=2))
    assert disks.held(A) == []
    assert disks.hosting.directory_of(T0) is None
    assert disks.hosting.failures("t") == {}


def test_registration_does_not_wait_for_a_stalled_disk(disks, workers):
    """Its directory keeps its epoch, as an unwritable one does; the others get the new one."""
    own = OwnDisks(list(disks.directories.values()), disk_work=workers[0])
    ids = {path: directory.disk.disk_id for path, directory in disks.directories.items()}
    own.remember(1, ())
    disks.files[A].stand_still("sync")
    assert own.remember(2, ()) == {ids[A]: 1, ids[B]: 2}
    assert own.remember(3, ()) == {ids[A]: 1, ids[B]: 3}
    disks.files[A].go_on()
    await_late(workers)
    assert own.remember(4, ()) == {ids[A]: 4, ids[B]: 4}


def test_damaged_log_is_set_aside_once_when_its_disk_stalls(disks, workers):
    """Only the log that replaced it is hosted when the disk recovers."""

    def followed(leader_epoch):
        return replicated_topic(2, leader_epoch=leader_epoch, version=leader_epoch, in_sync=(2, 3), replicas=(1, 2, 3))

    disks.apply(followed(1))
    damaged = disks.registry.find("t", 0).log
    damaged._state.go_offline(CorruptRecordError("found by its first use"))
    disks.files[A].stand_still("rename")
    disks.apply(followed(2))
    assert disks.registry.find("t", 0).log is damaged
    disks.files[A].go_on()
    await_late(workers)
    disks.apply(followed(3))
    recreated = disks.registry.find("t", 0).log
    assert (recreated.is_damaged, recreated.log_end_offset) == (False, 0)
    assert len([name for name in disks.files[A].list(A) if name.endswith(".damaged")]) == 1
