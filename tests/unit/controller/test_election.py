"""Which replica leads a partition."""

import pytest

from broker_runtime.controller.election import Electorate, LogReach, elect, elect_most_complete, prefer
from broker_runtime.zookeeper.znodes import DiskTroubles, PartitionState


def state(leader, epoch, isr, broker_epoch=-1, controller_epoch=1, lost=(), unproven=(), eligible=(), last_known=()):
    return PartitionState(
        leader=leader,
        leader_epoch=epoch,
        isr=isr,
        controller_epoch=controller_epoch,
        leader_broker_epoch=broker_epoch,
        lost=lost,
        unproven=unproven,
        eligible=eligible,
        last_known_eligible=last_known,
    )


def test_replicas_that_leave_the_in_sync_set_to_one_are_eligible():
    """Dead, stopping or suspected replicas have everything committed; one that lost its log or power may not."""
    dead = elect(state(1, 4, (1, 2, 3), 7), (1, 2, 3), Electorate({3: 9}), 3)
    assert dead == state(3, 5, (3,), 9, 3, eligible=(1, 2))
    again = elect(state(3, 5, (3, 1), 9, eligible=(2,)), (1, 2, 3), Electorate({1: 8}), 3)
    assert again == state(1, 6, (1,), 8, 3, eligible=(2, 3))
    two = elect(state(1, 4, (1, 2, 3), 7), (1, 2, 3), Electorate({2: 8, 3: 9}), 3)
    assert two.eligible == (), "two are in sync, and commit what the third has not"
    unsure = elect(state(1, 4, (1, 2), 7, unproven=(2,)), (1, 2), Electorate({1: 7}), 3)
    assert unsure is None
    lost = elect(state(1, 4, (1, 2), 7, lost=(3,)), (1, 2, 3), Electorate({1: 7}), 3)
    assert lost == state(1, 4, (1,), 7, 3, lost=(3,), eligible=(2,))


def test_eligible_replica_leads_when_the_last_in_sync_one_is_gone():
    """It has everything committed, and so has the lost one, which becomes eligible in its turn."""
    alone = state(1, 4, (1,), 7, eligible=(2, 3))
    assert elect(alone, (1, 2, 3), Electorate({3: 9}), 3) == state(3, 5, (3,), 9, 3, eligible=(1, 2))
    assert elect(alone, (1, 2, 3), Electorate({2: 8, 3: 9}), 3) == state(2, 5, (2,), 8, 3, eligible=(1, 3))
    waiting = state(None, 5, (1,), eligible=(3,))
    assert elect(waiting, (1, 2, 3), Electorate({3: 9}), 3) == state(3, 6, (3,), 9, 3, eligible=(1,))
    full = Electorate({2: 8, 3: 9}, unfit=frozenset({2}))
    assert elect(alone, (1, 2, 3), full, 3) == state(3, 5, (3,), 9, 3, eligible=(1, 2))


def test_last_known_eligible_replica_leads_only_by_choice():
    """Its log may lack what those in sync have, who are away; of those that are there it is likely to have most."""
    waiting = state(None, 5, (1,), eligible=(2,), last_known=(3,))
    live = Electorate({2: 8, 3: 9})
    assert elect(waiting, (3, 2, 1), live, 3) == state(2, 6, (2,), 8, 3, eligible=(1,), last_known=(3,))
    only = Electorate({3: 9})
    assert elect(waiting, (3, 2, 1), only, 3) is None
    for choice in ({"is_unclean_allowed": True}, {"is_loss_accepted": True}):
        assert elect(waiting, (3, 2, 1), only, 3, **choice) == state(3, 6, (3,), 9, 3)
    nobody = state(None, 5, (1,), last_known=(3,))
    assert elect(nobody, (2, 3, 1), live, 3, is_loss_accepted=True) == state(3, 6, (3,), 9, 3)
    unproven = state(None, 5, (2,), unproven=(2,), last_known=(3,))
    assert elect(unproven, (3, 2, 1), live, 3) is None
    assert elect(unproven, (3, 2, 1), live, 3, is_loss_accepted=True) == state(2, 6, (2,), 8, 3)


def failed(*broker_ids, live, named=True, **known):
    """The brokers, of which these reported that their logs of t-0 have failed."""
    disks = {
        each: DiskTroubles(epoch=live[each], partitions={}, failed={"t": (0,)} if named else None)
        for each in broker_ids
    }
    return Electorate(live, disks=disks, **known).at("t", 0)


