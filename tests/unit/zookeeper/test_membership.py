"""A broker's registration."""

from dataclasses import replace

import pytest

from broker_runtime.contract.errors import SetupError, ZooKeeperUnavailableError
from broker_runtime.zookeeper.membership import BrokerIdentity, deregister, mark_stopping, register
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.session import BadVersionError, Check
from broker_runtime.zookeeper.znodes import (
    CHANGES,
    PERMANENT,
    BrokerRegistration,
    ChangeNews,
    PartitionState,
    TopicRecord,
    broker_epoch_path,
    broker_path,
    from_json,
    partition_state_path,
    to_json,
    topic_path,
)


def identity(instance="data-1", pid=11, was_clean=False):
    return BrokerIdentity(
        broker_id=1,
        host="h",
        port=9192,
        instance=instance,
        pid=pid,
        boot_id="b",
        software_version="v",
        was_clean=was_clean,
    )


@pytest.fixture
def server():
    server = MemoryZooKeeper()
    client = server.client()
    for path in PERMANENT:
        client.ensure_path(path)
    return server


def registration(client):
    return from_json(client.get(broker_path(1)).data, BrokerRegistration, "")


def test_registration_is_ephemeral_and_has_the_address(server):
    """W25: ZooKeeper holds brokers."""
    client = server.client()
    membership = register(client, identity(), now_ms=5)
    assert (membership.epoch, membership.session) == (1, client.session_id)
    assert client.get(broker_path(1)).owner == client.session_id
    found = registration(client)
    assert (found.host, found.port, found.epoch, found.pid) == ("h", 9192, 1, 11)


def test_each_registration_has_a_higher_epoch(server):
    client = server.client()
    epochs = []
    for _ in range(3):
        membership = register(client, identity(), now_ms=0)
        epochs.append(membership.epoch)
        deregister(client, membership)
    assert epochs == [1, 2, 3]
    assert client.find(broker_path(1)) is None


def test_registering_again_in_one_session_finds_the_registration(server):
    client = server.client()
    assert register(client, identity(), now_ms=0) == register(client, identity(), now_ms=9)


def test_killed_predecessor_of_the_same_directories_is_replaced_at_once(server):
    dead = server.client()
    register(dead, identity(pid=11), now_ms=0)
    successor = server.client()
    membership = register(successor, identity(pid=12), now_ms=0)
    assert membership.epoch == 2
    assert registration(successor).pid == 12
    dead.close()
    assert registration(successor).pid == 12, "the end of the old session takes nothing of the new one"


def test_broker_of_other_directories_is_refused_by_address_and_pid(server):
    register(server.client(), identity("data-1"), now_ms=0)
    with pytest.raises(SetupError, match=r"broker\.id 1 is registered by h:9192 pid 11"):
        register(server.client(), identity("data-2"), now_ms=0)


class LosesTheReply:
    """A client whose next transaction succeeds, but is reported as unknown."""

    def __init__(self, client):
        self._client = client
        self.losses = 1

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        versions = self._client.transaction(operations, session=session)
        if self.losses:
            self.losses -= 1
            raise ZooKeeperUnavailableError("the reply was lost")
        return versions


def test_registration_whose_reply_was_lost_is_read_back(server):
    client = LosesTheReply(server.client())
    assert register(client, identity(), now_ms=0).epoch == 1
    assert registration(server.client()).epoch == 1


def test_registration_gives_up_while_zookeeper_is_away(server):
    client = server.client()
    client.suspend()
    with pytest.raises(ZooKeeperUnavailableError):
        register(client, identity(), now_ms=0)


def test_registration_gives_up_when_its_znodes_keep_changing(server):
    client = server.client()
    client.create(broker_epoch_path(1))

    class Meddler:
        def __getattr__(self, name):
            return getattr(client, name)

        def transaction(self, operations, *, session=None):
            client.set(broker_epoch_path(1), b"", version=-1)
            return client.transaction(operations, session=session)

    with pytest.raises(ZooKeeperUnavailableError, match="the registration of broker 1 keeps changing"):
        register(Meddler(), identity(), now_ms=0)
    assert client.find(broker_path(1)) is None


def put_state(client, name, in_sync, leader, *, epoch=3, broker_epoch=1):
    """One partition's state in a topic of its own."""
    replicas = tuple(sorted({*in_sync, 1, 2, 3}))
    record = TopicRecord(topic_id=name.encode().ljust(16), assignment=(replicas,))
    state = PartitionState(
        leader=leader, leader_epoch=epoch, isr=in_sync, controller_epoch=4, leader_broker_epoch=broker_epoch
    )
    client.create(topic_path(name), to_json(record))
    client.ensure_path(partition_state_path(name, 0))
    client.set(partition_state_path(name, 0), to_json(state), version=0)


def state_of(client, name):
    state = from_json(client.get(partition_state_path(name, 0)).data, PartitionState, "")
    return state.leader, state.leader_epoch, state.isr, state.leader_broker_epoch


def register_other(server, broker_id, port=9192):
    """Registers another broker; returns its client, whose end removes the registration."""
    client = server.client()
    other = BrokerIdentity(
        broker_id=broker_id, host="h", port=port, instance=f"data of {broker_id}", pid=1, boot_id="b",
        software_version="v", was_clean=True,
    )  # fmt: skip
    return client, register(client, other, now_ms=0)


