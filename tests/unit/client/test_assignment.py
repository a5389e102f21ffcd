"""Topics and partitions are created, deleted and recreated under a consumer."""

from __future__ import annotations

import re

import pytest

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    LeaderNotAvailableError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.waiting import Deadline
from tests.unit.client.consumer_samples import MemoryCluster, Parts, make_topic

AT, NEW = TopicPartition("t", 0), TopicPartition("t", 1)
GONE = UnknownTopicOrPartitionError("no topic 't' of this id")


def test_new_partition_is_read_from_its_logs_start() -> None:
    """W16: its first record may not have offset 0 any more, and reading never begins at the latest."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="latest")
    parts.subscribe("t")
    parts.cluster.limits[NEW] = (40, 70)
    parts.assignment.take_metadata([make_topic("t", partitions=2)])
    parts.cluster.topics["t"] = make_topic("t", partitions=2)
    parts.assignment.apply_changes()
    assert parts.state(NEW).position == parts.state(NEW).fetch_offset == 40


def test_new_partition_of_a_group_begins_at_the_committed_offset_or_the_logs_start() -> None:
    """W17: the position is saved."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="latest", group_id="g")
    parts.subscribe("t")
    topic = parts.cluster.topics["t"] = make_topic("t", partitions=3)
    parts.cluster.limits[NEW] = (40, 70)
    other = TopicPartition("t", 2)
    parts.cluster.committed[other, topic.topic_id] = 9
    parts.beat()
    parts.assignment.apply_changes()
    assert (parts.state(NEW).position, parts.state(other).position) == (40, 9)
    assert parts.cluster.committed[NEW, topic.topic_id] == 40


def test_unanswered_new_partition_waits_for_the_next_metadata() -> None:
    """W16: a partition that is still being created does not fail the poll."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="latest", group_id="g")
    assigned: list[TopicPartition] = []
    parts.subscribe("t", on_assign=assigned.extend)
    parts.cluster.topics["t"] = make_topic("t", partitions=2)
    parts.beat()
    parts.cluster.unavailable = LeaderNotAvailableError("t-1 has no leader at present")
    parts.assignment.apply_changes()
    assert NEW not in parts.fetcher.states
    parts.cluster.unavailable = None
    parts.beat()
    parts.assignment.apply_changes()
    assert assigned == [AT, NEW]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("error", [GONE, InconsistentTopicIdError("topic 't' was deleted and recreated")])
def test_recreated_topic_is_read_from_its_first_record(reset: str, error: Exception) -> None:
    """W16, W20: a subscription by name continues by itself, as one by pattern does."""
    parts = Parts(MemoryCluster(make_topic("t", partitions=2)), auto_offset_reset=reset)
    assigned: list[list[TopicPartition]] = []
    revoked: list[list[TopicPartition]] = []
    parts.cluster.limits = {AT: (0, 50), NEW: (0, 50)}
    parts.subscribe("t", on_assign=assigned.append, on_revoke=revoked.append)
    recreated = parts.cluster.topics["t"] = make_topic("t", topic_id=2)
    parts.cluster.limits = {AT: (3, 8)}
    parts.fails(NEW, error)  # type: ignore[arg-type]
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    assert set(parts.fetcher.states) == {AT}
    assert parts.state(AT).topic.topic_id == recreated.topic_id
    assert parts.state(AT).position == 3
    assert (revoked, assigned) == ([[AT, NEW]], [[AT, NEW], [AT]])


def test_recreated_topic_does_not_inherit_the_groups_offsets() -> None:
    """W17: the offsets were the old topic's; the new one's first is saved."""
    parts = Parts(MemoryCluster(make_topic("t")), group_id="g", auto_offset_reset="earliest")
    parts.subscribe("t")
    parts.committer.commit({AT: 40})
    recreated = parts.cluster.topics["t"] = make_topic("t", topic_id=2)
    parts.fails(AT, GONE)
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    parts.beat()
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    assert parts.state(AT).position == 0
    assert parts.cluster.committed[AT, recreated.topic_id] == 0


def test_deleted_topic_is_an_error_until_it_is_recreated() -> None:
    """W16: the poll raises while the topic is gone, and then continues by itself."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="latest")
    parts.subscribe("t")
    del parts.cluster.topics["t"]
    parts.fails(AT, GONE)
    for _ in range(2):
        with pytest.raises(UnknownTopicOrPartitionError):
            parts.delivery.next_batch(Deadline(0.0))
    parts.cluster.topics["t"] = make_topic("t", topic_id=2)
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    assert parts.state(AT).error is None


def test_topic_that_only_one_broker_calls_deleted_is_not_restarted() -> None:
    """W20: a topic with the same id was not recreated."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="earliest")
    parts.subscribe("t")
    parts.fails(AT, GONE)
    with pytest.raises(UnknownTopicOrPartitionError):
        parts.delivery.next_batch(Deadline(0.0))


def test_recreated_topic_is_an_error_when_no_position_may_be_chosen() -> None:
    """W20: this holds with ``auto_offset_reset="none"``, and for a manual assignment."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="none", group_id="g")
    parts.cluster.committed[AT, make_topic("t").topic_id] = 0
    parts.subscribe("t")
    assigned = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="earliest")
    assigned.assignment.assign([AT])
    for each in (parts, assigned):
        each.cluster.topics["t"] = make_topic("t", topic_id=2)
        each.fails(AT, GONE)
        with pytest.raises(UnknownTopicOrPartitionError):
            each.delivery.next_batch(Deadline(0.0))
    parts.beat()  # the group assigns it the new one
    for _ in range(2):
        with pytest.raises(NoOffsetForPartitionError):
            parts.delivery.next_batch(Deadline(0.0))
        parts.beat()


def test_unanswered_recreated_topic_waits_for_the_next_metadata() -> None:
    """W16: it does not fail the poll."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="earliest", group_id="g")
    parts.subscribe("t")
    recreated = parts.cluster.topics["t"] = make_topic("t", topic_id=2)
    parts.fails(AT, GONE)
    answer = parts.cluster.call

    def away(*_: object, **__: object) -> object:
        raise LeaderNotAvailableError("t-0 has no leader at present")

    parts.cluster.call = away  # type: ignore[method-assign,assignment]
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    parts.cluster.call = answer  # type: ignore[method-assign]
    parts.beat()
    parts.assignment.apply_changes()
    assert parts.state(AT).topic.topic_id == recreated.topic_id


def test_pattern_drops_a_topic_and_finds_it_again() -> None:
    """W16: neither is an error."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="latest")
    parts.subscribe(pattern=re.compile("t.*"))
    parts.fails(AT, GONE)
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    assert parts.assignment.topics == set()
    recreated = parts.cluster.topics["t"] = make_topic("t", topic_id=2)
    parts.assignment.take_metadata([recreated])
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    assert parts.state(AT).topic.topic_id == recreated.topic_id


@pytest.mark.parametrize("settings", [{}, {"group_id": "g"}], ids=["alone", "group"])
def test_deleted_topic_keeps_no_other_from_its_new_leader(settings: dict[str, str]) -> None:
    """W16, W19: other partitions are read on, also when their leaders change."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="earliest", **settings)
    parts.cluster.topics["u"] = make_topic("u", topic_id=5)
    parts.subscribe("u", "t")
    del parts.cluster.topics["u"]
    newer = parts.cluster.topics["t"] = make_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        parts.assignment.fetch_metadata()
    assert parts.state(AT).topic is newer
