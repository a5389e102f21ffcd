"""The decoded frame equals the encoded one, for every type, layout and codec."""

from __future__ import annotations

import pyarrow as pa
import pytest
from frame_samples import (
    EVERY_TYPE,
    HEADERS,
    PARTITION,
    TIMESTAMPS,
    TOPIC_ID,
    Sample,
    encode_in_chunks,
    samples,
    typed_batch,
    typed_schema,
    untyped_batch,
)

from broker_runtime.contract import frame as frames
from broker_runtime.contract.errors import (
    CorruptRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from broker_runtime.contract.frame import (
    HEADERS_COLUMN_ID,
    STAMP_BYTES,
    TIMESTAMP_COLUMN_ID,
    check_frame_schema,
    decode_frame,
    encode_frame,
    iter_frames,
    number_frame,
    parse_header,
    split_into_frames,
    stamp,
    verify_frame,
)
from broker_runtime.contract.frame.layout import HEADERS_TYPE
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema

ALL = samples()
STAMP = {"leader_epoch": 4, "append_time_ms": 1_800_000_000_000, "high_watermark": 90, "topic_id": TOPIC_ID}


@pytest.mark.parametrize("sample", ALL, ids=[sample.name for sample in ALL])
def test_frame_round_trips(sample: Sample) -> None:
    """This holds for every Arrow type of a Spark schema, in one chunk or a chunk per column, with lz4, zstd or no
    codec.
    """
    verify_frame(sample.frame)
    check_frame_schema(sample.frame, sample.schemas)
    decoded = decode_frame(pa.py_buffer(sample.frame), sample.schemas)
    assert str(decoded.batch.to_pylist()) == str(sample.batch.to_pylist())  # as text: NaN differs from itself
    assert decoded.batch.schema.equals(sample.schemas.latest.arrow)
    if isinstance(sample.timestamps, int):
        assert (decoded.constant_timestamp_ms, decoded.timestamps) == (sample.timestamps, None)
    else:
        assert decoded.constant_timestamp_ms is None
        assert decoded.timestamps.equals(sample.timestamps)
    assert decoded.headers is None if sample.headers is None else decoded.headers.equals(sample.headers)


@pytest.mark.parametrize("name", EVERY_TYPE)
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_frame_of_a_slice_holds_only_the_slice(name: str, codec: str) -> None:
    """A slice of a large batch makes a small frame, whatever its bit offset is."""
    types = {name: EVERY_TYPE[name]}
    whole = typed_batch(types, 1000)
    schema = typed_schema(types)
    for start, rows in ((0, 1), (7, 9), (1001, 20), (1999, 1), (2999, 1)):
        part = whole.slice(start, rows)
        encoded = encode_frame(part, schema, timestamps=0, codec=codec)
        decoded = decode_frame(encoded, SchemaHistory([schema]))
        assert str(decoded.batch.to_pylist()) == str(part.to_pylist())
        assert encoded.size < 5000


def test_decode_shares_the_frames_memory_when_it_is_not_compressed() -> None:
    """Nothing is copied from the network to the reader."""
    encoded = encode_frame(untyped_batch(), UNTYPED, timestamps=0)
    value = decode_frame(encoded, SchemaHistory()).batch.column("value")
    start, end = encoded.address, encoded.address + encoded.size
    assert all(start <= buffer.address < end for buffer in value.buffers() if buffer is not None)


def test_absent_columns_are_null_and_new_columns_are_null_in_old_frames() -> None:
    """Adding nullable columns costs existing frames nothing."""
    old = TopicSchema(schema_id=0, arrow=pa.schema([("a", pa.int32())]))
    new = TopicSchema(schema_id=1, arrow=pa.schema([("a", pa.int32()), ("b", pa.string())]))
    batch = pa.record_batch({"a": pa.array([1, 2], pa.int32())})
    decoded = decode_frame(encode_frame(batch, old, timestamps=0), SchemaHistory([old, new]))
    assert decoded.batch.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    newer = encode_frame(batch, new, timestamps=0)
    with pytest.raises(SchemaMismatchError, match="schema 1 is not known here"):
        decode_frame(newer, SchemaHistory([old]))


def test_columns_are_taken_by_name_and_given_in_schema_order() -> None:
    """A batch may have its columns in any order; requested ones come back in the requested order."""
    schema = TopicSchema(schema_id=0, arrow=pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.bool_())]))
    batch = pa.record_batch({"c": [True], "a": pa.array([1], pa.int32())})
    history = SchemaHistory([schema])
    encoded = encode_frame(batch, schema, timestamps=0)
    assert decode_frame(encoded, history).batch.to_pylist() == [{"a": 1, "b": None, "c": True}]
    assert decode_frame(encoded, history, columns=(2, 1)).batch.schema.names == ["c", "b"]
    only_times = decode_frame(encoded, history, columns=(TIMESTAMP_COLUMN_ID,))
    assert (only_times.batch.num_rows, only_times.batch.num_columns) == (1, 0)


