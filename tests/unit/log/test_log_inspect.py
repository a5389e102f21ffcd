"""Inspecting a log's files from outside: `pylog log dump` and `verify`."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import HEADER_BYTES, STAMP_BYTES, encode_frame
from broker_runtime.contract.schema import UNTYPED
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.inspect import iterate_frames, read_identity, verify_directory
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import (
    ROOT,
    TOPIC_ID,
    append,
    fill,
    flip,
    frame,
    open_directory,
    open_log,
    read_frames,
    segment_path,
)

DIRECTORY = ROOT / "t-0"


@pytest.fixture
def log_files():
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 60, rows=3)
    log.delete_records(4)
    return files, log


def unreadable(codec: str) -> bytes:
    """A frame of 40 records with correct checksums and garbage as values."""
    values = pa.array([b"%d" % number * 50 for number in range(40)], pa.binary())
    data = bytearray(encode_frame(pa.record_batch({"value": values}), UNTYPED, timestamps=1, codec=codec))
    if codec == "none":
        at = data.find(struct.pack("<3i", 0, 50, 100))
        assert at > 0
        struct.pack_into("<i", data, at + 4, 2**31 - 1)
    else:
        middle = slice(len(data) - 250, len(data) - 150)
        data[middle] = bytes(byte ^ 0x5A for byte in data[middle])
    (directory_bytes,) = struct.unpack_from("<I", data, 108)
    (length,) = struct.unpack_from("<I", data, HEADER_BYTES)
    first = HEADER_BYTES + directory_bytes
    struct.pack_into("<I", data, HEADER_BYTES + 4, crc32c(bytes(data[first : first + length])))
    struct.pack_into("<I", data, 124, crc32c(bytes(data[HEADER_BYTES:first]), crc32c(bytes(data[STAMP_BYTES:124]))))
    return bytes(data)


def with_false_times() -> bytes:
    """A frame of two records with correct checksums whose header denies how late the second one is."""
    batch = pa.record_batch({"value": [b"a", b"b"]})
    data = bytearray(encode_frame(batch, UNTYPED, timestamps=pa.array([1000, 2**62])))
    struct.pack_into("<q", data, 80, 1001)
    (directory_bytes,) = struct.unpack_from("<I", data, 108)
    directory = bytes(data[HEADER_BYTES : HEADER_BYTES + directory_bytes])
    struct.pack_into("<I", data, 124, crc32c(directory, crc32c(bytes(data[STAMP_BYTES:124]))))
    return bytes(data)


def damage_in(files) -> list[tuple[str, int, int]]:
    return [
        (d.path.name, d.position, d.offset)
        for report in verify_directory(DIRECTORY, files=files)
        for d in report.damage
    ]


def test_verify_finds_nothing_wrong_with_a_sound_log_in_use_or_closed(log_files):
    """It only reads, beside a broker too: it reports figures of each segment, and no damage."""
    files, log = log_files
    files.calls.clear()
    reports = verify_directory(DIRECTORY, files=files)
    assert files.calls == []
    assert damage_in(files) == []
    assert [report.base_offset for report in reports] == list(log.segment_base_offsets)
    assert [report.next_offset for report in reports] == [*log.segment_base_offsets[1:], 180]
    assert sum(report.frames for report in reports) == 60
    assert sum(report.records for report in reports) == 180
    assert reports[-1].max_timestamp_ms == 1059
    assert read_identity(DIRECTORY, files=files).topic_id == TOPIC_ID


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_verify_names_unreadable_records_with_correct_checksums(codec):
    """A broken producer's records are distinguished from a disk's damage, and do not end the check."""
    files = FaultyFiles()
    log = open_log(open_directory(files), topic_settings())
    rotten = unreadable(codec)
    for data in (frame(3), rotten, frame(2), rotten):
        append(log, data)
    [report] = verify_directory(DIRECTORY, files=files)
    assert (report.frames, report.records) == (4, 3 + 40 + 2 + 40)
    first, second = report.damage
    assert (first.path, first.offset, second.offset) == (segment_path(0), 3, 45)
    assert [first.position, second.position] == [
        position for position, header, _ in iterate_frames(segment_path(0), files=files) if header.record_count == 40
    ]
    assert "records 3 to 42 cannot be read" in first.reason
    assert "no disk is at fault" in first.reason
    assert "at 43" in first.reason
    assert {error for _, _, error in iterate_frames(segment_path(0), files=files)} == {None}, "no checksum is wrong"


def test_verify_names_records_whose_times_contradict_their_header():
    """Only its own producer can have written such a frame: readers refuse it, and no disk is at fault."""
    files = FaultyFiles()
    log = open_log(open_directory(files), topic_settings())
    append(log, frame(3))
    append(log, with_false_times())
    [report] = verify_directory(DIRECTORY, files=files)
    [damage] = report.damage
    assert "records 3 to 4 cannot be read: timestamps of 1000 to" in damage.reason


def test_verify_ignores_deleted_unreadable_records():
    """Deleting them resolves the problem, though their segment stays."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    for data in (frame(3), unreadable("none"), frame(2)):
        append(log, data)
    assert damage_in(files) != []
    log.delete_records(43)
    directory.checkpoint()
    assert log.segment_base_offsets == (0,)
    assert damage_in(files) == []


