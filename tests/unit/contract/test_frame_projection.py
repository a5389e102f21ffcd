"""Pruned answers: the columns they have are checked as before, the others are known to be missing."""

from __future__ import annotations

import pytest
from frame_samples import (
    HEADERS,
    LEAVES,
    NESTED,
    PARTITION,
    TIMESTAMPS,
    TOPIC_ID,
    encode_in_chunks,
    pruned_answer,
    typed_batch,
    typed_schema,
)

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import (
    HEADERS_COLUMN_ID,
    STAMP_BYTES,
    TIMESTAMP_COLUMN_ID,
    decode_frame,
    encode_frame,
    iter_frames,
    parse_header,
    plan_projection,
    stamp,
    verify_frame,
)
from broker_runtime.contract.schema import SchemaHistory

TYPES = {**LEAVES, **NESTED}
SCHEMA = typed_schema(TYPES)
HISTORY = SchemaHistory([SCHEMA])
BATCH = typed_batch(TYPES)


def stamped_frame(codec: str) -> bytes:
    """A frame with a chunk per column, as it is in a leader's log."""
    frame = encode_in_chunks(BATCH, SCHEMA, timestamps=TIMESTAMPS, headers=HEADERS, codec=codec)
    head = stamp(
        frame,
        base_offset=10,
        leader_epoch=1,
        append_time_ms=5,
        high_watermark=10,
        topic_id=TOPIC_ID,
        partition=PARTITION,
    )
    return head + frame[STAMP_BYTES:]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize(
    "columns",
    [(0,), (8,), (0, 1, 2), (3, 20), (TIMESTAMP_COLUMN_ID,), (5, HEADERS_COLUMN_ID), (HEADERS_COLUMN_ID, 0)],
)
def test_pruned_frame_decodes_to_its_columns(codec: str, columns: tuple[int, ...]) -> None:
    """S8: only the requested columns leave the broker, and all their checksums hold."""
    frame = stamped_frame(codec)
    answer = pruned_answer(frame, columns)
    assert len(answer) < len(frame) * 0.6
    header = parse_header(answer)
    assert (header.is_pruned, header.stored_bytes, header.frame_bytes) == (True, len(answer), len(frame))
    decoded = decode_frame(answer, HISTORY, columns=columns, topic_id=TOPIC_ID, partition=PARTITION)
    own = [column for column in columns if column < TIMESTAMP_COLUMN_ID]
    assert str(decoded.batch.to_pylist()) == str(BATCH.select(own).to_pylist())
    assert (decoded.timestamps is not None) == (TIMESTAMP_COLUMN_ID in columns)
    assert (decoded.headers is not None) == (HEADERS_COLUMN_ID in columns)
    assert decoded.constant_timestamp_ms is None


def test_pruned_frames_follow_whole_ones_back_to_back() -> None:
    """One answer may have both kinds."""
    frame = stamped_frame("none")
    answer = pruned_answer(frame, (1,))
    assert [bytes(part) for _, part in iter_frames(answer + frame + answer)] == [answer, frame, answer]


def test_pruned_frame_is_refused_when_appended_damaged_or_asked_for_more() -> None:
    """The reader still verifies every checksum; a pruned frame is never appended."""
    frame = stamped_frame("none")
    answer = pruned_answer(frame, (1, 8))
    with pytest.raises(CorruptRecordError, match="pruned"):
        verify_frame(answer)
    with pytest.raises(CorruptRecordError, match="lacks"):
        decode_frame(answer, HISTORY, columns=(2,))
    with pytest.raises(CorruptRecordError, match="lacks"):
        decode_frame(answer, HISTORY)
    header = parse_header(answer)
    for position in range(STAMP_BYTES, len(answer), 3):
        damaged = bytearray(answer)
        damaged[position] ^= 4
        with pytest.raises(CorruptRecordError):
            decode_frame(damaged, HISTORY, columns=(1, 8))
    for end in range(header.head_bytes, len(answer), 7):
        with pytest.raises(CorruptRecordError):
            decode_frame(answer[:end], HISTORY, columns=(1, 8))


def test_plan_needs_only_header_and_directory_and_joins_neighbours() -> None:
    """A broker reads the head, then the ranges, and nothing else."""
    frame = stamped_frame("none")
    head = frame[: parse_header(frame).head_bytes]
    plan = plan_projection(head, (2, 3, 4, 9))
    assert len(plan.ranges) == 2
    answer = bytes(plan.prefix) + b"".join(frame[start:end] for start, end in plan.ranges)
    assert len(answer) == plan.answer_bytes
    assert answer == pruned_answer(frame, (2, 3, 4, 9))
    with pytest.raises(CorruptRecordError):
        plan_projection(head[:-64], (2,))


def test_frame_with_one_chunk_is_sent_whole() -> None:
    """A small frame is not worth a chunk per column."""
    small = encode_frame(BATCH, SCHEMA, timestamps=0).to_pybytes()
    assert pruned_answer(small, (0,)) == small
    assert decode_frame(small, HISTORY, columns=(0,)).batch.schema.names == ["flag"]
    everything = stamped_frame("none")
    assert pruned_answer(everything, (*range(len(TYPES)), TIMESTAMP_COLUMN_ID, HEADERS_COLUMN_ID)) == everything


def test_projection_to_columns_that_the_frame_lacks_is_all_null() -> None:
    """A column added later is null in older frames, pruned or not."""
    part = {name: TYPES[name] for name in ("flag", "tiny")}
    frame = encode_in_chunks(typed_batch(part), SCHEMA, timestamps=0)
    answer = pruned_answer(frame, (5,))
    assert parse_header(answer).is_pruned
    assert decode_frame(answer, HISTORY, columns=(5,)).batch.column("single").null_count == 3
