"""A member's assignment as it changes under a consumer: callbacks, commits, positions, and nothing after the lease."""

from __future__ import annotations

import re

import pytest

from broker_runtime.contract.errors import (
    ClientStateError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    LeaderNotAvailableError,
    NoOffsetForPartitionError,
    PylogError,
    StaleMemberEpochError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import CommitOffsetsResponse, ErrorInfo
from pyspark_log.client.consumer.assignment import REFRESH_S
from pyspark_log.client.consumer.group_assignment import IDLE_REFRESH_S
from tests.unit.client.consumer_samples import MemoryCluster, Parts, make_topic
from tests.unit.client.member_samples import A, B, C, made, poll


def test_member_reads_its_assigned_partitions_only() -> None:
    """W21, W17: the member commits its first positions before it reads."""
    parts = Parts(MemoryCluster(make_topic("t", partitions=3)), group_id="g", auto_offset_reset="latest")
    parts.cluster.limits = dict.fromkeys((A, B, C), (3, 9))
    parts.cluster.group.share = {B}
    parts.subscribe("t")
    assert set(parts.fetcher.states) == {B}
    assert parts.state(B).position == 9
    assert parts.cluster.commits == [{B: 9}]
    request = parts.cluster.commit_requests[0]
    assert (request.member_id, request.member_epoch, request.sequence) == (parts.cluster.group.member_id, 1, 0)
    parts.beat(0.0)
    assert parts.cluster.group.acknowledged == 1


def test_member_without_partitions_waits_and_takes_over() -> None:
    """W23."""
    parts, callbacks = made(share=set())
    assert (parts.fetcher.states, callbacks.seen, poll(parts)) == ({}, [], [])
    parts.cluster.group.share = None
    parts.beat()
    assert poll(parts) == []
    assert (set(parts.fetcher.states), callbacks.seen) == ({A, B}, [("assign", [A, B])])


def test_revoked_partition_is_committed_and_dropped_before_it_is_acknowledged() -> None:
    """W24: first on_revoke, then the commit of finished records, then nothing more of the partition, then the
    acknowledgement.
    """
    parts, callbacks = made()
    parts.arrives(A, b"a0", b"a1")
    parts.arrives(B, b"b0")
    assert poll(parts) == [b"a0", b"a1", b"b0"]
    parts.arrives(A, b"a2")
    parts.arrives(B, b"b1")
    parts.cluster.group.share = {B}
    kept = parts.state(B)
    parts.beat()
    assert parts.cluster.group.acknowledged == 1
    assert poll(parts) == [b"b1"]
    parts.beat(0.0)
    assert parts.cluster.group.acknowledged == 2
    assert callbacks.seen == [("assign", [A, B]), ("revoke", [A])]
    assert callbacks.commits_seen == [
        1,
        0,
    ]  # none yet when on_revoke is called (those of the subscription were cleared)
    assert parts.cluster.commits == [{A: 2}]
    assert parts.state(B) is kept


def test_revoked_partition_can_be_committed_in_the_callback() -> None:
    """W18: without auto-commit it is the caller's last chance."""
    parts, _ = made(enable_auto_commit=False)
    parts.subscribe("t", on_revoke=lambda at: parts.committer.commit(dict.fromkeys(at, 1)))
    parts.arrives(A, b"a0", b"a1")
    poll(parts)
    parts.cluster.commits.clear()
    parts.cluster.group.share = {B}
    parts.beat()
    poll(parts)
    assert parts.cluster.commits == [{A: 1}]
    assert (
        parts.cluster.commit_requests[-1].member_epoch == 2
    )  # the new assignment has arrived, and A is still this member's


def test_raising_callback_keeps_no_partition() -> None:
    """W24: the caller gets the exception, and the partition is released all the same."""
    parts, _ = made()

    def fails(_: list[TopicPartition]) -> None:
        raise RuntimeError("the callback failed")

    parts.subscribe("t", on_revoke=fails)
    parts.cluster.group.share = {B}
    parts.beat()
    with pytest.raises(RuntimeError):
        poll(parts)
    parts.beat(0.0)
    assert (set(parts.fetcher.states), parts.cluster.group.acknowledged) == ({B}, 2)
    assert poll(parts) == []


def test_failed_commit_holds_up_no_other_member() -> None:
    """W19: the partition's next owner reads uncommitted records again."""
    parts, _ = made()
    parts.arrives(A, b"a0")
    poll(parts)
    parts.cluster.group.share = {B}
    parts.cluster.refused_commits = [StaleMemberEpochError("no")]
    parts.beat()
    poll(parts)
    assert set(parts.fetcher.states) == {B}


def test_records_taken_before_a_revocation_are_returned_before_the_callback() -> None:
    """W24: a poll that gathers several batches carries out no revocation in between: a commit would cover too much."""
    parts, callbacks = made()
    parts.arrives(A, b"a0")
    parts.arrives(B, b"b0")
    take = parts.delivery._deliver

    def news_comes(*args: object) -> object:
        parts.cluster.group.share = {B}
        parts.beat()
        return take(*args)  # type: ignore[arg-type]

    parts.delivery._deliver = news_comes  # type: ignore[method-assign,assignment]
    assert poll(parts) == [b"a0", b"b0"]
    assert callbacks.seen == [("assign", [A, B])]
    assert poll(parts) == []
    assert callbacks.seen[1:] == [("revoke", [A])]
    assert parts.cluster.commits == [{A: 1}]


def test_new_partition_begins_at_the_groups_offset_and_kept_ones_continue() -> None:
    """W19, W22: nothing is skipped or repeated."""
    parts, callbacks = made(share={A})
    parts.arrives(A, b"a0", b"a1")
    assert len(poll(parts)) == 2
    parts.cluster.committed[B, make_topic("t").topic_id] = 7
    parts.cluster.group.share = {A, B}
    parts.beat()
    poll(parts)
    assert (parts.state(A).position, parts.state(B).position) == (2, 7)
    assert callbacks.seen == [("assign", [A]), ("assign", [B])]


def test_partition_whose_leader_is_away_begins_later() -> None:
    """W19: neither the group nor the member waits for it."""
    parts, callbacks = made(share={A})
    parts.cluster.group.share = {A, B}
    call = parts.cluster.call

    def away(action: str, *args: object, **more: object) -> object:
        if action == "list_offsets":
            raise LeaderNotAvailableError("t-1 has no leader at present")
        return call(action, *args, **more)  # type: ignore[arg-type]

    parts.cluster.call = away  # type: ignore[method-assign,assignment]
    parts.beat()
    parts.arrives(A, b"a0")
    assert poll(parts) == [b"a0"]
    assert (set(parts.fetcher.states), parts.cluster.group.epoch) == ({A}, 2)
    parts.cluster.call = call  # type: ignore[method-assign]
    parts.beat()
    assert parts.cluster.group.acknowledged == 2
    poll(parts)
    assert callbacks.seen[1:] == [("assign", [B])]


def test_first_positions_that_are_refused_are_tried_again() -> None:
    """W17: no record is read before its position is committed."""
    parts, _ = made(share={A})
    parts.cluster.group.share = {A, B}
    commit = parts.cluster._commit_offsets
    refusal = ErrorInfo.of(StaleMemberEpochError("not held"))
    parts.cluster._commit_offsets = lambda _: CommitOffsetsResponse(errors=(refusal,))  # type: ignore[method-assign]
    parts.beat()
    poll(parts)
    assert set(parts.fetcher.states) == {A}
    parts.cluster._commit_offsets = commit  # type: ignore[method-assign]
    parts.beat()
    poll(parts)
    assert set(parts.fetcher.states) == {A, B}


def test_partition_without_a_permitted_position_is_an_error_and_others_continue() -> None:
    """W17: ``auto_offset_reset="none"`` forbids choosing one."""
    parts = Parts(MemoryCluster(make_topic("t", partitions=2)), group_id="g", auto_offset_reset="none")
    parts.cluster.committed[A, make_topic("t").topic_id] = 3
    parts.cluster.group.share = {A}
    parts.subscribe("t")
    parts.cluster.group.share = {A, B}
    parts.beat()
    with pytest.raises(NoOffsetForPartitionError):
        poll(parts)
    parts.cluster.committed[B, make_topic("t").topic_id] = 5
    parts.beat(2.0)
    poll(parts)
    assert parts.state(B).position == 5


# --- refusals, topics, leaving --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [GroupMaxSizeReachedError("full"), CoordinatorNotAvailableError("nobody")])
def test_subscription_that_the_group_refuses_is_an_error(error: PylogError) -> None:
    """W21: the consumer is as it was before."""
    parts = Parts(MemoryCluster(make_topic("t")), group_id="g", auto_offset_reset="earliest")
    parts.cluster.request_timeout_s = 0.05  # type: ignore[misc]
    parts.cluster.group.failures = [error]
    with pytest.raises(type(error)):
        parts.subscribe("t")
    assert not parts.assignment.is_in_use
    parts.subscribe("t")
    assert set(parts.fetcher.states) == {A}


def test_member_whose_instance_id_was_taken_is_fenced_and_stops() -> None:
    """W24: every poll raises."""
    parts, callbacks = made(group_instance_id="i")
    parts.cluster.group.failures = [FencedInstanceIdError("another process")]
    parts.beat()
    parts.arrives(A, b"a0")
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            poll(parts)
    assert callbacks.seen[1:] == [("lost", [A, B])]
    parts.assignment.unsubscribe()
    assert callbacks.seen[2:] == []


def test_pattern_subscribes_to_the_topics_it_matches() -> None:
    """W16: topics that are created and deleted change the subscription."""
    parts, _ = made()
    parts.subscribe(pattern=re.compile("t.*"))
    other = parts.cluster.topics["t2"] = make_topic("t2", topic_id=2)
    parts.cluster.limits[TopicPartition("t2", 0)] = (4, 9)
    parts.assignment.take_metadata(list(parts.cluster.topics.values()))
    parts.beat(0.0)
    assert parts.cluster.group.subscribed == ("t", "t2")
    poll(parts)
    assert parts.state(TopicPartition("t2", 0)).position == 4  # created later: its first record
    assert parts.assignment.topics == {"t", "t2"}
    del parts.cluster.topics["t2"]
    parts.assignment.take_metadata(list(parts.cluster.topics.values()))
    parts.beat(0.0)
    poll(parts)
    assert (set(parts.fetcher.states), parts.assignment.topics) == ({A, B}, {"t"})
    assert other.name == "t2"


def test_deleted_topic_is_an_error_although_the_group_revoked_it() -> None:
    """W16: the poll raises; other partitions are read on."""
    parts, callbacks = made()
    parts.cluster.topics["u"] = make_topic("u", topic_id=5)
    callbacks.subscribe("t", "u")
    del parts.cluster.topics["u"]
    parts.beat()
    poll(parts)
    assert set(parts.fetcher.states) == {A, B}
    parts.assignment.take_metadata(UnknownTopicOrPartitionError("no topic 'u'"))
    with pytest.raises(UnknownTopicOrPartitionError):
        poll(parts)
    parts.arrives(A, b"a0")
    assert poll(parts) == [b"a0"]


def test_member_leaves_with_commit_and_callback() -> None:
    """W23: it commits before it calls back."""
    parts, callbacks = made()
    parts.arrives(A, b"a0")
    poll(parts)
    parts.assignment.unsubscribe()
    assert parts.cluster.commits == [{A: 1}]
    assert callbacks.seen[1:] == [("revoke", [A, B])]
    assert callbacks.commits_seen[1:] == [1]
    assert parts.cluster.group.acknowledged == -1
    assert not parts.assignment.is_in_use


def test_static_member_leaves_temporarily() -> None:
    """W23."""
    parts, _ = made(group_instance_id="i")
    parts.assignment.unsubscribe()
    assert (parts.cluster.group.acknowledged, parts.cluster.group.requests[-1].instance_id) == (-2, "i")


def test_manual_assignment_is_no_membership() -> None:
    """W20: it commits as a non-member."""
    parts = Parts(MemoryCluster(make_topic("t")), group_id="g", auto_offset_reset="earliest")
    parts.assignment.assign([A])
    parts.arrives(A, b"a0")
    assert poll(parts) == [b"a0"]
    parts.committer.commit({A: 1})
    request = parts.cluster.commit_requests[-1]
    assert (request.member_id, request.member_epoch, request.sequence) == ("", -1, -1)
    assert parts.cluster.group.requests == []


def test_forked_child_is_not_the_member() -> None:
    """W24: only the parent is; the child reads nothing, commits nothing and releases nothing."""
    parts, _ = made()
    requests = len(parts.cluster.group.requests)
    parts.heartbeats.forget_parent()
    parts.committer.forget_parent()
    parts.assignment.forget_parent()
    parts.fetcher.forget_parent()
    assert not parts.assignment.is_in_use
    parts.committer.commit_finished()
    parts.assignment.close()
    assert (parts.cluster.commits, len(parts.cluster.group.requests)) == ([], requests)
    with pytest.raises(ClientStateError):
        parts.assignment.state(A)


def test_member_that_waits_for_partitions_needs_no_metadata() -> None:
    """The coordinator reports changes; with a pattern nobody else finds topics, and with partitions leaders matter."""
    parts, callbacks = made(share=set())
    assert parts.assignment.metadata_interval_s == IDLE_REFRESH_S
    parts.cluster.group.share = None
    parts.beat()
    poll(parts)
    assert callbacks.seen == [("assign", [A, B])]
    assert parts.assignment.metadata_interval_s == REFRESH_S
    parts, _ = made(share=set())
    parts.assignment.unsubscribe()
    parts.subscribe(pattern=re.compile("t.*"))
    assert parts.assignment.metadata_interval_s == REFRESH_S
