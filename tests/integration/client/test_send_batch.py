"""`Producer.send_batch` writes columns of any Arrow library to the log."""

from collections.abc import Callable

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pyspark_log import Producer, errors, read
from pyspark_log.client.producer.partitioner import partitions_for_keys

DELAYS = pa.table({"carrier": ["UA", "AA", "DL"] * 100, "delay": list(range(300))})


# Made when the test runs: DuckDB's objects must not outlive the session.
KINDS: dict[str, Callable[[], object]] = {
    "table": lambda: DELAYS,
    "batch": lambda: DELAYS.combine_chunks().to_batches()[0],
    "reader": lambda: DELAYS.to_reader(max_chunksize=7),
    "pandas": DELAYS.to_pandas,
    "pandas with an index": lambda: DELAYS.to_pandas().set_index(np.arange(5, 305) * 2),
    "polars": lambda: pl.from_arrow(DELAYS),
    "duckdb": lambda: duckdb.from_arrow(DELAYS).select("carrier, delay::bigint as delay"),
    "dictionary": lambda: DELAYS.set_column(0, "carrier", DELAYS["carrier"].dictionary_encode()),
    "large": lambda: DELAYS.cast(pa.schema({"carrier": pa.large_string(), "delay": pa.float64()})),
}


@pytest.mark.parametrize("kind", KINDS)
def test_send_batch_takes_any_arrow_object(new_topic: Callable[..., str], kind: str) -> None:
    """W8: rows of any library arrive as the topic's columns, in order, in the partitions of their keys."""
    name = new_topic(3, schema="carrier string, delay int32", key="carrier")
    with Producer() as producer:
        parts = producer.send_batch(name, KINDS[kind]()).result(20)
    assert sum(part.record_count for part in parts) == 300
    expected = partitions_for_keys(DELAYS["carrier"], 3)
    for partition in range(3):
        found = read(name, partitions=[partition]).read_all()
        assert found.to_pylist() == DELAYS.take(pa.array(np.flatnonzero(expected == partition))).to_pylist()


def test_send_batch_spreads_rows_without_key_evenly(new_topic: Callable[..., str]) -> None:
    """W7: slices are contiguous and differ by at most one row, and the next batch continues where the last ended."""
    name = new_topic(3)
    with Producer() as producer:
        first = producer.send_batch(name, pa.table({"value": [str(n) for n in range(10)]})).result(20)
        assert sorted(part.record_count for part in first) == [3, 3, 4]
        second = producer.send_batch(name, pa.table({"value": [b"a", b"b"]})).result(20)
        assert [part.record_count for part in second] == [1, 1]
    counts = [read(name, partitions=[p]).read_all().num_rows for p in range(3)]
    assert counts == [4, 4, 4]
    assert read(name, partitions=[0]).read_all()["value"].to_pylist()[:4] == [b"0", b"1", b"2", b"3"]


def test_send_batch_honours_partition_and_kafkas_columns(new_topic: Callable[..., str]) -> None:
    """W8: an explicit partition is used; a topic without a schema takes key, headers and timestamp columns."""
    name = new_topic(2)
    table = pa.table(
        {
            "value": [b"a", None],
            "key": ["k", None],
            "timestamp": pa.array([1_600_000_000_000, None], pa.timestamp("ms", tz="UTC")),
            "headers": [[{"key": "h", "value": b"1"}], None],
        }
    )
    with Producer() as producer:
        producer.send_batch(name, table, partition=1).result(20)
        with pytest.raises(errors.InvalidPartitionsError):
            producer.send_batch(name, table, partition=2)
    columns = ["key", "value", "partition", "timestamp", "headers"]
    rows = read(name, columns=columns).read_all().to_pylist()
    assert [(r["key"], r["value"], r["partition"]) for r in rows] == [(b"k", b"a", 1), (None, None, 1)]
    assert rows[0]["timestamp"].timestamp() == 1_600_000_000
    assert [(h["key"], h["value"]) for h in rows[0]["headers"]] == [("h", b"1")]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (pa.table({"carrier": ["UA"], "dely": [1]}), "delay"),
        (pa.table({"carrier": ["UA"], "delay": ["x"]}), "delay"),
        (pa.table({"carrier": ["UA"], "delay": [1 << 40]}), "delay"),
        (pa.table({"delay": [1]}), "carrier"),
        ([{"carrier": "UA"}], "list"),
    ],
)
def test_send_batch_refuses_a_wrong_column_by_name(new_topic: Callable[..., str], data: object, named: str) -> None:
    """W8: the error names the column that does not fit, and no row is sent."""
    name = new_topic(1, schema="carrier string not null, delay int32")
    with Producer() as producer, pytest.raises(errors.SchemaMismatchError, match=named):
        producer.send_batch(name, data)
    assert read(name).read_all().num_rows == 0


def test_send_batch_splits_large_batches_and_keeps_order(new_topic: Callable[..., str]) -> None:
    """W2: 40 MB pass through a 4 MB buffer in frames, in order, after what was sent before."""
    name = new_topic(1)
    values = [b"%08d" % n + b"x" * 92 for n in range(400_000)]
    with Producer(buffer_memory="4MiB", linger_ms=60_000) as producer:
        producer.send(name, b"first")
        parts = producer.send_batch(name, pa.table({"value": values})).result(60)
        assert len(parts) > 10
        assert producer.send(name, b"last").result(10).offset == 400_001
    found = read(name, columns=["value"]).read_all()["value"].to_pylist()
    assert found == [b"first", *values, b"last"]


def test_send_batch_takes_an_empty_one(new_topic: Callable[..., str]) -> None:
    """W2: an empty batch is done at once."""
    name = new_topic(1)
    with Producer() as producer:
        assert producer.send_batch(name, pd.DataFrame({"value": pd.Series([], dtype=object)})).result(1) == []
