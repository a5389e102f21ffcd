"""Leaderships that move although nobody died: off a stopping broker, back to the first replica."""

from dataclasses import replace

import pytest

from broker_runtime.controller.preferred import INTERVAL_MS, TOGETHER_MS
from broker_runtime.zookeeper.znodes import DiskTroubles, broker_unwritable_path, to_json
from tests.unit.membership.members import Broker, put_in_sync, settle


@pytest.mark.parametrize("stopped", [1, 2], ids=["the controller", "another"])
def test_stopping_broker_hands_over_its_leaderships_first(brokers, clock, stopped):
    """W13: a controlled shutdown leaves no partition without a leader, and no write waiting for a dead follower."""
    brokers[1].create("t", replication_factor=3, partitions=3)
    settle(brokers)
    stopping = brokers[stopped].member
    assert stopping.led_for_others == 1
    stopping.begin_stopping()
    settle(brokers)
    assert stopping.led_for_others == stopping.wait_until_handed_over(0) == 0
    for number in range(3):
        leader, _, in_sync = brokers[3].state("t", number)
        assert leader != stopped
        assert stopped not in in_sync
        assert len(in_sync) == 2
    assert stopped not in brokers[3].member.state.placeable
    stopping.leave()
    brokers.pop(stopped)
    settle(brokers)
    assert all(brokers[3].state("t", number)[0] != stopped for number in range(3))


def test_stopping_broker_keeps_partitions_that_nobody_else_can_lead(brokers):
    brokers[1].create("t")
    settle(brokers)
    leader = brokers[1].state("t")[0]
    brokers[leader].member.begin_stopping()
    settle(brokers)
    assert brokers[3].state("t") == (leader, 0, (leader,))
    assert brokers[leader].member.led_for_others == 0, "nothing to wait for"


def test_stopping_broker_waits_for_none_whose_log_has_failed(brokers):
    """It cannot take over."""
    brokers[1].create("t", replication_factor=2)
    settle(brokers)
    leader, _, in_sync = brokers[1].state("t")
    (other,) = set(in_sync) - {leader}
    assert brokers[leader].member.led_for_others == 1
    reported = DiskTroubles(epoch=brokers[other].member.broker_epoch, failed={"t": (0,)})
    brokers[other].client.create(broker_unwritable_path(other), to_json(reported))
    for each in brokers.values():
        each.member._state = replace(each.member.state, disks={other: reported})
    assert brokers[leader].member.led_for_others == 0


def test_stopping_without_zookeeper_does_nothing(brokers):
    brokers[1].create("t", replication_factor=3, partitions=3)
    settle(brokers)
    assert brokers[2].member.led_for_others == 1
    brokers[2].client.suspend()
    brokers[2].member.begin_stopping()
    brokers[2].client.resume()
    settle(brokers)
    assert brokers[2].member.led_for_others == 1


def test_many_leaderships_are_handed_over_in_few_writes(brokers):
    """The controlled shutdown of a broker with a thousand partitions takes seconds."""
    brokers[1].create("t", replication_factor=3, partitions=900)
    settle(brokers)
    assert brokers[2].member.led_for_others == 300
    before = brokers[1].client.transactions
    brokers[2].member.begin_stopping()
    settle(brokers)
    assert brokers[2].member.led_for_others == 0
    assert brokers[1].client.transactions - before <= 900 / 200 + 1


def test_leadership_returns_to_the_first_replica_once_it_is_in_sync(brokers, clock, server):
    brokers[1].create("t", replication_factor=3)
    settle(brokers)
    brokers.pop(1).client.close()
    settle(brokers)
    assert brokers[2].state("t") == (2, 1, (2, 3))
    brokers[1] = Broker(server, 1, clock=clock)
    brokers[1].member.join()
    settle(brokers)
    assert brokers[2].state("t") == (2, 1, (2, 3)), "it has to catch up first"
    put_in_sync(brokers[2], "t", (2, 3, 1))
    settle(brokers)
    assert brokers[2].state("t") == (1, 2, (2, 3, 1))


def test_leadership_returns_only_once_in_a_while(brokers, clock):
    """A flapping broker does not take its leaderships along each time."""
    brokers[1].create("t", replication_factor=2)
    settle(brokers)

    def loses_its_session_and_catches_up():
        brokers[1].client.expire()
        settle({number: brokers[number] for number in (2, 3)})
        settle(brokers)
        put_in_sync(brokers[2], "t", (2, 1))
        settle(brokers)

    loses_its_session_and_catches_up()
    assert brokers[2].state("t")[0] == 1
    loses_its_session_and_catches_up()
    assert brokers[2].state("t")[0] == 2
    clock[0] += INTERVAL_MS
    settle(brokers)
    assert brokers[2].state("t")[0] == 1, "at its time, though nothing changed"


def test_leaderships_that_can_return_soon_after_each_other_return_together(brokers, clock, server):
    """A broker that recovers a thousand logs one by one does not cause a thousand elections."""
    brokers[1].create("t", replication_factor=3, partitions=9)
    settle(brokers)
    of_first = [number for number in range(9) if brokers[1].state("t", number)[0] == 1]
    brokers.pop(1).client.close()
    settle(brokers)
    brokers[1] = Broker(server, 1, clock=clock)
    brokers[1].member.join()
    for number in of_first:
        put_in_sync(brokers[2], "t", (1, 2, 3), number)
        settle(brokers)
    assert [brokers[2].state("t", number)[0] == 1 for number in of_first] == [True, False, False]
    clock[0] += TOGETHER_MS
    settle(brokers)
    assert all(brokers[2].state("t", number)[0] == 1 for number in of_first)


def test_leadership_stays_when_rebalancing_is_off(server):
    """``auto.leader.rebalance.enable=false`` turns it off."""
    brokers = {number: Broker(server, number, rebalances_leaders=False) for number in (1, 2)}
    for each in brokers.values():
        each.member.join()
    settle(brokers)
    brokers[1].create("t", replication_factor=2)
    brokers[1].client.expire()
    settle({2: brokers[2]})
    settle(brokers)
    put_in_sync(brokers[2], "t", (2, 1))
    settle(brokers)
    assert brokers[2].state("t")[0] == 2


def test_unclean_election_when_the_topic_allows_it(brokers):
    for name, config in (("t", {"unclean.leader.election.enable": "true"}), ("u", {})):
        brokers[1].create(name, replication_factor=3, config=config)
        settle(brokers)
    leader = brokers[1].state("t")[0]
    for name in ("t", "u"):
        put_in_sync(brokers[1], name, (brokers[1].state(name)[0],))
    settle(brokers)
    for number in {brokers[1].state(name)[0] for name in ("t", "u")}:
        brokers.pop(number).client.close()
    settle(brokers)
    (left,) = {3} & brokers.keys()
    found, _, in_sync = brokers[left].state("t")
    assert found in brokers
    assert found != leader
    assert in_sync == (found,)
    assert brokers[left].state("u")[0] is None
