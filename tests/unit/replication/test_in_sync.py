"""The in-sync set as its leader knows it: a state machine without a log, a lock or a clock. Broker 1 leads."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import NotLeaderOrFollowerError, StaleBrokerEpochError
from broker_runtime.replication import FollowerFetch, InSyncSet
from broker_runtime.replication.in_sync import JOIN_WAIT_MS, RETRY_MS
from tests.unit.replication.led import LAG_MS, Led
from tests.unit.replication.replicas import led_by

# --- the high watermark -------------------------------------------------------------------------------------------


def test_high_watermark_waits_until_every_member_has_reported_its_end_in_this_epoch():
    """A newly elected leader keeps its last known high watermark until all of the in-sync set have reported."""
    led = Led(high_watermark=40)
    assert led.advance() == 40
    led.reports(2, 90)
    assert led.marks.high_watermark == 40
    led.reports(3, 70)
    assert led.marks.high_watermark == 70


def test_durable_end_counts_and_not_the_fetched_end():
    """The minimum durable end over the maximal in-sync set counts."""
    led = Led(in_sync=(1, 2), high_watermark=40)
    led.reports(2, 90, durable_end=60)
    assert led.marks.high_watermark == 60
    led.reports(2, 95, durable_end=-1)
    assert led.marks.high_watermark == 60, "a report without a durable end does not count"


def test_lower_end_counts_from_then_on_and_reverts_nothing():
    """The high watermark is monotonic within one leadership."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.reports(2, 80)
    led.reports(2, 50)
    led.grows_to(120)
    assert (led.advance(), led.machine.reported_ends()[2]) == (80, 50)
    led.reports(2, 110)
    assert led.marks.high_watermark == 110


