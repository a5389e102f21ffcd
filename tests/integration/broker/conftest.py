"""Brokers as real processes, over the session's ZooKeeper or one of their own."""

import pytest

from broker_runtime.zookeeper.bundled import BundledZooKeeper
from tests.integration.broker.running_broker import RunningBroker


@pytest.fixture
def new_broker(tmp_path, zookeeper_connect):
    """Makes brokers of one cluster; none outlives the test."""
    made = []

    def new_broker(name="broker", zookeeper=zookeeper_connect, **settings):
        broker = RunningBroker(tmp_path / name, zookeeper, **settings)
        made.append(broker)
        return broker

    yield new_broker
    for broker in made:
        broker.close()


@pytest.fixture
def broker(new_broker):
    """A broker that serves."""
    return new_broker().start()


@pytest.fixture
def own_zookeeper(tmp_path):
    """A ZooKeeper that the test may stop."""
    with BundledZooKeeper(tmp_path / "own-zookeeper") as server:
        yield server
