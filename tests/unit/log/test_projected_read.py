"""Which bytes of a file a read of some columns touches, and with how many calls."""

from __future__ import annotations

import pyarrow as pa
import pytest
from frame_samples import pruned_answer

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import encode_frame, iter_frames, stamp, verify_frame
from broker_runtime.contract.frame.header import STAMP_BYTES
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.reading import ProjectedRead
from broker_runtime.log.scan import WINDOW_BYTES
from tests.unit.log.log_samples import ROOT, TOPIC_ID

NAMES = ["a", "b", "c", "d"]
SCHEMA = TopicSchema(schema_id=0, arrow=pa.schema([(name, pa.binary()) for name in NAMES]))
PATH = ROOT / "0.log"
SMALL_FRAME_BYTES = 1 << 10


class CountingFiles(FaultyFiles):
    """Records which bytes were read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []  # position, bytes

    def read(self, descriptor: int, length_bytes: int, position: int) -> bytes:
        data = super().read(descriptor, length_bytes, position)
        self.reads.append((position, len(data)))
        return data

    def read_into(self, descriptor: int, buffers: list[memoryview], position: int) -> int:
        size = sum(buffer.nbytes for buffer in buffers)
        data = self.read(descriptor, size, position)
        joined, at = memoryview(data), 0
        for buffer in buffers:
            part = joined[at : at + buffer.nbytes]
            buffer[: part.nbytes] = part
            at += part.nbytes
        return len(data)


def frame(base_offset: int, *sizes: int) -> bytes:
    """A frame of one record whose columns have these sizes, each in a chunk of its own."""
    columns = {
        name: pa.array([bytes([65 + index]) * size], pa.binary())
        for index, (name, size) in enumerate(zip(NAMES, sizes, strict=True))
    }
    data = bytes(encode_frame(pa.record_batch(columns), SCHEMA, timestamps=0, codec="none", chunk_per_column_bytes=0))
    head = stamp(
        verify_frame(data), base_offset=base_offset, leader_epoch=0, append_time_ms=0, high_watermark=0,
        topic_id=TOPIC_ID.bytes, partition=0, log_append_time=False,
    )  # fmt: skip
    return bytes(head) + data[STAMP_BYTES:]


def read(
    content: bytes, *columns: int, position: int = 0, end: int | None = None, offset: int = 0
) -> tuple[bytes, list[tuple[int, int]]]:
    files = CountingFiles()
    files.make_directory(ROOT)
    with OpenFiles(files).hold(PATH, create=True) as held:
        files.write(held.descriptor, [content], 0)
        answer = ProjectedRead(files, held, columns).load(position, len(content) if end is None else end, offset)
    return answer.to_pybytes(), files.reads


def pruned(content: bytes, *columns: int) -> bytes:
    return b"".join(
        bytes(data) if len(data) <= SMALL_FRAME_BYTES else pruned_answer(data, columns)
        for _, data in iter_frames(memoryview(content))
    )


def test_very_small_frames_are_returned_whole() -> None:
    """Up to a kilobyte; leaving something out would take longer than to send it."""
    small = frame(0, 9, 9, 9, 9)
    assert len(small) == SMALL_FRAME_BYTES
    larger = frame(1, 50, 50, 50, 50)
    assert len(larger) == SMALL_FRAME_BYTES + 256
    answer, reads = read(small + larger, 1)
    assert answer == small + pruned_answer(larger, [1])
    assert reads == [(0, len(small + larger))]


def test_small_frames_are_read_with_the_first_header() -> None:
    """Many small frames cost one call."""
    content = b"".join(frame(number, 50, 60, 70, 800) for number in range(20))
    answer, reads = read(content, 1, 3)
    assert answer == pruned(content, 1, 3)
    assert len(answer) < len(content)
    assert reads == [(0, len(content))]


def test_large_unrequested_chunks_are_not_read() -> None:
    """S6: of a megabyte only the chosen columns are read, and the next frame's header with a small read."""
    content = b"".join(frame(number, 100, 400_000, 100, 300) for number in range(5))
    answer, (first, *others) = read(content, 0, 3)
    assert answer == pruned(content, 0, 3)
    assert first == (0, WINDOW_BYTES)
    assert max(size for _, size in others) <= 8 << 10


def test_empty_selection_reads_only_heads() -> None:
    """Counting rows costs headers."""
    content = b"".join(frame(number, 100_000, 100_000, 100_000, 100_000) for number in range(5))
    answer, (_, *others) = read(content)
    assert answer == pruned(content)
    assert max(size for _, size in others) <= 8 << 10


@pytest.mark.parametrize(("gap_bytes", "calls"), [(10_000, 1), (15_000, 1), (40_000, 2)])
def test_close_chunks_are_one_read(gap_bytes: int, calls: int) -> None:
    """A small gap is cheaper to read than another call; a large one is skipped."""
    content = frame(0, WINDOW_BYTES, 90_000, gap_bytes, 90_000)
    answer, reads = read(content, 1, 3)
    assert answer == pruned(content, 1, 3)
    assert len(reads) == 1 + calls, "the head, and the chunks"
    assert sum(size for _, size in reads[1:]) < 180_000 + (gap_bytes if calls == 1 else 0) + 3_000


def test_read_begins_and_ends_with_the_given_frames() -> None:
    """Frames before and after belong to other reads."""
    frames = [frame(number, 10, 20, 30, 40) for number in range(4)]
    start, end = len(frames[0]), len(b"".join(frames[:3]))
    answer, _ = read(b"".join(frames), 2, position=start, end=end, offset=1)
    assert answer == pruned(b"".join(frames[1:3]), 2)


def test_nothing_after_the_last_frame_is_read() -> None:
    """The first read is an exception: it is a whole window."""
    frames = [frame(0, 400_000, 1, 1, 1), frame(1, 9, 9, 9, 9), frame(2, 9, 9, 9, 9)]
    end = len(frames[0] + frames[1])
    answer, (_, *others) = read(b"".join(frames), 1, end=end)
    assert answer == pruned(frames[0] + frames[1], 1)
    assert max(position + size for position, size in others) == end


@pytest.mark.parametrize("lacking_bytes", [1, 50_000])
def test_file_that_ends_early_is_damage(lacking_bytes: int) -> None:
    """W15: nothing missing is ever answered."""
    content = frame(0, 200_000, 10, 10, 90_000)
    with pytest.raises(CorruptRecordError, match="its frames need it to"):
        read(content[: len(content) - lacking_bytes], 3, end=len(content))


def test_frame_at_the_wrong_place_is_damage() -> None:
    """W15: the header must have the expected offset."""
    content = frame(0, 10, 10, 10, 10) + frame(5, 10, 10, 10, 10)
    with pytest.raises(CorruptRecordError):
        read(content, 0)
