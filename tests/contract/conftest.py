"""Both kinds of `ZooKeeperClient`, over a real ZooKeeper and in memory; and a Flight peer that breaks."""

from collections.abc import Iterator

import pytest

from broker_runtime.zookeeper.client import KazooZooKeeper
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.contract.breaking_peer import Relay, Server


@pytest.fixture(params=["memory", "real"])
def connect(request):
    """Creates clients of one tree; all are closed afterwards."""
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


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.speaks.set()
    yield server
    server.stop()


@pytest.fixture
def relay(server: Server) -> Iterator[Relay]:
    relay = Relay(server.port)
    yield relay
    relay.cut()
