"""Damaged, foreign and malicious frames are refused with the error that says which they are."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c
from frame_samples import LEAVES, encode_in_chunks, statistics_of, typed_batch, typed_schema, untyped_batch

from broker_runtime.contract.errors import CorruptRecordError, SchemaMismatchError, UnsupportedVersionError
from broker_runtime.contract.frame import (
    HEADER_BYTES,
    STAMP_BYTES,
    TransactionBegin,
    check_frame_schema,
    decode_frame,
    encode_control,
    encode_frame,
    parse_header,
    verify_frame,
)
from broker_runtime.contract.frame.header import pruned_head
from broker_runtime.contract.frame.message import parse_message
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema

FRAME = encode_frame(untyped_batch(), UNTYPED, timestamps=7).to_pybytes()
HISTORY = SchemaHistory()


def with_checksums(frame: bytes | bytearray) -> bytes:
    """``frame`` with correct checksums: what a malicious producer sends."""
    data = bytearray(frame)
    header = HEADER_BYTES
    directory_bytes = int.from_bytes(data[108:112], "little")
    position = header + directory_bytes
    for index in range(int.from_bytes(data[104:106], "little")):
        entry = header + 16 * index
        length = int.from_bytes(data[entry : entry + 4], "little")
        data[entry + 4 : entry + 8] = crc32c(bytes(data[position : position + length])).to_bytes(4, "little")
        position += length
    crc = crc32c(bytes(data[header : header + directory_bytes]), crc32c(bytes(data[STAMP_BYTES:124])))
    data[124:128] = crc.to_bytes(4, "little")
    return bytes(data)


def patched(position: int, layout: str, value: int, frame: bytes = FRAME) -> bytes:
    """``frame`` with one number replaced and its checksums corrected."""
    data = bytearray(frame)
    struct.pack_into("<" + layout, data, position, value)
    return with_checksums(data)


def test_repaired_checksums_equal_encoded_ones() -> None:
    """The tests below change only the field that they name."""
    assert with_checksums(FRAME) == FRAME


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError("malloc of size 62914560 failed"),
        OSError("ZSTD decompression failed: Allocation error : not enough memory"),
        OSError("LZ4 decompress failed: ERROR_allocation_failed"),
    ],
)
def test_lack_of_memory_while_decoding_is_not_damage(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes may be sound: a later attempt returns them."""

    def read_record_batch(*_: object) -> None:
        raise error

    monkeypatch.setattr(pa.ipc, "read_record_batch", read_record_batch)
    with pytest.raises(MemoryError):
        decode_frame(FRAME, HISTORY)
    monkeypatch.undo()
    assert decode_frame(FRAME, HISTORY).batch.num_rows


