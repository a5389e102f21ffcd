"""What a leader does for its followers, and how it gets its role."""

from __future__ import annotations

import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.waiting import Signal
from broker_runtime.log.faulty_files import Fault
from broker_runtime.replication import FollowerFetch, Role
from tests.unit.replication.partitions import NOW_MS, Hosted, frame, leadership, reports
from tests.unit.replication.replicas import Replica, led_by

LAG_MS = 30_000


def _led(*, replicas=(1, 2), in_sync=(1, 2), epoch=2, now_ms=0, **config):
    hosted = Hosted(**config)
    hosted.only.become_leader(leadership(epoch, replicas=replicas, in_sync=in_sync), now_ms)
    return hosted


def _append(partition, *values, acks=-1):
    return partition.append([frame(*values)], acks=acks, leader_epoch=-1, now_ms=NOW_MS)


# --- roles --------------------------------------------------------------------------------------------------------


def test_roles_are_assigned_and_end():
    """A role is assigned, never taken; a newer epoch ends the older one's."""
    partition = _led().only
    assert (partition.role, partition.is_leader, partition.in_sync) == (Role.LEADER, True, {1, 2})
    partition.become_follower(leadership(3, leader=2, replicas=(1, 2), in_sync=(1, 2)))
    assert (partition.role, partition.is_leader, partition.leader_epoch) == (Role.FOLLOWER, False, 3)
    assert partition.is_in_sync
    with pytest.raises(errors.NotLeaderOrFollowerError):
        _append(partition, b"a")
    for tell in (partition.become_leader, partition.become_follower):
        with pytest.raises(errors.FencedLeaderEpochError):
            tell(leadership(2))
    partition.become_follower(leadership(4, leader=None, replicas=(1, 2), in_sync=(2,)))
    assert not partition.is_in_sync
    partition.step_down()
    assert (partition.role, partition.leader_epoch) == (Role.NONE, 4)


def test_following_is_only_for_the_follower_of_that_epoch():
    """Only the leader changes its log."""
    partition = _led().only
    with pytest.raises(errors.NotLeaderOrFollowerError), partition.following(2):
        pass
    partition.become_follower(leadership(3, leader=2))
    with partition.following(3) as log:
        assert log is partition.log
    for epoch, error in ((2, errors.FencedLeaderEpochError), (4, errors.UnknownLeaderEpochError)):
        with pytest.raises(error), partition.following(epoch):
            pass


def test_follower_gets_nothing_that_was_found_after_the_role_ended(monkeypatch):
    """W12: what is in the log by then may be another leader's."""
    partition = _led().only
    _append(partition, b"a")
    read = partition.log.read

    def read_late(*args, **more):
        partition.become_follower(leadership(3, leader=2, replicas=(1, 2), in_sync=(1, 2)))
        return read(*args, **more)

    monkeypatch.setattr(partition.log, "read", read_late)
    with pytest.raises(errors.NotLeaderOrFollowerError, match="changed its leader during"):
        reports(partition, 2, 0)


def test_older_state_of_the_same_epoch_changes_nothing():
    """States may arrive out of order."""
    partition = Hosted().only
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1,), version=5))
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2), version=4))
    assert partition.in_sync == {1}
    partition.become_follower(leadership(3, leader=2, in_sync=(1,), version=7))
    partition.become_follower(leadership(3, leader=2, in_sync=(), version=6))
    assert partition.is_in_sync


