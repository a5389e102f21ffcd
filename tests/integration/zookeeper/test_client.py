"""What only a real ZooKeeper does: refusals by its access rules."""

import re

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from broker_runtime.contract.errors import InvalidConfigError, ZooKeeperUnavailableError
from broker_runtime.contract.settings import Secret
from broker_runtime.zookeeper.client import OPEN, KazooZooKeeper, ZooKeeperAccess


@pytest.fixture
def client(zookeeper_connect):
    client = KazooZooKeeper.connect(zookeeper_connect, session_timeout_ms=4_000)
    yield client
    client.close()


@pytest.fixture
def forbidden(zookeeper_connect, client):
    """A znode that nobody may read or write."""
    other = KazooClient(hosts=zookeeper_connect)
    other.start(timeout=10)
    other.create("/forbidden", b"", acl=[make_acl("world", "anyone", create=True)])
    yield "/forbidden"
    other.stop()
    other.close()


@pytest.mark.parametrize(
    "request_it",
    [
        lambda client, path: client.get(path),
        lambda client, path: client.find(path),
        lambda client, path: client.find_all(["/", path, "/none"]),
        lambda client, path: client.children(path),
        lambda client, path: client.set(path, b"1", version=0),
    ],
)
def test_refusal_by_access_rules_is_an_error_of_ours_that_names_the_znode(client, forbidden, request_it):
    """The loop that keeps a broker in its cluster handles none of kazoo's errors: one would end it."""
    with pytest.raises(ZooKeeperUnavailableError, match=r"^\[ZOOKEEPER_UNAVAILABLE\] /.*NoAuthError.*ACL"):
        request_it(client, forbidden)
    assert client.find("/none") is None


def test_chroot_of_several_levels_is_created(zookeeper_connect):
    """As Kafka's ``zookeeper.connect`` may have; a second client finds it there, however it is written."""
    for chroot in ("/several/levels", "/several//levels/"):
        client = KazooZooKeeper.connect(f"{zookeeper_connect}{chroot}", session_timeout_ms=4_000)
        try:
            client.ensure_path("/found")
            assert client.children("/") == ["found"]
            assert [found is None for found in client.find_all(["/found", "/none"])] == [False, True]
        finally:
            client.close()


@pytest.mark.parametrize("chroot", ["/.", "/a/../b"])
def test_relative_chroot_is_refused(zookeeper_server, chroot):
    with pytest.raises(InvalidConfigError, match=f"zookeeper.connect='.*{re.escape(chroot)}': relative paths"):
        KazooZooKeeper.connect(f"{zookeeper_server.connect_string}{chroot}", session_timeout_ms=4_000)


def test_levels_above_a_closed_chroot_are_open_to_other_clusters(zookeeper_connect):
    """``zookeeper.set.acl`` of one closes what is its own: two users and nobody in particular share the level above."""
    users = [ZooKeeperAccess(username=name, password=Secret("a password"), sets_acl=True) for name in ("one", "two")]
    for number, access in enumerate([*users, OPEN]):
        connect = f"{zookeeper_connect}/above/{number}"
        client = KazooZooKeeper.connect(connect, session_timeout_ms=4_000, access=access)
        client.ensure_path("/its-own")
        client.close()
    with pytest.raises(ZooKeeperUnavailableError, match="NoAuthError"):
        KazooZooKeeper.connect(f"{zookeeper_connect}/above/0/below", session_timeout_ms=4_000, access=users[1])
