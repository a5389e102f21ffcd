"""A full or failed disk gives up its leaderships where others can take them, and none returns meanwhile."""

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.log.faulty_files import Fault
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.unit.membership.replicated import LAG_MS, ReplicatedBroker, live_on

LEAST = 1 << 20
PLENTY = 1 << 30


@pytest.fixture
def clock():
    return [0]


@pytest.fixture
def brokers(clock):
    """Three brokers, with t-0 on all of them, led by the first; it has one record."""
    server = MemoryZooKeeper()
    brokers = {number: ReplicatedBroker(server, number, clock, min_free_bytes=LEAST) for number in (1, 2, 3)}
    live_on(brokers, clock, rounds=3)
    next(each for each in brokers.values() if each.member.controller.is_active).create("t", replication_factor=3)
    live_on(brokers, clock)
    brokers[leader_of(brokers)].append(b"a")
    live_on(brokers, clock)
    return brokers


def leader_of(brokers):
    return brokers[3].state("t")[0]


def in_sync_of(brokers):
    return set(brokers[3].state("t")[2])


def fill(broker):
    broker.files.capacity_bytes = broker.files._used_bytes() + LEAST // 2
    broker.hosting.look_at_disk(broker.directory)


def make_room(broker):
    broker.files.capacity_bytes = PLENTY
    broker.hosting.look_at_disk(broker.directory)


def test_full_disk_gives_up_its_leadership_and_gets_it_back_when_there_is_room(brokers, clock):
    """Another replica leads and accepts appends; the preferred leader leads again only when its disk has room."""
    first = leader_of(brokers)
    fill(brokers[first])
    with pytest.raises(LogStorageError, match=r"log\.dir\.min\.free\.bytes"):
        brokers[first].append(b"x")
    live_on(brokers, clock, rounds=5)
    second = leader_of(brokers)
    assert second not in {None, first}
    epoch = brokers[3].state("t")[1]
    live_on(brokers, clock, rounds=200)
    assert brokers[3].state("t")[1] == epoch  # no leadership moved in 40 seconds
    assert first in in_sync_of(brokers)  # it has all records
    brokers[second].append(b"b")
    live_on(brokers, clock, rounds=LAG_MS // 200 + 30)
    assert first not in in_sync_of(brokers)
    assert brokers[second].partition.high_watermark == 2
    make_room(brokers[first])
    live_on(brokers, clock, rounds=60)
    assert (leader_of(brokers), in_sync_of(brokers)) == (first, {1, 2, 3})
    assert len(brokers[first].frames()) == 2


def test_leader_stays_when_all_disks_are_full_and_can_still_be_read(brokers, clock):
    """No replica could accept more, so no leadership moves; the first one with room leads."""
    first = leader_of(brokers)
    others = sorted({1, 2, 3} - {first})
    for number in (*others, first):
        fill(brokers[number])
        live_on(brokers, clock, rounds=2)
    before = brokers[3].state("t")
    live_on(brokers, clock, rounds=200)
    assert brokers[3].state("t") == before
    assert (before[0], set(before[2])) == (first, {1, 2, 3})
    with brokers[first].partition.read(0, max_bytes=1 << 20) as found:
        assert found.next_offset == 1
    make_room(brokers[others[1]])
    live_on(brokers, clock, rounds=60)
    assert leader_of(brokers) == others[1]


def test_failover_prefers_a_disk_with_room(brokers, clock):
    """Of two in-sync replicas the one with room leads; the full one leads if it is the only one left."""
    first, second, third = brokers[3].member.state.topics["t"].record.assignment[0]
    fill(brokers[second])
    live_on(brokers, clock, rounds=3)
    assert leader_of(brokers) == first
    epoch = brokers[third].state("t")[1]
    brokers[first].stop()
    brokers.pop(first)
    live_on(brokers, clock, rounds=20)
    assert brokers[third].state("t")[:2] == (third, epoch + 1)  # at once, without the full one in between
    brokers[third].stop()
    brokers.pop(third)
    live_on(brokers, clock, rounds=20)
    assert brokers[second].state("t")[0] == second


def test_failed_disk_is_not_elected_again_for_its_offline_log(brokers, clock):
    """A log that an I/O error took offline does not lead until its broker is restarted."""
    first = leader_of(brokers)
    brokers[first].files.faults = [Fault("sync")]
    with pytest.raises(LogStorageError):
        brokers[first].append(b"x")
    live_on(brokers, clock, rounds=20)
    epoch = brokers[3].state("t")[1]
    assert leader_of(brokers) not in {None, first}
    live_on(brokers, clock, rounds=100)
    assert brokers[3].state("t")[1] == epoch
    reported = brokers[3].member.state.disks
    assert {broker_id: disks.directories for broker_id, disks in reported.items()} == {first: {"/data": "failed"}}
    assert reported[first].failed == {"t": (0,)}


def test_disk_failure_is_reported_at_once(brokers):
    """The report of the next round would come half a ``replica.lag.time.max.ms`` later."""
    first = brokers[leader_of(brokers)]
    first.wakeups.clear()
    first.files.faults = [Fault("sync")]
    with pytest.raises(LogStorageError):
        first.append(b"x")
    assert first.wakeups


def test_log_that_was_only_closed_has_not_failed(brokers):
    """A broker that stops must not leave the in-sync sets of all its logs at its next start."""
    first = brokers[leader_of(brokers)]
    first.directory.close()
    assert first.partition.log.is_offline
    assert first.hosting.failed_logs() == []
