"""The claim to be the controller, its fencing, and topics when the process dies at any write."""

from dataclasses import replace

import pytest
from msgspec import structs

from broker_runtime.contract.errors import (
    CorruptRecordError,
    NotControllerError,
    TopicAlreadyExistsError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.requests import CreateTopicRequest
from broker_runtime.controller.assignment import loads
from broker_runtime.controller.controller import Controller
from broker_runtime.controller.election import Electorate
from broker_runtime.controller.topic_plans import plan_partitions, plan_topic
from broker_runtime.controller.topics import TopicWriter, record_change
from broker_runtime.zookeeper.cluster_state import read_cluster, read_topic
from broker_runtime.zookeeper.membership import BrokerIdentity, register
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.session import BadVersionError, Create, NodeExistsError, Set
from broker_runtime.zookeeper.znodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    PERMANENT,
    DeletedLogs,
    GroupOffsets,
    StoredOffset,
    deleted_logs_path,
    group_offsets_path,
    partition_state_path,
    to_json,
    topic_path,
)


class ProcessDiesError(Exception):
    """Simulates the death of the process."""


class CountingClient:
    """Forwards everything; can die before the n-th transaction, or lose a reply."""

    def __init__(self, client):
        self._client = client
        self.transactions = 0
        self.dies_before = None
        self.loses_reply_of = None

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        self.transactions += 1
        if self.transactions == self.dies_before:
            raise ProcessDiesError
        versions = self._client.transaction(operations, session=session)
        if self.transactions == self.loses_reply_of:
            raise ZooKeeperUnavailableError("the reply was lost")
        return versions


class Node:
    """One broker's control plane over a fake ZooKeeper."""

    def __init__(self, server, broker_id=1, instance="data"):
        self.client = CountingClient(server.client())
        for path in PERMANENT:
            self.client.ensure_path(path)
        self.identity = BrokerIdentity(
            broker_id=broker_id, host="h", port=1, instance=instance, pid=1, boot_id="", software_version=""
        )
        self.membership = register(self.client, self.identity, now_ms=0)
        self.controller = Controller(self.client)
        self.topics = TopicWriter(self.client, self.controller)

    def create(self, name="t", partitions=1, topic_id=b"\x01" * 16):
        request = CreateTopicRequest(name=name, partitions=partitions)
        brokers = loads([1], [])
        plan = plan_topic(
            request, topic_id=topic_id, brokers=brokers, default_partitions=1, default_replication_factor=1, now_ms=0
        )
        self.topics.create(plan)

    def look(self):
        """Looks as the loop does after a start."""
        self.controller.try_claim(self.membership)
        cluster = read_cluster(self.client)
        for name in cluster.deletions:
            self.topics.finish_deletion(name)
        return self.controller.elect_all(cluster, electorate(cluster))


def electorate(cluster):
    return Electorate({broker_id: broker.epoch for broker_id, broker in cluster.brokers.items()})


@pytest.fixture
def server():
    return MemoryZooKeeper()


@pytest.fixture
def node(server):
    node = Node(server)
    assert node.controller.try_claim(node.membership)
    return node


def paths(server):
    return sorted(server._tree.nodes)


def test_first_broker_takes_the_claim_and_a_second_does_not(server, node):
    """W25: ZooKeeper holds the controller's claim."""
    other = Node(server, broker_id=2)
    assert not other.controller.try_claim(other.membership)
    assert node.controller.is_active
    assert not other.controller.is_active
    with pytest.raises(NotControllerError):
        other.create()


def test_claim_raises_the_controller_epoch(server, node):
    assert server.client().get(CONTROLLER_EPOCH).data == b"1"
    node.controller.release()
    other = Node(server, broker_id=2)
    assert other.controller.try_claim(other.membership)
    assert server.client().get(CONTROLLER_EPOCH).data == b"2"


