"""The in-sync set as its leader knows it: a machine without a log, a lock or a clock. Broker 1 leads."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import NotLeaderOrFollowerError, StaleBrokerEpochError
from broker_runtime.replication import FollowerFetch, InSyncSet
from broker_runtime.replication.in_sync import JOIN_WAIT_MS, RETRY_MS
from tests.unit.replication.led import LAG_MS, Led
from tests.unit.replication.replicas import led_by

# --- the high watermark -------------------------------------------------------------------------------------------


def test_high_watermark_waits_until_every_member_has_told_its_end_in_this_epoch():
    """A newly elected leader's high watermark is its own last known until all of the in-sync set have spoken."""
    led = Led(high_watermark=40)
    assert led.advance() == 40
    led.tells(2, 90)
    assert led.marks.high_watermark == 40
    led.tells(3, 70)
    assert led.marks.high_watermark == 70


def test_durable_end_counts_and_not_what_was_fetched():
    """The minimum durable end over the maximal in-sync set."""
    led = Led(in_sync=(1, 2), high_watermark=40)
    led.tells(2, 90, durable_end=60)
    assert led.marks.high_watermark == 60
    led.tells(2, 95, durable_end=-1)
    assert led.marks.high_watermark == 60, "who does not say how much is durable says nothing"


def test_lower_end_counts_from_then_on_and_takes_nothing_back():
    """The high watermark is monotonic within one leadership."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.tells(2, 80)
    led.tells(2, 50)
    led.grows_to(120)
    assert (led.advance(), led.machine.reported_ends()[2]) == (80, 50)
    led.tells(2, 110)
    assert led.marks.high_watermark == 110


def test_end_of_an_earlier_registration_counts_no_more():
    """A follower counts only under its newest broker epoch: it may have lost what it told before."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.tells(2, 80)
    led.tells(2, 60, broker_epoch=2)
    led.grows_to(200)
    assert led.machine.reported_ends()[2] == 60
    with pytest.raises(StaleBrokerEpochError, match="registration 2, 1 is an earlier one"):
        led.tells(2, 200, broker_epoch=1)


