"""Brokers whose port refuses connections: what they lose before their session times out, and what they keep."""

import pytest

from broker_runtime.contract.errors import NotControllerError
from broker_runtime.contract.requests import CreatePartitionsRequest, CreateTopicRequest
from broker_runtime.contract.settings import resolve
from broker_runtime.controller.suspicion import STARTING_MS, TRUST_MS
from broker_runtime.services.topics import TopicService
from tests.callers import CLIENT
from tests.unit.membership.members import Broker, put_in_sync, settle


def test_refusing_port_moves_leaderships_before_the_session_times_out(brokers, clock, refusing):
    """W13: only a silent host costs the session timeout."""
    brokers[1].create("t", replication_factor=3, partitions=3)
    settle(brokers)
    brokers[1].member.probe_peers()
    refusing.add("h2")
    brokers[1].member.probe_peers()
    brokers[1].member.step(0)
    assert [brokers[1].state("t", number) for number in range(3)] == [(1, 0, (1, 3)), (3, 1, (3, 1)), (3, 0, (3, 1))]


def test_follower_reports_a_lost_leader_and_the_controller_checks_it(brokers, clock, refusing):
    brokers[1].create("t", replication_factor=3, partitions=3)
    settle(brokers)
    brokers[3].member.suspect(2)
    assert brokers[3].reported == [], "its port takes connections"
    clock[0] += STARTING_MS
    refusing.add("h2")
    brokers[3].member.suspect(2)
    assert brokers[3].reported == [2]
    assert brokers[3].state("t", 1)[0] == 2, "a broker that is not the controller decides nothing"
    brokers[1].member.suspect(2)
    settle(brokers)
    assert brokers[3].state("t", 1)[0] == 3


def test_refusing_controller_is_replaced_by_anyone_at_once(server, brokers, clock, refusing):
    """W13: the controller's failover does not wait for its session either."""
    brokers[1].create("t", replication_factor=3, partitions=3)
    settle(brokers)
    clock[0] += STARTING_MS
    refusing.add("h1")
    dead = brokers.pop(1)
    brokers[3].member.suspect(1)
    settle(brokers)
    assert brokers[3].member.controller.is_active
    assert [brokers[2].state("t", number)[0] for number in range(3)] == [2, 2, 3]
    assert not brokers[3].reported
    assert set(brokers[2].member.state.brokers) == {1, 2, 3}, "its session has not timed out"
    dead.client.close()
    settle(brokers)
    assert set(brokers[2].member.state.brokers) == {2, 3}


def test_wrongly_replaced_controller_notices_and_nothing_is_lost(brokers, clock, refusing):
    """A wrong suspicion does no harm."""
    brokers[1].create("t", replication_factor=3)
    settle(brokers)
    clock[0] += STARTING_MS
    refusing.add("h1")
    brokers[2].member.suspect(1)
    brokers[2].member.step(0)
    assert brokers[2].member.controller.is_active
    with pytest.raises(NotControllerError):
        brokers[1].create("u")
    refusing.clear()
    brokers[2].member.probe_peers()
    put_in_sync(brokers[2], "t", (2, 3, 1))
    settle(brokers)
    assert [each.member.controller.is_active for each in brokers.values()] == [False, True, False]
    assert [each.state("t") for each in brokers.values()] == [(1, 2, (2, 3, 1))] * 3, "it leads again"


def test_controller_that_was_replaced_while_idle_notices(brokers, clock, refusing):
    clock[0] += STARTING_MS
    refusing.add("h1")
    brokers[2].member.suspect(1)
    brokers[2].member.step(0)
    brokers[1].member.step(0)
    assert not brokers[1].member.controller.is_active
    assert brokers[1].member.state.controller.broker_id == 2


def test_suspect_that_joins_an_in_sync_set_again_is_alive(brokers, clock, refusing):
    """Its fetches arrive although its port refuses: it is not removed again and again."""
    brokers[1].create("t", replication_factor=3)
    settle(brokers)
    clock[0] += STARTING_MS
    refusing.add("h2")
    brokers[1].member.probe_peers()
    brokers[1].member.step(0)
    assert brokers[1].state("t") == (1, 0, (1, 3))
    put_in_sync(brokers[1], "t", (1, 3, 2))
    brokers[1].member.step(0)
    brokers[1].member.probe_peers()
    brokers[1].member.step(0)
    assert brokers[1].state("t") == (1, 0, (1, 3, 2))
    clock[0] += TRUST_MS
    brokers[1].member.probe_peers()
    brokers[1].member.step(0)
    assert brokers[1].state("t") == (1, 0, (1, 3)), "after a while it is checked again"


def test_broker_whose_port_never_answered_counts_as_starting_for_a_while(brokers, clock, refusing):
    brokers[1].create("t", replication_factor=3)
    refusing.add("h2")
    assert brokers[1].member.probe_peers(), "it is to be probed again soon"
    brokers[1].member.step(0)
    assert brokers[1].state("t") == (1, 0, (1, 2, 3))
    clock[0] += STARTING_MS
    assert not brokers[1].member.probe_peers()
    brokers[1].member.step(0)
    assert brokers[1].state("t") == (1, 0, (1, 3))


