"""Logs that are kept as diverged are told to the cluster for as long as they are there."""

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.unit.membership.replicated import DATA, ReplicatedBroker

KEPT = DATA / f"t-0.{'0' * 32}.diverged"


def test_kept_log_is_told_until_it_is_deleted():
    """Who tells it is rung when that changes, and only then."""
    broker = ReplicatedBroker(MemoryZooKeeper(), 1, [0])

    def told():
        broker.hosting.look_at_kept(broker.directory)
        rings, broker.rung[:] = len(broker.rung), []
        broker.updater.step(0)
        broker.member.step(0)
        disks = broker.member.state.disks.get(1)
        return rings, None if disks is None else (disks.diverged, disks.directories, disks.concerns("t", 0))

    broker.files.make_directory(DATA / f"t-0.{'0' * 32}.damaged")
    assert told() == (0, None)
    broker.files.make_directory(KEPT)
    assert told() == (1, ((str(KEPT),), {}, False))
    assert told() == (0, ((str(KEPT),), {}, False))
    broker.files.remove_tree(KEPT)
    assert told() == (1, None)


def test_log_that_is_to_be_set_aside_as_diverged_is_not_told_as_damaged():
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
