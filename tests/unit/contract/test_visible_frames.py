"""What a reader of committed records gets of a piece of the log: no control frame, nothing that was aborted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import (
    TransactionBegin,
    encode_control,
    encode_frame,
    iter_frames,
    number_frame,
    stamp,
    visible_frames,
)
from broker_runtime.contract.frame.header import parse_header
from broker_runtime.contract.schema import TopicSchema

NOW_MS = 1_000
TOPIC_ID = bytes(16)
_ATTRIBUTES_POSITION = 46
_REQUIRED_POSITION = 48
_FRAME_BYTES_POSITION = 56
_CONTROL = 1 << 5


def records(producer_id: int, *, is_transactional: bool = True, rows: int = 2) -> bytearray:
    batch = pa.record_batch({"value": pa.array([b"v"] * rows)})
    frame = bytearray(encode_frame(batch, TopicSchema.untyped(), timestamps=NOW_MS, is_transactional=is_transactional))
    number_frame(frame, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=is_transactional)
    return frame


def control(producer_id: int) -> bytearray:
    begin = TransactionBegin(transactional_id="sink", epoch=0, batch_id=0)
    return bytearray(encode_control(begin, now_ms=NOW_MS, producer_id=producer_id, producer_epoch=0))


def piece(*frames: bytearray) -> bytearray:
    """The frames back to back, numbered from offset 0 on."""
    offset, found = 0, bytearray()
    for frame in frames:
        head = stamp(
            frame,
            base_offset=offset,
            leader_epoch=0,
            append_time_ms=NOW_MS,
            high_watermark=0,
            topic_id=TOPIC_ID,
            partition=0,
        )
        found += head + frame[len(head) :]
        offset = parse_header(found, len(found) - len(frame)).next_offset
    return found


def offsets(frames: bytearray, aborted: Sequence[tuple[int, int, int]] = ()) -> list[int]:
    for kind in (frames, pa.py_buffer(frames)):
        found = list(visible_frames(kind, aborted))
        for header, frame in found:
            assert memoryview(frame).nbytes == header.stored_bytes
            assert parse_header(frame) == header
    return [header.base_offset for header, _ in found]


def test_control_frames_and_aborted_ones_are_passed() -> None:
    """Of the same producer id, frames before and after the aborted range are seen; of others, all."""
    frames = piece(control(7), records(7), records(7), records(8), records(9, is_transactional=False), control(-1))
    assert offsets(frames) == [1, 3, 5, 7]
    assert offsets(frames, [(7, 1, 3)]) == [3, 5, 7]
    assert offsets(frames, [(7, 0, 5), (8, 5, 6), (9, 0, 9)]) == [7], "what is not transactional is never aborted"
    assert offsets(frames, [(7, 1, 3), (7, 3, 5)]) == [5, 7]


@pytest.mark.parametrize("cut_bytes", [1, 64])
@pytest.mark.parametrize("last", [control(7), records(7)])
def test_frame_that_is_cut_off_is_an_error_even_if_it_would_be_passed(last: bytearray, cut_bytes: int) -> None:
    frames = piece(records(8), last)[:-cut_bytes]
    with pytest.raises(CorruptRecordError, match="needs"):
        offsets(frames, [(7, 0, 10)])


@pytest.mark.parametrize("fields", [{"attributes"}, {"required"}, {"attributes", "required"}])
def test_records_that_look_like_a_control_frame_are_damage(fields: set[str]) -> None:
    """Passed as one, acknowledged records would be missing without a word."""
    frames = piece(records(8))
    if "attributes" in fields:
        frames[_ATTRIBUTES_POSITION] |= _CONTROL
    if "required" in fields:
        frames[_REQUIRED_POSITION] |= 2
    with pytest.raises(CorruptRecordError):
        offsets(frames)


def test_every_changed_byte_of_a_header_leaves_what_is_passed_as_it_is_or_is_damage() -> None:
    """A reader that does not parse the headers of what it passes sees the damage that one sees who does, unless it is
    in what it passes."""
    sound = piece(control(7), records(7), records(8))
    ends = [0]
    for header, _ in iter_frames(sound):
        ends.append(ends[-1] + header.stored_bytes)
    for position in range(ends[2], ends[2] + 128):
        frames = bytearray(sound)
        frames[position] ^= 0xFF
        try:
            expected = [header.base_offset for header, _ in iter_frames(frames)][2:]
        except CorruptRecordError:
            with pytest.raises(CorruptRecordError):
                offsets(frames, [(7, 0, 3)])
        else:
            assert offsets(frames, [(7, 0, 3)]) == expected, position


def test_bytes_that_are_no_frame_are_an_error() -> None:
    frames = piece(control(7))
    for wrong in (frames + bytes(128), frames + b"x" * 10, bytearray(b"x" * 256)):
        with pytest.raises(CorruptRecordError):
            offsets(wrong)


def test_control_frame_without_a_length_is_an_error() -> None:
    """A reader that passed it would stand still."""
    frames = piece(control(7), records(8))
    frames[_FRAME_BYTES_POSITION : _FRAME_BYTES_POSITION + 4] = bytes(4)
    with pytest.raises(CorruptRecordError):
        offsets(frames)