ALL = {1: 7, 2: 8, 3: 9}


def test_replicas_whose_logs_failed_leave_the_set_to_the_leader_and_are_eligible():
    """They are offline, and hold up commits. The others may have lost their power just before."""
    led = state(1, 4, (1, 2, 3), 7)
    assert elect(led, (1, 2, 3), failed(2, live=ALL), 3) == state(1, 4, (1, 3), 7, 3, eligible=(2,))
    assert elect(led, (1, 2, 3), failed(2, 3, live=ALL), 3) == state(1, 4, (1,), 7, 3, eligible=(2, 3))
    assert elect(led, (1, 2, 3), Electorate(ALL).at("t", 0), 3) is None
    other = Electorate(ALL, disks={2: DiskTroubles(epoch=8, failed={"t": (1,), "u": (0,)})})
    assert elect(led, (1, 2, 3), other.at("t", 0), 3) is None
    stopping = failed(2, live=ALL, stopping=frozenset({1, 3}))
    assert elect(led, (1, 2, 3), stopping, 3) == state(1, 4, (1, 3), 7, 3, eligible=(2,))
    elsewhere = elect(state(1, 4, (1, 2, 3), 7), (1, 2, 3), failed(2, live={2: 8, 3: 9}), 3)
    assert elsewhere == state(3, 5, (3,), 9, 3, eligible=(1, 2))


def test_replica_that_only_may_have_failed_stays_with_the_leader():
    """If its log is sound, it would join again at once. It leads for nobody."""
    led = state(1, 4, (1, 2, 3), 7)
    assert elect(led, (1, 2, 3), failed(2, live=ALL, named=False), 3) is None
    assert elect(led, (1, 2, 3), failed(2, live={1: 7, 2: 8}, named=False), 3) == state(1, 4, (1, 2), 7, 3)
    gone = elect(state(1, 4, (1, 2), 7), (1, 2), failed(2, live={2: 8}, named=False), 3)
    assert gone == state(None, 5, (1, 2), -1, 3)


def test_nobody_leaves_a_set_to_members_whose_logs_have_failed():
    """Whoever is dead may come back with more than they have after their restart."""
    led = state(1, 4, (1, 2, 3), 7)
    live = {2: 8, 3: 9}
    assert elect(led, (1, 2, 3), failed(2, 3, live=live), 3) == state(None, 5, (1, 2, 3), -1, 3)
    assert elect(state(None, 5, (1, 2, 3)), (1, 2, 3), failed(2, 3, live=live), 3) is None
    back = elect(state(None, 5, (1, 2, 3)), (1, 2, 3), failed(2, 3, live=ALL), 3)
    assert back == state(1, 6, (1,), 7, 3, eligible=(2, 3))
    unclean = elect(state(None, 5, (1, 2, 3)), (1, 2, 3), failed(2, 3, live=live), 3, is_unclean_allowed=True)
    assert unclean is None, "it could serve nothing"


def test_leader_whose_log_failed_hands_over_by_itself():
    """It may be alone there. If it is suspected or stopping, another leads."""
    led = state(1, 4, (1, 2, 3), 7)
    assert elect(led, (1, 2, 3), failed(1, live={1: 7, 2: 8}), 3) is None
    assert elect(led, (1, 2, 3), failed(1, live={1: 7}), 3) is None
    for known in ({"suspects": frozenset({1})}, {"stopping": frozenset({1})}):
        there = failed(1, live=ALL, **known)
        assert elect(led, (1, 2, 3), there, 3) == state(2, 5, (2, 3), 8, 3, eligible=(1,)), known


def test_eligible_replica_whose_log_failed_does_not_lead():
    """But the other one leads for in-sync replicas that have failed: it has all that is committed."""
    gone = state(None, 5, (1,), eligible=(2, 3))
    assert elect(gone, (1, 2, 3), failed(2, 3, live={2: 8, 3: 9}), 3) is None
    assert elect(gone, (1, 2, 3), failed(2, live={2: 8, 3: 9}), 3) == state(3, 6, (3,), 9, 3, eligible=(1, 2))
    unusable = state(None, 5, (1, 2), eligible=(3,))
    assert elect(unusable, (1, 2, 3), failed(2, live={2: 8, 3: 9}), 3) == state(3, 6, (3,), 9, 3, eligible=(1, 2))