def test_end_of_an_earlier_registration_does_not_count():
    """A follower counts only under its newest broker epoch: it may have lost what it reported before."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.reports(2, 80)
    led.reports(2, 60, broker_epoch=2)
    led.grows_to(200)
    assert led.machine.reported_ends()[2] == 60
    with pytest.raises(StaleBrokerEpochError, match="registration 2, 1 is an earlier one"):
        led.reports(2, 200, broker_epoch=1)


def test_min_in_sync_replicas_holds_the_high_watermark_and_considers_pending_leaves():
    """The high watermark does not advance below ``min.insync.replicas``, nor while a pending change may have gone
    below.
    """
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.reports(2, 80)
    led.marks = led.marks._replace(high_watermark=0)
    assert led.advance(min_in_sync=3) == 0
    led.grows_to(200)
    change = led.propose(now_ms=LAG_MS + 1)
    assert change.in_sync == (1,)
    assert led.advance(min_in_sync=2) == 0
    led.machine.refused(change)
    assert led.advance(min_in_sync=2) == 80


def test_broker_without_a_replica_is_refused():
    """Only replicas fetch as replicas; one that is being removed still does."""
    led = Led(in_sync=(1, 2), replicas=(1, 3))
    led.reports(2, 100)
    with pytest.raises(NotLeaderOrFollowerError, match=r"replicas on \[1, 3\], none on broker 4"):
        led.reports(4, 100)


def test_high_watermark_stays_while_others_are_eligible():
    """A separate change rules out the eligible, where enough are in sync and the log is in use."""
    led = Led(in_sync=(1,), eligible=(2,), high_watermark=40)
    assert led.advance() == 40
    assert led.machine.has_some_to_rule_out(1)
    assert not led.machine.has_some_to_rule_out(2)
    assert led.propose(min_in_sync=2) is None
    assert led.propose(min_in_sync=None) is None, "the log is not known to be sound"
    change = led.propose(min_in_sync=1)
    assert (change.in_sync, change.eligible) == ((1,), ())
    assert led.advance() == 40
    assert not led.machine.has_some_to_rule_out(1), "a change is pending"
    led.machine.outcome_unknown(change)
    assert led.advance() == 40
    led.machine.written(change, 8)
    assert led.advance() == 100


def test_eligible_replica_that_joins_again_is_in_sync_and_the_others_stay_eligible():
    """Only with ``min.insync.replicas`` in sync can anything be committed that the others lack."""
    led = Led(in_sync=(1,), eligible=(2, 3))
    led.reports(2, 100)
    change = led.propose(min_in_sync=3)
    assert (change.in_sync, change.eligible) == ((1, 2), (3,))
    led.machine.written(change, 8)
    assert led.machine.leadership.eligible == {3}


@pytest.mark.parametrize(("min_in_sync", "eligible"), [(1, ()), (2, (2, 3)), (None, (2, 3))])
def test_lagging_replica_is_eligible_when_too_few_are_left_to_commit(min_in_sync, eligible):
    led = Led()
    led.propose(now_ms=0)
    change = led.propose(now_ms=LAG_MS + 1, min_in_sync=min_in_sync)
    assert (change.in_sync, change.eligible) == ((1,), eligible)


def test_records_are_deleted_for_good_only_when_eligible_replicas_deleted_them():
    """Otherwise they could be read again when those join as they are."""
    led = Led(in_sync=(1,), eligible=(2,))
    assert not led.machine.has_deleted(10)
    led.reports(2, 100, log_start=10)
    assert led.machine.has_deleted(10)


def test_replica_that_lost_records_is_not_eligible():
    led = Led(in_sync=(1, 2), high_watermark=100)
    led.reports(2, 100)
    led.reports(2, 60, now_ms=1)
    led.reports(2, 60, now_ms=2)
    change = led.propose(now_ms=3, min_in_sync=2)
    assert (change.in_sync, change.eligible) == ((1,), ())


def test_replica_found_to_lack_committed_records_is_no_longer_eligible():
    led = Led(in_sync=(1,), eligible=(2, 3), high_watermark=100)
    led.reports(2, 60)
    change = led.propose(min_in_sync=2)
    assert (change.in_sync, change.eligible) == ((1,), (3,))


# --- replicas that leave ------------------------------------------------------------------------------------------


def test_follower_that_does_not_reach_the_end_for_the_lag_limit_leaves():
    """Shrink: it has not caught up to the log's end for ``replica.lag.time.max.ms``."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.reports(2, 100, now_ms=1_000)
    led.grows_to(150)
    led.reports(2, 120, now_ms=2_000)
    assert led.propose(now_ms=1_000 + LAG_MS) is None
    change = led.propose(now_ms=1_001 + LAG_MS)
    assert (change.in_sync, change.version, change.leader_epoch, dict(change.joining)) == ((1,), 7, 5, {})


def test_follower_that_reaches_the_end_of_its_previous_fetch_keeps_up():
    """Kafka's last-caught-up time: under steady appends a follower never reaches the current end."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    now_ms = 0
    for _ in range(200):
        led.reports(2, led.marks.log_end - 10, now_ms=now_ms)
        led.grows_to(led.marks.log_end + 10)
        now_ms += 1_000
        assert led.propose(now_ms) is None


def test_silent_follower_at_the_logs_end_stays():
    """It lacks nothing, so it could lead."""
    led = Led()
    led.reports(2, 100)
    led.reports(3, 100)
    assert led.propose(now_ms=10 * LAG_MS) is None


def test_new_leader_gives_all_followers_the_lag_limit_from_its_beginning():
    """A new leader knows of nobody; followers get the time to report."""
    led = Led()
    assert led.propose(now_ms=LAG_MS) is None
    assert led.propose(now_ms=LAG_MS + 1).in_sync == (1,)


def test_leader_without_a_start_time_gives_the_lag_limit_from_the_first_known_time():
    machine = InSyncSet(led_by(1, 5), topic="t", partition=0, broker_id=1)
    assert machine.propose(None, 1_000_000, LAG_MS, min_in_sync=None) is None
    assert machine.propose(None, 1_000_001 + LAG_MS, LAG_MS, min_in_sync=None) is not None


@pytest.mark.parametrize("was_here_before", [False, True])
def test_follower_that_comes_back_without_committed_records_leaves_at_once(was_here_before):
    """It lost records: as an in-sync replica it might be elected without them."""
    led = Led(in_sync=(1, 2), high_watermark=50)
    if was_here_before:
        led.reports(2, 100, now_ms=0)
    led.marks = led.marks._replace(high_watermark=90)
    led.reports(2, 60, now_ms=1, broker_epoch=2)
    assert led.machine.wants_change_of(2, led.marks)
    assert led.propose(now_ms=1).in_sync == (1,)


def test_one_late_fetch_removes_nobody_and_two_in_a_row_do():
    """A request in flight when the connection broke reports an old end; the next one is current again."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.reports(2, 100, now_ms=1)
    led.reports(2, 70, now_ms=2)
    assert led.propose(now_ms=2) is None
    led.reports(2, 100, now_ms=3)
    led.reports(2, 70, now_ms=4)
    assert led.propose(now_ms=4) is None
    led.reports(2, 70, now_ms=5)
    assert led.propose(now_ms=5).in_sync == (1,)