def test_append_does_not_count_as_committed_because_another_leader_committed_that_offset():
    """Under another leader the offsets belong to other records."""
    one, other = Replica(1), Replica(2)
    one.lead(led_by(1, 1, replicas=(1, 2)))
    other.follow(led_by(1, 1, replicas=(1, 2)))
    one.append(b"both")
    other.catch_up_with(one)
    pending = one.only.append([frame(b"lost")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
    other.lead(led_by(2, 2, replicas=(1, 2), in_sync=(2,)))
    other.append(b"kept")
    one.follow(led_by(2, 2, replicas=(1, 2), in_sync=(2,)))
    one.catch_up_with(other)
    one.catch_up_with(other)
    assert one.log.high_watermark == 2
    with pytest.raises(errors.NotLeaderOrFollowerError):
        one.only.complete(pending, acks=-1, timeout_s=0)
    one.lead(led_by(1, 3, replicas=(1, 2), in_sync=(1,)))
    with pytest.raises(errors.NotLeaderOrFollowerError):
        one.only.complete(pending, acks=-1, timeout_s=0)


def test_change_of_min_in_sync_replicas_counts_at_once():
    hosted = _led()
    hosted.only.min_in_sync_replicas = 3
    pending = _append(hosted.only, b"a", acks=1)
    hosted.only.complete(pending, acks=1, timeout_s=0)
    reports(hosted.only, 2, 1)
    assert hosted.only.high_watermark == 0
    hosted.only.min_in_sync_replicas = 2
    assert hosted.only.high_watermark == 1


# --- what is latest -----------------------------------------------------------------------------------------------


def test_new_leader_reports_the_latest_offset_only_when_its_epochs_start_is_committed():
    """KIP-207: the latest offset never falls below what an earlier leader reported."""
    hosted = Hosted()
    hosted.append(b"a", b"b")
    partition = hosted.only
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)), 0)
    partition.log.set_high_watermark(1)
    with pytest.raises(
        errors.OffsetNotAvailableError, match=r"offset 1 is committed.*whether 2 is, where leader epoch 2"
    ):
        partition.latest_offsets()
    _append(partition, b"c")
    reports(partition, 2, 1)
    with pytest.raises(errors.OffsetNotAvailableError):
        partition.latest_offsets()
    reports(partition, 2, 2)
    assert partition.latest_offsets().last_stable_offset == partition.high_watermark == 2
    partition.step_down()
    with pytest.raises(errors.NotLeaderOrFollowerError):
        partition.latest_offsets()


# --- a follower's fetch -------------------------------------------------------------------------------------------


def test_follower_reads_up_to_the_logs_end_and_gets_the_marks():
    """Uncommitted records are copied too, or they would never be committed."""
    hosted = _led()
    _append(hosted.only, b"a", b"b")
    answer = reports(hosted.only, 2, 0)
    with answer.found as found:
        assert (found.start_offset, found.next_offset) == (0, 2)
    assert (answer.high_watermark, answer.log_start, answer.log_end, answer.leader_epoch) == (0, 0, 2, 2)
    assert reports(hosted.only, 2, 2).found is None


def test_stale_and_foreign_fetches_are_refused_and_count_nothing():
    """Leader epoch and broker epoch fence."""
    hosted = _led()
    _append(hosted.only, b"a")
    for error, fields in (
        (errors.FencedLeaderEpochError, {"leader_epoch": 1}),
        (errors.UnknownLeaderEpochError, {"leader_epoch": 3}),
        (errors.UnknownLeaderEpochError, {"last_epoch": 3}),
        (errors.NotLeaderOrFollowerError, {"broker_id": 4}),
    ):
        broker_id = fields.pop("broker_id", 2)
        with pytest.raises(error):
            reports(hosted.only, broker_id, 1, **fields)
    reports(hosted.only, 2, 0, broker_epoch=7)
    with pytest.raises(errors.StaleBrokerEpochError):
        reports(hosted.only, 2, 1, broker_epoch=6)
    assert hosted.only.high_watermark == 0


def test_diverging_follower_gets_no_records_and_counts_nothing():
    hosted = _led(epoch=4)
    _append(hosted.only, b"a", b"b")
    answer = reports(hosted.only, 2, 5, last_epoch=3)
    assert (answer.diverging, answer.found) == ((3, 0), None)
    assert (hosted.only.replica_ends()[2], hosted.only.high_watermark) == (-1, 0)


