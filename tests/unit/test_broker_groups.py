"""A broker's groups as it composes them: which of its clocks they get."""

import types

import pytest

from broker_runtime.broker_groups import BrokerGroups
from broker_runtime.contract.requests import CommitOffsetsRequest, CommittedOffset, PartitionKey
from broker_runtime.contract.settings import resolve
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.log import BelievedClock
from tests.callers import CLIENT
from tests.unit.groups.coordinating import World

DAY_MS = 86_400_000
ROUND_MS = 60_000
SETTINGS = {"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "none:1", "offsets.retention.minutes": 10}
AT_ONCE = types.SimpleNamespace(rest=lambda _: False)


class Composed:
    """One broker with an uptime, and a wall clock that may be set."""

    def __init__(self):
        self.world = world = World(brokers=1)
        world.create_topic("t")
        self.set_by_ms = 0
        clock = BelievedClock(wall_ms=self.wall_ms(), uptime_ms=world.now_ms)
        broker = world.brokers[1]
        self.groups = BrokerGroups(
            resolve("broker", SETTINGS),
            client=broker.client,
            member=types.SimpleNamespace(
                membership=broker.membership,
                state=world.cluster(),
                electorate=types.SimpleNamespace(suspects=frozenset()),
            ),
            refuses=world.refuses,
            steady_ms=lambda: world.now_ms,
            wall_ms=self.wall_ms,
            believed_ms=lambda: clock.believed_ms(self.wall_ms(), world.now_ms),
        )

    def wall_ms(self):
        return 20_000 * DAY_MS + self.world.now_ms + self.set_by_ms

    def commit(self, group_id="g"):
        offset = CommittedOffset(at=PartitionKey(topic="t", partition=0), offset=5)
        self.groups.service.commit_offsets(CLIENT, CommitOffsetsRequest(group_id=group_id, offsets=(offset,)))

    def passes(self, ms):
        for _ in range(ms // ROUND_MS):
            self.world.now_ms += ROUND_MS
            self.groups.step()
            self.groups.step_removal(AT_ONCE)

    def names(self):
        return self.world.client.children("/consumers")


@pytest.fixture
def broker():
    return Composed()


def test_clock_that_jumps_ahead_deletes_no_group(broker):
    """Offsets expire by the time that passed, whatever the broker's clock says."""
    broker.commit("g")
    broker.set_by_ms = 8 * DAY_MS
    broker.passes(8 * ROUND_MS)
    assert broker.names() == ["g"]
    broker.commit("h")
    broker.set_by_ms = 0
    broker.passes(5 * ROUND_MS)
    assert broker.names() == ["h"]


def test_clock_that_was_behind_at_the_brokers_start_makes_no_commit_look_old(broker):
    """Commits carry the wall clock: another broker, or the next start, counts from there."""
    broker.set_by_ms = 8 * DAY_MS
    broker.commit("g")
    (topic,) = OffsetStore(broker.world.client).fetch("g", None).values()
    assert topic.offsets[0].committed_at_ms == broker.wall_ms()
