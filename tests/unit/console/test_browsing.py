"""Records as rows: cells, shares, limits, histograms. A consumer that is not there."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import InvalidPartitionsError, OptionError
from broker_runtime.contract.frame import HEADERS_TYPE
from broker_runtime.contract.model import TimestampType, TopicPartition
from pyspark_log.client.records import ConsumedBatch
from pyspark_log.console.browsing import (
    MOST_CELL_CHARS,
    MOST_CELLS,
    Cell,
    Wanted,
    browse,
    cells_of,
    histogram,
    in_utc,
    plain_values,
    rows_that_fit,
)
from tests.unit.console.fakes import SCHEMA, FakeAdmin, partition, topic

FLIGHTS = topic("flights", partition(0), partition(1), schema=SCHEMA)


class FakeConsumer:
    """Has ten records in each partition, and gives four at a time."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.positions = dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    def seek(self, at: TopicPartition, offset: int) -> None:
        self.positions[at] = offset

    def position(self, at: TopicPartition) -> int:
        return self.positions[at]

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def poll_batches(self, timeout_s: float) -> list[ConsumedBatch]:
        return [self._next(at) for at in self.positions if at not in self.paused and self.positions[at] < 10]

    def _next(self, at: TopicPartition) -> ConsumedBatch:
        first = self.positions[at]
        rows = min(4, 12 - first)  # two records were written since the end was asked for
        self.positions[at] = first + rows
        offsets = range(first, first + rows)
        batch = pa.record_batch(
            [pa.array([f"c{o}" for o in offsets]), pa.array(list(offsets), pa.int64())], schema=SCHEMA
        )
        return ConsumedBatch(
            topic=at.topic, partition=at.partition, batch=batch, base_offset=first, times=1_000 + at.partition,
            timestamp_type=TimestampType.CREATE_TIME, headers=None,
        )  # fmt: skip

    def __enter__(self) -> FakeConsumer:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class FakeConnection:
    def __init__(self) -> None:
        self.admin = FakeAdmin()
        self.made: list[FakeConsumer] = []

    def consumer(self, **settings: Any) -> FakeConsumer:
        self.made.append(FakeConsumer(**settings))
        return self.made[-1]


def offsets_of(found: Any, number: int) -> list[int]:
    return [row.offset for row in found.rows if row.partition == number]


def test_browse_gives_each_partition_its_share() -> None:
    """None keeps the others out, and where each goes on is known."""
    found = browse(FakeConnection(), FLIGHTS, Wanted(start="earliest", rows=6))  # type: ignore[arg-type]
    assert offsets_of(found, 0) == offsets_of(found, 1) == [0, 1, 2]
    assert found.next_offsets == {0: 3, 1: 3}
    assert found.passed == 6
    assert not found.is_late


@pytest.mark.parametrize("rows", [1, 5])
def test_browse_shows_no_more_rows_than_asked_for(rows: int) -> None:
    """Neither where there are more partitions than rows, nor where shares are rounded up."""
    found = browse(FakeConnection(), FLIGHTS, Wanted(start="earliest", rows=rows))  # type: ignore[arg-type]
    assert len(found.rows) == rows
    assert {len(values) for values in found.values.values()} == {rows}
    assert found.next_offsets[1] == rows // 2
    assert not found.is_late


def test_headers_are_cut_as_cells_are() -> None:
    """In their names and values, and in how many there are: each row of a page may have megabytes of them."""
    pairs = [(f"{number}" + "n" * 999, b"v" * 9_999) for number in range(1_000)]

    class WithHeaders(FakeConsumer):
        def _next(self, at: TopicPartition) -> ConsumedBatch:
            batch = super()._next(at)
            given = [[{"key": key, "value": value} for key, value in pairs], *[None] * (len(batch) - 1)]
            batch.headers = pa.array(given, HEADERS_TYPE)
            return batch

    connection = FakeConnection()
    connection.consumer = WithHeaders  # type: ignore[method-assign, assignment]
    found = browse(connection, FLIGHTS, Wanted(start="earliest", partition=0, rows=1))  # type: ignore[arg-type]
    (row,) = found.rows
    assert row.headers[0] == (("0" + "n" * MOST_CELL_CHARS)[:MOST_CELL_CHARS] + "…", "v" * MOST_CELL_CHARS + "…")
    assert row.headers[-1] == ("…", "980 more")
    assert len(row.headers) == 21


def test_wide_topics_have_fewer_rows_a_page() -> None:
    """But at least one."""
    assert rows_that_fit(1_000, 20) == 1_000
    assert rows_that_fit(1_000, 2_000) == MOST_CELLS // 2_000 == 25
    assert rows_that_fit(1_000, MOST_CELLS + 1) == 1
    assert rows_that_fit(7, 0) == 7


