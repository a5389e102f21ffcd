"""One hosted partition, over a log in memory."""

from __future__ import annotations

import threading

import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.waiting import Signal
from broker_runtime.following.follower_log import adopt_marks
from broker_runtime.log.faulty_files import Fault
from broker_runtime.replication import Partition
from tests.topic_settings import FLUSH_MODES
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, frame, leadership, reports


def _append(partition: Partition, *values: bytes, acks: int = -1, leader_epoch: int = -1) -> int:
    pending = partition.append([frame(*values)], acks=acks, leader_epoch=leader_epoch, now_ms=NOW_MS)
    partition.complete(pending, acks=acks, timeout_s=0)
    return pending.base_offset


def test_append_is_readable_only_once_it_is_complete() -> None:
    """No reader receives an offset at or above the high watermark."""
    partition = Hosted().only
    pending = partition.append([frame(b"a", b"b")], acks=-1, leader_epoch=1, now_ms=NOW_MS)
    assert (pending.base_offset, pending.next_offset, pending.append_time_ms, partition.high_watermark) == (0, 2, -1, 0)
    assert partition.read(0, max_bytes=1 << 20) is None
    partition.complete(pending, acks=-1, timeout_s=0)
    found = partition.read(1, max_bytes=1 << 20)
    assert found is not None
    with found:
        assert (found.start_offset, found.next_offset, partition.high_watermark) == (0, 2, 2)


@pytest.mark.parametrize("mode", FLUSH_MODES)
def test_acknowledged_append_was_synced_if_the_mode_requires_it(mode: str) -> None:
    """``flush.mode=ack`` waits for an fdatasync, interval and os do not."""
    hosted = Hosted(flush_mode=mode)
    partition = hosted.only
    _append(partition, b"loads the log")
    before = sum(1 for operation, path in hosted.files.calls if operation == "sync" and path.suffix == ".log")
    _append(partition, b"a")
    after = sum(1 for operation, path in hosted.files.calls if operation == "sync" and path.suffix == ".log")
    assert after - before == (1 if mode == "ack" else 0)
    assert partition.high_watermark == 2


