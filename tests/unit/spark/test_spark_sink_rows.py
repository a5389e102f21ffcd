"""A DataFrame's rows as records: their topics and partitions, their order, and their columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.frame import HEADERS_TYPE
from pyspark_log.client.producer.record_batches import joined
from pyspark_log.spark import sink
from pyspark_log.spark.options import parse_sink_options
from pyspark_log.spark.sink import PylogBatchWriter, SinkPlan, _records
from pyspark_log.spark.sink_columns import RecordColumns

ROWS = pa.table(
    {
        "value": ["a", "b", "c", "d"],
        "topic": ["x", "y", "x", "y"],
        "partition": pa.array([1, None, None, 0], pa.int32()),
        "extra": [1, 2, 3, 4],
    }
)


def routed(columns: RecordColumns, topic: str | None, rows: pa.Table = ROWS) -> list[tuple]:
    plan = SinkPlan(options=parse_sink_options({} if topic is None else {"topic": topic}), columns=columns)
    return [(name, partition, part.to_pydict()) for name, partition, part in _records(plan, rows)]


def test_rows_go_to_the_options_topic_unchanged() -> None:
    """S4: strings become bytes, other columns are left out, and nothing is split."""
    columns = RecordColumns(value=0, key=None, headers=None, partition=None, topic=None)
    assert routed(columns, "t") == [("t", None, {"value": [b"a", b"b", b"c", b"d"]})]


def test_rows_go_to_their_topic_and_partition_in_order() -> None:
    """S4: the topic column counts, and the partition column where it is not null."""
    columns = RecordColumns(value=0, key=0, headers=None, partition=2, topic=1)
    assert routed(columns, None) == [
        ("x", 1, {"value": [b"a"], "key": [b"a"]}),
        ("x", None, {"value": [b"c"], "key": [b"c"]}),
        ("y", None, {"value": [b"b"], "key": [b"b"]}),
        ("y", 0, {"value": [b"d"], "key": [b"d"]}),
    ]


def test_row_with_an_empty_list_of_headers_has_none() -> None:
    """S4: a record of Kafka's has headers or none, and its source shows none as null, never as an empty list."""
    headers = pa.array([[], None, [{"key": "a", "value": None}], []], HEADERS_TYPE)
    columns = RecordColumns(value=0, key=None, headers=1, partition=None, topic=None)
    rows = pa.table({"value": ["a", "b", "c", "d"], "headers": headers})
    for table in (rows, pa.concat_tables([rows.slice(0, 2), rows.slice(2)]), rows.slice(1)):
        [(_, _, record)] = routed(columns, "t", table)
        assert record["headers"] == [each or None for each in table.column("headers").to_pylist()]


def test_rows_without_a_topic_are_refused() -> None:
    """KAFKA_NULL_TOPIC_IN_DATA."""
    columns = RecordColumns(value=0, key=None, headers=None, partition=None, topic=1)
    with pytest.raises(SchemaMismatchError, match="null topic present in the data"):
        routed(columns, None, pa.table({"value": ["a"], "topic": pa.array([None], pa.string())}))


def test_small_batches_are_joined_and_empty_ones_left_out() -> None:
    """Spark's batches become frames of a good size, with every row once."""
    batch = pa.record_batch({"value": [b"x" * 100] * 10_000})
    tables = list(joined([batch.slice(0, 0), *[batch] * 7], 4 << 20))
    assert [table.num_rows for table in tables] == [50_000, 20_000]


@pytest.mark.parametrize("limit", ["15m", "7d"])
def test_id_of_a_batch_write_is_remembered_while_its_tasks_are_at_work(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A task may begin when another has been done for almost the time limit, and be at work for as long."""
    options = parse_sink_options({"topic": "t", "pylog.transaction.timeout.ms": limit})
    plan = SinkPlan(options=options, columns=RecordColumns(value=0, key=None, headers=None, partition=None, topic=None))
    monkeypatch.setattr(sink, "plan_sink", lambda *_: plan)
    scope = PylogBatchWriter(options, StructType(), overwrite=False)._scope
    assert scope.keep_ms > 2 * scope.timeout_ms
