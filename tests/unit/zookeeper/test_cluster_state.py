"""The cluster's state as read: names of changes, damage, and which state is newer."""

import pytest

from broker_runtime.zookeeper.cluster_state import ChangeFeed, logs_are_removed, read_cluster, read_topic
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import (
    CHANGES,
    DELETED_LOGS,
    PERMANENT,
    BrokerRegistration,
    DeletedLogs,
    PartitionState,
    ReassignmentRecord,
    TopicRecord,
    announcing,
    broker_path,
    deleted_logs_path,
    partition_state_path,
    to_json,
    topic_path,
)

TOPIC_ID = b"\x01" * 16


@pytest.fixture
def client():
    client = MemoryZooKeeper().client()
    for path in PERMANENT:
        client.ensure_path(path)
    return client


def put_topic(client, name="t", topic_id=TOPIC_ID):
    client.create(topic_path(name), to_json(TopicRecord(topic_id=topic_id, assignment=((1, 2),))))
    state = PartitionState(leader=1, leader_epoch=0, isr=(1, 2), controller_epoch=1, leader_broker_epoch=1)
    client.ensure_path(partition_state_path(name, 0))
    client.set(partition_state_path(name, 0), to_json(state), version=0)


def test_changes_are_reported_by_name_once_each(client):
    feed = ChangeFeed(client)
    assert feed.take(print) is None, "nothing was read yet"
    assert feed.take(print) == ()
    client.transaction([announcing(["t", "u", "t"])])
    assert feed.take(print) == ("t", "u")
    client.transaction([announcing([])])
    assert feed.take(print) == ()


def test_missed_changes_are_reported_as_everything(client):
    feed = ChangeFeed(client)
    feed.take(print)
    for name in ("t", "u"):
        client.transaction([announcing([name])])
    assert feed.take(print) is None


def test_unintelligible_change_is_reported_as_everything(client):
    feed = ChangeFeed(client)
    feed.take(print)
    client.set(CHANGES, b"{", version=-1)
    assert feed.take(print) is None


def test_watch_is_set_by_taking(client):
    woken = []
    ChangeFeed(client).take(woken.append)
    client.transaction([announcing(["t"])])
    client.transaction([announcing(["t"])])
    assert woken == [CHANGES]


def test_known_topic_never_becomes_older_and_a_recreated_one_replaces_it(client):
    put_topic(client)
    newer = read_topic(client, "t")
    later = type(newer.partitions[0])(state=newer.partitions[0].state, version=9)
    known = type(newer)(
        name="t",
        record=newer.record,
        version=3,
        partitions=(later,),
        config={"retention.ms": "1d"},
        config_version=2,
    )
    assert read_topic(client, "t", known=known) == known
    other = type(newer)(
        name="t",
        record=TopicRecord(topic_id=b"\x02" * 16, assignment=((1,),)),
        version=7,
        partitions=(None,),
    )
    assert read_topic(client, "t", known=other) == newer


def test_only_changes_are_read_and_deleted_topics_are_left_out(client):
    put_topic(client, "t")
    put_topic(client, "u", b"\x02" * 16)
    known = read_cluster(client)
    for name in ("t", "u"):
        client.delete(partition_state_path(name, 0))
        client.delete(f"/topics/{name}/partitions/0")
        client.delete(f"/topics/{name}/partitions")
        client.delete(topic_path(name))
    assert set(read_cluster(client, known=known, changed=("t",)).topics) == {"u"}
    assert set(read_cluster(client, known=known).topics) == set()


def test_damaged_znodes_of_brokers_and_deletions_leave_out_what_they_describe(client):
    client.create(broker_path(1), b"{", ephemeral=True)
    registration = BrokerRegistration(host="h", port=1, epoch=1, instance="i", pid=1)
    client.create(broker_path(2), to_json(registration), ephemeral=True)
    client.create(deleted_logs_path(TOPIC_ID), b"[]")
    cluster = read_cluster(client)
    assert dict(cluster.brokers) == {2: registration}
    assert cluster.deleted_logs == {}


def test_replication_factor_of_a_moving_partition_is_its_targets(client):
    moving = ReassignmentRecord(target=(3,), original=(1, 2))
    record = TopicRecord(topic_id=TOPIC_ID, assignment=((3, 1, 2), (1, 2)), reassignments={0: moving})
    client.create(topic_path("t"), to_json(record))
    topic = read_topic(client, "t")
    assert [topic.replication_factor(number) for number in (0, 1)] == [1, 2]


def test_brokers_remove_themselves_from_a_deletion_and_the_last_one_completes_it(client):
    client.create(deleted_logs_path(TOPIC_ID), to_json(DeletedLogs(name="t", brokers=(1, 2))))
    logs_are_removed(client, TOPIC_ID, 1)
    logs_are_removed(client, TOPIC_ID, 1)
    assert read_cluster(client).deleted_logs[TOPIC_ID].brokers == (2,)
    logs_are_removed(client, TOPIC_ID, 2)
    assert client.children(DELETED_LOGS) == []
    logs_are_removed(client, TOPIC_ID, 2)


def test_two_brokers_can_remove_themselves_from_a_deletion_concurrently(client):
    client.create(deleted_logs_path(TOPIC_ID), to_json(DeletedLogs(name="t", brokers=(1, 2, 3))))

    class Overtaken:
        find = staticmethod(client.find)

        def transaction(self, operations, *, session=None):
            logs_are_removed(client, TOPIC_ID, 2)
            return client.transaction(operations, session=session)

    logs_are_removed(Overtaken(), TOPIC_ID, 1)
    assert read_cluster(client).deleted_logs[TOPIC_ID].brokers == (3,)