def test_encode_refuses_columns_that_do_not_fit_the_schema() -> None:
    """A wrong column is refused by name before encoding."""
    schema = TopicSchema(
        schema_id=0, arrow=pa.schema([pa.field("delay", pa.int32(), nullable=False), pa.field("carrier", pa.string())])
    )
    delay = pa.array([1], pa.int32())
    for columns, text in (
        ({"delay": pa.array([1], pa.int64())}, "'delay' is int64"),
        ({"carrier": ["UA"]}, "missing: delay"),
        ({"delay": delay, "carier": ["UA"]}, "did you mean 'carrier'"),
        ({"delay": pa.array([None], pa.int32())}, "'delay' allows no nulls and has 1"),
    ):
        with pytest.raises(SchemaMismatchError, match=text):
            encode_frame(pa.record_batch(columns), schema, timestamps=0)
    with pytest.raises(InvalidTimestampError, match="-5"):
        encode_frame(pa.record_batch({"delay": delay}), schema, timestamps=-5)
    with pytest.raises(InvalidTimestampError, match="1 nulls"):
        encode_frame(pa.record_batch({"delay": delay}), schema, timestamps=pa.array([None], pa.int64()))
    with pytest.raises(RecordTooLargeError, match="not 0"):
        encode_frame(pa.record_batch({"delay": delay}).slice(1), schema, timestamps=0)
    with pytest.raises(ValueError, match="snappy"):
        encode_frame(pa.record_batch({"delay": delay}), schema, timestamps=0, codec="snappy")


def test_header_round_trips() -> None:
    """Every field of the header survives."""
    encoded = encode_frame(
        untyped_batch(),
        UNTYPED,
        timestamps=TIMESTAMPS,
        headers=HEADERS,
        codec="lz4",
        producer_id=2**40,
        producer_epoch=7,
        base_sequence=2**31 - 1,
        is_transactional=True,
    )
    header = parse_header(encoded)
    assert (header.base_offset, header.leader_epoch, header.high_watermark, header.append_time_ms) == (-1, -1, -1, -1)
    assert (header.record_count, header.last_offset_delta, header.schema_id) == (3, 2, 0)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_002)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, 2**31 - 1)
    assert (header.codec, header.is_transactional, header.is_control, header.timestamp_type) == ("lz4", True, False, 0)
    assert (header.frame_bytes, header.stored_bytes, header.is_pruned) == (encoded.size, encoded.size, False)
    assert header.frame_bytes % 64 == 0
    assert verify_frame(encoded) == header


def test_numbering_a_frame_equals_encoding_it_with_the_number() -> None:
    """A producer numbers a frame when it first sends it; nothing else in the frame changes."""
    for codec in ("none", "zstd"):
        frames = [
            encode_frame(untyped_batch(), UNTYPED, timestamps=TIMESTAMPS, headers=HEADERS, codec=codec, **number)
            for number in ({}, {"producer_id": 2**62, "producer_epoch": 2**15 - 1, "base_sequence": 2**31 - 1})
        ]
        number_frame(frames[0], producer_id=2**62, producer_epoch=2**15 - 1, base_sequence=2**31 - 1)
        assert frames[0].equals(frames[1])
        verify_frame(frames[0])
    with pytest.raises(ValueError, match="read-only"):
        number_frame(frames[0].to_pybytes(), producer_id=1, producer_epoch=0, base_sequence=0)


