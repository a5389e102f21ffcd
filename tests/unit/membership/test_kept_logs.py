"""Logs kept as diverged are reported to the cluster as long as they exist."""

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.unit.membership.replicated import DATA, ReplicatedBroker

KEPT = DATA / f"t-0.{'0' * 32}.diverged"


def test_kept_log_is_reported_until_it_is_deleted():
    """The reporter is woken when that changes, and only then."""
    broker = ReplicatedBroker(MemoryZooKeeper(), 1, [0])

    def reported():
        broker.hosting.look_at_kept(broker.directory)
        rings, broker.wakeups[:] = len(broker.wakeups), []
        broker.updater.step(0)
        broker.member.step(0)
        disks = broker.member.state.disks.get(1)
        return rings, None if disks is None else (disks.diverged, disks.directories, disks.concerns("t", 0))

    broker.files.make_directory(DATA / f"t-0.{'0' * 32}.damaged")
    assert reported() == (0, None)
    broker.files.make_directory(KEPT)
    assert reported() == (1, ((str(KEPT),), {}, False))
    assert reported() == (0, ((str(KEPT),), {}, False))
    broker.files.remove_tree(KEPT)
    assert reported() == (1, None)


def test_diverged_log_to_be_set_aside_is_not_reported_as_damaged():
    """All its records can be read."""
    broker = ReplicatedBroker(MemoryZooKeeper(), 1, [0])
    broker.member.step(0)
    broker.create("t", replication_factor=1)
    broker.member.step(0)
    broker.append(b"a")
    with pytest.raises(CorruptRecordError):
        broker.log.refuse_to_lose(0, 1)
    assert broker.log.is_damaged
    assert broker.hosting.damaged_logs() == []
    assert broker.hosting.damaged_replicas() == [broker.partition]