def test_lack_of_memory_while_values_are_checked_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds one step later."""

    class Column:
        def validate(self, *, full: bool) -> None:
            raise pa.ArrowMemoryError("malloc failed")

    class Batch:
        def column(self, _: int) -> Column:
            return Column()

    monkeypatch.setattr(pa.ipc, "read_record_batch", lambda *_: Batch())
    with pytest.raises(MemoryError):
        decode_frame(FRAME, HISTORY)


def test_every_flipped_byte_outside_the_stamp_is_noticed() -> None:
    """Every byte of a frame is under a checksum, padding included."""
    chunked = encode_in_chunks(typed_batch(LEAVES), typed_schema(LEAVES), timestamps=7, codec="lz4")
    for frame in (FRAME, chunked):
        for position in range(STAMP_BYTES, len(frame)):
            damaged = bytearray(frame)
            damaged[position] ^= 0x10
            with pytest.raises(CorruptRecordError):
                verify_frame(damaged)


def test_every_cut_and_every_addition_is_noticed() -> None:
    """A torn frame is not a frame."""
    for end in range(len(FRAME)):
        with pytest.raises(CorruptRecordError):
            verify_frame(FRAME[:end])
    for more in (1, 64, 4096):
        with pytest.raises(CorruptRecordError):
            verify_frame(FRAME + bytes(more))


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (44, "H", 2),  # version
        (48, "I", 1),  # row offset deltas
        (48, "I", 1 << 31),
        (46, "H", 3),  # a codec to come
        (46, "H", 1 << 3),
        (46, "H", 1 << 15),
    ],
)
def test_unknown_version_or_feature_is_distinguished_from_damage_by_the_checksum(
    position: int, layout: str, value: int
) -> None:
    """An unknown required bit is refused; undamaged bytes of a newer version must be kept, not cut."""
    newer = patched(position, layout, value)
    with pytest.raises(UnsupportedVersionError):
        verify_frame(newer)
    with pytest.raises(UnsupportedVersionError):
        decode_frame(newer, HISTORY)
    with pytest.raises(CorruptRecordError):
        parse_header(newer)
    damaged = bytearray(newer)
    damaged[-1] ^= 1
    damaged[60] ^= 1
    with pytest.raises(CorruptRecordError):
        verify_frame(damaged)


def test_unknown_optional_feature_is_ignored() -> None:
    """Optional feature bits do not stop a reader."""
    assert decode_frame(patched(52, "I", 0xFFFF), HISTORY).batch.equals(untyped_batch())


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (40, "I", 1),  # magic
        (56, "I", 0),  # frame bytes
        (56, "I", 2**32 - 64),
        (56, "I", 65),
        (60, "I", 2**32 - 1),  # uncompressed
        (60, "I", 0),
        (64, "i", 0),  # records
        (64, "i", -1),
        (64, "i", 2**31 - 1),
        (64, "i", 4),
        (68, "i", 0),  # last delta
        (68, "i", 3),
        (72, "q", -1),  # base timestamp
        (72, "q", 8),
        (80, "q", 6),  # max timestamp
        (88, "q", -2),  # producer id
        (96, "i", -2),  # base sequence
        (100, "h", -2),  # producer epoch
        (104, "H", 0),  # chunks
        (104, "H", 2),
        (104, "H", 65535),
        (106, "H", 1),  # reserved
        (108, "I", 0),  # directory
        (108, "I", 2**32 - 64),
        (112, "Q", 1),  # reserved
        (120, "I", 1),
        (128, "I", 64),  # the chunk's length
        (128, "I", 2**32 - 64),
        (136, "I", 1),  # the chunk uncompressed
        (140, "H", 0),  # its columns
        (140, "H", 9999),
        (142, "H", 1),
        (144, "H", 1),  # column ids: 1, 1
        (160, "H", 5),  # 0, 5
    ],
)
def test_field_out_of_bounds_is_refused_although_the_checksums_are_right(
    position: int, layout: str, value: int
) -> None:
    """The header and the directory are checked, not trusted."""
    wrong = patched(position, layout, value)
    with pytest.raises(CorruptRecordError):
        decode_frame(wrong, HISTORY)
    with pytest.raises(CorruptRecordError):
        check_frame_schema(wrong, HISTORY)


def test_parse_header_needs_a_whole_header_at_the_position() -> None:
    """Positions outside the buffer are refused, not read."""
    assert parse_header(b"\0" * 64 + FRAME, 64) == parse_header(FRAME)
    for position in (1, len(FRAME) - 64, len(FRAME), len(FRAME) + 1000):
        with pytest.raises(CorruptRecordError):
            parse_header(FRAME, position)


def test_leader_refuses_other_columns_than_the_schemas() -> None:
    """The row count and the schema id's fields are checked without decoding rows."""
    schema = TopicSchema(schema_id=0, arrow=pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.string())]))
    good = encode_frame(pa.record_batch({"a": pa.array([1], pa.int32()), "b": ["x"]}), schema, timestamps=0)
    check_frame_schema(good, SchemaHistory([schema]))
    check_frame_schema(good, schema)
    for other in (
        pa.schema([("a", pa.int32())]),
        pa.schema([("a", pa.string()), ("b", pa.string())]),
        pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
    ):
        with pytest.raises(CorruptRecordError):
            check_frame_schema(good, TopicSchema(schema_id=0, arrow=other))
    needs = pa.schema([("a", pa.int32()), ("b", pa.string()), pa.field("c", pa.int8(), nullable=False)])
    with pytest.raises(SchemaMismatchError, match="lack"):
        check_frame_schema(good, TopicSchema(schema_id=0, arrow=needs))
    with pytest.raises(SchemaMismatchError, match="schema 0"):
        check_frame_schema(good, TopicSchema(schema_id=1, arrow=schema.arrow))
    nullable = TopicSchema(schema_id=0, arrow=pa.schema([("a", pa.int32()), ("b", pa.string())]))
    with_null = encode_frame(pa.record_batch({"a": pa.array([None], pa.int32())}), nullable, timestamps=0)
    with pytest.raises(CorruptRecordError, match="allows no nulls"):
        check_frame_schema(with_null, schema)
    with pytest.raises(CorruptRecordError, match="allows no nulls"):
        decode_frame(with_null, SchemaHistory([schema]))


