"""Both kinds of `ZooKeeperClient`: the one over a real ZooKeeper and the one in memory."""

import pytest

from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.memory import MemoryZooKeeper


@pytest.fixture(params=["memory", "real"])
def connect(request):
    """Makes clients of one tree; all are closed afterwards."""
    clients = []
    if request.param == "memory":
        server = MemoryZooKeeper()
        make = server.client
    else:
        connect_string = request.getfixturevalue("zookeeper_connect")

        def make():
            return KazooZooKeeper.connect(connect_string, session_timeout_ms=4_000)

    def connect():
        clients.append(make())
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(connect):
    return connect()
