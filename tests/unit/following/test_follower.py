"""A broker as the follower of another: logs are in memory, the network is a function call."""

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


# --- what is replicated --------------------------------------------------------------------------------------------


def test_follower_gets_the_leaders_bytes_and_marks():
    """W11: replicas are byte-identical, and the follower knows what is committed."""
    leader, follower = _pair(segment_bytes=2048)
    for number in range(30):
        leader.append(b"%d" % number, b"x" * 100)
    follower.catch_up_with(leader)
    assert follower.records() == leader.records()
    assert follower.log.leader_epochs == leader.log.leader_epochs
    assert leader.only.high_watermark == follower.log.high_watermark == 60


def test_follower_reports_only_durable_records():
    """``flush.mode=ack``: the high watermark is the minimum durable end, so only bytes on disk are reported."""
    leader, follower = _pair()
    leader.append(b"a")
    follower.fetch_from(leader)
    follower.files.faults.append(Fault("sync", matches=lambda path: path.suffix == ".log"))
    leader.append(b"b")
    follower.fetch_from(leader)
    assert (leader.only.high_watermark, follower.log.is_offline) == (1, True)
    assert follower.fetch_from(leader) is None
    assert leader.only.high_watermark == 1


def test_follower_far_behind_fetches_more_before_its_disk_has_the_last_answer():
    """The next answer is in flight while the disk works; only durable ends are reported, and the last report is
    complete.
    """
    leader, follower = _pair()
    behind = led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1)
    leader.lead(behind)
    follower.follow(behind)
    for number in range(3):
        leader.append(b"%d" % number)
    leader.service._max_bytes = 1  # one frame at a time
    fetcher, reported = follower.fetchers[1], []
    for _ in range(4):
        request = fetcher.next_request(1, 0)
        reported.append((request.partitions[0].offset, request.partitions[0].durable_end))
        fetcher.flush_while_asking(0)
        assert follower.log.durable_end_offset == follower.log.log_end_offset
        fetcher.handle(*leader.answer(request, 2, 1), 0)
    assert reported == [(0, 0), (1, 0), (2, 1), (3, 3)]


def test_follower_far_behind_evicts_fetched_bytes_from_the_page_cache():
    """Nobody reads soon what it catches up on; a follower that keeps up stays in the page cache."""
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
def test_follower_reports_its_log_end_when_acknowledgements_do_not_wait_for_the_disk(mode):
    leader, follower = _pair(flush_mode=mode)
    leader.append(b"a")
    follower.fetch_from(leader)
    syncs = sum(operation == "sync" and path.suffix == ".log" for operation, path in follower.files.calls)
    follower.fetch_from(leader)
    assert (leader.only.high_watermark, syncs) == (1, 0)


def test_follower_flushes_records_left_by_an_earlier_flush_mode():
    """Otherwise it would report less than is committed forever."""
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
    assert [(each.partition, each.row) for each in response.partitions] == [(0, 0), (1, 1), (2, 2)]
    assert [partition.log.log_end_offset for partition in follower.partitions] == [1, 1, 1]


def test_high_watermark_of_a_follower_ends_with_its_own_log():
    """The high watermark is min(the leader's, the follower's own durable end)."""
    leader, follower = _pair()
    leader.lead(led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1))
    for number in range(4):
        leader.append(b"%d" % number)
    leader.service._max_bytes = 1  # one frame at a time
    follower.fetch_from(leader)
    assert (leader.only.high_watermark, follower.log.high_watermark) == (4, 1)


def test_follower_keeps_the_high_watermark_of_an_earlier_leader():
    """A new leader knows less at first; committed records stay committed."""
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
    """Followers, too, delete whole segments below the leader's log start."""
    leader, follower = _pair(segment_bytes=1024)
    for number in range(20):
        leader.append(b"%d" % number, bytes(100))
    follower.catch_up_with(leader)
    leader.log.delete_records(25)
    follower.fetch_from(leader)
    assert (follower.log.log_start_offset, follower.log.segment_base_offsets) == (25, leader.log.segment_base_offsets)


# --- diverging logs -------------------------------------------------------------------------------------------------


def test_uncommitted_tail_is_truncated_and_the_new_leaders_is_fetched():
    """KIP-101: truncation goes by leader epoch, never by high watermark."""
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
    """KIP-279: each leader wrote records that the other never saw, before either could follow."""
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