def test_min_in_sync_replicas_holds_the_high_watermark_and_counts_who_may_have_left():
    """The high watermark does not advance under ``min.insync.replicas``, nor while a change may have gone below."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.tells(2, 80)
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
    led.tells(2, 100)
    with pytest.raises(NotLeaderOrFollowerError, match=r"replicas on \[1, 3\], none on broker 4"):
        led.tells(4, 100)


def test_high_watermark_stands_still_while_others_have_all_that_is_committed():
    """The eligible are ruled out by a change of their own, where enough are in sync, and the log is in use."""
    led = Led(in_sync=(1,), eligible=(2,), high_watermark=40)
    assert led.advance() == 40
    assert led.machine.has_some_to_rule_out(1)
    assert not led.machine.has_some_to_rule_out(2)
    assert led.propose(min_in_sync=2) is None
    assert led.propose(min_in_sync=None) is None, "the log is not known to be sound"
    change = led.propose(min_in_sync=1)
    assert (change.in_sync, change.eligible) == ((1,), ())
    assert led.advance() == 40
    assert not led.machine.has_some_to_rule_out(1), "it is under way"
    led.machine.outcome_unknown(change)
    assert led.advance() == 40
    led.machine.written(change, 8)
    assert led.advance() == 100


def test_eligible_replica_that_joins_again_is_in_sync_and_the_others_stay_eligible():
    """Only with ``min.insync.replicas`` of them in sync anything is committed that the others have not."""
    led = Led(in_sync=(1,), eligible=(2, 3))
    led.tells(2, 100)
    change = led.propose(min_in_sync=3)
    assert (change.in_sync, change.eligible) == ((1, 2), (3,))
    led.machine.written(change, 8)
    assert led.machine.leadership.eligible == {3}


@pytest.mark.parametrize(("min_in_sync", "eligible"), [(1, ()), (2, (2, 3)), (None, (2, 3))])
def test_who_lags_too_far_is_eligible_where_too_few_are_left_to_commit(min_in_sync, eligible):
    led = Led()
    led.propose(now_ms=0)
    change = led.propose(now_ms=LAG_MS + 1, min_in_sync=min_in_sync)
    assert (change.in_sync, change.eligible) == ((1,), eligible)


def test_records_are_deleted_for_good_only_when_they_are_on_the_eligible():
    """Else they could be read again when those are in sync as they are."""
    led = Led(in_sync=(1,), eligible=(2,))
    assert not led.machine.has_deleted(10)
    led.tells(2, 100, log_start=10)
    assert led.machine.has_deleted(10)


def test_replica_that_lost_records_is_not_eligible():
    led = Led(in_sync=(1, 2), high_watermark=100)
    led.tells(2, 100)
    led.tells(2, 60, now_ms=1)
    led.tells(2, 60, now_ms=2)
    change = led.propose(now_ms=3, min_in_sync=2)
    assert (change.in_sync, change.eligible) == ((1,), ())


def test_eligible_replica_that_turns_out_to_hold_less_than_is_committed_is_so_no_more():
    led = Led(in_sync=(1,), eligible=(2, 3), high_watermark=100)
    led.tells(2, 60)
    change = led.propose(min_in_sync=2)
    assert (change.in_sync, change.eligible) == ((1,), (3,))


# --- who leaves ---------------------------------------------------------------------------------------------------


def test_follower_that_does_not_reach_the_end_for_the_lag_limit_leaves():
    """Shrink: not caught up to the log's end for ``replica.lag.time.max.ms``."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.tells(2, 100, now_ms=1_000)
    led.grows_to(150)
    led.tells(2, 120, now_ms=2_000)
    assert led.propose(now_ms=1_000 + LAG_MS) is None
    change = led.propose(now_ms=1_001 + LAG_MS)
    assert (change.in_sync, change.version, change.leader_epoch, dict(change.joining)) == ((1,), 7, 5, {})


def test_follower_that_reaches_what_was_the_end_at_its_fetch_before_keeps_up():
    """Kafka's last-caught-up time: under steady appends a follower never reaches the end of the moment."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    now_ms = 0
    for _ in range(200):
        led.tells(2, led.marks.log_end - 10, now_ms=now_ms)
        led.grows_to(led.marks.log_end + 10)
        now_ms += 1_000
        assert led.propose(now_ms) is None


def test_follower_at_the_logs_end_stays_however_long_it_says_nothing():
    """Nothing is missing there: it could lead."""
    led = Led()
    led.tells(2, 100)
    led.tells(3, 100)
    assert led.propose(now_ms=10 * LAG_MS) is None


def test_new_leader_gives_everybody_the_lag_limit_from_its_beginning():
    """A fresh leader knows of nobody; they get the time to tell."""
    led = Led()
    assert led.propose(now_ms=LAG_MS) is None
    assert led.propose(now_ms=LAG_MS + 1).in_sync == (1,)


def test_leader_that_was_not_told_the_time_gives_the_lag_limit_from_the_first_it_hears_of():
    machine = InSyncSet(led_by(1, 5), topic="t", partition=0, broker_id=1)
    assert machine.propose(None, 1_000_000, LAG_MS, min_in_sync=None) is None
    assert machine.propose(None, 1_000_001 + LAG_MS, LAG_MS, min_in_sync=None) is not None


@pytest.mark.parametrize("was_here_before", [False, True])
def test_follower_that_comes_back_with_less_than_is_committed_leaves_at_once(was_here_before):
    """It lost records: as an in-sync replica it might be elected without them."""
    led = Led(in_sync=(1, 2), high_watermark=50)
    if was_here_before:
        led.tells(2, 100, now_ms=0)
    led.marks = led.marks._replace(high_watermark=90)
    led.tells(2, 60, now_ms=1, broker_epoch=2)
    assert led.machine.wants_change_of(2, led.marks)
    assert led.propose(now_ms=1).in_sync == (1,)


def test_one_old_fetch_that_comes_late_drives_nobody_out_and_two_in_a_row_do():
    """A request that was under way when the connection broke tells an old end; the next one is news again."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.tells(2, 100, now_ms=1)
    led.tells(2, 70, now_ms=2)
    assert led.propose(now_ms=2) is None
    led.tells(2, 100, now_ms=3)
    led.tells(2, 70, now_ms=4)
    assert led.propose(now_ms=4) is None
    led.tells(2, 70, now_ms=5)
    assert led.propose(now_ms=5).in_sync == (1,)