def test_follower_below_the_start_or_above_the_end_without_a_record_is_out_of_range():
    hosted = _led(in_sync=(1,))
    for _ in range(3):
        pending = _append(hosted.only, b"a")
        hosted.only.complete(pending, acks=1, timeout_s=0)
    hosted.only.log.delete_records(2)
    for offset, last_epoch in ((1, 2), (1, -1), (3, -1), (4, -1)):
        with pytest.raises(errors.OffsetOutOfRangeError, match="leader's goes from 2 to 3"):
            reports(hosted.only, 2, offset, last_epoch=last_epoch)
    assert reports(hosted.only, 2, 2, last_epoch=-1).found is not None


def test_repeated_look_at_a_fetch_reports_nothing_new():
    """A long poll of an old connection keeps looking; its offset is old by then."""
    hosted = _led()
    partition = hosted.only
    pending = _append(partition, b"a")
    partition.complete(pending, acks=1, timeout_s=0)
    reports(partition, 2, 1)
    old = FollowerFetch(broker_id=2, broker_epoch=1, offset=0, durable_end=0, leader_epoch=2, last_fetched_epoch=-1)
    partition.follower_fetch(old, max_bytes=1, now_ms=0, is_first_look=False).found.close()
    assert partition.replica_ends() == {1: 1, 2: 1}


def test_followers_are_woken_by_an_append_and_consumers_by_the_high_watermark():
    """Followers are woken by an append; consumers only by the high watermark."""
    partition = _led().only
    consumer, follower = Signal(), Signal()
    partition.add_waiter(consumer)
    partition.add_waiter(follower, at_append=True)
    pending = _append(partition, b"a")
    assert (follower.wait(0), consumer.wait(0)) == (True, False)
    partition.complete(pending, acks=1, timeout_s=0)
    reports(partition, 2, 1)
    assert (follower.wait(0), consumer.wait(0)) == (False, True)
    partition.step_down()
    assert (follower.wait(0), consumer.wait(0)) == (True, True)
    for waiter in (consumer, follower):
        partition.remove_waiter(waiter)
    partition.announce()
    assert (follower.wait(0), consumer.wait(0)) == (False, False)


# --- the in-sync set ----------------------------------------------------------------------------------------------


def test_caught_up_follower_wakes_the_writer_and_is_proposed_until_it_is_written():
    """The signal wakes the writer; ZooKeeper's answer is the leader's new state."""
    hosted, rings = _led(in_sync=(1,)), []
    partition = hosted.only
    partition.on_in_sync_news = lambda: rings.append(1)
    reports(partition, 2, 0, broker_epoch=5, now_ms=10)
    assert rings == [1]
    change = partition.propose_in_sync(10, LAG_MS)
    assert (change.topic, change.partition, change.in_sync, dict(change.joining)) == ("t", 0, (1, 2), {2: 5})
    reports(partition, 2, 0, broker_epoch=5, now_ms=20)
    assert (rings, partition.propose_in_sync(20, LAG_MS)) == ([1], None)
    partition.in_sync_written(change, 1)
    assert partition.in_sync == {1, 2}
    partition.in_sync_written(change, 1)
    partition.in_sync_refused(change)
    assert (partition.in_sync, partition.leadership.version) == ({1, 2}, 1)


def test_append_waits_for_joining_replicas_and_not_for_former_ones():
    """``acks=all`` means all in-sync replicas, as they may be in ZooKeeper."""
    partition = _led().only
    reports(partition, 2, 0)
    pending = _append(partition, b"a")
    with pytest.raises(errors.RequestTimedOutError):
        partition.complete(pending, acks=-1, timeout_s=0)
    change = partition.propose_in_sync(LAG_MS + 1, LAG_MS)
    assert change.in_sync == (1,)
    partition.in_sync_unknown(change)
    with pytest.raises(errors.RequestTimedOutError):
        partition.complete(pending, acks=-1, timeout_s=0)
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1,), version=1), LAG_MS)
    partition.complete(pending, acks=-1, timeout_s=0)
    assert partition.high_watermark == 1


