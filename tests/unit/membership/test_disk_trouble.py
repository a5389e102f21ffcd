"""A disk that is full, or failed, gives its leaderships up where others can take them, and none goes back meanwhile."""

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
    """Three, with t-0 on all of them, led by the first; a record in it."""
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


def test_full_disk_gives_its_leadership_up_and_gets_it_back_when_there_is_room(brokers, clock):
    """Another leads, and takes appends; the preferred leader leads again only when its disk has room."""
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
    assert first in in_sync_of(brokers)  # it has all there is
    brokers[second].append(b"b")
    live_on(brokers, clock, rounds=LAG_MS // 200 + 30)
    assert first not in in_sync_of(brokers)
    assert brokers[second].partition.high_watermark == 2
    make_room(brokers[first])
    live_on(brokers, clock, rounds=60)
    assert (leader_of(brokers), in_sync_of(brokers)) == (first, {1, 2, 3})
    assert len(brokers[first].frames()) == 2


def test_leader_stays_when_all_disks_are_full_and_is_read_on(brokers, clock):
    """Nobody could take more, so no leadership moves; who has room first leads."""
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
    """Of two that are in sync the one with room leads; the full one does where it is the only one left."""
    first, second, third = brokers[3].member.state.topics["t"].record.assignment[0]
    fill(brokers[second])
    live_on(brokers, clock, rounds=3)
    assert leader_of(brokers) == first
    epoch = brokers[third].state("t")[1]
    brokers[first].stop()
    brokers.pop(first)
    live_on(brokers, clock, rounds=20)
    assert brokers[third].state("t")[:2] == (third, epoch + 1)  # at once, not by way of the full one
    brokers[third].stop()
    brokers.pop(third)
    live_on(brokers, clock, rounds=20)
    assert brokers[second].state("t")[0] == second


def test_failed_disk_is_not_elected_for_its_offline_log_again(brokers, clock):
    """A log that an I/O error took offline leads no more until its broker is started anew."""
    first = leader_of(brokers)
    brokers[first].files.faults = [Fault("sync")]
    with pytest.raises(LogStorageError):
        brokers[first].append(b"x")
    live_on(brokers, clock, rounds=20)
    epoch = brokers[3].state("t")[1]
    assert leader_of(brokers) not in {None, first}
    live_on(brokers, clock, rounds=100)
    assert brokers[3].state("t")[1] == epoch
    assert {broker_id: told.directories for broker_id, told in brokers[3].member.state.disks.items()} == {
        first: {"/data": "failed"}
    }