def test_follower_whose_log_diverges_is_neither_counted_nor_lost():
    """After a failover it cuts its tail first; what it holds then it tells."""
    led = Led(in_sync=(1, 2), high_watermark=50)
    fetch = FollowerFetch(
        broker_id=2, broker_epoch=1, offset=120, durable_end=120, leader_epoch=5, last_fetched_epoch=4
    )
    led.machine.reported_unusable_end(fetch, 1)
    assert led.advance() == 50
    assert led.propose(now_ms=1) is None
    led.tells(2, 80, now_ms=2)
    assert led.marks.high_watermark == 80


# --- who joins ----------------------------------------------------------------------------------------------------


def test_replica_that_holds_all_that_is_committed_joins_with_the_registration_it_fetched_in():
    """Expand: end ≥ high watermark; the multi checks the broker epoch that the fetches carried."""
    led = Led(in_sync=(1, 3), high_watermark=50, log_end=100)
    led.tells(3, 60)
    led.tells(2, 59, broker_epoch=9)
    assert not led.machine.wants_change_of(2, led.marks)
    led.tells(2, 60, broker_epoch=9)
    assert led.machine.wants_change_of(2, led.marks)
    change = led.propose()
    assert (change.in_sync, dict(change.joining)) == ((1, 2, 3), {2: 9})


def test_replica_joins_only_once_it_reached_the_start_of_the_epoch():
    """KAFKA-7128's rule: a new leader may have more that is committed than its high watermark says."""
    led = Led(in_sync=(1, 3), high_watermark=50, epoch_start=80, log_end=100)
    led.tells(2, 79)
    assert led.propose() is None
    led.tells(2, 80)
    assert led.propose().in_sync == (1, 2, 3)


def test_replica_that_stopped_fetching_does_not_join():
    """It may be dead."""
    led = Led(in_sync=(1,))
    led.tells(2, 100, now_ms=0)
    assert led.propose(now_ms=JOIN_WAIT_MS + 1) is None


def test_high_watermark_waits_for_a_replica_close_behind_so_that_it_can_join():
    """Kafka's maybeIncrementLeaderHW: under steady appends the high watermark would always be a little ahead of it."""
    led = Led(in_sync=(1,), high_watermark=100)
    led.tells(2, 60, now_ms=0)
    assert led.propose() is None
    led.grows_to(110)
    assert led.advance() == 110, "far behind: nobody waits for it"
    led.tells(2, 100, now_ms=10)  # all there was at its last fetch
    assert led.machine.waits_for_joining
    led.grows_to(120)
    assert led.advance() == 110
    led.tells(2, 115, now_ms=20)
    assert led.marks.high_watermark == 115
    assert led.propose(now_ms=20).in_sync == (1, 2)


def test_high_watermark_waits_no_longer_for_one_that_stopped_fetching():
    """A dead broker holds up nobody who is not in sync with it."""
    led = Led(in_sync=(1,), high_watermark=100)
    led.tells(2, 100, now_ms=0)
    led.grows_to(150)
    assert led.advance() == 100
    led.propose(now_ms=JOIN_WAIT_MS + 1)
    assert led.advance() == 150