def test_answers_about_changes_of_an_earlier_epoch_change_nothing():
    partition = _led(in_sync=(1,)).only
    reports(partition, 2, 0)
    change = partition.propose_in_sync(0, LAG_MS)
    partition.become_leader(leadership(3, replicas=(1, 2), in_sync=(1,), version=1), 0)
    partition.in_sync_written(change, 9)
    partition.in_sync_unknown(change)
    partition.in_sync_refused(change)
    assert partition.in_sync == {1}


def test_pending_change_still_counts_when_the_epoch_is_led_again():
    """A role ended for a moment: the write may have arrived."""
    partition = _led(in_sync=(1,)).only
    reports(partition, 2, 0)
    change = partition.propose_in_sync(0, LAG_MS)
    partition.step_down()
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1,)), 0)
    pending = _append(partition, b"a")
    with pytest.raises(errors.RequestTimedOutError):
        partition.complete(pending, acks=-1, timeout_s=0)
    partition.in_sync_refused(change)
    partition.complete(pending, acks=-1, timeout_s=0)


def test_proposals_load_no_log_and_survive_one_that_is_offline():
    """A broker with many idle partitions checks all of them every few seconds."""
    hosted = _led()
    assert hosted.only.propose_in_sync(LAG_MS, LAG_MS) is None
    assert not hosted.only.log.is_loaded
    hosted.files.faults.append(Fault("write", matches=lambda path: path.suffix == ".log"))
    with pytest.raises(errors.LogStorageError):
        _append(hosted.only, b"a")
    assert hosted.only.propose_in_sync(LAG_MS + 1, LAG_MS) is None


def test_writer_of_the_in_sync_set_is_woken_for_a_set_that_delays_an_append():
    """A replica that died before it joined is given up by the owner of the clock, not at the next periodic look."""
    hosted, rings = _led(in_sync=(1,)), []
    partition = hosted.only
    reports(partition, 2, 0, now_ms=0)
    pending = _append(partition, b"a")

    def look():
        rings.append(1)

    partition.on_in_sync_news = look
    with pytest.raises(errors.RequestTimedOutError):
        partition.complete(pending, acks=-1, timeout_s=0.01)
    assert rings
    partition.propose_in_sync(10_000, LAG_MS)
    partition.complete(pending, acks=-1, timeout_s=0)


def test_records_flushed_after_a_follower_became_leader_count():
    """The flush of the last answer may end in another role."""
    replica = Replica(2)
    replica.lead(led_by(2, 1, replicas=(1, 2), in_sync=(2,)))
    replica.only.append([frame(b"a")], acks=1, leader_epoch=-1, now_ms=NOW_MS)
    assert replica.only.high_watermark == 0
    replica.log.flush()
    replica.only.note_durable()
    assert replica.log.high_watermark == 1


# --- deleting records ---------------------------------------------------------------------------------------------


def test_deletion_is_confirmed_when_all_in_sync_replicas_deleted_the_records():
    """A log's start does not fall when another replica takes over."""
    leader, follower, third = Replica(1), Replica(2), Replica(3)
    leader.lead(led_by(1, 1, in_sync=(1, 2)))
    for replica in (follower, third):
        replica.follow(led_by(1, 1, in_sync=(1, 2)))
    leader.append(b"a", b"b", b"c")
    follower.catch_up_with(leader)
    with pytest.raises(errors.RequestTimedOutError, match=r"below 2 are deleted here, and not yet on .* \[1, 2\]"):
        leader.only.delete_records(2, timeout_s=0)
    follower.fetch_from(leader)
    assert follower.log.log_start_offset == 2
    with pytest.raises(errors.RequestTimedOutError):
        leader.only.delete_records(2, timeout_s=0)
    follower.fetch_from(leader)
    assert leader.only.delete_records(1, timeout_s=0) == 2
    with pytest.raises(errors.OffsetOutOfRangeError):
        leader.only.delete_records(4, timeout_s=0)
    leader.lead(led_by(1, 1, in_sync=(1,), version=1))
    assert leader.only.delete_records(None, timeout_s=0) == 3
    leader.only.step_down()
    with pytest.raises(errors.NotLeaderOrFollowerError):
        leader.only.delete_records(3, timeout_s=0)
