"""Acknowledgements during an fsync: what they wait for, and how they end.

Events during an fsync, or a wait, are triggered from within it. A lock held by somebody else is another thread's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.waiting import Backoff, Signal
from broker_runtime.following import follower
from broker_runtime.following.follower_log import adopt_marks
from broker_runtime.log.directory import RECOVERY_POINT_NAME
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.replication import Partition, PendingAppend
from broker_runtime.replication import partition as leader
from tests.topic_settings import FLUSH_MODES
from tests.unit.replication.partitions import NOW_MS, Hosted, frame, leadership

LIMIT_S = 20.0


@contextmanager
def busy(partition: Partition) -> Iterator[None]:
    """Inside, somebody else holds the partition's log, like a thread that writes to a stalled disk."""
    has_it, lets_go = threading.Event(), threading.Event()

    def hold() -> None:
        with partition.log._state.lock:
            has_it.set()
            lets_go.wait(2 * LIMIT_S)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert has_it.wait(LIMIT_S)
    try:
        yield
    finally:
        lets_go.set()
        thread.join(LIMIT_S)


class SlowFiles(FaultyFiles):
    """Files whose next fsync of a segment lasts as long as ``meanwhile`` runs."""

    meanwhile: Callable[[], None] | None = None

    def sync(self, descriptor: int) -> None:
        path, _ = self._file(descriptor)
        if path.suffix == ".log" and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        super().sync(descriptor)


def hosted(**config: object) -> tuple[SlowFiles, Partition]:
    """A partition with one acknowledged record."""
    files = SlowFiles()
    broker = Hosted(files=files, **config)
    broker.append(b"first")
    return files, broker.only


def appended(partition: Partition, value: bytes, *, acks: int) -> PendingAppend:
    return partition.append([frame(value)], acks=acks, leader_epoch=-1, now_ms=NOW_MS)


@pytest.mark.parametrize("acks", [1, -1])
def test_all_waiters_for_an_fsync_learn_at_once_of_another_leader(acks: int) -> None:
    """They look elsewhere at once, and not when this disk is done."""
    files, partition = hosted()
    one, other = appended(partition, b"a", acks=acks), appended(partition, b"b", acks=acks)
    refused = []

    def lose_the_role() -> None:
        partition.step_down()
        with pytest.raises(errors.NotLeaderOrFollowerError, match="changed its leader"):
            partition.complete(other, acks=acks, timeout_s=0.2)
        refused.append(other)

    files.meanwhile = lose_the_role
    with pytest.raises(errors.NotLeaderOrFollowerError, match="changed its leader"):
        partition.complete(one, acks=acks, timeout_s=0.2)
    assert refused == [other]


def test_end_of_the_role_wakes_all_waiters_for_an_fsync() -> None:
    """Nobody waits until the time limit."""
    _, partition = hosted()
    woken: list[str] = []
    partition.log._state.commit.wake = lambda: woken.append("woken")  # type: ignore[method-assign]
    partition.become_follower(leadership(2, replicas=(1, 2), in_sync=(1, 2), leader=2))
    partition.step_down()
    assert woken == ["woken", "woken"]


@pytest.mark.parametrize("mode", FLUSH_MODES)
def test_truncated_record_is_never_acknowledged(mode: str) -> None:
    """With ``acks=1``, too, the leadership of the append counts, even if there is another record at its offset."""
    _, partition = hosted(flush_mode=mode)
    pending = appended(partition, b"cut off", acks=1)
    partition.become_follower(leadership(2, replicas=(1, 2), in_sync=(1, 2), leader=2))
    partition.log.truncate_to(1)
    with pytest.raises(errors.NotLeaderOrFollowerError, match="offset 1 was acknowledged"):
        partition.complete(pending, acks=1, timeout_s=0)
    partition.become_leader(leadership(3))
    appended(partition, b"another", acks=1)
    with pytest.raises(errors.NotLeaderOrFollowerError):
        partition.complete(pending, acks=1, timeout_s=0)


