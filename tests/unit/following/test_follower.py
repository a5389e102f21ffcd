"""A broker as the follower of another: logs in memory, the network is a function call."""

from __future__ import annotations

import random

import msgspec
import pytest

from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.faulty_files import Fault
from tests.topic_settings import topic_settings
from tests.unit.replication.replicas import ROOT, Replica, led_by


def _pair(count: int = 1, epoch: int = 1, **config: object) -> tuple[Replica, Replica]:
    """Broker 1 leads, broker 2 follows; both in sync."""
    leader, follower = Replica(1, count, **config), Replica(2, count, **config)
    leader.lead(led_by(1, epoch, replicas=(1, 2)))
    follower.follow(led_by(1, epoch, replicas=(1, 2)))
    return leader, follower


def _now_leads(leader: Replica, follower: Replica, epoch: int) -> None:
    state = led_by(leader.broker_id, epoch, replicas=(1, 2))
    leader.lead(state)
    follower.follow(state)


# --- what goes over -----------------------------------------------------------------------------------------------


def test_follower_ends_up_with_the_leaders_bytes_and_marks():
    """W11: byte-identical replicas; the follower knows what is committed."""
    leader, follower = _pair(segment_bytes=2048)
    for number in range(30):
        leader.append(b"%d" % number, b"x" * 100)
    follower.catch_up_with(leader)
    assert follower.records() == leader.records()
    assert follower.log.leader_epochs == leader.log.leader_epochs
    assert leader.only.high_watermark == follower.log.high_watermark == 60


def test_follower_tells_only_what_is_durable():
    """``flush.mode=ack``: the high watermark is the minimum durable end; the answer is on the device before it is
    told."""
    leader, follower = _pair()
    leader.append(b"a")
    follower.fetch_from(leader)
    follower.files.faults.append(Fault("sync", matches=lambda path: path.suffix == ".log"))
    leader.append(b"b")
    follower.fetch_from(leader)
    assert (leader.only.high_watermark, follower.log.is_offline) == (1, True)
    assert follower.fetch_from(leader) is None
    assert leader.only.high_watermark == 1


def test_follower_far_behind_asks_for_more_before_its_disk_has_what_came():
    """The next answer is under way while the disk works; what is told as durable is so, and in the end all is."""
    leader, follower = _pair()
    behind = led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1)
    leader.lead(behind)
    follower.follow(behind)
    for number in range(3):
        leader.append(b"%d" % number)
    leader.service._max_bytes = 1  # one frame at a time
    fetcher, told = follower.fetchers[1], []
    for _ in range(4):
        request = fetcher.next_request(1, 0)
        told.append((request.partitions[0].offset, request.partitions[0].durable_end))
        fetcher.flush_while_asking(0)
        assert follower.log.durable_end_offset == follower.log.log_end_offset
        fetcher.handle(*leader.answer(request, 2, 1), 0)
    assert told == [(0, 0), (1, 0), (2, 1), (3, 3)]


def test_follower_far_behind_keeps_what_it_fetches_out_of_memory_once_the_disk_has_it():
    """What it catches up with is read by nobody soon; who keeps up stays in the cache."""
    leader, follower = _pair()
    behind = led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1)
    leader.lead(behind)
    follower.follow(behind)
    leader.append(b"0")
    leader.append(b"1")
    leader.service._max_bytes = 1  # one frame at a time
    done = []
    for _ in range(2):
        follower.files.calls.clear()
        follower.fetch_from(leader)
        follower.fetchers[1].flush_while_asking(0)
        done.append([operation for operation, at in follower.files.calls if at.suffix == ".log"])
    assert done == [["write", "sync", "drop_cached"], ["write", "sync"]]


@pytest.mark.parametrize("mode", ["interval", "os"])
def test_follower_tells_its_logs_end_where_acknowledgements_do_not_wait_for_the_disk(mode):
    leader, follower = _pair(flush_mode=mode)
    leader.append(b"a")
    follower.fetch_from(leader)
    syncs = sum(operation == "sync" and path.suffix == ".log" for operation, path in follower.files.calls)
    follower.fetch_from(leader)
    assert (leader.only.high_watermark, syncs) == (1, 0)


