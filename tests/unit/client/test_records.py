"""Timestamps and batches as programs get them."""

import gc
import os
from datetime import UTC, date, datetime, time, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import InvalidTimestampError
from broker_runtime.contract.model import TimestampType
from pyspark_log.client.consumer import delivery
from pyspark_log.client.consumer.delivery import records_of
from pyspark_log.client.producer.column_values import value_check
from pyspark_log.client.records import ConsumedBatch, datetime_of, headers_of, timestamp_ms_of


@given(st.integers(0, 253_402_300_799_999))
@settings(deadline=None)
def test_timestamps_survive_the_round_trip_through_datetime(timestamp_ms: int) -> None:
    """Milliseconds are exact, despite floats."""
    assert timestamp_ms_of(datetime_of(timestamp_ms)) == timestamp_ms


def test_timestamps_must_be_aware_and_after_1970() -> None:
    """Naive datetimes are refused: their instant is unknown."""
    noon = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp_ms_of(noon) == timestamp_ms_of(datetime(2024, 1, 1, 10, tzinfo=UTC))
    for wrong in (datetime(2024, 1, 1), -1, True, "2024", 1.5):
        with pytest.raises(InvalidTimestampError):
            timestamp_ms_of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [5, pa.array([1, 2, 3, 4])])
def test_consumed_batch_slices_all_its_parts_alike(times: object) -> None:
    """Rows, offsets, times and headers stay together."""
    headers = pa.array([None, [{"key": "a", "value": b"1"}], [], None])
    batch = ConsumedBatch(
        topic="t", partition=0, batch=pa.record_batch({"value": [b"a", b"b", b"c", b"d"]}), base_offset=10,
        times=times, timestamp_type=TimestampType.CREATE_TIME, headers=headers,
    )  # fmt: skip
    part = batch.slice(1, 2)
    assert part.batch.column("value").to_pylist() == [b"b", b"c"]
    assert part.offsets.to_pylist() == list(part.row_offsets) == [11, 12]
    assert part.timestamps_ms.to_pylist() == ([5, 5] if times == 5 else [2, 3])
    assert headers_of(part.headers, 2) == [(("a", b"1"),), ()]
    assert (len(part), part.next_offset, batch.slice(3).next_offset) == (2, 13, 14)


@pytest.mark.parametrize("times", [5, pa.array([1, 2, 3, 4])])
def test_filtered_batch_knows_each_rows_offset_and_where_to_go_on(times: object) -> None:
    """S8: offsets stay offsets; a part of it goes on behind its last record, all of it behind what was passed over."""
    headers = pa.array([None, [{"key": "a", "value": b"1"}], [], None])
    batch = ConsumedBatch(
        topic="t", partition=0, batch=pa.record_batch({"value": [b"a", b"b", b"c", b"d"]}), base_offset=10,
        times=times, timestamp_type=TimestampType.CREATE_TIME, headers=headers,
    ).filter(pa.array([False, True, True, False]))  # fmt: skip
    assert (batch.base_offset, len(batch), batch.next_offset) == (11, 2, 14)
    assert batch.offsets.to_pylist() == [11, 12]
    assert list(batch.row_offsets) == [11, 12]
    assert batch.timestamps_ms.to_pylist() == ([5, 5] if times == 5 else [2, 3])
    assert headers_of(batch.headers, 2) == [(("a", b"1"),), ()]
    first, rest = batch.slice(0, 1), batch.slice(1)
    assert (first.base_offset, first.next_offset, rest.base_offset, rest.next_offset) == (11, 12, 12, 14)
    assert [batch.rows_before(offset) for offset in (5, 11, 12, 13, 20)] == [0, 0, 1, 2, 2]
    assert [batch.filter(pa.array([False, True])).rows_before(offset) for offset in (12, 13)] == [0, 1]
    assert batch.slice(0, 0).next_offset == batch.slice(0, 0).base_offset == 11
    assert (batch.slice(1, 0).base_offset, batch.slice(1, 0).next_offset) == (12, 12)
    none = batch.filter(pa.array([False, False]))
    assert (len(none), none.next_offset) == (0, 14)
    records = records_of(batch, key=None, is_typed=False, key_from=None, value_from=None)
    assert [record.offset for record in records] == [11, 12]


def test_headers_without_a_name_do_not_stop_a_reader() -> None:
    """Any Arrow Flight client can write them, and they stay in the log."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    column = pa.array([[{"key": None, "value": b"x"}, None, {"key": "k", "value": None}], None, [None]], kind)
    assert headers_of(column, 3) == [(("", b"x"), ("k", None)), (), ()]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_not_collected_while_records_are_made(is_enabled: bool) -> None:
    """5,000 at once took four times as long; afterwards the collector is as it was."""
    batch = typed_batch(pa.record_batch({"value": pa.array([b"v"] * 5_000)}))
    begun: list[str] = []

    def note(phase: str, _: object) -> None:
        if phase == "start":
            begun.append(phase)

    was_enabled = gc.isenabled()
    gc.collect()
    (gc.enable if is_enabled else gc.disable)()
    gc.callbacks.append(note)
    try:
        records = records_of(batch, key=None, is_typed=False, key_from=None, value_from=None)
        during = len(begun)  # one may come as soon as it may
        assert gc.isenabled() is is_enabled
    finally:
        gc.callbacks.remove(note)
        (gc.enable if was_enabled else gc.disable)()
    assert len(records) == 5_000
    assert during <= 1


def test_child_that_is_forked_while_records_are_made_collects_garbage() -> None:
    """Another thread makes them, which the child does not have."""
    with delivery._uncollected(5_000):
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled()


def test_garbage_is_collected_again_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come at any moment, also right after it was switched off."""

    def interrupted() -> None:
        gc.__dict__["_switch_off"]()
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "_switch_off", gc.disable, raising=False)
    monkeypatch.setattr(gc, "disable", interrupted)
    with pytest.raises(KeyboardInterrupt), delivery._uncollected(5_000):
        pass
    assert gc.isenabled()


