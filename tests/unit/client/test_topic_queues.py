"""The queue of the next record without a key, and which partition gets which rows."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import InvalidPartitionsError, SchemaMismatchError
from broker_runtime.contract.requests import PartitionInfo, SchemaVersion, TopicInfo
from broker_runtime.contract.schema import parse_schema, schema_to_bytes
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.producer.partitioner import partition_for_key
from pyspark_log.client.producer.topic_queues import TopicQueues, key_column


def topic(partitions: int, schema: str | None = None, key: str | None = None) -> Topic:
    infos = tuple(
        PartitionInfo(partition=p, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)) for p in range(partitions)
    )
    schemas = () if schema is None else (SchemaVersion(schema_id=0, arrow=schema_to_bytes(parse_schema(schema))),)
    return Topic.from_info(TopicInfo(name="t", topic_id=bytes(16), partitions=infos, schemas=schemas, key=key))


def rows_by_partition(queues: TopicQueues, batch: pa.RecordBatch, partition: int | None = None) -> dict[int, list[int]]:
    shared: dict[int, list[int]] = {}
    for queue, rows in queues.shares(batch, key_column(batch, queues.topic.schema), partition):
        numbers = range(batch.num_rows)[rows] if isinstance(rows, slice) else rows.tolist()
        shared.setdefault(queue.partition, []).extend(numbers)
    return shared


@given(st.integers(1, 7), st.lists(st.integers(0, 40), max_size=6))
@settings(deadline=None)
def test_topic_queues_spread_rows_without_key_evenly_over_batches(partitions: int, sizes: list[int]) -> None:
    """W7: after any batches and records no partition has more than one record more than another."""
    queues = TopicQueues(topic(partitions), "round_robin", 1000)
    given_to: Counter[int] = Counter(dict.fromkeys(range(partitions), 0))
    for size in sizes:
        batch = pa.record_batch({"value": [b"x"] * size})
        shared = rows_by_partition(queues, batch)
        assert sorted(row for rows in shared.values() for row in rows) == list(range(size))
        for partition, rows in shared.items():
            assert rows == list(range(rows[0], rows[-1] + 1))
            given_to[partition] += len(rows)
        given_to[next(queues.unkeyed).partition] += 1
    assert max(given_to.values()) - min(given_to.values()) <= 1


def test_topic_queues_put_rows_with_a_key_into_its_partition_in_order() -> None:
    """W8: a batch's rows go where single records would; rows without a key are spread round robin."""
    queues = TopicQueues(topic(3), "round_robin", 1000)
    keys = ["a", "b", None, "a", "c", None, None, "b"]
    shared = rows_by_partition(queues, pa.record_batch({"key": pa.array(keys, pa.string()), "value": [b""] * 8}))
    for partition, rows in shared.items():
        assert rows == sorted(rows)
        for row in rows:
            key = keys[row]
            if key is not None:
                assert partition == partition_for_key(key.encode(), 3)
                queue = queues.partition_of(key.encode(), None)
                assert queue is not None
                assert queue.partition == partition
    nulls = [p for p, rows in shared.items() for row in rows if keys[row] is None]
    assert sorted(nulls) == [0, 1, 2]


def test_topic_queues_ask_a_callable_for_every_record_and_check_its_result() -> None:
    """W8: a user's partitioner chooses partitions, and its invalid results are refused."""
    queues = TopicQueues(topic(3), lambda name, key, count: {b"x": 2, None: 0}.get(key, 9), 1000)
    batch = pa.record_batch({"key": pa.array([b"x", None, b"x"]), "value": [b"1", b"2", b"3"]})
    assert rows_by_partition(queues, batch) == {0: [1], 2: [0, 2]}
    with pytest.raises(InvalidPartitionsError, match="9"):
        queues.partition_of(b"other", None)


def test_topic_queues_grow_with_their_topic() -> None:
    """W27: added partitions get records without a key, and keys move as in Kafka."""
    queues = TopicQueues(topic(2), "round_robin", 1000)
    assert len(queues.grow(topic(5))) == 3
    assert {next(queues.unkeyed).partition for _ in range(5)} == {0, 1, 2, 3, 4}
    assert np.all([queues.partition_of(b"k%d" % n, None) is not None for n in range(10)])


@pytest.mark.parametrize(
    ("kind", "key"), [("int32", 7), ("bigint", 7), ("string", "é"), ("binary", b"\x00"), ("int32", -1)]
)
def test_typed_rows_and_columns_have_the_same_partitions(kind: str, key: object) -> None:
    """W8: a record sent alone goes to the partition that it would have in a batch."""
    queues = TopicQueues(topic(11, f"k {kind}, v int32", "k"), "round_robin", 1000)
    assert queues.rows is not None
    alone = queues.partition_of(queues.rows.key_bytes(queues.rows.row({"k": key})), None)
    assert alone is not None
    batch = pa.RecordBatch.from_pylist([{"k": key, "v": 1}], schema=queues.topic.schema.arrow)
    assert list(rows_by_partition(queues, batch)) == [alone.partition]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"a": True}, "'a'"), ({"a": 1.5}, "'a'"), ({"a": 128}, "'a'"), ({"b": b"x"}, "'b'"), ({"c": "1.234"}, "'c'"),
        ({"d": ["x"]}, "'d.element'"), ({"e": 1, "a": 1}, "'e'"), ({}, "'must'"), ("row", "mapping"),
    ],
)  # fmt: skip
def test_typed_rows_are_refused_by_name(row: object, named: str) -> None:
    """W8: the error names the wrong field."""
    queues = TopicQueues(
        topic(1, "a tinyint, b string, c decimal(5,2), d array<int>, must int not null"), "round_robin", 1000
    )
    assert queues.rows is not None
    full = {"must": 1, **row} if isinstance(row, dict) and row else row
    with pytest.raises(SchemaMismatchError, match=named):
        queues.rows.row(full)
