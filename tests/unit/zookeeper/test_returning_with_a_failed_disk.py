"""A broker that comes back after a disk error ended a log: its effect on the in-sync sets."""

from __future__ import annotations

import pytest

from broker_runtime.zookeeper.znodes import (
    DiskTroubles,
    broker_unwritable_path,
    from_json,
    partition_state_path,
    to_json,
)
from broker_runtime.zookeeper.znodes import PartitionState as State
from tests.unit.zookeeper.returning_broker import Broker

REPORT = broker_unwritable_path(1)
FAILED = {"t": (0,)}


def returned(*, report=FAILED, flush_mode="interval", clean=False, boot_id="boot", register_others=(), **state):
    """Broker 1 as it comes back with that state in ZooKeeper, after its last life reported that logs had failed."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(flush_mode=flush_mode, **state)
    for other in register_others:
        broker.register_other(other)
    broker.client.create(REPORT, to_json(DiskTroubles(epoch=broker.membership.epoch, failed=report)))
    broker.stop(clean=clean)
    broker.start(boot_id=boot_id)
    return broker


def state_of(broker):
    """Returns (leader, in-sync set, eligible, failed)."""
    found = from_json(broker.client.get(partition_state_path("t", 0)).data, State, "")
    return found.leader, found.isr, found.eligible, found.failed


@pytest.mark.parametrize("report", [FAILED, None], ids=["named", "too many to name"])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("register_others", [(), (2,)])
def test_failed_log_leaves_the_set_to_the_others_even_if_none_is_back(report, clean, register_others):
    """They have what it may lack, and need not be up yet."""
    broker = returned(report=report, clean=clean, register_others=register_others, in_sync=(1, 2))
    assert state_of(broker) == (None, (2,), (1,), (1,))


def test_failed_log_that_was_alone_in_sync_leaves_the_set_to_the_eligible():
    """A leader commits nothing while there are any."""
    assert state_of(returned(in_sync=(1,), eligible=(2, 3))) == (None, (2, 3), (1,), (1,))


@pytest.mark.parametrize(
    "state",
    [{"in_sync": (1,)}, {"in_sync": (1, 2), "leader": 1, "unproven": (2,)}],
    ids=["nobody else", "others lost power"],
)
def test_failed_log_stays_in_the_set_where_nobody_has_more(state):
    broker = returned(**state)
    assert state_of(broker) == (1, state["in_sync"], (), ())


def test_failed_log_stays_where_the_only_eligible_one_failed_as_well():
    assert state_of(returned(in_sync=(1,), eligible=(2,), failed=(2,))) == (1, (1,), (2,), (2,))


def test_eligible_log_that_failed_is_marked():
    assert state_of(returned(in_sync=(2,), leader=2, eligible=(1, 3))) == (2, (2,), (1, 3), (1,))


def test_failed_log_counts_when_its_records_were_flushed():
    assert state_of(returned(flush_mode="ack", in_sync=(1, 2))) == (1, (1, 2), (), ())


def test_other_logs_of_the_broker_count():
    assert state_of(returned(report={"u": (0,), "t": (1,)}, in_sync=(1, 2))) == (1, (1, 2), (), ())


def test_power_loss_after_the_failure_counts_as_one():
    broker = returned(boot_id="boot 2", in_sync=(1, 2))
    assert (state_of(broker), broker.unproven[3]) == ((None, (1, 2), (), ()), (1,))


def test_report_is_gone_once_the_broker_has_registered():
    """Or the next end of its process would count as a failure, too."""
    broker = returned(in_sync=(1, 2))
    assert broker.client.find(REPORT) is None


def test_failed_ones_are_in_sync_again_where_the_others_lost_their_power():
    """Nobody has more than they."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(in_sync=(1,), eligible=(2,), failed=(2,), flush_mode="interval")
    broker.stop(clean=False)
    broker.start(boot_id="boot 2")
    assert (state_of(broker), broker.unproven[3]) == ((None, (1, 2), (), ()), (1,))


def test_failed_ones_stay_outside_while_others_are_eligible():
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(in_sync=(1,), eligible=(2, 3), failed=(2,), flush_mode="interval")
    broker.stop(clean=False)
    broker.start(boot_id="boot 2")
    assert (state_of(broker), broker.unproven[3]) == ((None, (1, 3), (2,), (2,)), (1,))