def test_leader_counts_for_the_high_watermark_with_its_durable_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """``flush.mode=ack``: records appended during an fsync are neither durable by it, nor served."""
    hosted = Hosted()
    partition, real = hosted.only, hosted.files.sync
    first = partition.append([frame(b"a")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)

    def sync(descriptor: int) -> None:
        monkeypatch.setattr(hosted.files, "sync", real)
        partition.append([frame(b"b")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
        real(descriptor)

    monkeypatch.setattr(hosted.files, "sync", sync)
    partition.complete(first, acks=-1, timeout_s=0)
    assert (partition.log.durable_end_offset, partition.log.log_end_offset) == (1, 2)
    assert partition.high_watermark == 1
    assert partition.read(1, max_bytes=1 << 20) is None


def test_follower_adopts_no_high_watermark_above_its_durable_end() -> None:
    """Records that a power failure may lose are not committed here, whatever the leader says."""
    log = Hosted().only.log
    for end in (1, 2):
        log.append_as_leader([frame(b"a")], leader_epoch=1, now_ms=NOW_MS)
        if end == 1:
            log.flush()
    adopt_marks(log, 2, 0)
    assert (log.durable_end_offset, log.high_watermark) == (1, 1)
    log.flush()
    adopt_marks(log, 2, 0)
    assert log.high_watermark == 2


def test_leader_epochs_are_checked_both_ways() -> None:
    """Fetches and leaders carry epochs; a stale one is refused."""
    partition = Hosted().only
    partition.become_leader(leadership(5))
    assert _append(partition, b"a", leader_epoch=5) == 0
    for epoch, error in ((4, errors.FencedLeaderEpochError), (6, errors.UnknownLeaderEpochError)):
        with pytest.raises(error):
            _append(partition, b"b", leader_epoch=epoch)
        with pytest.raises(error):
            partition.read(0, max_bytes=1, leader_epoch=epoch)
    with pytest.raises(errors.FencedLeaderEpochError):
        partition.become_leader(leadership(4))
    assert partition.log.log_end_offset == 1


def test_step_down_refuses_appends_and_fails_waiting_ones() -> None:
    """A leader that lost its leadership acknowledges nothing more."""
    partition = Hosted().only
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    pending = partition.append([frame(b"a")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
    with pytest.raises(errors.RequestTimedOutError, match=r"\[1, 2\]"):
        partition.complete(pending, acks=-1, timeout_s=0)
    partition.step_down()
    with pytest.raises(errors.NotLeaderOrFollowerError, match="changed its leader"):
        partition.complete(pending, acks=-1, timeout_s=0)
    with pytest.raises(errors.NotLeaderOrFollowerError):
        _append(partition, b"b")


def test_acks_all_waits_for_the_in_sync_follower_and_acks_one_does_not() -> None:
    """W9: ``all`` is all in-sync replicas."""
    partition = Hosted().only
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    pending = partition.append([frame(b"a")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
    partition.complete(pending, acks=1, timeout_s=0)
    assert partition.high_watermark == 0
    reports(partition, 2, 1)
    partition.complete(pending, acks=-1, timeout_s=0)
    assert partition.high_watermark == 1
    reports(partition, 2, 0)
    assert partition.high_watermark == 1


def test_too_few_in_sync_replicas_refuse_before_and_fail_after_the_append() -> None:
    """Kafka's NOT_ENOUGH_REPLICAS and NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
    partition = Hosted().only
    partition.min_in_sync_replicas = 2
    with pytest.raises(errors.NotEnoughReplicasError, match=r"has 1 in-sync replicas, min\.insync\.replicas is 2"):
        _append(partition, b"a")
    assert partition.log.log_end_offset == 0
    partition.become_leader(leadership(1, replicas=(1, 2), in_sync=(1, 2)))
    pending = partition.append([frame(b"a")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
    partition.become_leader(leadership(1, replicas=(1, 2), in_sync=(1,)))
    with pytest.raises(errors.NotEnoughReplicasAfterAppendError):
        partition.complete(pending, acks=-1, timeout_s=0)


def test_becoming_leader_touches_no_log_until_it_is_used() -> None:
    """A broker with 1,000 partitions is ready as fast as an empty one."""
    hosted = Hosted(count=3)
    assert not any(partition.log.is_loaded for partition in hosted.partitions)
    assert hosted.append(b"a", partition=1) == 0
    assert [partition.log.is_loaded for partition in hosted.partitions] == [False, True, False]


def test_high_watermark_covers_the_whole_log_again_after_a_restart() -> None:
    """W19: after a restart readers continue; a single replica has committed all durable records."""
    before = Hosted()
    before.append(b"a", b"b")
    before.directory.close()
    after = Hosted(files=before.files)
    assert after.only.high_watermark == 2
    assert after.append(b"c") == 2


def test_failed_sync_takes_the_partition_offline_and_wakes_its_waiters() -> None:
    """An I/O error takes the log offline with a clear error; nothing is acknowledged."""
    hosted = Hosted(count=2)
    partition, other = hosted.partitions
    hosted.append(b"a")
    waiter = Signal()
    partition.add_waiter(waiter)
    hosted.files.faults.append(Fault("sync", matches=lambda path: path.parent.name == "t-0"))
    with pytest.raises(errors.LogStorageError):
        _append(partition, b"b")
    assert waiter.wait(0)
    with pytest.raises(errors.LogStorageError):
        partition.read(0, max_bytes=1)
    assert _append(other, b"fine") == 0


def test_waiter_is_woken_by_each_advance_and_the_end_of_the_role_until_it_leaves() -> None:
    """Waiting readers are woken by what they wait for, and do not poll."""
    hosted = Hosted()
    partition, waiter = hosted.only, Signal()
    partition.add_waiter(waiter)
    pending = partition.append([frame(b"a")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
    assert not waiter.wait(0)
    partition.complete(pending, acks=-1, timeout_s=0)
    assert waiter.wait(0)
    assert not waiter.wait(0), "woken once"
    partition.step_down()
    assert waiter.wait(0)
    partition.remove_waiter(waiter)
    partition.remove_waiter(waiter)
    partition.become_leader(leadership(2))
    assert not waiter.wait(0)


def test_reader_of_many_partitions_does_not_wait_for_a_busy_one() -> None:
    """An append during a slow write holds the partition: a reader of others, too, is woken when it is released."""
    partition, waiter = Hosted().only, Signal()
    partition._lock.acquire()
    adding = threading.Thread(target=partition.add_waiter, args=(waiter,))
    adding.start()
    adding.join(10)
    assert not adding.is_alive()
    assert not waiter.wait(0)
    partition._lock.release()
    assert waiter.wait(0), "what came in between was not seen by its look"
    partition.announce()
    assert waiter.wait(0)
    partition._lock.acquire()
    removing = threading.Thread(target=partition.remove_waiter, args=(waiter,))
    removing.start()
    removing.join(10)
    assert not removing.is_alive()
    partition._lock.release()
    partition.announce()
    assert not waiter.wait(0)


def test_registry_distinguishes_unknown_foreign_and_recreated_topics() -> None:
    """Unknown topics and partitions, another topic's id: typed errors with a code."""
    hosted = Hosted(count=2)
    registry = hosted.registry
    assert registry.find("t", 1) is registry.find("t", 1, TOPIC_ID.bytes) is hosted.partitions[1]
    for at, error in (
        (("u", 0, None), errors.UnknownTopicOrPartitionError),
        (("t", 2, None), errors.UnknownTopicOrPartitionError),
        (("t", -1, None), errors.UnknownTopicOrPartitionError),
        (("t", 0, bytes(16)), errors.InconsistentTopicIdError),
    ):
        with pytest.raises(error):
            registry.find(*at)
    dropped = registry.drop(TopicPartition("t", 1))
    assert dropped is hosted.partitions[1]
    assert not dropped.is_leader
    with pytest.raises(errors.NotLeaderOrFollowerError):
        registry.find("t", 1)
    assert registry.forget_topic("t") == [hosted.partitions[0]]
    assert (registry.hosted(), registry.topic_names()) == ([], [])