def test_browse_ends_where_the_log_ended() -> None:
    """Records that come meanwhile are not waited for, nor shown."""
    found = browse(FakeConnection(), FLIGHTS, Wanted(start="8", partition=1, rows=100))  # type: ignore[arg-type]
    assert offsets_of(found, 1) == [8, 9]
    assert found.next_offsets == {}
    assert [cell.text for cell in found.rows[0].cells] == ["c8", "8"]


def test_browse_of_nothing_is_empty_at_once() -> None:
    """From the end on there is nothing, and nobody is asked for it."""
    connection = FakeConnection()
    found = browse(connection, FLIGHTS, Wanted(start="latest"))  # type: ignore[arg-type]
    assert found.rows == ()
    assert len(connection.made[0].paused) == 2


def test_browse_hands_predicate_and_columns_to_the_reader() -> None:
    """So that brokers leave the rest out."""
    connection = FakeConnection()
    browse(connection, FLIGHTS, Wanted(start="latest", where="delay > 3", columns=("delay",)))  # type: ignore[arg-type]
    assert connection.made[0].settings["where"] == "delay > 3"
    assert connection.made[0].settings["columns"] == "delay"


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (Wanted(start="nix"), OptionError), (Wanted(start="earliest", partition=2), InvalidPartitionsError),
        (Wanted(start="earliest", columns=("dilay",)), OptionError),
    ],
)  # fmt: skip
def test_browse_refuses_what_is_not_there(wanted: Wanted, error: type[Exception]) -> None:
    """By name."""
    with pytest.raises(error):
        browse(FakeConnection(), FLIGHTS, wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("array", "cell"),
    [
        (pa.array([5], pa.int64()), Cell(text="5", kind="number")),
        (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), Cell(text="1.50", kind="number")),
        (pa.array([None], pa.string()), Cell(text="null", kind="null")),
        (pa.array([""], pa.string()), Cell(text="", kind="text")),
        (pa.array([True]), Cell(text="true", kind="text")),
        (pa.array([[1, None]], pa.list_(pa.int64())), Cell(text="[1, null]", kind="nested")),
        (pa.array([b"\x00\xff"]), Cell(text="0x00ff", kind="bytes")),
        (pa.array(["ä".encode()]), Cell(text="ä", kind="text")),
        (pa.array([datetime.date(2026, 1, 31)]), Cell(text="2026-01-31", kind="time")),
        (pa.array(["x" * 999]), Cell(text="x" * MOST_CELL_CHARS + "…", kind="text", is_cut=True)),
    ],
)  # fmt: skip
def test_cell_is_text_of_a_kind(array: pa.Array, cell: Cell) -> None:
    """Nested values as JSON, bytes as text or digits, long ones cut."""
    assert cells_of(array) == [cell]


def test_histogram_has_round_bins() -> None:
    """Numbers in bins whose edges people would choose; every value is in one."""
    bars = histogram([*range(100), None])
    assert [bar.label for bar in bars[:2]] == ["0 to 5", "5 to 10"]
    assert sum(bar.count for bar in bars) == 101
    assert bars[-1].label == "null"
    assert max(bar.share for bar in bars) == 100


def test_histogram_of_few_values_names_them() -> None:
    """Text by how often it occurs, numbers in their order; the rest together."""
    assert [(bar.label, bar.count) for bar in histogram(["b", "a", "b", ""])] == [("b", 2), ("a", 1), ("(empty)", 1)]
    assert [bar.label for bar in histogram([10, 9, 9, 1_000])] == ["9", "10", "1,000"]
    many = histogram([f"v{number}" for number in range(30)])
    assert (many[-1].label, many[-1].count) == ("all others", 10)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [float("nan")] * 30,
        [float("inf"), *range(30)],
        [1e308, -1e308, *range(30)],
        [5] * 40,
        [5e-324 * number for number in range(40)],
        [1e308 - 1e306 * number for number in range(40)],
    ],
)
def test_histogram_survives_strange_values(values: list[Any]) -> None:
    """No value makes a page fail."""
    bars = histogram(values)
    assert sum(bar.count for bar in bars) == len(values)
    assert all(len(bar.label) < 60 for bar in bars)


def test_histogram_of_times_has_times_as_edges() -> None:
    """They are counted as seconds."""
    times = pa.array([datetime.datetime(2026, 1, 1, hour, tzinfo=datetime.UTC) for hour in range(24)])
    bars = histogram(plain_values(times.cast(pa.timestamp("us", "UTC"))), is_time=True)
    assert "2026-01-01" in bars[0].label


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("2026-01-31T12:00", "2026-01-31T12:00:00+00:00"), ("2026-01-31T12:00+01:00", "2026-01-31T12:00+01:00"),
        ("earliest", "earliest"), ("42", "42"), ("20260131", "20260131"), ("-10", "-10"), ("1h", "1h"),
    ],
)  # fmt: skip
def test_time_without_a_zone_is_utc(typed: str, meant: str) -> None:
    """As all times of the console are."""
    assert in_utc(typed) == meant
