"""Columns that fit only what the topic has become since the last refresh."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import InvalidTimestampError, SchemaMismatchError
from broker_runtime.contract.frame import parse_header
from broker_runtime.contract.requests import PartitionInfo, SchemaVersion, TopicInfo
from broker_runtime.contract.schema import parse_schema, schema_to_bytes
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.producer.record_batches import batch_frames
from pyspark_log.client.producer.topic_queues import TopicQueues

ROWS = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}, schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))


def queues(*schemas: str) -> TopicQueues:
    """The queues of a topic with these versions of its schema."""
    infos = tuple(PartitionInfo(partition=p, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)) for p in range(2))
    versions = tuple(SchemaVersion(schema_id=i, arrow=schema_to_bytes(parse_schema(s))) for i, s in enumerate(schemas))
    topic = Topic.from_info(TopicInfo(name="t", topic_id=bytes(16), partitions=infos, schemas=versions))
    return TopicQueues(topic, "round_robin", 1 << 20)


def untyped_queues() -> TopicQueues:
    """The queues of a topic without a schema."""
    infos = (PartitionInfo(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)),)
    return TopicQueues(
        Topic.from_info(TopicInfo(name="t", topic_id=bytes(16), partitions=infos)), "round_robin", 1 << 20
    )


def sent(known: TopicQueues, now: TopicQueues, data: object) -> tuple[int, set[int], int]:
    """The rows of all frames, the frames' schema ids, and how often the topic was described again."""
    asked = 0

    def refreshed() -> TopicQueues:
        nonlocal asked
        asked += 1
        return now

    headers = [
        parse_header(frame)
        for _, _, frame in batch_frames(known, data, None, "none", threading.Lock(), refreshed=refreshed)
    ]
    return sum(header.record_count for header in headers), {header.schema_id for header in headers}, asked


@pytest.mark.parametrize("make", [lambda: ROWS, lambda: ROWS.to_reader(max_chunksize=1)], ids=["table", "reader"])
def test_send_batch_accepts_a_column_that_was_added_meanwhile(make: Callable[[], object]) -> None:
    """W8: `send` does the same; a stream that can be read only once is not read again."""
    assert sent(queues("a bigint"), queues("a bigint", "a bigint, b string"), make()) == (3, {1}, 1)


def test_send_batch_refreshes_once_and_then_refuses() -> None:
    """W8: the refusal goes by the newest schema's columns."""
    with pytest.raises(SchemaMismatchError, match=r"no column 'b'.*choose from a, c"):
        sent(queues("a bigint"), queues("a bigint", "a bigint, c string"), ROWS)


def test_send_batch_that_fits_makes_no_request() -> None:
    """W8: the usual case costs no request."""
    assert sent(queues("a bigint, b string"), queues("a bigint"), ROWS) == (3, {0}, 0)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": [b"x"], "zz": [1]}, "column 'zz': a topic without a schema takes key, value, headers, timestamp$"),
        ({"value": [b"x"], "kye": [1]}, "did you mean 'key'"),
        ({"value": [b"x"], "headers": [[{"key": "k", "value": b"v", "zz": 1}]]}, "'headers.element.zz'"),
    ],
)
def test_send_batch_without_a_schema_refuses_what_it_cannot_keep(columns: dict[str, list[object]], said: str) -> None:
    """SPEC 3: unknown columns, and unknown fields of headers, are refused by name; no hint repeats the input."""
    untyped = queues()
    with pytest.raises(SchemaMismatchError, match=said):
        sent(untyped, untyped, pa.table(columns))


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("name", "column", "error"),
    [
        ("headers", pa.array([[{"key": None, "value": b"x"}]], HEADERS), SchemaMismatchError),
        ("headers", pa.array([[{"key": "k", "value": b"x"}, None]], HEADERS), SchemaMismatchError),
        ("timestamp", pa.array([2**62], pa.timestamp("s", "UTC")), InvalidTimestampError),
        ("timestamp", pa.array([2**63], pa.uint64()), InvalidTimestampError),
    ],
)
def test_send_batch_refuses_headers_without_a_name_and_times_out_of_range(
    name: str, column: pa.Array, error: type[Exception]
) -> None:
    """W8: a time that is too large must not become another one."""
    with pytest.raises(error, match=name):
        sent(untyped_queues(), untyped_queues(), pa.table({"value": ["a"], name: column}))


def test_send_batch_accepts_rows_without_headers() -> None:
    """W8: null and an empty list are no headers; only a sliced column's own rows count."""
    column = pa.array([[None], None, [], [{"key": "k", "value": None}]], HEADERS).slice(1)
    assert sent(untyped_queues(), untyped_queues(), pa.table({"value": ["a", "b", "c"], "headers": column})) == (
        3,
        {0},
        0,
    )


@pytest.mark.parametrize("name", ["value", "timestamp"])
def test_send_batch_refuses_a_duplicate_column(name: str) -> None:
    """W8: only one of them could be stored."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], ["value", name, "timestamp"])
    with pytest.raises(SchemaMismatchError, match=rf"{name!r} is there twice"):
        sent(untyped_queues(), untyped_queues(), table)
