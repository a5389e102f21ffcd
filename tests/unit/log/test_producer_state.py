"""What a log remembers of idempotent producers, against a naive reference that remembers everything."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    PylogError,
    UnknownProducerIdError,
)
from broker_runtime.contract.frame import FrameHeader, parse_header
from broker_runtime.log.producer_state import EXPIRY_MS, LARGEST_STEP_MS, ProducerState, RepeatedFrame
from tests.unit.log.log_samples import frame

CIRCLE = 1 << 31
LARGEST = 1 << 23  # records of a frame
PLAIN = parse_header(frame())


def header(
    sequence: int, count: int = 1, *, offset: int = -1, epoch: int = 0, producer: int = 1, now_ms: int = 0
) -> FrameHeader:
    return msgspec.structs.replace(
        PLAIN,
        base_offset=offset,
        append_time_ms=now_ms,
        record_count=count,
        last_offset_delta=count - 1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


class Log:
    """Headers as a leader appends them: what the state accepts, at rising offsets."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end = 0

    def append(self, sequence: int, count: int = 1, **fields: int) -> int | RepeatedFrame:
        """Returns the new offset, or where the frame is already."""
        sent = header(sequence, count, **fields)
        repeated = self.state.check(sent)
        if repeated is not None:
            return repeated
        offset = self.end
        self.state.add(msgspec.structs.replace(sent, base_offset=offset))
        self.end += count
        return offset

    def pass_time(self, from_ms: int, to_ms: int) -> None:
        """Appends another producer's frames, each close enough to the last that the log's time follows."""
        for number, at_ms in enumerate(range(from_ms, to_ms + LARGEST_STEP_MS, LARGEST_STEP_MS)):
            self.append(number, producer=99, now_ms=min(at_ms, to_ms))


def test_producer_begins_at_sequence_zero_and_continues_without_a_gap():
    """An unknown producer begins at 0, and each frame where the last one ended."""
    log = Log()
    with pytest.raises(UnknownProducerIdError, match=r"producer 1 .* sequence 3"):
        log.append(3)
    assert log.append(0, 3) == 0
    assert log.append(3, 2) == 3
    with pytest.raises(OutOfOrderSequenceError, match="sent sequence 6, 5 comes next"):
        log.append(6)
    assert log.append(5) == 5
    assert log.append(0, producer=2) == 6


def test_repeated_frame_is_found_among_the_last_five():
    """A producer has at most five in flight. An older frame is no retry: nobody knows whether it was appended like
    that.
    """
    log = Log()
    for number in range(7):
        assert log.append(number * 10, 10, now_ms=number) == number * 10
    for number in range(2, 7):
        assert log.append(number * 10, 10) == RepeatedFrame(number * 10, number * 10 + 10, number)
    for number in range(2):
        with pytest.raises(DuplicateSequenceError, match=f"sequences {number * 10} to .* before its last 5 frames"):
            log.append(number * 10, 10)
    assert log.end == 70


def test_retry_of_a_frame_before_its_producers_first_in_the_log_counts_as_appended():
    """A replica that joined after records were deleted has never seen them, and may lead when the retry arrives."""
    state = ProducerState()
    for number in range(1, 5):
        state.add(header(number * 10, 10, offset=number * 10))
    assert state.check(header(0, 10)) == RepeatedFrame(-1, 50, -1)
    state.add(header(50, 10, offset=50))
    with pytest.raises(DuplicateSequenceError):
        state.check(header(0, 10))


@pytest.mark.parametrize(("sequence", "count"), [(25, 10), (60, 9), (60, 11), (15, 10), (65, 6), (10, 11)])
def test_repeated_records_in_other_frames_are_refused(sequence, count):
    """A retry has the same frame: nobody can say which of these records are in the log."""
    log = Log()
    for number in range(7):
        log.append(number * 10, 10)
    with pytest.raises(DuplicateSequenceError, match=f"sequences {sequence} to {sequence + count - 1}"):
        log.append(sequence, count)


def test_newer_epoch_begins_at_zero_and_fences_the_older():
    """Earlier frames cannot overtake a producer that begins again."""
    log = Log()
    log.append(0, 5, epoch=3)
    with pytest.raises(OutOfOrderSequenceError, match="epoch 4 sent sequence 5, 0 comes next"):
        log.append(5, epoch=4)
    assert log.append(0, 5, epoch=4) == 5
    for sequence in (0, 5):
        with pytest.raises(InvalidProducerEpochError, match="is in epoch 4, the frame in 3"):
            log.append(sequence, 5, epoch=3)
    assert log.append(0, 5, epoch=4) == RepeatedFrame(5, 10, 0)


