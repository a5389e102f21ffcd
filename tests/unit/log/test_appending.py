"""The checks and the stamp that precede the writing of frames to a segment."""

from __future__ import annotations

import uuid

import pytest

from broker_runtime.contract.errors import (
    CorruptRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from broker_runtime.contract.frame import number_frame, verify_frame
from broker_runtime.contract.frame.verify import sound_frame
from broker_runtime.log.appending import (
    MAX_TIMESTAMP_AHEAD_MS,
    VerifiedFrame,
    find_duplicate,
    stamped,
    verify_for_follower,
    verify_for_leader,
)
from broker_runtime.log.producer_state import ProducerState
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import TOPIC_ID, frame

NOW_MS = 10_000_000


def verified(data: bytes) -> VerifiedFrame:
    return VerifiedFrame(buffer=memoryview(data), header=verify_frame(data))


def numbered(*, producer_id: int = 4, epoch: int = 0, sequence: int = 0, rows: int = 2) -> VerifiedFrame:
    data = bytearray(frame(rows))
    number_frame(data, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return verified(bytes(data))


def in_the_log(data: bytes, base_offset: int, *, topic_id: uuid.UUID = TOPIC_ID, is_append_time: bool = False) -> bytes:
    pieces = stamped(
        verified(data),
        base_offset=base_offset,
        leader_epoch=3,
        append_time_ms=NOW_MS,
        high_watermark=1,
        topic_id=topic_id,
        partition=0,
        is_log_append_time=is_append_time,
    ).pieces
    return b"".join(pieces)


@pytest.mark.parametrize("limit", ["max_message_bytes", "segment_bytes"])
def test_frame_may_be_as_large_as_the_limit_and_no_larger(limit: str) -> None:
    """The limit is the smaller of `max.message.bytes` and `segment.bytes`."""
    data = frame(10)
    (kept,) = verify_for_leader([data], topic_settings(**{limit: len(data)}), NOW_MS)
    assert bytes(kept.buffer) == data
    with pytest.raises(RecordTooLargeError, match=f"a frame has {len(data)} bytes, at most {len(data) - 1} are"):
        verify_for_leader([data], topic_settings(**{limit: len(data) - 1}), NOW_MS)


def test_timestamp_may_be_an_hour_ahead_unless_the_broker_gives_its_own() -> None:
    """A producer's clock that is wrong by more would keep segments forever."""
    latest_ms = NOW_MS + MAX_TIMESTAMP_AHEAD_MS
    assert verify_for_leader([frame(timestamps=latest_ms)], topic_settings(), NOW_MS)
    ahead = frame(2, timestamps=[0, latest_ms + 1])
    with pytest.raises(InvalidTimestampError, match=f"a timestamp is {latest_ms + 1} ms"):
        verify_for_leader([frame(), ahead], topic_settings(), NOW_MS)
    assert verify_for_leader([ahead], topic_settings(message_timestamp_type="LogAppendTime"), NOW_MS)


def test_leader_verifies_every_frame_that_was_not_verified_before() -> None:
    """A verified frame is not verified again, but its limits are checked all the same."""
    sound = frame(3)
    broken = bytearray(frame(3, seed=1))
    broken[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        verify_for_leader([sound, broken], topic_settings(), NOW_MS)
    checked = sound_frame(frame(3, seed=1))._replace(buffer=memoryview(broken))
    assert [each.header for each in verify_for_leader([checked], topic_settings(), NOW_MS)] == [checked.header]
    with pytest.raises(RecordTooLargeError):
        verify_for_leader([checked], topic_settings(max_message_bytes=10), NOW_MS)


def test_follower_accepts_frames_of_its_partition_without_a_hole() -> None:
    """Frames must be as the leader stamped them, of this topic, and continue where the last one ends."""
    first, second, third = (in_the_log(frame(2, seed=seed), 5 + 2 * seed) for seed in range(3))
    taken = verify_for_follower(first + second + third, TOPIC_ID, 0)
    assert [(each.header.base_offset, bytes(each.buffer)) for each in taken] == [(5, first), (7, second), (9, third)]
    with pytest.raises(CorruptRecordError, match="a frame begins with offset 9, 7 comes next"):
        verify_for_follower(first + third, TOPIC_ID, 0)
    with pytest.raises(CorruptRecordError):
        verify_for_follower(first + in_the_log(frame(2), 7, topic_id=uuid.UUID(int=9)), TOPIC_ID, 0)
    with pytest.raises(CorruptRecordError):
        verify_for_follower(first, TOPIC_ID, 1)
    assert verify_for_follower(b"", TOPIC_ID, 0) == []


def test_repeated_frame_is_found_by_its_sequence() -> None:
    """W14: the answer has its offset and append time; a new frame is to be appended."""
    producers = ProducerState()
    first = numbered(sequence=0)
    assert find_duplicate([first], producers) is None
    header = stamped(
        first,
        base_offset=30,
        leader_epoch=0,
        append_time_ms=777,
        high_watermark=0,
        topic_id=TOPIC_ID,
        partition=0,
        is_log_append_time=False,
    ).header
    producers.add(header)
    found = find_duplicate([first], producers)
    assert found is not None
    assert (found.base_offset, found.next_offset, found.append_time_ms, found.is_duplicate) == (30, 32, 777, True)
    assert found.max_timestamp_ms == 1000
    assert find_duplicate([numbered(sequence=2)], producers) is None


def test_frame_with_a_sequence_is_appended_alone() -> None:
    """W14: an answer says of one frame whether it is a duplicate. Frames without sequence numbers may be batched."""
    plain = verified(frame())
    assert find_duplicate([plain, plain], ProducerState()) is None
    assert find_duplicate([], ProducerState()) is None
    with pytest.raises(InvalidRequestError, match="not with 1 others"):
        find_duplicate([plain, numbered()], ProducerState())


@pytest.mark.parametrize("is_append_time", [False, True])
def test_stamp_precedes_the_producers_bytes_and_equals_the_header(is_append_time: bool) -> None:
    """No byte under the producer's checksum is changed or copied."""
    given = verified(frame(4, timestamps=[1, 9, 3, 4]))
    pieces, header, _ = stamped(
        given,
        base_offset=70,
        leader_epoch=6,
        append_time_ms=NOW_MS,
        high_watermark=42,
        topic_id=TOPIC_ID,
        partition=2,
        is_log_append_time=is_append_time,
    )
    assert pieces[1].obj is given.buffer.obj
    assert header == verify_frame(b"".join(pieces), topic_id=TOPIC_ID.bytes, partition=2)
    assert (header.base_offset, header.leader_epoch, header.high_watermark) == (70, 6, 42)
    assert (header.append_time_ms, header.timestamp_type) == (NOW_MS, int(is_append_time))