def test_broker_leaves_in_sync_sets_with_a_registered_member_after_an_unclean_stop(server):
    """A broker that stayed up has every acknowledged record; one that comes back counts only when it has caught up."""
    client = server.client()
    register_other(server, 2)
    put_state(client, "led", (1, 2, 3), leader=1)
    put_state(client, "followed", (2, 1), leader=2, broker_epoch=9)
    put_state(client, "alone", (1,), leader=1)
    put_state(client, "with one that is away", (1, 3), leader=1)
    put_state(client, "others", (2, 3), leader=2, broker_epoch=9)
    watched = []
    client.get(CHANGES, watch=watched.append)
    register(client, identity(was_clean=False), now_ms=0)
    assert state_of(client, "led") == (None, 4, (2, 3), -1)
    assert state_of(client, "followed") == (2, 3, (2,), 9)
    assert state_of(client, "alone") == (1, 3, (1,), 1), "nobody has more than it has"
    assert state_of(client, "with one that is away") == (1, 3, (1, 3), 1), "the first to come back leads"
    assert state_of(client, "others") == (2, 3, (2, 3), 9)
    assert watched == [CHANGES]
    assert set(from_json(client.get(CHANGES).data, ChangeNews, "").topics) == {"led", "followed"}


def test_set_is_not_left_to_a_stopping_or_dead_broker(server):
    """A member that stops, or does not answer before its session ends, may not be there to lead."""
    client = server.client()
    stopping, membership = register_other(server, 2)
    mark_stopping(stopping, membership)
    register_other(server, 3, port=13)
    put_state(client, "t", (1, 2, 3), leader=3)
    register(client, identity(was_clean=False), now_ms=0, answers=lambda host, port: port != 13)
    assert state_of(client, "t")[2] == (1, 2, 3)


def test_set_is_not_left_to_a_broker_that_disappears_meanwhile(server):
    """The transaction also checks the registration of the broker that the set is left to."""
    client = server.client()
    other, _ = register_other(server, 2)
    put_state(client, "t", (1, 2), leader=2)
    # The transactions: creating the epoch, raising it, leaving the sets.
    register(Interferes(client, other.close, before=1), identity(was_clean=False), now_ms=0)
    assert state_of(client, "t")[2] == (1, 2)


def test_one_of_two_concurrently_returning_brokers_stays_in_sync(server):
    """The second to register leaves the set to the first; it never becomes empty."""
    client = server.client()
    put_state(client, "t", (1, 2), leader=2)
    register(Interferes(client, lambda: register_other(server, 2), before=1), identity(was_clean=False), now_ms=0)
    assert state_of(client, "t")[2] in {(1, 2), (2,)}


def test_broker_stays_in_sync_after_a_clean_stop(server):
    client = server.client()
    put_state(client, "t", (1, 2), leader=1)
    register(client, identity(was_clean=True), now_ms=0)
    assert state_of(client, "t") == (1, 3, (1, 2), 1)


class Interferes:
    """Forwards everything; ``meddle`` runs before the n-th transaction."""

    def __init__(self, client, meddle, before=1):
        self._client, self._meddle, self._before = client, meddle, before
        self._count = 0

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        self._count += 1
        if self._count == self._before:
            self._meddle()
        return self._client.transaction(operations, session=session)


def test_leave_survives_a_concurrent_change_of_the_leader(server):
    client = server.client()
    register_other(server, 2)
    put_state(client, "t", (2, 1), leader=2)

    def leader_takes_3_in():
        state = PartitionState(leader=2, leader_epoch=3, isr=(2, 1, 3), controller_epoch=4, leader_broker_epoch=1)
        client.set(partition_state_path("t", 0), to_json(state), version=-1)

    register(Interferes(client, leader_takes_3_in), identity(was_clean=False), now_ms=0)
    assert state_of(client, "t")[2] == (2, 3)


def test_epoch_rises_first_so_that_no_leader_adds_the_earlier_registration(server):
    """A leader's check before it adds a broker to an in-sync set fails from the first moment on."""
    client = server.client()
    register(server.client(), identity(was_clean=True), now_ms=0)
    register_other(server, 2)
    put_state(client, "t", (2, 1), leader=2)

    def leader_checks():
        with pytest.raises(BadVersionError):
            client.transaction([Check(broker_epoch_path(1), 1)])

    register(Interferes(client, leader_checks), identity(pid=12, was_clean=False), now_ms=0)
    client.transaction([Check(broker_epoch_path(1), 2), Check(broker_path(1), 0)])


def test_later_registration_made_meanwhile_is_not_undone(server):
    """The ephemeral znode is created only while the epoch is the broker's own."""
    client = server.client()

    def successor_registers():
        register(server.client(), identity(pid=13, was_clean=True), now_ms=0)

    membership = register(Interferes(client, successor_registers), identity(pid=12, was_clean=True), now_ms=0)
    assert membership.epoch == 3
    assert registration(client).pid == 12


def test_stopping_broker_is_marked_and_joins_no_in_sync_set(server):
    client = server.client()
    membership = register(client, identity(), now_ms=0)
    mark_stopping(client, membership)
    mark_stopping(client, membership)
    assert registration(client).is_stopping
    with pytest.raises(BadVersionError):
        client.transaction([Check(broker_path(1), 0)])


def test_deregistration_of_another_session_is_not_carried_out(server):
    client = server.client()
    membership = register(client, identity(), now_ms=0)
    client.expire()
    register(client, identity(), now_ms=0)
    with pytest.raises(ZooKeeperUnavailableError):
        deregister(client, membership)
    assert client.find(broker_path(1)) is not None


def test_each_registration_has_a_secret_of_its_own_that_no_text_shows(server):
    """The secret of an earlier registration proves nothing in the next."""
    client = server.client()
    who = replace(identity(), secret="of the process")
    first = register(client, who, now_ms=0)
    assert registration(client).secret == first.secret != ""
    assert register(client, who, now_ms=1).secret == first.secret
    deregister(client, first)
    second = register(client, who, now_ms=2)
    assert registration(client).secret == second.secret != first.secret
    assert not any(secret in repr((who, second, registration(client))) for secret in (who.secret, second.secret))
