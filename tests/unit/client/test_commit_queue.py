"""Waiting commits are merged into one, newer over older, and their futures are finished in order."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from broker_runtime.contract.errors import (
    ClientStateError,
    ClosedError,
    NetworkError,
    StaleMemberEpochError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from pyspark_log.client.consumer import committer as commit_queue
from pyspark_log.client.consumer.committer import CommitQueue, Offsets, TopicIds

A, B, GONE = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("gone", 0)


class Group:
    """Records what is written, commit by commit."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.topic_ids: list[dict[TopicPartition, bytes]] = []
        self.away = False

    def commit(self, offsets: Offsets, topic_ids: TopicIds) -> None:
        self.commits.append(dict(offsets))
        self.topic_ids.append(dict(topic_ids))
        if self.away:
            raise NetworkError("away")
        if GONE in offsets:
            raise UnknownTopicOrPartitionError("no topic 'gone'")


def completed(futures: list[Future[None]]) -> list[int]:
    """Returns a list that gets the number of each future when it is done."""
    order: list[int] = []
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
    return order


def test_waiting_commits_are_written_as_one_with_the_newest_offsets() -> None:
    """W18: a thousand commits of a loop cost one write; all futures are finished in order."""
    queue, group = CommitQueue(), Group()
    futures = [queue.add({A: n} if n % 2 else {A: n, B: n}) for n in range(1000)]
    order = completed(futures)
    queue.write(group.commit)
    assert group.commits == [{A: 999, B: 998}]
    assert order == list(range(1000))
    assert all(future.exception(0) is None for future in futures)
    queue.write(group.commit)
    assert len(group.commits) == 1


def test_newer_commit_may_have_a_smaller_offset() -> None:
    """W20: the newest commit is the last one requested, not the largest."""
    queue, group = CommitQueue(), Group()
    queue.add({A: 10})
    queue.add({A: 4})
    queue.write(group.commit)
    assert group.commits == [{A: 4}]


def test_commits_of_a_topic_and_of_the_recreated_one_go_out_apart() -> None:
    """W18: an offset is one of the topic whose records were read, and each future has the outcome of its own."""
    queue, group = CommitQueue(), Group()
    futures = [
        queue.add({A: 10, B: 1}, {A: b"old", B: b"b"}),
        queue.add({A: 11}, {A: b"old"}),
        queue.add({A: 2}, {A: b"new"}),
        queue.add({A: 3, B: 4}, {A: b"new", B: b"b"}),
    ]
    order = completed(futures)
    queue.write(group.commit)
    assert group.commits == [{A: 11, B: 1}, {A: 3, B: 4}]
    assert group.topic_ids == [{A: b"old", B: b"b"}, {A: b"new", B: b"b"}]
    assert order == [0, 1, 2, 3]


def test_refused_commit_affects_no_other() -> None:
    """W18: each future has the outcome of its own commit, still in order."""
    queue, group = CommitQueue(), Group()
    futures = [queue.add(offsets) for offsets in ({A: 1}, {GONE: 5}, {A: 2})]
    order = completed(futures)
    queue.write(group.commit)
    assert [type(future.exception(0)) for future in futures] == [type(None), UnknownTopicOrPartitionError, type(None)]
    assert group.commits[1:] == [{A: 1}, {GONE: 5}, {A: 2}]
    assert order == [0, 1, 2]


def test_commits_fail_together_when_nobody_answers() -> None:
    """W18: ten thousand waiting commits do not wait ten thousand timeouts."""
    queue, group = CommitQueue(), Group()
    group.away = True
    futures = [queue.add({A: n}) for n in range(5)]
    queue.write(group.commit)
    assert [type(future.exception(0)) for future in futures] == [NetworkError] * 5
    assert len(group.commits) == 1


def test_queue_of_commits_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits beyond the bound fail, and the rest is written."""
    monkeypatch.setattr(commit_queue, "MAX_WAITING", 3)
    queue, group = CommitQueue(), Group()
    for n in range(3):
        queue.add({A: n})
    with pytest.raises(ClientStateError, match="3 commits wait"):
        queue.add({A: 3})
    queue.write(group.commit)
    assert group.commits == [{A: 2}]
    queue.add({A: 4})


def test_commit_whose_future_was_cancelled_is_left_out() -> None:
    """It breaks nothing else."""
    queue, group = CommitQueue(), Group()
    kept, cancelled = queue.add({A: 1}), queue.add({A: 2, B: 2})
    assert cancelled.cancel()
    queue.write(group.commit)
    assert group.commits == [{A: 1}]
    assert kept.done()


def test_commits_that_nobody_writes_any_more_fail() -> None:
    """No future stays open forever."""
    queue = CommitQueue()
    future, cancelled = queue.add({A: 1}), queue.add({A: 1})
    cancelled.cancel()
    queue.abandon(ClosedError("closed"))
    assert isinstance(future.exception(0), ClosedError)
    assert len(queue) == 0


def test_commits_whose_writing_broke_fail() -> None:
    """No future stays open forever, and the defect is raised where it is seen."""
    queue = CommitQueue()
    futures = [queue.add({A: 1}), queue.add({B: 1})]

    def commit(offsets: Offsets, topic_ids: TopicIds) -> None:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
        queue.write(commit)
    for future in futures:
        assert isinstance(future.exception(0), ZeroDivisionError)


def test_waiting_commit_of_a_partition_that_others_may_have_fails() -> None:
    """Written later, under a new assignment of that partition, it would take back what others have acknowledged."""
    queue, group = CommitQueue(), Group()
    first, second = queue.add({A: 100, B: 5}), queue.add({B: 7})
    queue.refuse({A}, StaleMemberEpochError("given to another member"))
    queue.write(group.commit)
    assert group.commits == [{B: 7}]
    assert second.exception(0) is None
    with pytest.raises(StaleMemberEpochError):
        first.result(0)