def test_choice_prefers_replicas_whose_logs_have_not_failed():
    """Of those that have, it prefers one that had all to one that lags."""
    for known in ({"last_known": (2, 3)}, {"eligible": (2,), "last_known": (3,)}):
        gone = state(None, 5, (1,), **known)
        chosen = elect(gone, (1, 2, 3), failed(2, live={2: 8, 3: 9}), 3, is_loss_accepted=True)
        assert chosen == state(3, 6, (3,), 9, 3), known
    in_sync = elect(state(None, 5, (1, 3)), (1, 2, 3), failed(3, live={2: 8, 3: 9}), 3, is_loss_accepted=True)
    assert in_sync == state(3, 6, (3,), 9, 3)


def test_preferred_leader_whose_log_failed_does_not_return():
    assert prefer(state(2, 4, (1, 2), 8), (1, 2), failed(1, live=ALL), 3) is None
    assert prefer(state(2, 4, (1, 2), 8), (1, 2), failed(live=ALL), 3) is not None


@pytest.mark.parametrize(
    ("case", "current", "brokers"),
    [
        ("it is alive", state(1, 4, (1,), 7, eligible=(3,)), Electorate({1: 7, 3: 9})),
        ("it may live", state(1, 4, (1,), 7, eligible=(3,)), Electorate({1: 7, 3: 9}, suspects=frozenset({1}))),
        ("another may live", state(None, 4, (1, 2), eligible=(3,)), Electorate({2: 8, 3: 9}, suspects=frozenset({2}))),
        ("its log is gone", state(None, 4, (1,), lost=(1,), eligible=(3,)), Electorate({3: 9})),
        ("it lost its power", state(None, 4, (1,), unproven=(1,), eligible=(3,)), Electorate({3: 9})),
        ("they have lost theirs", state(None, 4, (1,), lost=(3,), eligible=(3,)), Electorate({3: 9})),
        ("they are suspected", state(None, 4, (1,), eligible=(3,)), Electorate({3: 9}, suspects=frozenset({3}))),
    ],
)
def test_last_in_sync_replica_is_not_replaced(case, current, brokers):
    """A replica that may still lead keeps the partition; only an operator decides what is given up."""
    assert elect(current, (1, 2, 3), brokers, 3) is None, case


def test_nobody_leads_when_the_last_in_sync_replica_is_gone_and_nobody_is_eligible():
    """Nor does a replica that lost its log, unless an unclean election is allowed, which prefers another."""
    gone = state(1, 4, (1,), 7, lost=(3,), eligible=())
    live = Electorate({2: 8, 3: 9})
    assert elect(gone, (1, 2, 3), live, 3) == state(None, 5, (1,), -1, 3, lost=(3,))
    assert elect(gone, (1, 2, 3), live, 3, is_unclean_allowed=True) == state(2, 5, (2,), 8, 3, lost=(3,))
    missed = state(None, 4, (1,), lost=(1,), eligible=(3,))
    for choice in ({"is_unclean_allowed": True}, {"is_loss_accepted": True}):
        assert elect(missed, (1, 2, 3), live, 3, **choice) == state(3, 5, (3,), 9, 3, lost=(1,))


def test_replica_that_lost_its_log_is_not_elected_though_it_was_the_last_in_sync():
    """There is no leader until its disk is back or someone decides, even where the topic allows unclean elections."""
    missed = state(None, 5, (3,), lost=(3,))
    assert elect(missed, (1, 2, 3), Electorate({3: 9}), 3) is None
    assert elect(missed, (1, 2, 3), Electorate({1: 7, 3: 9}), 3) is None
    assert elect(missed, (3,), Electorate({3: 9}), 3, is_unclean_allowed=True) is None
    back = state(None, 5, (3,))
    assert elect(back, (1, 2, 3), Electorate({1: 7, 3: 9}), 3) == state(3, 6, (3,), 9, 3)


def test_leader_stays_known_to_have_lost_its_log_when_its_registration_ends():
    dead = elect(state(1, 5, (1,), 7, lost=(2,)), (1, 2), Electorate({2: 8}), 3)
    assert dead == state(None, 6, (1,), -1, 3, lost=(2,))