def test_high_watermark_counts_the_leaders_durable_end_and_not_its_log_end() -> None:
    """During an fsync later appends are on no disk, and are not served."""
    files, partition = hosted()
    one = appended(partition, b"a", acks=-1)
    seen: list[tuple[int, int, object]] = []

    def look() -> None:
        appended(partition, b"b", acks=-1)
        partition.announce()
        partition.note_durable()
        seen.append(
            (
                partition.high_watermark,
                partition.latest_offsets().last_stable_offset,
                partition.read(1, max_bytes=1 << 20),
            )
        )

    files.meanwhile = look
    partition.complete(one, acks=-1, timeout_s=0)
    assert seen == [(1, 1, None)]
    assert (partition.log.log_end_offset, partition.log.durable_end_offset, partition.high_watermark) == (3, 2, 2)


def test_follower_waits_briefly_for_anothers_fsync_and_never_in_an_ended_epoch(monkeypatch) -> None:
    """Meanwhile nothing else is fetched from that leader."""
    files, partition = hosted()
    appended(partition, b"a", acks=1)
    fetcher = follower.FollowerFetcher(1, 2, max_bytes=1, partition_max_bytes=1, max_wait_ms=1)
    came_to: list[object] = []

    def follow_another() -> None:
        partition.become_follower(leadership(3, replicas=(1, 2), in_sync=(1, 2), leader=2))
        came_to.append(fetcher._flush(follower._Followed(partition, 2, Backoff())))
        monkeypatch.setattr(follower, "_LONGEST_FLUSH_OF_ANOTHER_S", 0.0)
        with pytest.raises(errors.RequestTimedOutError):
            fetcher._flush(follower._Followed(partition, 3, Backoff()))
        came_to.append("timed out")

    files.meanwhile = follow_another
    partition.log.flush()
    assert came_to == [None, "timed out"]
    fetcher._flush(follower._Followed(partition, 3, Backoff()))
    assert partition.log.durable_end_offset == 2


def test_follower_regards_nothing_as_committed_that_its_own_disk_lacks() -> None:
    """Otherwise it would serve it, and save it, as the next leader."""
    _, partition = hosted()
    appended(partition, b"a", acks=1)
    appended(partition, b"b", acks=1)
    adopt_marks(partition.log, 3, 0)
    assert (partition.log.log_end_offset, partition.log.durable_end_offset, partition.log.high_watermark) == (3, 1, 1)
    partition.log.flush()
    adopt_marks(partition.log, 3, 0)
    assert partition.log.high_watermark == 3


def test_saved_high_watermark_is_never_above_the_durable_end() -> None:
    """A start that finds a shorter log takes it for damaged."""
    _, partition = hosted(flush_mode="os")
    partition.log.flush()
    pending = appended(partition, b"a", acks=-1)
    partition.complete(pending, acks=-1, timeout_s=0)
    assert partition.high_watermark == 2
    saved = partition.log.start_state()
    assert (saved.high_watermark, saved.recovery_point) == (1, 1)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("mode", ["ack", "os"])
def test_end_of_the_role_is_reported_at_once_whoever_holds_the_log(mode: str, acks: int) -> None:
    """The log's lock may be held for as long as the disk likes."""
    _, partition = hosted(flush_mode=mode)
    pending = appended(partition, b"a", acks=acks)
    looks: list[bool] = []
    is_led_as_for = partition._is_led_as_for

    def lose_the_role_at_the_second_look(asked: PendingAppend) -> bool:
        looks.append(is_led_as_for(asked))
        if len(looks) == 2:
            partition.step_down()
        return is_led_as_for(asked)

    partition._is_led_as_for = lose_the_role_at_the_second_look  # type: ignore[method-assign]
    if mode != "ack":
        partition.step_down()
    with busy(partition), pytest.raises(errors.NotLeaderOrFollowerError, match="changed its leader"):
        partition.complete(pending, acks=acks, timeout_s=LIMIT_S)
    assert not partition._waiters