def test_release_takes_no_claim_from_a_successor(server, node):
    """A broker that stops does not know yet that it was deposed."""
    other = Node(server, broker_id=2)
    assert other.controller.try_claim(other.membership, suspects={1: node.membership.epoch})
    node.controller.release()
    claim = server.client().get(CONTROLLER)
    assert b'"broker_id":2' in claim.data.replace(b" ", b"")
    assert not node.controller.is_active


def test_claiming_again_keeps_the_claim(server, node):
    assert node.controller.try_claim(node.membership)
    assert server.client().get(CONTROLLER_EPOCH).data == b"1"


def test_claim_of_a_killed_predecessor_is_replaced_at_once(server, node):
    successor = Node(server)
    assert successor.controller.try_claim(successor.membership)
    with pytest.raises(NotControllerError):
        node.create()
    assert not node.controller.is_active


def test_claim_whose_reply_was_lost_is_read_back(server):
    node = Node(server)
    node.client.loses_reply_of = node.client.transactions + 1
    assert node.controller.try_claim(node.membership)
    assert server.client().get(CONTROLLER_EPOCH).data == b"1"
    node.create()


def test_write_of_a_deposed_controller_changes_nothing(server, node):
    """Every later write checks the controller's epoch."""
    server.client().set(CONTROLLER_EPOCH, b"9", version=-1)
    before = paths(server)
    with pytest.raises(NotControllerError, match="another controller was elected"):
        node.create()
    assert paths(server) == before
    assert not node.controller.is_active


@pytest.mark.parametrize("data", [b"1", b"9", b"0"])
def test_controller_whose_epoch_was_rewritten_by_hand_claims_again(server, node, data):
    """The claim still exists, and nobody else would take its place while the broker is alive."""
    deposed = []
    node.controller._on_deposed = lambda: deposed.append(True)
    server.client().set(CONTROLLER_EPOCH, data, version=-1)
    with pytest.raises(NotControllerError):
        node.create()
    assert deposed
    assert node.controller.try_claim(node.membership)
    node.create()
    assert int(server.client().get(CONTROLLER_EPOCH).data) >= 1


@pytest.mark.parametrize("data", [b"", b"\xff{", b"-1", b"many"])
def test_damaged_controller_epoch_is_reported_and_is_nobodys_claim(server, data):
    node = Node(server)
    node.client.create(CONTROLLER_EPOCH, data)
    with pytest.raises(CorruptRecordError, match=r"/controller_epoch is .* not the number"):
        node.controller.try_claim(node.membership)
    server.client().set(CONTROLLER_EPOCH, b"4", version=-1)
    assert node.controller.try_claim(node.membership)


def test_write_of_an_old_session_changes_nothing(server, node):
    node.client.expire()
    before = paths(server)
    with pytest.raises(ZooKeeperUnavailableError):
        node.create()
    assert paths(server) == before


def test_write_forwards_the_refusal_of_its_own_operation(node):
    node.client.create("/x")
    with pytest.raises(NodeExistsError):
        node.controller.write([Create("/x")], is_done=lambda: False)
    with pytest.raises(BadVersionError):
        node.controller.write([Set("/x", b"", 7)], is_done=lambda: False)


def test_created_topic_has_leaders(node):
    node.create("t", partitions=3)
    cluster = node.look()
    states = [versioned.state for versioned in cluster.topics["t"].partitions]
    assert [(s.leader, s.leader_epoch, s.isr, s.leader_broker_epoch) for s in states] == [(1, 0, (1,), 1)] * 3
    assert read_topic(node.client, "t") == cluster.topics["t"], "what is returned is what was written"


def test_existing_topic_is_refused(node):
    node.create("t")
    with pytest.raises(TopicAlreadyExistsError, match="already exists"):
        node.create("t", topic_id=b"\x02" * 16)
    assert read_topic(node.client, "t").record.topic_id == b"\x01" * 16


def test_creation_whose_reply_was_lost_is_a_success(node):
    node.client.loses_reply_of = node.client.transactions + 1
    node.create("t")
    assert read_topic(node.client, "t") is not None