def test_unclean_election_prefers_a_replica_with_a_log_to_one_without():
    """An operator may even choose to begin with nothing; the others stay known to have lost their logs."""
    missed = state(None, 5, (1,), lost=(1, 2))
    electorate = Electorate({1: 7, 2: 8, 3: 9})
    chosen = elect(missed, (1, 2, 3), electorate, 3, is_unclean_allowed=True, is_loss_accepted=True)
    assert chosen == state(3, 6, (3,), 9, 3, lost=(1, 2))
    without = elect(missed, (1, 2, 3), Electorate({1: 7}), 3, is_unclean_allowed=True, is_loss_accepted=True)
    assert without == state(1, 6, (1,), 7, 3, lost=(2,))


@pytest.mark.parametrize(
    ("case", "current", "replicas", "live", "expected"),
    [
        (
            "new: the preferred replica leads, the live ones are in sync",
            None,
            (2, 1, 3),
            {1: 7, 2: 8},
            (2, 0, (2, 1), 8),
        ),
        ("new: the first live replica leads", None, (2, 1), {1: 7}, (1, 0, (1,), 7)),
        ("new: nobody is alive", None, (2, 1), {3: 1}, None),
        ("led: stays", state(1, 4, (1, 2), 7), (1, 2), {1: 7, 2: 8}, None),
        ("led by another than the preferred: stays", state(2, 4, (1, 2), 8), (1, 2), {1: 7, 2: 8}, None),
        ("registered again: elected again", state(1, 4, (1,), 7), (1,), {1: 9}, (1, 5, (1,), 9)),
        ("dead leader: the next in sync", state(1, 4, (1, 2, 3), 7), (1, 2, 3), {2: 8, 3: 1}, (2, 5, (2, 3), 8)),
        ("dead leader: in assignment order", state(1, 4, (3, 2, 1), 7), (1, 3, 2), {2: 8, 3: 1}, (3, 5, (3, 2), 1)),
        (
            "nobody in sync is alive: no leader, in-sync set kept",
            state(1, 4, (1,), 7),
            (1, 2),
            {2: 8},
            (None, 5, (1,), -1),
        ),
        ("still nobody: stays", state(None, 5, (1,)), (1, 2), {2: 8}, None),
        ("back in sync: leads", state(None, 5, (1,)), (1, 2), {1: 9, 2: 8}, (1, 6, (1,), 9)),
        ("in sync but no replica any more", state(None, 5, (4,)), (1, 2), {1: 9, 4: 8}, None),
    ],
)
def test_election(case, current, replicas, live, expected):
    """W13: only a live member of the in-sync set is elected, under a higher leader epoch."""
    found = elect(current, replicas, Electorate(live), controller_epoch=3)
    if expected is None:
        assert found is None, case
    else:
        leader, epoch, isr, broker_epoch = expected
        assert found == state(leader, epoch, isr, broker_epoch, 3), case


@pytest.mark.parametrize(
    ("case", "isr", "live", "expected"),
    [
        ("all in sync live", (1, 2, 3), {1: 7, 2: 8, 3: 9}, None),
        ("one is dead", (1, 2, 3), {1: 7, 3: 9}, (1, 3)),
        ("all others are dead", (1, 2, 3), {1: 7}, (1,)),
        ("a dead one is not in sync anyway", (1, 2), {1: 7, 2: 8}, None),
        ("the leader is never taken out", (1,), {1: 7}, None),
    ],
)
def test_dead_followers_leave_the_in_sync_set_and_the_leader_epoch_stays(case, isr, live, expected):
    """W13: commits need not wait until the leader notices that a dead follower lags."""
    current = state(1, 4, isr, 7)
    found = elect(current, (1, 2, 3), Electorate(live), controller_epoch=3)
    eligible = tuple(each for each in isr if each not in expected) if expected == (1,) else ()
    assert found == (None if expected is None else state(1, 4, expected, 7, 3, eligible=eligible)), case


ALL = {1: 7, 2: 8, 3: 9}