@pytest.mark.parametrize("mode", ["ack", "os"])
def test_wait_for_an_acknowledgement_ends_at_its_time_limit_whoever_holds_the_log(mode: str) -> None:
    """Neither the fsync nor the high watermark is waited for longer."""
    _, partition = hosted(flush_mode=mode)
    pending = appended(partition, b"a", acks=-1)
    with busy(partition):
        for _ in range(2):
            with pytest.raises(errors.RequestTimedOutError):
                partition.complete(pending, acks=-1, timeout_s=0.06)
    partition.complete(pending, acks=-1, timeout_s=0)
    assert partition.high_watermark == 2


def test_end_of_the_role_is_reported_at_once_when_a_follower_holds_the_partition(monkeypatch) -> None:
    """A follower that writes to a stalled disk holds the partition's lock."""
    _, partition = hosted()
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    pending = appended(partition, b"a", acks=-1)

    class Interrupted(Signal):
        def wait(self, timeout_s: float) -> bool:
            assert partition._lock.acquire(blocking=False), "it waits with the lock"
            partition.step_down()
            partition._lock._finish()
            assert not partition.is_leader
            return super().wait(timeout_s)

    monkeypatch.setattr(leader, "Signal", Interrupted)
    with pytest.raises(errors.NotLeaderOrFollowerError, match="changed its leader"):
        partition.complete(pending, acks=-1, timeout_s=LIMIT_S)
    partition._lock.release()
    assert not partition._waiters


def test_undurable_record_is_not_acknowledged_by_a_role_that_ended_and_began_again() -> None:
    """The wait for the disk ended with the role."""
    _, partition = hosted()
    pending = appended(partition, b"a", acks=1)
    partition.log.flush = lambda *_, **__: 1  # type: ignore[method-assign]
    with pytest.raises(errors.NotLeaderOrFollowerError, match="changed its leader"):
        partition.complete(pending, acks=1, timeout_s=0)


def test_acknowledgement_writes_no_checkpoint() -> None:
    """All logs of the directory share the file and its writer: a request would wait for all of them."""
    files = FaultyFiles()
    broker = Hosted(files=files, segment_bytes=len(frame(b"in the next segment")) + 8)
    partition, path = broker.only, Path("/data") / RECOVERY_POINT_NAME
    broker.append(b"first")
    pending = appended(partition, b"in the next segment", acks=-1)
    before = files.content(path)
    partition.complete(pending, acks=-1, timeout_s=0)
    assert len(partition.log.segment_base_offsets) == 2
    assert files.content(path) == before
    broker.directory.checkpoint()
    assert files.content(path) != before


def test_deletion_of_records_ends_at_its_time_limit_whoever_holds_the_log() -> None:
    """Nothing is deleted then."""
    _, partition = hosted()
    with busy(partition), pytest.raises(errors.RequestTimedOutError):
        partition.delete_records(1, timeout_s=0.06)
    assert partition.log.log_start_offset == 0


def test_deletion_of_records_ends_at_its_time_limit_whoever_holds_the_partition() -> None:
    """They are deleted here; the deletion on other replicas is confirmed later."""
    _, partition = hosted()
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1,), eligible=(2,)))
    delete_records = partition.log.delete_records

    def delete_and_lose_the_lock(offset: int, timeout_s: float) -> int:
        start = delete_records(offset, timeout_s)
        assert partition._lock.acquire(blocking=False)
        return start

    partition.log.delete_records = delete_and_lose_the_lock  # type: ignore[method-assign]
    with pytest.raises(errors.RequestTimedOutError, match="below 1 are deleted here"):
        partition.delete_records(1, timeout_s=0.06)
    partition._lock.release()
    assert partition.log.log_start_offset == 1
    assert not partition._waiters