def test_follower_makes_durable_what_an_earlier_flush_mode_left():
    """Else it would tell less than is committed for ever."""
    leader, follower = _pair(flush_mode="os")
    leader.append(b"a")
    follower.fetch_from(leader)
    for replica in (leader, follower):
        replica.log.config = topic_settings(flush_mode="ack")
    assert follower.log.durable_end_offset == 0
    leader.log.flush()
    follower.fetch_from(leader)
    assert leader.only.high_watermark == 1


def test_all_partitions_of_one_leader_share_a_request():
    leader, follower = _pair(count=3)
    for number in range(3):
        leader.append(b"a", partition=number)
    response = follower.fetch_from(leader)
    assert [(told.partition, told.row) for told in response.partitions] == [(0, 0), (1, 1), (2, 2)]
    assert [partition.log.log_end_offset for partition in follower.partitions] == [1, 1, 1]


def test_high_watermark_of_a_follower_goes_as_far_as_its_own_log():
    """HW := min(the leader's, its own durable end)."""
    leader, follower = _pair()
    leader.lead(led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1))
    for number in range(4):
        leader.append(b"%d" % number)
    leader.service._max_bytes = 1  # one frame at a time
    follower.fetch_from(leader)
    assert (leader.only.high_watermark, follower.log.high_watermark) == (4, 1)


def test_follower_keeps_what_an_earlier_leader_told_is_committed():
    """A new leader knows less at first; what is committed stays so."""
    leader, follower = _pair()
    leader.append(b"a", b"b")
    follower.catch_up_with(leader)
    third = Replica(3)
    third.log.append_as_follower(leader.records()[0][1])
    third.log.flush()
    state = led_by(3, 2, replicas=(2, 3))
    third.lead(state)
    follower.follow(state)
    follower.fetch_from(third)
    assert follower.log.high_watermark == 2


def test_log_start_follows_the_leaders():
    """Whole segments below the leader's log start go on followers too."""
    leader, follower = _pair(segment_bytes=1024)
    for number in range(20):
        leader.append(b"%d" % number, bytes(100))
    follower.catch_up_with(leader)
    leader.log.delete_records(25)
    follower.fetch_from(leader)
    assert (follower.log.log_start_offset, follower.log.segment_base_offsets) == (25, leader.log.segment_base_offsets)


# --- logs that part -----------------------------------------------------------------------------------------------


def test_tail_that_was_never_committed_is_cut_and_the_new_leaders_taken():
    """KIP-101: truncation by leader epoch, never by high watermark."""
    one, other = _pair()
    one.append(b"both")
    other.catch_up_with(one)
    one.append(b"only one", b"has this")
    _now_leads(other, one, 2)
    other.append(b"new")
    one.catch_up_with(other)
    assert one.records() == other.records()
    assert one.log.leader_epochs == ((1, 0), (2, 1))


def test_fast_failovers_leave_the_same_log_on_both():
    """KIP-279: each leader wrote something the other never saw, before either could follow."""
    one, other = _pair()
    one.append(b"both")
    other.catch_up_with(one)
    for epoch in range(2, 9):
        leader, follower = (one, other) if epoch % 2 else (other, one)
        _now_leads(leader, follower, epoch)
        leader.append(b"%d" % epoch)
        if epoch % 3 == 0:
            leader.append(b"and again")
    one.follow(led_by(2, 10, replicas=(1, 2)))
    other.lead(led_by(2, 10, replicas=(1, 2)))
    one.catch_up_with(other)
    assert one.records() == other.records()
    assert one.log.leader_epochs == other.log.leader_epochs


def test_records_that_were_not_cut_although_the_high_watermark_was_behind_stay():
    """KIP-101's loss: a follower that restarts and cuts to its high watermark loses what is committed."""
    leader, follower = _pair()
    leader.append(b"a")
    follower.fetch_from(leader)
    follower.fetch_from(leader)  # committed now, and the follower has not heard
    assert leader.only.high_watermark == 1
    follower.restart(lost_power=random.Random(1))
    follower.follow(led_by(1, 1, replicas=(1, 2)))
    _now_leads(follower, leader, 2)
    assert follower.log.log_end_offset == 1


def _aside(replica: Replica) -> list[str]:
    return [name for name in replica.files.list_directories(ROOT) if name.endswith(".diverged")]


