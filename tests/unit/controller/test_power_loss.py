"""Members over a ZooKeeper in memory: who leads after a power loss, from marking members as unproven to the
election.
"""

from __future__ import annotations

import pytest

from broker_runtime.contract.requests import LogEnd
from broker_runtime.controller.unproven import PATIENCE_MS
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.unit.membership.members import Broker, settle


class Cluster:
    """Three brokers and topic t, which is not flushed; ``ends`` has the end of each log."""

    def __init__(self, ends):
        self.server, self.clock, self.ends = MemoryZooKeeper(), [0], ends
        self.brokers = {}
        for number in (1, 2, 3):
            self.start(number, was_clean=True)
        settle(self.brokers)
        self.brokers[1].create("t", replication_factor=3, config={"flush.mode": "os"})
        settle(self.brokers)

    def start(self, number, *, was_clean=False):
        broker = Broker(
            self.server, number, clock=self.clock, was_clean=was_clean, rebalances_leaders=False, ask_log_ends=self._ask
        )
        end = LogEnd(topic="t", partition=0, leader_epoch=0, log_end=self.ends[number])
        broker.hosting.log_ends = lambda keys: (end,) if keys else ()
        self.brokers[number] = broker
        broker.member.join()

    def all_lose_power(self):
        for each in self.brokers.values():
            each.client.close()
        self.brokers.clear()

    def pass_time(self, ms):
        self.clock[0] += ms
        settle(self.brokers)

    @property
    def state(self):
        (broker, *_) = self.brokers.values()
        return broker.state("t")

    def _ask(self, broker_id, request):
        return self.brokers[broker_id].member.log_ends(request)


@pytest.fixture
def cluster():
    found = Cluster({1: 10, 2: 30, 3: 20})
    assert found.state == (1, 0, (1, 2, 3))
    found.all_lose_power()
    return found


def test_longest_log_leads_when_all_are_back(cluster):
    """The others follow it, and are in sync when they have caught up."""
    for number in (3, 1):
        cluster.start(number)
        settle(cluster.brokers)
        assert cluster.state[0] is None
    cluster.start(2)
    cluster.pass_time(1_000)
    assert (cluster.state[0], cluster.state[2]) == (2, (2,))


def test_longest_log_that_is_back_leads_after_the_time_limit(cluster):
    for number in (1, 3):
        cluster.start(number)
        settle(cluster.brokers)
    cluster.pass_time(PATIENCE_MS - 1)
    assert cluster.state[0] is None
    cluster.pass_time(1)
    assert (cluster.state[0], cluster.state[2]) == (3, (3,))
    cluster.start(2)
    settle(cluster.brokers)
    assert (cluster.state[0], cluster.state[2]) == (3, (3,))


def test_briefly_unregistered_member_that_kept_power_leads_as_soon_as_it_is_back(cluster):
    """It has everything acknowledged, whatever the others have."""
    cluster.ends[1] = 99
    cluster.start(1)
    settle(cluster.brokers)
    cluster.pass_time(PATIENCE_MS // 2)
    assert cluster.state[0] is None
    cluster.start(3, was_clean=True)
    settle(cluster.brokers)
    assert (cluster.state[0], cluster.state[2]) == (3, (3,))
