"""A broker that comes back after its machine lost power: its effect on the in-sync sets."""

from __future__ import annotations

import pytest

from broker_runtime.zookeeper.znodes import (
    DiskTroubles,
    PartitionState,
    broker_unwritable_path,
    from_json,
    partition_state_path,
    to_json,
)
from tests.unit.zookeeper.returning_broker import Broker


@pytest.fixture
def broker():
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state()
    return broker


@pytest.fixture
def unflushed():
    """Broker 1, in sync with 2 and 3, of a topic that acknowledges records before they are flushed."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state((1, 2, 3), flush_mode="interval")
    broker.stop(clean=False)
    return broker


def test_power_loss_of_all_leaves_returning_brokers_in_the_set_and_marked(unflushed):
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (None, 4, (1, 2, 3), (1,))


def test_mark_stays_through_restarts_until_there_is_a_leader(unflushed):
    unflushed.start(boot_id="another boot")
    for clean in (True, False):
        unflushed.stop(clean=clean)
        unflushed.start(boot_id="another boot")
        assert unflushed.unproven == (None, 4, (1, 2, 3), (1,))


def test_death_of_all_processes_marks_nobody(unflushed):
    unflushed.start()
    assert unflushed.unproven == (1, 3, (1, 2, 3), ())


def test_power_loss_marks_nobody_when_records_are_flushed_before_they_are_acknowledged(broker):
    broker.put_state((1, 2, 3))
    broker.stop(clean=False)
    broker.start(boot_id="another boot")
    assert broker.unproven == (1, 3, (1, 2, 3), ())


@pytest.mark.parametrize(("flush_mode", "eligible"), [("ack", (1,)), ("interval", ()), ("os", ())])
def test_broker_that_leaves_the_set_after_a_power_loss_is_eligible_only_if_records_are_flushed(flush_mode, eligible):
    """Otherwise it is asked how far its log goes only where nobody has all: the other one is up, and has."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state((1, 2), leader=2, flush_mode=flush_mode)
    broker.register_other(2)
    broker.stop(clean=False)
    broker.start(boot_id="another boot")
    assert (broker.state[2], broker.eligible) == ((2,), eligible)
    state = from_json(broker.client.get(partition_state_path("t", 0)).data, PartitionState, "")
    assert state.last_known_eligible == (() if eligible else (1,))


@pytest.mark.parametrize(("flush_mode", "last_known"), [("ack", ()), ("interval", (1,)), ("os", (1,))])
def test_replica_that_lost_power_stays_eligible_only_if_records_are_flushed(flush_mode, last_known):
    """Otherwise it is asked how far its log goes if nobody has all."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(in_sync=(2,), leader=2, eligible=(1,), flush_mode=flush_mode)
    broker.stop(clean=False)
    broker.start(boot_id="boot 2")
    state = from_json(broker.client.get(partition_state_path("t", 0)).data, PartitionState, "")
    assert broker.state == (2, 3, (2,), ())
    assert (state.eligible, state.last_known_eligible) == (() if last_known else (1,), last_known)


@pytest.mark.parametrize(("boot_id", "eligible"), [("boot", (1,)), ("boot 2", ())])
def test_member_that_leaves_the_set_to_one_is_eligible_except_after_a_power_loss(boot_id, eligible):
    """After the death of only the process its log has everything it acknowledged."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(in_sync=(1, 2), leader=2, flush_mode="interval")
    broker.register_other(2)
    broker.stop(clean=False)
    broker.start(boot_id=boot_id)
    assert (broker.state, broker.eligible) == ((2, 3, (2,), ()), eligible)


def test_unproven_member_whose_process_dies_once_more_is_not_eligible(unflushed):
    """The records that its log lost with the power are not back."""
    unflushed.start(boot_id="boot 2")
    assert unflushed.unproven == (None, 4, (1, 2, 3), (1,))
    unflushed.put_state((1, 2), leader=2, unproven=(1,))
    unflushed.register_other(2)
    unflushed.stop(clean=False)
    unflushed.start(boot_id="boot 2")
    assert (unflushed.unproven, unflushed.eligible) == ((2, 3, (2,), ()), ())


