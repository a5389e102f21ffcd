"""What is checked and stamped before frames reach a segment. Pure: no lock, no file.

Rule: all checksums are verified once, here, before a byte is written.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from broker_runtime.contract.errors import (
    CorruptRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from broker_runtime.contract.frame import (
    STAMP_BYTES,
    Control,
    FrameHeader,
    SoundFrame,
    TransactionBegin,
    encode_control,
    iter_frames,
    parse_control,
    parse_header,
    stamp,
    verify_frame,
)
from broker_runtime.contract.settings import TopicSettings
from broker_runtime.log.producer_state import ProducerState
from broker_runtime.log.segment import StampedFrame

MAX_TIMESTAMP_AHEAD_MS = 3_600_000


class AppendResult(msgspec.Struct, frozen=True, kw_only=True):
    """Records [base_offset, next_offset) were written, not necessarily durably.

    ``max_timestamp_ms`` is the largest timestamp readers will see among them. ``is_duplicate``: they were written
    before, and nothing was written now. ``base_offset`` -1: where is not remembered, but it was below ``next_offset``.
    A wait for the original (to be durable, or committed) is thus a wait for ``next_offset`` in both cases.
    """

    base_offset: int
    next_offset: int
    append_time_ms: int
    max_timestamp_ms: int
    is_duplicate: bool = False


class VerifiedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame whose checksums hold: its bytes (not copied), its header, and what it says if it is a control frame."""

    buffer: memoryview
    header: FrameHeader
    control: Control | None = None


def verify_for_leader(frames: Sequence[Any], config: TopicSettings, now_ms: int) -> list[VerifiedFrame]:
    """Frames as a producer sent them; a stamp in them is ignored. A `SoundFrame` is verified already.

    Raises `CorruptRecordError`, `UnsupportedVersionError`, `RecordTooLargeError`, `InvalidTimestampError`.
    """
    verified = []
    for frame in frames:
        is_sound = isinstance(frame, SoundFrame)
        buffer = frame.buffer if is_sound else memoryview(frame).cast("B")
        if buffer.nbytes > config.max_message_bytes:
            raise RecordTooLargeError(
                f"a frame has {buffer.nbytes} bytes, at most {config.max_message_bytes} are allowed "
                f"(max.message.bytes, and never above segment.bytes)"
            )
        header = frame.header if is_sound else verify_frame(buffer)
        if config.message_timestamp_type == "CreateTime" and header.max_timestamp_ms > now_ms + MAX_TIMESTAMP_AHEAD_MS:
            raise InvalidTimestampError(
                f"a timestamp is {header.max_timestamp_ms} ms, more than an hour ahead of the broker's {now_ms} ms"
            )
        verified.append(VerifiedFrame(buffer=buffer, header=header))
    return verified


def verify_for_follower(frames: Any, topic_id: uuid.UUID, partition: int) -> list[VerifiedFrame]:
    """Frames back to back as the leader stamped them. Raises `CorruptRecordError`, `UnsupportedVersionError`."""
    verified: list[VerifiedFrame] = []
    for _, piece in iter_frames(memoryview(frames).cast("B")):
        header = verify_frame(piece, topic_id=topic_id.bytes, partition=partition)
        if verified and header.base_offset != verified[-1].header.next_offset:
            raise CorruptRecordError(
                f"a frame begins with offset {header.base_offset}, {verified[-1].header.next_offset} comes next"
            )
        control = parse_control(piece) if header.is_control else None
        verified.append(VerifiedFrame(buffer=memoryview(piece), header=header, control=control))
    return verified


def control_frame(control: Control, *, now_ms: int, producer_id: int = -1, producer_epoch: int = -1) -> VerifiedFrame:
    """A control frame to be appended; see `encode_control`."""
    buffer = memoryview(encode_control(control, now_ms=now_ms, producer_id=producer_id, producer_epoch=producer_epoch))
    return VerifiedFrame(buffer=buffer, header=parse_header(buffer), control=control)


def find_duplicate(
    frames: Sequence[VerifiedFrame], producers: ProducerState, begin: TransactionBegin | None = None
) -> AppendResult | None:
    """Where the frame of an idempotent producer was written before, going by its sequence alone; None: nowhere, append
    it. ``begin``: see `ProducerState.check`.

    Raises as `ProducerState.check`, and `InvalidRequestError` if such a frame is not the only one of its append.
    """
    if len(frames) != 1:
        if any(frame.header.producer_id >= 0 for frame in frames):
            raise InvalidRequestError(f"a frame with a producer id comes alone, not with {len(frames) - 1} others")
        return None
    header = frames[0].header
    if header.producer_id < 0:
        return None
    repeated = producers.check(header, begin)
    if repeated is None:
        return None
    return AppendResult(
        base_offset=repeated.base_offset,
        next_offset=repeated.next_offset,
        append_time_ms=repeated.append_time_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        is_duplicate=True,
    )


def stamped(
    frame: VerifiedFrame,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
    high_watermark: int,
    topic_id: uuid.UUID,
    partition: int,
    is_log_append_time: bool,
) -> StampedFrame:
    """The frame as it goes into the log, in two pieces (the second is the producer's)."""
    head = stamp(
        frame.header,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_time_ms=append_time_ms,
        high_watermark=high_watermark,
        topic_id=topic_id.bytes,
        partition=partition,
        log_append_time=is_log_append_time,
    )
    header = msgspec.structs.replace(
        frame.header,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_time_ms=append_time_ms,
        high_watermark=high_watermark,
        timestamp_type=int(is_log_append_time),
    )
    return StampedFrame([head, frame.buffer[STAMP_BYTES:]], header, frame.control)
