"""Looking at a log's files from outside: `pylog log dump` and `verify`."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.inspect import iterate_frames, read_identity, verify_directory
from tests.unit.log.log_samples import ROOT, TOPIC_ID, fill, open_directory, open_log, read_frames, segment_path

DIRECTORY = ROOT / "t-0"


@pytest.fixture
def log_files():
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 60, rows=3)
    log.delete_records(4)
    return files, log


def damage_in(files) -> list[tuple[str, int, int]]:
    return [
        (d.path.name, d.position, d.offset)
        for report in verify_directory(DIRECTORY, files=files)
        for d in report.damage
    ]


def test_verify_finds_nothing_wrong_with_a_sound_log_in_use_or_closed(log_files):
    """Reads only, beside a broker too: figures of each segment, no damage."""
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


def test_verify_names_file_position_and_offset_of_a_bad_frame_and_goes_on_behind_it(log_files):
    """Damage is told where it is, and what is good behind it is counted."""
    files, log = log_files
    frames = [data for header, data in read_frames(log, 4) if header.base_offset < log.segment_base_offsets[1]]
    path = segment_path(0)
    whole = bytearray(files.content(path))
    position = sum(len(data) for data in frames[:1]) + len(whole) - sum(map(len, frames))
    whole[position + 150] ^= 8
    files.overwrite(path, bytes(whole))
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


def test_verify_finds_a_missing_segment_a_torn_tail_and_an_entry_that_lies(log_files):
    """Holes between segments, bytes behind the last frame, an entry with a good checksum that is wrong."""
    files, log = log_files
    last = log.segment_base_offsets[-1]
    files.overwrite(segment_path(last), files.content(segment_path(last))[:-64])
    assert next(name for name, _, _ in damage_in(files)) == segment_path(last).name
    files.unlink(segment_path(log.segment_base_offsets[1]))
    assert segment_path(0).name in [name for name, _, _ in damage_in(files)]
    segment = log._state.segments._segments[0]
    segment.offset_index.append(log.segment_base_offsets[1] - 1, 7777)
    assert segment_path(0, ".index").name in [name for name, _, _ in damage_in(files)]


def test_verify_refuses_what_is_no_partitions_directory(log_files):
    """A clear error instead of an empty report."""
    files, _ = log_files
    with pytest.raises(CorruptRecordError, match="holds no segment"):
        verify_directory(ROOT, files=files)
    with pytest.raises(CorruptRecordError, match="is no segment"):
        list(iterate_frames(DIRECTORY / "partition.json", files=files))