@pytest.mark.parametrize(
    ("case", "isr", "stopping", "expected"),
    [
        ("the leader stops", (1, 2, 3), {1}, state(2, 5, (2, 3), 8, 3)),
        ("the leader and the next one stop", (1, 2, 3), {1, 2}, state(3, 5, (3,), 9, 3, eligible=(1, 2))),
        ("the leader stops and is alone", (1,), {1}, None),
        ("all in sync stop", (1, 2), {1, 2}, None),
        ("a follower stops", (1, 2, 3), {2}, state(1, 4, (1, 3), 7, 3)),
        ("a follower that is not in sync stops", (1, 3), {2}, None),
    ],
)
def test_stopping_broker_leads_and_is_in_sync_only_when_nobody_else_can(case, isr, stopping, expected):
    brokers = Electorate(ALL, stopping=frozenset(stopping))
    assert elect(state(1, 4, isr, 7), (1, 2, 3), brokers, controller_epoch=3) == expected, case


@pytest.mark.parametrize(
    ("case", "isr", "suspects", "expected"),
    [
        ("the leader", (1, 2, 3), {1}, state(2, 5, (2, 3), 8, 3)),
        ("a follower", (1, 2, 3), {3}, state(1, 4, (1, 2), 7, 3)),
        ("the leader, and nobody else can lead", (1,), {1}, None),
        ("all in sync", (1, 2), {1, 2}, None),
    ],
)
def test_suspect_loses_only_leaderships_that_another_can_take(case, isr, suspects, expected):
    """A wrong suspicion takes no partition out of service."""
    brokers = Electorate(ALL, suspects=frozenset(suspects))
    assert elect(state(1, 4, isr, 7), (1, 2, 3), brokers, controller_epoch=3) == expected, case


def test_suspect_is_not_elected_and_its_own_partitions_wait_for_it():
    brokers = Electorate(ALL, suspects=frozenset({1}))
    assert elect(state(None, 4, (1,)), (1, 2), brokers, 3) is None
    assert elect(state(None, 4, (1,)), (1, 2), Electorate(ALL), 3) == state(1, 5, (1,), 7, 3)
    assert elect(None, (1, 2), brokers, 3) == state(2, 0, (2,), 8, 3)


def test_unclean_election_only_when_the_topic_allows_it_and_no_in_sync_replica_is_alive():
    current = state(1, 4, (1,), 7)
    live = Electorate({2: 8, 3: 9})
    assert elect(current, (1, 2, 3), live, 3).leader is None
    assert elect(current, (1, 2, 3), live, 3, is_unclean_allowed=True) == state(2, 5, (2,), 8, 3)
    clean = elect(state(1, 4, (1, 3), 7), (1, 2, 3), live, 3, is_unclean_allowed=True)
    assert clean == state(3, 5, (3,), 9, 3, eligible=(1,))
    assert elect(current, (1, 2, 3), Electorate({4: 1}), 3, is_unclean_allowed=True).leader is None


@pytest.mark.parametrize(
    ("case", "current", "brokers", "expected"),
    [
        ("in sync and live", state(2, 4, (2, 1), 8), Electorate(ALL), state(1, 5, (2, 1), 7, 3)),
        ("leads already", state(1, 4, (1, 2), 7), Electorate(ALL), None),
        ("not in sync", state(2, 4, (2, 3), 8), Electorate(ALL), None),
        ("dead", state(2, 4, (2, 1), 8), Electorate({2: 8}), None),
        ("stopping", state(2, 4, (2, 1), 8), Electorate(ALL, stopping=frozenset({1})), None),
        ("suspected", state(2, 4, (2, 1), 8), Electorate(ALL, suspects=frozenset({1})), None),
        ("nobody leads: that is for the election", state(None, 4, (1,)), Electorate(ALL), None),
        ("a new partition", None, Electorate(ALL), None),
    ],
)
def test_leadership_returns_to_the_first_replica(case, current, brokers, expected):
    assert prefer(current, (1, 2, 3), brokers, controller_epoch=3) == expected, case


def test_member_that_lost_power_does_not_lead_when_one_that_kept_it_is_registered():
    """It alone has everything for certain; unproven members stay so until the leader has answered."""
    back = state(None, 5, (1, 2, 3), unproven=(1, 3))
    assert elect(back, (1, 2, 3), Electorate({1: 7, 2: 8}), 3) == state(2, 6, (1, 2, 3), 8, 3, unproven=(1, 3))


