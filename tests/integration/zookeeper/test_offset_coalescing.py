"""Concurrent commits of one group and topic, over a real ZooKeeper."""

import threading

from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.znodes import StoredOffset

ID = b"\x01" * 16


def test_waiting_commits_are_written_together_and_none_is_lost(zookeeper_connect):
    """Commits are coalesced and acknowledged after the write."""
    client = KazooZooKeeper.connect(zookeeper_connect, session_timeout_ms=10_000)
    client.ensure_path("/topics/t")
    client.ensure_path("/consumers")
    store = OffsetStore(client)
    rounds, committers, seen = 20, 16, []
    lock = threading.Lock()

    def commit(partition):
        for offset in range(1, rounds + 1):
            store.commit("g", "t", ID, {partition: StoredOffset(offset=offset)})
            found = store.fetch("g", ["t"])["t"].offsets[partition].offset
            with lock:
                seen.append((offset, found))

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(committers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    client.close()
    assert len(seen) == rounds * committers
    assert all(offset == found for offset, found in seen), "what was acknowledged is there"
    assert store.writes < rounds * committers / 2


def test_two_brokers_that_commit_concurrently_lose_nothing(zookeeper_connect):
    clients = [KazooZooKeeper.connect(zookeeper_connect, session_timeout_ms=10_000) for _ in range(2)]
    clients[0].ensure_path("/topics/t")
    clients[0].ensure_path("/consumers")
    stores = [OffsetStore(client) for client in clients]

    def commit(number):
        for offset in range(1, 31):
            stores[number].commit("g", "t", ID, {number: StoredOffset(offset=offset)})

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = stores[0].fetch("g", ["t"])["t"].offsets
    for client in clients:
        client.close()
    assert {partition: stored.offset for partition, stored in found.items()} == {0: 30, 1: 30}