def test_stamp_keeps_the_producers_bytes_and_belongs_to_one_partition() -> None:
    """The leader stamps without touching the rest; a frame stamped for another partition is refused."""
    encoded = encode_frame(untyped_batch(), UNTYPED, timestamps=TIMESTAMPS).to_pybytes()
    stamped = stamp(encoded, base_offset=100, partition=PARTITION, **STAMP) + encoded[STAMP_BYTES:]
    header = verify_frame(stamped, topic_id=TOPIC_ID, partition=PARTITION)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)
    assert (header.leader_epoch, header.high_watermark, header.timestamp_type) == (4, 90, 0)
    for topic_id, partition in ((bytes(16), PARTITION), (TOPIC_ID, 0)):
        with pytest.raises(CorruptRecordError, match="of another partition"):
            verify_frame(stamped, topic_id=topic_id, partition=partition)
    for position in range(36):
        damaged = bytearray(stamped)
        damaged[position] ^= 1
        with pytest.raises(CorruptRecordError):
            verify_frame(damaged, topic_id=TOPIC_ID, partition=PARTITION)
    with pytest.raises(ValueError, match="out of range"):
        stamp(encoded, base_offset=2**63 - 2, partition=0, **STAMP)


def test_log_append_time_replaces_the_records_times_without_a_new_checksum() -> None:
    """`message.timestamp.type=LogAppendTime` is part of the leader's stamp."""
    encoded = encode_frame(untyped_batch(), UNTYPED, timestamps=TIMESTAMPS).to_pybytes()
    stamped = stamp(encoded, base_offset=0, partition=0, log_append_time=True, **STAMP) + encoded[STAMP_BYTES:]
    decoded = decode_frame(stamped, SchemaHistory(), topic_id=TOPIC_ID, partition=0)
    assert (decoded.constant_timestamp_ms, decoded.timestamps) == (1_800_000_000_000, None)
    assert (decoded.header.timestamp_type, decoded.header.latest_timestamp_ms) == (1, 1_800_000_000_000)


def test_equal_timestamps_and_empty_headers_take_no_column() -> None:
    """A column without information is omitted."""
    same = pa.array([9, 9, 9], pa.int64())
    nothing = pa.nulls(3, HEADERS.type)
    encoded = encode_frame(untyped_batch(), UNTYPED, timestamps=same, headers=nothing)
    assert encoded.equals(encode_frame(untyped_batch(), UNTYPED, timestamps=9))
    decoded = decode_frame(encoded, SchemaHistory())
    assert (decoded.constant_timestamp_ms, decoded.headers) == (9, None)
    assert HEADERS_COLUMN_ID > TIMESTAMP_COLUMN_ID > frames.MAX_RECORDS_PER_FRAME % 0xFFFE


def test_frames_are_stored_back_to_back_and_a_cut_one_is_refused() -> None:
    """Frames can be walked without an index, and slices share memory."""
    one, two = ALL[0].frame, ALL[-1].frame
    buffer = pa.py_buffer(one + two)
    found = list(iter_frames(buffer))
    assert [part.to_pybytes() for _, part in found] == [one, two]
    assert found[1][1].address == buffer.address + len(one)
    assert [bytes(part) for _, part in iter_frames(one + two)] == [one, two]
    for end in range(len(one) + 1, len(one + two)):
        walk = iter_frames((one + two)[:end])
        next(walk)
        with pytest.raises(CorruptRecordError):
            next(walk)


def test_split_makes_contiguous_frames_of_the_target_size() -> None:
    """A large batch becomes several frames, and no row is lost between them."""
    batch = pa.record_batch({"value": pa.array([b"x" * 100] * 10_000)})
    times = pa.array(range(10_000), pa.int64())
    parts = split_into_frames(batch, UNTYPED, timestamps=times, target_bytes=100_000)
    assert 10 <= len(parts) <= 14
    headers = [verify_frame(part) for part in parts]
    assert {header.base_sequence for header in headers} == {-1}, "the producer numbers them when it sends them"
    assert sum(header.record_count for header in headers) == 10_000
    whole = pa.concat_arrays([decode_frame(part, SchemaHistory()).timestamps for part in parts])
    assert whole.equals(times)


def test_split_keeps_every_frame_below_the_limit_when_records_differ_in_size() -> None:
    """A large record among small ones gets a frame of its own; one above the limit is refused."""
    values = [b"x"] * 1000 + [b"y" * 50_000] + [b"z"] * 1000
    batch = pa.record_batch({"value": pa.array(values)})
    parts = split_into_frames(batch, UNTYPED, timestamps=0, target_bytes=20_000, max_bytes=52_000)
    assert all(part.size <= 52_000 for part in parts)
    read = [value for part in parts for value in decode_frame(part, SchemaHistory()).batch.column("value").to_pylist()]
    assert read == values
    with pytest.raises(RecordTooLargeError, match="takes 40000"):
        split_into_frames(batch, UNTYPED, timestamps=0, max_bytes=40_000)