def test_one_that_left_counts_and_joins_again_only_when_it_fetches_again():
    """The controller removes dead brokers before their session ends: nobody waits for them, nobody adds them back."""
    led = Led(in_sync=(1, 2, 3), high_watermark=100)
    for broker_id in (2, 3):
        led.tells(broker_id, 100, now_ms=0)
    led.grows_to(150)
    assert led.hears((1, 3), version=8)
    led.tells(3, 150, now_ms=1)
    assert led.marks.high_watermark == 150
    assert led.propose(now_ms=2) is None
    led.tells(2, 150, now_ms=3)
    assert led.propose(now_ms=3).in_sync == (1, 2, 3)


def test_broker_that_is_no_replica_any_more_does_not_join():
    """A reassignment ended."""
    led = Led(in_sync=(1, 2), replicas=(1, 2))
    led.tells(2, 100)
    led.hears((1,), version=8, replicas=(1,))
    with pytest.raises(NotLeaderOrFollowerError):
        led.tells(2, 100)
    assert led.propose() is None


# --- changes under way --------------------------------------------------------------------------------------------


def test_replica_that_was_taken_away_counts_again_only_when_it_fetches_again():
    """A move that ended before its new replica joined, then another to the same broker: its log is a new one."""
    led = Led(in_sync=(1, 2), log_end=100)
    led.tells(2, 100)
    led.tells(3, 99)
    led.tells(3, 100)
    assert led.hears((1, 2), 8, replicas=(1, 2))
    assert led.hears((1, 2), 9)
    assert led.machine.reported_ends() == {2: 100, 3: -1}
    assert led.propose() is None
    led.grows_to(110)
    led.tells(2, 110)
    assert led.marks.high_watermark == 110
    led.tells(3, 110)
    assert led.propose().in_sync == (1, 2, 3)


def _joining(led):
    led.tells(3, 100)
    change = led.propose()
    assert change.in_sync == (1, 2, 3)
    return change


def test_only_one_change_is_under_way():
    led = Led(in_sync=(1, 2))
    _joining(led)
    assert led.propose(now_ms=10 * LAG_MS) is None


def test_whoever_joins_or_leaves_counts_while_the_change_is_under_way():
    """The maximal in-sync set: all who may be in it."""
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.tells(2, 100)
    change = _joining(led)
    assert led.machine.maximal == {1, 2, 3}
    led.grows_to(150)
    led.tells(2, 150)
    assert led.marks.high_watermark == 100
    assert led.machine.written(change, 8)
    assert (led.machine.leadership.in_sync, led.machine.leadership.version) == ({1, 2, 3}, 8)
    led.tells(3, 140)
    assert led.marks.high_watermark == 140


def test_one_that_leaves_counts_until_that_is_written():
    led = Led(in_sync=(1, 2), high_watermark=0)
    led.tells(2, 70)
    change = led.propose(now_ms=LAG_MS + 1)
    assert (change.in_sync, led.advance()) == ((1,), 70)
    led.machine.written(change, 8)
    assert led.advance() == 100


def test_refused_change_counts_no_more_and_another_is_proposed_after_a_while():
    """Refused is certain: it was not and will not be written."""
    led = Led(in_sync=(1, 2))
    change = _joining(led)
    led.machine.refused(change)
    assert led.machine.maximal == {1, 2}
    assert led.propose(now_ms=RETRY_MS - 1) is None
    assert led.propose(now_ms=RETRY_MS) is not None


def test_refused_change_is_followed_at_once_by_another_when_the_state_is_newer():
    """The controller moves replicas meanwhile: whose acknowledgements wait for the one that joins wait no second."""
    led = Led(in_sync=(1, 2))
    led.machine.refused(_joining(led))
    assert led.propose(now_ms=1) is None
    assert led.hears((1, 2), version=8)
    assert led.propose(now_ms=1).in_sync == (1, 2, 3)