def test_follower_whose_log_diverges_is_neither_counted_nor_lost():
    """After a failover it truncates its tail first; its report afterwards counts."""
    led = Led(in_sync=(1, 2), high_watermark=50)
    fetch = FollowerFetch(
        broker_id=2, broker_epoch=1, offset=120, durable_end=120, leader_epoch=5, last_fetched_epoch=4
    )
    led.machine.reported_unusable_end(fetch, 1)
    assert led.advance() == 50
    assert led.propose(now_ms=1) is None
    led.reports(2, 80, now_ms=2)
    assert led.marks.high_watermark == 80


# --- replicas that join -------------------------------------------------------------------------------------------


def test_replica_with_everything_committed_joins_with_the_registration_of_its_fetches():
    """Expand: end ≥ high watermark; the transaction checks the broker epoch of its fetches."""
    led = Led(in_sync=(1, 3), high_watermark=50, log_end=100)
    led.reports(3, 60)
    led.reports(2, 59, broker_epoch=9)
    assert not led.machine.wants_change_of(2, led.marks)
    led.reports(2, 60, broker_epoch=9)
    assert led.machine.wants_change_of(2, led.marks)
    change = led.propose()
    assert (change.in_sync, dict(change.joining)) == ((1, 2, 3), {2: 9})


def test_replica_joins_only_after_it_reached_the_start_of_the_epoch():
    """KAFKA-7128's rule: more may be committed than a new leader's high watermark shows."""
    led = Led(in_sync=(1, 3), high_watermark=50, epoch_start=80, log_end=100)
    led.reports(2, 79)
    assert led.propose() is None
    led.reports(2, 80)
    assert led.propose().in_sync == (1, 2, 3)


def test_replica_that_stopped_fetching_does_not_join():
    """It may be dead."""
    led = Led(in_sync=(1,))
    led.reports(2, 100, now_ms=0)
    assert led.propose(now_ms=JOIN_WAIT_MS + 1) is None


def test_high_watermark_waits_for_a_replica_close_behind_so_that_it_can_join():
    """Kafka's maybeIncrementLeaderHW: under steady appends the high watermark would always be a little ahead of it."""
    led = Led(in_sync=(1,), high_watermark=100)
    led.reports(2, 60, now_ms=0)
    assert led.propose() is None
    led.grows_to(110)
    assert led.advance() == 110, "far behind: nobody waits for it"
    led.reports(2, 100, now_ms=10)  # the log's end at its last fetch
    assert led.machine.waits_for_joining
    led.grows_to(120)
    assert led.advance() == 110
    led.reports(2, 115, now_ms=20)
    assert led.marks.high_watermark == 115
    assert led.propose(now_ms=20).in_sync == (1, 2)