def test_creation_that_did_not_happen_is_an_error(node):
    node.client.suspend()
    with pytest.raises(ZooKeeperUnavailableError):
        node.create("t")


def test_restarted_broker_leads_under_a_higher_epoch(server, node):
    """A new registration serves only with fresh epochs."""
    node.create("t")
    node.look()
    successor = Node(server)
    state = successor.look().topics["t"].partitions[0].state
    assert (state.leader, state.leader_epoch, state.leader_broker_epoch) == (1, 1, 2)
    assert successor.look().topics["t"].partitions[0].state == state, "another look decides nothing more"


def test_election_that_finds_a_changed_state_uses_it(server, node):
    node.create("t")
    stale = node.look().topics["t"]
    path = partition_state_path("t", 0)
    server.client().set(path, server.client().get(path).data, version=-1)
    found = node.controller.elect_topic(stale, Electorate({1: 99}))
    assert found.partitions[0].state == stale.partitions[0].state
    assert found.partitions[0].version == stale.partitions[0].version + 1
    assert node.controller.elect_topic(found, Electorate({1: 99})).partitions[0].state.leader_epoch == 1


def test_election_over_many_topics_takes_few_writes(server, node):
    """Start is lazy: a thousand topics do not cost a thousand transactions."""
    for number in range(50):
        node.create(f"t{number}", topic_id=bytes([number]) * 16)
    assert node.look().topics["t49"].partitions[0].state.leader == 1
    successor = Node(server)
    before = successor.client.transactions
    topics = successor.look().topics
    assert {topic.partitions[0].state.leader_epoch for topic in topics.values()} == {1}
    assert topics == read_cluster(successor.client).topics
    assert successor.client.transactions - before <= 2, "the claim, and the states"


def test_state_changed_by_another_writer_holds_up_no_other_partitions_election(server, node):
    """W13: a leader's own change of one in-sync set at the same moment costs other partitions nothing."""
    for name in ("s", "t", "u"):
        node.create(name, partitions=2, topic_id=name.encode() * 16)
    cluster = node.look()
    changed = (partition_state_path("s", 1), partition_state_path("t", 0))
    for path in changed:
        server.client().set(path, server.client().get(path).data, version=-1)
    registered = {1: structs.replace(cluster.brokers[1], epoch=99)}
    cluster = replace(cluster, brokers=registered)
    topics = node.controller.elect_all(cluster, electorate(cluster)).topics
    epochs = {f"{name}-{number}": versioned.state.leader_epoch
              for name, topic in topics.items() for number, versioned in enumerate(topic.partitions)}  # fmt: skip
    assert epochs == {"s-0": 1, "s-1": 0, "t-0": 0, "t-1": 1, "u-0": 1, "u-1": 1}
    assert topics == read_cluster(node.client).topics


def test_election_of_many_partitions_is_logged_in_one_line(server, node, caplog):
    node.create("t", partitions=450)
    node.look()
    with caplog.at_level("INFO"):
        Node(server).look()
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("elect ")]
    assert logged == ["elect leader topic=t leader=1 leader_epoch=1 isr=(1,) partitions=0-449"]


def test_election_whose_reply_was_lost_is_read_back_with_its_versions(node):
    node.create("t", partitions=2)
    node.client.loses_reply_of = node.client.transactions + 1
    topic = node.look().topics["t"]
    assert topic == read_topic(node.client, "t")
    assert all(versioned.version >= 0 for versioned in topic.partitions)


def test_all_partitions_get_leaders_when_they_exceed_one_write(node):
    node.create("t", partitions=450)
    assert all(versioned.state.leader == 1 for versioned in node.look().topics["t"].partitions)
    record = read_topic(node.client, "t").record
    plan = plan_partitions("t", record, 900, loads([1], []))
    node.controller.write(record_change(read_topic(node.client, "t"), plan))
    assert len(node.look().topics["t"].partitions) == 900
    node.topics.mark_for_deletion(read_topic(node.client, "t"))
    node.look()
    assert read_cluster(node.client).topics == {}


