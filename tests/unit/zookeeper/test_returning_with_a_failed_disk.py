"""A broker that comes back after a disk error ended a log: its effect on the in-sync sets."""

from __future__ import annotations

import pytest

from broker_runtime.controller.election import Electorate, LogReach, elect, elect_most_complete
from broker_runtime.log.faulty_files import Fault
from broker_runtime.zookeeper.znodes import (
    DiskTroubles,
    broker_epoch_path,
    broker_unwritable_path,
    from_json,
    partition_state_path,
    to_json,
)
from broker_runtime.zookeeper.znodes import PartitionState as State
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import TOPIC_ID, fill
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


def back_after_power_loss(answers=lambda host, port: True, register_others=(), **state):
    """Broker 1 as it comes back with that state in ZooKeeper, after its machine lost power."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(flush_mode="interval", **state)
    for other in register_others:
        broker.register_other(other)
    broker.stop(clean=False)
    broker.start(boot_id="boot 2", answers=answers)
    return broker


def found(broker):
    return from_json(broker.client.get(partition_state_path("t", 0)).data, State, "")


def state_of(broker):
    """Returns (leader, in-sync set, unproven, eligible, last known eligible)."""
    state = found(broker)
    return state.leader, state.isr, state.unproven, state.eligible, state.last_known_eligible


@pytest.mark.parametrize("report", [FAILED, None], ids=["named", "too many to name"])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("register_others", [(), (2,)])
@pytest.mark.parametrize("boot_id", ["boot", "boot 2"])
def test_failed_log_leaves_the_set_to_the_others_even_if_none_is_back(report, clean, register_others, boot_id):
    """They have what it may lack, and need not be up yet. A loss of power since makes it no better."""
    broker = returned(report=report, clean=clean, boot_id=boot_id, register_others=register_others, in_sync=(1, 2))
    assert state_of(broker) == (None, (2,), (), (), (1,))


def test_failed_log_that_was_alone_in_sync_leaves_the_set_to_the_eligible():
    """A leader commits nothing while there are any."""
    assert state_of(returned(in_sync=(1,), eligible=(2, 3))) == (None, (2, 3), (), (), (1,))


def test_failed_log_leaves_an_unproven_set_to_the_eligible():
    assert state_of(returned(in_sync=(1, 2), unproven=(2,), eligible=(3,))) == (None, (2, 3), (2,), (), (1,))


def test_failed_log_stays_in_the_set_where_there_is_nobody_else():
    assert state_of(returned(in_sync=(1,))) == (1, (1,), (), (), ())


@pytest.mark.parametrize(
    "state",
    [{"in_sync": (1, 2), "unproven": (2,)}, {"in_sync": (1,), "last_known": (2,)}],
    ids=["others lost power", "others failed"],
)
def test_failed_log_is_compared_with_the_others_that_may_lack_some(state):
    broker = returned(**state)
    unproven = tuple(sorted({1, *state.get("unproven", ())}))
    assert state_of(broker) == (None, state["in_sync"], unproven, (), state.get("last_known", ()))


def test_eligible_log_that_failed_is_marked():
    assert state_of(returned(in_sync=(2,), leader=2, eligible=(1, 3))) == (2, (2,), (), (3,), (1,))


def test_failed_log_counts_when_its_records_were_flushed():
    assert state_of(returned(flush_mode="ack", in_sync=(1, 2))) == (1, (1, 2), (), (), ())


def test_other_logs_of_the_broker_count():
    assert state_of(returned(report={"u": (0,), "t": (1,)}, in_sync=(1, 2))) == (1, (1, 2), (), (), ())


def test_report_is_gone_once_the_broker_has_registered():
    """Or the next end of its process would count as a failure, too."""
    broker = returned(in_sync=(1, 2))
    assert broker.client.find(REPORT) is None


def test_failed_log_that_is_missing_does_not_count_at_all():
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(in_sync=(2,), leader=2, last_known=(1, 3))
    broker.stop()
    broker.take_disk()
    broker.start()
    assert state_of(broker) == (2, (2,), (), (), (3,))


@pytest.mark.parametrize(
    ("boot_id", "expected"),
    [("boot", (1, (1, 2), (), (), ())), ("boot 2", (None, (1, 2), (1,), (), ()))],
    ids=["killed", "power lost"],
)
def test_set_is_not_left_to_one_whose_log_failed(boot_id, expected):
    """It may have less than this one when it is restarted."""
    broker = away_while_others_failed(failed={"t": (0,)}, in_sync=(1, 2))
    broker.start(boot_id=boot_id)
    assert state_of(broker) == expected


def test_set_is_left_to_one_whose_log_has_not_failed():
    """Another partition's has, this one's in an earlier registration, or another member's."""
    for how in ({"failed": {"t": (1,), "u": (0,)}}, {"failed": {"t": (0,)}, "epoch": 0}):
        broker = away_while_others_failed(in_sync=(1, 2), **how)
        broker.start()
        assert state_of(broker) == (None, (2,), (), (1,), ()), how
    broker = away_while_others_failed(failed={"t": (0,)}, in_sync=(1, 2, 3), sound=3)
    broker.start()
    assert state_of(broker) == (None, (2, 3), (), (), ())