def test_nobody_leads_while_all_registered_members_have_lost_power():
    """The longest log must be found first, also where the topic allows unclean elections."""
    back = state(1, 5, (1, 2, 3), 6, unproven=(1, 3))
    expected = state(None, 6, (1, 2, 3), -1, 3, unproven=(1, 3))
    electorate = Electorate({1: 7, 3: 9})
    assert elect(back, (1, 2, 3), electorate, 3) == expected
    assert elect(back, (1, 2, 3), electorate, 3, is_unclean_allowed=True) == expected
    assert elect(expected, (1, 2, 3), electorate, 4) is None
    assert elect(expected, (1, 2, 3), electorate, 4, is_unclean_allowed=True) is None
    assert elect(expected, (1, 2, 4), Electorate({4: 9}), 4, is_unclean_allowed=True) == state(4, 7, (4,), 9, 4)


def test_impatient_operator_gets_a_member_that_was_in_sync():
    back = state(None, 5, (2, 3), unproven=(3,))
    chosen = elect(
        back, (1, 2, 3), Electorate({1: 7, 3: 9}), 3, is_unclean_allowed=True, is_loss_accepted=True
    )  # fmt: skip
    assert chosen == state(3, 6, (3,), 9, 3)


def test_controller_does_not_shrink_an_in_sync_set_with_a_member_that_lost_power():
    """Its leader's registration may be of a machine that lost power as well."""
    led = state(1, 5, (1, 2, 3), 7, unproven=(2,))
    assert elect(led, (1, 2, 3), Electorate({1: 7, 2: 8}), 3) is None


def test_leadership_does_not_return_to_a_member_that_lost_power():
    led = state(2, 5, (1, 2), 8, unproven=(1,))
    assert prefer(led, (1, 2), Electorate({1: 7, 2: 8}), 3) is None


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({1: (4, 10), 2: (4, 12), 3: (4, 11)}, 2),
        ({1: (4, 90), 2: (4, 12), 3: (5, 11)}, 3),
        ({1: (4, 12), 2: (4, 12), 3: (4, 11)}, 1),
        ({2: (-1, 0), 3: (0, 1)}, 3),
        ({1: (2, 3), 2: (4, 6, 6)}, 2),
        ({1: (2, 3), 2: (-1, 6, 6)}, 2),
        ({1: (4, 6), 2: (4, 6, 6)}, 1),
        ({1: (4, 6), 2: (-1, 6, 6)}, 1),
        ({1: (4, 8), 2: (4, 7, 6)}, 1),
        ({1: (4, 5), 2: (4, 7, 6), 3: (4, 8, 2)}, 3),
        ({}, 1),
    ],
)
def test_longest_log_of_members_that_lost_power_leads_alone(ends, leader):
    """The leader epoch decides, then the log end, then the order of the assignment. But a log that ends below another's
    start lacks what was committed."""
    ends = {broker_id: LogReach(*end) for broker_id, end in ends.items()}
    back = state(None, 5, (1, 2, 3), unproven=(1, 2, 3))
    live = {1: 7, 2: 8, 3: 9}
    chosen = elect_most_complete(back, (1, 2, 3), Electorate(live), 3, ends)
    assert chosen == state(leader, 6, (leader,), live[leader], 3)


def test_longest_log_does_not_lead_when_it_is_gone():
    back = state(None, 5, (1, 2), unproven=(1, 2))
    ends = {1: LogReach(4, 10), 2: LogReach(4, 12)}
    assert elect_most_complete(back, (1, 2), Electorate({1: 7}), 3, ends) == state(1, 6, (1,), 7, 3)
    assert elect_most_complete(back, (1, 2), Electorate({}), 3, ends) is None


def test_nobody_leaves_a_set_to_doubtful_members_only():
    """The others may have died with them: then nothing was committed without these."""
    doubtful = Electorate({2: 8, 3: 9}, doubtful=frozenset({2, 3}))
    assert elect(state(1, 4, (1, 2, 3), 7), (1, 2, 3), doubtful, 3) is None
    assert elect(state(2, 4, (2, 3, 1), 8), (1, 2, 3), doubtful, 3) is None
    one = Electorate({2: 8, 3: 9}, doubtful=frozenset({2}))
    assert elect(state(1, 4, (1, 2, 3), 7), (1, 2, 3), one, 3) == state(3, 5, (2, 3), 9, 3), (
        "the one that answers leads"
    )
    returned = elect(state(None, 4, (2, 3)), (1, 2, 3), doubtful, 3)
    assert returned == state(2, 5, (2, 3), 8, 3), "nobody has to leave"