def test_replica_that_lies_wholly_elsewhere_is_set_aside_and_fetched_anew(caplog):
    """No follower deletes what it knows to be committed: after an unclean election it keeps it, and says so."""
    follower, leader = Replica(2), Replica(1)
    follower.lead(led_by(2, 1, replicas=(1, 2), in_sync=(2,)))
    follower.append(b"a", b"b")
    follower.append(b"c")
    assert follower.only.high_watermark == 3
    follower.log.delete_records(2)
    leader.lead(led_by(1, 2, replicas=(1, 2), in_sync=(1,)))
    leader.append(b"x")
    follower.follow(led_by(1, 2, replicas=(1, 2), in_sync=(1,)))
    follower.catch_up_with(leader)
    assert follower.records() == leader.records()
    (kept,) = _aside(follower)
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("t-0" in text and "offsets 2 to 2" in text for text in told)
    assert any(kept in text and "keep it until" in text for text in told)


@pytest.mark.parametrize("lost_power", [None, random.Random(1)])
def test_replica_whose_leader_has_nothing_keeps_its_log_though_it_does_not_know_what_was_committed(lost_power):
    """The checkpoint of the high watermark is seconds old when brokers are killed."""
    follower, leader = Replica(2), Replica(1)
    follower.lead(led_by(2, 1, replicas=(1, 2), in_sync=(2,)))
    follower.append(*[b"%d" % n for n in range(1000)])
    follower.restart(lost_power=lost_power)
    assert follower.log.high_watermark == 0
    leader.lead(led_by(1, 2, replicas=(1, 2), in_sync=(1,)))
    follower.follow(led_by(1, 2, replicas=(1, 2), in_sync=(1,)))
    follower.catch_up_with(leader)
    (kept,) = _aside(follower)
    assert len(follower.files.content(ROOT / kept / f"{0:020d}.log")) > 1000


def test_records_that_a_later_one_shows_to_be_committed_are_not_cut():
    """A frame is stamped with the high watermark at its append, so a log that was killed tells what must not go."""
    follower, leader = Replica(2), Replica(1)
    follower.lead(led_by(2, 1, replicas=(1, 2), in_sync=(2,)))
    leader.follow(led_by(2, 1, replicas=(1, 2), in_sync=(2,)))
    follower.append(b"both")
    leader.catch_up_with(follower)
    follower.lead(led_by(2, 2, replicas=(1, 2), in_sync=(2,)))  # and nobody has told it anything since
    for number in range(5):
        follower.append(b"%d" % number)
        follower.only.note_durable()
        assert follower.only.high_watermark == number + 2
    follower.restart()
    leader.lead(led_by(1, 3, replicas=(1, 2), in_sync=(1,)))
    leader.append(b"x")
    follower.follow(led_by(1, 3, replicas=(1, 2), in_sync=(1,)))
    follower.catch_up_with(leader)
    assert follower.records() == leader.records()
    assert len(_aside(follower)) == 1


def test_of_the_logs_set_aside_all_are_kept():
    """What one of them has may be nowhere else, whichever is longer."""
    follower, leader = Replica(2), Replica(1)
    kept = set()
    for epoch, count in ((1, 3), (3, 50), (5, 2)):
        follower.lead(led_by(2, epoch, replicas=(1, 2), in_sync=(2,)))
        for number in range(count):
            follower.append(b"%d" % number)
        leader.restart()
        leader.log.restart_at(0)
        leader.lead(led_by(1, epoch + 1, replicas=(1, 2), in_sync=(1,)))
        follower.follow(led_by(1, epoch + 1, replicas=(1, 2), in_sync=(1,)))
        follower.catch_up_with(leader)
        assert kept < set(_aside(follower))
        kept = set(_aside(follower))
    assert len(kept) == 3


# --- beginning anew -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted_to", [3, 4, 10])
def test_follower_behind_the_leaders_start_begins_anew_there(deleted_to):
    """What retention removed cannot be fetched; the replica is whole from the leader's start on."""
    leader, follower = _pair()
    leader.lead(led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1))
    leader.append(b"a")
    follower.catch_up_with(leader)
    for number in range(3):
        leader.append(b"%d" % number, b"x", b"y")
    leader.only.propose_in_sync(60_000, 30_000)  # a minute later nobody waits for it any more
    assert leader.only.high_watermark == 10
    leader.now_ms = 60_000
    leader.log.delete_records(deleted_to)
    follower.catch_up_with(leader)
    assert follower.records() == leader.records()
    assert (follower.log.log_start_offset, follower.log.high_watermark) == (deleted_to, 10)