def test_control_frames_of_producers_are_refused() -> None:
    """Only brokers write control frames."""
    begin = TransactionBegin(transactional_id="a", epoch=0, batch_id=0)
    frame = encode_control(begin, now_ms=1, producer_id=3, producer_epoch=0)
    verify_frame(frame)
    with pytest.raises(CorruptRecordError, match="only brokers write control frames"):
        check_frame_schema(frame, HISTORY)


@pytest.mark.parametrize(("position", "layout", "value"), [(46, "H", 1 << 5), (48, "I", 2), (64, "I", 0)])
def test_only_control_frames_have_no_rows_and_they_have_none(position: int, layout: str, value: int) -> None:
    """One bit without the other is no frame."""
    with pytest.raises(CorruptRecordError, match="out of their bounds"):
        verify_frame(patched(position, layout, value))


def test_pruned_frames_are_never_part_of_a_log() -> None:
    """A pruned frame can never be appended."""
    marked = bytes(pruned_head(FRAME, len(FRAME)))
    with pytest.raises(CorruptRecordError, match="pruned"):
        verify_frame(marked)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("claimed", [2**62, 2**31, 64 << 20, 10_000, -2, -(2**63)])
def test_decompression_bomb_is_refused_before_arrow_allocates(codec: str, claimed: int) -> None:
    """A buffer that claims to be large uncompressed costs no memory."""
    batch = pa.record_batch({"value": pa.array([b"z" * 500])})
    frame = encode_frame(batch, UNTYPED, timestamps=0, codec=codec).to_pybytes()
    start = parse_header(frame).head_bytes
    metadata = parse_message(memoryview(frame)[start:])
    offset, length = max(zip(metadata.buffers[::2], metadata.buffers[1::2], strict=True), key=lambda buffer: buffer[1])
    assert length > 8
    bomb = patched(start + metadata.body_position + offset, "q", claimed, frame)
    before = pa.total_allocated_bytes()
    for refuses in (lambda: decode_frame(bomb, HISTORY), lambda: check_frame_schema(bomb, HISTORY)):
        with pytest.raises(CorruptRecordError, match="claims"):
            refuses()
    assert pa.total_allocated_bytes() == before


def test_values_that_point_outside_the_buffer_are_refused() -> None:
    """String offsets that point outside would crash a reader, so no reader gets them."""
    schema = TopicSchema(schema_id=0, arrow=pa.schema([("text", pa.string())]))
    frame = encode_frame(pa.record_batch({"text": ["abc", "defg"]}), schema, timestamps=0).to_pybytes()
    offsets = struct.pack("<iii", 0, 3, 7)
    position = frame.index(offsets)
    for wrong in ((0, 3, 2**31 - 1), (-4, 3, 7), (0, 9, 7), (0, -1, 7)):
        data = bytearray(frame)
        data[position : position + 12] = struct.pack("<iii", *wrong)
        with pytest.raises(CorruptRecordError, match="damaged"):
            decode_frame(with_checksums(data), SchemaHistory([schema]))
    not_utf8 = frame.replace(b"abcdefg", b"ab\xffdefg")
    with pytest.raises(CorruptRecordError, match=r"row 0 holds a value that no reader accepts \(text = b'ab\\xff'\)"):
        decode_frame(with_checksums(not_utf8), SchemaHistory([schema]))