def test_split_measures_headers_too() -> None:
    """Records that are small without them make no frame that is too large with them."""
    rows = 60_000
    batch = pa.record_batch({"value": pa.array([b"x"] * rows)})
    header = pa.array([[{"key": "h", "value": b"y" * 1_200}]], HEADERS_TYPE)
    headers = pa.concat_arrays([header] * rows)
    parts = split_into_frames(batch, UNTYPED, timestamps=0, headers=headers)
    assert sum(parse_header(part).record_count for part in parts) == rows
    assert max(part.size for part in parts) < 2 << 20


def test_frame_has_no_more_rows_than_readers_can_hold_with_all_columns() -> None:
    """Columns that a frame lacks are null for readers, at full length: a few hundred bytes would cost gigabytes."""
    names = [f"c{number}" for number in range(20)]
    schema = TopicSchema(schema_id=0, arrow=pa.schema([("flag", pa.bool_()), *((name, pa.int64()) for name in names)]))
    batch = pa.record_batch({"flag": pa.array([False]).take(pa.array(bytes(1 << 22), pa.uint8()))})
    with pytest.raises(RecordTooLargeError, match="4194304 records without 20 of the topic's columns"):
        check_frame_schema(encode_frame(batch, schema, timestamps=0, codec="zstd"), schema)
    parts = split_into_frames(batch, schema, timestamps=0, codec="zstd")
    for part in parts:
        check_frame_schema(part, schema)
    assert sum(parse_header(part).record_count for part in parts) == batch.num_rows


def test_chunks_are_aligned_and_one_per_column() -> None:
    """A large frame has a chunk per column, each at a multiple of 64."""
    big = pa.record_batch({"key": pa.array([b"k" * 40] * 4000), "value": pa.array([b"v" * 60] * 4000)})
    header = parse_header(encode_frame(big, UNTYPED, timestamps=0))
    assert header.chunk_count == 2
    small = parse_header(encode_frame(big.slice(0, 10), UNTYPED, timestamps=0))
    assert small.chunk_count == 1
    assert parse_header(encode_in_chunks(big.slice(0, 10), UNTYPED, timestamps=0)).chunk_count == 2


def test_timestamp_column_comes_from_the_frame_without_work_by_record() -> None:
    """S7: Spark's timestamp column costs no work per record."""
    encoded = encode_frame(untyped_batch(), UNTYPED, timestamps=TIMESTAMPS).to_pybytes()
    stamped = stamp(encoded, base_offset=7, partition=0, **STAMP) + encoded[STAMP_BYTES:]
    decoded = decode_frame(stamped, SchemaHistory())
    expected = TIMESTAMPS.cast(pa.timestamp("ms")).cast(pa.timestamp("us", "UTC"))
    assert decoded.timestamp_column().equals(expected)
    constant = decode_frame(encode_frame(untyped_batch(), UNTYPED, timestamps=5), SchemaHistory(), columns=(0,))
    assert constant.timestamp_column().equals(pa.array([5000] * 3, pa.int64()).cast(pa.timestamp("us", "UTC")))
    without = decode_frame(encoded, SchemaHistory(), columns=(0,))
    with pytest.raises(ValueError, match="without the column"):
        without.timestamp_column()
    far = decode_frame(encode_frame(untyped_batch(), UNTYPED, timestamps=2**62), SchemaHistory())
    with pytest.raises(CorruptRecordError, match="out of range"):
        far.timestamp_column()


def test_the_widest_frame_round_trips_in_one_chunk_and_in_a_chunk_per_column() -> None:
    """4,096 columns and the two of the system are within every limit."""
    arrow = pa.schema([(f"c{i}", pa.string()) for i in range(4096)])
    schema = TopicSchema(schema_id=0, arrow=arrow)
    values = pa.array(["x" * 40, None, "y" * 40] * 11)
    batch = pa.RecordBatch.from_arrays([values] * 4096, schema=arrow)
    times = pa.array(range(33), pa.int64())
    headers = pa.array([[("a", b"1")]] * 33, HEADERS.type)
    for encode, chunks in ((encode_frame, 1), (encode_in_chunks, 4098)):
        encoded = pa.py_buffer(encode(batch, schema, timestamps=times, headers=headers))
        assert verify_frame(encoded).chunk_count == chunks
        check_frame_schema(encoded, schema)
        assert decode_frame(encoded, SchemaHistory([schema])).batch.equals(batch)
