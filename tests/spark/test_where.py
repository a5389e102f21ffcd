"""The option ``where``: the rows that Spark's own filter would keep, in batch reads and in streams."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from pyspark_log import Producer
from tests.spark.queries import batch_of, run_to_end, stream_of

SCHEMA = (
    "id long, i int, l long, f float, d double, s string, b boolean, dec decimal(9,2), day date, "
    "ts timestamp, ntz timestamp_ntz, bin binary"
)
NAN, INF = float("nan"), float("inf")
CHOICES = {
    "i": [None, -2, 0, 1, 2, 2**31 - 1],
    "l": [None, -(2**63), 0, 2**53, 2**53 + 1, 2**63 - 1],
    "f": [None, -INF, -0.0, 0.1, 0.5, 3.0, INF, NAN],
    "d": [None, -INF, 0.0, 0.1, 3.0, INF, NAN],
    "s": [None, "", "a", "ab", "é", "\U0001f600", "z%"],
    "b": [None, True, False],
    "dec": [None, Decimal("-1.00"), Decimal("0.01"), Decimal("1.13"), Decimal("2.50")],
    "day": [None, dt.date(1970, 1, 1), dt.date(2026, 1, 31)],
    "ts": [None, dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), dt.datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=dt.UTC)],
    "ntz": [None, dt.datetime(2026, 1, 31, 12), dt.datetime(1969, 12, 31, 23, 59, 59)],
    "bin": [None, b"", b"\x00\xff", b"ab"],
}
LITERALS = {
    "i": ["0", "1.5", "2147483648", "-2", "1e0", "NULL"],
    "l": ["0", "9007199254740992D", "9223372036854775807", "0.5", "-1e30"],
    "f": ["0", "0.5", "-1e300", "3.0D", "0.1", "0.1F"],
    "d": ["0", "0.1", "1e300", "3", "0.1F"],
    "s": ["''", "'a'", "'é'", "'b'"],
    "dec": ["2.5", "0.005", "-1", "1e0", "1.13D", "99999999999"],
    "day": ["DATE '2026-01-31'", "DATE '1969-12-31'"],
    "ts": ["TIMESTAMP '2026-01-31 12:00:00Z'", "TIMESTAMP '2026-01-31 13:00:00.000001+01:00'"],
    "ntz": ["TIMESTAMP_NTZ '2026-01-31 12:00:00'"],
    "bin": ["X'00ff'", "X''", "X'61'"],
}


def generated_predicate(rng: random.Random, depth: int = 2) -> str:
    kind = rng.choice(["test", "test", "not", "and", "or"]) if depth else "test"
    if kind == "not":
        return f"NOT ({generated_predicate(rng, depth - 1)})"
    if kind in ("and", "or"):
        return f"({generated_predicate(rng, depth - 1)}) {kind} ({generated_predicate(rng, depth - 1)})"
    column = rng.choice(list(CHOICES))
    form = rng.randrange(8)
    if form == 0 or column == "b":
        return rng.choice(
            [f"{column} IS NULL", f"{column} IS NOT NULL", *(["b", "b = false"] if column == "b" else [])]
        )
    value, other = rng.choice(LITERALS[column]), rng.choice(LITERALS[column])
    if form == 1:
        return f"{column} {rng.choice(['', 'NOT '])}IN ({value}, {other})"
    if form == 2:
        return f"{column} {rng.choice(['', 'NOT '])}BETWEEN {value} AND {other}"
    if form == 3 and column == "s":
        return rng.choice(["s LIKE 'a%'", r"s NOT LIKE 'z\\%%'", "s LIKE '%'"])
    if form == 4:
        return f"{value} {rng.choice(['<', '>=', '=', '<=>'])} {column}"
    return f"{column} {rng.choice(['<', '<=', '=', '<>', '>=', '>', '<=>'])} {value}"


@pytest.fixture
def typed(new_topic, send) -> str:
    """A topic with 200 rows of all types, in two partitions."""
    rng = random.Random(7)
    topic = new_topic(schema=SCHEMA, partitions=2)
    for partition in (0, 1):
        rows = [{name: rng.choice(values) for name, values in CHOICES.items()} for _ in range(100)]
        columns = {name: [row[name] for row in rows] for name in CHOICES}
        types = {"i": pa.int32(), "l": pa.int64(), "f": pa.float32(), "d": pa.float64(), "s": pa.string(),
                 "b": pa.bool_(), "dec": pa.decimal128(9, 2), "day": pa.date32(), "ts": pa.timestamp("us", "UTC"),
                 "ntz": pa.timestamp("us"), "bin": pa.binary()}  # fmt: skip
        table = {"id": pa.array(range(partition * 100, partition * 100 + 100), pa.int64())}
        table |= {name: pa.array(values, types[name]) for name, values in columns.items()}
        send(topic, pa.table(table), partition=partition)
    return topic


def test_generated_predicates_keep_the_rows_that_sparks_filter_keeps(spark, typed, options) -> None:
    """S8: each predicate as the option, and as Spark judges it in a projection (NULL is no), over rows of all types."""
    rng = random.Random(20261127)
    given = {**options, "subscribe": typed}
    texts = [generated_predicate(rng) for _ in range(60)]
    judged = [F.expr(text).alias(str(number)) for number, text in enumerate(texts)]
    rows = batch_of(spark, given).select("id", *judged).collect()  # by Spark, all in one query
    for number, text in enumerate(texts):
        own = sorted(row.id for row in batch_of(spark, {**given, "where": text, "columns": "id"}).collect())
        assert own == sorted(row.id for row in rows if row[str(number)]), text


def test_where_over_metadata_and_streams(spark, new_topic, options, send, checkpoint) -> None:
    """S8: partitions and offsets; offsets count what was passed over."""
    topic = new_topic(partitions=3)
    for partition in range(3):
        send(topic, [f"{partition}-{number}" for number in range(10)], partition=partition)
    given = {**options, "subscribe": topic, "startingOffsets": "earliest",
             "where": "_metadata.partition IN (0, 2) AND _metadata.offset >= 8 AND value > '0-8'"}  # fmt: skip
    frame = batch_of(spark, given)
    assert sorted(row.value.decode() for row in frame.collect()) == ["0-9", "2-8", "2-9"]
    assert frame.rdd.getNumPartitions() <= 2
    collected = run_to_end(stream_of(spark, {**given, "columns": "offset,value"}), checkpoint)
    assert sorted(collected.values) == ["0-9", "2-8", "2-9"]
    send(topic, ["2-new"], partition=2)
    assert run_to_end(stream_of(spark, {**given, "columns": "offset,value"}), checkpoint).values == ["2-new"]


def test_batch_read_begins_with_the_first_record_that_is_late_enough(spark, new_topic, options) -> None:
    """S8: by the time index; what comes later than the plan counts, as without `where`."""
    topic = new_topic(partitions=2)
    with Producer(options["pylog.bootstrap.servers"]) as producer:
        for number in range(40):
            producer.send(topic, str(number).encode(), partition=0, timestamp=1_000_000 + number * 1000)
        producer.flush()
        where = "_metadata.timestamp >= TIMESTAMP '1970-01-01 00:17:10Z' AND timestamp < '1970-01-01 00:17:15Z'"
        frame = batch_of(spark, {**options, "subscribe": topic, "where": where})
        assert sorted(int(row.value) for row in frame.collect()) == [30, 31, 32, 33, 34]
        producer.send(topic, b"99", partition=1, timestamp=1_034_500).result(10)
        producer.send(topic, b"98", partition=1, timestamp=1_000_500).result(10)
        assert sorted(int(row.value) for row in frame.collect()) == [30, 31, 32, 33, 34, 99]


def test_where_that_does_not_fit_is_refused_at_load(spark, typed, options) -> None:
    """Bad input gets one error that names the value and what is allowed."""
    for text, says in {"idd = 1": "no column 'idd'", "i = 'x'": "numbers have no quotes", "i >": "the end"}.items():
        with pytest.raises(PySparkException, match=says):
            batch_of(spark, {**options, "subscribe": typed, "where": text})