def test_replica_that_cannot_join_is_waited_for_no_more_until_it_registers_anew():
    """A broker that stops, or died, just when it was about to join: nobody's acknowledgement waits for it."""
    led = Led(in_sync=(1, 2))
    change = _joining(led)
    led.grows_to(150)
    led.tells(2, 150)
    assert led.marks.high_watermark == 100, "broker 3 is about to join"
    led.machine.refused(change, gone=[3])
    assert led.advance() == 150
    led.tells(3, 150, now_ms=RETRY_MS)
    assert led.propose(now_ms=RETRY_MS) is None
    led.tells(3, 150, now_ms=RETRY_MS, broker_epoch=2)
    assert led.propose(now_ms=RETRY_MS).joining == {3: 2}


def test_change_of_unknown_outcome_counts_until_a_newer_state_is_known():
    """An answer that was lost: both outcomes are possible."""
    led = Led(in_sync=(1, 2))
    led.machine.outcome_unknown(_joining(led))
    assert led.machine.maximal == {1, 2, 3}
    assert led.hears((1, 2), version=7), "the same state once more settles nothing: the write may be under way"
    assert led.machine.maximal == {1, 2, 3}
    assert led.hears((1, 2), version=8)
    assert led.machine.maximal == {1, 2}


def test_refusal_of_an_equal_change_does_not_settle_the_unknown_one_before():
    """It may have been refused because the first was written: who joined counts on."""
    led = Led(in_sync=(1, 2))
    first = _joining(led)
    led.machine.outcome_unknown(first)
    led.tells(3, 100, now_ms=RETRY_MS)
    second = led.propose(now_ms=RETRY_MS)
    assert second == first
    led.machine.refused(second)
    assert led.machine.maximal == {1, 2, 3}
    led.machine.refused(first)
    assert led.machine.maximal == {1, 2}


def test_unknown_change_is_followed_by_a_write_that_settles_it():
    """Compare-and-set over the same version: written, the first never was."""
    led = Led(in_sync=(1, 2))
    led.tells(2, 100)
    led.machine.outcome_unknown(_joining(led))
    again = led.propose(now_ms=JOIN_WAIT_MS + 1)  # broker 3 is silent meanwhile
    assert again.in_sync == (1, 2)
    assert led.machine.written(again, 8)
    assert led.machine.maximal == {1, 2}


def test_news_may_overtake_the_answer_to_the_write():
    """The watch fires before the reply: what is known already changes nothing."""
    led = Led(in_sync=(1, 2))
    change = _joining(led)
    assert led.hears((1, 2, 3), version=8)
    assert not led.machine.written(change, 8)
    led.machine.outcome_unknown(change)
    led.machine.refused(change)
    assert (led.machine.maximal, led.machine.leadership.version) == ({1, 2, 3}, 8)


def test_older_news_change_nothing():
    """Beliefs never go back."""
    led = Led(in_sync=(1, 2))
    led.machine.written(_joining(led), 8)
    assert not led.hears((1, 2), version=7)
    assert led.machine.leadership.in_sync == {1, 2, 3}


def test_epoch_led_again_after_a_pause_keeps_what_may_still_be_written():
    """A role that ended and was given back: who told before must tell anew, who may have joined still counts."""
    led = Led(in_sync=(1, 2))
    led.tells(2, 100)
    _joining(led)
    led.machine.begin_again(5)
    assert led.machine.maximal == {1, 2, 3}
    assert set(led.machine.reported_ends().values()) == {-1}


def test_replica_joins_only_when_it_has_deleted_what_its_leader_has():
    """The log's start never goes back, so whoever may lead next has none of what was deleted."""
    led = Led(in_sync=(1,))
    led.marks = led.marks._replace(log_start=44)
    led.tells(2, 100, log_start=40)
    assert led.propose() is None
    led.tells(2, 100, log_start=44)
    change = led.propose()
    assert change is not None
    assert change.in_sync == (1, 2)