def typed_batch(columns: pa.RecordBatch) -> ConsumedBatch:
    return ConsumedBatch(
        topic="t", partition=0, batch=columns, base_offset=0, times=1 << 61, timestamp_type=TimestampType.CREATE_TIME,
        headers=None,
    )  # fmt: skip


def test_times_outside_pythons_years_are_counts_of_their_units() -> None:
    """W20: a record of another client must not stop a reader; `send` accepts the value that the reader gets."""
    instant = pa.timestamp("us", tz="UTC")
    fields = [
        pa.field("day", pa.date32()),
        pa.field("s", pa.struct([("l", pa.list_(instant))])),
        pa.field("m", pa.map_(pa.string(), pa.timestamp("us"))),
    ]
    outside = {"day": 2**31 - 1, "s": {"l": [-(2**63), None]}, "m": [("k", 2**63 - 1), ("n", None)]}
    within = {"day": date(9999, 12, 31), "s": {"l": [datetime(1, 1, 1, tzinfo=UTC)]}, "m": None}
    stored = {name: pa.array([outside[name], within[name], None], field.type) for name, field in
              ((field.name, field) for field in fields)}  # fmt: skip
    batch = typed_batch(pa.RecordBatch.from_arrays(list(stored.values()), schema=pa.schema(fields)))
    records = records_of(batch, key="day", is_typed=True, key_from=None, value_from=None)
    assert [record.row for record in records] == [outside, within, dict.fromkeys(outside)]
    assert [record.key for record in records] == [2**31 - 1, date(9999, 12, 31), None]
    for field in fields:
        value_check(field, field.name)(outside[field.name])


LEAF_VALUES: dict[pa.DataType, st.SearchStrategy] = {
    pa.bool_(): st.booleans(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.decimal128(38, 10): st.decimals(-(10**20), 10**20, places=10).map(lambda number: number.normalize()),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.timestamp("us", "UTC"): st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("us"): st.integers(-(2**63), 2**63 - 1),
    pa.time64("ns"): st.integers(0, 86_400 * 10**9 - 1),
    pa.duration("us"): st.integers(-(2**63), 2**63 - 1),
    pa.null(): st.none(),
}


@pytest.mark.parametrize("wrapped", ["alone", "list", "struct", "map"])
@pytest.mark.parametrize("kind", LEAF_VALUES, ids=str)
def test_any_value_of_any_type_reaches_a_consumer_as_one_that_send_takes(kind: pa.DataType, wrapped: str) -> None:
    """W20: no value that a topic can hold stops a reader, and what it gets can be sent on unchanged."""

    @given(st.lists(st.none() | LEAF_VALUES[kind], min_size=1, max_size=4))
    @settings(deadline=None, max_examples=25)
    def check(values: list[object]) -> None:
        column = pa.array(values, kind)
        offsets = pa.array(range(len(values) + 1), pa.int32())
        if wrapped == "list":
            column = pa.ListArray.from_arrays(offsets, column)
        elif wrapped == "struct":
            column = pa.StructArray.from_arrays([column], ["f"])
        elif wrapped == "map":
            column = pa.MapArray.from_arrays(offsets, pa.array(["k"] * len(values)), column)
        batch = typed_batch(pa.record_batch({"c": column}))
        records = records_of(batch, key=None, is_typed=True, key_from=None, value_from=None)
        sent_on = [value_check(pa.field("c", column.type), "c")(record.row["c"]) for record in records]
        assert pa.array(sent_on, column.type).equals(column)

    check()


def test_times_finer_than_pythons_are_counts_of_nanoseconds() -> None:
    """Python's times have microseconds: the others of a column stay times, and nothing is cut off."""
    noon_ns = 43_200 * 10**9
    column = pa.array([noon_ns, noon_ns + 1, None, noon_ns + 1000]).view(pa.time64("ns"))
    records = records_of(
        typed_batch(pa.record_batch({"t": column})), key="t", is_typed=True, key_from=None, value_from=None
    )
    expected = [time(12), noon_ns + 1, None, time(12, 0, 0, 1)]
    assert [record.row["t"] for record in records] == expected
    assert [record.key for record in records] == expected


def test_time_of_a_record_after_year_9999_is_one_clear_error() -> None:
    """The number of milliseconds is available all the same."""
    batch = typed_batch(pa.record_batch({"a": [1]}))
    (record,) = records_of(batch, key=None, is_typed=True, key_from=None, value_from=None)
    assert record.timestamp_ms == 1 << 61
    with pytest.raises(InvalidTimestampError, match=f"{1 << 61} ms since 1970 is outside the years 1 to 9999"):
        _ = record.timestamp


def test_timestamps_are_cut_to_milliseconds() -> None:
    """They are never rounded up into the future, as in Kafka."""
    assert timestamp_ms_of(datetime(1970, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)) == 1
