"""Topics and partitions are created, deleted and recreated while a consumer reads and a producer writes."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.fetch_exchange import FetchExchange
from pyspark_log import Admin, Consumer, Producer, TopicPartition, errors, read
from tests.waiting import take

LIMIT_S = 30.0


def produce(topic: str, *values: bytes, partition: int = 0) -> None:
    with Producer() as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_consumer_continues_with_a_recreated_topic(new_topic: Callable[..., str], admin: Admin, reset: str) -> None:
    """W16: a subscription by name continues by itself with the first record of the new topic."""
    name = new_topic(1)
    revoked: list[TopicPartition] = []
    with Consumer(auto_offset_reset=reset) as consumer:
        consumer.subscribe([name], on_revoke=revoked.extend)
        produce(name, b"old", b"older")
        assert [record.value for record in take(consumer, 2)] == [b"old", b"older"]
        admin.delete_topic(name)
        admin.create_topic(name, partitions=2)
        produce(name, b"a", b"b", partition=0)
        produce(name, b"c", partition=1)
        found = {(record.partition, record.offset, record.value) for record in take(consumer, 3)}
        assert found == {(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c")}
        assert revoked == [TopicPartition(name, 0)]
        assert consumer.subscription() == {name}


def test_consumer_fails_while_its_topic_is_gone_and_continues_when_it_is_back(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W16, W17: poll raises while the topic does not exist; the group's new offset is one of the new topic."""
    name, group = new_topic(1), new_group()
    at = TopicPartition(name, 0)
    with Consumer(name, group_id=group, auto_offset_reset="earliest") as consumer:
        produce(name, b"old", b"older")
        assert len(take(consumer, 2)) == 2
        admin.delete_topic(name)
        with pytest.raises((errors.UnknownTopicOrPartitionError, errors.InconsistentTopicIdError)):
            take(consumer, 1)
        admin.create_topic(name)
        produce(name, b"new")
        assert [record.value for record in take(consumer, 1)] == [b"new"]
        consumer.commit()
        assert admin.list_group_offsets(group)[at].committed == 1


def test_consumer_that_may_not_choose_a_position_fails_when_its_topic_was_recreated(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W20: with ``auto_offset_reset="none"`` the consumer raises instead of choosing a position."""
    name, group = new_topic(1), new_group()
    admin.alter_group_offsets(group, {TopicPartition(name, 0): 0})
    with Consumer(name, group_id=group, auto_offset_reset="none") as consumer:
        produce(name, b"old")
        assert len(take(consumer, 1)) == 1
        admin.delete_topic(name)
        admin.create_topic(name)
        produce(name, b"new")
        with pytest.raises((errors.UnknownTopicOrPartitionError, errors.InconsistentTopicIdError)):
            take(consumer, 1)


def test_new_partition_is_read_from_its_logs_start(new_topic: Callable[..., str], admin: Admin) -> None:
    """W16: this holds even if the first record's offset is not 0 any more and lost positions reset to ``latest``."""
    name = new_topic(1)
    at = TopicPartition(name, 1)
    with Consumer(name, auto_offset_reset="latest") as consumer:
        admin.create_partitions(name, 2)
        produce(name, *(b"%d" % n for n in range(10)), partition=1)
        admin.delete_records({at: 6})
        assert [record.offset for record in take(consumer, 4)] == [6, 7, 8, 9]


def test_send_batch_takes_a_column_that_was_just_added(new_topic: Callable[..., str], admin: Admin) -> None:
    """W8: the topic's current columns count."""
    name = new_topic(2, schema="a int64")
    with Producer() as producer:
        producer.send_batch(name, pa.table({"a": [1, 2]})).result(LIMIT_S)
        admin.add_columns(name, pa.schema([("b", pa.string())]))
        producer.send_batch(name, pa.table({"a": [3], "b": ["x"]})).result(LIMIT_S)
        with pytest.raises(errors.SchemaMismatchError, match="'c'"):
            producer.send_batch(name, pa.table({"a": [4], "c": [1]}))
    rows = read(name).read_all().to_pylist()
    assert sorted(rows, key=lambda row: row["a"]) == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]


def test_consumer_whose_fetching_broke_raises_and_continues(
    new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W16: a defect in a thread is raised by the next poll; nothing is skipped or returned twice."""
    name = new_topic(1)
    produce(name, b"a")
    with Consumer(name, auto_offset_reset="earliest") as consumer:
        assert [record.value for record in take(consumer, 1)] == [b"a"]
        fetch, broken = FetchExchange.fetch, [True]

        def fetch_broken_once(session: FetchExchange, request: Any) -> Any:
            if broken:
                broken.pop()
                raise ZeroDivisionError("a defect")
            return fetch(session, request)

        monkeypatch.setattr(FetchExchange, "fetch", fetch_broken_once)
        with pytest.raises(ZeroDivisionError, match="a defect"):
            take(consumer, 1)
        produce(name, b"b", b"c")
        assert [(record.offset, record.value) for record in take(consumer, 2)] == [(1, b"b"), (2, b"c")]