def away_while_others_failed(*, failed, epoch=None, sound=None, **state):
    """Broker 1, which was killed; broker 2 reports that these logs have failed."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(flush_mode="interval", **state)
    broker.register_other(2)
    broker.register_other(2)
    if sound is not None:
        broker.register_other(sound)
    present = broker.client.get(broker_epoch_path(2)).version
    reported = DiskTroubles(epoch=present if epoch is None else epoch, failed=failed)
    broker.client.create(broker_unwritable_path(2), to_json(reported))
    broker.stop(clean=False)
    return broker


AWAY_OR_UNSURE = {
    "away": ({}, Electorate({1: 1, 2: 1})),
    "not answering yet": (
        {"register_others": (3,), "answers": lambda host, port: False},
        Electorate({1: 1, 2: 1, 3: 1}, doubtful=frozenset({3})),
    ),
}


@pytest.mark.parametrize(("how", "live"), AWAY_OR_UNSURE.values(), ids=AWAY_OR_UNSURE)
def test_power_loss_of_one_lets_no_failed_one_lead_for_a_third(how, live):
    """Broker 3 was only killed, and has all that was acknowledged."""
    broker = back_after_power_loss(in_sync=(1, 3), leader=None, last_known=(2,), **how)
    assert state_of(broker) == (None, (1, 3), (1,), (), (2,))
    assert elect(found(broker), (1, 2, 3), live, 5) is None


def test_power_loss_of_the_only_one_in_sync_has_it_compared_with_those_that_failed():
    broker = back_after_power_loss(in_sync=(1,), last_known=(2,))
    assert state_of(broker) == (None, (1,), (1,), (), (2,))
    state = found(broker)
    live = Electorate({1: 1, 2: 1})
    assert elect(state, (1, 2, 3), live, 5) is None
    for one, other, leader in (((0, 5), (0, 7), 2), ((1, 5), (0, 7), 1)):
        ends = {1: LogReach(*one), 2: LogReach(*other)}
        chosen = elect_most_complete(state, (1, 2, 3), live, 5, ends)
        assert (chosen.leader, chosen.isr, chosen.last_known_eligible) == (leader, (leader,), ())


@pytest.mark.parametrize("was_reported", [False, True])
def test_log_whose_fsync_fails_in_an_orderly_stop_has_failed(was_reported):
    """Nobody else reports it any more. What was reported before stays."""
    broker = Broker()
    broker.start()
    log = broker.directories[0].log("t", 0, TOPIC_ID, topic_settings(flush_mode="os"))
    fill(log, 20, commit=False)
    broker.put_state(in_sync=(1, 2, 3), flush_mode="os")
    if was_reported:
        earlier = DiskTroubles(epoch=broker.membership.epoch, directories={"/data": "full"}, failed={"u": (2,)})
        broker.client.create(REPORT, to_json(earlier))
    broker.files.faults.append(Fault("sync", times=1, matches=lambda path: path.suffix == ".log"))
    broker.stop()
    reported = from_json(broker.client.get(REPORT).data, DiskTroubles, "")
    assert reported.epoch == broker.membership.epoch
    assert reported.failed == ({"t": (0,), "u": (2,)} if was_reported else {"t": (0,)})
    assert reported.directories == ({"/data": "full"} if was_reported else {})
    broker.start()
    assert state_of(broker) == (None, (2, 3), (), (), (1,))


def test_orderly_stop_without_failures_reports_nothing():
    broker = Broker()
    broker.start()
    broker.write()
    broker.stop()
    assert broker.client.find(REPORT) is None
