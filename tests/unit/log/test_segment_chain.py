"""The segments of one log: when a new one begins, which are removed, and where records are found."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import verify_frame
from broker_runtime.contract.settings import TopicSettings
from broker_runtime.log.appending import VerifiedFrame, stamped
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.segment import Segment, SegmentChain, StampedFrame
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, TOPIC_ID, frame

CONFIG = topic_settings(segment_bytes=1 << 20)
FAR = 1 << 32


class Chain:
    """A chain on a disk in memory that begins with ``start``, and the offsets at which it was rolled."""

    def __init__(self, start: int = 0) -> None:
        self.files = FaultyFiles()
        self.files.make_directory(ROOT)
        self.open_files = OpenFiles(self.files)
        first = Segment(self.open_files, ROOT, start, index_interval_bytes=100, is_closed=False)
        first.create()
        self.chain = SegmentChain(self.open_files, ROOT, [first])
        self.rolled: list[int] = []

    def append(self, *rows: int, config: TopicSettings = CONFIG, now_ms: int = 0) -> None:
        """Appends a frame for each count of rows, all in one call."""
        frames, offset = [], self.chain.end_offset
        for count in rows:
            frames.append(stored(count, offset, now_ms))
            offset += count
        self.chain.append(frames, config, now_ms=now_ms, on_roll=self.rolled.append)

    def flush(self) -> int:
        """Flushes as the log does; returns how many files had to be synced."""
        holds = self.chain.hold_unsynced()
        for held in holds:
            self.files.sync(held.descriptor)
            held.release()
        return len(holds)

    def reopened(self) -> SegmentChain:
        """The same files, opened by a process that has read nothing of them yet."""
        last = len(self.chain) - 1
        segments = [
            Segment(self.open_files, ROOT, base, index_interval_bytes=100, is_closed=number < last)
            for number, base in enumerate(self.chain.base_offsets)
        ]
        return SegmentChain(self.open_files, ROOT, segments)


def stored(rows: int, offset: int, now_ms: int = 0) -> StampedFrame:
    data = frame(rows, seed=offset % 1000)
    return stamped(
        VerifiedFrame(buffer=memoryview(data), header=verify_frame(data)),
        base_offset=offset,
        leader_epoch=0,
        append_time_ms=now_ms,
        high_watermark=0,
        topic_id=TOPIC_ID,
        partition=0,
        is_log_append_time=False,
    )


SIZE = stored(1, 0)[1].frame_bytes


def test_segment_accepts_frames_until_the_next_would_not_fit() -> None:
    """W29: the limit is exact; a segment is never empty, whatever a frame's size."""
    made = Chain()
    made.append(1, 1, 1, config=topic_settings(segment_bytes=2 * SIZE))
    assert (made.chain.base_offsets, made.rolled, made.chain.end_offset) == ((0, 2), [2], 3)
    made.append(1, config=topic_settings(segment_bytes=2 * SIZE))
    assert made.rolled == [2]
    made.append(1, config=topic_settings(segment_bytes=2 * SIZE - 1))
    made.append(1, config=topic_settings(segment_bytes=2 * SIZE - 1))
    assert made.rolled == [2, 4, 5]
    made.append(1, config=topic_settings(segment_bytes=1))
    assert [segment.size_bytes for segment in made.chain.all_loaded()] == [2 * SIZE, 2 * SIZE, SIZE, SIZE, SIZE]


def test_frames_of_one_call_are_one_write_for_each_segment_they_go_to() -> None:
    """A call for each frame would cost more."""
    made = Chain()
    made.files.calls.clear()
    made.append(1, 1, 1, 1, 1, config=topic_settings(segment_bytes=3 * SIZE))
    writes = [path for operation, path in made.files.calls if operation == "write" and path.suffix == ".log"]
    assert writes == [ROOT / f"{0:020}.log", ROOT / f"{3:020}.log"]


def test_segment_ends_when_its_first_append_is_old_enough() -> None:
    """W29: `segment.ms` counts from the first append; an empty segment never gets old."""
    made, config = Chain(), topic_settings(segment_ms=1000)
    made.append(1, config=config, now_ms=5_000)
    made.append(1, config=config, now_ms=5_999)
    assert made.rolled == []
    made.append(1, 1, config=config, now_ms=6_000)
    assert made.rolled == [2]
    made.append(1, config=config, now_ms=6_999)
    assert made.rolled == [2]
    assert Chain().chain.base_offsets == (0,)


