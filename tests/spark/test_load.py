"""`pyspark_log.load`: a Column as predicate, of which the brokers are told what they understand."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from pyspark_log import QueryMetrics, load
from pyspark_log.errors import OptionError
from pyspark_log.spark.load import _Rendered
from tests.spark.queries import run_to_end
from tests.waiting import wait_until

SCHEMA = "id long, i int, d double, s string, dec decimal(9,2), day date, ts timestamp, ntz timestamp_ntz, b boolean"


@pytest.fixture
def typed(new_topic, send) -> str:
    topic = new_topic(schema=SCHEMA)
    noon = dt.time(12)
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=number) for number in range(50)]
    send(topic, pa.table({
        "id": pa.array(range(50), pa.int64()),
        "i": pa.array([None if number % 7 == 0 else number for number in range(50)], pa.int32()),
        "d": pa.array([float("nan") if number % 11 == 0 else number / 4 for number in range(50)]),
        "s": pa.array([None if number % 5 == 0 else f"it's {number}%" for number in range(50)]),
        "dec": pa.array([Decimal(number) / 4 for number in range(50)], pa.decimal128(9, 2)),
        "day": pa.array(days),
        "ts": pa.array([dt.datetime.combine(day, noon, dt.UTC) for day in days], pa.timestamp("us", "UTC")),
        "ntz": pa.array([dt.datetime.combine(day, noon) for day in days], pa.timestamp("us")),
        "b": pa.array([number % 2 == 0 for number in range(50)]),
    }))  # fmt: skip
    return topic


def columns_of_the_grammar():
    col = F.col
    return {
        "compare": (col("i") > 5) & ~(col("d") <= 3.5) | (col("id") == 3),
        "null": col("i").isNull() | col("s").isNotNull() & (col("b") == True),  # noqa: E712
        "in": col("i").isin(3, 4, 49, None) & col("s").isin("it's 3%", "x"),
        "between": col("dec").between(Decimal("2.25"), Decimal("5.5")),
        "strings": col("s").startswith("it's 1") | (col("s") >= "it's 4") & (col("s") != "it's 41%"),
        "like": col("s").like(r"it's 4%"),
        "times": (col("day") >= dt.date(2026, 1, 9)) & (col("ts") < dt.datetime(2026, 1, 20, 7, 30)),
        "safe": col("i").eqNullSafe(None) | col("i").eqNullSafe(8),
        "sql": F.expr("i between 10 and 20 or day = DATE '2026-02-01'"),
        "literal": F.lit(True) & (col("i") < 3),
        "metadata": (col("_metadata.offset") >= 45) & (col("_metadata.partition") == 0),
    }  # fmt: skip


NAMES = ("compare", "null", "in", "between", "strings", "like", "times", "safe", "sql", "literal", "metadata")


@pytest.mark.parametrize("name", NAMES)  # a Column needs a session
def test_columns_of_the_grammar_reach_the_brokers_and_keep_sparks_rows(spark, typed, options, name) -> None:
    """S8: faster, never wrong."""
    column = columns_of_the_grammar()[name]
    everything = load(spark, typed, options={**options, "includeMetadata": "true"})
    expected = sorted(row.id for row in everything.where(column).collect())
    assert expected
    assert len(expected) < 50
    text = _Rendered.of(column).text
    assert text is not None
    own = load(spark, typed, where=text, options=options)
    assert sorted(row.id for row in own.collect()) == expected, text
    frame = load(spark, typed, where=column, options=options)
    assert frame.columns == own.columns
    assert sorted(row.id for row in frame.collect()) == expected
    ids = load(spark, typed, where=column, columns=["id"], options=options)
    assert sorted(row.id for row in ids.collect()) == expected


@pytest.mark.parametrize("name", ["function", "two columns", "conversion", "cast"])
def test_what_brokers_do_not_understand_spark_does(spark, typed, options, name) -> None:
    """S8: the whole Column counts."""
    column = {
        "function": F.length("s") > 6,
        "two columns": (F.col("i") > F.col("d") * 3) & (F.col("id") < 20),
        "conversion": F.col("i") == "8",
        "cast": F.col("day") < F.lit("2026-01-09").cast("date"),
    }[name]
    expected = sorted(row.id for row in load(spark, typed, options=options).where(column).collect())
    assert expected
    frame = load(spark, typed, where=column, columns=["s", "id"], options=options)
    assert frame.columns == ["s", "id"]
    assert sorted(row.id for row in frame.collect()) == expected


def test_names_in_any_case_and_other_settings_of_spark_keep_its_rows(spark, typed, options) -> None:
    """S8: never wrong, if not faster."""
    frame = load(spark, typed, where=F.col("I") > 40, columns=["id"], options=options)
    assert sorted(row.id for row in frame.collect()) == [41, 43, 44, 45, 46, 47, 48]
    mixed = F.col("id").isin(2**53 + 1, 3.0) | F.col("dec").isin(Decimal("1.25"), 2.5)
    old = F.col("ts") > dt.datetime(1500, 1, 10, tzinfo=dt.UTC)
    plain = load(spark, typed, options=options)
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            for column in (mixed, old, F.col("d") == F.lit(3)):
                expected = sorted(row.id for row in plain.where(column).collect())
                assert expected
                assert sorted(row.id for row in load(spark, typed, where=column, options=options).collect()) == expected
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")


def test_streams_and_several_topics_are_loaded_likewise(spark, new_topic, send, options, checkpoint) -> None:
    """S8, S2: untyped topics have Kafka's columns."""
    one, other = new_topic(), new_topic()
    send(one, ["a", "b", "c"])
    send(other, ["d"])
    assert load(spark, one, other, options=options).count() == 4
    frame = load(
        spark, one, where=F.col("offset") > 0, columns=["value", "offset"], streaming=True,
        options={**options, "startingOffsets": "earliest"},
    )  # fmt: skip
    assert run_to_end(frame, checkpoint).values == ["b", "c"]