@pytest.mark.parametrize("in_sync", [(1, 2), (1, 2, 3)])
def test_log_that_is_left_out_after_a_power_loss_is_asked_if_the_others_turn_out_to_have_less(unflushed, in_sync):
    """Their disks may fail before it has caught up, and it may have been flushed by then."""
    unflushed.put_state(in_sync, leader=2)
    unflushed.register_other(2)
    unflushed.start(boot_id="boot 2")
    state = from_json(unflushed.client.get(partition_state_path("t", 0)).data, PartitionState, "")
    assert (state.isr, state.eligible, state.last_known_eligible) == (in_sync[1:], (), (1,))


def test_members_that_lost_power_lead_only_when_eligible_ones_do_not(unflushed):
    """Whoever handed over to them is eligible."""
    unflushed.put_state((1, 2), eligible=(3,))
    unflushed.start(boot_id="boot 2")
    assert (unflushed.unproven, unflushed.eligible) == ((None, 4, (1, 2, 3), (1,)), ())


def test_only_in_sync_member_that_lost_power_leads_only_when_eligible_ones_do_not(unflushed):
    """They have everything committed; its own disk may lack some."""
    unflushed.put_state((1,), eligible=(2, 3))
    unflushed.start(boot_id="boot 2")
    assert (unflushed.unproven, unflushed.eligible) == ((None, 4, (1, 2, 3), (1,)), ())


def test_power_loss_marks_nobody_after_an_orderly_stop():
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state((1, 2, 3), flush_mode="interval")
    broker.stop(clean=True)
    broker.start(boot_id="another boot")
    assert broker.unproven == (1, 3, (1, 2, 3), ())


def test_only_member_is_not_marked(unflushed):
    """Nobody can have more."""
    unflushed.put_state((1,))
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (1, 3, (1,), ())


@pytest.mark.parametrize("unproven", [(), (3,), (1, 3)])
def test_power_loss_leaves_the_set_to_an_unmarked_serving_broker(unflushed, unproven):
    unflushed.put_state((1, 2, 3), leader=2, unproven=unproven)
    unflushed.register_other(2)
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (2, 3, (2, 3), tuple(each for each in unproven if each != 1))


def test_power_loss_does_not_leave_the_set_to_a_marked_broker(unflushed):
    unflushed.put_state((1, 2, 3), leader=None, unproven=(2,))
    unflushed.register_other(2)
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (None, 3, (1, 2, 3), (1, 2))


def test_power_loss_does_not_leave_the_set_to_an_unanswering_registration(unflushed):
    """It may be from before the power loss, with a session that has not timed out yet."""
    unflushed.put_state((1, 2, 3), leader=2)
    unflushed.register_other(2, port=13)
    unflushed.start(boot_id="another boot", answers=lambda host, port: port != 13)
    assert unflushed.unproven == (2, 3, (1, 2, 3), (1,))


def test_death_of_a_process_does_not_leave_the_set_to_one_that_lost_power(unflushed):
    """This broker has every acknowledged record."""
    unflushed.put_state((1, 2), leader=None, unproven=(2,))
    unflushed.register_other(2)
    unflushed.start()
    assert unflushed.unproven == (None, 3, (1, 2), (2,))


def test_mark_disappears_with_a_lost_log(unflushed):
    unflushed.put_state((1, 2), leader=None, unproven=(1, 2))
    unflushed.take_disk()
    unflushed.start(boot_id="another boot")
    assert (unflushed.unproven, unflushed.state[3]) == ((None, 3, (2,), (2,)), (1,))


@pytest.mark.parametrize("failed", [False, True])
def test_setting_that_is_newer_than_the_records_makes_nothing_flushed(failed):
    """What was acknowledged under another ``flush.mode`` and has not been flushed since counts as it was written."""
    broker = Broker()
    broker.start()
    broker.write(flush_mode="os")
    broker.put_state((1, 2, 3), flush_mode="ack")
    if failed:
        report = DiskTroubles(epoch=broker.membership.epoch, failed={"t": (0,)})
        broker.client.create(broker_unwritable_path(1), to_json(report))
    broker.stop(clean=False)
    broker.start(boot_id="boot" if failed else "another boot")
    assert broker.unproven == ((None, 4, (2, 3), ()) if failed else (None, 4, (1, 2, 3), (1,)))
