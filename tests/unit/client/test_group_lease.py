"""A member whose lease has ended returns no records and commits nothing."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import NetworkError, UnknownMemberIdError
from broker_runtime.contract.requests import CommitOffsetsResponse, ErrorInfo
from broker_runtime.contract.waiting import Deadline
from tests.unit.client.consumer_samples import Parts
from tests.unit.client.member_samples import A, B, made, poll

SESSION_S = 45.0


def lease_ends(parts: Parts) -> None:
    """The process was frozen, or nobody answered, for a whole session."""
    parts.now_s += SESSION_S


@pytest.mark.parametrize("kind", ["records", "batches"])
def test_poll_delivers_nothing_after_the_lease_has_ended(kind: str) -> None:
    """W24: others may own the partitions: on_lost is called instead of on_revoke, nothing is committed, and it joins
    as a new member.
    """
    parts, callbacks = made()
    parts.arrives(A, b"a0")
    poll(parts)
    first = parts.cluster.group.member_id
    parts.arrives(A, b"a1")
    lease_ends(parts)
    parts.committer.finish_all()
    take = parts.delivery.poll_records if kind == "records" else parts.delivery.poll_batches
    assert take(Deadline(0.0), 500) == []
    assert callbacks.seen[1:] == [("lost", [A, B])]
    assert (parts.fetcher.states, parts.cluster.commits) == ({}, [])
    parts.beat()
    poll(parts)
    assert parts.cluster.group.member_id != first
    assert callbacks.seen[2:] == [("assign", [A, B])]
    assert parts.state(A).position == 0  # what the group has


@pytest.mark.parametrize("kind", ["records", "batches"])
def test_poll_that_froze_after_taking_records_returns_none_of_them(kind: str) -> None:
    """W24: the lease is checked last."""
    parts, callbacks = made()
    parts.arrives(A, b"a0")
    take = parts.delivery._deliver

    def freeze(*args: object) -> object:
        lease_ends(parts)
        return take(*args)  # type: ignore[arg-type]

    parts.delivery._deliver = freeze  # type: ignore[method-assign,assignment]
    poll_once = parts.delivery.poll_records if kind == "records" else parts.delivery.poll_batches
    assert poll_once(Deadline(0.0), 500) == []
    assert callbacks.seen[-1] == ("lost", [A, B])


def test_loop_over_records_ends_with_the_lease_between_two_of_them() -> None:
    """W24: it ends in the middle of a batch, too."""
    parts, callbacks = made()
    parts.arrives(A, b"a0", b"a1", b"a2")
    batch = parts.delivery.next_batch(Deadline(0.0))
    assert batch is not None
    seen = []
    for record in parts.delivery.iterate_records(batch):
        seen.append(record.value)
        if record.value == b"a1":
            lease_ends(parts)
    assert seen == [b"a0", b"a1"]
    assert parts.delivery.next_batch(Deadline(0.0)) is None
    assert callbacks.seen[-1] == ("lost", [A, B])


def test_loop_over_batches_delivers_none_after_the_lease() -> None:
    """W24: the process may have been frozen between the buffer and the caller."""
    parts, _ = made()
    parts.arrives(A, b"a0")
    batch = parts.delivery.next_batch(Deadline(0.0))
    assert batch is not None
    lease_ends(parts)
    assert list(parts.delivery.iterate_batch(batch)) == []


def test_loop_returns_the_rest_of_a_batch_when_the_assignment_changes() -> None:
    """W24, W22: kept partitions continue with the next record; released ones are committed up to the last processed
    record.
    """
    parts, _ = made()
    parts.arrives(A, b"a0", b"a1", b"a2")
    batch = parts.delivery.next_batch(Deadline(0.0))
    assert batch is not None
    for record in parts.delivery.iterate_records(batch):
        if record.value == b"a0":
            parts.cluster.group.share = {A}
            parts.beat()
    assert (parts.state(A).position, parts.state(A).finished) == (1, 1)
    assert poll(parts) == [b"a1", b"a2"]
    assert set(parts.fetcher.states) == {A}


def test_loop_delivers_nothing_more_of_a_partition_that_its_body_lost() -> None:
    """W24: the body polled, and the assignment changed meanwhile."""
    parts, _ = made()
    parts.arrives(A, b"a0", b"a1")
    batch = parts.delivery.next_batch(Deadline(0.0))
    assert batch is not None
    seen = []
    for record in parts.delivery.iterate_records(batch):
        seen.append(record.value)
        parts.cluster.group.share = {B}
        parts.beat()
        poll(parts)
    assert seen == [b"a0"]


def test_member_that_the_group_forgot_loses_everything() -> None:
    """W24: it is as if its lease had ended."""
    parts, callbacks = made()
    parts.cluster.group.failures = [UnknownMemberIdError("gone")]
    parts.beat()
    parts.arrives(A, b"a0")
    assert poll(parts) == []
    assert callbacks.seen[1:] == [("lost", [A, B])]
    assert parts.cluster.commits == []


def test_caller_that_was_away_for_too_long_loses_its_partitions_with_its_next_poll() -> None:
    """W23: ``max_poll_interval_ms`` had passed."""
    parts, callbacks = made(max_poll_interval_ms=10_000)
    for _ in range(4):
        parts.beat(3.0)
    assert parts.cluster.group.acknowledged == -1
    parts.arrives(A, b"a0")
    assert poll(parts) == []
    assert callbacks.seen[1:] == [("lost", [A, B])]
    parts.beat()
    poll(parts)
    assert callbacks.seen[2:] == [("assign", [A, B])]


def test_commit_of_lost_partitions_is_refused_locally() -> None:
    """W18: the commit is never written as a non-member's."""
    parts, _ = made()
    lease_ends(parts)
    parts.heartbeats.step()
    before = len(parts.cluster.commit_requests)
    with pytest.raises(UnknownMemberIdError):
        parts.committer.commit({A: 1})
    assert len(parts.cluster.commit_requests) == before


def test_commit_keeps_its_number_when_it_is_sent_again() -> None:
    """W18: the coordinator can tell a repeated commit from a later one."""
    parts, _ = made()
    answers = [NetworkError("t-0 is busy"), None]
    commit = parts.cluster._commit_offsets

    def busy_once(request: object) -> CommitOffsetsResponse:
        error = answers.pop(0) if answers else None
        answer = commit(request)  # type: ignore[arg-type]
        return answer if error is None else CommitOffsetsResponse(errors=(ErrorInfo.of(error),))

    parts.cluster._commit_offsets = busy_once  # type: ignore[method-assign,assignment]
    before = len(parts.cluster.commit_requests)
    parts.committer.commit({A: 1})
    parts.committer.commit({A: 2})
    assert [request.sequence for request in parts.cluster.commit_requests[before:]] == [1, 1, 2]