def test_what_is_given_twice_is_refused(spark, typed, options) -> None:
    """One of both would be lost."""
    for twice in ({"WHERE": "id = 1"}, {"columns": "id"}, {"subscribe": "t"}):
        with pytest.raises(OptionError, match="is given twice"):
            load(spark, typed, where=F.col("id") > 1, columns=["id"], options={**options, **twice})


def test_error_is_our_line_behind_sparks_own_words(spark, typed, options) -> None:
    """S1: without the traceback of Spark's Python process."""
    for wrong in ({"where": "idd = 1"}, {"maxOffsetPerTrigger": "5"}):
        with pytest.raises(PySparkException) as raised:
            load(spark, typed, options={**options, **wrong})
        shown = str(raised.value)
        assert "pyspark_log.errors." in shown[:120], shown
        assert "Traceback" not in shown
    with pytest.raises(PySparkException) as raised:
        load(spark, typed, where="i = 'x'", options=options)
    assert "numbers have no quotes" in str(raised.value)[:300]


def test_lag_of_a_running_query_is_published_as_metrics(spark, new_topic, send, options, checkpoint) -> None:
    """S9: one line in a session."""
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    metrics = QueryMetrics(registry=registry)
    spark.streams.addListener(metrics)
    try:
        topic = new_topic()
        send(topic, range(100))
        given = {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
        frame = load(spark, topic, streaming=True, options=given)
        writer = frame.writeStream.format("noop").queryName("lagging")
        query = writer.option("checkpointLocation", str(checkpoint)).start()

        def behind() -> float | None:
            labels = {"query": "lagging", "source": "0", "topics": topic, "of": "max"}
            return registry.get_sample_value("pylog_query_offsets_behind", labels)

        wait_until(lambda: behind() == 0.0, "the query has caught up", 60)
        assert registry.get_sample_value("pylog_query_input_rows_total", {"query": "lagging"}) == 100
        query.stop()
        wait_until(lambda: behind() is None, "the query's figures are removed", 60)
    finally:
        spark.streams.removeListener(metrics)
