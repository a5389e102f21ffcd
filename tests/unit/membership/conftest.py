"""A cluster of three members over one ZooKeeper in memory."""

import pytest

from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.unit.membership.members import Broker, settle


@pytest.fixture
def server():
    return MemoryZooKeeper()


@pytest.fixture
def clock():
    return [0]


@pytest.fixture
def refusing():
    """The hosts whose ports refuse."""
    return set()


@pytest.fixture
def brokers(server, clock, refusing):
    """Three of them; the first is the controller."""
    made = {number: Broker(server, number, clock=clock, ports=refusing) for number in (1, 2, 3)}
    for each in made.values():
        each.member.join()
    settle(made)
    return made