def test_high_watermark_does_not_wait_for_a_replica_that_stopped_fetching():
    """A dead broker that is not in sync delays nobody."""
    led = Led(in_sync=(1,), high_watermark=100)
    led.reports(2, 100, now_ms=0)
    led.grows_to(150)
    assert led.advance() == 100
    led.propose(now_ms=JOIN_WAIT_MS + 1)
    assert led.advance() == 150


def test_replica_that_left_counts_and_joins_only_when_it_fetches_again():
    """The controller removes dead brokers before their session ends: nobody waits for them or adds them back."""
    led = Led(in_sync=(1, 2, 3), high_watermark=100)
    for broker_id in (2, 3):
        led.reports(broker_id, 100, now_ms=0)
    led.grows_to(150)
    assert led.hears((1, 3), version=8)
    led.reports(3, 150, now_ms=1)
    assert led.marks.high_watermark == 150
    assert led.propose(now_ms=2) is None
    led.reports(2, 150, now_ms=3)
    assert led.propose(now_ms=3).in_sync == (1, 2, 3)


def test_former_replica_does_not_join():
    """A reassignment ended."""
    led = Led(in_sync=(1, 2), replicas=(1, 2))
    led.reports(2, 100)
    led.hears((1,), version=8, replicas=(1,))
    with pytest.raises(NotLeaderOrFollowerError):
        led.reports(2, 100)
    assert led.propose() is None


# --- pending changes ----------------------------------------------------------------------------------------------


def test_removed_replica_counts_again_only_when_it_fetches_again():
    """A move ended before its new replica joined, and another to the same broker followed: its log is a new one."""
    led = Led(in_sync=(1, 2), log_end=100)
    led.reports(2, 100)
    led.reports(3, 99)
    led.reports(3, 100)
    assert led.hears((1, 2), 8, replicas=(1, 2))
    assert led.hears((1, 2), 9)
    assert led.machine.reported_ends() == {2: 100, 3: -1}
    assert led.propose() is None
    led.grows_to(110)
    led.reports(2, 110)
    assert led.marks.high_watermark == 110
    led.reports(3, 110)
    assert led.propose().in_sync == (1, 2, 3)


def _joining(led):
    led.reports(3, 100)
    change = led.propose()
    assert change.in_sync == (1, 2, 3)
    return change


def test_only_one_change_is_pending():
    led = Led(in_sync=(1, 2))
    _joining(led)
    assert led.propose(now_ms=10 * LAG_MS) is None


