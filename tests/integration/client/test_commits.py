"""Commits of a consumer through a real broker into ZooKeeper."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_log import Admin, Consumer, Producer, TopicPartition, errors


def produce(topic: str, count: int, partition: int = 0) -> None:
    with Producer() as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, partition=partition)


def poll(consumer: Consumer, count: int) -> None:
    """Polls until exactly that many records have come."""
    while count:
        count -= len(consumer.poll(20, max_records=count))


def test_background_commits_end_in_order_and_the_last_one_wins(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W18: a commit per record costs no write per record; callbacks come in order, before a later commit ends."""
    name, group = new_topic(1), new_group()
    at = TopicPartition(name, 0)
    produce(name, 2001)
    called_back: list[int] = []
    with Consumer(name, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        futures = [consumer.commit_async({at: n}) for n in range(1, 2001)]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: called_back.append(number))  # type: ignore[misc]
        consumer.commit({at: 2001})
        assert called_back == list(range(2000))
        assert all(future.exception(0) is None for future in futures)
        assert admin.list_group_offsets(group)[at].committed == 2001


def test_refused_background_commit_affects_no_other(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W18: each future has the outcome of its own commit."""
    name, other, group = new_topic(1), new_topic(1), new_group()
    at, gone = TopicPartition(name, 0), TopicPartition(other, 0)
    with Consumer(name, other, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        admin.delete_topic(other)
        first, refused, last = (consumer.commit_async(o) for o in ({at: 0}, {gone: 0}, {at: 0}))
        assert first.result(30) is None
        assert last.result(30) is None
        assert isinstance(refused.exception(30), errors.UnknownTopicOrPartitionError | errors.InconsistentTopicIdError)


@pytest.mark.parametrize("offset", [-1, "5", True, 1 << 63, None])
def test_invalid_offset_is_refused_by_name_and_changes_nothing(
    new_topic: Callable[..., str], new_group: Callable[[], str], offset: Any
) -> None:
    """W18, W20: `commit` and `seek` name the partition, the value and what is allowed."""
    name, group = new_topic(2), new_group()
    good, bad = TopicPartition(name, 0), TopicPartition(name, 1)
    said = re.escape(f"{bad}: an offset is an integer of at least 0, not {offset!r}")
    with Consumer(name, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        for refused in (consumer.commit, consumer.commit_async):
            with pytest.raises(errors.InvalidRequestError, match=said):
                refused({good: 1, bad: offset})
        with pytest.raises(errors.InvalidRequestError, match=said):
            consumer.seek(bad, offset)
        assert (consumer.committed(good), consumer.position(bad)) == (0, 0)


def test_partitions_that_are_given_up_are_committed(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W18: a new assignment acknowledges what was read from the partitions that it drops."""
    name, group = new_topic(2), new_group()
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    for partition in (0, 1):
        produce(name, 3, partition)
    with Consumer(group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=3_600_000) as consumer:
        consumer.assign([first])
        poll(consumer, 3)
        consumer.assign([second])
        assert admin.list_group_offsets(group)[first].committed == 3
        poll(consumer, 2)
    assert admin.list_group_offsets(group)[second].committed == 2


@pytest.mark.parametrize("is_recreated", [False, True])
def test_consumer_of_a_deleted_topic_commits_the_others_and_closes(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin, is_recreated: bool
) -> None:
    """W18: an offset of the old topic never becomes an offset of its successor."""
    name, other, group = new_topic(1), new_topic(1), new_group()
    at, gone = TopicPartition(name, 0), TopicPartition(other, 0)
    for topic in (name, other):
        produce(topic, 3)
    with Consumer(group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=3_600_000) as consumer:
        consumer.assign([at, gone])
        poll(consumer, 6)
        admin.delete_topic(other)
        if is_recreated:
            admin.create_topic(other)
    committed = admin.list_group_offsets(group)
    assert committed[at].committed == 3
    assert gone not in committed