def test_impossible_statistics_are_refused_by_the_leader() -> None:
    """Statistics that are visibly wrong without the rows are refused."""
    schema = TopicSchema(schema_id=0, arrow=pa.schema([("n", pa.int64())]))
    batch = pa.record_batch({"n": pa.array(range(40), pa.int64())})
    frame = encode_frame(batch, schema, timestamps=0).to_pybytes()
    column = HEADER_BYTES + 16
    check_frame_schema(frame, schema)
    for offset, layout, value in (
        (2, "B", 2),  # FLOAT for an integer column
        (2, "B", 4),
        (3, "B", 0xFF),
        (4, "b", 3),
        (5, "B", 7),
        (5, "B", 200),
        (7, "B", 1),
        (8, "I", 41),
        (12, "I", 2**32 - 1),
    ):
        wrong = patched(column + offset, layout, value, frame)
        with pytest.raises(CorruptRecordError):
            check_frame_schema(wrong, schema)
    unknown = statistics_of(patched(column + 2, "B", 77, frame))[0]
    assert (unknown.minimum, unknown.maximum, unknown.null_count) == (None, None, 0)


def test_nested_nulls_that_a_column_forbids_are_refused_by_the_reader() -> None:
    """Spark's generated code never checks such a value for null."""
    loose = TopicSchema(schema_id=0, arrow=pa.schema([("c", pa.list_(pa.field("element", pa.string())))]))
    strict_type = pa.list_(pa.field("element", pa.string(), nullable=False))
    strict = TopicSchema(schema_id=0, arrow=pa.schema([("c", strict_type)]))
    for values, fits in (([["a"], None], True), ([["a", None]], False)):
        batch = pa.record_batch({"c": pa.array(values, loose.arrow.field(0).type)})
        frame = encode_frame(batch, loose, timestamps=0)
        if fits:
            assert decode_frame(frame, SchemaHistory([strict])).batch.to_pylist() == [{"c": ["a"]}, {"c": None}]
        else:
            with pytest.raises(CorruptRecordError, match="allows no nulls"):
                decode_frame(frame, SchemaHistory([strict]))


@pytest.mark.parametrize(
    ("times", "position", "value"),
    [
        pytest.param((1000, 2**63 - 1), 80, 1001, id="above the largest"),
        pytest.param((1000, 2000), 72, 1500, id="below the smallest"),
    ],
)
def test_timestamps_that_contradict_the_header_are_refused_by_the_reader(
    times: tuple[int, int], position: int, value: int
) -> None:
    """Brokers know a frame's times by its header alone: they find records by it, and refuse times in the future."""
    batch = pa.record_batch({"value": [b"a", b"b"]})
    honest = encode_frame(batch, UNTYPED, timestamps=pa.array(times, pa.int64())).to_pybytes()
    lying = patched(position, "q", value, honest)
    check_frame_schema(lying, HISTORY)  # the leader does not look at rows
    with pytest.raises(CorruptRecordError, match=f"timestamps of {times[0]} to {times[1]} ms in a frame whose header"):
        decode_frame(lying, HISTORY)
    assert decode_frame(lying, HISTORY, columns=(0,)).batch.num_columns == 1


def test_header_with_two_times_needs_a_column_of_them() -> None:
    """Without the column all records have the same time."""
    lying = patched(80, "q", 9)
    with pytest.raises(CorruptRecordError, match="timestamps of 7 to 9 ms"):
        decode_frame(lying, HISTORY)


def test_leader_refuses_times_that_no_column_tells() -> None:
    """Readers cannot say whose is which: they would stop at the frame."""
    frame = patched(80, "q", 8)  # the largest timestamp
    verify_frame(frame)
    with pytest.raises(CorruptRecordError, match="timestamps of 7 to 8 ms"):
        check_frame_schema(frame, HISTORY)