def test_records_above_a_stale_high_watermark_are_kept():
    """KIP-101's loss: a restarted follower that truncates to its high watermark loses committed records."""
    leader, follower = _pair()
    leader.append(b"a")
    follower.fetch_from(leader)
    follower.fetch_from(leader)  # committed now, but the follower does not know yet
    assert leader.only.high_watermark == 1
    follower.restart(lost_power=random.Random(1))
    follower.follow(led_by(1, 1, replicas=(1, 2)))
    _now_leads(follower, leader, 2)
    assert follower.log.log_end_offset == 1


def _aside(replica: Replica) -> list[str]:
    return [name for name in replica.files.list_directories(ROOT) if name.endswith(".diverged")]


def test_fully_diverged_replica_is_set_aside_and_fetched_again(caplog):
    """A follower deletes no record that it knows to be committed: after an unclean election it keeps the log and
    says so.
    """
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
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("t-0" in text and "offsets 2 to 2" in text for text in logged)
    assert any(kept in text and "keep it until" in text for text in logged)


@pytest.mark.parametrize("lost_power", [None, random.Random(1)])
def test_replica_keeps_its_log_when_its_leader_is_empty_and_the_checkpoint_is_stale(lost_power):
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


def test_records_shown_to_be_committed_by_a_later_one_are_not_truncated():
    """A frame is stamped with the high watermark at its append, so a log that was killed shows what must not be cut."""
    follower, leader = Replica(2), Replica(1)
    follower.lead(led_by(2, 1, replicas=(1, 2), in_sync=(2,)))
    leader.follow(led_by(2, 1, replicas=(1, 2), in_sync=(2,)))
    follower.append(b"both")
    leader.catch_up_with(follower)
    follower.lead(led_by(2, 2, replicas=(1, 2), in_sync=(2,)))  # and it has learned nothing since
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


def test_all_logs_set_aside_are_kept():
    """A record in one of them may be nowhere else, whichever log is longer."""
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


# --- beginning again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted_to", [3, 4, 10])
def test_follower_behind_the_leaders_log_start_begins_again_there(deleted_to):
    """Records removed by retention cannot be fetched; the replica is complete from the leader's log start on."""
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


def test_empty_replica_above_the_leaders_log_start_begins_again_before_it_counts():
    """It proves nothing about offsets below it, so it must not be elected before it begins again."""
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


def test_member_whose_records_were_all_deleted_continues():
    """An in-sync replica without records has deleted them; it holds everything that exists."""
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


# --- answers that are ignored ---------------------------------------------------------------------------------------


def test_answer_counts_once_and_only_for_the_outstanding_request():
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
def test_answer_is_ignored_once_the_partition_is_in_another_state(what):
    """The partition must still be followed, in the same epoch and at the same offset: otherwise it answers another
    request.
    """
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
        answer = msgspec.structs.replace(response.partitions[0], leader_epoch=2)
        response = msgspec.structs.replace(response, partitions=(answer,))
    fetcher.handle(response, cells, 0)
    assert (follower.log.log_end_offset, follower.log.high_watermark) == (end, 0)


def test_answer_in_flight_when_the_follower_becomes_leader_is_ignored():
    """Only a leader writes its log."""
    leader, follower = _pair()
    leader.append(b"a")
    request = follower.fetchers[1].next_request(1, 0)
    response, cells = leader.answer(request, 2, 1)
    follower.lead(led_by(2, 2, replicas=(1, 2)))
    follower.fetchers[1].handle(response, cells, 0)
    assert follower.log.log_end_offset == 0
    assert follower.append(b"mine") == 1


def test_answer_that_truncates_nothing_is_refused_and_requested_again_later():
    """A peer that sends nonsense must not cause a busy loop."""
    leader, follower = _pair()
    leader.append(b"a")
    follower.catch_up_with(leader)
    fetcher = follower.fetchers[1]
    response, cells = leader.answer(fetcher.next_request(1, 0), 2, 1)
    answer = msgspec.structs.replace(response.partitions[0], diverging_epoch=1, diverging_end=7)
    fetcher.handle(msgspec.structs.replace(response, partitions=(answer,)), cells, 0)
    assert (follower.log.log_end_offset, fetcher.next_request(1, 0)) == (1, None)