def test_suspicion_ends_with_its_registration(server, brokers, clock, refusing):
    brokers[1].create("t", replication_factor=3)
    settle(brokers)
    clock[0] += STARTING_MS
    refusing.add("h2")
    brokers[1].member.suspect(2)
    brokers[1].member.step(0)
    refusing.clear()
    brokers[2] = Broker(server, 2, clock=clock, ports=refusing)
    brokers[2].member.join()
    settle(brokers)
    assert brokers[1].member.electorate.suspects == frozenset()


@pytest.fixture
def dead_two(brokers, clock, refusing):
    """Broker 2's port refuses, and the controller has just noticed."""
    clock[0] += STARTING_MS
    refusing.add("h2")
    brokers[1].member.suspect(2)
    return TopicService(brokers[1].member, resolve("broker", {"broker.id": "1", "log.dirs": "unused"}))


def test_new_topic_is_not_placed_on_a_suspect_while_others_are_enough(brokers, dead_two):
    """W10 W13: a broker that was just found dead gets no new partitions."""
    made = dead_two.create_topic(CLIENT, CreateTopicRequest(name="t", partitions=3, replication_factor=2)).topic
    assert [set(partition.replicas) for partition in made.partitions] == [{1, 3}] * 3
    dead_two.create_partitions(CLIENT, CreatePartitionsRequest(name="t", total=6))
    assert [set(replicas) for replicas in brokers[1].member.state.topics["t"].record.assignment] == [{1, 3}] * 6


def test_new_topic_that_needs_a_suspect_is_led_by_others(brokers, dead_two):
    """W10 W13: the topic can be created, accepts records at once, and is complete when the broker is back."""
    made = dead_two.create_topic(CLIENT, CreateTopicRequest(name="t", partitions=3, replication_factor=3)).topic
    assert [partition.replicas[-1] for partition in made.partitions] == [2, 2, 2]
    assert {partition.leader for partition in made.partitions} == {1, 3}
    assert [set(partition.isr) for partition in made.partitions] == [{1, 3}] * 3


@pytest.fixture
def led_by_others(brokers):
    """Creates a topic without a replica on the controller: replicas 2 and 3."""
    brokers[1].create("t", replication_factor=2, partitions=3)
    settle(brokers)
    number = next(each for each in range(3) if set(brokers[1].state("t", each)[2]) == {2, 3})
    return lambda: brokers[1].state("t", number)


def test_brokers_that_die_together_all_stay_in_sync(brokers, clock, refusing, led_by_others):
    """The first one to come back leads: nothing was committed without the others, as nobody outlived them."""
    brokers[1].member.probe_peers()
    before = led_by_others()
    refusing.update({"h2", "h3"})
    brokers.pop(2).client.close()
    brokers[1].member.step(0)
    assert led_by_others() == (None, before[1] + 1, before[2])


def test_new_controller_removes_no_broker_because_of_one_that_has_not_answered(server, brokers, clock, refusing):
    """After all were killed, it finds registrations whose sessions have not ended and whose ports refuse. The ports
    of brokers that are just starting may refuse, too.
    """
    brokers[1].create("t", replication_factor=2, partitions=3)
    settle(brokers)
    number = next(each for each in range(3) if set(brokers[1].state("t", each)[2]) == {2, 3})
    before = brokers[1].state("t", number)
    refusing.update({"h1", "h2", "h3"})
    brokers.pop(1).client.close()
    brokers.pop(2).client.close()
    new = Broker(server, 4, clock=clock, ports=refusing)
    new.member.join()
    assert new.member.controller.is_active
    new.member.step(0)
    assert new.state("t", number) == before
    clock[0] += STARTING_MS
    new.member.probe_peers()
    new.member.step(0)
    assert new.state("t", number) == (None, before[1] + 1, before[2])


def test_new_controller_elects_brokers_that_answer_at_once(server, brokers, clock, refusing):
    """W13: a failover waits for no healthy broker."""
    brokers[1].create("t", replication_factor=2, partitions=3)
    settle(brokers)
    number = next(each for each in range(3) if set(brokers[1].state("t", each)[2]) == {2, 3})
    before = brokers[1].state("t", number)
    refusing.add("h1")
    brokers.pop(1).client.close()
    brokers.pop(2).client.close()
    new = Broker(server, 4, clock=clock, ports=refusing)
    new.member.join()
    assert new.state("t", number) == (3, before[1] + 1, (3,))


def test_starting_broker_leads_as_soon_as_it_answers(server, brokers, clock, refusing):
    """The controller decides as soon as a port that refused accepts connections, though nothing has changed in
    ZooKeeper.
    """
    brokers[1].create("t", replication_factor=2, partitions=3)
    settle(brokers)
    number = next(each for each in range(3) if set(brokers[1].state("t", each)[2]) == {2, 3})
    before = brokers[1].state("t", number)
    refusing.update({"h1", "h3"})
    brokers.pop(1).client.close()
    brokers.pop(2).client.close()
    new = Broker(server, 4, clock=clock, ports=refusing)
    new.member.join()
    assert new.state("t", number) == before
    refusing.discard("h3")
    new.member.probe_peers()
    new.member.step(0)
    assert new.state("t", number) == (3, before[1] + 1, (3,))
