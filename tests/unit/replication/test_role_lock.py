"""Roles change at once, or when a stalled disk recovers: the caller that changes them never waits."""

import threading

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import FencedLeaderEpochError, LogStorageError, RequestTimedOutError
from broker_runtime.contract.streams import ProduceRequest
from broker_runtime.replication import FollowerFetch, Role
from broker_runtime.replication.role_lock import RoleLock
from broker_runtime.services.produce import ProduceService
from tests.callers import CLIENT
from tests.unit.replication.partitions import NOW_MS, Hosted, frame, leadership
from tests.unit.standing_disk import LIMIT_S, StandingFiles


def test_role_lock_carries_out_at_once_when_free():
    """A change is made before the call returns, and what it raises reaches the caller."""
    lock, done = RoleLock(), []
    lock.carry_out(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(LogStorageError):
        lock.carry_out(lambda: (_ for _ in ()).throw(LogStorageError("x")))
    assert lock.acquire(False)


def test_role_lock_leaves_a_change_to_the_holder():
    """A change that finds the lock taken is made when the holder releases it, in order; a refused one stops no
    other.
    """
    lock, done = RoleLock(), []
    with lock:
        lock.carry_out(lambda: done.append(1))
        lock.carry_out(lambda: (_ for _ in ()).throw(LogStorageError("x")))
        lock.carry_out(lambda: done.append(2))
        assert done == []
    assert done == [1, 2]
    assert lock.acquire(False)


def test_first_look_needs_a_free_lock_and_carries_out_what_came_meanwhile():
    """It answers only what a wait would have found at once, and leaves the lock as every holder does."""
    lock, done = RoleLock(), []

    def check(wait_s):
        lock.carry_out(lambda: done.append(wait_s))
        return wait_s

    assert lock.is_met_now(lambda: check(0.0))
    assert not lock.is_met_now(lambda: check(0.5))
    assert done == [0.0, 0.5]
    with lock:
        assert not lock.is_met_now(lambda: check(0.0))
    assert done == [0.0, 0.5]


def test_first_look_leaves_a_busy_log_to_the_wait_and_raises_all_else():
    """A thread that has the log is no answer; an error of the partition is."""
    lock = RoleLock()
    assert not lock.is_met_now(lambda: _raise(RequestTimedOutError("busy")))
    with pytest.raises(LogStorageError):
        lock.is_met_now(lambda: _raise(LogStorageError("x")))
    assert lock.acquire(False)


def test_role_lock_loses_no_change_between_threads():
    """However holders and changes interleave, each change is made once."""
    lock, done = RoleLock(), []
    ended = threading.Event()

    def hold():
        while not ended.is_set():
            with lock:
                pass

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        for number in range(5_000):
            lock.carry_out(lambda number=number: done.append(number))
    finally:
        ended.set()
        thread.join(LIMIT_S)
    assert done == list(range(5_000))


def test_role_changes_return_while_the_disk_is_stalled():
    """While a follower's log is being truncated on a stalled disk, each change of its role returns, and the last one
    counts when the disk recovers.
    """
    hosted = Hosted(files=StandingFiles())
    partition, files = hosted.only, hosted.files
    hosted.append(b"a")
    hosted.append(b"b")
    partition.become_follower(leadership(2, leader=2, replicas=(1, 2)))

    def cut():
        with partition.following(2) as log:
            log.truncate_to(1)

    files.stand_still("sync")
    thread = threading.Thread(target=cut, daemon=True)
    thread.start()
    files.wait_until_one_waits()
    partition.step_down()
    partition.become_leader(leadership(3, replicas=(1, 2)))
    partition.become_follower(leadership(4, leader=2, replicas=(1, 2)))
    partition.min_in_sync_replicas = 2
    partition.announce()
    assert (partition.role, partition.leader_epoch) == (Role.FOLLOWER, 2)  # unchanged, for the thread inside
    files.go_on()
    thread.join(LIMIT_S)
    assert (partition.role, partition.leader_epoch) == (Role.FOLLOWER, 4)
    with pytest.raises(FencedLeaderEpochError):
        partition.become_leader(leadership(3))


def test_no_loop_over_many_partitions_waits_for_a_leader_with_a_stalled_disk():
    """While an append waits for its disk, no in-sync set is proposed, the outcome of a change is adopted later, and
    a follower's fetch is answered with an error.
    """
    hosted = Hosted(files=StandingFiles())
    partition, files = hosted.only, hosted.files
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    append(partition, b"a")
    change = partition.propose_in_sync(0, 10_000) or partition.propose_in_sync(20_000, 10_000)
    assert change is not None
    assert change.in_sync == (1,)
    files.stand_still("write")
    thread = threading.Thread(target=append, args=(partition, b"b"), daemon=True)
    thread.start()
    files.wait_until_one_waits()
    with pytest.raises(RequestTimedOutError):
        partition.propose_in_sync(40_000, 10_000)
    partition.in_sync_written(change, 1)
    with pytest.raises(RequestTimedOutError):
        tells_without_looking(partition)
    assert partition.in_sync == {1, 2}
    files.go_on()
    thread.join(LIMIT_S)
    assert partition.in_sync == {1}
    assert partition.log.log_end_offset == 2


def test_requests_about_a_leader_with_a_stalled_disk_are_answered_in_time():
    """While one append waits for its disk, others are refused at their time limit and are not in the log; a request
    for the log end is answered with a retriable error.
    """
    hosted = Hosted(files=StandingFiles())
    partition, files = hosted.only, hosted.files
    pending = partition.append([frame(b"a")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
    files.stand_still("write")
    thread = threading.Thread(target=append, args=(partition, b"b"), daemon=True)
    thread.start()
    files.wait_until_one_waits()
    with pytest.raises(RequestTimedOutError):
        partition.append([frame(b"c")], acks=1, leader_epoch=-1, now_ms=NOW_MS, timeout_s=0.05)
    with pytest.raises(RequestTimedOutError):
        partition.complete(pending, acks=-1, timeout_s=0.05)
    for ask in (partition.latest_offsets, partition.replica_ends):
        with pytest.raises(RequestTimedOutError):
            ask()
    service = ProduceService(hosted.registry)
    refused = service.append(
        CLIENT,
        ProduceRequest(request_id=1, topic="t", partition=0, acks=-1, timeout_ms=60),
        [pa.py_buffer(frame(b"d"))],
    )
    assert isinstance(refused.error, RequestTimedOutError)
    files.go_on()
    thread.join(LIMIT_S)
    partition.complete(pending, acks=-1, timeout_s=LIMIT_S)
    assert partition.log.log_end_offset == 2


def append(partition, value):
    partition.append([frame(value)], acks=1, leader_epoch=-1, now_ms=NOW_MS)


def tells_without_looking(partition):
    fetch = FollowerFetch(broker_id=2, broker_epoch=1, offset=0, durable_end=0, leader_epoch=2, last_fetched_epoch=-1)
    partition.follower_fetch(fetch, max_bytes=1 << 20, now_ms=0)


def _raise(error):
    raise error