def test_joining_and_leaving_replicas_count_while_the_change_is_pending():
    """The maximal in-sync set has every replica that may be in it."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.reports(2, 100)
    change = _joining(led)
    assert led.machine.maximal == {1, 2, 3}
    led.grows_to(150)
    led.reports(2, 150)
    assert led.marks.high_watermark == 100
    assert led.machine.written(change, 8)
    assert (led.machine.leadership.in_sync, led.machine.leadership.version) == ({1, 2, 3}, 8)
    led.reports(3, 140)
    assert led.marks.high_watermark == 140


def test_leaving_replica_counts_until_the_change_is_written():
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.reports(2, 70)
    change = led.propose(now_ms=LAG_MS + 1)
    assert (change.in_sync, led.advance()) == ((1,), 70)
    led.machine.written(change, 8)
    assert led.advance() == 100


def test_refused_change_does_not_count_and_another_is_proposed_after_a_while():
    """A refusal is certain: the change was not and will not be written."""
    led = Led(in_sync=(1, 2))
    change = _joining(led)
    led.machine.refused(change)
    assert led.machine.maximal == {1, 2}
    assert led.propose(now_ms=RETRY_MS - 1) is None
    assert led.propose(now_ms=RETRY_MS) is not None


def test_refused_change_is_followed_at_once_by_another_when_the_state_is_newer():
    """The controller moves replicas meanwhile: writes that wait for the joining replica do not wait a second."""
    led = Led(in_sync=(1, 2))
    led.machine.refused(_joining(led))
    assert led.propose(now_ms=1) is None
    assert led.hears((1, 2), version=8)
    assert led.propose(now_ms=1).in_sync == (1, 2, 3)


def test_replica_that_cannot_join_is_not_waited_for_until_it_registers_again():
    """A broker that stopped or died just before it joined delays no acknowledgement."""
    led = Led(in_sync=(1, 2))
    change = _joining(led)
    led.grows_to(150)
    led.reports(2, 150)
    assert led.marks.high_watermark == 100, "broker 3 is about to join"
    led.machine.refused(change, gone=[3])
    assert led.advance() == 150
    led.reports(3, 150, now_ms=RETRY_MS)
    assert led.propose(now_ms=RETRY_MS) is None
    led.reports(3, 150, now_ms=RETRY_MS, broker_epoch=2)
    assert led.propose(now_ms=RETRY_MS).joining == {3: 2}


def test_change_of_unknown_outcome_counts_until_a_newer_state_is_known():
    """The answer was lost, so both outcomes are possible."""
    led = Led(in_sync=(1, 2))
    led.machine.outcome_unknown(_joining(led))
    assert led.machine.maximal == {1, 2, 3}
    assert led.hears((1, 2), version=7), "the same state once more settles nothing: the write may be in flight"
    assert led.machine.maximal == {1, 2, 3}
    assert led.hears((1, 2), version=8)
    assert led.machine.maximal == {1, 2}


def test_refusal_of_an_equal_change_does_not_settle_the_unknown_one_before():
    """The first may have been written and caused the refusal: the joining replica still counts."""
    led = Led(in_sync=(1, 2))
    first = _joining(led)
    led.machine.outcome_unknown(first)
    led.reports(3, 100, now_ms=RETRY_MS)
    second = led.propose(now_ms=RETRY_MS)
    assert second == first
    led.machine.refused(second)
    assert led.machine.maximal == {1, 2, 3}
    led.machine.refused(first)
    assert led.machine.maximal == {1, 2}


def test_unknown_change_is_followed_by_a_write_that_settles_it():
    """Compare-and-set over the same version: if it is written, the first never was."""
    led = Led(in_sync=(1, 2))
    led.reports(2, 100)
    led.machine.outcome_unknown(_joining(led))
    again = led.propose(now_ms=JOIN_WAIT_MS + 1)  # broker 3 is silent meanwhile
    assert again.in_sync == (1, 2)
    assert led.machine.written(again, 8)
    assert led.machine.maximal == {1, 2}


def test_newer_state_may_overtake_the_answer_to_the_write():
    """The watch fires before the reply, which then changes nothing."""
    led = Led(in_sync=(1, 2))
    change = _joining(led)
    assert led.hears((1, 2, 3), version=8)
    assert not led.machine.written(change, 8)
    led.machine.outcome_unknown(change)
    led.machine.refused(change)
    assert (led.machine.maximal, led.machine.leadership.version) == ({1, 2, 3}, 8)


def test_older_state_changes_nothing():
    """The known state never becomes older."""
    led = Led(in_sync=(1, 2))
    led.machine.written(_joining(led), 8)
    assert not led.hears((1, 2), version=7)
    assert led.machine.leadership.in_sync == {1, 2, 3}


def test_epoch_led_again_after_a_pause_keeps_pending_changes():
    """A role ended and was assigned again: followers must report again, and replicas that may have joined still
    count.
    """
    led = Led(in_sync=(1, 2))
    led.reports(2, 100)
    _joining(led)
    led.machine.begin_again(5)
    assert led.machine.maximal == {1, 2, 3}
    assert set(led.machine.reported_ends().values()) == {-1}


def test_replica_joins_only_when_it_has_deleted_what_its_leader_deleted():
    """The log start never falls, so no possible leader has deleted records."""
    led = Led(in_sync=(1,))
    led.marks = led.marks._replace(log_start=44)
    led.reports(2, 100, log_start=40)
    assert led.propose() is None
    led.reports(2, 100, log_start=44)
    change = led.propose()
    assert change is not None
    assert change.in_sync == (1, 2)
