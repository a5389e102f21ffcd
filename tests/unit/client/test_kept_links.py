"""Connections that one read leaves to the next: how many, for how long, and who closes them."""

from __future__ import annotations

import pytest

from broker_runtime.contract.link import Link
from broker_runtime.contract.requests import MetadataResponse
from broker_runtime.contract.settings import Address
from pyspark_log.client.connection.cluster import Cluster
from tests.unit.client.channels import FakeNetwork

ONE, TWO = Address("one", 1), Address("two", 2)
PATIENCE_S = 30.0


CLUSTER = MetadataResponse(
    protocol_version=1, software_version="1", cluster_id="c", controller_id=None, brokers=(), topics=()
)


@pytest.fixture
def network() -> FakeNetwork:
    return FakeNetwork(lambda *_: CLUSTER)


@pytest.fixture
def cluster(network: FakeNetwork) -> Cluster:
    return Cluster([ONE], network=network)


def test_kept_link_is_the_next_one_of_its_broker(cluster: Cluster) -> None:
    """The one that was kept last comes first: it is the least likely to be broken."""
    links = [cluster.read_link(ONE) for _ in range(2)]
    assert links[0] is not links[1]
    for link in links:
        cluster.keep_link(link)
    assert cluster.read_link(TWO) not in links
    assert [cluster.read_link(ONE) for _ in range(2)] == [links[1], links[0]]
    assert cluster.read_link(ONE) not in links


def test_no_more_than_two_are_kept(cluster: Cluster) -> None:
    """A process with many reading threads holds no connection for each of them when they rest."""
    links = [cluster.read_link(ONE) for _ in range(4)]
    for link in links:
        cluster.keep_link(link)
    assert [link.is_ended for link in links] == [False, False, True, True]


def test_link_that_was_idle_for_long_or_ended_is_closed_and_not_used(cluster: Cluster, network: FakeNetwork) -> None:
    """A firewall may have forgotten it; a fork has ended it."""
    old, ended, fresh = (Link(ONE, []) for _ in range(3))
    cluster.keep_link(old)
    network.clock.now += PATIENCE_S / 2
    cluster.keep_link(fresh)
    network.clock.now += PATIENCE_S / 2 + 1
    assert cluster.read_link(ONE) is fresh
    cluster.keep_link(ended)
    ended.end()
    assert cluster.read_link(ONE) not in (old, ended, fresh)
    assert old.is_ended


def test_read_takes_the_connection_of_actions_over(cluster: Cluster) -> None:
    """Once: the next action makes one for itself. What a read kept comes before it."""
    kept = Link(ONE, [])
    cluster.describe()
    cluster.keep_link(kept)
    assert cluster.read_link(ONE) is kept
    channel = cluster._channel(ONE)
    taken = cluster.read_link(ONE)
    assert channel.give_link() is None
    assert cluster.read_link(ONE) is not taken
    cluster.describe()
    assert channel.give_link() is not None


def test_connection_that_actions_left_idle_for_long_is_not_taken_over(cluster: Cluster, network: FakeNetwork) -> None:
    """A firewall may have forgotten it; actions, which have time limits, find out. Nor is it where a read wants a new
    one, because the last did not work."""
    cluster.describe()
    network.clock.now += PATIENCE_S + 1
    cluster.read_link(ONE)
    assert cluster._channel(ONE).give_link() is not None
    cluster.describe()
    cluster.keep_link(kept := Link(ONE, []))
    assert cluster.read_link(ONE, is_new=True) is not kept
    assert cluster._channel(ONE).give_link() is not None
    assert cluster.read_link(ONE) is kept


def test_connection_of_an_action_under_way_is_not_taken_over() -> None:
    """A read may end it, and closes it then: the action would fail."""
    during: list[bool] = []

    def answer(*_: object) -> MetadataResponse:
        cluster.read_link(ONE)
        during.append(cluster._channel(ONE).give_link() is not None)
        return CLUSTER

    cluster = Cluster([ONE], network=FakeNetwork(answer))
    cluster.describe()
    cluster.describe()
    assert during == [True, True], "it was taken"
    cluster.read_link(ONE)
    assert cluster._channel(ONE).give_link() is None


def test_closed_cluster_keeps_none(cluster: Cluster) -> None:
    """What was kept is closed, and what comes later is closed at once."""
    kept, late = Link(ONE, []), Link(ONE, [])
    cluster.keep_link(kept)
    cluster.close()
    cluster.keep_link(late)
    assert kept.is_ended
    assert late.is_ended
