"""Times and batches as programs get them."""

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import InvalidTimestampError
from broker_runtime.contract.model import TimestampType
from pyspark_log.client.records import ConsumedBatch, datetime_of, headers_of, timestamp_ms_of


@given(st.integers(0, 253_402_300_799_999))
@settings(deadline=None)
def test_timestamps_survive_the_way_through_datetime(timestamp_ms: int) -> None:
    """Milliseconds are exact, whatever the float."""
    assert timestamp_ms_of(datetime_of(timestamp_ms)) == timestamp_ms


def test_timestamps_must_be_aware_and_after_1970() -> None:
    """Naive datetimes are refused: nobody knows when they are."""
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
    assert part.offsets.to_pylist() == [11, 12]
    assert part.timestamps_ms.to_pylist() == ([5, 5] if times == 5 else [2, 3])
    assert headers_of(part.headers, 2) == [(("a", b"1"),), ()]
    assert (len(part), part.next_offset, batch.slice(3).next_offset) == (2, 13, 14)


def test_headers_without_a_name_do_not_stop_a_reader() -> None:
    """Any Arrow Flight client can write them, and they are in the log for good."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    column = pa.array([[{"key": None, "value": b"x"}, None, {"key": "k", "value": None}], None, [None]], kind)
    assert headers_of(column, 3) == [(("", b"x"), ("k", None)), (), ()]
