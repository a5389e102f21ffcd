"""What a consumer commits to its group."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import ClosedError, InvalidGroupIdError, NetworkError, UnknownTopicOrPartitionError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.waiting import Deadline
from tests.unit.client.consumer_samples import MemoryCluster, Parts, make_topic

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def reading(**settings: object) -> Parts:
    parts = Parts(MemoryCluster(make_topic("t", partitions=2)), auto_offset_reset="earliest", **settings)
    parts.subscribe("t")
    parts.cluster.commits.clear()
    return parts


def test_commit_is_written_after_waiting_ones() -> None:
    """W18: an older background commit never overtakes a newer one, and its future is finished first."""
    parts = reading(group_id="g")
    soon = parts.committer.commit_async({AT: 3})
    seen: list[list[dict[TopicPartition, int]]] = []
    soon.add_done_callback(lambda _: seen.append(list(parts.cluster.commits)))
    parts.committer.commit({AT: 5})
    assert parts.cluster.commits == [{AT: 3}, {AT: 5}]
    assert seen == [[{AT: 3}]]
    parts.committer.write_queued()
    assert len(parts.cluster.commits) == 2


def test_commit_may_be_called_in_a_callback_of_another() -> None:
    """W18: users who retry do so."""
    parts = reading(group_id="g")
    parts.committer.commit_async({AT: 3}).add_done_callback(lambda _: parts.committer.commit({AT: 4}))
    parts.committer.write_queued()
    assert parts.cluster.commits == [{AT: 3}, {AT: 4}]


def test_commit_never_becomes_one_of_a_recreated_topic() -> None:
    """W18: an offset belongs to the topic whose records were read."""
    parts = reading(group_id="g")
    recreated = make_topic("t", topic_id=2, partitions=2)
    parts.cluster.topics["t"] = recreated
    with pytest.raises(UnknownTopicOrPartitionError):
        parts.committer.commit({AT: 1000})
    assert (AT, recreated.topic_id) not in parts.cluster.committed


def test_commit_that_waits_never_becomes_one_of_a_recreated_topic() -> None:
    """W18: what `commit_async` took is about the topic that was read then, whichever is read when it is written."""
    parts = reading(group_id="g")
    commit = parts.committer.commit_async({AT: 1000})
    recreated = make_topic("t", topic_id=2, partitions=2)
    parts.cluster.topics["t"] = recreated
    parts.beat()
    parts.assignment.apply_changes()
    assert parts.state(AT).topic is recreated
    parts.committer.write_queued()
    assert isinstance(commit.exception(0), UnknownTopicOrPartitionError)
    assert parts.cluster.committed[AT, recreated.topic_id] == 0


def test_refusal_for_one_partition_does_not_hold_up_the_others() -> None:
    """W18: the refusal is raised, and the rest is written."""
    parts = reading(group_id="g")
    gone = TopicPartition("u", 0)
    parts.cluster.topics["u"] = make_topic("u", topic_id=7)
    parts.subscribe("u", "t")
    del parts.cluster.topics["u"]
    with pytest.raises(UnknownTopicOrPartitionError):
        parts.committer.commit({gone: 1, AT: 5})
    assert parts.cluster.committed[AT, make_topic("t").topic_id] == 5


def test_auto_commit_covers_finished_and_uncommitted_records_only() -> None:
    """W18: records that are being processed and offsets that the group has already are left out."""
    parts = reading(group_id="g")
    parts.arrives(AT, b"a", b"b")
    assert len(parts.delivery.poll_records(_now(), 10)) == 2
    parts.committer.commit_finished()
    assert parts.cluster.commits == []
    parts.committer.finish_all()
    parts.committer.commit_finished()
    parts.committer.commit_finished()
    assert parts.cluster.commits == [{AT: 2}]


def test_offsets_that_do_not_change_are_committed_again_before_they_expire() -> None:
    """W23: without members a group is forgotten after its last commit, though a quiet topic may still be read."""
    parts = reading(group_id="g")
    parts.arrives(AT, b"a")
    parts.delivery.poll_records(Deadline(0.0), 10)
    parts.committer.finish_all()
    for _ in range(3):
        parts.committer.commit_finished()
    before = len(parts.cluster.commits)
    parts.committer._refresh_at = Deadline(0.0)
    for _ in range(3):
        parts.committer.commit_finished()
    assert (before, len(parts.cluster.commits)) == (1, 2)
    assert parts.cluster.commits[-1][AT] == 1


def test_offset_whose_commit_got_no_answer_is_committed_again() -> None:
    """The group may have the later one: after a seek back, what it has is not what was committed last."""
    parts = reading(group_id="g")
    state = parts.state(AT)
    state.finished = 10
    parts.committer.commit_finished()
    real = parts.cluster._commit_offsets

    def lost(request: object) -> object:
        real(request)
        raise NetworkError("no answer")

    parts.cluster._commit_offsets = lost  # type: ignore[method-assign,assignment]
    state.finished = 20
    with pytest.raises(NetworkError):
        parts.committer.commit_finished()
    parts.cluster._commit_offsets = real  # type: ignore[method-assign]
    state.finished = 10
    parts.committer.commit_finished()
    assert parts.cluster.committed[AT, state.topic.topic_id] == 10


def test_auto_commit_of_a_deleted_topic_is_no_error() -> None:
    """W18: the offsets of other topics are written, and nothing prevents the member from leaving."""
    parts = reading(group_id="g")
    parts.cluster.topics["u"] = make_topic("u", topic_id=7)
    parts.subscribe("t", "u")
    for at in (AT, TopicPartition("u", 0)):
        parts.arrives(at, b"a")
    assert len(parts.delivery.poll_records(_now(), 10)) == 2
    del parts.cluster.topics["u"]
    parts.assignment.unsubscribe()
    assert parts.cluster.commits[-1] == {AT: 1}
    assert parts.fetcher.states == {}


def test_partitions_that_are_given_up_are_committed() -> None:
    """W18: a new assignment commits what was read of dropped partitions since the last auto-commit."""
    parts = Parts(MemoryCluster(make_topic("t", partitions=2)), group_id="g", auto_offset_reset="earliest")
    parts.assignment.assign([AT, OTHER])
    parts.arrives(AT, b"a", b"b")
    parts.arrives(OTHER, b"c")
    assert len(parts.delivery.poll_records(_now(), 10)) == 3
    parts.assignment.assign([OTHER])
    assert parts.cluster.commits == [{AT: 2}]
    parts.assignment.assign([OTHER])
    assert parts.cluster.commits == [{AT: 2}]


def test_partitions_that_are_given_up_are_left_alone_without_auto_commit() -> None:
    """W18: without auto-commit only the caller commits."""
    parts = Parts(MemoryCluster(make_topic("t")), group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    parts.assignment.assign([AT])
    parts.arrives(AT, b"a")
    parts.delivery.poll_records(_now(), 10)
    parts.assignment.assign([])
    assert parts.cluster.commits == []


def test_assignment_stays_when_dropped_partitions_cannot_be_committed() -> None:
    """W18: nothing is half done."""
    parts = reading(group_id="g")
    parts.assignment.unsubscribe()
    parts.assignment.assign([AT])
    parts.arrives(AT, b"a")
    parts.delivery.poll_records(_now(), 10)
    parts.committer._cluster.request_timeout_s = 0.0  # type: ignore[misc]
    topics = parts.cluster.fetch_topics
    parts.cluster.unavailable = NetworkError("away")
    parts.cluster.fetch_topics = lambda names=None, timeout_s=None: list(parts.cluster.topics.values())  # type: ignore[method-assign,assignment]
    with pytest.raises(NetworkError):
        parts.assignment.assign([OTHER])
    assert set(parts.fetcher.states) == {AT}
    parts.cluster.unavailable = None
    parts.cluster.fetch_topics = topics  # type: ignore[method-assign]
    parts.assignment.assign([OTHER])
    assert parts.cluster.commits[-1] == {AT: 1}


def test_commit_that_waits_when_the_consumer_is_closed_is_settled() -> None:
    """No future stays open forever."""
    parts = reading(group_id="g")
    soon = parts.committer.commit_async({AT: 3})
    parts.committer.close()
    assert isinstance(soon.exception(0), ClosedError)


def test_commit_needs_a_group() -> None:
    """W18: a background commit needs one, too."""
    parts = reading()
    for commit in (parts.committer.commit, parts.committer.commit_async):
        with pytest.raises(InvalidGroupIdError):
            commit({AT: 1})


def _now() -> Deadline:
    return Deadline(0.0)