def test_sequences_wrap_after_the_largest():
    """After 2^31 - 1 comes 0, in the middle of a frame and between two; repeats and gaps are distinguished there,
    too.
    """
    state = ProducerState()
    state.add(header(0, 4, offset=0))
    state.add(header(CIRCLE - 7, 4, offset=10))
    state.add(header(CIRCLE - 3, 5, offset=14))  # … 2^31 - 1, 0, 1
    assert state.check(header(2)) is None
    assert state.check(header(CIRCLE - 3, 5)) == RepeatedFrame(14, 19, 0)
    assert state.check(header(CIRCLE - 7, 4)) == RepeatedFrame(10, 14, 0)
    assert state.check(header(CIRCLE - 8, 1)) == RepeatedFrame(-1, 19, -1)
    with pytest.raises(DuplicateSequenceError):
        state.check(header(0, 2))
    with pytest.raises(OutOfOrderSequenceError, match="sent sequence 3, 2 comes next"):
        state.check(header(3))


def test_producer_is_forgotten_a_day_after_its_last_frame():
    """After that it begins at 0 again, and its earlier frames are no duplicates of later ones."""
    log = Log()
    log.append(0, 2, now_ms=1000)
    log.append(2, 2, now_ms=2000)
    log.pass_time(2000, 2000 + EXPIRY_MS)
    assert log.append(2, 2) == RepeatedFrame(2, 4, 2000)
    late_ms = 2001 + EXPIRY_MS
    log.append(0, now_ms=late_ms, producer=2)
    with pytest.raises(UnknownProducerIdError):
        log.append(4, now_ms=late_ms)
    appended = log.append(0, 2, now_ms=late_ms)
    assert isinstance(appended, int)
    assert log.append(0, 2, now_ms=late_ms) == RepeatedFrame(appended, appended + 2, late_ms)
    assert log.append(2, 2, now_ms=late_ms) == appended + 2


def test_retry_is_known_after_a_clock_jumped_ahead():
    """Another producer's frame is stamped a day ahead, or several by clocks that differ: no time has passed."""
    log = Log()
    log.append(0, 2, now_ms=1000)
    log.append(0, now_ms=1000 + 2 * EXPIRY_MS, producer=2)
    assert log.append(0, 2, now_ms=1000) == RepeatedFrame(0, 2, 1000)
    for number in range(10):
        log.append(1 + number, now_ms=(1 + number % 2 * 2 * EXPIRY_MS), producer=2)
    assert log.append(0, 2, now_ms=1000) == RepeatedFrame(0, 2, 1000)
    assert ProducerState.decode(log.state.encode()).check(header(0, 2)) == RepeatedFrame(0, 2, 1000)


def test_snapshot_of_an_earlier_version_is_read():
    """Version 2 has the newest append time, and its value at each producer's last frame."""
    body = (
        struct.pack("<qI", 5000, 1) + struct.pack("<qhqqB", 7, 0, -1, 2000, 1) + struct.pack("<iiqqq", 0, 1, 0, 1, 2000)
    )
    state = ProducerState.decode(struct.pack("<4sHI", b"PSNP", 2, crc32c.crc32c(body)) + body)
    assert state.check(header(0, 2, producer=7)) == RepeatedFrame(0, 2, 2000)
    for number in range(24):
        state.add(header(number, producer=8, now_ms=5000 + number * LARGEST_STEP_MS))
    state.add(header(24, producer=8, now_ms=2000 + EXPIRY_MS))
    assert state.check(header(0, 2, producer=7)) == RepeatedFrame(0, 2, 2000)
    state.add(header(25, producer=8, now_ms=2001 + EXPIRY_MS))
    assert state.check(header(0, 2, producer=7)) is None, "forgotten: it may begin again"


def test_idle_log_forgets_nobody_and_its_producers_continue():
    """No other replica sees the time that passes on a broker's clock."""
    log = Log()
    log.append(0, 2, now_ms=1000)
    assert log.append(2, 2, now_ms=1000 + 3 * EXPIRY_MS) == 2
    assert log.append(2, 2, now_ms=1000 + 3 * EXPIRY_MS) == RepeatedFrame(2, 4, 1000 + 3 * EXPIRY_MS)