def commit(client, group="g", topic="t"):
    path = group_offsets_path(group, topic)
    client.ensure_path(path.rpartition("/")[0])
    client.create(path, to_json(GroupOffsets(topic_id=b"\x01" * 16, offsets={0: StoredOffset(offset=1)})))


def test_deleted_topic_leaves_nothing(server, node):
    before = paths(server)
    node.create("t", partitions=3)
    node.look()
    commit(node.client)
    node.topics.mark_for_deletion(read_topic(node.client, "t"))
    node.topics.finish_deletion("t")
    left = [path for path in paths(server) if path not in before]
    assert left == [deleted_logs_path(b"\x01" * 16), "/consumers/g", "/consumers/g/offsets"]


def test_deleted_topic_names_the_brokers_that_must_remove_its_logs(node):
    node.create("t", partitions=3)
    node.topics.mark_for_deletion(read_topic(node.client, "t"))
    node.topics.finish_deletion("t")
    assert read_cluster(node.client).deleted_logs == {b"\x01" * 16: DeletedLogs(name="t", brokers=(1,))}
    node.create("t", topic_id=b"\x02" * 16)
    assert set(read_cluster(node.client).topics) == {"t"}, "the name is free at once"


def test_damaged_topic_can_be_deleted_and_every_broker_looks_for_its_logs(node):
    node.create("t")
    topic = read_topic(node.client, "t")
    node.client.set(topic_path("t"), b"{not json", version=-1)
    node.topics.mark_for_deletion(topic)
    node.topics.finish_deletion("t")
    assert read_cluster(node.client).deleted_logs[b"\x01" * 16].brokers == (1,)


def test_topic_being_deleted_is_hidden_and_cannot_be_created(node):
    node.create("t")
    node.topics.mark_for_deletion(read_topic(node.client, "t"))
    cluster = read_cluster(node.client)
    assert (dict(cluster.topics), cluster.deletions) == ({}, {"t"})
    with pytest.raises(TopicAlreadyExistsError, match="is still being deleted"):
        node.create("t")


def run_until_death(server, dies_before):
    """Creates and deletes a topic, dying before the given transaction. Returns True if it survived."""
    node = Node(server)
    node.client.dies_before = node.client.transactions + dies_before
    try:
        node.look()
        if read_topic(node.client, "t") is None:
            node.create("t", partitions=450)
        node.look()
        node.topics.mark_for_deletion(read_topic(node.client, "t"))
        node.topics.finish_deletion("t")
    except ProcessDiesError:
        return False
    return True


@pytest.mark.parametrize("dies_before", range(1, 14))
def test_creation_and_deletion_survive_a_crash_before_any_write(server, dies_before):
    """A deletion that was decided is carried out, and a created topic gets its leaders."""
    came_through = run_until_death(server, dies_before)
    successor = Node(server)
    cluster = successor.look()
    left = read_cluster(successor.client)
    assert left.deletions == frozenset()
    for topic in cluster.topics.values():
        assert all(versioned.state.leader == 1 for versioned in topic.partitions)
    if not cluster.topics:
        assert not [path for path in paths(server) if path.startswith((topic_path("t"), "/config/topics/"))]
    assert came_through == (dies_before > 12)


def test_damaged_znode_takes_no_other_topic_away(node):
    node.create("good")
    node.create("bad", topic_id=b"\x02" * 16)
    node.client.set(topic_path("bad"), b"{not json", version=-1)
    assert set(node.look().topics) == {"good"}
    node.client.set(partition_state_path("good", 0), b"[]", version=-1)
    assert set(read_cluster(node.client).topics) == set()


def test_controller_znode_disappears_with_its_session(server, node):
    node.client.close()
    assert server.client().find(CONTROLLER) is None