def test_verify_names_file_position_and_offset_of_a_bad_frame_and_continues_after_it(log_files):
    """Damage is reported with its position, and sound frames after it are counted."""
    files, log = log_files
    frames = [data for header, data in read_frames(log, 4) if header.base_offset < log.segment_base_offsets[1]]
    path = segment_path(0)
    position = sum(len(data) for data in frames[:1]) + len(files.content(path)) - sum(map(len, frames))
    flip(files, path, position + 150)
    [(name, found, offset)] = damage_in(files)
    assert (name, found) == (path.name, position)
    walked = list(iterate_frames(path, files=files))
    assert [n for n, (_, _, error) in enumerate(walked) if error is not None] == [
        [at for at, _, _ in walked].index(position)
    ]
    assert offset == walked[[at for at, _, _ in walked].index(position)][1].base_offset


@pytest.mark.parametrize(
    "name", [f"{0:020d}.index", f"{0:020d}.timeindex", "leader-epoch-checkpoint", "partition.json"]
)
def test_verify_finds_damage_in_every_small_file(log_files, name):
    """Indexes, epochs and identity are checked against the frames and their own checksums."""
    files, _ = log_files
    data = bytearray(files.content(DIRECTORY / name))
    data[len(data) // 2] ^= 1
    files.overwrite(DIRECTORY / name, bytes(data))
    assert [found for found, _, _ in damage_in(files)] == [name]


def test_verify_finds_a_missing_segment_a_torn_tail_and_a_wrong_entry(log_files):
    """It finds holes between segments, bytes after the last frame, and a wrong entry with a correct checksum."""
    files, log = log_files
    last = log.segment_base_offsets[-1]
    files.overwrite(segment_path(last), files.content(segment_path(last))[:-64])
    assert next(name for name, _, _ in damage_in(files)) == segment_path(last).name
    files.unlink(segment_path(log.segment_base_offsets[1]))
    assert segment_path(0).name in [name for name, _, _ in damage_in(files)]
    segment = log._state.segments._segments[0]
    segment.offset_index.file.append([(log.segment_base_offsets[1] - 1, 7777)])
    assert segment_path(0, ".index").name in [name for name, _, _ in damage_in(files)]


def test_verify_refuses_a_directory_that_is_no_partitions(log_files):
    """The error is clear, instead of an empty report."""
    files, _ = log_files
    with pytest.raises(CorruptRecordError, match="holds no segment"):
        verify_directory(ROOT, files=files)
    with pytest.raises(CorruptRecordError, match="is no segment"):
        list(iterate_frames(DIRECTORY / "partition.json", files=files))
