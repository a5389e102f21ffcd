"""One suite for everything that is a `ZooKeeperClient`: the one over a real ZooKeeper and the one in memory."""

import queue

import pytest
from kazoo.client import KazooClient

from broker_runtime.contract.errors import InvalidRequestError, SetupError, ZooKeeperUnavailableError
from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.session import (
    MAX_REQUEST_BYTES,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionState,
    Set,
)


def test_created_znode_is_read_back_with_version_zero(client):
    client.create("/a", b"1")
    node = client.get("/a")
    assert (node.data, node.version, node.owner) == (b"1", 0, 0)


def test_create_is_refused_when_the_znode_exists(client):
    client.create("/a")
    with pytest.raises(NodeExistsError) as caught:
        client.create("/a")
    assert caught.value.path == "/a"


def test_create_is_refused_without_a_parent(client):
    with pytest.raises(NoNodeError):
        client.create("/a/b")


def test_get_of_a_missing_znode_is_an_error_and_find_is_none(client):
    with pytest.raises(NoNodeError):
        client.get("/none")
    with pytest.raises(NoNodeError):
        client.children("/none")
    assert client.find("/none") is None


def test_find_all_keeps_the_requested_order(client):
    for number in range(20):
        client.create(f"/n{number}", b"%d" % number)
    paths = [f"/n{number}" for number in reversed(range(30))]
    found = client.find_all(paths)
    assert [node and node.data for node in found] == [None] * 10 + [b"%d" % n for n in reversed(range(20))]


@pytest.mark.parametrize("are_small", [True, False])
def test_find_all_accepts_more_than_one_request_can(client, are_small):
    client.create("/n")
    for start in range(0, 1_200, 100):
        client.transaction([Create(f"/n/{number}", b"%d" % number * 3) for number in range(start, start + 100, 2)])
    client.create("/n/empty")
    found = client.find_all([*(f"/n/{number}" for number in range(1_200)), "/n/empty"], are_small=are_small)
    assert [node and node.data for node in found[:-1]] == [
        None if number % 2 else b"%d" % number * 3 for number in range(1_200)
    ]
    assert found[-1] == client.get("/n/empty")
    assert found[8] == client.get("/n/8")
    assert client.find_all([]) == []


def test_children_are_names_in_order(client):
    client.ensure_path("/p")
    for name in ("c", "a", "b"):
        client.create(f"/p/{name}")
    client.create("/p/a/deep")
    assert client.children("/p") == ["a", "b", "c"]


def test_set_with_the_right_version_returns_the_next_one(client):
    client.create("/a", b"0")
    assert client.set("/a", b"1", version=0) == 1
    assert client.set("/a", b"2", version=-1) == 2
    assert client.get("/a").data == b"2"


def test_set_with_another_version_is_refused_and_changes_nothing(client):
    client.create("/a", b"0")
    with pytest.raises(BadVersionError):
        client.set("/a", b"1", version=7)
    with pytest.raises(NoNodeError):
        client.set("/b", b"1", version=0)
    assert client.get("/a") == client.get("/a")
    assert client.get("/a").data == b"0"


def test_delete_is_refused_with_children_or_another_version(client):
    client.ensure_path("/a/b")
    with pytest.raises(NotEmptyError):
        client.delete("/a")
    with pytest.raises(BadVersionError):
        client.delete("/a/b", version=3)
    client.delete("/a/b")
    client.delete("/a")
    with pytest.raises(NoNodeError):
        client.delete("/a")


def test_ensure_path_creates_what_is_missing_and_may_be_repeated(client):
    client.ensure_path("/x/y/z")
    client.set("/x/y", b"kept", version=0)
    client.ensure_path("/x/y/z")
    assert client.get("/x/y").data == b"kept"


def test_transaction_does_all_and_returns_versions(client):
    client.create("/epoch", b"1")
    versions = client.transaction([Check("/epoch", 0), Create("/a", b"x"), Set("/epoch", b"2", 0), Create("/a/b")])
    assert versions == [0, 0, 1, 0]
    assert client.get("/a").data == b"x"
    client.transaction([Delete("/a/b"), Delete("/a")])
    assert client.find("/a") is None