def test_empty_replica_above_the_leaders_start_begins_anew_before_it_counts():
    """It proves nothing of what lies below; it must not be elected without it."""
    leader, follower = _pair()
    leader.lead(led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1))
    leader.append(b"a", b"b")
    follower.log.restart_at(2)
    follower.fetch_from(leader)
    assert leader.only.propose_in_sync(0, 30_000) is None
    assert follower.log.log_end_offset == 0
    follower.catch_up_with(leader)
    assert follower.records() == leader.records()
    assert leader.only.propose_in_sync(0, 30_000).in_sync == (1, 2)


def test_member_whose_records_were_all_deleted_goes_on():
    """An in-sync replica without a record has deleted them; it holds all that there is."""
    leader, follower = _pair()
    leader.append(b"a", b"b")
    follower.catch_up_with(leader)
    leader.log.delete_records(2)
    follower.fetch_from(leader)
    follower.restart(clean=True)
    follower.follow(led_by(1, 1, replicas=(1, 2)))
    leader.append(b"c")
    follower.catch_up_with(leader)
    assert follower.log.log_start_offset == 2
    assert leader.only.high_watermark == 3


# --- answers that do not count ------------------------------------------------------------------------------------


def test_answer_counts_once_and_only_to_the_request_that_is_out():
    """Duplicated, reordered and stale answers are harmless."""
    leader, follower = _pair()
    fetcher = follower.fetchers[1]
    leader.append(b"a")
    first = fetcher.next_request(1, 0)
    answer = leader.answer(first, 2, 1)
    second = fetcher.next_request(1, 0)
    assert second.request_id != first.request_id
    fetcher.handle(*answer, 0)
    assert follower.log.log_end_offset == 0
    for _ in range(3):
        fetcher.handle(*leader.answer(second, 2, 1), 0)
        assert follower.log.log_end_offset == 1
    assert follower.records() == leader.records()


@pytest.mark.parametrize("what", ["unfollowed", "newer epoch", "role ended", "log moved", "answerer's epoch"])
def test_answer_does_nothing_once_the_partition_is_in_another_state(what):
    """Still followed, in the same epoch, at the same offset: else it is an answer to something else."""
    leader, follower = _pair()
    fetcher = follower.fetchers[1]
    leader.append(b"a")
    request = fetcher.next_request(1, 0)
    response, cells = leader.answer(request, 2, 1)
    end = 0
    if what == "unfollowed":
        fetcher.unfollow(TopicPartition("t", 0))
        assert fetcher.is_idle
    elif what == "newer epoch":
        follower.follow(led_by(1, 2, replicas=(1, 2)))
    elif what == "role ended":
        follower.only.step_down()
    elif what == "log moved":
        follower.log.append_as_follower(leader.records()[0][1])
        end = 1
    else:
        told = msgspec.structs.replace(response.partitions[0], leader_epoch=2)
        response = msgspec.structs.replace(response, partitions=(told,))
    fetcher.handle(response, cells, 0)
    assert (follower.log.log_end_offset, follower.log.high_watermark) == (end, 0)


def test_answer_under_way_when_the_follower_becomes_leader_does_nothing():
    """A leader's log is its own."""
    leader, follower = _pair()
    leader.append(b"a")
    request = follower.fetchers[1].next_request(1, 0)
    response, cells = leader.answer(request, 2, 1)
    follower.lead(led_by(2, 2, replicas=(1, 2)))
    follower.fetchers[1].handle(response, cells, 0)
    assert follower.log.log_end_offset == 0
    assert follower.append(b"mine") == 1


def test_answer_that_shortens_nothing_is_refused_and_asked_again_later():
    """A peer that talks nonsense is no reason to spin."""
    leader, follower = _pair()
    leader.append(b"a")
    follower.catch_up_with(leader)
    fetcher = follower.fetchers[1]
    response, cells = leader.answer(fetcher.next_request(1, 0), 2, 1)
    told = msgspec.structs.replace(response.partitions[0], diverging_epoch=1, diverging_end=7)
    fetcher.handle(msgspec.structs.replace(response, partitions=(told,)), cells, 0)
    assert (follower.log.log_end_offset, fetcher.next_request(1, 0)) == (1, None)