def test_segment_ends_before_an_offset_that_its_index_cannot_name() -> None:
    """Relative offsets have 32 bits: the last one that fits is the end of the frame."""
    made = Chain()
    made.append(1)
    made.chain.active.next_offset = FAR - 2
    made.append(1)
    assert (made.rolled, made.chain.end_offset) == ([], FAR - 1)
    made.append(1)
    assert made.rolled == [FAR - 1]


def test_each_record_is_found_in_its_segment() -> None:
    """An offset below all is looked up in the oldest segment, one above all in the newest, where it will be."""
    made = Chain(10)
    made.append(2, 2, 2, config=topic_settings(segment_bytes=1))
    assert made.chain.base_offsets == (10, 12, 14)
    assert [made.chain.find(offset).base_offset for offset in (0, 10, 11, 12, 13, 14, 15, 99)] == [
        10, 10, 10, 12, 12, 14, 14, 14,
    ]  # fmt: skip


def test_fsync_covers_every_segment_written_since_the_last_one() -> None:
    """A segment that was closed meanwhile is neither forgotten nor synced twice."""
    made = Chain()
    made.append(1, 1, 1, config=topic_settings(segment_bytes=1))
    assert made.flush() == 3
    assert made.flush() == 0
    made.append(1)
    assert made.flush() == 1


def test_removed_oldest_segments_need_no_fsync() -> None:
    """W29: their files are unlinked durably; the last segment always stays."""
    made = Chain()
    made.append(1, 1, 1, config=topic_settings(segment_bytes=1))
    gone = made.chain.find(0)
    made.files.calls.clear()
    made.chain.remove_oldest(2)
    assert made.chain.base_offsets == (2,)
    assert (gone in made.chain, made.chain.active in made.chain) == (False, True)
    assert made.files.calls[-1] == ("sync_directory", ROOT)
    assert [name for name in made.files.list(ROOT) if name.endswith(".log")] == [f"{2:020}.log"]
    assert made.flush() == 1
    with pytest.raises(AssertionError):
        made.chain.remove_oldest(1)


@pytest.mark.parametrize(
    ("offset", "bases", "end"),
    [
        (9, (0, 4, 8), 9),
        (8, (0, 4), 8),
        (7, (0, 4), 6),
        (6, (0, 4), 6),
        (5, (0, 4), 4),
        (4, (0,), 4),
        (3, (0,), 2),
        (1, (0,), 0),
        (0, (0,), 0),
    ],
)
def test_truncation_keeps_the_frames_that_end_at_the_offset_or_below(
    offset: int, bases: tuple[int, ...], end: int
) -> None:
    """W13: a frame that contains the offset is removed whole; the last segment accepts appends again, even a closed
    one.
    """
    made = Chain()
    config = topic_settings(segment_bytes=2 * stored(2, 0)[1].frame_bytes)
    made.append(2, 2, 2, 2, 1, config=config)
    made.flush()
    made.chain.truncate(offset, 100)
    assert (made.chain.base_offsets, made.chain.end_offset) == (bases, end)
    assert not made.chain.active.is_closed
    made.append(3)
    assert made.chain.end_offset == end + 3
    again = made.reopened()
    assert sum(segment.size_bytes for segment in again.all_loaded()) == made.chain.size_bytes()
    assert again.all_loaded()[-1].next_offset == end + 3


def test_hole_between_two_segments_is_damage_whenever_it_is_found() -> None:
    """W15: a gap at a segment's end is never skipped; the segment is checked again each time."""
    made = Chain()
    size = stored(2, 0)[1].frame_bytes
    made.append(2, 2, 2, 2, config=topic_settings(segment_bytes=2 * size))
    made.append(1, config=topic_settings(segment_bytes=1))
    assert made.chain.base_offsets == (0, 4, 8)
    del made.files._names[ROOT / f"{4:020}.log"].content[size:]
    lacking = made.reopened()
    assert lacking.find(1).next_offset == 4
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="it ends there, the next segment begins with offset 8"):
            lacking.find(5)
    assert lacking.find(8).next_offset == 9