@pytest.mark.parametrize(
    ("operations", "error", "path"),
    [
        ([Create("/new"), Check("/epoch", 5)], BadVersionError, "/epoch"),
        ([Create("/new"), Set("/epoch", b"", 5)], BadVersionError, "/epoch"),
        ([Create("/new"), Create("/epoch")], NodeExistsError, "/epoch"),
        ([Create("/new"), Delete("/missing")], NoNodeError, "/missing"),
        ([Create("/new"), Create("/missing/child")], NoNodeError, "/missing/child"),
        ([Create("/new"), Delete("/full")], NotEmptyError, "/full"),
        ([Check("/missing", 0), Create("/new")], NoNodeError, "/missing"),
    ],
)
def test_transaction_raises_the_refusal_and_does_nothing(client, operations, error, path):
    """Kazoo returns errors; the wrapper raises them."""
    client.create("/epoch")
    client.ensure_path("/full/child")
    with pytest.raises(error) as caught:
        client.transaction(operations)
    assert caught.value.path == path
    assert client.find("/new") is None


def test_ephemeral_belongs_to_its_session_and_ends_with_it(connect):
    one, two = connect(), connect()
    one.create("/e", b"", ephemeral=True)
    assert two.get("/e").owner == one.session_id
    assert one.session_id != two.session_id
    one.close()
    assert two.find("/e") is None


def test_write_for_another_session_is_not_sent(client):
    with pytest.raises(ZooKeeperUnavailableError, match="session it was to be written in has ended"):
        client.create("/a", session=client.session_id + 1)
    with pytest.raises(ZooKeeperUnavailableError):
        client.transaction([Create("/a")], session=client.session_id + 1)
    assert client.find("/a") is None
    client.create("/a", session=client.session_id)


@pytest.mark.parametrize("size", [MAX_REQUEST_BYTES, 2 << 20])
def test_request_that_is_too_large_is_refused_and_the_connection_stays(client, size):
    """No request above 512 KiB is ever sent."""
    session = client.session_id
    with pytest.raises(InvalidRequestError, match="at most 524288"):
        client.create("/big", bytes(size))
    with pytest.raises(InvalidRequestError):
        client.transaction([Create("/big", bytes(size // 2)), Create("/big2", bytes(size // 2))])
    client.create("/fits", bytes(MAX_REQUEST_BYTES - 1_000))
    assert client.session_id == session


def test_data_watch_fires_once_on_change(connect):
    watcher, writer = connect(), connect()
    seen = queue.Queue()
    writer.create("/a")
    watcher.get("/a", watch=seen.put)
    writer.set("/a", b"1", version=0)
    assert seen.get(timeout=10) == "/a"
    writer.set("/a", b"2", version=1)
    watcher.get("/a", watch=seen.put)
    writer.delete("/a")
    assert seen.get(timeout=10) == "/a"
    assert seen.empty()


def test_children_watch_fires_when_a_child_is_created_or_deleted(connect):
    watcher, writer = connect(), connect()
    seen = queue.Queue()
    writer.create("/p")
    watcher.children("/p", watch=seen.put)
    writer.create("/p/c", ephemeral=True)
    assert seen.get(timeout=10) == "/p"
    watcher.children("/p", watch=seen.put)
    writer.close()
    assert seen.get(timeout=10) == "/p"


def test_data_watch_fires_for_a_change_within_a_transaction(connect):
    """A broker learns of every change of topics in this way."""
    watcher, writer = connect(), connect()
    seen = queue.Queue()
    writer.create("/news")
    watcher.get("/news", watch=seen.put)
    assert writer.transaction([Create("/a"), Set("/news", b"1", -1)]) == [0, 1]
    assert seen.get(timeout=10) == "/news"
    assert watcher.get("/a").version == 0, "the woken client sees the announced change"
    assert writer.transaction([Set("/news", b"2", -1), Set("/news", b"3", -1)]) == [2, 3]


def test_watch_that_is_set_twice_fires_once(connect):
    watcher, writer = connect(), connect()
    seen = queue.Queue()
    writer.create("/a")
    for _ in range(2):
        watcher.get("/a", watch=seen.put)
    writer.set("/a", b"1", version=0)
    writer.set("/a", b"2", version=1)
    assert seen.get(timeout=10) == "/a"
    assert watcher.get("/a").data == b"2"
    assert seen.empty()


def test_closed_client_refuses_and_has_reported_that_its_session_ended(client):
    seen = queue.Queue()
    client.listen(seen.put)
    client.close()
    assert seen.get(timeout=10) is SessionState.LOST
    assert client.session_id == 0
    assert not client.is_connected
    with pytest.raises(ZooKeeperUnavailableError):
        client.get("/")


def test_kazoo_without_what_reads_of_many_znodes_use_is_named(monkeypatch):
    """A later kazoo may lack the private method; no connection is made then, and the message says which versions have
    it."""
    monkeypatch.delattr(KazooClient, "_call")
    with pytest.raises(SetupError, match=r"kazoo .* has no KazooClient\._call.* kazoo 2\.1"):
        KazooZooKeeper.connect("127.0.0.1:1", session_timeout_ms=4_000)
