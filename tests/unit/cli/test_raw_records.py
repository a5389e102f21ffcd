"""Raw records survive the round trip, and damaged ones are never accepted."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_log.cli.records.raw_records import MAGIC, RawRecord, pack_record, read_raw, unpack_record

OPTIONAL_BYTES = st.one_of(st.none(), st.binary())
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8")), OPTIONAL_BYTES))
RECORDS = st.builds(
    RawRecord, st.integers(0, 2**31 - 1), st.integers(0, 2**62), OPTIONAL_BYTES, OPTIONAL_BYTES, HEADERS
)
ONE = pack_record(RawRecord(1, 2, b"k", None, [("h", b"x"), ("h", None)]))


@given(st.lists(RECORDS), st.lists(RECORDS))
def test_records_come_back_from_streams_that_follow_each_other(first: list[RawRecord], second: list[RawRecord]) -> None:
    """W27: keys, values, headers, nulls, times and partitions survive, whatever their bytes are."""
    stream = b"".join(MAGIC + b"".join(map(pack_record, records)) for records in (first, second))
    assert [unpack_record(body) for body in read_raw(io.BytesIO(stream), limit_bytes=1 << 20)] == first + second


@given(st.integers(1, len(MAGIC + ONE) - 1))
def test_stream_that_was_cut_is_an_error(length: int) -> None:
    """The stream may end only between two records."""
    cut = (MAGIC + ONE)[:length]
    if length == len(MAGIC):
        assert list(read_raw(io.BytesIO(cut), limit_bytes=100)) == []
        return
    with pytest.raises(ValueError, match=r"not the output of|in the middle"):
        list(read_raw(io.BytesIO(cut), limit_bytes=100))


@given(st.binary(max_size=60))
def test_damaged_record_is_a_value_error(body: bytes) -> None:
    """This holds whatever the bytes are."""
    try:
        unpack_record(body)
    except ValueError:
        return
    assert pack_record(unpack_record(body))[4:] == body


def test_record_above_the_limit_is_not_read() -> None:
    """A nonsensical length takes no memory."""
    with pytest.raises(ValueError, match="4294967295 bytes"):
        list(read_raw(io.BytesIO(MAGIC + b"\xff" * 4), limit_bytes=100))