def test_clock_that_went_back_lets_no_producer_be_forgotten():
    """Frames stamped with an earlier time are as new as the newest before them."""
    log = Log()
    log.append(0, 1, now_ms=50 * EXPIRY_MS, producer=2)
    log.append(0, 2, now_ms=1000)
    log.append(1, 1, now_ms=2000, producer=2)
    assert log.append(0, 2, now_ms=3000) == RepeatedFrame(1, 3, 1000)
    assert log.append(2, 2, now_ms=3000) == 4


def test_every_replica_remembers_a_days_producers_after_every_start():
    """Whether the state was followed from the first frame or from a snapshot on, it is the same, entry for entry."""
    followed = ProducerState()
    states = [followed]
    largest = 0
    for number in range(3000):
        stamped = header(0, offset=number, producer=number, now_ms=number * EXPIRY_MS // 100)
        for state in states:
            state.add(stamped)
        largest = max(largest, len(followed.producers))
        if number % 700 == 50:
            states.append(ProducerState.decode(followed.encode()))
    assert 100 < largest < 110
    assert len({state.encode() for state in states}) == 1
    assert len(ProducerState.decode(followed.encode()).producers) == 101


# --- against the reference ------------------------------------------------------------------------------------


@dataclass
class Reference:
    """Every frame ever appended, in a list; sequences are plain numbers, wrapped only when they are compared."""

    frames: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # producer, epoch, sequence, count, at

    def expect(self, producer: int, epoch: int, sequence: int, count: int) -> type[PylogError] | tuple[int, int] | None:
        """Returns the error, (base offset or -1, next offset) of a repeated frame, or None: append it."""
        own = [frame for frame in self.frames if frame[0] == producer]
        if not own:
            return None if sequence == 0 else UnknownProducerIdError
        newest = own[-1][1]
        if epoch < newest:
            return InvalidProducerEpochError
        chain = [frame for frame in own if frame[1] == epoch]
        following = sum(frame[3] for frame in chain)
        if sequence == following % CIRCLE:
            return None
        if epoch > newest:
            return OutOfOrderSequenceError
        behind = (following - sequence) % CIRCLE
        if behind > CIRCLE // 2:
            return OutOfOrderSequenceError
        start = following - behind  # its sequence if nothing were ever wrapped
        at = 0
        for place, known in enumerate(chain):
            if (at, known[3]) == (start, count) and len(chain) - place <= 5:
                return known[4], known[4] + count
            at += known[3]
        if start + count <= 0 and len(chain) < 5:
            return -1, chain[-1][4] + chain[-1][3]
        return DuplicateSequenceError


sends = st.tuples(
    st.integers(1, 2),  # producer
    st.integers(0, 2),  # epoch
    st.sampled_from(["next", "again", "anywhere", "zero"]),
    st.integers(0, 30),
    st.sampled_from([1, 2, 3, LARGEST]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(sends, max_size=60), st.sampled_from([0, CIRCLE - 20]))
def test_producer_state_agrees_with_a_reference_that_remembers_all(sent, first):
    """Frames are appended, repeated or refused exactly as the whole history requires; a rebuilt or decoded state is
    the same.
    """
    state, reference, headers = ProducerState(), Reference(), []
    end = 0

    def take(producer: int, epoch: int, sequence: int, count: int) -> None:
        nonlocal end
        appended = header(sequence, count, offset=end, epoch=epoch, producer=producer)
        state.add(appended)
        headers.append(appended)
        reference.frames.append((producer, epoch, sequence, count, end))
        end += count

    for sequence in range(0, first, LARGEST):  # near the wrap already
        take(1, 0, sequence, min(LARGEST, first - sequence))
    for producer, epoch, how, back, count in sent:
        sequence = reference_next(reference, producer, epoch)
        if how == "again":
            sequence = (sequence - back) % CIRCLE
        elif how == "anywhere":
            sequence = (sequence + back + 1) % CIRCLE
        elif how == "zero":
            sequence = 0
        asked = header(sequence, count, epoch=epoch, producer=producer)
        expected = reference.expect(producer, epoch, sequence, count)
        if isinstance(expected, type):
            with pytest.raises(expected):
                state.check(asked)
            continue
        repeated = state.check(asked)
        assert (None if repeated is None else repeated[:2]) == expected
        if repeated is None:
            take(producer, epoch, sequence, count)
    rebuilt = ProducerState()
    for appended in headers:
        rebuilt.add(appended)
    assert rebuilt.encode() == state.encode()
    assert ProducerState.decode(state.encode()).producers == state.producers


def reference_next(reference: Reference, producer: int, epoch: int) -> int:
    return sum(frame[3] for frame in reference.frames if frame[:2] == (producer, epoch)) % CIRCLE
