"""Brokers learn each other's writes, replace dead ones, and follow deletions."""

from broker_runtime.controller.assignment import loads
from broker_runtime.controller.topic_plans import plan_partitions
from broker_runtime.controller.topics import config_change, record_change
from broker_runtime.zookeeper.znodes import (
    DELETED_LOGS,
    broker_path,
    partition_state_path,
    topic_path,
)
from tests.unit.membership.members import Broker, put_in_sync, settle


def test_brokers_that_are_not_the_controller_learn_of_topics_partitions_settings_and_elections(brokers):
    """W25: every broker knows what ZooKeeper holds."""
    brokers[1].create("t", replication_factor=3, partitions=2)
    settle(brokers)
    assert [brokers[2].state("t", number) for number in (0, 1)] == [(1, 0, (1, 2, 3)), (2, 0, (2, 3, 1))]
    assert brokers[2].hosting.led == {"t"}
    with brokers[1].member.changing() as cluster:
        topic = cluster.topics["t"]
        brokers[1].member.controller.write(config_change(topic, {"retention.ms": "1d"}))
        record = plan_partitions("t", topic.record, 3, loads(cluster.brokers, [topic.record.assignment]))
        brokers[1].member.controller.write(record_change(topic, record))
        brokers[1].member.refresh_topic("t")
    settle(brokers)
    assert dict(brokers[3].member.state.topics["t"].config) == {"retention.ms": "1d"}
    assert brokers[3].state("t", 2)[0] == 3
    put_in_sync(brokers[1], "t", (1, 3))
    settle(brokers)
    assert [each.state("t") for each in brokers.values()] == [(1, 0, (1, 3))] * 3


def test_only_a_changed_topic_is_read(brokers):
    for name in ("t", "u"):
        brokers[1].create(name)
        settle(brokers)
    put_in_sync(brokers[1], "t", (1,))
    brokers[3].client.reads.clear()
    brokers[3].member.step(0)
    assert topic_path("t") in brokers[3].client.reads
    assert topic_path("u") not in brokers[3].client.reads


def test_missed_changes_cause_everything_to_be_read(brokers):
    brokers[1].create("t")
    brokers[1].create("u")
    brokers[3].member.step(0)
    assert set(brokers[3].member.state.topics) == {"t", "u"}


def test_older_state_than_the_known_one_is_ignored(brokers):
    """Two readers may overtake each other."""
    topic = brokers[1].create("t", replication_factor=2)
    before = brokers[1].client.find_all
    old = before([partition_state_path("t", 0)])
    put_in_sync(brokers[1], "t", (1,))
    brokers[1].member.step(0)
    assert brokers[1].state("t") == (1, 0, (1,))
    late = {partition_state_path("t", 0): old[0]}
    brokers[1].client.find_all = lambda paths, **options: [
        late.get(path, node) for path, node in zip(paths, before(paths, **options), strict=True)
    ]
    with brokers[1].member.changing():
        found = brokers[1].member.refresh_topic("t")
    assert found.partitions[0].state.isr == (1,)
    assert found.partitions[0].version == topic.partitions[0].version + 1


def test_dead_leaders_partitions_move_and_dead_followers_leave_the_in_sync_sets(brokers):
    """W13: an in-sync follower becomes leader by itself."""
    brokers[1].create("t", replication_factor=3, partitions=3)
    settle(brokers)
    brokers.pop(2).client.close()
    settle(brokers)
    assert [brokers[3].state("t", number) for number in range(3)] == [(1, 0, (1, 3)), (3, 1, (3, 1)), (3, 0, (3, 1))]


def test_dead_controller_and_its_leaderships_are_replaced(brokers):
    brokers[1].create("t", replication_factor=3, partitions=3)
    settle(brokers)
    brokers.pop(1).client.close()
    settle(brokers)
    assert [each.member.controller.is_active for each in brokers.values()].count(True) == 1
    assert [brokers[3].state("t", number)[0] for number in range(3)] == [2, 2, 3]
    assert brokers[2].member.state.controller.broker_id == 2


def test_process_whose_session_expired_stays_in_sync_and_leads_again_under_a_new_epoch(brokers, clock):
    """Its logs are unchanged: it serves only with fresh epochs, but need not catch up."""
    brokers[1].create("t", replication_factor=2, partitions=2)
    settle(brokers)
    brokers[2].client.expire()
    brokers[2].member.step(0)
    settle(brokers)
    state = brokers[1].member.state.topics["t"].partitions[1].state
    assert (state.leader, state.isr, state.leader_broker_epoch) == (2, (2, 3), 2)
    assert brokers[2].hosting.led == {"t"}


def test_process_that_began_after_an_unclean_stop_stays_in_sync_when_its_session_expires(server, brokers, clock):
    brokers.pop(2).client.close()
    brokers[2] = Broker(server, 2, clock=clock, was_clean=False)
    brokers[2].member.join()
    settle(brokers)
    brokers[1].create("t", replication_factor=3)
    settle(brokers)
    brokers[2].client.expire()
    brokers[2].member.step(0)
    settle(brokers)
    assert brokers[1].state("t") == (1, 0, (1, 2, 3))


def test_broker_whose_registration_was_deleted_registers_again(brokers):
    brokers[1].client.delete(broker_path(2))
    settle(brokers)
    assert brokers[2].member.broker_epoch == 2
    assert set(brokers[1].member.state.brokers) == {1, 2, 3}


def test_every_broker_removes_its_logs_of_a_deleted_topic_and_the_last_one_completes_it(brokers):
    topic = brokers[1].create("t", replication_factor=3)
    settle(brokers)
    with brokers[1].member.changing():
        brokers[1].member.topics.mark_for_deletion(topic)
        brokers[1].member.finish_deletion("t")
    settle({number: brokers[number] for number in (1, 2)})
    assert [brokers[number].hosting.removed for number in (1, 2, 3)] == [["t"], ["t"], []]
    assert brokers[1].client.children(DELETED_LOGS) != []
    settle(brokers)
    assert brokers[3].hosting.removed == ["t"]
    assert brokers[1].client.children(DELETED_LOGS) == []
    assert brokers[3].member.state.topics == {}


def test_absent_broker_removes_the_logs_when_it_is_back(server, brokers, clock):
    """A deletion survives brokers that are away, and the name can be reused meanwhile."""
    topic = brokers[1].create("t", replication_factor=3)
    settle(brokers)
    brokers.pop(3).client.close()
    settle(brokers)
    with brokers[1].member.changing():
        brokers[1].member.topics.mark_for_deletion(topic)
        brokers[1].member.finish_deletion("t")
    settle(brokers)
    brokers[1].create("u")
    brokers[3] = Broker(server, 3, clock=clock)
    brokers[3].member.join()
    assert brokers[3].hosting.removed == ["t"]
    assert brokers[1].client.children(DELETED_LOGS) == []


def test_draining_broker_gets_no_new_replicas(brokers):
    with brokers[1].member.changing():
        brokers[1].member.movements.set_draining(2, True)
    settle(brokers)
    assert set(brokers[1].member.state.placeable) == {1, 3}
    assert set(brokers[1].member.state.brokers) == {1, 2, 3}


def test_step_without_changes_makes_no_zookeeper_request(brokers):
    brokers[1].create("t")
    settle(brokers)
    for each in brokers.values():
        each.client.reads.clear()
        each.client.transactions = 0
        each.member.step(0)
        assert (each.client.reads, each.client.transactions) == ([], 0)
