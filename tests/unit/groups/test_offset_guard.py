"""Offsets under a claim: a deposed coordinator writes nothing, and stale data is never taken for current."""

import pytest

from broker_runtime.contract.errors import NotCoordinatorError, ZooKeeperUnavailableError
from broker_runtime.groups.offsets import OffsetStore, _Commit, _Queue
from broker_runtime.zookeeper.znodes import StoredOffset
from tests.unit.groups.coordinating import ID, World


@pytest.fixture
def world():
    world = World()
    world.create_topic("t")
    return world


def at(offset, **fields):
    return StoredOffset(offset=offset, **fields)


def committed(world, topic="t"):
    found = OffsetStore(world.client).fetch("g", [topic]).get(topic)
    return {} if found is None else {partition: stored.offset for partition, stored in found.offsets.items()}


class Lagging:
    """Its reads are as old as its last write; a lost write arrives before its next one."""

    def __init__(self, client):
        self._client = client
        self._nodes = client._server._tree.nodes
        self.is_connected = True
        self._under_way = []
        self._loses = False

    def __getattr__(self, name):
        return getattr(self._client, name)

    def lose(self):
        self._loses = True

    def find_all(self, paths, *, are_small=False):
        return [self._nodes.get(path) for path in paths]

    def transaction(self, operations, *, session=None):
        if self._loses:
            self._loses = self.is_connected = False
            self._under_way.append(operations)
            raise ZooKeeperUnavailableError("no answer")
        for lost in self._under_way:
            self._client.transaction(lost, session=session)
        self._under_way.clear()
        versions = self._client.transaction(operations, session=session)
        self._nodes = self._client._server._tree.nodes
        return versions


def test_commit_is_accepted_only_while_the_claim_is_valid(world):
    """Every commit carries the coordinator's epoch and a stale one is refused."""
    first, second = world.brokers[1], world.brokers[2]
    old = first.claims.claim("g").guard
    stores = {1: OffsetStore(first.client), 2: OffsetStore(second.client)}
    stores[1].commit("g", "t", ID, {0: at(5)}, guard=old)
    first.die()
    new = second.claims.claim("g").guard
    stores[2].commit("g", "t", ID, {0: at(9)}, guard=new)
    with pytest.raises(NotCoordinatorError):
        stores[1].commit("g", "t", ID, {0: at(6)}, guard=old)
    with pytest.raises(NotCoordinatorError):
        stores[1].fetch("g", ["t"], guard=old)
    assert committed(world) == {0: 9}
    assert {p: o.offset for p, o in stores[2].fetch("g", None, guard=new)["t"].offsets.items()} == {0: 9}


def test_claim_that_moves_between_read_and_write_refuses_the_write(world):
    first, second = world.brokers[1], world.brokers[2]
    old = first.claims.claim("g").guard
    first.die()
    first.client.before.append(lambda: second.claims.claim("g"))
    with pytest.raises(NotCoordinatorError):
        OffsetStore(first.client).commit("g", "t", ID, {0: at(5)}, guard=old)
    assert committed(world) == {}


def test_commits_that_waited_under_an_older_claim_are_refused(world):
    broker = world.brokers[1]
    old, new = (broker.claims.claim("g").guard for _ in range(2))
    store = OffsetStore(broker.client)
    late, own = (
        _Commit(topic_id=ID, offsets={number: at(5)}, only_forward=False, guard=guard)
        for number, guard in ((0, old), (1, new))
    )
    queue = store._queues["g", "t"] = _Queue(waiting=[late, own], is_writing=True)
    store._write_waiting(("g", "t"), queue)
    assert isinstance(late.error, NotCoordinatorError)
    assert (own.error, committed(world)) == (None, {1: 5})


def test_first_commit_of_a_group_is_one_transaction_with_its_claim_checked(world):
    broker = world.brokers[1]
    guard = broker.claims.claim("g").guard
    broker.client.transactions.clear()
    OffsetStore(broker.client).commit("g", "t", ID, {0: at(5)}, guard=guard)
    (operations,) = broker.client.transactions
    assert operations[0] == guard.check
    assert [operation.path for operation in operations[1:]] == [
        "/topics/t", "/consumers/g/offsets", "/consumers/g/offsets/t",
    ]  # fmt: skip


def test_deleted_group_is_not_created_by_a_late_commit(world):
    guard = world.brokers[1].claims.claim("g").guard
    world.client.delete("/consumers/g/coordinator")
    world.client.delete("/consumers/g")
    with pytest.raises(NotCoordinatorError):
        OffsetStore(world.brokers[1].client).commit("g", "t", ID, {0: at(5)}, guard=guard)
    assert world.client.children("/consumers") == []


def test_fetch_after_a_write_of_unknown_outcome_sees_it(world):
    """W17: the write in flight is waited for, though reads may be stale."""
    broker = world.brokers[1]
    guard = broker.claims.claim("g").guard
    client = Lagging(broker.client._client)
    store = OffsetStore(client)
    store.commit("g", "t", ID, {0: at(5)}, guard=guard)
    client.lose()
    with pytest.raises(ZooKeeperUnavailableError):
        store.commit("g", "t", ID, {0: at(6)}, guard=guard)
    client.is_connected = True
    assert store.fetch("g", ["t"], guard=guard)["t"].offsets[0].offset == 6


def test_commit_that_a_stale_read_shows_is_written_after_a_write_of_unknown_outcome(world):
    """An acknowledged offset is the group's, even where it seemed unchanged."""
    broker = world.brokers[1]
    guard = broker.claims.claim("g").guard
    client = Lagging(broker.client._client)
    store = OffsetStore(client)
    store.commit("g", "t", ID, {0: at(5)}, guard=guard)
    client.lose()
    with pytest.raises(ZooKeeperUnavailableError):
        store.commit("g", "t", ID, {0: at(6)}, guard=guard)
    client.is_connected = True
    store.commit("g", "t", ID, {0: at(5)}, guard=guard)
    assert store.fetch("g", ["t"], guard=guard)["t"].offsets[0].offset == 5


def test_unchanged_offsets_are_written_once_in_a_while(world):
    """Otherwise the offsets of a member that keeps committing would expire."""
    store = OffsetStore(world.client, refresh_ms=1_000)
    for now_ms in (1_000, 1_500, 1_999, 2_000, 2_500):
        store.commit("g", "t", ID, {0: at(5, committed_at_ms=now_ms)}, only_forward=now_ms > 1_500)
    assert store.writes == 2


def test_commit_whose_session_has_ended_is_not_retried(world):
    """It cannot succeed any more; the next coordinator is asked."""
    broker = world.brokers[1]
    guard = broker.claims.claim("g").guard
    broker.client.before = [broker.client._client.expire, lambda: pytest.fail("tried again")]
    with pytest.raises(ZooKeeperUnavailableError):
        OffsetStore(broker.client).commit("g", "t", ID, {0: at(5)}, guard=guard)
    assert committed(world) == {}
